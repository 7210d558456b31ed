//! Hard links.
//!
//! Protocol: as [`crate::namespace`] has it. A file made by `tmpfile` gets its first name here, and its
//! orphan slot back in the same transaction; an inode that has lost its last name gets none.
//!
//! Neighbours: [`super::tmpfile`], [`super::unlink`].

use super::directory::enter;
use super::entry::exists;
use super::records::Records;
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};
use quire_format::dirent::{self, Entry};
use quire_format::inode::{FileType, INODE_BYTES};
use quire_format::key::Key;

/// Bytes of the longest entry.
pub(crate) const ENTRY_BYTES_MAX: usize = 17 + dirent::NAME_MAX;

impl Engine {
    /// Gives an inode another name. Kinds: `Exists`, `NotPermitted` for a directory, `TooManyLinks`,
    /// `NotFound` for an inode that has been unlinked.
    pub(crate) fn link(
        self: &Arc<Engine>,
        inode: &InodeRef,
        directory: &InodeRef,
        name: &[u8],
    ) -> Result<()> {
        let _change = self.begin_change()?;
        directory.names()?;
        check_new_name(directory, name)?;
        self.retry_without_space(|| self.link_named(inode, directory, name))
    }

    fn link_named(self: &Arc<Engine>, inode: &InodeRef, directory: &InodeRef, name: &[u8]) -> Result<()> {
        let hash = self.store.name_hash(name);
        let _entered = enter(directory, hash)?;
        let cookie = self.store.search_entry(directory.number(), hash, name)?.vacant(directory, name)?;
        if inode.kind() == FileType::Directory {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                format!("inode {} is a directory: it has one name only", inode.number()),
            ));
        }

        // Entry, inode, orphan.
        let mut transaction = self.store.begin(Cost::new(3, INODE_BYTES + ENTRY_BYTES_MAX))?;
        let key = Key::entry(directory.number(), cookie);
        transaction.warm(&[key, Key::inode(inode.number())])?;
        let state = inode.meta().orphan;
        transaction.warm_orphan(inode.number(), state)?;
        let mut records = Records::lock(self, &[inode.arc()]);
        records.add_name(inode, &mut transaction)?;
        records.changes_names_of(directory);
        records.edit(inode).ctime = self.store.options.clock.now();
        let entry =
            Entry { inode: inode.number(), generation: inode.generation(), file_type: inode.kind(), name };
        transaction.put(key, &entry.encode());
        records.commit(transaction, Depends::Nothing)?;
        directory.touch_written();
        Ok(())
    }
}

/// Errors unless a new entry may have this name; `Exists` for those that every directory has.
pub(crate) fn check_new_name(directory: &InodeRef, name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") {
        return Err(exists(directory, name));
    }
    dirent::check_name(name)
}
