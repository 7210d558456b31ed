//! The image file of a run: written through once, then formatted anew for each engine.
//!
//! A sparse or only allocated file is slower than a written one on many disks, and the first engine would
//! pay for it. Discards punch holes, so they are off by default. A kernel file system also leaves holes where
//! it has its device zero a range (a log, tables of inodes). Before each engine, and after each mkfs of the
//! kernel's file systems, the run writes over the holes that there are then.

use crate::drive::Surroundings;
use crate::outcome::{Outcome, os};
use quire_device::AlignedBuf;
use rustix::fs::{SeekFrom, seek};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CHUNK: usize = 4 << 20;

/// What is written: the byte at each place of a piece.
pub type Content = fn(usize) -> u8;
/// What holes read as.
pub const ZEROS: Content = |_| 0;
/// What no disk keeps as nothing, as it may keep zeros.
pub const NOT_ZEROS: Content = |n| (n * 37 + n / 251) as u8;

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
        image.fill(&file, 0..bytes, NOT_ZEROS, surroundings)?;
        Ok(image)
    }

    /// Writes over each hole, and over each range that is allocated and not written. Both read as zeros, so
    /// [`ZEROS`] change no contents.
    pub fn fill_holes(&self, content: Content, surroundings: &Surroundings<'_>) -> Outcome {
        let doing = || os(format!("looking for holes in the image file {}", self.path.display()));
        let file = open(OpenOptions::new().read(true).write(true), &self.path).map_err(doing())?;
        let mut at = 0;
        while at < self.bytes {
            // At the latest there is an empty one at the end of the file.
            let hole = seek(&file, SeekFrom::Hole(at)).map_err(|error| doing()(error.into()))?;
            at = match seek(&file, SeekFrom::Data(hole)) {
                Err(rustix::io::Errno::NXIO) => self.bytes,
                data => data.map_err(|error| doing()(error.into()))?,
            };
            self.fill(&file, hole..at, content, surroundings)?;
        }
        Ok(())
    }

    fn fill(
        &self,
        file: &File,
        range: Range<u64>,
        content: Content,
        surroundings: &Surroundings<'_>,
    ) -> Outcome {
        surroundings.progress.phase("writing the image through");
        let doing = || os(format!("writing the image file {}", self.path.display()));
        let mut buffer = AlignedBuf::zeroed(CHUNK);
        buffer.iter_mut().enumerate().for_each(|(n, byte)| *byte = content(n));
        for at in range.clone().step_by(CHUNK) {
            surroundings.interrupt.check()?;
            surroundings.progress.at(at, self.bytes);
            let bytes = CHUNK.min((range.end - at) as usize);
            file.write_all_at(&buffer[..bytes], at).map_err(doing())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::progress::Progress;
    use rustix::fs::{FallocateFlags, fallocate};

    /// mkfs.xfs and mkfs.ext4 have the kernel zero ranges, which made them unwritten again: the log of XFS
    /// lay on such blocks of an image that was said to be written through.
    #[test]
    fn holes_are_written_over_and_contents_stay() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        let directory = tempfile::tempdir().unwrap();
        let image = Image::write_through(directory.path().join("image"), 12 << 20, &surroundings).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(image.path()).unwrap();
        let mut expected = std::fs::read(image.path()).unwrap();
        assert!(expected[..4096].iter().any(|byte| *byte != 0));
        let zeroed = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (how, at, bytes) in
            [(zeroed, 1 << 20, 6 << 20), (punched, 9 << 20, 64 << 10), (punched, 11 << 20, 1 << 20)]
        {
            if let Err(error) = fallocate(&file, how, at, bytes) {
                return eprintln!("SKIPPED: holes_are_written_over_and_contents_stay: {error}");
            }
            expected[at as usize..(at + bytes) as usize].fill(0);
        }
        let first_hole = || seek(&file, SeekFrom::Hole(0)).unwrap();
        assert!(first_hole() < image.bytes());
        image.fill_holes(ZEROS, &surroundings).unwrap();
        assert_eq!(first_hole(), image.bytes());
        assert!(std::fs::read(image.path()).unwrap() == expected);
    }
}
