//! Groups: writes through one open file that take effect together.
//!
//! A group belongs to an open file description, as the kernel's handle stands for it: START opens it; from
//! then on writes and size changes through the handle go to the group, and reads through the handle see them.
//! Nobody else does, until COMMIT applies them at once. ABORT discards them, and so does the end of the
//! handle: a descriptor that is closed, or whose process is killed, leaves no trace. The group ends with the
//! *last* duplicate of its descriptor, in whatever process. fsync on the handle covers what is in the file,
//! not what is in the group.
//!
//! What the kernel does with a file knows nothing of groups, so:
//! * Pages belong to the file. A READ for the kernel's pages, and pages of a mapping that come back, pass the
//!   group by. START is refused where reads and writes go through such pages.
//! * A write beyond the end raises the size in the kernel, although the file has not grown. The inode is
//!   marked ([`Mark::SizeGuessed`]): the offset that the kernel works out for an append through another
//!   handle is not believed any more ([`Operations::write`]). fstat shows the file, not the group.
//! * After a commit the kernel's attributes are old, and its pages where it has some ([`Mark::Paged`]);
//!   after an abort its size may be wrong. The server tells it before it answers
//!   ([`Operations::has_pages`]).
//! * Whatever else changes a file (`fallocate`, `copy_file_range`) is refused on a handle with a
//!   group; the kernel then copies by reading and writing.
//!
//! Invariant: the lock of a handle's group is a leaf for the front end; it is held while the engine adds to
//! the group, reads through it or commits it, so these happen one after the other.

use quire::Commit;
use quire::inodes::InodeGroup;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::{Error, ErrorKind, Result, patience};

use super::Operations;
use super::data::WriteRequest;
use super::file_table::OpenFile;
use super::inode_table::Mark;

/// The group of an open file, if there is one.
#[derive(Default)]
pub(super) struct HandleGroup {
    /// Whether there is one. Written under the lock; every request looks here first.
    present: AtomicBool,
    group: Mutex<Option<InodeGroup>>,
}

impl HandleGroup {
    pub(super) fn is_present(&self) -> bool {
        self.present.load(Ordering::Acquire)
    }

    /// Runs `work` on the group, if there is one.
    fn with<T>(&self, work: impl FnOnce(&mut InodeGroup) -> Result<T>) -> Option<Result<T>> {
        if !self.is_present() {
            return None;
        }
        // A group that goes to the device holds the lock meanwhile.
        let group = match patience::may_wait() {
            true => Some(self.group.lock()),
            false => self.group.try_lock(),
        };
        match group {
            Some(mut group) => group.as_mut().map(work),
            None => {
                Some(Err(Error::new(ErrorKind::WouldBlock, "this waits for another request of the group")))
            }
        }
    }

    fn take(&self) -> Option<InodeGroup> {
        let mut group = self.group.lock();
        self.present.store(false, Ordering::Release);
        group.take()
    }
}

/// A failure of a group as a program sees it. SQLite goes on with a journal after `EIO` only; that overwrites
/// in place, and so needs less space.
fn limit(error: Error) -> Error {
    match error.kind() {
        ErrorKind::TooLarge | ErrorKind::NoSpace => error.with_kind(ErrorKind::Io),
        _ => error,
    }
}

impl Operations {
    /// Whether a handle has a group.
    pub fn has_group(&self, handle: u64) -> bool {
        self.files.get(handle).is_ok_and(|file| file.group.is_present())
    }

    /// Whether the kernel may keep pages of a node.
    pub fn has_pages(&self, node: u64) -> bool {
        self.inodes.is_marked(node, Mark::Paged)
    }

    pub(super) fn can_group(&self, handle: u64) -> bool {
        self.files.get(handle).is_ok_and(|file| file.writable && file.uncached && file.inode.kind().is_file())
    }

    pub(super) fn start_group(&self, handle: u64) -> Result<()> {
        let file = self.files.get(handle)?;
        if !file.uncached {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a group on a file that the kernel caches; mount with cache=engine",
            ));
        }
        if !file.writable {
            return Err(Error::new(
                ErrorKind::BadHandle,
                "a group on a descriptor that is not open for writing",
            ));
        }
        let busy =
            || Error::new(ErrorKind::Busy, "the descriptor, or a duplicate of it, has a group already");
        // A write into a group may hold the lock while it waits for the device.
        if file.group.is_present() {
            return Err(busy());
        }
        let mut group = file.group.group.lock();
        if group.is_some() {
            return Err(busy());
        }
        *group = Some(self.volume.inodes().atomic());
        file.group.present.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn commit_group(&self, handle: u64, how: Commit) -> Result<()> {
        let file = self.files.get(handle)?;
        let group =
            file.group.take().ok_or_else(|| Error::invalid("no group was started on this descriptor"))?;
        group.commit(how).map_err(limit)
    }

    pub(super) fn abort_group(&self, handle: u64) -> Result<()> {
        drop(self.files.get(handle)?.group.take());
        Ok(())
    }

    /// A read through a handle with a group.
    pub(super) fn read_group(
        &self,
        file: &OpenFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Option<Result<usize>> {
        file.group.with(|group| group.read_at(&file.inode, buffer, offset))
    }

    /// A write through a handle with a group; `append`: at the end that the group sees.
    pub(super) fn write_group(
        &self,
        file: &OpenFile,
        request: &WriteRequest,
        data: &[u8],
    ) -> Option<Result<usize>> {
        file.group.with(|group| {
            let append = request.flags & libc::O_APPEND != 0;
            let offset = if append { group.size(&file.inode) } else { request.offset };
            group.write_at(&file.inode, data, offset).map_err(limit)?;
            if group.size(&file.inode) > file.inode.size() {
                self.inodes.mark(file.inode.number().0, Mark::SizeGuessed);
            }
            Ok(data.len())
        })
    }

    /// A change of size through a handle with a group.
    pub(super) fn resize_group(&self, file: &OpenFile, size: u64) -> Option<Result<()>> {
        file.group.with(|group| {
            group.set_len(&file.inode, size).map_err(limit)?;
            // The kernel learns of the size that a commit sets only when it asks again.
            self.inodes.mark(file.inode.number().0, Mark::SizeGuessed);
            Ok(())
        })
    }

    /// Refuses what a group cannot hold.
    pub(super) fn no_group(&self, file: &OpenFile, what: &str) -> Result<()> {
        match file.group.is_present() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{what} through a descriptor that has a group; commit or abort it first"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::names::Make;
    use super::super::snapshots::ShowSnapshots;
    use super::super::{CacheMode, Caller};
    use super::*;

    /// The thread that takes requests waited in a second START while a write of the group was at the device.
    #[test]
    fn a_second_start_waits_for_no_write() {
        let memory = std::sync::Arc::new(quire::backend::MemoryBackend::new(16384));
        quire::FormatOptions::new().format_backend(memory.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(memory).unwrap();
        let operations = Operations::new(volume.clone(), CacheMode::Engine, false, ShowSnapshots::Off);
        let make = Make { mode: 0o600, umask: 0, rdev: 0, caller: Caller { uid: 0, gid: 0 } };
        let (_, opened) = operations.create(1, b"file", &make, libc::O_RDWR, false).unwrap();
        operations.start_group(opened.handle).unwrap();
        let file = operations.files.get(opened.handle).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            // As a write that goes to the device.
            let held = file.group.group.lock();
            scope.spawn(|| tell.send(operations.start_group(opened.handle).unwrap_err().kind()));
            let answer = told.recv_timeout(Duration::from_secs(10));
            drop(held);
            assert_eq!(answer, Ok(ErrorKind::Busy));
        });
        drop(file);
        operations.forget_everything();
        volume.close().unwrap();
    }
}
