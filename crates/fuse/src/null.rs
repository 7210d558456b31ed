//! A bare FUSE server that answers from memory: the upper bound for a mount on this transport.
//!
//! Its tree is the root and one file, `data`, of a fixed size. Reads and writes are answered in place from
//! one buffer with as few copies as the transport allows, under the same negotiation, open flags and threads
//! as a real volume's mount. It promises nothing else.
//!
//! The buffer is cut into stripes of 1 MiB with a lock each; a read is sent from under the shared lock, so
//! that it costs no copy of its own.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quire_base::sync::RwLock;
use quire_base::{Error, Result};

use crate::mount::{self, MountFlags};
use crate::session::{self, Transport};

/// The name of the one file.
pub const FILE: &str = "data";
const FILE_NODE: INodeNo = INodeNo(2);
const STRIPE: usize = 1 << 20;
const FOREVER: Duration = Duration::from_secs(3600);

struct Null {
    size: u64,
    stripes: Vec<RwLock<Box<[u8]>>>,
}

impl Null {
    fn new(size: u64) -> Null {
        let count = size.div_ceil(STRIPE as u64) as usize;
        // Written once, so that no first touch is measured later.
        let stripes = (0..count).map(|_| RwLock::new(vec![0x5a; STRIPE].into_boxed_slice())).collect();
        Null { size, stripes }
    }

    fn attributes(&self, node: INodeNo) -> FileAttr {
        let file = node == FILE_NODE;
        let epoch = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: node,
            size: if file { self.size } else { 0 },
            blocks: if file { self.size.div_ceil(512) } else { 0 },
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: if file { 0o666 } else { 0o755 },
            nlink: if file { 1 } else { 2 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// The pieces of `[offset, offset + length)`, clipped to the file: stripe, start in it, length.
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let end = offset.saturating_add(length as u64).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, start) = ((at / STRIPE as u64) as usize, (at % STRIPE as u64) as usize);
            let length = (STRIPE - start).min((end - at) as usize);
            at += length as u64;
            Some((stripe, start, length))
        })
    }
}

impl fuser::Filesystem for Null {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        session::negotiate(config, &Transport::default());
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo(1) && name == FILE {
            reply.entry(&FOREVER, &self.attributes(FILE_NODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(node));
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&FOREVER, &self.attributes(node));
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(
            FileHandle(0),
            FopenFlags::FOPEN_DIRECT_IO
                | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
                | FopenFlags::FOPEN_NOFLUSH,
        );
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut pieces = self.pieces(offset, size as usize);
        match (pieces.next(), pieces.next()) {
            (None, _) => reply.data(&[]),
            (Some((stripe, start, length)), None) => {
                reply.data(&self.stripes[stripe].read()[start..start + length]);
            }
            _ => {
                let mut whole = Vec::with_capacity(size as usize);
                for (stripe, start, length) in self.pieces(offset, size as usize) {
                    whole.extend_from_slice(&self.stripes[stripe].read()[start..start + length]);
                }
                reply.data(&whole);
            }
        }
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut done = 0;
        for (stripe, start, length) in self.pieces(offset, data.len()) {
            self.stripes[stripe].write()[start..start + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        if done == 0 && !data.is_empty() {
            reply.error(Errno::ENOSPC);
        } else {
            reply.written(done as u32);
        }
    }

    fn fsync(&self, _request: &Request, _node: INodeNo, _file: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _request: &Request, _node: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _request: &Request, _node: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.size / 4096, 0, 0, 2, 0, 4096, 255, 4096);
    }

    fn readdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [(INodeNo(1), FileType::Directory, "."), (INodeNo(1), FileType::Directory, "..")]
            .into_iter()
            .chain([(FILE_NODE, FileType::RegularFile, FILE)]);
        for (index, (node, kind, name)) in entries.enumerate().skip(offset as usize) {
            if reply.add(node, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Serves a file of `size` bytes at `dir` until it is unmounted or a stop signal comes.
///
/// `ready` is called when the mount is usable. Signals must be blocked ([`crate::signals::block`]).
pub fn serve(dir: &Path, size: u64, threads: usize, ready: impl FnOnce()) -> Result<()> {
    let dir = mount::resolve(dir)?;
    let flags = MountFlags {
        source: "quire-null".into(),
        allow_other: rustix::process::geteuid().is_root(),
        ..MountFlags::default()
    };
    let server = Null::new(size);
    let device = mount::mount(&dir, &flags)?;
    let session = session::attach(server, device, threads)
        .inspect_err(|_| drop(mount::unmount(&dir, mount::Unmount::Detach)))?;
    ready();
    match session::run_until_stopped(session, &dir)? {
        session::End::Unmounted => Ok(()),
        session::End::Forced => {
            Err(Error::new(quire_base::ErrorKind::Busy, "stopped while the mount was in use"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_stop_at_the_end() {
        let null = Null::new(3 * STRIPE as u64 - 5);
        assert_eq!(null.pieces(0, 10).collect::<Vec<_>>(), [(0, 0, 10)]);
        assert_eq!(null.pieces(STRIPE as u64 - 4, 10).collect::<Vec<_>>(), [(0, STRIPE - 4, 4), (1, 0, 6)]);
        assert_eq!(null.pieces(3 * STRIPE as u64 - 8, 10).collect::<Vec<_>>(), [(2, STRIPE - 8, 3)]);
        assert_eq!(null.pieces(u64::MAX - 3, 10).count(), 0);
    }
}
