//! Resizing and naming volumes that nobody has open.
//!
//! Neighbours: [`crate::recovery::reshape`] does it; `quire resize`, `quire label` and `quire uuid` above.

use crate::options::Reshape;
use crate::options::VolumeOptions;
use crate::volume::{Volume, VolumeInfo};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Clock, Result};
use quire_device::Backend;
#[cfg(not(any(loom, shuttle)))]
use quire_format::superblock::Superblock;
#[cfg(not(any(loom, shuttle)))]
use std::path::Path;

/// What a volume that nobody has open is to get: more space, a larger journal.
///
/// ```
/// use quire::{FormatOptions, ResizeOptions, Volume};
///
/// # fn main() -> quire::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let image = directory.path().join("data.img");
/// FormatOptions::new().size(64 << 20).format(&image)?;
/// let info = ResizeOptions::new().size(128 << 20).journal_bytes(8 << 20).resize(&image)?;
/// assert_eq!((info.blocks, info.journal_blocks), (32768, 2048));
/// Volume::open(&image)?.close()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ResizeOptions {
    size: Option<Size>,
    journal_bytes: Option<u64>,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Bytes(u64),
    /// As large as the device or file.
    Whole,
}

impl ResizeOptions {
    /// Everything stays as it is.
    pub fn new() -> ResizeOptions {
        ResizeOptions::default()
    }

    /// Bytes of the volume. An image file that is smaller grows, too.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> ResizeOptions {
        self.size = Some(Size::Bytes(bytes));
        self
    }

    /// The volume is to have the whole file or device.
    #[must_use]
    pub fn whole(mut self) -> ResizeOptions {
        self.size = Some(Size::Whole);
        self
    }

    /// Bytes of the journal: more than it has, at most a quarter of the volume and 4 GiB. It needs as much
    /// free space in one piece; what it had becomes free.
    #[must_use]
    pub fn journal_bytes(mut self, bytes: u64) -> ResizeOptions {
        self.journal_bytes = Some(bytes);
        self
    }

    /// Where timestamps come from.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> ResizeOptions {
        self.clock = clock;
        self
    }

    /// Resizes the volume in an image file or on a block device, and closes it. A volume that was not closed
    /// in order is recovered first. After a crash it has its old size or the new one.
    ///
    /// Errors: `Busy` if it is mounted or open elsewhere; `Invalid` for what would make it smaller, or no
    /// volume may have; `NoSpace` without room for the journal in one piece. Nothing has changed then. An
    /// error of the device leaves what a crash does, and an image file that was to grow may have its new
    /// size: the same call again ends it.
    #[cfg(not(any(loom, shuttle)))]
    pub fn resize(&self, path: impl AsRef<Path>) -> Result<VolumeInfo> {
        use quire_device::{OpenMode, open_image};
        let path = path.as_ref();
        let backend = open_image(path, OpenMode::ReadWrite)?;
        if let Some(Size::Bytes(bytes)) = self.size
            && bytes / BLOCK_SIZE as u64 > backend.blocks()
            && std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        {
            let blocks = bytes / BLOCK_SIZE as u64;
            // A refusal leaves the file as it is, too.
            self.reshape(&*backend).check_with_room(backend.clone(), blocks)?;
            // The lock stays: a program that came in between would have the resize end here, and the file as
            // large as it was to be.
            backend.grow(blocks)?;
        }
        self.resize_backend(backend)
    }

    /// Resizes the volume on any backend.
    pub fn resize_backend(&self, backend: Arc<dyn Backend>) -> Result<VolumeInfo> {
        let reshape = self.reshape(&*backend);
        reshape_and_close(backend, reshape, self.clock.clone())
    }

    fn reshape(&self, backend: &dyn Backend) -> Reshape {
        let blocks = self.size.map(|size| match size {
            Size::Bytes(bytes) => bytes / BLOCK_SIZE as u64,
            Size::Whole => backend.blocks(),
        });
        Reshape { blocks, journal_bytes: self.journal_bytes, ..Reshape::default() }
    }
}

/// Gives the volume in an image file or on a block device another name for people, of at most 64 bytes.
/// Nobody may have it open.
#[cfg(not(any(loom, shuttle)))]
pub fn set_label(path: impl AsRef<Path>, label: &str) -> Result<VolumeInfo> {
    let label = Superblock::pad_label(label)?;
    let backend = quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?;
    let reshape = Reshape { label: Some(label), ..Reshape::default() };
    reshape_and_close(backend, reshape, Clock::System)
}

/// Gives the volume in an image file or on a block device another uuid, as after a copy of the image: this
/// one, or a random one. Nobody may have it open.
///
/// Blocks keep the identity that they have, so that nothing is written anew; streams and snapshots go by
/// that. Errors: `Invalid` for a uuid of zeros.
#[cfg(not(any(loom, shuttle)))]
pub fn set_uuid(path: impl AsRef<Path>, uuid: Option<[u8; 16]>) -> Result<VolumeInfo> {
    let uuid = uuid.unwrap_or_else(|| {
        let mut random = quire_base::random::Random::from_entropy();
        let halves = [random.next_u64().to_le_bytes(), random.next_u64().to_le_bytes()];
        let bytes = halves.concat().try_into().expect("sixteen bytes");
        uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes()
    });
    if uuid == [0; 16] {
        return Err(quire_base::Error::invalid("a volume's uuid is not all zeros"));
    }
    let backend = quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?;
    let reshape = Reshape { uuid: Some(uuid), ..Reshape::default() };
    reshape_and_close(backend, reshape, Clock::System)
}

fn reshape_and_close(backend: Arc<dyn Backend>, reshape: Reshape, clock: Clock) -> Result<VolumeInfo> {
    let options = VolumeOptions { threads: false, clock, reshape: Some(reshape), ..VolumeOptions::new() };
    let volume = Volume::open_with(backend, &options)?;
    let mut info = volume.info();
    volume.close()?;
    info.clean = true;
    Ok(info)
}
