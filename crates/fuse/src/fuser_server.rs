//! The adapter between the `fuser` crate's request loop and [`crate::operations`].
//!
//! Each request is one of three kinds:
//! * *quick*: answered in place, never waits (forget, attributes, statfs);
//! * *may wait*: in place while a place is free ([`crate::background`]), else on the pool, with what it borrows
//!   from the receive buffer copied;
//! * *long*: on the pool at once (large truncates and allocations, copies).
//!
//! fsync is none of them: the engine answers it from its own threads. A panic in the engine unwinds through
//! here; the reply, dropped, answers `EIO`.
//!
//! Invariant: every request is answered exactly once; once requests are refused, with `ENOTCONN` and without
//! touching the volume.

mod convert;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quire::Attributes;
use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::{Error, ErrorKind, Result};

use convert::{attributes, device_from_kernel, kind, no_attributes, open_flags, set_time};

use crate::background::Background;
use crate::errno::{NOT_CONNECTED, NOT_IMPLEMENTED, errno};
use crate::operations::attributes::Change;
use crate::operations::data::WriteRequest;
use crate::operations::names::Make;
use crate::operations::xattr::Sized;
use crate::operations::{CACHE_TIME, Caller, Entry, Operations};
use crate::session::{self, Transport};

/// What all threads of a mount share.
pub(crate) struct Shared {
    operations: Operations,
    background: Background,
    refused: AtomicBool,
}

impl Shared {
    pub(crate) fn new(operations: Operations, session_threads: usize) -> Shared {
        Shared { operations, background: Background::new(session_threads), refused: AtomicBool::new(false) }
    }
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }
    /// Answers every later request with `ENOTCONN`.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
    }
}

/// How long a request may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    MayWait,
    Long,
}

/// The file system as `fuser` sees it.
pub(crate) struct Server(Arc<Shared>);

/// Replies that can carry an error.
trait Refuse: Send + 'static {
    fn refuse(self, number: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => { $(impl Refuse for $reply {
        fn refuse(self, number: Errno) {
            self.error(number);
        }
    })* };
}
refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

fn number(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Shutdown | ErrorKind::Stale => {
            tracing::warn!("{error}");
        }
        _ => tracing::trace!("{error}"),
    }
    Errno::from_i32(errno(error))
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>) -> Server {
        Server(shared)
    }

    /// Answers `reply` with what `work` gives, through `send`.
    fn answer<R: Refuse, T>(
        &self,
        cost: Cost,
        reply: R,
        work: impl FnOnce(&Operations) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let run = move |shared: &Shared, reply: R| {
            if shared.refused.load(Ordering::Relaxed) {
                return reply.refuse(Errno::from_i32(NOT_CONNECTED));
            }
            match work(&shared.operations) {
                Ok(value) => send(reply, value),
                Err(error) => reply.refuse(number(&error)),
            }
        };
        if cost == Cost::MayWait
            && let Some(_place) = self.0.background.place()
        {
            return run(&self.0, reply);
        }
        let shared = self.0.clone();
        self.0.background.spawn(move || run(&shared, reply));
    }

    /// Answers in place, for what never waits.
    fn quick<R: Refuse, T>(
        &self,
        reply: R,
        work: impl FnOnce(&Operations) -> Result<T>,
        send: impl FnOnce(R, T),
    ) {
        if self.0.refused.load(Ordering::Relaxed) {
            return reply.refuse(Errno::from_i32(NOT_CONNECTED));
        }
        match work(&self.0.operations) {
            Ok(value) => send(reply, value),
            Err(error) => reply.refuse(number(&error)),
        }
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn send_entry(reply: ReplyEntry, entry: Entry) {
    reply.entry(&CACHE_TIME, &attributes(&entry.attributes), Generation(entry.generation));
}

fn send_attributes(reply: ReplyAttr, now: Attributes) {
    reply.attr(&CACHE_TIME, &attributes(&now));
}

fn send_ok(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

fn send_sized(reply: ReplyXattr, answer: Sized) {
    match answer {
        Sized::Size(size) => reply.size(size),
        Sized::Data(data) => reply.data(&data),
    }
}

thread_local! {
    /// Where reads on this thread put their data. Kept from request to request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Room for `size` bytes, page-aligned so that direct reads need no copy.
fn with_read_buffer<T>(size: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ_BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size + 4096 {
            buffer.resize(size + 4096, 0);
        }
        let start = buffer.as_ptr().align_offset(4096).min(4096);
        work(&mut buffer[start..start + size])
    })
}

fn read(shared: &Shared, handle: FileHandle, offset: u64, size: u32, flags: OpenFlags, reply: ReplyData) {
    if shared.refused.load(Ordering::Relaxed) {
        return reply.error(Errno::from_i32(NOT_CONNECTED));
    }
    with_read_buffer(size as usize, |buffer| {
        match shared.operations.read(handle.0, offset, buffer, flags.0) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(number(&error)),
        }
    });
}

fn write(shared: &Shared, request: &WriteRequest, data: &[u8], reply: ReplyWrite) {
    if shared.refused.load(Ordering::Relaxed) {
        return reply.error(Errno::from_i32(NOT_CONNECTED));
    }
    match shared.operations.write(request, data) {
        Ok(count) => reply.written(count as u32),
        Err(error) => reply.error(number(&error)),
    }
}

fn sync(shared: &Shared, node: INodeNo, data_only: bool, reply: ReplyEmpty) {
    if shared.refused.load(Ordering::Relaxed) {
        return reply.error(Errno::from_i32(NOT_CONNECTED));
    }
    shared.operations.sync(node.0, data_only, move |done| match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(number(&error)),
    });
}

impl fuser::Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let all = Transport { acl: true, kill_privileges: true, read_directory_plus: true };
        session::negotiate(config, &all);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = bytes(name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| match operations.lookup(parent.0, &name) {
                Ok(entry) => Ok(Some(entry)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
            |reply, entry| match entry {
                Some(entry) => send_entry(reply, entry),
                // Node zero: "no such name", and it may be remembered.
                None => reply.entry(&CACHE_TIME, &no_attributes(), Generation(0)),
            },
        );
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.0.operations.forget(node.0, count);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        self.quick(reply, |operations| operations.attributes(node.0), send_attributes);
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, atime: atime.map(set_time), mtime: mtime.map(set_time) };
        let long = size.is_some_and(|size| self.0.operations.is_long_resize(node.0, size));
        let caller = caller(request);
        self.answer(
            if long { Cost::Long } else { Cost::MayWait },
            reply,
            move |operations| operations.set_attributes(node.0, file.map(|file| file.0), &change, caller),
            send_attributes,
        );
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.readlink(node.0),
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = Make { mode, umask, rdev: device_from_kernel(rdev), caller: caller(request) };
        let name = bytes(name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.make(parent.0, &name, &make),
            send_entry,
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = libc::S_IFDIR | mode & 0o7777;
        let make = Make { mode, umask, rdev: 0, caller: caller(request) };
        let name = bytes(name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.make(parent.0, &name, &make),
            send_entry,
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = bytes(name);
        self.answer(Cost::MayWait, reply, move |operations| operations.unlink(parent.0, &name), send_ok);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = bytes(name);
        self.answer(Cost::MayWait, reply, move |operations| operations.rmdir(parent.0, &name), send_ok);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target, caller) = (bytes(name), bytes(target.as_os_str()), caller(request));
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.symlink(parent.0, &name, &target, caller),
            send_entry,
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (bytes(name), bytes(new_name));
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.rename(parent.0, &name, new_parent.0, &new_name, flags.bits()),
            send_ok,
        );
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = bytes(new_name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.link(node.0, new_parent.0, &name),
            send_entry,
        );
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.open(node.0, flags.0, caller),
            |reply, opened| reply.opened(FileHandle(opened.handle), open_flags(opened)),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let make = Make { mode, umask, rdev: 0, caller: caller(request) };
        let name = bytes(name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.create(parent.0, &name, &make, flags),
            |reply, (entry, opened)| {
                reply.created(
                    &CACHE_TIME,
                    &attributes(&entry.attributes),
                    Generation(entry.generation),
                    FileHandle(opened.handle),
                    open_flags(opened),
                );
            },
        );
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(_place) = self.0.background.place() {
            return read(&self.0, file, offset, size, flags, reply);
        }
        let shared = self.0.clone();
        self.0.background.spawn(move || read(&shared, file, offset, size, flags, reply));
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let request = WriteRequest {
            handle: file.0,
            offset,
            flags: flags.0,
            from_page_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        if let Some(_place) = self.0.background.place() {
            return write(&self.0, &request, data, reply);
        }
        let (shared, data) = (self.0.clone(), data.to_vec());
        self.0.background.spawn(move || write(&shared, &request, &data, reply));
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| {
                operations.release(file.0);
                Ok(())
            },
            send_ok,
        );
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        sync(&self.0, node, data_only, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        sync(&self.0, node, data_only, reply);
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Reading a directory needs no state here; the kernel then opens without asking, and caches.
        reply.error(Errno::from_i32(NOT_IMPLEMENTED));
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let shared = self.0.clone();
        let job = move || {
            let mut reply = reply;
            if shared.refused.load(Ordering::Relaxed) {
                return reply.error(Errno::from_i32(NOT_CONNECTED));
            }
            let outcome = shared.operations.read_directory(node.0, offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                !reply.add(INodeNo(entry.node), entry.cookie, kind(entry.kind), name)
            });
            match outcome {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(number(&error)),
            }
        };
        self.in_place_or_pool(job);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let shared = self.0.clone();
        let job = move || {
            let mut reply = reply;
            if shared.refused.load(Ordering::Relaxed) {
                return reply.error(Errno::from_i32(NOT_CONNECTED));
            }
            let outcome = shared.operations.read_directory_plus(node.0, offset, |name, entry| {
                !reply.add(
                    INodeNo(name.node),
                    name.cookie,
                    OsStr::from_bytes(&name.name),
                    &CACHE_TIME,
                    &attributes(&entry.attributes),
                    Generation(entry.generation),
                )
            });
            match outcome {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(number(&error)),
            }
        };
        self.in_place_or_pool(job);
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        self.quick(
            reply,
            |operations| Ok(operations.statfs()),
            |reply, now| {
                reply.statfs(
                    now.blocks,
                    now.free,
                    now.available,
                    now.inodes,
                    now.free_inodes,
                    now.block_size,
                    now.name_max,
                    now.block_size,
                );
            },
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (bytes(name), value.to_vec());
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.set_xattr(node.0, &name, &value, flags),
            send_ok,
        );
    }

    fn getxattr(&self, _request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = bytes(name);
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.get_xattr(node.0, &name, size),
            send_sized,
        );
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(Cost::MayWait, reply, move |operations| operations.list_xattr(node.0, size), send_sized);
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = bytes(name);
        self.answer(Cost::MayWait, reply, move |operations| operations.remove_xattr(node.0, &name), send_ok);
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(request);
        self.quick(reply, |operations| operations.access(node.0, mask.bits() as u32, caller), send_ok);
    }

    fn ioctl(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _input: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| match operations.ioctl(node.0, command, room as usize) {
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
                answer => answer.map(Some),
            },
            |reply, answer| match answer {
                Some((result, data)) => reply.ioctl(result, &data),
                None => reply.error(Errno::ENOTTY),
            },
        );
    }

    fn fallocate(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.answer(
            if Operations::is_long(length) { Cost::Long } else { Cost::MayWait },
            reply,
            move |operations| operations.allocate(file.0, offset, length, mode),
            send_ok,
        );
    }

    fn lseek(
        &self,
        _request: &Request,
        _node: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.answer(
            Cost::MayWait,
            reply,
            move |operations| operations.seek(file.0, offset, whence),
            |reply, found| reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        );
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _from_node: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _to_node: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.answer(
            Cost::Long,
            reply,
            move |operations| operations.copy(from.0, from_offset, to.0, to_offset, length),
            |reply, count| reply.written(count as u32),
        );
    }
}

impl Server {
    /// For requests whose reply is filled step by step.
    fn in_place_or_pool(&self, job: impl FnOnce() + Send + 'static) {
        match self.0.background.place() {
            Some(_place) => job(),
            None => self.0.background.spawn(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_buffer_is_page_aligned_and_grows() {
        for size in [1, 4096, 1 << 20, 100] {
            with_read_buffer(size, |buffer| {
                assert_eq!(buffer.len(), size);
                assert_eq!(buffer.as_ptr() as usize % 4096, 0);
            });
        }
    }
}
