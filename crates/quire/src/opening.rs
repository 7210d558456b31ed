//! Making and opening volumes, as options say.
//!
//! Neighbours: [`crate::options`]; [`crate::mkfs`] makes, [`crate::volume`] opens.

use crate::mkfs;
use crate::options::{FormatOptions, VolumeOptions};
use crate::volume::{Volume, VolumeInfo};
use quire_base::Result;
use quire_base::sync::Arc;
#[cfg(not(any(loom, shuttle)))]
use quire_base::{Error, ErrorKind};
use quire_device::Backend;
#[cfg(not(any(loom, shuttle)))]
use std::path::Path;

impl FormatOptions {
    /// Makes a volume in an image file, on a block device, or on a device that an NBD server exports
    /// (`nbd://HOST:PORT/EXPORT`). Refuses to overwrite a file system, unless forced; creates the file, with
    /// mode 0600, if there is none and a size is given.
    #[cfg(not(any(loom, shuttle)))]
    pub fn format(&self, path: impl AsRef<Path>) -> Result<VolumeInfo> {
        let path = path.as_ref();
        let exists = quire_device::NbdAddress::is_one(path) || path.exists();
        let backend = match (exists, self.size) {
            (false, None) => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{} does not exist; give a size to create it", path.display()),
                ));
            }
            (false, Some(size)) => {
                mkfs::check_size(size, self)?;
                quire_device::create_image(path, size, false)?
            }
            (true, _) => mkfs::open_for_format(path, self)?,
        };
        let formatted = self.format_backend(backend);
        if formatted.is_err() && !exists {
            // Nothing of ours is left behind where there was nothing.
            let _ = std::fs::remove_file(path);
        }
        formatted
    }

    /// Makes a volume on any backend. Nothing may have a volume open there.
    pub fn format_backend(&self, backend: Arc<dyn Backend>) -> Result<VolumeInfo> {
        mkfs::format(backend, self).map(|superblock| VolumeInfo::of(&superblock))
    }
}

impl VolumeOptions {
    /// Opens the volume in an image file, on a block device, or on a device that an NBD server exports
    /// (`nbd://HOST:PORT/EXPORT`). One process at a time may have it open for writing. On a server's device
    /// a mark names that process, and an opening beside it is refused; two processes at the same moment may
    /// both succeed, and then at least one shuts down soon.
    ///
    /// What this process may only read is opened read-only: [`Volume::is_read_only`] says so, and
    /// [`Volume::recovery`] why.
    ///
    /// Errors: `Busy` if somebody else has it open, after a wait of half a second; `NotAVolume`,
    /// `UnknownFormat`, and `Corrupt` for a damaged one; those of the system and the device.
    #[cfg(not(any(loom, shuttle)))]
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        let backend = if self.read_only {
            quire_device::open_image(path, quire_device::OpenMode::ReadOnly)?
        } else {
            mkfs::open_writable_or_read_only(path)?
        };
        self.open_backend(backend)
    }

    /// Opens the volume on any backend. A backend is not locked as an image is: to open the volume on it
    /// twice at a time loses what one of the two has written.
    pub fn open_backend(&self, backend: Arc<dyn Backend>) -> Result<Volume> {
        Volume::open_with(backend, self)
    }
}
