//! Properties of files and directories: what a program asks of a file, kept in its inode's record.
//!
//! Protocol: a change is one transaction that journals the record with other flags, under the inode's `meta`.
//! A change of a regular file's `untorn` also has the file to itself: the gate is held exclusively, what is
//! dirty is written to its home first, the journal is forced before the gate opens, and only then does the
//! inode in memory have the new unit. So all that was written before the change is durable in its old form,
//! and all that is written after it has the new one. What an inode has is what its record says under `meta`;
//! of a directory memory has it too before `meta` is free again, of a file before the gate opens.
//!
//! A directory's properties are handed to the files and directories that are created in it
//! ([`crate::namespace::create`]). A change of them keeps creates out. A file that is renamed or linked keeps
//! its own.
//!
//! The same properties as extended attributes: [`attribute`].
//!
//! Neighbours: `format::properties` has the flags; [`crate::xattr`] asks here for names that begin with
//! `user.quire.`.

pub(crate) mod attribute;

use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::namespace::directory::hold_creates;
use crate::namespace::records::Records;
use crate::store::transaction::Cost;
use crate::xattr::XattrFlags;
use quire_base::patience;
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::{FileType, INODE_BYTES};
use quire_format::key::Key;
use quire_format::properties::{Properties, Unit};

/// Whether a type of inode has properties.
pub(crate) fn has_properties(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory)
}

/// An error if what changed is less than was promised, and may not be.
fn check_promise(inode: &Inode, before: Properties, after: Properties) -> Result<()> {
    let number = inode.number;
    let (Some(unit), true) = (before.untorn, after.untorn < before.untorn) else { return Ok(()) };
    Err(Error::new(
        ErrorKind::NotPermitted,
        format!(
            "inode {number} has untorn={unit}: only its owner and root may turn that off, or make it smaller"
        ),
    ))
}

impl Engine {
    /// Gives a file or directory other properties; see the module's documentation. Kinds: `Invalid` for
    /// anything else.
    pub(crate) fn change_properties(self: &Arc<Engine>, inode: &InodeRef, new: Properties) -> Result<()> {
        self.update_properties(inode, |_| Ok(new))
    }

    /// As [`Engine::change_properties`] by what `update` makes of those it has. It may be called several
    /// times.
    fn update_properties(
        self: &Arc<Engine>,
        inode: &InodeRef,
        update: impl Fn(Properties) -> Result<Properties>,
    ) -> Result<()> {
        let _change = self.begin_change()?;
        if !has_properties(inode.kind()) {
            return Err(Error::invalid(format!(
                "inode {} is a {:?}: only files and directories have properties",
                inode.number(),
                inode.kind()
            )));
        }
        self.retry_without_space(|| {
            let _alone = hold_creates(inode)?;
            if !self.put_properties(inode, &update, false)? {
                patience::check("the file to be written back")?;
                self.exclusively(inode, || {
                    if let Some(mapping) = inode.mapping.get() {
                        mapping.write_back(0, u64::MAX)?;
                    }
                    self.put_properties(inode, &update, true)
                })?;
            }
            Ok(())
        })
    }

    /// An error if the journal has no room for a record with all blocks of such a unit.
    pub(crate) fn check_unit(&self, unit: Unit) -> Result<()> {
        let most = self.group_record_bytes();
        if unit.bytes() > most {
            return Err(Error::invalid(format!(
                "a unit of {unit}: the journal of this volume takes units of {} KiB at most (see: quire resize --journal-size)",
                most / 1024
            )));
        }
        Ok(())
    }

    /// Journals what `update` says. False, and nothing has changed, if a file's `untorn` would change and
    /// the caller does not have the file to itself.
    fn put_properties(
        &self,
        inode: &InodeRef,
        update: &impl Fn(Properties) -> Result<Properties>,
        exclusive: bool,
    ) -> Result<bool> {
        let transaction = self.store.begin(Cost::new(1, INODE_BYTES))?;
        transaction.warm(&[Key::inode(inode.number())])?;
        let mut records = Records::lock(self, &[inode.arc()]);
        let before = Properties::of_flags(records.record(inode).flags)?;
        let after = update(before)?;
        if let Some(unit) = after.untorn
            && after.untorn != before.untorn
        {
            self.check_unit(unit)?;
        }
        let is_file = inode.kind() == FileType::Regular;
        // In memory there is still another one while the file changes it.
        let unit_changes = after.untorn != before.untorn || after.untorn != inode.properties().untorn;
        if unit_changes && is_file && !exclusive {
            return Ok(false);
        }
        if after == before && !unit_changes {
            return Ok(true);
        }
        let record = records.edit(inode);
        record.flags = after.put_into(record.flags);
        record.ctime = self.store.options.clock.now();
        if exclusive {
            // All of it has been written back, and nobody can have written since.
            record.size = inode.size();
        }
        let seq = records.commit(transaction, inode.written())?;
        if exclusive {
            inode.committed_data(seq);
        }
        if unit_changes && is_file {
            self.store.force(seq)?;
            inode.set_unit(after.untorn);
            if let Some(mapping) = inode.mapping.get() {
                // What has begun to be gathered in the old units ends before anybody writes.
                drop(mapping.hold_writeback(0, u64::MAX));
            }
        }
        tell(inode, before.untorn, after.untorn);
        if after.cache_drop
            && let Some(mapping) = inode.mapping.get()
        {
            mapping.drop_behind(0, u64::MAX);
        }
        Ok(true)
    }
}

/// Notes in the log when a promise ends.
fn tell(inode: &Inode, before: Option<Unit>, after: Option<Unit>) {
    if let (Some(unit), true) = (before, after < before) {
        let now = after.map_or_else(|| "off".to_owned(), |unit| unit.to_string());
        tracing::warn!(
            "inode {} had untorn={unit} and has untorn={now} now: a crash may leave larger units in part",
            inode.number
        );
    }
}

impl Engine {
    /// Sets a property as an extended attribute, or with no value takes it away.
    pub(crate) fn set_property(
        self: &Arc<Engine>,
        inode: &InodeRef,
        property: attribute::Property,
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        self.update_properties(inode, |before| {
            let is_set = property.value(before).is_some();
            let described = || format!("inode {} and {}", inode.number(), property.name().escape_ascii());
            if is_set && flags.contains(XattrFlags::CREATE) {
                return Err(Error::new(ErrorKind::Exists, format!("{}: it is set", described())));
            }
            if !is_set && flags.contains(XattrFlags::REPLACE) {
                return Err(Error::new(ErrorKind::NoAttribute, format!("{}: it is not set", described())));
            }
            let after = property.put(before, value)?;
            if flags.contains(XattrFlags::KEEP_UNTORN) {
                check_promise(inode, before, after)?;
            }
            Ok(after)
        })
    }
}
