//! Files and directories by path, for programs that link Quire.
//!
//! Paths are bytes in the volume, from its root whether they begin with a slash or not; `.`, `..` and symbolic links
//! work as everywhere, and a chain of more than 40 links is an error of kind `Loop`. Nothing checks permissions: the
//! program is the owner of the volume.
//!
//! A [`File`] reads and writes at offsets given with each call, from any number of threads; it has no position of
//! its own. Each call is one operation: a reader sees a write, vectored ones included, entirely or not at all.
//!
//! Neighbours: [`crate::Volume`] below, which names inodes instead of paths.

use crate::attributes::{Attributes, SetAttributes};
use crate::file::IoFlags;
use crate::file::advice::Advice;
use crate::file::syncing::{SyncOptions, Syncing};
use crate::inode::InodeRef;
use crate::inodes::BufferDone;
use crate::namespace::{Caller, Create, RenameFlags};
use crate::volume::Volume;
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_device::AlignedBuf;
use quire_format::inode::FileType;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most symbolic links that one path may lead through.
pub const LINKS_FOLLOWED_MAX: usize = 40;

/// How a file is opened; as [`std::fs::OpenOptions`], with what else open(2) knows.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    mode: u32,
    owner: Caller,
    flags: IoFlags,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing asked for; a file that is created gets the mode 0o644, owner and group 0.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            mode: 0o644,
            owner: Caller::default(),
            flags: IoFlags::empty(),
        }
    }

    /// For reading.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// For writing.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// For writing, always at the end of the file, whatever the offset given.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.flags.set(IoFlags::APPEND, append);
        self
    }

    /// Make the file if there is none.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Make the file; an error of kind `Exists` if the name is taken, by a link too.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Cut the file to nothing.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Read and write past the cache (O_DIRECT).
    pub fn direct(&mut self, direct: bool) -> &mut OpenOptions {
        self.flags.set(IoFlags::DIRECT, direct);
        self
    }

    /// Every write is durable, with all attributes, when it returns (O_SYNC).
    pub fn sync(&mut self, sync: bool) -> &mut OpenOptions {
        self.flags.set(IoFlags::SYNC, sync);
        self
    }

    /// Every write is durable, as far as reading it back needs, when it returns (O_DSYNC).
    pub fn data_sync(&mut self, sync: bool) -> &mut OpenOptions {
        self.flags.set(IoFlags::DATASYNC, sync);
        self
    }

    /// Permission bits of a file that is created.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    /// Owner and group of a file that is created.
    pub fn owner(&mut self, uid: u32, gid: u32) -> &mut OpenOptions {
        self.owner = Caller { uid, gid };
        self
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
}

/// Where a path leads.
enum Place {
    /// An inode: the path ended in the root, in `.` or in `..`.
    Inode(InodeRef),
    /// A name in a directory, there or not.
    Name(InodeRef, Vec<u8>),
}

/// A path on its way through the volume.
struct Walk<'a> {
    volume: &'a Volume,
    at: InodeRef,
    ahead: VecDeque<Vec<u8>>,
    links: usize,
    /// The path, or the target of a link at its end, ends in a slash: it leads to a directory.
    to_directory: bool,
}

impl<'a> Walk<'a> {
    fn new(volume: &'a Volume, path: &Path) -> Result<Walk<'a>> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "an empty path"));
        }
        let mut walk = Walk {
            volume,
            at: volume.inodes().root(),
            ahead: VecDeque::new(),
            links: 0,
            to_directory: false,
        };
        walk.to_directory = path.ends_with(b"/");
        walk.put_ahead(path);
        Ok(walk)
    }

    fn put_ahead(&mut self, path: &[u8]) {
        for name in path.split(|&byte| byte == b'/').rev().filter(|name| !matches!(*name, b"" | b".")) {
            self.ahead.push_front(name.to_vec());
        }
    }

    fn follow(&mut self, link: &InodeRef) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_FOLLOWED_MAX {
            return Err(Error::new(
                ErrorKind::Loop,
                format!("the path leads through more than {LINKS_FOLLOWED_MAX} symbolic links"),
            ));
        }
        let target = self.volume.inodes().read_link(link)?;
        if target.starts_with(b"/") {
            self.at = self.volume.inodes().root();
        }
        if self.ahead.is_empty() {
            self.to_directory |= target.ends_with(b"/");
        }
        self.put_ahead(&target);
        Ok(())
    }

    /// Goes on to the last name. With `follow_last` a link that this name is, is followed too.
    fn last(&mut self, follow_last: bool) -> Result<Place> {
        while let Some(name) = self.ahead.pop_front() {
            if name == b".." {
                self.at = self.volume.inodes().lookup(&self.at, b"..")?;
                continue;
            }
            let is_last = self.ahead.is_empty();
            if is_last && !follow_last {
                return Ok(Place::Name(self.at.clone(), name));
            }
            match self.volume.inodes().lookup(&self.at, &name) {
                Ok(inode) if inode.kind() == FileType::Symlink => self.follow(&inode)?,
                Ok(_) if is_last => return Ok(Place::Name(self.at.clone(), name)),
                Ok(inode) => self.at = inode,
                Err(error) if is_last && error.kind() == ErrorKind::NotFound => {
                    return Ok(Place::Name(self.at.clone(), name));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Place::Inode(self.at.clone()))
    }

    fn inode(mut self, follow_last: bool) -> Result<InodeRef> {
        let inode = match self.last(follow_last || self.to_directory)? {
            Place::Inode(inode) => inode,
            Place::Name(directory, name) => self.volume.inodes().lookup(&directory, &name)?,
        };
        if self.to_directory && inode.kind() != FileType::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                "the path ends in a slash, but not in a directory",
            ));
        }
        Ok(inode)
    }

    /// The directory and the last name, for what makes, moves or removes that name. A slash behind it asks for a
    /// directory, if there is something.
    fn name(mut self) -> Result<(InodeRef, Vec<u8>)> {
        match self.last(false)? {
            Place::Name(directory, name) => {
                let found = if self.to_directory {
                    self.volume.inodes().lookup(&directory, &name).ok()
                } else {
                    None
                };
                if found.is_some_and(|inode| inode.kind() != FileType::Directory) {
                    return Err(Error::new(
                        ErrorKind::NotDirectory,
                        "the path ends in a slash, but in no directory",
                    ));
                }
                Ok((directory, name))
            }
            Place::Inode(_) => {
                Err(Error::new(ErrorKind::Busy, "the path ends in the root, in \".\" or in \"..\""))
            }
        }
    }
}

fn told<T>(result: Result<T>, doing: &str, path: &Path) -> Result<T> {
    result.map_err(|error| error.context(format!("{doing} {}", path.display())))
}

impl Volume {
    /// Opens a file, and makes it if the options say so. Directories are opened with [`Volume::open_directory`].
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        told(self.open_file_at(path, options), "opening", path)
    }

    fn open_file_at(&self, path: &Path, options: &OpenOptions) -> Result<File> {
        options.check()?;
        let mut walk = Walk::new(self, path)?;
        let place = walk.last(!options.create_new)?;
        if walk.to_directory {
            return Err(Error::new(
                ErrorKind::IsDirectory,
                "the path ends in a slash, as a directory's does",
            ));
        }
        let (inode, created) = match place {
            Place::Inode(inode) => (inode, false),
            Place::Name(directory, name) => self.open_name(&directory, &name, options)?,
        };
        match inode.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::new(ErrorKind::IsDirectory, "it is a directory")),
            kind => return Err(Error::invalid(format!("it is a {kind:?}, not a regular file"))),
        }
        if options.writes() {
            self.engine().check_writable()?;
        }
        let file = File {
            volume: self.clone(),
            inode,
            readable: options.read,
            writable: options.writes(),
            flags: options.flags,
        };
        if options.truncate && !created {
            self.inodes().set_len(&file.inode, 0)?;
        }
        Ok(file)
    }

    /// The inode of a name, made if need be; true if it was.
    fn open_name(
        &self,
        directory: &InodeRef,
        name: &[u8],
        options: &OpenOptions,
    ) -> Result<(InodeRef, bool)> {
        let create = Create { umask: 0, caller: options.owner, ..Create::file(options.mode) };
        if options.create_new {
            return self.inodes().create(directory, name, &create).map(|inode| (inode, true));
        }
        // Somebody may make or remove the name between the two steps; somebody who does so for ever is not served.
        for _ in 0..64 {
            match self.inodes().lookup(directory, name) {
                Ok(inode) => return Ok((inode, false)),
                Err(error) if error.kind() != ErrorKind::NotFound || !options.create => return Err(error),
                Err(_) => {}
            }
            match self.inodes().create(directory, name, &create) {
                Ok(inode) => return Ok((inode, true)),
                Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
                Err(_) => {}
            }
        }
        Err(Error::new(ErrorKind::Busy, "the name comes and goes too fast"))
    }

    /// Opens a directory.
    pub fn open_directory(&self, path: impl AsRef<Path>) -> Result<Directory> {
        let path = path.as_ref();
        let inode = told(Walk::new(self, path).and_then(|walk| walk.inode(true)), "opening", path)?;
        if inode.kind() != FileType::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                format!("{} is a {:?}", path.display(), inode.kind()),
            ));
        }
        Ok(Directory { volume: self.clone(), inode })
    }

    /// The inode that a path leads to; a link at its end is followed.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<InodeRef> {
        let path = path.as_ref();
        told(Walk::new(self, path).and_then(|walk| walk.inode(true)), "looking up", path)
    }

    /// What `stat` shows of what a path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        Ok(self.inodes().metadata(&self.resolve(path)?))
    }

    /// What `lstat` shows: of a link at the end of the path, the link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let path = path.as_ref();
        let inode = told(Walk::new(self, path).and_then(|walk| walk.inode(false)), "looking up", path)?;
        Ok(self.inodes().metadata(&inode))
    }

    /// Does `act` with the directory and the last name of a path.
    fn at_name<T>(
        &self,
        path: &Path,
        doing: &str,
        act: impl FnOnce(&InodeRef, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let done =
            Walk::new(self, path).and_then(Walk::name).and_then(|(directory, name)| act(&directory, &name));
        told(done, doing, path)
    }

    /// Makes a directory of mode 0o755.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let create = |directory: &InodeRef, name: &[u8]| {
            self.inodes().create(directory, name, &Create::directory(0o755))
        };
        match self.at_name(path, "making directory", create) {
            Ok(_) => Ok(()),
            // The root and what "." and ".." mean are there.
            Err(error) if error.kind() == ErrorKind::Busy => Err(error.with_kind(ErrorKind::Exists)),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory and those above it that are missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            match self.metadata(above) {
                Ok(found) if found.kind == FileType::Directory => break,
                Ok(_) => {
                    return Err(Error::new(
                        ErrorKind::NotDirectory,
                        format!("{} is no directory", above.display()),
                    ));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => missing.push(above),
                Err(error) => return Err(error),
            }
        }
        for path in missing.into_iter().rev() {
            match self.create_dir(path) {
                Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at_name(path.as_ref(), "removing directory", |directory, name| {
            self.inodes().remove_dir(directory, name)
        })
    }

    /// Removes a file's name, or a link.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at_name(path.as_ref(), "removing", |directory, name| self.inodes().remove_file(directory, name))
    }

    /// Renames, over what has the new name if that may be replaced.
    pub fn rename_path(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_path_with(from, to, RenameFlags::empty())
    }

    /// Renames as the flags say.
    pub fn rename_path_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.at_name(from, "renaming", |directory, name| {
            self.at_name(to, "to", |to_directory, to_name| {
                self.inodes().rename(directory, name, to_directory, to_name, flags)
            })
        })
    }

    /// Gives a file another name; a link at the end of `from` is not followed.
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = from.as_ref();
        let inode = told(Walk::new(self, from).and_then(|walk| walk.inode(false)), "linking", from)?;
        self.at_name(to.as_ref(), "linking as", |directory, name| {
            self.inodes().hard_link(&inode, directory, name)
        })
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    pub fn symlink_path(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.at_name(path.as_ref(), "making link", |directory, name| {
            self.inodes().symlink(directory, name, target, Caller::default()).map(drop)
        })
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let inode = Walk::new(self, path).and_then(|walk| walk.inode(false));
        told(inode.and_then(|inode| self.inodes().read_link(&inode)), "reading link", path)
    }

    /// What a directory holds, `.` and `..` left out, in the directory's own order.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirectoryItem>> {
        self.open_directory(path)?.entries()
    }

    /// A file's whole contents.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open_file(path, OpenOptions::new().read(true))?;
        let mut contents = Vec::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            let count = file.read_at(&mut piece, contents.len() as u64)?;
            if count == 0 {
                return Ok(contents);
            }
            contents.extend_from_slice(&piece[..count]);
        }
    }

    /// Replaces a file's contents, and makes it if there is none.
    pub fn write_file(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
        let file = self.open_file(path, OpenOptions::new().write(true).create(true).truncate(true))?;
        file.write_all_at(contents, 0)
    }
}

/// One line of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryItem {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// What it names.
    pub inode: InodeNo,
    /// That inode's type.
    pub kind: FileType,
}

/// An open directory: it lives while this does, removed or not.
#[derive(Clone, Debug)]
pub struct Directory {
    volume: Volume,
    inode: InodeRef,
}

impl Directory {
    /// Its inode, for the functions of [`Volume`] that take one.
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    /// What it holds, `.` and `..` left out.
    pub fn entries(&self) -> Result<Vec<DirectoryItem>> {
        let mut items = Vec::new();
        self.volume.inodes().read_dir(&self.inode, quire_format::dirent::COOKIE_DOT_DOT, &mut |entry| {
            items.push(DirectoryItem { name: entry.name.to_vec(), inode: entry.inode, kind: entry.kind });
            true
        })?;
        Ok(items)
    }

    /// What `stat` shows.
    pub fn metadata(&self) -> Attributes {
        self.volume.inodes().metadata(&self.inode)
    }

    /// Makes its entries durable.
    pub fn sync_all(&self) -> Result<()> {
        self.volume.inodes().fsync(&self.inode, false)
    }
}

/// An open file: it lives while this does, unlinked or not. Share it between threads by reference or in an `Arc`.
#[derive(Debug)]
pub struct File {
    volume: Volume,
    inode: InodeRef,
    readable: bool,
    writable: bool,
    flags: IoFlags,
}

impl File {
    /// Its inode, for the functions of [`Volume`] that take one.
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    fn check(&self, allowed: bool, what: &str) -> Result<()> {
        if !allowed {
            return Err(Error::new(ErrorKind::BadHandle, format!("the file was not opened for {what}")));
        }
        Ok(())
    }

    /// Reads at an offset in bytes; fewer than asked for at the end of the file, 0 behind it.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check(self.readable, "reading")?;
        self.volume.inodes().read_at(&self.inode, out, offset, self.flags - IoFlags::APPEND)
    }

    /// Reads past the cache without holding the caller; see [`Volume::read_direct_async`].
    pub fn read_direct_async(&self, buffer: AlignedBuf, offset: u64, done: BufferDone) {
        match self.check(self.readable, "reading") {
            Ok(()) => self.volume.inodes().read_direct_then(&self.inode, buffer, offset, done),
            Err(error) => done(buffer, Err(error)),
        }
    }

    /// Writes past the cache without holding the caller; see [`Volume::write_direct_async`].
    pub fn write_direct_async(&self, buffer: AlignedBuf, offset: u64, done: BufferDone) {
        match self.check(self.writable, "writing") {
            Ok(()) => self.volume.inodes().write_direct_then(&self.inode, buffer, offset, self.flags, done),
            Err(error) => done(buffer, Err(error)),
        }
    }

    /// Fills `out`; an error of kind `Range` if the file ends before.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read_at(&mut out[done..], offset + done as u64)? {
                0 => {
                    return Err(Error::new(
                        ErrorKind::Range,
                        format!("the file ends before offset {}", offset + out.len() as u64),
                    ));
                }
                count => done += count,
            }
        }
        Ok(())
    }

    /// Reads into several buffers as one operation.
    pub fn read_vectored_at(&self, out: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        if let [one] = out {
            return self.read_at(one, offset);
        }
        let mut whole = vec![0; total(out.iter().map(|buffer| buffer.len()))?];
        let count = self.read_at(&mut whole, offset)?;
        let mut rest = &whole[..count];
        for buffer in out {
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(count)
    }

    /// Writes at an offset in bytes (opened for appending: at the end); gives the count, which is short only after
    /// an error in the midst of a large write.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.check(self.writable, "writing")?;
        self.volume.inodes().write_at(&self.inode, data, offset, self.flags)
    }

    /// Writes all of `data`.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match self.write_at(&data[done..], offset + done as u64)? {
                0 => return Err(Error::new(ErrorKind::Io, "a write that wrote nothing")),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Writes several buffers as one operation.
    pub fn write_vectored_at(&self, data: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        if let [one] = data {
            return self.write_at(one, offset);
        }
        let mut whole = Vec::with_capacity(total(data.iter().map(|buffer| buffer.len()))?);
        for buffer in data {
            whole.extend_from_slice(buffer);
        }
        self.write_at(&whole, offset)
    }

    /// Appends; gives the offset that the data got. Appends of several threads never mix.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.check(self.writable, "writing")?;
        let (offset, count) = self.volume.inodes().append(&self.inode, data, self.flags)?;
        if count < data.len() {
            return Err(Error::new(
                ErrorKind::Io,
                format!("only {count} of {} bytes were appended", data.len()),
            ));
        }
        Ok(offset)
    }

    /// Makes contents, attributes and name durable (fsync).
    pub fn sync_all(&self) -> Result<()> {
        self.volume.inodes().fsync(&self.inode, false)
    }

    /// Makes the contents durable, and what reading them back needs (fdatasync).
    pub fn sync_data(&self) -> Result<()> {
        self.volume.inodes().fsync(&self.inode, true)
    }

    /// Makes durable what the options name, without holding the caller. The future needs no runtime; the file may be closed
    /// meanwhile.
    pub fn fsync_async(&self, how: &SyncOptions) -> Syncing {
        self.volume.inodes().fsync_async(&self.inode, how)
    }

    /// Takes advice about bytes `[offset, offset + len)` (posix_fadvise); a length of 0 means to the end.
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<()> {
        self.volume.inodes().advise(&self.inode, offset, len, advice)
    }

    /// Sets the size in bytes; what is gained reads as zeros.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check(self.writable, "writing")?;
        self.volume.inodes().set_len(&self.inode, size)
    }

    /// What `stat` shows.
    pub fn metadata(&self) -> Attributes {
        self.volume.inodes().metadata(&self.inode)
    }

    /// Changes attributes.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<Attributes> {
        self.volume.inodes().set_attributes(&self.inode, set)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Fails only on a thread that may not wait; such a one has no files of this kind.
        let _ = self.volume.inodes().closed(&self.inode, self.writable);
    }
}

fn total(mut lengths: impl Iterator<Item = usize>) -> Result<usize> {
    lengths
        .try_fold(0usize, usize::checked_add)
        .ok_or_else(|| Error::new(ErrorKind::Overflow, "the buffers are longer than memory"))
}
