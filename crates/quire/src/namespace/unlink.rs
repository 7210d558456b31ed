//! Taking names away: unlink and rmdir.
//!
//! Protocol: as [`crate::namespace`] has it. With its last name an inode becomes an orphan in the same
//! transaction; the reaper frees it when its last user leaves. A directory is removed with its liveness held
//! exclusively from before it is found empty until it is marked dead, so that nothing is created in it in
//! between.
//!
//! Neighbours: [`super::rename`] takes the replaced name away by the same rules.

use super::directory::{Doomed, enter};
use super::entry::{Found, shown};
use super::records::Records;
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};
use quire_format::dirent;
use quire_format::inode::{FileType, INODE_BYTES};
use quire_format::key::Key;

pub(crate) fn is_directory(directory: &InodeRef, name: &[u8]) -> Error {
    Error::new(
        ErrorKind::IsDirectory,
        format!("{:?} in directory {} is a directory", shown(name), directory.number()),
    )
}

pub(crate) fn not_directory(directory: &InodeRef, name: &[u8]) -> Error {
    Error::new(
        ErrorKind::NotDirectory,
        format!("{:?} in directory {} is not a directory", shown(name), directory.number()),
    )
}

impl Engine {
    /// Takes a name away from anything but a directory. Kinds: `NotFound`, `IsDirectory`.
    pub(crate) fn unlink(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<()> {
        let _change = self.begin_change()?;
        directory.names()?;
        dirent::check_name(name)?;
        self.help_reaper();
        let hash = self.store.name_hash(name);
        let _entered = enter(directory, hash)?;
        let found = self.store.search_entry(directory.number(), hash, name)?.required(directory, name)?;
        if found.kind == FileType::Directory {
            return Err(is_directory(directory, name));
        }
        let inode = self.entry_inode(directory, name, &found)?;

        // Entry, inode, orphan.
        let mut transaction = self.store.begin(Cost::new(3, INODE_BYTES).critical())?;
        let key = Key::entry(directory.number(), found.cookie);
        transaction.warm(&[key, Key::inode(inode.number())])?;
        transaction.warm_new_orphan(inode.number())?;
        let mut records = Records::lock(self, &[inode.arc()]);
        transaction.delete(key);
        records.changes_names_of(directory);
        if records.record(&inode).nlink <= 1 {
            records.make_orphan(&inode, &mut transaction);
        } else {
            records.add_links(&inode, -1)?;
        }
        records.edit(&inode).ctime = self.store.options.clock.now();
        records.commit(transaction, Depends::Nothing)?;
        directory.touch_written();
        Ok(())
    }

    /// Removes an empty directory. Kinds: `NotFound`, `NotDirectory`, `NotEmpty`.
    pub(crate) fn rmdir(self: &Arc<Engine>, directory: &InodeRef, name: &[u8]) -> Result<()> {
        let _change = self.begin_change()?;
        directory.names()?;
        match name {
            b".." => {
                return Err(Error::new(ErrorKind::NotEmpty, "\"..\" is not empty: it holds this directory"));
            }
            _ => dirent::check_name(name)?,
        }
        let hash = self.store.name_hash(name);
        let _entered = enter(directory, hash)?;
        let found = self.store.search_entry(directory.number(), hash, name)?.required(directory, name)?;
        if found.kind != FileType::Directory {
            return Err(not_directory(directory, name));
        }
        let child = self.entry_inode(directory, name, &found)?;
        let doomed = Doomed::hold(&child)?;
        self.store.check_empty(&child)?;
        self.remove_directory(directory, &found, &child)?;
        doomed.removed();
        Ok(())
    }

    fn remove_directory(
        self: &Arc<Engine>,
        directory: &InodeRef,
        found: &Found,
        child: &InodeRef,
    ) -> Result<()> {
        // Entry, both inodes, orphan.
        let mut transaction = self.store.begin(Cost::new(4, 2 * INODE_BYTES).critical())?;
        let key = Key::entry(directory.number(), found.cookie);
        transaction.warm(&[key, Key::inode(child.number()), Key::inode(directory.number())])?;
        transaction.warm_new_orphan(child.number())?;
        let mut records = Records::lock(self, &[directory.arc(), child.arc()]);
        let now = self.store.options.clock.now();
        records.add_links(directory, -1)?;
        let parent = records.edit(directory);
        (parent.mtime, parent.ctime) = (now, now);
        transaction.delete(key);
        records.make_orphan(child, &mut transaction);
        records.edit(child).ctime = now;
        records.commit(transaction, Depends::Nothing)?;
        Ok(())
    }
}
