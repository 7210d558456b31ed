//! Looking a name up.
//!
//! Protocol: read the entry without a lock, twice a look at the directory's moving word around it, then find
//! the inode. If a rename was under way, or the inode is not there, the name is read again under its bucket:
//! what is found then is true, or the volume is damaged.
//!
//! Neighbours: [`super::directory`] explains the moving word; [`super::entry`] reads.

use super::directory::{Glance, hold_bucket};
use super::entry::not_found;
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::{Context, Error, ErrorKind, InodeNo, Result};
use quire_format::dirent;
use quire_format::inode::FileType;

impl Engine {
    /// The inode that `name` names in a directory; `.` is the directory, `..` its parent (the root's is the
    /// root).
    ///
    /// Kinds: `NotFound`, `NotDirectory`, `NameTooLong`, `Invalid` for what cannot be a name, `Corrupt`.
    pub(crate) fn lookup(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.find(directory, name)?.ok_or_else(|| not_found(directory, name))
    }

    /// As [`Engine::lookup`], but `None` if the directory has no such name: an error costs its text.
    pub(crate) fn find(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        directory.names()?;
        match name {
            b"." => return Ok(Some(directory.clone())),
            b".." => return self.parent(directory).map(Some),
            _ => dirent::check_name(name)?,
        }
        match self.glance(directory, name)? {
            Some(answer) => Ok(answer),
            None => self.find_locked(directory, name),
        }
    }

    /// The parent of a directory.
    pub(crate) fn parent(self: &Arc<Engine>, directory: &InodeRef) -> Result<InodeRef> {
        let parent = InodeNo(directory.meta().record.parent);
        let parent = self.inode(parent).map_err(|error| match error.kind() {
            ErrorKind::Stale => Error::new(
                ErrorKind::NotFound,
                format!("directory {} has been removed, and so has its parent", directory.number()),
            ),
            _ => error,
        })?;
        if parent.kind() != FileType::Directory {
            return Err(Error::corrupt(format!(
                "the parent of directory {} is inode {}, a {:?}; see: quire fsck",
                directory.number(),
                parent.number(),
                parent.kind()
            )));
        }
        Ok(parent)
    }

    /// The inode of a name, read without locks: `Some(None)` if there is none, `None` if the look was
    /// disturbed.
    fn glance(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<Option<Option<InodeRef>>> {
        let glance = Glance::at(directory);
        let search = self.store.search_entry(directory.number(), self.store.name_hash(name), name)?;
        if !glance.held_still() {
            return Ok(None);
        }
        let Some(found) = search.found else { return Ok(Some(None)) };
        match self.named_inode(&found) {
            Ok(inode) => Ok(Some(Some(inode))),
            Err(error) if error.kind() == ErrorKind::Stale => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn find_locked(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        let hash = self.store.name_hash(name);
        let _bucket = hold_bucket(directory, hash)?;
        let search = self.store.search_entry(directory.number(), hash, name)?;
        let Some(found) = search.found else { return Ok(None) };
        self.entry_inode(directory, name, &found).context("looking a name up").map(Some)
    }
}
