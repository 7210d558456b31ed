//! Operations that move or free blocks of files, or leave their newest content elsewhere.
//!
//! Two lines of defence. An operation recalls leases and waits for them *where it holds nothing*: neither
//! gate nor lock, and no admission either, so that a freeze or a snapshot that comes meanwhile waits for
//! nobody ([`Moving`]). Whatever then changes extents or records content goes through
//! [`Engine::change_extents`] or [`Engine::revoke_recorded`], which revoke at once what is still there. So no
//! path can be forgotten: at worst a lease is revoked without a recall. That happens to a lease that is asked
//! for at the moment in which a write or a commit of a group begins, which do not look again under the gate.
//! Operations that have a file to themselves do ([`Engine::exclusively_moving`]).
//!
//! Neighbours: [`super::table`] is the protocol.

use super::table::Bar;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::gate::GateState;
use crate::inode::{Inode, InodeRef};
use crate::store::transaction::Transaction;
use quire_base::admission::Admitted;
use quire_base::sync::time::Instant;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result, patience};
use quire_format::extent::FILE_BLOCKS_MAX;
use std::ops::Range;

/// An operation under way that may move blocks: admitted as a change, with the bars that it has put up.
pub(crate) struct Moving<'a> {
    engine: &'a Engine,
    /// None only while it waits for leases.
    change: Option<Admitted<'a>>,
    bars: Vec<Bar<'a>>,
}

impl Moving<'_> {
    /// Recalls the leases of these blocks and waits for them. The caller holds nothing else.
    fn recall<'i>(&mut self, files: impl IntoIterator<Item = (&'i Inode, Range<u64>)>) -> Result<()> {
        self.change = None;
        self.engine.recall(files, &mut self.bars)?;
        self.change = Some(self.engine.begin_change()?);
        Ok(())
    }
}

impl Engine {
    /// As [`Engine::begin_change`], for an operation that may move blocks.
    pub(crate) fn begin_moving(&self) -> Result<Moving<'_>> {
        Ok(Moving { engine: self, change: Some(self.begin_change()?), bars: Vec::new() })
    }

    fn recall<'a, 'i>(
        &'a self,
        files: impl IntoIterator<Item = (&'i Inode, Range<u64>)>,
        bars: &mut Vec<Bar<'a>>,
    ) -> Result<()> {
        patience::check("leases of the file's layout to be returned")?;
        let until = Instant::now() + self.store.options.lease_recall_time;
        // All are recalled before the first is waited for.
        let files: Vec<_> = files
            .into_iter()
            .map(|(inode, blocks)| (inode, self.leases.bar(inode.number.0, blocks)))
            .collect();
        for (inode, bar) in files {
            bar.await_returned(&inode.marks, until);
            bars.push(bar);
        }
        Ok(())
    }

    /// Runs an operation that has the file to itself, and moves `blocks` of it, as it is then.
    pub(crate) fn exclusively_moving<T>(
        &self,
        inode: &Inode,
        moving: &mut Moving<'_>,
        blocks: impl Fn() -> Range<u64>,
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        loop {
            let permit = inode.gate.enter(GateState::Exclusive);
            if inode.marks.now().is_leased() {
                let blocks = blocks();
                if self.leases.has(inode.number.0, &blocks) {
                    drop(permit);
                    moving.recall([(inode, blocks)])?;
                    continue;
                }
            }
            return self.run_alone(permit, inode, operation);
        }
    }

    /// To be called where a write to a leased file begins. Recalls what it would move, and puts a bar up
    /// until the write has ended.
    #[cold]
    pub(crate) fn recall_for_write(
        &self,
        inode: &InodeRef,
        offset: Option<u64>,
        len: usize,
    ) -> Result<Vec<Bar<'_>>> {
        let (size, mut bars) = (inode.size(), Vec::new());
        let at = offset.unwrap_or(size);
        // A write beyond the end zeroes the rest of the last block.
        let blocks = inode.blocks_touched(at.min(size), at.saturating_add(len as u64));
        if self.leases.has(inode.number().0, &blocks) && self.write_moves(inode, &blocks)? {
            self.recall([(&***inode, blocks)], &mut bars)?;
        }
        Ok(bars)
    }

    /// Whether a write to these blocks gives one of them another home, or leaves its content in the journal.
    fn write_moves(&self, inode: &Inode, blocks: &Range<u64>) -> Result<bool> {
        let count = blocks.end - blocks.start;
        if inode.unit_blocks().is_some() || self.has_recorded(inode, blocks.start, count)? {
            return Ok(true);
        }
        Ok(self.count_shared(inode, blocks.clone())? > 0)
    }

    /// As [`Engine::begin_change`], for a group that is to be committed to these files.
    pub(crate) fn begin_moving_files<'i>(
        &self,
        files: impl Iterator<Item = &'i Inode> + Clone,
    ) -> Result<Moving<'_>> {
        let mut moving = self.begin_moving()?;
        let mut leased = files
            .filter(|inode| {
                inode.marks.now().is_leased() && self.leases.has(inode.number.0, &(0..FILE_BLOCKS_MAX))
            })
            .map(|inode| (inode, 0..FILE_BLOCKS_MAX))
            .peekable();
        if leased.peek().is_some() {
            moving.recall(leased)?;
        }
        Ok(moving)
    }

    /// Changes extents of an inode, as a part of a transaction. Revokes leases of written blocks that move,
    /// leave the file or become unwritten. The caller holds `meta`.
    pub(crate) fn change_extents(&self, transaction: &mut Transaction<'_>, inode: &Inode, plan: Replacement) {
        if inode.marks.now().is_leased() {
            self.leases.revoke(inode.number.0, &inode.marks, &moved(&plan));
        }
        transaction.extents(inode.number, plan.removed, plan.inserted);
    }

    /// To be called with `meta` held when the newest content of these blocks is to be in the journal.
    pub(crate) fn revoke_recorded(&self, inode: &Inode, blocks: &[Range<u64>]) {
        if inode.marks.now().is_leased() {
            self.leases.revoke(inode.number.0, &inode.marks, blocks);
        }
    }
}

impl Inode {
    /// The blocks of a range of bytes, or its units: what is written anew where they are not written in
    /// place.
    pub(crate) fn blocks_touched(&self, start: u64, end: u64) -> Range<u64> {
        let unit = self.unit_blocks().unwrap_or(1);
        let first = start / BLOCK_SIZE as u64 / unit * unit;
        first..blocks_for(end).next_multiple_of(unit).max(first)
    }

    /// The blocks that an explicit change of size touches.
    pub(crate) fn blocks_resized(&self, size: u64) -> Range<u64> {
        let end = self.size();
        if size < end {
            return self.blocks_touched(size, size).start..FILE_BLOCKS_MAX;
        }
        // The rest of the last block is zeroed; if that is done in place, it moves nothing.
        let in_place = self.unit_blocks().is_none() && self.engine.store.snapshots.epoch() == 0;
        if in_place || end.is_multiple_of(BLOCK_SIZE as u64) {
            0..0
        } else {
            self.blocks_touched(end - 1, end)
        }
    }
}

/// File blocks that were written, and are no longer where they were.
fn moved(plan: &Replacement) -> Vec<Range<u64>> {
    let mut moved = Vec::new();
    for before in plan.removed.iter().filter(|extent| !extent.unwritten) {
        let mut at = before.file_block;
        for after in plan.inserted.iter().filter(|extent| !extent.unwritten) {
            let Some(part) = after.clip(before.file_block, before.file_end()) else { continue };
            if before.disk_block_of(part.file_block) != Some(part.disk_block) {
                continue;
            }
            if at < part.file_block {
                moved.push(at..part.file_block);
            }
            at = at.max(part.file_end());
        }
        if at < before.file_end() {
            moved.push(at..before.file_end());
        }
    }
    moved
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::BlockNo;
    use quire_format::extent::Extent;

    fn extent(file_block: u64, disk_block: u64, len: u32, unwritten: bool) -> Extent {
        Extent { file_block, disk_block: BlockNo(disk_block), len, unwritten, birth: 0 }
    }

    #[test]
    fn what_merges_or_becomes_written_has_not_moved() {
        let removed = vec![extent(0, 100, 4, false), extent(4, 104, 4, true)];
        let plan = Replacement { removed, inserted: vec![extent(0, 100, 8, false)] };
        assert_eq!(moved(&plan), []);
    }

    #[test]
    fn what_goes_elsewhere_or_away_has() {
        let removed = vec![extent(0, 100, 10, false), extent(20, 200, 2, false)];
        let inserted = vec![
            extent(0, 100, 2, false),
            extent(2, 300, 2, false),
            extent(4, 104, 1, true),
            extent(6, 106, 4, false),
        ];
        assert_eq!(moved(&Replacement { removed, inserted }), [2..6, 20..22]);
    }
}
