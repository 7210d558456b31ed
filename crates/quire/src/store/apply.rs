//! Applying one journaled change: the same code for a live transaction and for replay.
//!
//! Invariants: applying is a function of the tree and the change alone, so replay from any checkpoint ends in
//! the state that was live. An extent change *is* the allocation and the freeing of its blocks: it changes
//! the regions' used-block sets here, and nowhere else.
//!
//! Neighbours: [`super::transaction`] calls it inside the barrier, [`crate::recovery`] for each replayed
//! record.

use super::Store;
use super::inode_numbers::InodeNumbers;
use super::orphan_slots::{OrphanSlots, Slot};
use super::snapshot_table::{Freed, SnapshotTable};
use super::transaction::chunk_run;
use quire_alloc::Allocator;
use quire_base::metrics::Counter;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result, Seq};
use quire_device::RecordedBlocks;
use quire_format::extent::{Run, subtract, total_blocks};
use quire_format::key::{Key, KeyKind};
use quire_format::record::{Change, no_longer_written};
use quire_format::region::{RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
use quire_tree::Tree;

/// The state that changes apply to.
pub(crate) struct Target<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) orphans: &'a OrphanSlots,
    pub(crate) free_blocks: &'a Counter,
    pub(crate) inodes: &'a Counter,
    pub(crate) inode_numbers: &'a InodeNumbers,
    /// Contents that records carry.
    pub(crate) recorded: &'a RecordedBlocks,
    pub(crate) snapshots: &'a SnapshotTable,
    /// Where blocks of files may lie.
    pub(crate) data_space: std::ops::Range<u64>,
    /// The allocator that hears of freed blocks; none in replay, which ends before one is made.
    pub(crate) alloc: Option<&'a Allocator>,
}

impl Store {
    pub(crate) fn apply(&self, change: &Change, seq: Seq) -> Result<()> {
        Target {
            tree: &self.tree,
            orphans: &self.orphans,
            free_blocks: &self.applied_free_blocks,
            inodes: &self.applied_inodes,
            inode_numbers: &self.inode_numbers,
            recorded: self.device.recorded(),
            snapshots: &self.snapshots,
            data_space: self.data_space(),
            alloc: Some(&self.alloc),
        }
        .apply(change, seq)
    }
}

impl Target<'_> {
    pub(crate) fn apply(&self, change: &Change, seq: Seq) -> Result<()> {
        match change {
            Change::Put { key, value } => {
                if key.kind == KeyKind::Inode && self.tree.get_with(*key, |_| ())?.is_none() {
                    self.inodes.add(1);
                    self.inode_numbers.pass(key.object.saturating_add(1));
                }
                if key.kind == KeyKind::Snapshot {
                    let snapshot = Snapshot::decode(value)?;
                    self.snapshots.put(*key, &snapshot);
                    // It counts a range as taken of which a replay may find one number, or none.
                    self.inode_numbers.pass(snapshot.superblock.next_inode);
                }
                self.tree.put(*key, value)
            }
            Change::Delete { key } => {
                let existed = self.tree.delete(*key)?;
                if key.kind == KeyKind::Inode && existed {
                    self.inodes.sub(1);
                }
                if key.kind == KeyKind::Snapshot {
                    self.snapshots.delete(*key);
                }
                Ok(())
            }
            Change::Extents { inode, removed, inserted } => {
                let allocated = subtract(removed, inserted)?.1;
                allocated.iter().try_for_each(|run| self.check_data_space(run.start, run.blocks))?;
                let Freed { own, shared } = self.snapshots.freed(removed, inserted)?;
                for extent in removed {
                    // Both ascend, also in a record from the journal.
                    let kept = inserted.binary_search_by_key(&extent.file_block, |new| new.file_block);
                    if kept.is_err() && !self.tree.delete(Key::extent(*inode, extent.file_block))? {
                        return Err(Error::corrupt(format!(
                            "inode {inode} has no extent at file block {} to remove",
                            extent.file_block
                        )));
                    }
                }
                for extent in inserted {
                    self.tree.put(Key::extent(*inode, extent.file_block), &extent.encode())?;
                }
                if !self.recorded.is_empty() {
                    for run in no_longer_written(removed, inserted)? {
                        self.recorded.forget(seq, run.start, run.blocks);
                    }
                }
                self.mark_used(&allocated)?;
                // What a snapshot has, too, stays in use.
                change_regions(self.tree, Key::dead, &shared, RegionMap::set_used)?;
                self.mark_free(&own, seq)
            }
            Change::Reclaim { start, blocks } => {
                let run = [chunk_run(*start, *blocks)];
                change_regions(self.tree, Key::dead, &run, RegionMap::set_free)?;
                self.mark_free(&run, seq)
            }
            Change::OrphanSet { slot, inode } => {
                let slot = self.slot(*slot)?;
                self.orphans.apply_set(slot, *inode);
                Ok(())
            }
            Change::OrphanClear { slot, .. } => {
                let slot = self.slot(*slot)?;
                self.orphans.apply_clear(slot);
                Ok(())
            }
            Change::PoolGrow { start, blocks } => {
                self.mark_used(&[chunk_run(*start, *blocks)])?;
                self.tree.pool_grow(*start, *blocks)
            }
            Change::PoolShrink { start, blocks } => {
                self.tree.pool_shrink(*start, *blocks)?;
                self.mark_free(&[chunk_run(*start, *blocks)], seq)
            }
            Change::Data { start, bytes } => {
                self.check_data_space(*start, (bytes.len() / BLOCK_SIZE) as u64)?;
                self.recorded.record(seq, *start, bytes);
                Ok(())
            }
        }
    }

    /// Applies a change to a tree of which parts are lost: what the change expects to find may not be there.
    /// Used blocks are left as they are, since a repair counts them anew.
    pub(crate) fn apply_to_remains(&self, change: &Change, seq: Seq) -> Result<()> {
        let done = match change {
            Change::Extents { inode, removed, inserted } => {
                for extent in removed {
                    self.tree.delete(Key::extent(*inode, extent.file_block))?;
                }
                for extent in inserted {
                    self.tree.put(Key::extent(*inode, extent.file_block), &extent.encode())?;
                }
                for run in no_longer_written(removed, inserted).into_iter().flatten() {
                    self.recorded.forget(seq, run.start, run.blocks);
                }
                return Ok(());
            }
            Change::Put { .. } | Change::Delete { .. } => return self.apply(change, seq),
            Change::PoolGrow { start, blocks } => self.tree.pool_grow(*start, *blocks),
            Change::PoolShrink { start, blocks } => self.tree.pool_shrink(*start, *blocks),
            Change::OrphanSet { .. } | Change::OrphanClear { .. } | Change::Data { .. } => {
                self.apply(change, seq)
            }
            Change::Reclaim { .. } => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a change does not fit what is left, and is passed over");
        }
        Ok(())
    }

    fn check_data_space(&self, start: BlockNo, blocks: u64) -> Result<()> {
        let space = &self.data_space;
        if space.start <= start.0 && blocks <= space.end - start.0.min(space.end) {
            return Ok(());
        }
        Err(Error::corrupt(format!("a record has blocks {start}+{blocks}, outside of the data space")))
    }

    fn slot(&self, number: u32) -> Result<Slot> {
        let slot = Slot(number);
        if !self.orphans.contains(slot) {
            return Err(Error::corrupt(format!(
                "orphan slot {number} is beyond the volume's {}",
                self.orphans.capacity()
            )));
        }
        Ok(slot)
    }

    fn mark_used(&self, runs: &[Run]) -> Result<()> {
        change_regions(self.tree, Key::region, runs, RegionMap::set_used)?;
        if !runs.is_empty() {
            self.free_blocks.sub(total_blocks(runs));
        }
        Ok(())
    }

    fn mark_free(&self, runs: &[Run], seq: Seq) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        change_regions(self.tree, Key::region, runs, RegionMap::set_free)?;
        self.free_blocks.add(total_blocks(runs));
        if let Some(alloc) = self.alloc {
            alloc.freed(seq, runs)?;
        }
        Ok(())
    }
}

/// Changes which blocks of `runs` are in the sets under the keys of their regions.
pub(crate) fn change_regions(
    tree: &Tree,
    key: fn(u64) -> Key,
    runs: &[Run],
    change: fn(&mut RegionMap, u32, u32) -> Result<()>,
) -> Result<()> {
    for &run in runs {
        for (region, start, blocks) in split_by_region(run) {
            tree.update(key(region), &mut |value| {
                let mut map = value.map_or_else(|| Ok(RegionMap::new()), RegionMap::decode)?;
                change(&mut map, start, blocks).map_err(|error| error.context(format!("region {region}")))?;
                Ok(map.encode())
            })?;
        }
    }
    Ok(())
}
