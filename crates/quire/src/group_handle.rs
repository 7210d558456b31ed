//! Groups of writes for programs, which know open files and no inodes.
//!
//! Neighbours: [`crate::group`] does everything; [`crate::volume`] and [`crate::file_handle`] give groups
//! out.

use crate::file::syncing::Syncing;
use crate::file_handle::File;
use crate::group::{Commit, InodeGroup};
use crate::open_volume::OpenVolume;
use quire_base::Result;
use quire_base::sync::Arc;

/// A group of writes to files of a volume: visible at once, and after a crash there as a whole or not at all.
/// From [`Volume::atomic`](crate::Volume::atomic). Dropping it discards it.
///
/// ```
/// # use quire::{FormatOptions, VolumeOptions, backend::MemoryBackend};
/// use quire::{Commit, OpenOptions};
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let mut options = OpenOptions::new();
/// let options = options.read(true).write(true).create(true);
/// let (from, to) = (options.open(&volume, "alice")?, options.open(&volume, "bob")?);
/// let mut group = volume.atomic();
/// group.write_at(&from, b"-100", 0)?;
/// group.write_at(&to, b"+100", 0)?;
/// assert_eq!(to.metadata().len(), 0); // nobody else sees it yet
/// group.commit(Commit::Now)?;
/// assert_eq!(to.metadata().len(), 4);
/// # drop((from, to));
/// # volume.close()
/// # }
/// ```
pub struct Group(InodeGroup);

impl Group {
    pub(crate) fn new(volume: Arc<OpenVolume>) -> Group {
        Group(InodeGroup::new(volume))
    }

    /// Adds a write of all of `data` at an offset, which counts for a file opened to append, too.
    /// `CrossDevice` for a file of another volume. An error of kind `NoSpace` says that the volume has no
    /// room for the group ([`Volume::group_bytes_max`](crate::Volume::group_bytes_max)), one of kind
    /// `TooLarge` that it would have too many files or be in too many places, or that the volume's groups
    /// would have too much memory; the group stays as it was. Content beyond 2 MiB leaves the memory for
    /// fresh blocks; if that fails, so does all that follows.
    pub fn write_at(&mut self, file: &File, data: &[u8], offset: u64) -> Result<()> {
        file.check_writable()?;
        self.0.write_at(file.inode(), data, offset)
    }

    /// Sets a file's size: what lies beyond is gone, what is gained reads as zeros. `TooLarge` if the group
    /// would have too many files.
    pub fn set_len(&mut self, file: &File, size: u64) -> Result<()> {
        file.check_writable()?;
        self.0.set_len(file.inode(), size)
    }

    /// Reads at an offset what a reader will see when the group has been committed, if nobody else writes.
    pub fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<usize> {
        file.check_readable()?;
        self.0.read_at(file.inode(), buf, offset)
    }

    /// The size that the file will have when the group has been committed, if nobody else changes it.
    /// `CrossDevice` for a file of another volume.
    pub fn size(&self, file: &File) -> Result<u64> {
        self.0.check_file(file.inode())?;
        Ok(self.0.size(file.inode()))
    }

    /// Makes all writes visible at once, and durable as `commit` says. On an error nothing has changed,
    /// unless the volume has failed. The files of a group of more than 2 MiB may not be in too many pieces
    /// (`TooLarge`).
    pub fn commit(self, commit: Commit) -> Result<()> {
        self.0.commit(commit)
    }

    /// As [`Group::commit`], but durability is a future. All writes are visible when this returns; on an
    /// error nothing has changed. Commits that are under way together share forces of the journal.
    pub fn commit_async(self, commit: Commit) -> Result<Syncing> {
        self.0.commit_async(commit)
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Group> for InodeGroup {
    fn from(group: Group) -> InodeGroup {
        group.0
    }
}

/// A [`Group`] of writes to one file; from [`File::atomic`].
pub struct FileGroup<'a> {
    file: &'a File,
    group: Group,
}

impl<'a> FileGroup<'a> {
    pub(crate) fn new(file: &'a File, volume: Arc<OpenVolume>) -> FileGroup<'a> {
        FileGroup { file, group: Group::new(volume) }
    }

    /// As [`Group::write_at`].
    pub fn write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.group.write_at(self.file, data, offset)
    }

    /// As [`Group::set_len`].
    pub fn set_len(&mut self, size: u64) -> Result<()> {
        self.group.set_len(self.file, size)
    }

    /// As [`Group::read_at`].
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.group.read_at(self.file, buf, offset)
    }

    /// As [`Group::size`].
    pub fn size(&self) -> Result<u64> {
        self.group.size(self.file)
    }

    /// As [`Group::commit`].
    pub fn commit(self, commit: Commit) -> Result<()> {
        self.group.commit(commit)
    }

    /// As [`Group::commit_async`].
    pub fn commit_async(self, commit: Commit) -> Result<Syncing> {
        self.group.commit_async(commit)
    }
}
