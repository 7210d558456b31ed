//! The volume by inode number, for front ends: FUSE, NFS and whatever else keeps handles of its own.
//!
//! Programs that name files by paths use [`Volume`](crate::Volume) and [`File`](crate::File), and need
//! nothing of this module. [`Inodes`] has the same operations on [`InodeRef`]s and names of one directory. It
//! adds what only a front end asks for: the caller of an operation, flags of one read or write, operations
//! that refuse to wait, and callbacks.
//!
//! Nothing here checks permissions. The front end decides who may do what.
//!
//! ```
//! use quire::inodes::{Create, IoFlags};
//! use quire::backend::MemoryBackend;
//! use quire::{FormatOptions, VolumeOptions};
//! use std::sync::Arc;
//!
//! # fn main() -> quire::Result<()> {
//! let device = Arc::new(MemoryBackend::new(16384));
//! FormatOptions::new().format_backend(device.clone())?;
//! let volume = VolumeOptions::new().open_backend(device)?;
//! let inodes = volume.inodes();
//! let file = inodes.create(&inodes.root(), b"log", &Create::file(0o644))?;
//! inodes.write_at(&file, b"hello", 0, IoFlags::SYNC)?;
//! let again = inodes.get(file.number())?;
//! assert_eq!(again.size(), 5);
//! # drop((file, again));
//! volume.close()
//! # }
//! ```

use crate::engine::Engine;
use crate::file::advice::Advice;
use crate::file::fsync::Target;
use crate::file::syncing::{SyncOptions, Syncing};
use crate::lease::handle::LayoutLease;
use crate::metadata::Metadata;
use crate::namespace::RenameFlags;
use crate::open_volume::OpenVolume;
use quire_base::Result;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_device::AlignedBuf;
use quire_format::properties::Properties;

pub use crate::attributes::{SetAttributes, SetTime, without_privileges};
pub use crate::file::IoFlags;
pub use crate::file::direct_async::{BufferDone, Unsent};
pub use crate::file::fallocate::FallocateMode;
pub use crate::file::fsync::Completion;
pub use crate::group::InodeGroup;
pub use crate::inode::InodeRef;
pub use crate::namespace::{Caller, Create, DirectoryEntry};
pub use crate::xattr::{CAPABILITIES, XattrFlags};
pub use quire_base::InodeNo;

/// The inodes of an open volume; from [`Volume::inodes`](crate::Volume::inodes).
///
/// An inode of another volume, be that a snapshot of this one, is refused with the kind `CrossDevice`. Only
/// reads through the cache, and what shows attributes, do not look.
///
/// Every function may be called from any thread at any time. A clone keeps the volume open, as a clone of the
/// [`Volume`](crate::Volume) does.
#[derive(Clone)]
pub struct Inodes {
    pub(crate) volume: Arc<OpenVolume>,
}

impl Inodes {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.volume.engine
    }

    /// The engine for an operation on an inode. Errors: `CrossDevice` if that is on another volume.
    fn engine_of(&self, inode: &InodeRef) -> Result<&Arc<Engine>> {
        inode.check_volume(self.engine())?;
        Ok(self.engine())
    }

    /// A group of writes that become visible at once, and durable as a whole or not at all.
    pub fn atomic(&self) -> InodeGroup {
        InodeGroup::new(self.volume.clone())
    }

    /// The most bytes, in whole blocks, that a group may write as the volume is now: its free space.
    pub fn group_bytes_max(&self) -> u64 {
        self.engine().group_bytes_max()
    }

    /// The number of the newest checkpoint. Of a snapshot it is that of the one which is kept: no two
    /// snapshots of a volume have the same.
    pub fn checkpoint(&self) -> u64 {
        self.engine().store.checkpoint_number.load(Ordering::Acquire)
    }

    /// The root directory.
    pub fn root(&self) -> InodeRef {
        self.volume.root()
    }

    /// The inode of a number; an error of kind `Stale` if there is none (any more).
    pub fn get(&self, number: InodeNo) -> Result<InodeRef> {
        self.engine().inode(number)
    }

    /// The inode that a name of a directory names; `.` and `..` too.
    pub fn lookup(&self, directory: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.engine_of(directory)?.lookup(directory, name)
    }

    /// As [`Inodes::lookup`], but `None` if the directory has no such name.
    pub(crate) fn find(&self, directory: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        self.engine_of(directory)?.find(directory, name)
    }

    /// Creates a file, directory, fifo, socket or device; an error of kind `Exists` if the name is taken.
    pub fn create(&self, directory: &InodeRef, name: &[u8], create: &Create) -> Result<InodeRef> {
        self.engine_of(directory)?.create(directory, name, create)
    }

    /// Creates a symbolic link to `target`, 1 to 4095 bytes.
    pub fn symlink(
        &self,
        directory: &InodeRef,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Result<InodeRef> {
        self.engine_of(directory)?.symlink(directory, name, target, caller)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        self.engine_of(inode)?.readlink(inode)
    }

    /// Creates a file without a name (O_TMPFILE): freed with its last reference, unless linked before.
    pub fn tmpfile(&self, directory: &InodeRef, create: &Create) -> Result<InodeRef> {
        self.engine_of(directory)?.tmpfile(directory, create)
    }

    /// Gives an inode another name.
    pub fn hard_link(&self, inode: &InodeRef, directory: &InodeRef, name: &[u8]) -> Result<()> {
        directory.check_volume(self.engine())?;
        self.engine_of(inode)?.link(inode, directory, name)
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, directory: &InodeRef, name: &[u8]) -> Result<()> {
        self.engine_of(directory)?.unlink(directory, name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, directory: &InodeRef, name: &[u8]) -> Result<()> {
        self.engine_of(directory)?.rmdir(directory, name)
    }

    /// Renames, atomically.
    pub fn rename(
        &self,
        from: &InodeRef,
        name: &[u8],
        to: &InodeRef,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        to.check_volume(self.engine())?;
        self.engine_of(from)?.rename(from, name, to, to_name, flags)
    }

    /// Lists a directory from behind the cookie `after` (0: from the start), `.` and `..` first, until
    /// `visit` returns false.
    pub fn read_dir(
        &self,
        directory: &InodeRef,
        after: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.engine_of(directory)?.read_directory(directory, after, visit)
    }

    /// What stat shows.
    pub fn metadata(&self, inode: &InodeRef) -> Metadata {
        self.engine().metadata(inode)
    }

    /// What is asked of a file or directory besides; none of anything else.
    pub fn properties(&self, inode: &InodeRef) -> Properties {
        inode.properties()
    }

    /// Gives a file or directory other properties. Everything that was written to a file whose `untorn`
    /// changes is durable when this returns, and so is the change.
    pub fn set_properties(&self, inode: &InodeRef, properties: Properties) -> Result<()> {
        self.engine_of(inode)?.change_properties(inode, properties)
    }

    /// Changes mode, owner, times, size.
    pub fn set_attributes(&self, inode: &InodeRef, set: &SetAttributes) -> Result<Metadata> {
        self.engine_of(inode)?.set_attributes(inode, set)
    }

    /// An extended attribute's value; an error of kind `NoAttribute` if there is none.
    pub fn get_xattr(&self, inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        self.engine_of(inode)?.get_xattr(inode, name)
    }

    /// Sets an extended attribute, at most 64 KiB.
    pub fn set_xattr(&self, inode: &InodeRef, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.engine_of(inode)?.set_xattr(inode, name, value, flags)
    }

    /// The names of an inode's extended attributes.
    pub fn list_xattrs(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        self.engine_of(inode)?.list_xattr(inode)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, inode: &InodeRef, name: &[u8]) -> Result<()> {
        self.engine_of(inode)?.remove_xattr(inode, name)
    }

    /// Takes a program's capabilities away, for good, if it has any: what a write with
    /// [`IoFlags::KEEP_PRIVILEGES`] leaves to the front end.
    pub fn clear_capabilities(&self, inode: &InodeRef) -> Result<()> {
        let _change = self.engine().begin_change()?;
        self.engine_of(inode)?.clear_capabilities(inode)
    }

    /// Reads up to `out.len()` bytes at `offset`; fewer at the end of the file.
    #[inline]
    pub fn read_at(&self, inode: &InodeRef, out: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        if flags.contains(IoFlags::DIRECT) {
            inode.check_volume(self.engine())?;
        }
        self.engine().read(inode, offset, out, flags)
    }

    /// As [`Inodes::read_at`] through the cache, if all of it is there and nobody is changing it; else, and
    /// with [`IoFlags::DIRECT`], `None`, and `out` holds anything. Waits for nothing.
    #[inline]
    pub fn try_read_at(
        &self,
        inode: &InodeRef,
        out: &mut [u8],
        offset: u64,
        flags: IoFlags,
    ) -> Option<usize> {
        self.engine().try_read(inode, offset, out, flags)
    }

    /// Writes at `offset`, or with [`IoFlags::APPEND`] at the end; gives the count, short only after an error
    /// midway in a write larger than a batch.
    #[inline]
    pub fn write_at(&self, inode: &InodeRef, data: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        self.engine_of(inode)?.write(inode, offset, data, flags).map(|(_, written)| written)
    }

    /// As [`Inodes::write_at`] through the cache with [`IoFlags::KEEP_PRIVILEGES`], if it lies inside the
    /// file, over cached data that has its place on the device, and needs no waiting; else false, and nothing
    /// has changed. Of `flags` it heeds [`IoFlags::KEEP_WRITE_TIMES`].
    #[inline]
    pub fn try_write_at(&self, inode: &InodeRef, data: &[u8], offset: u64, flags: IoFlags) -> bool {
        self.engine_of(inode).is_ok_and(|engine| engine.try_write(inode, offset, data, flags))
    }

    /// Appends; gives the offset that the data got, and the count.
    pub fn append(&self, inode: &InodeRef, data: &[u8], flags: IoFlags) -> Result<(u64, usize)> {
        self.engine_of(inode)?.write(inode, 0, data, flags | IoFlags::APPEND)
    }

    /// Reads past the cache without holding the caller: `done` gets the buffer back, and how many bytes of
    /// the file it holds. A request that is not on block boundaries is done before this returns. `done` runs
    /// on a thread of the device, which it must not keep waiting, or on this one.
    pub fn read_direct_then(&self, inode: &InodeRef, buffer: AlignedBuf, offset: u64, done: BufferDone) {
        match self.engine_of(inode) {
            Ok(engine) => engine.read_direct_async(inode, offset, buffer, done),
            Err(error) => done(buffer, Err(error)),
        }
    }

    /// As [`Inodes::read_direct_then`], if it can be sent off and that needs no waiting; else gives buffer
    /// and `done` back.
    #[must_use]
    pub fn try_read_direct_then(
        &self,
        inode: &InodeRef,
        buffer: AlignedBuf,
        offset: u64,
        done: BufferDone,
    ) -> Option<Unsent> {
        match self.engine_of(inode) {
            Ok(engine) => engine.send_read(inode, offset, buffer, done, false),
            Err(_) => Some((buffer, done)),
        }
    }

    /// Writes past the cache without holding the caller: `done` gets the buffer back, and how many bytes were
    /// written. A request that grows the file, fills holes, appends, or is not on block boundaries is done
    /// before this returns. With [`IoFlags::SYNC`] or [`IoFlags::DATASYNC`] it is done when it is durable.
    /// `done` runs on a thread of the device or of the volume, which it must not keep waiting, or on this
    /// one.
    pub fn write_direct_then(
        &self,
        inode: &InodeRef,
        buffer: AlignedBuf,
        offset: u64,
        flags: IoFlags,
        done: BufferDone,
    ) {
        match self.engine_of(inode) {
            Ok(engine) => engine.write_direct_async(inode, offset, buffer, flags, done),
            Err(error) => done(buffer, Err(error)),
        }
    }

    /// As [`Inodes::write_direct_then`], if it can be sent off and that needs no waiting; else gives buffer
    /// and `done` back.
    #[must_use]
    pub fn try_write_direct_then(
        &self,
        inode: &InodeRef,
        buffer: AlignedBuf,
        offset: u64,
        flags: IoFlags,
        done: BufferDone,
    ) -> Option<Unsent> {
        match self.engine_of(inode) {
            Ok(engine) => engine.send_write(inode, offset, buffer, flags, done, false),
            Err(_) => Some((buffer, done)),
        }
    }

    /// Sets a file's size in bytes; what is gained reads as zeros.
    pub fn set_len(&self, inode: &InodeRef, size: u64) -> Result<()> {
        self.engine_of(inode)?.truncate(inode, size)
    }

    /// Changes the allocation of a range (fallocate).
    pub fn allocate(&self, inode: &InodeRef, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.engine_of(inode)?.allocate(inode, mode, offset, len)
    }

    /// The first byte of data at or behind `offset`; an error of kind `NoData` if there is none.
    pub fn seek_data(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        self.engine_of(inode)?.seek_data(inode, offset)
    }

    /// The first byte of a hole at or behind `offset`.
    pub fn seek_hole(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        self.engine_of(inode)?.seek_hole(inode, offset)
    }

    /// Copies up to `len` bytes between files or within one.
    pub fn copy_range(
        &self,
        from: &InodeRef,
        from_offset: u64,
        to: &InodeRef,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        to.check_volume(self.engine())?;
        self.engine_of(from)?.copy_range(from, from_offset, to, to_offset, len)
    }

    /// As [`File::lease_layout`](crate::File::lease_layout), with at most so many extents.
    pub fn lease_layout(
        &self,
        inode: &InodeRef,
        range: std::ops::Range<u64>,
        extents_max: usize,
    ) -> Result<LayoutLease> {
        self.engine_of(inode)?.lease_layout(inode, range, extents_max)
    }

    /// Takes advice about bytes `[offset, offset + len)` of a file (posix_fadvise); a length of 0 means to
    /// its end.
    pub fn advise(&self, inode: &InodeRef, offset: u64, len: u64, advice: Advice) -> Result<()> {
        self.engine_of(inode)?.advise(inode, offset, len, advice)
    }

    /// Makes a file's data and attributes durable, its name too; with `datasync` what reading the data back
    /// needs.
    pub fn fsync(&self, inode: &InodeRef, datasync: bool) -> Result<()> {
        self.engine_of(inode)?.fsync(inode, datasync)
    }

    /// Makes what the options name of a file durable, without holding the caller: `done` gets the outcome, on
    /// a thread of the volume, which it must not keep waiting. The call itself waits only where 65,536 are
    /// under way.
    pub fn fsync_then(&self, inode: &InodeRef, how: &SyncOptions, done: Completion) {
        self.engine().fsync_async(inode, how, done);
    }

    /// As [`Inodes::fsync_then`], as a future.
    pub fn fsync_async(&self, inode: &InodeRef, how: &SyncOptions) -> Syncing {
        self.engine().start_syncing(vec![Target::File(inode.clone(), how.clone())])
    }

    /// As [`Inodes::fsync_async`] for many files, which end together: they cost a few writes of the journal.
    pub fn fsync_many_async<'a>(
        &self,
        files: impl IntoIterator<Item = &'a InodeRef>,
        how: &SyncOptions,
    ) -> Syncing {
        let target = |inode: &InodeRef| Target::File(inode.clone(), how.clone());
        self.engine().start_syncing(files.into_iter().map(target).collect())
    }

    /// To be called when a descriptor is closed; `wrote` says that it was open for writing. Fails, with
    /// nothing done, only on a thread that may not wait (kind `WouldBlock`), where it would.
    pub fn closed(&self, inode: &InodeRef, wrote: bool) -> Result<()> {
        self.engine_of(inode)?.closed(inode, wrote)
    }
}

impl std::fmt::Debug for Inodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the inodes of the volume on {}", self.engine().store.device.name())
    }
}
