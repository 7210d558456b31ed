//! What a driver needs of an engine: named files, and the totals of what it did to its device.
//!
//! Calls go through `dyn`, for every engine alike, so that an indirect call is part of all figures. Paths are
//! relative, with `/` between names.

use crate::drive::InTime;
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};
use std::time::Duration;

/// How a file is opened. Reading and writing are always allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Make it if it is not there.
    pub create: bool,
    /// Writes go to the end.
    pub append: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_DSYNC.
    pub data_sync: bool,
    /// Bytes that it will have: engines without files (raw, memcpy) set this much aside.
    pub room: u64,
}

impl How {
    /// Make it, with room for `room` bytes.
    pub fn create(room: u64) -> How {
        How { create: true, room, ..How::default() }
    }
}

/// A write of a group: the bytes and their offset.
pub type Piece<'a> = (&'a [u8], u64);

/// An open file.
pub trait Handle: Send + Sync {
    /// Reads; the count is short only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `data`; at the end if opened for appending.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    /// fsync, or fdatasync.
    fn sync(&self, data_only: bool) -> Result<()>;
    /// Writes all of `data`, durable when it returns.
    fn write_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_at(data, offset)?;
        self.sync(true)
    }
    /// Why [`Handle::write_durably`] cannot write so many bytes in the way that the engine's options ask for,
    /// if it cannot.
    fn refuses_durable(&self, _bytes: u64) -> Option<String> {
        None
    }
    /// Writes all pieces, which do not overlap; durable as a whole or not at all.
    fn group(&self, _pieces: &[Piece<'_>]) -> Result<()> {
        Err(unsupported("groups of writes"))
    }
    /// Sets the size.
    fn truncate(&self, _size: u64) -> Result<()> {
        Err(unsupported("truncating"))
    }
}

/// Totals since the engine was set up; `None` where it cannot be told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes written to the device.
    pub device_bytes_written: Option<u64>,
    /// Of these, bytes of files' contents.
    pub data_bytes_written: Option<u64>,
    /// Flushes sent to the device.
    pub device_flushes: Option<u64>,
    /// Writes of the journal.
    pub log_forces: Option<u64>,
    /// Orphans that had to be tracked.
    pub orphan_claims: Option<u64>,
    /// For how long changes were kept back for snapshots, in microseconds.
    pub snapshot_hold_us: Option<u64>,
}

/// An engine that is ready.
pub trait Target: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &str, how: How) -> Result<Arc<dyn Handle>>;
    /// Makes a directory.
    fn make_directory(&self, _path: &str) -> Result<()> {
        Err(unsupported("directories"))
    }
    /// Removes an empty directory.
    fn remove_directory(&self, _path: &str) -> Result<()> {
        Err(unsupported("directories"))
    }
    /// Looks a file up by its path; gives its size.
    fn size_of(&self, _path: &str) -> Result<u64> {
        Err(unsupported("names"))
    }
    /// Takes a name away.
    fn unlink(&self, _path: &str) -> Result<()> {
        Err(unsupported("unlinking"))
    }
    /// Makes everything durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// As [`Target::sync`]. An engine that can be asked to also writes journaled contents to their place, so
    /// that [`Counters`] have all that earlier writes cost.
    fn settle(&self) -> Result<()> {
        self.sync()
    }
    /// How long it takes to open what is there, as a mount does; `None` where the driver cannot ask.
    fn opening(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
    /// Opens each path and makes it durable, with up to `window` of them under way at a time; returns when
    /// all are. `durable` counts each when it is.
    fn sync_many(
        &self,
        _paths: &mut dyn Iterator<Item = String>,
        _window: usize,
        _durable: &InTime,
    ) -> Result<()> {
        Err(unsupported("asynchronous fsync"))
    }
    /// Whether it has snapshots.
    fn has_snapshots(&self) -> bool {
        false
    }
    /// Takes a snapshot of everything.
    fn snapshot(&self, _name: &str) -> Result<()> {
        Err(unsupported("snapshots"))
    }
    /// Deletes one; returns when its space is free.
    fn delete_snapshot(&self, _name: &str) -> Result<()> {
        Err(unsupported("snapshots"))
    }
    /// The process whose memory the engine uses: this one, or a server.
    fn process(&self) -> u32 {
        std::process::id()
    }
    /// Totals so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Ends it in order: everything written, nothing left behind. Dropping it does the same without telling
    /// of errors.
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this engine has no {what}"))
}

#[cfg(test)]
pub(crate) mod slow {
    use super::*;

    /// Keeps nothing; each call takes its time.
    #[derive(Clone, Copy)]
    pub struct Slow {
        pub write: Duration,
        pub sync: Duration,
    }

    impl Handle for Slow {
        fn read_at(&self, buffer: &mut [u8], _offset: u64) -> Result<usize> {
            Ok(buffer.len())
        }
        fn write_at(&self, _data: &[u8], _offset: u64) -> Result<()> {
            std::thread::sleep(self.write);
            Ok(())
        }
        fn sync(&self, _data_only: bool) -> Result<()> {
            std::thread::sleep(self.sync);
            Ok(())
        }
    }

    impl Target for Slow {
        fn open(&self, _path: &str, _how: How) -> Result<Arc<dyn Handle>> {
            Ok(Arc::new(*self))
        }
        fn make_directory(&self, _path: &str) -> Result<()> {
            Ok(())
        }
        fn sync_many(
            &self,
            paths: &mut dyn Iterator<Item = String>,
            _window: usize,
            durable: &InTime,
        ) -> Result<()> {
            for _ in paths {
                Handle::sync(self, false)?;
                durable.add();
            }
            Ok(())
        }
    }
}
