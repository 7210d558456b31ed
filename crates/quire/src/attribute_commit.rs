//! Journaling what inodes have in memory only: times that I/O left, and sizes that data written back has
//! earned.
//!
//! Protocol: the list of dirty inodes ([`crate::dirty_inodes`]) says which. Those that have something for the
//! journal now go into one transaction together, up to [`INODES_PER_TRANSACTION`], in the order of their
//! numbers; then every inode that was looked at is settled: it leaves the list, or stays for what it still
//! owes.
//!
//! Neighbours: [`crate::background`] calls this at each periodic commit, [`crate::file::fsync`] for the whole
//! volume.

use crate::dirty_inodes::Owes;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef, Meta};
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::{ErrorKind, Result};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;

/// Inodes whose records one transaction changes at most.
const INODES_PER_TRANSACTION: usize = 64;

impl Engine {
    /// Journals what is only in memory of every inode that is due; at [`Owes::Times`] also times that may
    /// stay in memory. Every inode is tried; the first error is told.
    pub(crate) fn journal_dirty_inodes(self: &Arc<Engine>, level: Owes) -> Result<()> {
        let mut outcome = Ok(());
        let mut batch: Vec<InodeRef> = Vec::new();
        for number in self.inodes.dirty.numbers(level) {
            // An inode that has been freed meanwhile owes nothing.
            let Some(inode) = self.inodes.enter(number) else { continue };
            self.counters.attribute_looks.add(1);
            if self.has_attributes_to_journal(&inode) {
                batch.push(inode);
            } else {
                self.settle_dirty(&inode);
            }
            if batch.len() == INODES_PER_TRANSACTION {
                outcome = outcome.and(self.journal_batch(std::mem::take(&mut batch)));
            }
        }
        outcome.and(self.journal_batch(batch))
    }

    fn journal_batch(&self, batch: Vec<InodeRef>) -> Result<()> {
        let mut outcome = self.journal_together(&batch);
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
            // A volume that is nearly full may have room for a smaller transaction.
            let each = batch.iter().map(|inode| self.journal_attributes(inode, false));
            outcome = each.fold(Ok(()), Result::and);
        }
        batch.iter().for_each(|inode| self.settle_dirty(inode));
        outcome
    }

    /// Puts the records of inodes, by ascending number, into one transaction.
    fn journal_together(&self, inodes: &[InodeRef]) -> Result<()> {
        if inodes.is_empty() {
            return Ok(());
        }
        let mut transaction = self.store.begin(Cost::new(inodes.len(), 128 * inodes.len()).critical())?;
        let keys: Vec<Key> = inodes.iter().map(|inode| Key::inode(inode.number())).collect();
        transaction.warm(&keys)?;
        let mut changed = Vec::with_capacity(inodes.len());
        for inode in inodes {
            let mut meta = inode.meta();
            if meta.freed {
                continue;
            }
            inode.fold_times(&mut meta);
            let record = self.earned_record(inode, &meta);
            let grew = record.size != meta.record.size;
            if grew || meta.dirty {
                transaction.put_inode(inode.number(), &record);
                changed.push((inode, meta, record, grew));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        let grown = changed.iter().filter(|(.., grew)| *grew).map(|(inode, ..)| inode.written());
        let depends = grown.max().unwrap_or(Depends::Nothing);
        let seq = transaction.commit(depends)?;
        for (inode, mut meta, record, grew) in changed {
            if grew {
                inode.committed_data(seq)
            } else {
                inode.committed(seq)
            }
            meta.record = record;
            meta.dirty = false;
        }
        Ok(())
    }

    /// An inode's record with the size that data written back has earned.
    pub(crate) fn earned_record(&self, inode: &Inode, meta: &Meta) -> InodeRecord {
        let mut record = meta.record.clone();
        if inode.mapping.get().is_some() && record.size < inode.size() {
            record.size = record.size.max(self.front(inode, meta, inode.size(), &[]));
        }
        record
    }

    /// Whether the journal can take something of the inode now.
    fn has_attributes_to_journal(&self, inode: &Inode) -> bool {
        let meta = inode.meta();
        !meta.freed
            && (meta.dirty || inode.has_times() || self.earned_record(inode, &meta).size != meta.record.size)
    }

    /// Takes an inode out of the list of dirty ones, unless it still owes something.
    pub(crate) fn settle_dirty(&self, inode: &Inode) {
        let meta = inode.meta();
        self.inodes.dirty.settle(inode.number, &inode.dirty, || self.owes(inode, &meta));
    }

    /// What an inode owes to the journal. A size that lags is due even where nothing can be done for it yet.
    /// So is an inode whose exclusive operation is under way: that drops dirty blocks before its record is in
    /// the journal.
    fn owes(&self, inode: &Inode, meta: &Meta) -> Owes {
        let lags = inode.kind == FileType::Regular && meta.record.size < inode.size();
        if meta.freed {
            Owes::Nothing
        } else if lags || inode.size_sequence.shared_view().is_none() {
            Owes::Due
        } else if meta.dirty || inode.has_times() {
            self.level_of_times()
        } else {
            Owes::Nothing
        }
    }

    /// What an inode owes that has only times in memory.
    pub(crate) fn level_of_times(&self) -> Owes {
        if self.store.options.lazy_times { Owes::Times } else { Owes::Due }
    }
}
