//! Open, read, write, allocate, seek, copy, sync, close.
//!
//! `O_DIRECT`, `O_SYNC` and `O_DSYNC` are taken from the flags that come with each request, so `fcntl` on an
//! open file and per-call flags are honoured.

use quire::SyncOptions;
use quire::inodes::{FallocateMode, InodeRef, IoFlags, SetAttributes, without_privileges};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::{Error, ErrorKind, Result};

use super::file_table::OpenFile;
use super::inode_table::Mark;
use super::kept::Counted;
use super::snapshots::{self, Of};
use super::{CacheMode, Operations};

/// Set in the open flags by the kernel when a program is opened to be executed (not part of the C interface).
const OPEN_FOR_EXECUTION: i32 = 0x20;
/// Bytes one copy request moves at most; the caller asks again for the rest.
pub const COPY_MAX: u64 = 64 << 20;
/// Changes of a file's size or allocation beyond this many bytes may take long.
pub(super) const LONG_CHANGE: u64 = 64 << 20;

/// Why files with units are refused where the kernel keeps what is written.
pub(super) const UNTORN_UNWRITTEN: &str =
    "untorn files cannot be written with cache=writeback; mount with another cache";

/// Bytes that a write which extends a file, or a copy, may have to be tried at once.
const AT_ONCE_MAX: usize = 256 << 10;

/// How the kernel shall treat an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The number for later requests.
    pub handle: u64,
    /// Reads and writes come here one by one and side by side; else the kernel caches them.
    pub direct: bool,
}

/// A read as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// Handle of the open file.
    pub handle: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// Open flags of the file at the time of the call.
    pub flags: i32,
    /// The kernel reads pages that it keeps, for all who have the file open; not a program's call.
    pub for_page_cache: bool,
}

impl ReadRequest {
    fn how(&self) -> IoFlags {
        let mut how = IoFlags::empty();
        how.set(IoFlags::DIRECT, self.flags & libc::O_DIRECT != 0);
        how.set(IoFlags::KEEP_ACCESS_TIME, self.flags & libc::O_NOATIME != 0);
        how
    }
}

/// A write as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest {
    /// Handle of the open file (any open file of the inode, for cached pages).
    pub handle: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// Open flags of the file at the time of the call, with per-call sync flags folded in.
    pub flags: i32,
    /// Pages that the kernel writes back, not a program's call: of a shared mapping, and with
    /// `cache=writeback` all that programs wrote.
    pub from_page_cache: bool,
    /// Clear set-user-id and set-group-id bits, since the writer may not keep them.
    pub kill_set_id: bool,
}

/// A copy between two open files, by their handles; offsets and length in bytes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CopyRequest {
    pub from: u64,
    pub from_offset: u64,
    pub to: u64,
    pub to_offset: u64,
    pub length: u64,
}

impl Operations {
    /// Opens a file. Where `flags` has `O_TRUNC`, the kernel asks for the new size afterwards, once it knows
    /// that the file may be written to.
    pub fn open(&self, node: u64, flags: i32) -> Result<Opened> {
        if snapshots::is_node(node) && flags & libc::O_ACCMODE == libc::O_RDONLY {
            let (snapshot, inode) = self.snapshots.inode(node)?;
            // Its pages never change.
            let direct = self.cache == CacheMode::Engine && flags & OPEN_FOR_EXECUTION == 0;
            let file = OpenFile::in_snapshot(inode, snapshot, direct);
            return Ok(Opened { handle: self.files.insert(file), direct });
        }
        self.open_inode(self.inode(node)?, flags)
    }

    /// The inodes of the volume or snapshot that an open file is in.
    pub(super) fn inodes_of(&self, file: &OpenFile) -> Of<'_> {
        file.snapshot.clone().map_or(Of::Live(&self.volume), Of::Snapshot)
    }

    /// Refuses to write to a file with units, or to make one in a directory that hands them on, where the
    /// kernel would cut them. (Past its pages it would go on showing the old time of the file.)
    pub(super) fn check_units(&self, inode: &InodeRef, flags: i32) -> Result<()> {
        if self.cache == CacheMode::Writeback
            && flags & libc::O_ACCMODE != libc::O_RDONLY
            && self.volume.inodes().properties(inode).untorn.is_some()
        {
            tracing::warn!("inode {}: {UNTORN_UNWRITTEN}", inode.number());
            return Err(Error::new(ErrorKind::Unsupported, UNTORN_UNWRITTEN));
        }
        Ok(())
    }

    pub(super) fn open_inode(&self, inode: InodeRef, flags: i32) -> Result<Opened> {
        self.check_units(&inode, flags)?;
        // While a program runs nobody can write to it; its pages may stay in the kernel from run to run.
        let execution = flags & OPEN_FOR_EXECUTION != 0 && flags & libc::O_ACCMODE == libc::O_RDONLY;
        // Pages of the kernel's cache come back one by one, which would cut a unit. A kernel that keeps times
        // notes those of writes through its pages only.
        let properties = self.volume.inodes().properties(&inode);
        let drops = properties.cache_drop && self.cache != CacheMode::Writeback;
        let past_kernel = drops || properties.untorn.is_some();
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if flags & libc::O_ACCMODE == libc::O_RDWR {
            self.inodes.mark(inode.number().0, Mark::Storable);
        }
        let may_keep = execution || !past_kernel && flags & libc::O_DIRECT == 0;
        let counted = (self.cache == CacheMode::Auto).then(|| self.count_open(&inode, writable, may_keep));
        let direct = match &counted {
            Some(counted) => !counted.is_kept(),
            None => (self.cache == CacheMode::Engine || past_kernel) && !execution,
        };
        let mut file = OpenFile::new(inode, writable, direct, counted);
        file.synchronous = self.sync || flags & libc::O_DSYNC != 0;
        Ok(Opened { handle: self.files.insert(file), direct })
    }

    /// Counts an open under `cache=auto`.
    fn count_open(&self, inode: &InodeRef, writable: bool, may_keep: bool) -> Counted {
        let node = inode.number().0;
        let opens = self.inodes.opens(node);
        if !writable {
            let changed = self.volume.inodes().metadata(inode).modified();
            return self.kept.reader(&opens, may_keep, changed, || self.inodes.mark(node, Mark::Paged));
        }
        self.kept.writer(&opens)
    }

    /// The kernel reads pages through an open file.
    fn note_pages(&self, file: &OpenFile) {
        let mark = || self.inodes.mark(file.inode.number().0, Mark::Paged);
        match &file.counted {
            Some(counted) => counted.note_page(mark),
            // Pages of a snapshot never change.
            None if file.snapshot.is_some() => {}
            None => mark(),
        }
    }

    /// A descriptor's last duplicate was closed: its group, if it has one, is dropped. Fails only where the
    /// thread may not wait and this would.
    pub fn release(&self, handle: u64) -> Result<()> {
        if let Ok(file) = self.files.get(handle) {
            self.inodes_of(&file).closed(&file.inode, file.changed())?;
            self.files.remove(handle);
        }
        Ok(())
    }

    /// Reads into `buffer`; fewer bytes only at the end of file.
    pub fn read(&self, request: &ReadRequest, buffer: &mut [u8]) -> Result<usize> {
        let file = self.files.get(request.handle)?;
        let mut how = request.how();
        if request.for_page_cache {
            self.note_pages(&file);
            // The kernel has them now.
            how.set(IoFlags::UNCACHED, file.is_kept());
        } else if let Some(read) = self.read_group(&file, request.offset, buffer) {
            return read;
        }
        self.inodes_of(&file).read_at(&file.inode, buffer, request.offset, how)
    }

    /// As [`Operations::read`], if that needs no waiting.
    pub fn try_read(&self, request: &ReadRequest, buffer: &mut [u8]) -> Option<usize> {
        let file = self.files.get(request.handle).ok()?;
        if request.for_page_cache {
            self.note_pages(&file);
        } else if file.group.is_present() {
            return None;
        }
        self.inodes_of(&file).try_read_at(&file.inode, buffer, request.offset, request.how())
    }

    /// Whether a write is of a kind that a thread that may not wait can try: through the cache, not made
    /// durable, and so small that a device would be the longer wait.
    pub fn may_write_at_once(request: &WriteRequest, length: usize) -> bool {
        let slow = libc::O_DIRECT | libc::O_DSYNC;
        (request.flags & slow == 0 || request.from_page_cache) && length <= AT_ONCE_MAX
    }

    /// As [`Operations::write`], if that needs no waiting; else nothing has changed.
    pub fn try_write(&self, request: &WriteRequest, data: &[u8]) -> bool {
        let slow = libc::O_DIRECT | libc::O_DSYNC | libc::O_APPEND;
        if request.flags & slow != 0 && !request.from_page_cache {
            return false;
        }
        let Ok(file) = self.files.get(request.handle) else { return false };
        if file.snapshot.is_some()
            || has_set_id(&file.inode, request)
            || may_have_capabilities(&file.inode, request)
        {
            return false;
        }
        if file.group.is_present() && !request.from_page_cache {
            return false;
        }
        let done =
            self.volume.inodes().try_write_at(&file.inode, data, request.offset, self.times_of_writes());
        if done {
            file.note_change();
        }
        done
    }

    /// Writes `data`; the count may be short only when an error or the end of space came after it, and only
    /// for a program's call.
    ///
    /// The kernel has already turned `O_APPEND` into an offset, under a lock on the file that it holds until
    /// the whole call is answered. A large append may arrive as several requests at once, in any order, so
    /// each goes where the kernel says. Only where the kernel may have taken the end from a group's write
    /// ([`super::group`]) the engine is asked to append; pieces of one call may then come in another order.
    pub fn write(&self, request: &WriteRequest, data: &[u8]) -> Result<usize> {
        let file = self.files.get(request.handle)?;
        file.check_live()?;
        file.note_change();
        let mut how = IoFlags::KEEP_PRIVILEGES | self.times_of_writes();
        if !request.from_page_cache {
            how.set(IoFlags::DIRECT, request.flags & libc::O_DIRECT != 0);
            how.set(IoFlags::DATASYNC, request.flags & libc::O_DSYNC != 0);
            how.set(IoFlags::SYNC, request.flags & libc::O_SYNC == libc::O_SYNC);
        }
        self.end_privileges(&file.inode, request)?;
        if !request.from_page_cache
            && let Some(written) = self.write_group(&file, request, data)
        {
            return written;
        }
        if request.flags & libc::O_APPEND != 0
            && !request.from_page_cache
            && self.inodes.is_marked(file.inode.number().0, Mark::SizeGuessed)
        {
            how.insert(IoFlags::APPEND);
        }
        let written = match request.from_page_cache {
            true => self.write_pages(&file.inode, data, request.offset, how),
            false => self.volume.inodes().write_at(&file.inode, data, request.offset, how),
        };
        if request.from_page_cache
            && let Err(error) = &written
            && error.kind() != ErrorKind::WouldBlock
            && !file.gave_up.swap(true, Ordering::Relaxed)
        {
            // The program wrote long ago, and may never hear of it.
            tracing::warn!("inode {}: the kernel gives up what was written: {error}", file.inode.number());
        }
        written
    }

    /// Writes all of what the kernel sends of its pages, or fails. The kernel takes a short count for the
    /// whole: the pages would be clean, and what is missing lost.
    fn write_pages(&self, inode: &InodeRef, data: &[u8], offset: u64, how: IoFlags) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            done += self.volume.inodes().write_at(inode, &data[done..], offset + done as u64, how)?;
        }
        Ok(done)
    }

    /// What a write does to times. With `cache=writeback` the kernel sends the times by themselves, and its
    /// pages later than the program wrote them.
    fn times_of_writes(&self) -> IoFlags {
        match self.cache {
            CacheMode::Writeback => IoFlags::KEEP_WRITE_TIMES,
            CacheMode::Engine | CacheMode::Kernel | CacheMode::Auto => IoFlags::empty(),
        }
    }

    /// Takes away what a write ends. May be done again, if the write itself is put off.
    fn end_privileges(&self, inode: &InodeRef, request: &WriteRequest) -> Result<()> {
        if has_set_id(inode, request) {
            let clear = SetAttributes { kill_suid_sgid: true, ..SetAttributes::default() };
            self.volume.inodes().set_attributes(inode, &clear)?;
        }
        if may_have_capabilities(inode, request) {
            self.volume.inodes().clear_capabilities(inode)?;
        }
        Ok(())
    }

    /// Makes a file or directory durable, on other threads: `done` is called from one of them.
    pub fn sync(&self, node: u64, data_only: bool, done: impl FnOnce(Result<()>) + Send + 'static) {
        match self.inode(node) {
            // What is in a snapshot is durable.
            Err(_) if snapshots::is_node(node) => done(Ok(())),
            Ok(inode) => {
                let how = SyncOptions::new().data_only(data_only);
                self.volume.inodes().fsync_then(&inode, &how, Box::new(done));
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Makes what was done to a file, or in a directory, durable; the calling thread waits.
    pub fn sync_node(&self, node: u64) -> Result<()> {
        self.volume.inodes().fsync(&self.inode(node)?, false)
    }

    /// Makes everything done on the volume durable.
    pub fn sync_all(&self) -> Result<()> {
        self.volume.sync()
    }

    /// A number that grows whenever the device completes something.
    pub fn device_progress(&self) -> u64 {
        let metrics = self.volume.metrics();
        metrics.iter().filter(|metric| metric.name.starts_with("device_")).map(|metric| metric.value).sum()
    }

    /// Whether an allocation of `length` bytes in an open file may take long.
    pub fn is_long_allocation(&self, handle: u64, length: u64) -> bool {
        length > LONG_CHANGE || self.files.get(handle).is_ok_and(|file| file.synchronous)
    }

    /// Allocates, punches or zeroes; `mode` as in `fallocate` (the kernel's client passes no other). Through
    /// `O_SYNC` or `O_DSYNC` it is durable when this returns.
    pub fn allocate(&self, handle: u64, offset: u64, length: u64, mode: i32) -> Result<()> {
        let file = self.files.get(handle)?;
        file.check_live()?;
        self.no_group(&file, "an allocation")?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if keep_size => FallocateMode::KeepSize,
            0 => FallocateMode::Allocate,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => FallocateMode::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange { keep_size },
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("fallocate mode {mode:#x} is not supported"),
                ));
            }
        };
        file.note_change();
        self.volume.inodes().allocate(&file.inode, what, offset, length)?;
        if file.synchronous { self.volume.inodes().fsync(&file.inode, true) } else { Ok(()) }
    }

    /// The next data or hole at or behind `offset`; `whence` is `SEEK_DATA` or `SEEK_HOLE`, the kernel does
    /// the others. A file that the kernel may have stores for is all data: the kernel does not write mapped
    /// pages back before it asks.
    pub fn seek(&self, handle: u64, offset: i64, whence: i32) -> Result<u64> {
        let file = self.files.get(handle)?;
        let offset = u64::try_from(offset)
            .map_err(|_| Error::new(ErrorKind::NoData, "a seek to before the start of the file"))?;
        let all_data = file.snapshot.is_none() && self.may_hold_stores(file.inode.number().0);
        match whence {
            libc::SEEK_DATA | libc::SEEK_HOLE if all_data => {
                let size = self.volume.inodes().metadata(&file.inode).size();
                if offset >= size {
                    return Err(Error::new(ErrorKind::NoData, "a seek to the end of the file, or past it"));
                }
                Ok(if whence == libc::SEEK_DATA { offset } else { size })
            }
            libc::SEEK_DATA => self.inodes_of(&file).seek_data(&file.inode, offset),
            libc::SEEK_HOLE => self.inodes_of(&file).seek_hole(&file.inode, offset),
            _ => Err(Error::invalid(format!("seek mode {whence} is not supported"))),
        }
    }

    /// Whether the kernel may have pages of a node that programs stored to through a mapping.
    fn may_hold_stores(&self, node: u64) -> bool {
        self.inodes.is_marked(node, Mark::Paged) && self.inodes.is_marked(node, Mark::Storable)
    }

    /// Whether a copy may take long.
    pub fn is_long_copy(&self, from: u64, offset: u64, length: u64) -> bool {
        let there =
            |file: &OpenFile| self.inodes_of(file).metadata(&file.inode).size().saturating_sub(offset);
        self.files.get(from).is_ok_and(|file| there(&file).min(length) > AT_ONCE_MAX as u64)
    }

    /// Copies between two open files, at most [`COPY_MAX`] bytes; returns how many.
    pub fn copy(&self, request: &CopyRequest) -> Result<u64> {
        let (source, target) = (self.files.get(request.from)?, self.files.get(request.to)?);
        // The kernel then reads and writes.
        self.no_group(&source, "a copy").and(self.no_group(&target, "a copy"))?;
        target.check_live()?;
        if source.snapshot.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "a copy from a snapshot"));
        }
        if target.synchronous {
            return Err(Error::new(ErrorKind::Unsupported, "a copy that is to be durable at once"));
        }
        target.note_change();
        let length = request.length.min(COPY_MAX);
        let (from, to) = (request.from_offset, request.to_offset);
        self.volume.inodes().copy_range(&source.inode, from, &target.inode, to, length)
    }

    /// As [`Operations::copy`], if it is small and needs no waiting; else nothing has changed.
    pub fn try_copy(&self, request: &CopyRequest) -> Option<Result<u64>> {
        let (source, target) = (self.files.get(request.from).ok()?, self.files.get(request.to).ok()?);
        let is_between = source.snapshot.is_some() || target.snapshot.is_some();
        if is_between || target.synchronous || source.group.is_present() || target.group.is_present() {
            return None;
        }
        let there = self.volume.inodes().metadata(&source.inode).size().checked_sub(request.from_offset)?;
        let length = there.min(request.length);
        // Ranges of one file may overlap.
        if length == 0 || length > AT_ONCE_MAX as u64 || source.inode.number() == target.inode.number() {
            return None;
        }
        let mut data = vec![0; length as usize];
        let read = self.volume.inodes().try_read_at(
            &source.inode,
            &mut data,
            request.from_offset,
            IoFlags::empty(),
        )?;
        let written = patience::at_once(|| {
            self.volume.inodes().write_at(&target.inode, &data[..read], request.to_offset, IoFlags::empty())
        });
        match written {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            written => {
                target.note_change();
                Some(written.map(|count| count as u64))
            }
        }
    }
}

/// Whether a write takes set-id bits away that are there.
fn has_set_id(inode: &InodeRef, request: &WriteRequest) -> bool {
    let mode = inode.mode();
    request.kill_set_id && without_privileges(mode) != mode
}

/// Whether a write, one that the kernel has not looked after itself, may have capabilities to take away.
fn may_have_capabilities(inode: &InodeRef, request: &WriteRequest) -> bool {
    !request.from_page_cache && inode.may_have_capabilities()
}

#[cfg(test)]
mod tests {
    use super::super::names::Make;
    use super::super::snapshots::ShowSnapshots;
    use super::super::{Caller, Operations};
    use super::*;

    /// Pages that the kernel wrote back in one large request were lost without a word where the volume had
    /// room for the first part only: the answer was a short count, which the kernel takes for success.
    #[test]
    fn pages_are_written_whole_or_not_at_all() {
        let memory = std::sync::Arc::new(quire::backend::MemoryBackend::new(16 << 10));
        quire::FormatOptions::new().format_backend(memory.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(memory).unwrap();
        let operations = Operations::new(volume.clone(), CacheMode::Writeback, false, ShowSnapshots::Off);
        let make = Make { mode: 0o600, umask: 0, rdev: 0, caller: Caller { uid: 0, gid: 0 } };
        let create = |name| operations.create(1, name, &make, libc::O_RDWR, false).unwrap();
        let (entry, file) = create(b"file");
        let (_, filler) = create(b"filler");
        let room = || {
            let now = volume.statfs();
            now.available * u64::from(now.block_size)
        };
        let write = |handle, offset, data: &[u8], from_page_cache| {
            let request =
                WriteRequest { handle, offset, flags: libc::O_RDWR, from_page_cache, kill_set_id: false };
            operations.write(&request, data)
        };
        let mut filled = 0;
        while room() > 3 << 19 {
            filled += write(filler.handle, filled, &[1; 128 << 10], false).unwrap() as u64;
            volume.sync().unwrap();
        }
        let outcome = write(file.handle, 0, &vec![2; 4 << 20], true);
        assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::NoSpace));
        let there = operations.attributes(entry.attributes.ino().0).unwrap().size();
        assert!((1 << 20..4 << 20).contains(&there), "{there} bytes of the first part");
        operations.forget_everything();
        volume.close().unwrap();
    }
}
