//! The cache's requests to a file: homes for its blocks, space for those that have none, and what to do when
//! data has reached the device.
//!
//! Protocol of a block that is written back. `place` gives it a home: its own if it has one (then the write
//! is in place and touches neither journal nor tree, J3), else freshly allocated blocks that nobody else can
//! get, though no record names them yet. The cache writes the data. `written` appends the extent record (J1:
//! only now) with the size as far as J6 allows, and stores its `Seq` in the inode before the cache clears the
//! block's writeback state (J5). A failed write gives the blocks back and leaves the data dirty.
//!
//! Small new data that is forced at once takes another way, through the journal: [`super::journaled`].
//!
//! The size on disk rises to the first byte that is still dirty or in flight, and no further: blocks behind a
//! gap stay beyond it until the gap is closed.
//!
//! Neighbours: `quire_cache::Backing` is the contract; [`crate::extent_map`] plans; `quire_alloc` finds
//! space.

use crate::engine::Engine;
use crate::inode::{Inode, Meta};
use crate::store::snapshot_table::SnapshotTable;
use crate::store::transaction::{Cost, EXTENTS_PER_TRANSACTION, Transaction};
use quire_alloc::Funding;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, BlockNo, InodeNo, Result};
use quire_cache::{Backing, Contents, Home, Mapping, PlacedRun, Placement, RECORD_BLOCKS, Run};
use quire_format::extent::{Extent, FILE_BLOCKS_MAX, Run as DiskRun, extents_of_run, subtract, total_blocks};
use quire_format::key::Key;
use quire_format::region::split_by_region;
use quire_tree::Ticket;
use std::ops::Range;

/// Free blocks that a growing file looks for when another has taken the block behind it: 32 KiB to 4 MiB.
const WINDOW_MIN: u64 = 8;
const WINDOW_MAX: u64 = 1024;
/// Extents that one look at the map returns.
const MAP_EXTENTS: usize = 128;

impl Inode {
    /// The index of cached folios, made at first use.
    pub(crate) fn mapping(self: &Arc<Inode>) -> &Arc<Mapping> {
        self.mapping.get_or_init(|| {
            let backing: Arc<dyn Backing> = self.clone();
            self.engine.cache.new_mapping(self.number, Arc::downgrade(&backing))
        })
    }
}

impl Backing for Inode {
    fn inode(&self) -> InodeNo {
        self.number
    }

    fn drops(&self) -> bool {
        self.drops_cache()
    }

    fn map(&self, block: u64, count: u64) -> Result<Vec<Run>> {
        let extents = self.read_extents(block, count, MAP_EXTENTS)?;
        let whole = extents.len() < MAP_EXTENTS;
        Ok(runs_of(&extents, block, count, whole, &self.engine.store.snapshots))
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        self.engine.store.delay(&self.delayed, blocks)
    }

    fn unreserve(&self, blocks: u64) {
        self.engine.store.release_promised(&self.delayed, blocks);
        drop(self.delayed.take(&self.engine.store.alloc, blocks));
    }

    fn place(&self, block: u64, count: u64) -> Result<Placement> {
        let engine = &self.engine;
        engine.store.check_writable()?;
        let mut placed: Vec<PlacedRun> = Vec::new();
        let most = engine.runs_at_once();
        for run in self.map(block, count)? {
            match run.home {
                Home::Written(home) | Home::Unwritten(home) => {
                    let (file_block, count) = (run.file_block, run.count);
                    placed.push(PlacedRun { file_block, count, home, is_fresh: false });
                }
                Home::Hole | Home::Shared(_) => {
                    let room = most - placed.len();
                    let got = match engine.place_hole(self, run.file_block, run.count, room) {
                        Ok(runs) => runs,
                        // What has been placed so far is of use.
                        Err(_) if !placed.is_empty() => break,
                        Err(error) => return Err(error),
                    };
                    let mut at = run.file_block;
                    for piece in &got {
                        let (count, home) = (piece.blocks, piece.start);
                        placed.push(PlacedRun { file_block: at, count, home, is_fresh: true });
                        at += count;
                    }
                    if at < run.file_block + run.count {
                        break;
                    }
                }
            }
            // One transaction applies the placement.
            if placed.len() >= most {
                break;
            }
        }
        Ok(Placement { runs: placed })
    }

    fn written(&self, placement: Placement, outcome: Result<()>) -> Result<()> {
        let applied = outcome.and_then(|()| self.engine.apply_written(self, &placement, 0));
        if applied.is_err() {
            self.engine.take_back(self, &placement);
        }
        applied
    }

    fn unit_blocks(&self) -> Option<u64> {
        Inode::unit_blocks(self)
    }

    fn goes_through_journal(&self, block: u64, count: u64, few: bool) -> Result<(bool, u64)> {
        self.engine.must_journal(self, block, count, few)
    }

    fn journal(&self, contents: &Contents<'_>) -> Result<()> {
        self.engine.journal_contents(self, contents)
    }

    fn wait_for_room(&self, blocks: u64) -> Result<()> {
        let record = Inode::unit_blocks(self).unwrap_or(0).max(RECORD_BLOCKS);
        let refused = self.refused_extents.swap(0, Ordering::AcqRel);
        self.engine.await_data_room(blocks.clamp(1, record), refused)?;
        self.has_queued.store(true, Ordering::Release);
        Ok(())
    }

    fn size(&self) -> u64 {
        Inode::size(self)
    }
}

/// The extents of a range, and one block more on either side: extents merge with what they touch.
fn extents_around(inode: &Inode, blocks: &Range<u64>) -> Result<Vec<Extent>> {
    let from = blocks.start.saturating_sub(1);
    inode.read_extents(from, blocks.end + 1 - from, MAP_EXTENTS)
}

/// The keys, but for those of extents, that journaling these homes changes.
pub(crate) fn keys_of_homes(inode: &Inode, homes: impl Iterator<Item = DiskRun>) -> Vec<Key> {
    let regions = homes.flat_map(split_by_region).map(|(region, ..)| Key::region(region));
    std::iter::once(Key::inode(inode.number)).chain(regions).collect()
}

/// Where placed runs are on the device.
fn disk_runs(placed: &[PlacedRun]) -> impl Iterator<Item = DiskRun> {
    placed.iter().map(|run| DiskRun::new(run.home, run.count))
}

/// What journaling the homes of so many runs costs at most.
fn written_cost(runs: usize) -> Cost {
    Cost::new(2, 160).with_extents(2 * runs + 6).critical()
}

/// Extents as runs without gaps over `block..block + count`; if the list was cut, up to its last extent.
fn runs_of(extents: &[Extent], block: u64, count: u64, whole: bool, snapshots: &SnapshotTable) -> Vec<Run> {
    let end = block + count;
    let mut runs = Vec::with_capacity(2 * extents.len() + 1);
    let mut at = block;
    for extent in extents.iter().filter_map(|extent| extent.clip(block, end)) {
        if extent.file_block > at {
            runs.push(Run { file_block: at, count: extent.file_block - at, home: Home::Hole });
        }
        let home = if extent.unwritten && snapshots.moves(&extent) {
            // Written in place it would have a home that belongs to the snapshot; so it gets one of its own.
            Home::Hole
        } else if extent.unwritten {
            Home::Unwritten(extent.disk_block)
        } else if snapshots.moves(&extent) {
            Home::Shared(extent.disk_block)
        } else {
            Home::Written(extent.disk_block)
        };
        runs.push(Run { file_block: extent.file_block, count: u64::from(extent.len), home });
        at = extent.file_end();
    }
    if at < end && whole {
        runs.push(Run { file_block: at, count: end - at, home: Home::Hole });
    }
    runs
}

impl Engine {
    /// Where a file block should go: behind its predecessor in the file, or into the inode's group. Where a
    /// file grows and another has the block behind, it goes on in free blocks of its own, as many again as it
    /// has: so files that grow together do not lie block by block between one another.
    pub(crate) fn allocation_goal(&self, inode: &Inode, block: u64) -> Result<BlockNo> {
        let (hint_file, hint_disk) = *inode.placement_hint.lock();
        let behind = match hint_file == block && hint_disk != 0 {
            true => Some(BlockNo(hint_disk)),
            false if block > 0 => inode.read_extents(block - 1, 1, 1)?.first().map(Extent::disk_end),
            false => None,
        };
        let Some(behind) = behind else { return Ok(self.store.alloc.goal_for_inode(inode.number)) };
        let grows =
            || -> Result<bool> { Ok(inode.read_extents(block, FILE_BLOCKS_MAX - block, 1)?.is_empty()) };
        if self.store.alloc.is_free(behind)? || !grows()? {
            return Ok(behind);
        }
        let window = block.next_power_of_two().clamp(WINDOW_MIN, WINDOW_MAX);
        Ok(self.store.alloc.free_window(behind, window)?.unwrap_or(behind))
    }

    /// Runs that one placement has at most: its transaction must fit into the metadata pool, and on a volume
    /// that is nearly full only a small one may.
    fn runs_at_once(&self) -> usize {
        let most = EXTENTS_PER_TRANSACTION / 4;
        match self.store.has_room(written_cost(most)) {
            true => most,
            false => 1,
        }
    }

    /// Homes for a hole, or for its front, in `most` runs.
    fn place_hole(&self, inode: &Inode, block: u64, count: u64, most: usize) -> Result<Vec<DiskRun>> {
        let goal = self.allocation_goal(inode, block)?;
        let mut reservation = inode.delayed.take(&self.store.alloc, count);
        let got = self.store.alloc.allocate(Funding::Reserved(&mut reservation), goal, count, 1);
        // What was not allocated stays promised to the blocks that are still dirty.
        let result = got.map(|mut runs| {
            if runs.len() > most {
                let surplus = runs.split_off(most);
                match self.store.alloc.cancel(&surplus) {
                    Ok(returned) => reservation.merge(returned),
                    Err(error) => tracing::error!(%error, "cancelling an allocation"),
                }
            }
            runs
        });
        inode.delayed.put(reservation);
        if let Ok(runs) = &result
            && let Some(last) = runs.last()
        {
            let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
            *inode.placement_hint.lock() = (block + blocks, last.end().0);
        }
        result
    }

    /// Journals the homes of blocks whose data has reached the device, and the size as far as it may go.
    /// `grown` is a size that the caller will publish once this succeeds.
    pub(crate) fn apply_written(&self, inode: &Inode, placement: &Placement, grown: u64) -> Result<()> {
        inode.data_mark.fetch_max(self.store.device.mark(), Ordering::AcqRel);
        let runs = &placement.runs;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok(());
        };
        let (start, end) = (first.file_block, last.file_block + last.count);
        // What is read now stays in memory, so that nothing is read under `meta`.
        let ticket = self.store.tree.ticket();
        let homes = extents_around(inode, &(start..end))?;
        let in_place = runs.iter().all(|run| {
            homes.iter().filter(|extent| !extent.unwritten).any(|extent| {
                extent.disk_block_of(run.file_block) == Some(run.home)
                    && extent.file_end() >= run.file_block + run.count
            })
        });
        let size = inode.size().max(grown);
        if in_place && inode.meta().record.size >= size.min(end * BLOCK_SIZE as u64) {
            return Ok(());
        }
        let transaction = self.store.begin(written_cost(runs.len()))?;
        self.load_homes(&ticket, inode, &(start..end), &homes, disk_runs(runs))?;
        self.journal_homes(inode, placement, grown, transaction)
    }

    /// Loads what giving a range of blocks these homes reads and writes. It stays while the ticket lives.
    pub(super) fn pin_homes(
        &self,
        ticket: &Ticket<'_>,
        inode: &Inode,
        blocks: Range<u64>,
        homes: impl Iterator<Item = DiskRun>,
    ) -> Result<()> {
        let before = extents_around(inode, &blocks)?;
        self.load_homes(ticket, inode, &blocks, &before, homes)
    }

    /// Loads the rest of that: the maps of space where the homes are, and where the blocks were that move.
    fn load_homes(
        &self,
        ticket: &Ticket<'_>,
        inode: &Inode,
        blocks: &Range<u64>,
        before: &[Extent],
        homes: impl Iterator<Item = DiskRun>,
    ) -> Result<()> {
        let moving = before.iter().filter(|extent| self.store.snapshots.moves(extent));
        let moving = moving.filter_map(|extent| extent.clip(blocks.start, blocks.end));
        self.store.load_freed(ticket, moving.map(|extent| extent.run()))?;
        self.store.tree.prepare(ticket, &keys_of_homes(inode, homes))
    }

    /// Journals the homes of a placement.
    fn journal_homes(
        &self,
        inode: &Inode,
        placement: &Placement,
        grown: u64,
        mut transaction: Transaction<'_>,
    ) -> Result<()> {
        let runs = &placement.runs;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok(());
        };
        let (start, end) = (first.file_block, last.file_block + last.count);
        let mut meta = inode.meta();
        let mut pieces = Vec::with_capacity(runs.len());
        for run in runs {
            pieces.extend(extents_of_run(
                run.file_block,
                DiskRun::new(run.home, run.count),
                false,
                self.store.snapshots.epoch(),
            ));
        }
        let plan = self.store.plan_overlay(inode, &pieces)?;
        inode.fold_times(&mut meta);
        // Looked at only now: while this waited to reserve, a truncate may have come and gone.
        let size = inode.size().max(grown);
        let mut record = meta.record.clone();
        let plan_gained = plan.blocks_gained();
        record.blocks = record.blocks.saturating_add_signed(plan_gained);
        record.size = record.size.max(self.front(inode, &meta, size, std::slice::from_ref(&(start..end))));
        if plan.len() == 0 && record == meta.record {
            return Ok(());
        }
        // Blocks that take the place of a snapshot's had been promised to the data, too.
        let gained = match self.store.snapshots.epoch() {
            0 => plan_gained.max(0) as u64,
            _ => total_blocks(&subtract(&plan.removed, &plan.inserted)?.1),
        };
        transaction.put_inode(inode.number, &record);
        self.change_extents(&mut transaction, inode, plan);
        self.store.commit_extents(inode, transaction, inode.written())?;
        self.store.release_promised(&inode.delayed, gained);
        meta.record = record;
        meta.dirty = false;
        Ok(())
    }

    /// How far the size on disk may go: to `size`, the end of the file, but not past a block that is dirty or
    /// in flight, unless an fsync knows that it has been written before; blocks in `done` are neither. In an
    /// untorn file it stays before the whole unit of such a block: a size inside the unit would show a part
    /// of what the unit is to become.
    ///
    /// While an exclusive operation runs it stays where it is: the operation drops dirty blocks before its
    /// record is in the journal. What such a block holds on disk may be what an earlier truncate cut off, and
    /// the dropped block was the zeros over it. The operation sets the size itself, and the size follows what
    /// was written meanwhile when it is done ([`Engine::exclusively`]). But an untorn unit in which the file
    /// ends on disk is journaled with the size: its record has all of its dirty blocks, and none of them is
    /// dropped meanwhile, since a drop keeps writeback off the whole unit.
    pub(crate) fn front(&self, inode: &Inode, meta: &Meta, size: u64, done: &[Range<u64>]) -> u64 {
        let on_disk = meta.record.size;
        let Some(mapping) = inode.mapping.get() else { return size };
        let view = inode.size_sequence.shared_view();
        let unit = inode.unit_blocks();
        // How far it may go while an exclusive operation runs.
        let held = unit.map_or(on_disk, |unit| on_disk.next_multiple_of(unit * BLOCK_SIZE as u64));
        if view.is_none() && held == on_disk {
            return on_disk;
        }
        // A larger size shows all of the unit that it was in.
        let mut from = inode.blocks_touched(on_disk, on_disk).start;
        let end = loop {
            let Some(block) = mapping.first_unfinished(from) else { break size };
            match done.iter().find(|range| range.contains(&block)) {
                Some(range) => from = range.end,
                None => {
                    let unit = unit.unwrap_or(1);
                    let whole = block / unit * unit;
                    break size.min(whole * BLOCK_SIZE as u64).max(on_disk);
                }
            }
        };
        // A drop that the look at the blocks saw came with an odd sequence before it.
        match view {
            Some(view) if inode.size_sequence.is_still(view) => end.max(meta.earned.min(size)),
            _ => end.min(held),
        }
    }

    /// A write failed, or its record did: blocks that were allocated for it go back, and their promise to the
    /// cache.
    pub(crate) fn take_back(&self, inode: &Inode, placement: &Placement) {
        for run in placement.runs.iter().filter(|run| run.is_fresh) {
            match self.store.alloc.cancel(&[DiskRun::new(run.home, run.count)]) {
                Ok(returned) => inode.delayed.put(returned),
                Err(error) => tracing::error!(%error, "giving the blocks of a failed write back"),
            }
        }
    }
}
