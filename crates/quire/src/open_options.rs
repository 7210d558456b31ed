//! How a file is opened.
//!
//! Neighbours: [`super::walk`] finds the place; [`crate::File`] is what comes out.

use super::walk::{Place, Purpose, Walk, no_directory, with_path};
use crate::file_handle::File;
use crate::inode::InodeRef;
use crate::inodes::{Caller, Create, IoFlags};
use crate::volume::Volume;
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::FileType;
use quire_format::properties::Properties;
use std::path::Path;

/// How a file is opened: as [`std::fs::OpenOptions`], with what else open(2) knows.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// use quire::OpenOptions;
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let log = OpenOptions::new().read(true).append(true).create(true).open(&volume, "log")?;
/// assert_eq!(log.append(b"first\n")?, 0);
/// assert_eq!(log.append(b"second\n")?, 6);
/// # drop(log);
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    mode: u32,
    owner: Caller,
    properties: Option<Properties>,
    flags: IoFlags,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing asked for; a file that is created gets the mode 0o644, owner and group 0.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            mode: 0o644,
            owner: Caller { uid: 0, gid: 0 },
            properties: None,
            flags: IoFlags::empty(),
        }
    }

    /// For reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> OpenOptions {
        self.read = read;
        self
    }

    /// For writing.
    #[must_use]
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// For writing, always at the end of the file, whatever the offset given.
    #[must_use]
    pub fn append(mut self, append: bool) -> OpenOptions {
        self.flags.set(IoFlags::APPEND, append);
        self
    }

    /// Create the file if there is none.
    #[must_use]
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Create the file; an error of kind `Exists` if the name is taken, by a link too.
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Cut the file to nothing.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Read and write past the cache (O_DIRECT).
    #[must_use]
    pub fn direct(mut self, direct: bool) -> OpenOptions {
        self.flags.set(IoFlags::DIRECT, direct);
        self
    }

    /// Every write is durable, with all attributes, when it returns (O_SYNC).
    #[must_use]
    pub fn sync(mut self, sync: bool) -> OpenOptions {
        self.flags.set(IoFlags::SYNC, sync);
        self
    }

    /// Every write is durable, as far as reading it back needs, when it returns (O_DSYNC).
    #[must_use]
    pub fn data_sync(mut self, sync: bool) -> OpenOptions {
        self.flags.set(IoFlags::DATASYNC, sync);
        self
    }

    /// Permission bits of a file that is created.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> OpenOptions {
        self.mode = mode;
        self
    }

    /// Owner and group of a file that is created.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> OpenOptions {
        self.owner = Caller { uid, gid };
        self
    }

    /// Properties of a file that is created, in place of those of its directory.
    #[must_use]
    pub fn properties(mut self, properties: Properties) -> OpenOptions {
        self.properties = Some(properties);
        self
    }

    /// Opens the file that `path` leads to.
    ///
    /// A directory may be opened for reading, for the sake of [`File::sync_all`] and its attributes; anything
    /// that is neither file nor directory is an error of kind `Invalid`, and so are options that contradict
    /// each other.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        with_path(self.open_at(volume, path), "opening", path)
    }

    fn writes(&self) -> bool {
        self.write || self.flags.contains(IoFlags::APPEND)
    }

    fn check(&self) -> Result<()> {
        if !self.read && !self.writes() {
            return Err(Error::invalid("a file is opened for reading, writing or appending"));
        }
        if (self.create || self.create_new || self.truncate) && !self.writes() {
            return Err(Error::invalid("a file that is created or truncated is opened for writing"));
        }
        if self.truncate && self.flags.contains(IoFlags::APPEND) && !self.create_new {
            return Err(Error::invalid("a file is opened for appending, or truncated"));
        }
        Ok(())
    }

    fn open_at(&self, volume: &Volume, path: &Path) -> Result<File> {
        self.check()?;
        let mut walk = Walk::new(volume.inodes(), path)?;
        let place = walk.last(!self.create_new)?;
        let to_directory = walk.to_directory;
        match &place {
            Place::Inode(_) if self.create_new => {
                return Err(walk.no_name(Purpose::New { directory: false }));
            }
            Place::Name(_, _, None) if walk.ends_in_dot && (self.create || self.create_new) => {
                return Err(no_directory(ErrorKind::NotFound));
            }
            _ => {}
        }
        if to_directory && (self.create || self.create_new) {
            return Err(Error::new(
                ErrorKind::IsDirectory,
                "no file is created under a path that ends in a slash",
            ));
        }
        let (inode, created) = match place {
            Place::Inode(inode) | Place::Name(_, _, Some(inode)) => (inode, false),
            Place::Name(directory, name, None) if to_directory => {
                (volume.inodes().lookup(&directory, &name)?, false)
            }
            Place::Name(directory, name, None) => self.open_name(volume, &directory, &name)?,
        };
        match inode.kind() {
            FileType::Regular if to_directory => {
                return Err(Error::new(ErrorKind::NotDirectory, "the path ends in a slash, but in a file"));
            }
            FileType::Regular => {}
            FileType::Directory if !self.writes() => {}
            FileType::Directory => return Err(Error::new(ErrorKind::IsDirectory, "it is a directory")),
            kind => return Err(Error::invalid(format!("it is a {kind:?}, not a regular file"))),
        }
        if self.writes() {
            volume.engine().store.check_writable()?;
        }
        let file = File::new(volume.inodes().clone(), inode, self.read, self.writes(), self.flags);
        if self.truncate && !created {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// The inode of a name, created if need be; true if it was.
    fn open_name(&self, volume: &Volume, directory: &InodeRef, name: &[u8]) -> Result<(InodeRef, bool)> {
        let inodes = volume.inodes();
        let create = Create { caller: self.owner, properties: self.properties, ..Create::file(self.mode) };
        if self.create_new {
            return inodes.create(directory, name, &create).map(|inode| (inode, true));
        }
        // Another thread may create or remove the name between the two steps, but not for ever.
        for _ in 0..64 {
            match inodes.lookup(directory, name) {
                Ok(inode) => return Ok((inode, false)),
                Err(error) if error.kind() != ErrorKind::NotFound || !self.create => return Err(error),
                Err(_) => {}
            }
            match inodes.create(directory, name, &create) {
                Ok(inode) => return Ok((inode, true)),
                Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
                Err(_) => {}
            }
        }
        Err(Error::new(ErrorKind::Busy, "other threads create and remove the name all the time"))
    }
}
