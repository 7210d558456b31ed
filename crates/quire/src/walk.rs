//! The way of a path through a volume.
//!
//! Paths are bytes, from the root of the volume whether they begin with a slash or not; `.`, `..` and
//! symbolic links work as everywhere, and a chain of more than [`LINKS_FOLLOWED_MAX`] links is an error of
//! kind `Loop`.
//!
//! Neighbours: `paths` and `open_options` walk; [`Inodes`] looks names up.

use crate::inode::InodeRef;
use crate::inodes::Inodes;
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::FileType;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names what was being done, and to what.
pub(super) fn with_path<T>(result: Result<T>, doing: &str, path: &Path) -> Result<T> {
    result.map_err(|error| error.context(format_args!("{doing} {}", path.display())))
}

/// The most symbolic links that one path may lead through.
const LINKS_FOLLOWED_MAX: usize = 40;

/// The error for a path that asks for a directory where none is.
pub(super) fn no_directory(kind: ErrorKind) -> Error {
    Error::new(kind, "the path asks for a directory, and leads to none")
}

/// Where a path leads.
pub(super) enum Place {
    /// An inode: the path ended in the root, in `.` or in `..`.
    Inode(InodeRef),
    /// A name in a directory, there or not; and what it names, if the walk has looked and found something.
    Name(InodeRef, Vec<u8>, Option<InodeRef>),
}

/// What the last name of a path is for. It decides what a path means that ends in no name, or in a slash.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// A directory, or something else, is to be made under it.
    New {
        directory: bool,
    },
    RemoveFile,
    RemoveDirectory,
    /// It is to be renamed.
    From,
    /// A directory, or something else, is to be renamed to it.
    To {
        directory: bool,
    },
}

/// A path on its way through the volume.
pub(super) struct Walk<'a> {
    inodes: &'a Inodes,
    at: InodeRef,
    ahead: VecDeque<Vec<u8>>,
    links: usize,
    /// The path, or the target of a link at its end, ends in a slash or in `.`: it leads to a directory.
    pub(super) to_directory: bool,
    /// The path itself ends in `.`.
    pub(super) ends_in_dot: bool,
}

/// Whether a path asks for a directory, and whether it does so by a `.` at its end.
fn ending(path: &[u8]) -> (bool, bool) {
    let last = path.split(|&byte| byte == b'/').rfind(|name| !name.is_empty());
    let ends_in_dot = last == Some(b".");
    (ends_in_dot || path.ends_with(b"/"), ends_in_dot)
}

impl<'a> Walk<'a> {
    pub(super) fn new(inodes: &'a Inodes, path: &Path) -> Result<Walk<'a>> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "an empty path"));
        }
        let (to_directory, ends_in_dot) = ending(path);
        let (at, ahead) = (inodes.root(), VecDeque::new());
        let mut walk = Walk { inodes, at, ahead, links: 0, to_directory, ends_in_dot };
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
        let target = self.inodes.read_link(link)?;
        if target.starts_with(b"/") {
            self.at = self.inodes.root();
        }
        if self.ahead.is_empty() {
            self.to_directory |= ending(&target).0;
        }
        self.put_ahead(&target);
        Ok(())
    }

    /// Goes on to the last name. With `follow_last` a link that this name is, is followed too.
    pub(super) fn last(&mut self, follow_last: bool) -> Result<Place> {
        while let Some(name) = self.ahead.pop_front() {
            if name == b".." {
                self.at = self.inodes.lookup(&self.at, b"..")?;
                continue;
            }
            let is_last = self.ahead.is_empty();
            if is_last && !follow_last {
                return Ok(Place::Name(self.at.clone(), name, None));
            }
            let found = match is_last {
                true => self.inodes.find(&self.at, &name)?,
                false => Some(self.inodes.lookup(&self.at, &name)?),
            };
            match found {
                Some(inode) if inode.kind() == FileType::Symlink => self.follow(&inode)?,
                Some(inode) if !is_last => self.at = inode,
                found => return Ok(Place::Name(self.at.clone(), name, found)),
            }
        }
        Ok(Place::Inode(self.at.clone()))
    }

    pub(super) fn inode(mut self, follow_last: bool) -> Result<InodeRef> {
        let inode = match self.last(follow_last || self.to_directory)? {
            Place::Inode(inode) | Place::Name(_, _, Some(inode)) => inode,
            Place::Name(directory, name, None) => self.inodes.lookup(&directory, &name)?,
        };
        self.check_kind(inode)
    }

    /// As [`Walk::inode`] with the last link followed, but `None` if the last name is not there.
    pub(super) fn find(mut self) -> Result<Option<InodeRef>> {
        match self.last(true)? {
            Place::Inode(inode) | Place::Name(_, _, Some(inode)) => self.check_kind(inode).map(Some),
            Place::Name(_, _, None) => Ok(None),
        }
    }

    fn check_kind(&self, inode: InodeRef) -> Result<InodeRef> {
        match self.to_directory && inode.kind() != FileType::Directory {
            true => Err(no_directory(ErrorKind::NotDirectory)),
            false => Ok(inode),
        }
    }

    /// The directory and the last name, for what makes, moves or removes that name. A slash behind it asks
    /// for a directory: one that is there, or that is about to be made.
    pub(super) fn name(mut self, purpose: Purpose) -> Result<(InodeRef, Vec<u8>)> {
        let (directory, name) = match self.last(false)? {
            Place::Name(directory, name, _) => (directory, name),
            Place::Inode(_) => return Err(self.no_name(purpose)),
        };
        if !self.to_directory {
            return Ok((directory, name));
        }
        let kind = self.inodes.find(&directory, &name)?.map(|inode| inode.kind());
        Err(match (purpose, kind) {
            (Purpose::New { .. }, Some(_)) => Error::new(ErrorKind::Exists, "the name is taken"),
            (Purpose::To { directory: false }, Some(_)) => no_directory(ErrorKind::NotDirectory),
            (_, Some(FileType::Directory)) if self.ends_in_dot => self.no_name(purpose),
            (_, Some(FileType::Directory)) => return Ok((directory, name)),
            (_, Some(_)) => no_directory(ErrorKind::NotDirectory),
            (_, None) if self.ends_in_dot => no_directory(ErrorKind::NotFound),
            (Purpose::New { directory: false }, None) => no_directory(ErrorKind::NotFound),
            (Purpose::To { directory: false }, None) => no_directory(ErrorKind::NotDirectory),
            (_, None) => return Ok((directory, name)),
        })
    }

    /// The error for a path that ends in no name.
    pub(super) fn no_name(&self, purpose: Purpose) -> Error {
        let kind = match purpose {
            Purpose::New { .. } => ErrorKind::Exists,
            Purpose::RemoveFile => ErrorKind::IsDirectory,
            Purpose::RemoveDirectory if self.ends_in_dot => ErrorKind::Invalid,
            Purpose::RemoveDirectory | Purpose::From | Purpose::To { .. } => ErrorKind::Busy,
        };
        Error::new(kind, "the path ends in the root, in \".\" or in \"..\"")
    }
}
