//! The open volume: a descriptor that holds the lock, with size, transfers, flush and discard.
//!
//! Locking: `flock` on the descriptor, exclusive to write and shared to read only. The lock is given back
//! before the descriptor goes: copies of that may live on, in a ring that the kernel still takes down, or in
//! a child of this process that has not yet begun its program. A block device opened for writing is also
//! claimed with O_EXCL, so that the kernel refuses it while it is mounted or in use by another subsystem. Of
//! a loop device the file behind it is locked as well: one volume has two names there. The lock is tried for
//! `LOCK_PATIENCE`: a server that was killed lets go only when its last requests have ended, and udev probes
//! new devices under a lock of its own.

use super::mode::OpenMode;
use super::transfer::Transfer;
use crate::aligned::{AlignedBuf, is_aligned};
use crate::backend::{self, Io, IoOp, Segment};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for the lock before calling the volume busy.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Image,
    BlockDevice,
}

pub(super) struct Target {
    fd: OwnedFd,
    /// The file behind a loop device, with its lock.
    behind: Option<OwnedFd>,
    name: String,
    blocks: AtomicU64,
    medium: Medium,
    mode: OpenMode,
    /// Transfers bypass the page cache; memory must be aligned.
    is_direct: bool,
    /// Cleared when the host says that it cannot discard.
    discards: AtomicBool,
}

impl Target {
    /// Opens and locks what is at `path`.
    pub(super) fn open(path: &Path, mode: OpenMode) -> Result<Target> {
        Target::open_with(path, mode, OFlags::empty())
    }

    /// Opens and locks an image file, made empty if it is not there. Never a block device.
    pub(super) fn open_or_create(path: &Path) -> Result<Target> {
        Target::open_with(path, OpenMode::ReadWrite, OFlags::CREATE)
    }

    fn open_with(path: &Path, mode: OpenMode, more: OFlags) -> Result<Target> {
        let name = path.display().to_string();
        let failed = |errno: Errno| match errno {
            Errno::BUSY => busy(&name),
            Errno::ISDIR => {
                Error::new(ErrorKind::IsDirectory, format!("{name} is a directory, not a volume"))
            }
            errno => Error::os(format_args!("opening {name}"), &errno.into()),
        };
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | more;
        flags |= if mode == OpenMode::ReadWrite { OFlags::RDWR } else { OFlags::RDONLY };
        if mode == OpenMode::ReadWrite && is_block_device(path) {
            flags |= OFlags::EXCL;
            flags -= OFlags::CREATE;
        }
        // Reading an image gets past the modes of the files in it, so a new one is for its owner alone.
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        let fd = above_standard(fd).map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        let medium = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Medium::Image,
            FileType::BlockDevice => Medium::BlockDevice,
            FileType::Directory => return Err(failed(Errno::ISDIR)),
            _ => {
                let text = format!("{name} is neither an image file nor a block device");
                return Err(Error::new(ErrorKind::NotAVolume, text));
            }
        };
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(failed)?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(failed)?;
        if medium == Medium::BlockDevice && mode == OpenMode::ReadWrite && is_write_protected(&fd) {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{name} is read-only: the block device is write-protected"),
            ));
        }
        lock(&fd, &name, mode)?;
        let behind =
            if medium == Medium::BlockDevice { lock_behind(stat.st_rdev, &name, mode)? } else { None };
        let (blocks, discards) = (AtomicU64::new(0), AtomicBool::new(true));
        let target = Target { fd, behind, name, blocks, medium, mode, is_direct: false, discards };
        target.measure()?;
        Ok(target)
    }

    /// Reads the size; whole blocks count.
    fn measure(&self) -> Result<()> {
        let bytes = match self.medium {
            Medium::Image => self.file_bytes()?,
            Medium::BlockDevice => self.device_bytes()?,
        };
        self.blocks.store(bytes / BLOCK_SIZE as u64, Ordering::Release);
        Ok(())
    }

    /// Measures again, after making an image file at least `blocks` long.
    pub(super) fn grow(&self, blocks: u64) -> Result<()> {
        let bytes = blocks.saturating_mul(BLOCK_SIZE as u64);
        if self.medium == Medium::Image && !self.is_read_only() && bytes > self.file_bytes()? {
            // Durable before a superblock says that the volume goes so far.
            rustix::fs::ftruncate(&self.fd, bytes)
                .and_then(|()| rustix::fs::fsync(&self.fd))
                .map_err(|errno| self.failed("enlarging", errno))?;
        }
        self.measure()
    }

    /// Asks for nothing but the size: who has been told a file's times has the host give the next write a
    /// time of its own, and so change the inode with every write between two flushes (Linux 6.13).
    fn file_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
        Ok(stat.map_err(|errno| self.failed("measuring", errno))?.stx_size)
    }

    /// The size of a block device.
    fn device_bytes(&self) -> Result<u64> {
        /// `_IOR(0x12, 114, size_t)`: the size in bytes, as a u64.
        const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
        let mut bytes = 0_u64;
        // SAFETY: the request writes one u64 to the address it is given.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
        if answer < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::os(format_args!("measuring {}", self.name), &error));
        }
        Ok(bytes)
    }

    /// Whether the file has no byte at all.
    pub(super) fn is_empty_file(&self) -> Result<bool> {
        Ok(self.file_bytes()? == 0)
    }

    /// Makes an image file `blocks` long and empty of data.
    pub(super) fn reset(&self, blocks: u64) -> Result<()> {
        let bytes = blocks.saturating_mul(BLOCK_SIZE as u64);
        rustix::fs::ftruncate(&self.fd, 0)
            .and_then(|()| rustix::fs::ftruncate(&self.fd, bytes))
            .and_then(|()| rustix::fs::fsync(&self.fd))
            .map_err(|errno| self.failed("sizing", errno))?;
        self.measure()
    }

    /// Switches the descriptor to direct I/O, if the host can; proves it by reading a block.
    pub(super) fn go_direct(&mut self) -> Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd).map_err(|errno| self.failed("opening", errno))?;
        rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT)
            .map_err(|errno| self.failed("direct I/O on", errno))?;
        self.is_direct = true;
        let probed =
            if self.blocks() == 0 { Ok(()) } else { self.read(BlockNo(0), &mut AlignedBuf::blocks(1)) };
        if probed.is_err() {
            self.go_ordinary()?;
        }
        probed
    }

    /// Back to the page cache.
    fn go_ordinary(&mut self) -> Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd).map_err(|errno| self.failed("opening", errno))?;
        rustix::fs::fcntl_setfl(&self.fd, flags - OFlags::DIRECT)
            .map_err(|errno| self.failed("ordinary I/O on", errno))?;
        self.is_direct = false;
        Ok(())
    }

    /// Lets go of the volume's lock before the descriptor goes.
    pub(super) fn unlock(&self) {
        for fd in [Some(&self.fd), self.behind.as_ref()].into_iter().flatten() {
            if let Err(errno) = rustix::fs::flock(fd, FlockOperation::Unlock) {
                tracing::warn!(volume = self.name, %errno, "unlocking");
            }
        }
    }

    /// The same without direct I/O.
    pub(super) fn into_ordinary(mut self) -> Target {
        if let Err(error) = self.go_ordinary() {
            // Direct I/O still works for aligned memory; `is_direct` stays true and the rest is bounced.
            tracing::warn!(%error, "cannot leave direct I/O");
        }
        self
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn medium(&self) -> Medium {
        self.medium
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.mode != OpenMode::ReadWrite
    }

    pub(super) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }

    fn failed(&self, doing: &str, errno: Errno) -> Error {
        Error::os(format_args!("{doing} {}", self.name), &errno.into())
    }

    pub(super) fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        backend::check_range(&self.name, self.blocks(), "reading", at, buf.len() as u64)?;
        if self.is_direct && !is_aligned(buf.as_ptr()) {
            let mut bounce = AlignedBuf::try_zeroed(buf.len())?;
            self.read(at, &mut bounce)?;
            buf.copy_from_slice(&bounce);
            return Ok(());
        }
        // SAFETY: `buf` is borrowed exclusively until the transfer returns.
        unsafe { self.transfer(IoOp::Read, at, &[Segment::new(buf.as_mut_ptr(), buf.len())]) }
    }

    /// Fills segments of whole blocks, which are aligned.
    pub(super) fn read_scattered(&self, at: BlockNo, segments: &[Segment]) -> Result<()> {
        if let [segment] = segments {
            // SAFETY: the maker of the segment keeps it valid, and its bytes to us, until this returns.
            return self.read(at, unsafe { std::slice::from_raw_parts_mut(segment.ptr(), segment.len()) });
        }
        let bytes = segments.iter().map(|segment| segment.len() as u64).sum();
        backend::check_range(&self.name, self.blocks(), "reading", at, bytes)?;
        // SAFETY: as above; the segments are aligned by their type.
        unsafe { self.transfer(IoOp::Read, at, segments) }
    }

    pub(super) fn write(&self, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check_write("writing")?;
        backend::check_range(&self.name, self.blocks(), "writing", at, buf.len() as u64)?;
        if self.is_direct && !is_aligned(buf.as_ptr()) {
            return self.write(at, &AlignedBuf::try_copy_of(buf)?);
        }
        // SAFETY: `buf` is borrowed until the transfer returns, and a write only reads it.
        unsafe { self.transfer(IoOp::Write, at, &[Segment::new(buf.as_ptr().cast_mut(), buf.len())]) }
    }

    /// Refuses requests that this target cannot do.
    pub(super) fn check(&self, io: &Io) -> Result<()> {
        if io.op == IoOp::Write {
            self.check_write("writing")?;
        }
        backend::check_io(&self.name, self.blocks(), io)
    }

    /// Does a request's transfer in this thread.
    ///
    /// # Safety
    /// The segments are valid until this returns (for a read: and nobody else uses them), and aligned if the
    /// target is direct.
    pub(super) unsafe fn transfer(&self, op: IoOp, at: BlockNo, segments: &[Segment]) -> Result<()> {
        let mut transfer = Transfer::new(op, at, segments);
        // SAFETY: the caller's promise.
        unsafe { transfer.run(self.raw_fd(), &self.name) }
    }

    fn check_write(&self, doing: &str) -> Result<()> {
        if self.is_read_only() { Err(backend::read_only(&self.name, doing)) } else { Ok(()) }
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.check_write("flushing")?;
        self.check_length()?;
        // Not retried when it fails: the kernel reports a lost write once.
        rustix::fs::fdatasync(&self.fd).map_err(|errno| self.failed("flushing", errno))
    }

    /// An error if an image file has become shorter than it was: what lay behind its end is gone, and a write
    /// there makes the file long again, with a hole.
    fn check_length(&self) -> Result<()> {
        if self.medium == Medium::BlockDevice {
            return Ok(());
        }
        let (bytes, least) = (self.file_bytes()?, self.blocks() * BLOCK_SIZE as u64);
        if bytes >= least {
            return Ok(());
        }
        let text =
            format!("flushing {}: it has {bytes} bytes of {least}: it was truncated while open", self.name);
        Err(Error::new(ErrorKind::Io, text))
    }

    pub(super) fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.check_write("discarding")?;
        let bytes = count.saturating_mul(BLOCK_SIZE as u64);
        backend::check_range(&self.name, self.blocks(), "discarding", at, bytes)?;
        let unsupported = || Error::new(ErrorKind::Unsupported, format!("{} does not discard", self.name));
        if !self.discards.load(Ordering::Relaxed) {
            return Err(unsupported());
        }
        let outcome = match self.medium {
            Medium::Image => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.fd, how, at.byte_offset(), bytes))
            }
            Medium::BlockDevice => self.device_discard(at.byte_offset(), bytes),
        };
        match outcome {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                if self.discards.swap(false, Ordering::Relaxed) {
                    tracing::info!(device = %self.name, "the device does not discard");
                }
                Err(unsupported())
            }
            // What is not aligned as the device wants it.
            Err(Errno::INVAL) => Err(unsupported()),
            outcome => outcome.map_err(|errno| self.failed("discarding", errno)),
        }
    }

    fn device_discard(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        /// `_IO(0x12, 119)`: discards a range given as start and length in bytes.
        const BLKDISCARD: libc::Ioctl = 0x1277;
        let range = [offset, bytes];
        // SAFETY: the request reads two u64 from the address it is given.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
        if answer < 0 {
            let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            return Err(Errno::from_raw_os_error(number));
        }
        Ok(())
    }
}

fn is_block_device(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

fn busy(name: &str) -> Error {
    let text = format!("{name} is already open, perhaps by this program; close or unmount it there first");
    Error::new(ErrorKind::Busy, text)
}

impl Drop for Target {
    fn drop(&mut self) {
        self.unlock();
    }
}

fn lock(fd: impl AsFd, name: &str, mode: OpenMode) -> Result<()> {
    let operation = match mode {
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::Look => return Ok(()),
    };
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&fd, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < give_up => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(busy(name)),
            Err(errno) => return Err(Error::os(format_args!("locking {name}"), &errno.into())),
        }
    }
}

/// Locks the file that a loop device, or its partition, shows, if there is one and it can be reached.
fn lock_behind(device: u64, name: &str, mode: OpenMode) -> Result<Option<OwnedFd>> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = std::path::PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let file = ["loop/backing_file", "../loop/backing_file"].iter().find_map(|file| {
        let mut path = std::fs::read(place.join(file)).ok()?;
        path.pop_if(|last| *last == b'\n');
        Some(OsString::from_vec(path))
    });
    let Some(file) = file else { return Ok(None) };
    // A file that was deleted, or lies in another mount namespace, has no name here.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(&file, flags, Mode::empty()) else { return Ok(None) };
    lock(&fd, &format!("{name} (a loop device over {})", Path::new(&file).display()), mode)?;
    Ok(Some(fd))
}

/// No descriptor of the first three: a program that runs without one of them would print into the volume.
fn above_standard(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    match fd.as_raw_fd() {
        0..=2 => rustix::io::fcntl_dupfd_cloexec(&fd, 3),
        _ => Ok(fd),
    }
}

/// Whether the kernel refuses writes to a block device, whatever it was opened for.
fn is_write_protected(fd: &impl AsRawFd) -> bool {
    /// `_IO(0x12, 94)`: the device's read-only flag, as an int.
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut flag: libc::c_int = 0;
    // SAFETY: the request writes one int to the address it is given.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), BLKROGET, &raw mut flag) };
    answer == 0 && flag != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that had just been closed was called busy: a child process, forked while it was open, held a
    /// copy of the descriptor until its own program began, and so did rings that the kernel took down.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let target = Target::open(file.path(), OpenMode::ReadWrite).unwrap();
        let copy = target.fd.try_clone().unwrap();
        drop(target);
        Target::open(file.path(), OpenMode::ReadWrite).unwrap();
        drop(copy);
    }
}
