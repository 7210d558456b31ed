//! Ordinary file I/O through the host's page cache.
//!
//! Used where the host refuses direct I/O or io_uring, and for read-only volumes. Requests given to `submit`
//! are done one after another in the calling thread.
//!
//! Neighbours: [`super::uring`] is the default.

use super::mode::OpenMode;
use super::target::Target;
use crate::backend::{Backend, Io, IoClass, Segment};
use quire_base::{BlockNo, Result};
use std::path::Path;

/// See the module's documentation.
pub struct FileBackend {
    target: Target,
}

impl FileBackend {
    /// Opens and locks the image file or block device at `path`.
    pub fn open(path: &Path, mode: OpenMode) -> Result<FileBackend> {
        Ok(FileBackend { target: Target::open(path, mode)? })
    }

    pub(super) fn new(target: Target) -> FileBackend {
        FileBackend { target }
    }
}

impl Backend for FileBackend {
    fn blocks(&self) -> u64 {
        self.target.blocks()
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.target.grow(blocks)
    }

    fn name(&self) -> String {
        self.target.name().into()
    }

    fn is_read_only(&self) -> bool {
        self.target.is_read_only()
    }

    fn read(&self, _class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.target.read(at, buf)
    }

    fn read_scattered(&self, _class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<()> {
        self.target.read_scattered(at, segments)
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.target.write(at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.target.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.target.discard(at, count)
    }

    fn submit(&self, _class: IoClass, ios: Vec<Io>) {
        for io in ios {
            let outcome = self.target.check(&io).and_then(|()| {
                // SAFETY: the maker of the segments keeps them valid until `done` runs, which is below; an
                // ordinary descriptor asks for no alignment.
                unsafe { self.target.transfer(io.op, io.at, &io.segments) }
            });
            (io.done)(outcome);
        }
    }
}
