//! Inode records that one transaction changes together.
//!
//! Protocol: lock the inodes (ascending, each once), edit copies of their records, commit. Only when the
//! commit has succeeded do the copies become the records in memory; if it fails, nothing has changed and an
//! orphan slot that was claimed on the way is given back. The fsync of every locked inode, and of every
//! directory whose names change, covers the transaction.
//!
//! Invariants: the locks are held from before the `Seq` until memory shows what was applied. A directory's
//! lock is not held where only its names change; so its fsync covers them before anybody can see them. The
//! caller has its reservation before it locks, and takes no outer lock afterwards.
//!
//! Neighbours: everything in [`crate::namespace`], [`crate::attributes`] and [`crate::xattr`].

use crate::engine::Engine;
use crate::inode::{Inode, MetaGuard};
use crate::store::orphan_slots::OrphanState;
use crate::store::transaction::{Depends, Transaction};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result, Seq};
use quire_format::inode::InodeRecord;

struct Locked<'a> {
    inode: &'a Arc<Inode>,
    meta: MetaGuard<'a>,
    edited: Option<InodeRecord>,
    orphan: Option<OrphanState>,
}

/// The most names an inode can have, or subdirectories a directory.
pub const LINKS_MAX: u32 = u32::MAX - 1;

/// Inode flag: made without a name by `tmpfile` and not linked yet, so that a link may still give it one. An
/// inode that lost its names does not get a new one.
pub const INODE_NEVER_NAMED: u32 = 1 << 0;

/// See the module's documentation.
pub(crate) struct Records<'a> {
    engine: &'a Engine,
    locked: Vec<Locked<'a>>,
    /// Directories whose names change.
    directories: Vec<&'a Inode>,
    /// A new inode.
    made: Option<&'a Inode>,
}

impl<'a> Records<'a> {
    /// Locks `inodes`, in any order and with repetitions, and takes the times that I/O left into their
    /// records.
    pub(crate) fn lock(engine: &'a Engine, inodes: &[&'a Arc<Inode>]) -> Records<'a> {
        let mut order = inodes.to_vec();
        order.sort_by_key(|inode| inode.number);
        order.dedup_by_key(|inode| inode.number);
        let lock = |inode: &'a Arc<Inode>| {
            let mut meta = inode.meta();
            inode.fold_times(&mut meta);
            Locked { inode, meta, edited: None, orphan: None }
        };
        let locked = order.into_iter().map(lock).collect();
        Records { engine, locked, directories: Vec::new(), made: None }
    }

    /// Names of this directory change.
    pub(super) fn changes_names_of(&mut self, directory: &'a Inode) {
        self.directories.push(directory);
    }

    /// A locked inode is new: it will be journaled as it is.
    pub(super) fn makes(&mut self, inode: &'a Inode) {
        self.edit(inode);
        self.made = Some(inode);
    }

    fn place(&self, inode: &Inode) -> usize {
        let found = self.locked.iter().position(|locked| locked.inode.number == inode.number);
        found.expect("only locked inodes are edited")
    }

    /// The record as this transaction leaves it so far.
    pub(crate) fn record(&self, inode: &Inode) -> &InodeRecord {
        let locked = &self.locked[self.place(inode)];
        locked.edited.as_ref().unwrap_or(&locked.meta.record)
    }

    /// The record, to be changed; it will be journaled.
    pub(crate) fn edit(&mut self, inode: &Inode) -> &mut InodeRecord {
        let at = self.place(inode);
        let locked = &mut self.locked[at];
        locked.edited.get_or_insert_with(|| locked.meta.record.clone())
    }

    /// The link count's change by `delta`, which must leave a possible number.
    pub(crate) fn add_links(&mut self, inode: &Inode, delta: i64) -> Result<()> {
        let links = i64::from(self.record(inode).nlink) + delta;
        if links < 1 {
            return Err(Error::corrupt(format!(
                "inode {} would have {links} links: its link count does not fit its names; see: quire fsck",
                inode.number
            )));
        }
        if links > i64::from(LINKS_MAX) {
            return Err(Error::new(
                ErrorKind::TooManyLinks,
                format!("inode {} already has {} links", inode.number, links - delta),
            ));
        }
        self.edit(inode).nlink = links as u32;
        Ok(())
    }

    /// Takes away the last name: no links are left, and an orphan slot (or key) says so.
    pub(crate) fn make_orphan(&mut self, inode: &Inode, transaction: &mut Transaction<'_>) {
        self.edit(inode).nlink = 0;
        let at = self.place(inode);
        let slot = self.engine.store.orphans.claim(inode.number);
        transaction.orphan_set(slot, inode.number);
        self.engine.counters.orphan_claims.add(1);
        self.locked[at].orphan = Some(slot.map_or(OrphanState::Key, OrphanState::Slot));
    }

    /// Gives an inode one more name, perhaps its first one. Kinds: `NotFound` if it has been unlinked.
    pub(crate) fn add_name(&mut self, inode: &Inode, transaction: &mut Transaction<'_>) -> Result<()> {
        let record = self.record(inode);
        if record.nlink == 0 {
            if record.flags & INODE_NEVER_NAMED == 0 {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("inode {} has been unlinked", inode.number),
                ));
            }
            self.clear_orphan(inode, transaction);
            self.edit(inode).flags &= !INODE_NEVER_NAMED;
        }
        self.add_links(inode, 1)
    }

    /// Gives back the slot of an inode that gets its first name.
    fn clear_orphan(&mut self, inode: &Inode, transaction: &mut Transaction<'_>) {
        let at = self.place(inode);
        match self.locked[at].meta.orphan {
            OrphanState::Named => return,
            OrphanState::Slot(slot) => transaction.orphan_clear(Some(slot), inode.number),
            OrphanState::Key => transaction.orphan_clear(None, inode.number),
        }
        self.locked[at].orphan = Some(OrphanState::Named);
    }

    /// Commits the edited records with whatever else the transaction holds, and unlocks.
    pub(crate) fn commit(mut self, mut transaction: Transaction<'_>, depends: Depends) -> Result<Seq> {
        for locked in &self.locked {
            if let Some(record) = &locked.edited {
                transaction.put_inode(locked.inode.number, record);
            }
        }
        let committed = transaction.commit_telling(depends, &mut |seq| {
            self.directories.iter().for_each(|directory| directory.committed(seq));
            if let Some(inode) = self.made {
                // There is nothing to read back of a new file whose record is lost: fdatasync covers it.
                inode.committed_data(seq);
            }
        });
        for locked in &mut self.locked {
            match &committed {
                Ok(seq) => locked.publish(*seq),
                Err(_) => {
                    if let Some(OrphanState::Slot(slot)) = locked.orphan {
                        self.engine.store.orphans.cancel(slot);
                    }
                }
            }
        }
        committed
    }
}

impl Locked<'_> {
    fn publish(&mut self, seq: Seq) {
        if let Some(record) = self.edited.take() {
            self.inode.publish(&record);
            self.meta.record = record;
            self.meta.dirty = false;
        }
        if let Some(orphan) = self.orphan.take() {
            self.meta.orphan = orphan;
        }
        self.inode.committed(seq);
    }
}
