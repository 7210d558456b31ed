//! The attributes that `stat` shows of a file, and the times that a program may set.
//!
//! Names are those of [`std::fs::Metadata`] and [`std::os::unix::fs::MetadataExt`].
//!
//! Neighbours: `attributes` fills a [`Metadata`] from an inode.

use quire_base::{InodeNo, Timestamp};
use quire_format::inode::{FileType, MODE_PERMISSION_MASK};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

/// What `stat` shows of a file, a directory or a link, as of one moment.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// volume.write("greeting", "hello")?;
/// let metadata = volume.metadata("greeting")?;
/// assert!(metadata.is_file());
/// assert_eq!((metadata.len(), metadata.nlink()), (5, 1));
/// assert_eq!(metadata.mode(), 0o100644);
/// assert!(metadata.modified() <= std::time::SystemTime::now());
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub(crate) ino: InodeNo,
    pub(crate) generation: u64,
    pub(crate) file_type: FileType,
    /// The type and the permission bits.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
}

impl Metadata {
    /// What it is.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type.is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type.is_file()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type.is_symlink()
    }

    /// Bytes: of a file its length, of a symbolic link its target's, of a directory always one block.
    #[allow(clippy::len_without_is_empty)] // As `std::fs::Metadata` has it.
    pub fn len(&self) -> u64 {
        self.size
    }

    /// Permissions, as [`Volume::set_permissions`](crate::Volume::set_permissions) takes them. Quire does not
    /// check them: that is the matter of front ends.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode)
    }

    /// Last change of the contents.
    pub fn modified(&self) -> SystemTime {
        self.mtime.into()
    }

    /// Last access.
    pub fn accessed(&self) -> SystemTime {
        self.atime.into()
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        self.btime.into()
    }

    /// Last change of anything: contents, names, attributes.
    pub fn changed(&self) -> SystemTime {
        self.ctime.into()
    }

    /// The inode's number; never used again on this volume.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// The same with another number, for a front end that numbers the inodes of several volumes.
    #[must_use]
    pub fn with_ino(self, ino: InodeNo) -> Metadata {
        Metadata { ino, ..self }
    }

    /// A directory that a front end shows below this one, and that nobody may write to: with this one's owner
    /// and permissions, and `changed` for all its times.
    #[must_use]
    pub fn shown_below(&self, ino: InodeNo, nlink: u32, changed: Timestamp) -> Metadata {
        let (atime, mtime, ctime, btime) = (changed, changed, changed, self.btime);
        Metadata { ino, generation: 0, mode: self.mode & !0o222, nlink, atime, mtime, ctime, btime, ..*self }
    }

    /// The inode's generation: with the number it names a file for ever, on any volume that has this one's
    /// identity.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The type (`S_IFMT`), permission, setuid, setgid and sticky bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The permission, setuid, setgid and sticky bits alone (0o7777).
    pub fn permission_bits(&self) -> u32 {
        self.mode & MODE_PERMISSION_MASK
    }

    /// Names; of a directory 2 and one for each subdirectory.
    pub fn nlink(&self) -> u32 {
        self.nlink
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Device number, of a device.
    pub fn rdev(&self) -> u64 {
        self.rdev
    }

    /// The same as [`Metadata::len`].
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Allocated units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Last access, in seconds since the Unix epoch.
    pub fn atime(&self) -> i64 {
        self.atime.seconds()
    }

    /// Nanoseconds within that second.
    pub fn atime_nsec(&self) -> i64 {
        self.atime.nanos().into()
    }

    /// Last change of the contents, in seconds since the Unix epoch.
    pub fn mtime(&self) -> i64 {
        self.mtime.seconds()
    }

    /// Nanoseconds within that second.
    pub fn mtime_nsec(&self) -> i64 {
        self.mtime.nanos().into()
    }

    /// Last change of anything, in seconds since the Unix epoch.
    pub fn ctime(&self) -> i64 {
        self.ctime.seconds()
    }

    /// Nanoseconds within that second.
    pub fn ctime_nsec(&self) -> i64 {
        self.ctime.nanos().into()
    }

    /// Creation, in seconds since the Unix epoch.
    pub fn btime(&self) -> i64 {
        self.btime.seconds()
    }

    /// Nanoseconds within that second.
    pub fn btime_nsec(&self) -> i64 {
        self.btime.nanos().into()
    }
}

/// Times to set, as [`std::fs::FileTimes`]; a time that is not given stays as it is.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// use quire::FileTimes;
/// use std::time::{Duration, UNIX_EPOCH};
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let file = volume.create_file("old")?;
/// let then = UNIX_EPOCH + Duration::from_secs(86400);
/// file.set_times(FileTimes::new().set_modified(then))?;
/// assert_eq!(volume.metadata("old")?.modified(), then);
/// # drop(file);
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTimes {
    pub(crate) accessed: Option<SystemTime>,
    pub(crate) modified: Option<SystemTime>,
}

impl FileTimes {
    /// No times.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// Sets the last access.
    #[must_use]
    pub fn set_accessed(mut self, time: SystemTime) -> FileTimes {
        self.accessed = Some(time);
        self
    }

    /// Sets the last change of the contents.
    #[must_use]
    pub fn set_modified(mut self, time: SystemTime) -> FileTimes {
        self.modified = Some(time);
        self
    }
}
