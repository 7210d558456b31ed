//! A file's extents: looking them up, and planning their replacement.
//!
//! Protocol. Extents live in the tree under (inode, Extent, first file block). A thread that changes them
//! holds the inode's `meta` from before it reads them until its transaction is applied, and makes
//! `extent_sequence` odd for the length of the apply. A look-up without that lock reads the sequence, scans,
//! reads the sequence again, and starts over if it was odd or has moved: a scan across a delete and an insert
//! would otherwise see a hole where there is none.
//!
//! Neighbours: `file/*` call this; `format::extent` does the arithmetic; [`crate::store::transaction`]
//! journals the result.

use crate::inode::Inode;
use crate::store::Store;
use crate::store::transaction::{Depends, Transaction};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::{Error, ErrorKind, Result, Seq};
use quire_format::extent::{Extent, carve, overlay};
use quire_format::key::Key;
use std::ops::ControlFlow;

/// The extents that a change takes out and puts in; equal ones are in neither list.
#[derive(Debug, Default)]
pub(crate) struct Replacement {
    pub(crate) removed: Vec<Extent>,
    pub(crate) inserted: Vec<Extent>,
}

impl Replacement {
    pub(crate) fn between(before: Vec<Extent>, after: Vec<Extent>) -> Replacement {
        let same = |extent: &Extent, list: &[Extent]| {
            list.binary_search_by_key(&extent.file_block, |other| other.file_block)
                .is_ok_and(|at| list[at] == *extent)
        };
        let removed = before.iter().filter(|extent| !same(extent, &after)).copied().collect();
        let inserted = after.iter().filter(|extent| !same(extent, &before)).copied().collect();
        Replacement { removed, inserted }
    }

    /// Blocks gained, by file: those mapped after and not before.
    pub(crate) fn blocks_gained(&self) -> i64 {
        let sum = |list: &[Extent]| list.iter().map(|extent| i64::from(extent.len)).sum::<i64>();
        sum(&self.inserted) - sum(&self.removed)
    }

    pub(crate) fn len(&self) -> usize {
        self.removed.len() + self.inserted.len()
    }
}

impl Store {
    /// The extents that cover any of `count` file blocks from `first`, whole, in order, at most `limit`. The
    /// caller holds `meta`, or validates by [`Inode::read_extents`].
    pub(crate) fn extents_in(
        &self,
        inode: &Inode,
        first: u64,
        count: u64,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        let end = first.saturating_add(count);
        let mut found = Vec::new();
        if count == 0 {
            return Ok(found);
        }
        let floor = Key::extent(inode.number, 0);
        if let Some((key, value)) = self.tree.last_at_or_before(Key::extent(inode.number, first), floor)? {
            let extent = self.checked_extent(inode, key, &value)?;
            if extent.file_end() > first {
                found.push(extent);
            }
        }
        let mut broken = Ok(());
        if found.len() < limit && first + 1 < end {
            let (from, to) = (Key::extent(inode.number, first + 1), Key::extent(inode.number, end - 1));
            self.tree.scan(from, to, &mut |key, value| match self.checked_extent(inode, key, value) {
                Ok(extent) if found.last().is_some_and(|last| last.file_end() > extent.file_block) => {
                    broken = Err(Error::corrupt(format!(
                        "inode {} has two extents for file block {} (see: quire fsck)",
                        inode.number, extent.file_block
                    )));
                    ControlFlow::Break(())
                }
                Ok(extent) => {
                    found.push(extent);
                    if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }
                Err(error) => {
                    broken = Err(error.context(format!("extents of inode {}", inode.number)));
                    ControlFlow::Break(())
                }
            })?;
        }
        broken.map(|()| found)
    }

    /// Loads what [`Store::extents_in`] reads; a ticket of the caller's keeps it in memory.
    fn load_extents(&self, inode: &Inode, first: u64, count: u64, limit: usize) -> Result<()> {
        let at = Key::extent(inode.number, first);
        self.tree.last_at_or_before(at, Key::extent(inode.number, 0))?;
        let last = Key::extent(inode.number, first.saturating_add(count).saturating_sub(1));
        let mut seen = 0;
        self.tree.scan(at, last, &mut |_, _| {
            seen += 1;
            if seen > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// An extent as it is in the tree, if it lies in the data space: an image is not trusted to keep files
    /// apart from the journal, the metadata pool's first chunks and the superblocks.
    fn checked_extent(&self, inode: &Inode, key: Key, value: &[u8]) -> Result<Extent> {
        let extent = Extent::decode(key.offset, value)?;
        if !self.may_hold_data(extent.run()) {
            return Err(Error::corrupt(format!(
                "inode {} has an extent at disk block {} outside of the data space (see: quire fsck)",
                inode.number, extent.disk_block
            )));
        }
        Ok(extent)
    }

    /// Plans laying `pieces` (sorted, apart) over an inode's extents and merging with what they touch. The
    /// caller holds `meta`.
    pub(crate) fn plan_overlay(&self, inode: &Inode, pieces: &[Extent]) -> Result<Replacement> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Ok(Replacement::default());
        };
        // One block more on either side finds the neighbours to merge with.
        let from = first.file_block.saturating_sub(1);
        let before = self.extents_in(inode, from, last.file_end() + 1 - from, usize::MAX)?;
        let after = overlay(&before, &self.snapshots.keep_births(&before, pieces));
        Ok(Replacement::between(before, after))
    }

    /// Plans taking parts of extents out of an inode, and laying `pieces` over what is left; both sorted and
    /// apart. The caller holds `meta`.
    pub(crate) fn plan_without(
        &self,
        inode: &Inode,
        gone: &[Extent],
        pieces: &[Extent],
    ) -> Result<Replacement> {
        if gone.is_empty() {
            return self.plan_overlay(inode, pieces);
        }
        let all = || gone.iter().chain(pieces);
        let from = all().map(|piece| piece.file_block).min().unwrap_or(0).saturating_sub(1);
        let end = all().map(Extent::file_end).max().unwrap_or(0);
        let before = self.extents_in(inode, from, end + 1 - from, usize::MAX)?;
        let mut kept = before.clone();
        for part in gone {
            kept = carve(&kept, part.file_block, part.file_end());
        }
        Ok(Replacement::between(before, overlay(&kept, pieces)))
    }

    /// Commits a transaction that changes an inode's extents; the caller holds `meta` and has put the changes
    /// in.
    pub(crate) fn commit_extents(
        &self,
        inode: &Inode,
        transaction: Transaction<'_>,
        depends: Depends,
    ) -> Result<Seq> {
        let seq = self.commit_extents_of(std::iter::once(inode), transaction, depends)?;
        inode.committed_data(seq);
        Ok(seq)
    }

    /// Commits a transaction that changes the extents of several inodes; the caller holds their `meta`, has
    /// put the changes in, and tells the inodes of the `Seq`.
    pub(crate) fn commit_extents_of<'a>(
        &self,
        inodes: impl Iterator<Item = &'a Inode> + Clone,
        transaction: Transaction<'_>,
        depends: Depends,
    ) -> Result<Seq> {
        // Odd from here to the end of the commit.
        let step_sequences = || {
            for inode in inodes.clone() {
                inode.extent_sequence.fetch_add(1, Ordering::AcqRel);
            }
        };
        step_sequences();
        let committed = transaction.commit(depends);
        step_sequences();
        committed
    }
}

impl Store {
    /// Runs `look` on the extents that cover any of `count` file blocks from `first`, with `meta` held. What
    /// is not in memory is loaded without it.
    pub(crate) fn with_extents<T>(
        &self,
        inode: &Inode,
        first: u64,
        count: u64,
        limit: usize,
        look: impl FnOnce(Vec<Extent>) -> Result<T>,
    ) -> Result<T> {
        let _ticket = self.tree.ticket();
        loop {
            let locked = inode.meta();
            match patience::at_once(|| self.extents_in(inode, first, count, limit)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    drop(locked);
                    patience::check("extents from the device")?;
                    self.load_extents(inode, first, count, limit)?;
                }
                Err(error) => return Err(error),
                Ok(extents) => return look(extents),
            }
        }
    }
}

impl Inode {
    /// A consistent look at the extents that cover any of `count` file blocks from `first`, without `meta`.
    pub(crate) fn read_extents(&self, first: u64, count: u64, limit: usize) -> Result<Vec<Extent>> {
        for _ in 0..64 {
            let sequence = self.extent_sequence.load(Ordering::Acquire);
            if sequence & 1 == 0 {
                let extents = self.engine.store.extents_in(self, first, count, limit);
                quire_base::sync::atomic::fence(Ordering::Acquire);
                if self.extent_sequence.load(Ordering::Relaxed) == sequence {
                    return extents;
                }
            } else {
                quire_base::sync::spin_loop();
            }
        }
        // Changes came faster than we could read: wait for them.
        self.engine.store.with_extents(self, first, count, limit, Ok)
    }
}
