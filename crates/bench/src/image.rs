//! The image file of a run: written through once, then formatted anew for each engine.
//!
//! A sparse or only allocated file is slower than a written one on many disks, and the first engine would
//! pay for it. Discards punch holes, so they are off by default; after an engine that sent them the image is
//! written through again.

use crate::drive::Surroundings;
use crate::outcome::{Outcome, os};
use quire_device::AlignedBuf;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CHUNK: usize = 4 << 20;

/// A file of written blocks; removed when dropped.
pub struct Image {
    path: PathBuf,
    bytes: u64,
}

impl Image {
    /// Writes `bytes` (rounded up to 4 MiB) into a new file.
    pub fn write_through(path: PathBuf, bytes: u64, surroundings: &Surroundings<'_>) -> Outcome<Image> {
        let bytes = bytes.next_multiple_of(CHUNK as u64);
        let file = create(&path).map_err(os(format!("making the image file {}", path.display())))?;
        // From here on the guard removes it.
        let image = Image { path, bytes };
        image.fill(&file, surroundings)?;
        Ok(image)
    }

    /// Writes every block again, after an engine that punched holes.
    pub fn write_again(&self, surroundings: &Surroundings<'_>) -> Outcome {
        let file = open(OpenOptions::new().write(true), &self.path);
        self.fill(&file.map_err(os(format!("opening the image file {}", self.path.display())))?, surroundings)
    }

    fn fill(&self, file: &File, surroundings: &Surroundings<'_>) -> Outcome {
        surroundings.progress.phase("writing the image through");
        let bytes = self.bytes;
        let doing = || os(format!("writing the image file {}", self.path.display()));
        let mut buffer = AlignedBuf::zeroed(CHUNK);
        // Not zeros, which a disk may keep as nothing.
        buffer.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 37 + n / 251) as u8);
        for at in (0..bytes).step_by(CHUNK) {
            surroundings.interrupt.check()?;
            surroundings.progress.at(at, bytes);
            file.write_all_at(&buffer, at).map_err(doing())?;
        }
        file.sync_all().map_err(doing())?;
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    open(OpenOptions::new().read(true).write(true).create_new(true).mode(0o600), path)
}

/// Past the page cache where the file system under it can.
fn open(options: &OpenOptions, path: &Path) -> std::io::Result<File> {
    match options.clone().custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // Some kernels have made the file by then.
            options.clone().create(true).create_new(false).open(path)
        }
        Err(error) => Err(error),
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
