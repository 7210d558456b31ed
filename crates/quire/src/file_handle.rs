//! An open file.
//!
//! Each call is one operation: a reader sees a write, vectored ones included, entirely or not at all. A
//! [`File`] has no position of its own; [`Cursor`] has one.
//!
//! Neighbours: [`crate::OpenOptions`] opens; [`crate::inodes`] does the work.

use crate::attributes::SetAttributes;
use crate::cursor::Cursor;
use crate::direct_io::DirectIo;
use crate::file::advice::Advice;
use crate::file::syncing::{SyncOptions, Syncing};
use crate::group_handle::FileGroup;
use crate::inode::InodeRef;
use crate::inodes::{FallocateMode, Inodes, IoFlags, XattrFlags};
use crate::lease::grant::LEASE_EXTENTS_MAX;
use crate::lease::handle::LayoutLease;
use crate::metadata::{FileTimes, Metadata};
use crate::xattr::or_none;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_device::AlignedBuf;
use quire_format::properties::Properties;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Bound, RangeBounds};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Room behind the end of a file that grew while it was read.
const MORE_BYTES: u64 = 64 << 10;

/// An open file: it lives while this does, unlinked or not. Share it between threads by reference or in an
/// `Arc`.
///
/// Reads and writes name their offset, as those of [`std::os::unix::fs::FileExt`] do; [`File::cursor`] gives
/// something that has a position, for [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`].
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// use quire::OpenOptions;
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "table")?;
/// file.write_all_at(b"hello world", 0)?;
/// file.punch_hole(0, 5)?;
/// file.sync_data()?;
/// let mut bytes = [0; 11];
/// file.read_exact_at(&mut bytes, 0)?;
/// assert_eq!(&bytes, b"\0\0\0\0\0 world");
/// # drop(file);
/// # volume.close()
/// # }
/// ```
pub struct File {
    inodes: Inodes,
    inode: InodeRef,
    readable: bool,
    writable: bool,
    flags: IoFlags,
}

impl File {
    pub(crate) fn new(
        inodes: Inodes,
        inode: InodeRef,
        readable: bool,
        writable: bool,
        flags: IoFlags,
    ) -> File {
        File { inodes, inode, readable, writable, flags }
    }

    /// Its inode, for [`Inodes`].
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    pub(crate) fn size(&self) -> u64 {
        self.inode.size()
    }

    pub(crate) fn appends(&self) -> bool {
        self.flags.contains(IoFlags::APPEND)
    }

    #[cold]
    fn refused(&self, what: &str) -> Error {
        Error::new(ErrorKind::BadHandle, format!("inode {} was not opened for {what}", self.inode.number()))
    }

    #[inline]
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.readable { Ok(()) } else { Err(self.refused("reading")) }
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writable { Ok(()) } else { Err(self.refused("writing")) }
    }

    /// A group of writes to this file that become visible at once, and durable as a whole or not at all.
    pub fn atomic(&self) -> FileGroup<'_> {
        FileGroup::new(self, self.inodes.volume.clone())
    }

    /// A position in the file, at its start, for the traits of [`std::io`].
    pub fn cursor(&self) -> Cursor<&File> {
        Cursor::new(self)
    }

    /// Reads at an offset in bytes; fewer than asked for at the end of the file, 0 behind it.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_readable()?;
        self.inodes.read_at(&self.inode, buf, offset, self.flags - IoFlags::APPEND)
    }

    /// Fills `buf`; an error of kind `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], offset + done as u64)? {
                0 => {
                    return Err(Error::new(
                        ErrorKind::UnexpectedEof,
                        format!(
                            "inode {} ends at {}, before offset {}",
                            self.inode.number(),
                            offset + done as u64,
                            offset.saturating_add(buf.len() as u64)
                        ),
                    ));
                }
                count => done += count,
            }
        }
        Ok(())
    }

    /// Reads into several buffers as one operation.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        if let [one] = bufs {
            return self.read_at(one, offset);
        }
        let wanted = total(bufs.iter().map(|buffer| buffer.len()))?;
        let mut more = 1;
        let (whole, count) = loop {
            // Buffers may be larger than the file, and than memory. One byte more than the file has: a read
            // that fills this has met a write that made the file longer, and may have only a part of it. The
            // next try leaves room for more such writes.
            let there = (self.inode.size().saturating_sub(offset) + more).next_multiple_of(BLOCK_SIZE as u64);
            more = (2 * more).max(MORE_BYTES);
            let most = wanted.min(usize::try_from(there).unwrap_or(usize::MAX));
            let mut whole = AlignedBuf::try_zeroed(most)?;
            let count = self.read_at(&mut whole, offset)?;
            if count < most || most == wanted {
                break (whole, count);
            }
        };
        let mut rest = &whole[..count];
        for buffer in bufs {
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(count)
    }

    /// Writes at an offset in bytes (opened for appending: at the end); gives the count, which is short only
    /// after an error in the midst of a large write.
    #[inline]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.check_writable()?;
        self.inodes.write_at(&self.inode, buf, offset, self.flags)
    }

    /// Writes all of `buf`.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.write_at(&buf[done..], offset + done as u64)? {
                0 => return Err(Error::new(ErrorKind::Io, "a write that wrote nothing")),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Writes several buffers as one operation.
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        match bufs {
            [one] => self.write_at(one, offset),
            _ => self.write_at(&gather(bufs)?, offset),
        }
    }

    /// Appends; gives the offset that the data got. Appends of several threads never mix.
    ///
    /// An error may leave a part at the end of the file, if the data is larger than 1 MiB; a [`Cursor`] over
    /// a file opened for appending tells how much.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        let (offset, mut done) = self.append_some(buf)?;
        while done < buf.len() {
            let only = || format!("only {done} of {} bytes were appended at offset {offset}", buf.len());
            // What ended the first part short ends this one, too, and is known then; or it is over.
            let (at, count) = self.append_some(&buf[done..]).map_err(|error| error.context(only()))?;
            if at != offset + done as u64 {
                let between = format!("{}, and others at {at}: another append came between", only());
                return Err(Error::new(ErrorKind::Io, between));
            }
            done += count;
        }
        Ok(offset)
    }

    /// Appends several buffers as one operation; gives the offset that the data got. Errors as of
    /// [`File::append`].
    pub fn append_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<u64> {
        match bufs {
            [one] => self.append(one),
            _ => self.append(&gather(bufs)?),
        }
    }

    /// Appends; gives the offset and the count, which is short only after an error in the midst of a large
    /// write.
    pub(crate) fn append_some(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.check_writable()?;
        self.inodes.append(&self.inode, buf, self.flags)
    }

    /// As [`File::append_some`], of several buffers as one operation.
    pub(crate) fn append_some_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<(u64, usize)> {
        match bufs {
            [one] => self.append_some(one),
            _ => self.append_some(&gather(bufs)?),
        }
    }

    /// Reads past the cache without holding a thread; the future gives the buffer back, and how many bytes of
    /// the file it holds. A request that is not on block boundaries is done before this returns.
    pub fn read_direct_async(&self, buffer: AlignedBuf, offset: u64) -> DirectIo {
        match self.check_readable() {
            Ok(()) => DirectIo::start(|done| {
                self.inodes.read_direct_then(&self.inode, buffer, offset, done);
            }),
            Err(error) => DirectIo::over(buffer, error),
        }
    }

    /// Writes past the cache without holding a thread; the future gives the buffer back, and how many bytes
    /// were written. A request that grows the file, fills holes, appends, or is not on block boundaries is
    /// done before this returns.
    pub fn write_direct_async(&self, buffer: AlignedBuf, offset: u64) -> DirectIo {
        match self.check_writable() {
            Ok(()) => DirectIo::start(|done| {
                self.inodes.write_direct_then(&self.inode, buffer, offset, self.flags, done);
            }),
            Err(error) => DirectIo::over(buffer, error),
        }
    }

    /// Makes contents, attributes and name durable (fsync).
    pub fn sync_all(&self) -> Result<()> {
        self.inodes.fsync(&self.inode, false)
    }

    /// Makes the contents durable, and what reading them back needs (fdatasync).
    pub fn sync_data(&self) -> Result<()> {
        self.inodes.fsync(&self.inode, true)
    }

    /// As [`File::sync_all`], as a future: no thread waits. It needs no runtime, and the file may be closed
    /// meanwhile. [`Volume::sync_files_async`](crate::Volume::sync_files_async) is for many files.
    pub fn sync_all_async(&self) -> Syncing {
        self.sync_with_async(&SyncOptions::new())
    }

    /// As [`File::sync_data`], as a future.
    pub fn sync_data_async(&self) -> Syncing {
        self.sync_with_async(&SyncOptions::new().data_only(true))
    }

    /// Makes durable what the options name, when they say, as a future.
    pub fn sync_with_async(&self, options: &SyncOptions) -> Syncing {
        self.inodes.fsync_async(&self.inode, options)
    }

    /// Sets the size in bytes; what is gained reads as zeros.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        self.inodes.set_len(&self.inode, size)
    }

    fn change_range(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.check_writable()?;
        self.inodes.allocate(&self.inode, mode, offset, len)?;
        self.sync_as_opened()
    }

    /// What a change owes that this file's flags want durable when it returns.
    fn sync_as_opened(&self) -> Result<()> {
        if self.flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC) {
            self.inodes.fsync(&self.inode, !self.flags.contains(IoFlags::SYNC))?;
        }
        Ok(())
    }

    /// Reserves blocks for a range, so that writes to it find space; the file grows to hold it.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::Allocate, offset, len)
    }

    /// As [`File::allocate`], beyond the end of the file too, but the size stays.
    pub fn allocate_keep_size(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::KeepSize, offset, len)
    }

    /// Makes a range read as zeros, and gives its whole blocks back. The size stays.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::PunchHole, offset, len)
    }

    /// Makes a range read as zeros, with blocks reserved for it; the file grows to hold it.
    pub fn zero_range(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::ZeroRange { keep_size: false }, offset, len)
    }

    /// Cuts a range of whole blocks out; what follows moves down. While the volume has snapshots, that takes
    /// metadata: `NoSpace` where there is no room for it, and nothing has changed.
    pub fn collapse_range(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::Collapse, offset, len)
    }

    /// Opens a hole of whole blocks; what follows moves up. That takes metadata: `NoSpace` where there is no
    /// room for it, and nothing has changed.
    pub fn insert_range(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(FallocateMode::Insert, offset, len)
    }

    /// The first byte of data at or behind `offset`; `None` if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        or_past_the_end(self.inodes.seek_data(&self.inode, offset))
    }

    /// The first byte of a hole at or behind `offset`; the end of the file counts as one. `None` if `offset`
    /// is there or behind it.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        or_past_the_end(self.inodes.seek_hole(&self.inode, offset))
    }

    /// Copies up to `len` bytes from `offset` of this file to `to_offset` of another one or of this; gives
    /// the count, which is smaller at the end of this file. The ranges must not overlap. A file that was
    /// opened with [`OpenOptions::sync`](crate::OpenOptions::sync) has them durable when this returns.
    ///
    /// Errors: `BadHandle` also if the other file was opened to append, so that its writes have no offset.
    pub fn copy_range_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.check_readable()?;
        to.check_writable()?;
        if to.appends() {
            return Err(to.refused("writing at an offset"));
        }
        let count = self.inodes.copy_range(&self.inode, offset, &to.inode, to_offset, len)?;
        if count > 0 {
            to.sync_as_opened()?;
        }
        Ok(count)
    }

    /// Copies everything to an empty file; holes stay holes.
    pub(crate) fn copy_data_to(&self, to: &File) -> Result<u64> {
        let size = self.size();
        let mut at = 0;
        while let Some(start) = self.seek_data(at)?.filter(|&start| start < size) {
            let end = self.seek_hole(start)?.unwrap_or(size).min(size);
            at = start;
            while at < end {
                match self.copy_range_to(at, to, at, end - at)? {
                    // Somebody has made it shorter meanwhile.
                    0 => return Ok(at),
                    count => at += count,
                }
            }
        }
        to.set_len(size)?;
        Ok(size)
    }

    /// Makes a range durable, as far as the file goes, and gives its layout: where its blocks are on the
    /// device, and the promise that they stay there until the lease is returned, or recalled and revoked.
    /// What it names is true after a crash, too.
    ///
    /// Errors: `Busy` while an operation that moves blocks of the range is under way or waits, and if the
    /// volume has 4096 leases; `ReadOnly` on a volume that takes no changes; `Shutdown`; those of an fsync.
    pub fn lease_layout(&self, range: impl RangeBounds<u64>) -> Result<LayoutLease> {
        self.check_readable()?;
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        self.inodes.lease_layout(&self.inode, start..end, LEASE_EXTENTS_MAX)
    }

    /// Takes advice about `len` bytes at `offset` (posix_fadvise); a length of 0 means to the end.
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<()> {
        self.inodes.advise(&self.inode, offset, len, advice)
    }

    /// What `stat` shows.
    pub fn metadata(&self) -> Metadata {
        self.inodes.metadata(&self.inode)
    }

    /// Changes permissions: the bits 0o7777 of their mode.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.inodes.set_attributes(&self.inode, &SetAttributes::from(&permissions)).map(drop)
    }

    /// What is asked of the file besides.
    pub fn properties(&self) -> Properties {
        self.inodes.properties(&self.inode)
    }

    /// Gives the file other properties. Where `untorn` changes, everything written before is durable when
    /// this returns, and so is the change.
    pub fn set_properties(&self, properties: Properties) -> Result<()> {
        self.inodes.set_properties(&self.inode, properties)
    }

    /// Sets the times of the last access and the last change.
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.inodes.set_attributes(&self.inode, &SetAttributes::from(times)).map(drop)
    }

    /// An extended attribute; `None` if there is none of that name.
    pub fn get_xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        or_none(self.inodes.get_xattr(&self.inode, name.as_ref().as_bytes()))
    }

    /// Sets an extended attribute, at most 64 KiB. Names begin with `user.`, `trusted.` or `security.`.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>) -> Result<()> {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        self.inodes.set_xattr(&self.inode, name, value, XattrFlags::empty())
    }

    /// The names of the extended attributes.
    pub fn list_xattrs(&self) -> Result<Vec<OsString>> {
        Ok(self.inodes.list_xattrs(&self.inode)?.into_iter().map(OsString::from_vec).collect())
    }

    /// Removes an extended attribute; an error of kind `NoAttribute` if there is none.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.inodes.remove_xattr(&self.inode, name.as_ref().as_bytes())
    }

    /// Another handle of the same file, opened as this one was.
    pub fn try_clone(&self) -> Result<File> {
        let File { inodes, inode, readable, writable, flags } = self;
        Ok(File::new(inodes.clone(), inode.clone(), *readable, *writable, *flags))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Fails only on a thread that may not wait; such a one has no files of this kind.
        let _ = self.inodes.closed(&self.inode, self.writable);
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("inode", &self.inode)
            .field("readable", &self.readable)
            .field("writable", &self.writable)
            .field("flags", &self.flags)
            .finish()
    }
}

/// The sum, if a call can count that many bytes.
fn total(mut lengths: impl Iterator<Item = usize>) -> Result<usize> {
    let sum = lengths.try_fold(0usize, usize::checked_add).filter(|&sum| isize::try_from(sum).is_ok());
    sum.ok_or_else(|| Error::invalid("the buffers are longer than memory"))
}

fn gather(bufs: &[IoSlice<'_>]) -> Result<Vec<u8>> {
    let total = total(bufs.iter().map(|buffer| buffer.len()))?;
    let mut whole = Vec::new();
    let no_memory = |_| Error::new(ErrorKind::NoMemory, format!("no memory for a buffer of {total} bytes"));
    whole.try_reserve_exact(total).map_err(no_memory)?;
    bufs.iter().for_each(|buffer| whole.extend_from_slice(buffer));
    Ok(whole)
}

fn or_past_the_end(found: Result<u64>) -> Result<Option<u64>> {
    match found {
        Ok(offset) => Ok(Some(offset)),
        Err(error) if error.kind() == ErrorKind::NoData => Ok(None),
        Err(error) => Err(error),
    }
}
