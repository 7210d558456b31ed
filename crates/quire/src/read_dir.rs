//! Listing a directory, a batch of entries at a time.
//!
//! Protocol: an iterator keeps the cookie of the last entry that it has read, so entries that come and go
//! meanwhile are listed or not, and all others once.
//!
//! Neighbours: `namespace::readdir` reads the batches.

use super::metadata::Metadata;
use crate::inode::InodeRef;
use crate::inodes::Inodes;
use quire_base::{Context, ErrorKind, InodeNo, Result};
use quire_format::dirent::COOKIE_DOT_DOT;
use quire_format::inode::FileType;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Entries that are read at once.
const BATCH_ENTRIES: usize = 128;

/// What the entries of a listing share.
struct Directory {
    inodes: Inodes,
    path: PathBuf,
}

/// The entries of a directory, without `.` and `..`, in the directory's own order; from
/// [`Volume::read_dir`](crate::Volume::read_dir).
///
/// Entries are read as they are asked for. The directory lives while this does, removed or not.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// volume.create_dir("a")?;
/// volume.write("b", "hello")?;
/// let mut bytes = 0;
/// for entry in volume.read_dir("/")? {
///     let entry = entry?;
///     if entry.file_type().is_file() {
///         bytes += entry.metadata()?.len();
///     }
/// }
/// assert_eq!(bytes, 5);
/// # volume.close()
/// # }
/// ```
pub struct ReadDir {
    directory: Arc<Directory>,
    inode: InodeRef,
    /// The last entry read.
    after: u64,
    batch: std::vec::IntoIter<DirEntry>,
    /// There is nothing behind the batch.
    ended: bool,
}

impl ReadDir {
    /// Lists the directory that `path` leads to.
    pub(crate) fn new(inodes: &Inodes, inode: InodeRef, path: &Path) -> Result<ReadDir> {
        let directory = Arc::new(Directory { inodes: inodes.clone(), path: path.to_owned() });
        let mut listing =
            ReadDir { directory, inode, after: COOKIE_DOT_DOT, batch: Vec::new().into_iter(), ended: false };
        listing.read_batch()?;
        Ok(listing)
    }

    fn read_batch(&mut self) -> Result<()> {
        let mut batch = Vec::new();
        let mut last = self.after;
        let read = self.directory.inodes.read_dir(&self.inode, self.after, &mut |entry| {
            last = entry.cookie;
            batch.push(DirEntry {
                directory: self.directory.clone(),
                name: OsString::from_vec(entry.name.to_vec()),
                ino: entry.inode,
                file_type: entry.kind,
            });
            batch.len() < BATCH_ENTRIES
        });
        self.after = last;
        self.ended = batch.len() < BATCH_ENTRIES;
        self.batch = batch.into_iter();
        read
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.len() == 0
            && !self.ended
            && let Err(error) = self.read_batch()
        {
            // It has been removed, so it has no entries.
            if error.kind() == ErrorKind::NotFound {
                return None;
            }
            let doing = format!("listing {}", self.directory.path.display());
            return Some(Err(error.context(doing)));
        }
        self.batch.next().map(Ok)
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadDir({:?})", self.directory.path)
    }
}

/// One entry of a directory; see [`ReadDir`].
#[derive(Clone)]
pub struct DirEntry {
    directory: Arc<Directory>,
    name: OsString,
    ino: InodeNo,
    file_type: FileType,
}

impl DirEntry {
    /// The name, without the directory.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    /// The path that was given to [`Volume::read_dir`](crate::Volume::read_dir), with the name.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// What it names. Costs nothing.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The number of the inode that it names. Costs nothing.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// What `lstat` shows of what it names; an error of kind `NotFound` if that is gone.
    pub fn metadata(&self) -> Result<Metadata> {
        let inodes = &self.directory.inodes;
        let found = inodes.get(self.ino).map(|inode| inodes.metadata(&inode));
        let found = found.map_err(|error| match error.kind() {
            ErrorKind::Stale => error.with_kind(ErrorKind::NotFound),
            _ => error,
        });
        found.context(format_args!("looking at {}", self.path().display()))
    }
}

impl std::fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirEntry({:?})", self.path())
    }
}
