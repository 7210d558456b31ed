//! Freeing inodes that have neither a name nor a user.
//!
//! Protocol. An inode whose last name goes while it has users is an orphan: its slot (or key) is journaled
//! with the link count. When the last user leaves, the reaper removes its extents from the end in bounded
//! transactions, then, in one transaction, what is left of it: attributes, link target, inode, orphan slot.
//! Each step can be cut off by a crash and taken up again, since the slot goes last.
//!
//! Invariants: an inode is freed once, by the one who set `freed` under its lock; no inode in use is freed.
//!
//! Neighbours: [`waiting`] keeps what is to be freed, [`after_crash`] finds what a crash left;
//! [`crate::store::orphan_slots`], [`crate::inode_table`]; `file::truncate` and `file::shift` free extents as
//! the reaper does.

mod after_crash;
mod queue;
mod recovered;
pub(crate) mod waiting;

use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::inode::Inode;
use crate::store::orphan_slots::OrphanState;
use crate::store::transaction::{Cost, Depends, Transaction};
use queue::Reaping;
use quire_base::patience;
use quire_base::shard;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::Duration;
use quire_base::{InodeNo, Result};
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use std::ops::{ControlFlow, Range};

/// Inodes that may wait in a shard's queue before its threads help the reaper: at least, and at most.
const BACKLOG: std::ops::RangeInclusive<usize> = 8..=256;
/// Blocks up to which an inode is freed by such help.
const SMALL_BLOCKS: u64 = 1024;
/// Keys that one transaction deletes at most.
const KEYS_PER_TRANSACTION: usize = 64;

impl Engine {
    /// Leaves an orphan to the background thread, or to the next step where there is none.
    pub(crate) fn reap_later(&self, number: InodeNo) {
        self.reaper.push(number);
    }

    /// Frees something small for a thread that is about to make an orphan, if its shard has left too much to
    /// the reaper: so the memory of what waits is bounded, and what is large keeps nobody but the reaper.
    pub(crate) fn help_reaper(self: &Arc<Engine>) {
        if !patience::may_wait() {
            return;
        }
        for _ in 0..2 {
            let Some(reaping) = self.reaper.take_excess(self.backlog_max()) else { return };
            let small = self
                .inodes
                .peek(reaping.number)
                .is_none_or(|inode| inode.meta().record.blocks <= SMALL_BLOCKS);
            if !small {
                self.reap_later(reaping.number);
                return;
            }
            self.reap_now(reaping);
        }
    }

    /// Inodes that may wait in a shard's queue: in all half of what there are slots for, so that those in use
    /// find some. A key in their place is a change of the tree more when it is claimed, and one more when it
    /// is released.
    fn backlog_max(&self) -> usize {
        let share = self.store.orphans.capacity() as usize / (2 * shard::SHARDS);
        share.clamp(*BACKLOG.start(), *BACKLOG.end())
    }

    /// Frees the next queued orphan, or queues one that a crash left. False if there was neither.
    pub(crate) fn reap_one(self: &Arc<Engine>) -> bool {
        let Some(reaping) = self.reaper.take() else { return self.adopt_one() };
        self.reap_now(reaping);
        true
    }

    fn reap_now(self: &Arc<Engine>, reaping: Reaping<'_>) {
        let number = reaping.number;
        if let Err(error) = self.reap(number) {
            // The slot stays: the next mount takes it up.
            tracing::warn!(%error, inode = %number, "an unlinked inode could not be freed yet");
            if let Some(inode) = self.inodes.peek(number)
                && self.store.failure().is_none()
            {
                inode.meta().freed = false;
                self.reaper.put_aside(number);
            }
        }
        drop(reaping);
        self.reaper.tell_drains();
    }

    fn reap(self: &Arc<Engine>, number: InodeNo) -> Result<()> {
        let Some(inode) = self.inodes.take_unused(number) else { return Ok(()) };
        if let Some(mapping) = inode.mapping.get() {
            // Nobody can read it any more: there is nothing to be kept should a later step fail.
            mapping.hold_writeback(0, u64::MAX).discard(0, u64::MAX);
        }
        self.free_extents_from(&inode, 0)?;
        self.free_keys(&inode)?;
        let _frees = self.store.frees.shared();
        let mut transaction = self.store.begin(Cost::new(4, 128).critical())?;
        transaction.warm(&[Key::inode(number)])?;
        // It stays: nobody else has the inode any more.
        let state = inode.meta().orphan;
        transaction.warm_orphan(number, state)?;
        let meta = inode.meta();
        transaction.delete(Key::inode(number));
        match meta.orphan {
            OrphanState::Slot(slot) => transaction.orphan_clear(Some(slot), number),
            OrphanState::Key => transaction.orphan_clear(None, number),
            OrphanState::Named => {}
        }
        transaction.commit(Depends::Nothing)?;
        drop(meta);
        self.inodes.remove(number);
        self.counters.orphans_freed.add(1);
        Ok(())
    }

    /// Removes every extent at and beyond a file block, from the end, in bounded transactions. The caller is
    /// the only one to use the inode, or holds its gate exclusively with the operation logged.
    pub(crate) fn free_extents_from(&self, inode: &Arc<Inode>, first: u64) -> Result<()> {
        while self.free_some_extents(inode, first, u64::MAX)? {}
        Ok(())
    }

    /// One bounded step of freeing `first..end`; false when nothing is left there.
    pub(crate) fn free_some_extents(&self, inode: &Arc<Inode>, first: u64, end: u64) -> Result<bool> {
        let cost = |extents| Cost::new(1, 128).with_extents(extents + 2).critical();
        // Before it knows what snapshots there are, and until it has freed.
        let _frees = self.store.frees.shared();
        let (transaction, batch) = self.store.begin_extents(cost)?;
        // `meta` is not held while the device is read.
        self.load_change(transaction.ticket(), inode, &(first..end), batch)?;
        self.free_extents(inode, first..end, batch, transaction)
    }

    /// Frees the first `extents_max` extents that a file has in a range of blocks; false if it has none
    /// there.
    pub(crate) fn free_extents(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        extents_max: usize,
        mut transaction: Transaction<'_>,
    ) -> Result<bool> {
        let mut meta = inode.meta();
        let found = self.store.extents_in(inode, blocks.start, blocks.end - blocks.start, extents_max)?;
        if found.is_empty() {
            return Ok(false);
        }
        let kept: Vec<Extent> = found
            .iter()
            .flat_map(|extent| [extent.clip(0, blocks.start), extent.clip(blocks.end, u64::MAX)])
            .flatten()
            .collect();
        let plan = Replacement::between(found, kept);
        let mut record = meta.record.clone();
        record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
        transaction.put_inode(inode.number, &record);
        self.change_extents(&mut transaction, inode, plan);
        self.store.commit_extents(inode, transaction, Depends::Nothing)?;
        meta.record = record;
        Ok(true)
    }

    /// Deletes an inode's attributes and link target in bounded transactions. The first of them also sets the
    /// record's count of attribute bytes to zero: from then on a part of them may be gone.
    fn free_keys(&self, inode: &Inode) -> Result<()> {
        loop {
            let mut keys = Vec::new();
            let (from, to) =
                (Key::symlink(inode.number, 0), Key::new(inode.number.0, KeyKind::Xattr, u64::MAX));
            self.store.tree.scan(from, to, &mut |key, _| {
                keys.push(key);
                if keys.len() < KEYS_PER_TRANSACTION {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            if keys.is_empty() {
                return Ok(());
            }
            let _frees = self.store.frees.shared();
            let mut transaction = self.store.begin(Cost::new(keys.len() + 1, 128).critical())?;
            transaction.warm(&[Key::inode(inode.number)])?;
            transaction.warm(&keys)?;
            let mut meta = inode.meta();
            let record = InodeRecord { xattr_bytes: 0, ..meta.record.clone() };
            if meta.record.xattr_bytes != 0 {
                transaction.put_inode(inode.number, &record);
            }
            for key in keys {
                transaction.delete(key);
            }
            transaction.commit(Depends::Nothing)?;
            meta.record = record;
        }
    }

    /// Waits until every queued orphan is freed, or frees them here where no thread does.
    pub(crate) fn drain_reaper(self: &Arc<Engine>) {
        while self.reap_one() {}
        while !self.reaper.is_idle() && self.store.failure().is_none() {
            self.reaper.await_idle(Duration::from_millis(200));
            while self.reap_one() {}
        }
    }
}

impl crate::inode_table::InodeTable {
    /// An orphan without users, marked as being freed, so that nobody finds it again. `None` if it has a
    /// user, a name, or is being freed already.
    fn take_unused(&self, number: InodeNo) -> Option<Arc<Inode>> {
        let inode = self.peek(number)?;
        let mut meta = inode.meta();
        let unused = inode.users.load(Ordering::Acquire) == 0;
        if !unused || meta.freed || meta.orphan == OrphanState::Named || meta.record.nlink > 0 {
            return None;
        }
        meta.freed = true;
        drop(meta);
        Some(inode)
    }
}
