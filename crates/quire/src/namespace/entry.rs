//! Directory entries in the tree: finding one by name, and a place for a new one.
//!
//! A name's entry has a cookie among those of its hash. All of them are read to find the name; nearly always
//! there is one or none. A new entry takes the lowest free disambiguator, for good.
//!
//! Invariants: the caller holds the name's bucket where it acts on what it found.
//!
//! Neighbours: `format::dirent` has the bytes.

use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::store::Store;
use quire_base::sync::Arc;
use quire_base::{Context, Error, ErrorKind, InodeNo, Result};
use quire_format::dirent::{self, DISAMBIGUATOR_MAX, Entry};
use quire_format::inode::FileType;
use quire_format::key::Key;
use std::ops::ControlFlow;

/// An entry that was found; its name is known to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) cookie: u64,
    pub(crate) inode: InodeNo,
    pub(crate) generation: u64,
    pub(crate) kind: FileType,
}

/// What looking for a name gave.
#[derive(Debug)]
pub(crate) struct Search {
    hash: u64,
    pub(crate) found: Option<Found>,
    /// The lowest free disambiguator, if the name was not found and one is left.
    free: Option<u16>,
}

impl Search {
    /// The entry, or an error that says there is none.
    pub(crate) fn required(&self, directory: &InodeRef, name: &[u8]) -> Result<Found> {
        self.found.ok_or_else(|| not_found(directory, name))
    }

    /// The cookie that a new entry of this name takes, or an error that says that the name is taken.
    pub(crate) fn vacant(&self, directory: &InodeRef, name: &[u8]) -> Result<u64> {
        if self.found.is_some() {
            return Err(exists(directory, name));
        }
        let free = self.free.ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                format!("directory {} is full of names of one hash", directory.number()),
            )
        })?;
        Ok(dirent::cookie(self.hash, free))
    }
}

/// A name as an error message shows it.
pub(crate) fn shown(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}

pub(crate) fn not_found(directory: &InodeRef, name: &[u8]) -> Error {
    Error::new(ErrorKind::NotFound, format!("no {:?} in directory {}", shown(name), directory.number()))
}

pub(crate) fn exists(directory: &InodeRef, name: &[u8]) -> Error {
    Error::new(ErrorKind::Exists, format!("{:?} exists in directory {}", shown(name), directory.number()))
}

/// Entries in the tree.
impl Store {
    /// The hash that a name has on this volume.
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        dirent::name_hash(self.superblock.hash_seed, name)
    }

    /// Looks for a name in the tree.
    pub(crate) fn search_entry(&self, directory: InodeNo, hash: u64, name: &[u8]) -> Result<Search> {
        let (first, last) = dirent::cookies_of_hash(hash);
        let mut search = Search { hash, found: None, free: None };
        let mut next = 0u32;
        let mut broken = Ok(());
        self.tree.scan(Key::entry(directory, first), Key::entry(directory, last), &mut |key, value| {
            match Entry::decode(value) {
                Ok(entry) if entry.name == name => {
                    search.found = Some(Found {
                        cookie: key.offset,
                        inode: entry.inode,
                        generation: entry.generation,
                        kind: entry.file_type,
                    });
                    ControlFlow::Break(())
                }
                Ok(_) => {
                    let (_, disambiguator) = dirent::split_cookie(key.offset);
                    if u32::from(disambiguator) == next {
                        next += 1;
                    }
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    broken = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        broken.context(format_args!("directory {directory}"))?;
        search.free = u16::try_from(next).ok().filter(|&free| free <= DISAMBIGUATOR_MAX);
        Ok(search)
    }

    /// Errors unless a directory, whose liveness the caller holds exclusively, has no entries.
    pub(crate) fn check_empty(&self, directory: &InodeRef) -> Result<()> {
        let number = directory.number();
        let mut empty = true;
        self.tree.scan(Key::entry(number, 0), Key::entry(number, u64::MAX), &mut |_, _| {
            empty = false;
            ControlFlow::Break(())
        })?;
        if !empty {
            return Err(Error::new(ErrorKind::NotEmpty, format!("directory {number} is not empty")));
        }
        Ok(())
    }
}

impl Engine {
    /// The inode that an entry names. Kind `Stale` if there is none: the entry went meanwhile, or, if the
    /// caller holds its bucket, the volume is damaged; see [`Engine::entry_inode`].
    pub(crate) fn named_inode(self: &Arc<Engine>, found: &Found) -> Result<InodeRef> {
        let inode = self.inode(found.inode)?;
        if inode.generation() != found.generation || inode.kind() != found.kind {
            return Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "the entry is for a {:?} of generation {}, the inode is a {:?} of generation {}",
                    found.kind,
                    found.generation,
                    inode.kind(),
                    inode.generation()
                ),
            ));
        }
        Ok(inode)
    }

    /// The inode of an entry whose bucket the caller holds.
    pub(crate) fn entry_inode(
        self: &Arc<Engine>,
        directory: &InodeRef,
        name: &[u8],
        found: &Found,
    ) -> Result<InodeRef> {
        let inode = self.named_inode(found).map_err(|error| match error.kind() {
            ErrorKind::Stale => error.with_kind(ErrorKind::Corrupt).context(format!(
                "directory {} names inode {} {:?}, but that inode is not there; see: quire fsck",
                directory.number(),
                found.inode,
                shown(name)
            )),
            _ => error,
        })?;
        // A thread that removed it would wait for its own lock.
        if inode.number() == directory.number() {
            return Err(Error::corrupt(format!(
                "directory {} names itself {:?}; see: quire fsck",
                directory.number(),
                shown(name)
            )));
        }
        Ok(inode)
    }
}
