//! Allocating ahead, punching and zeroing.
//!
//! All hold the gate exclusively with the exclusive sequence odd, so they are atomic to readers and writers.
//! A punch that finds no space, or fails to read, leaves everything as it was ([`super::prepared`]). A punch
//! or zeroing of more extents than one transaction takes is a logged operation: after a crash all of it is
//! done, or nothing.
//!
//! Holes get their blocks in as many transactions as it takes. The blocks are reserved before the first, so
//! a call that finds no space for them leaves everything as it was. A later transaction may still fail, for
//! want of room in the metadata pool for example. Then the blocks of the former ones stay: they read as
//! zeros, as the hole did. Zeroing a range fills its holes first, and then zeroes the parts of units that the
//! range cuts; where it fails behind that, these parts stay zeroed.
//!
//! Neighbours: [`super::shift`] for collapse and insert; [`super::truncate`] for the size.

use super::prepared::Plan;
use super::range_end;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_alloc::SpaceReservation;
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_cache::Zeroing;
use quire_format::extent::{EXTENT_BLOCKS_MAX, Extent, extents_of_run};
use quire_format::key::Key;
use quire_format::logged::LoggedKind;
use std::ops::Range;

/// What [`crate::inodes::Inodes::allocate`] does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Blocks for the whole range; the file grows to hold it.
    Allocate,
    /// Blocks for the whole range, beyond the end of the file too; the size stays.
    KeepSize,
    /// The range reads as zeros and its whole blocks are given back.
    PunchHole,
    /// The range reads as zeros and has blocks.
    ZeroRange {
        /// The size stays.
        keep_size: bool,
    },
    /// The range is cut out, what follows moves down.
    Collapse,
    /// A hole opens, what follows moves up.
    Insert,
}

/// Blocks that one step of an allocation takes.
const STEP_BLOCKS: u64 = 8 * EXTENT_BLOCKS_MAX as u64;

impl Engine {
    /// Changes the allocation of `len` bytes at `offset`.
    pub(crate) fn allocate(
        self: &Arc<Engine>,
        inode: &InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let mut moving = self.begin_moving()?;
        inode.check_regular()?;
        if len == 0 {
            return Err(Error::invalid("a range of zero bytes cannot be allocated"));
        }
        let end = range_end(offset, len)?;
        match mode {
            FallocateMode::Collapse => return self.collapse(moving, inode, offset, len),
            FallocateMode::Insert => return self.insert(moving, inode, offset, len),
            FallocateMode::PunchHole => {}
            FallocateMode::Allocate | FallocateMode::KeepSize | FallocateMode::ZeroRange { .. } => {
                self.check_can_ever_fit(offset, end)?;
            }
        }
        self.clear_privileges(inode)?;
        let blocks = || match mode {
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                inode.blocks_touched(offset.min(inode.size()), end)
            }
            FallocateMode::Allocate if end > inode.size() => inode.blocks_resized(end),
            _ => 0..0,
        };
        let size = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false } => end,
            _ => 0,
        };
        let change = || {
            if size > inode.size() {
                // What a crash left behind the end is a hole behind this, where a snapshot has it.
                self.settle_growth(inode, size)?;
            }
            match mode {
                FallocateMode::PunchHole => self.punch(inode, offset, end)?,
                FallocateMode::ZeroRange { .. } => {
                    self.fill_holes(inode, offset, end)?;
                    // A snapshot's blocks leave the file, which gets others in their place.
                    let shared = self.shared_blocks(inode, offset, end)?;
                    let instead = self.store.alloc.reserve(shared)?;
                    let whole = self.zero_cut_units(inode, offset, end)?;
                    if size > inode.size() {
                        // A larger size must not show the unit in which the file ends without these zeros.
                        self.settle_end(inode, inode.size())?;
                    }
                    if !whole.is_empty() {
                        self.zero_range(inode, whole.start, whole.end, size)?;
                    }
                    if shared > 0 {
                        self.fill_holes_from(inode, offset, end, instead)?;
                    }
                }
                _ => self.fill_holes(inode, offset, end)?,
            }
            if size > inode.size() {
                self.set_size(inode, size)?;
            }
            Ok(())
        };
        self.retry_without_space(|| self.exclusively_moving(inode, &mut moving, blocks, change))?;
        inode.touch_written();
        Ok(())
    }

    /// Refuses a range with more blocks than the data space has: nothing that might become free would do.
    fn check_can_ever_fit(&self, offset: u64, end: u64) -> Result<()> {
        let blocks = blocks_for(end) - offset / BLOCK_SIZE as u64;
        let space = self.store.data_space();
        let there_are = space.end - space.start;
        if blocks > there_are {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("no data space: {blocks} blocks are needed, and the volume has {there_are}"),
            ));
        }
        Ok(())
    }

    /// Writes zeros to the parts of `[offset, end)` that cut a unit which a crash must not show in part; each
    /// unit is one write. Gives the range without them: all of it, if the file has no units.
    fn zero_cut_units(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<Range<u64>> {
        let Some(unit) = inode.unit_blocks().map(|blocks| blocks * BLOCK_SIZE as u64) else {
            return Ok(offset..end);
        };
        let (first, last) = (offset.next_multiple_of(unit), end / unit * unit);
        let cut = if first <= last { [offset..first, last..end] } else { [offset..end, end..end] };
        for part in cut {
            // What lies behind the end of the file reads as zeros already.
            let len = part.end.min(inode.size()).saturating_sub(part.start);
            if len > 0 {
                inode.mapping().write(part.start, &vec![0; len as usize], &mut || {})?;
            }
        }
        Ok(first..last.max(first))
    }

    /// Gives blocks back. Edges are zeroed through the cache.
    fn punch(self: &Arc<Engine>, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        let (blocks, edges) = prepare_edges(inode, offset, end)?;
        if blocks.is_empty() {
            edges.into_iter().for_each(Zeroing::apply);
            return Ok(());
        }
        let plan = Plan { bytes: offset..end, blocks: blocks.clone(), edges, may_log: true };
        let cost = |extents| Cost::new(3, 256).with_extents(extents + 2).critical();
        let logged = self.prepare(inode, plan, cost)?.apply(|mut transaction, room| {
            if let Some(id) = room.logged {
                let size = inode.size();
                let operation =
                    self.logged_operation(inode, LoggedKind::Punch, blocks.start, blocks.end, size);
                transaction.put(Key::logged(id), &operation.encode());
                transaction.commit(Depends::Nothing)?;
                return Ok(Some((id, operation)));
            }
            self.free_extents(inode, blocks.clone(), usize::MAX, transaction)?;
            Ok(None)
        })?;
        match logged {
            Some((id, operation)) => self.run_logged_live(inode, id, operation),
            None => Ok(()),
        }
    }

    /// Makes a range read as zeros: whole blocks become unwritten, they have homes already. The file ends at
    /// `size` at least, with the same record: what lies between `end` and there is a part of a unit behind
    /// the end of the file, which reads as zeros. The caller has settled growth up to there.
    fn zero_range(self: &Arc<Engine>, inode: &InodeRef, offset: u64, end: u64, size: u64) -> Result<()> {
        let grown = (size > inode.size()).then_some(size);
        let (blocks, edges) = prepare_edges(inode, offset, end)?;
        if blocks.is_empty() && grown.is_none() {
            edges.into_iter().for_each(Zeroing::apply);
            return Ok(());
        }
        let plan = Plan { bytes: offset..end, blocks: blocks.clone(), edges, may_log: true };
        let logged = self.prepare(inode, plan, unwrite_cost)?.apply(|transaction, room| {
            let Some(id) = room.logged else {
                self.unwrite_step(inode, blocks.clone(), room.extents, grown, transaction)?;
                return Ok(None);
            };
            let size = grown.unwrap_or(inode.size());
            let operation = self.logged_operation(inode, LoggedKind::Zero, blocks.start, blocks.end, size);
            let mut transaction = transaction;
            transaction.put(Key::logged(id), &operation.encode());
            self.unwrite_step(inode, blocks.start..blocks.start, 0, grown, transaction)?;
            Ok(Some((id, operation)))
        })?;
        let Some((id, operation)) = logged else { return Ok(()) };
        match self.unwrite(inode, blocks) {
            Ok(()) => self.finish_logged_live(inode, id, operation),
            // It cannot stay half done. Finishing it as after a crash frees the blocks, which reads as zeros
            // too.
            Err(error) => self.run_logged_live(inode, id, operation).and(Err(error)),
        }
    }

    /// Makes what is written of whole blocks unwritten, and drops them from the cache.
    fn unwrite(&self, inode: &InodeRef, blocks: Range<u64>) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let rest = at..blocks.end;
            let bytes = at * BLOCK_SIZE as u64..blocks.end * BLOCK_SIZE as u64;
            let plan = Plan { bytes, blocks: rest.clone(), edges: Vec::new(), may_log: false };
            at = self
                .prepare(inode, plan, unwrite_cost)?
                .apply(|transaction, room| self.unwrite_step(inode, rest, room.extents, None, transaction))?;
        }
        Ok(())
    }

    /// Makes the first extents of a range, at most `most`, unwritten, sets the size if one is given, and
    /// commits if there is anything to commit. Gives the block to go on from.
    fn unwrite_step(
        &self,
        inode: &InodeRef,
        blocks: Range<u64>,
        most: usize,
        grown: Option<u64>,
        mut transaction: Transaction<'_>,
    ) -> Result<u64> {
        let mut meta = inode.meta();
        let found = self.store.extents_in(inode, blocks.start, blocks.end - blocks.start, most)?;
        let next = found.last().filter(|_| found.len() == most).map_or(blocks.end, Extent::file_end);
        let next = next.min(blocks.end);
        // A written block of a snapshot keeps its content: it leaves the file, which gets a hole there.
        let (gone, pieces): (Vec<_>, Vec<_>) = found
            .iter()
            .filter_map(|extent| extent.clip(blocks.start, blocks.end))
            .partition(|extent| !extent.unwritten && self.store.snapshots.moves(extent));
        let pieces: Vec<_> = pieces.into_iter().map(|extent| Extent { unwritten: true, ..extent }).collect();
        let plan = self.store.plan_without(inode, &gone, &pieces)?;
        if plan.len() == 0 && grown.is_none() && transaction.is_empty() {
            return Ok(next);
        }
        let mut record = meta.record.clone();
        if let Some(size) = grown {
            inode.fold_times(&mut meta);
            record = self.with_size(&meta.record, size);
        }
        record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
        transaction.put_inode(inode.number, &record);
        self.change_extents(&mut transaction, inode, plan);
        // A larger size shows what was written back below it.
        let depends = if grown.is_some() { inode.written() } else { Depends::Nothing };
        self.store.commit_extents(inode, transaction, depends)?;
        meta.record = record;
        if let Some(size) = grown {
            meta.dirty = false;
            inode.set_size(&mut meta, size);
        }
        Ok(next)
    }

    /// Sees to it that whole blocks beyond the end of file read as zeros once the size passes them. They are
    /// holes or unwritten, but for what a crash left: blocks written ahead of a gap that the size never
    /// passed (J6). The caller holds the size lock.
    pub(crate) fn settle_beyond(&self, inode: &InodeRef, first: u64, last: u64) -> Result<()> {
        let mut at = first;
        while at < last {
            let found = inode.read_extents(at, last - at, 64)?;
            if found.iter().any(|extent| !extent.unwritten) {
                return self.unwrite(inode, at..last);
            }
            at = if found.len() < 64 { last } else { found.last().map_or(last, Extent::file_end) };
        }
        Ok(())
    }

    /// Written blocks among the whole ones of a range that zeros do not stay in, since a snapshot has them,
    /// too. The caller has the file to itself.
    fn shared_blocks(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<u64> {
        self.count_shared(inode, offset.div_ceil(BLOCK_SIZE as u64)..end / BLOCK_SIZE as u64)
    }

    /// Written blocks of a file that a snapshot has, too: new content goes elsewhere.
    pub(crate) fn count_shared(&self, inode: &Inode, blocks: Range<u64>) -> Result<u64> {
        if self.store.snapshots.epoch() == 0 {
            return Ok(0);
        }
        let (mut at, last, mut shared) = (blocks.start, blocks.end, 0);
        while at < last {
            let found = inode.read_extents(at, last - at, 256)?;
            let moving =
                found.iter().filter(|extent| !extent.unwritten && self.store.snapshots.moves(extent));
            shared += moving
                .filter_map(|extent| extent.clip(at, last))
                .map(|part| u64::from(part.len))
                .sum::<u64>();
            at = if found.len() < 256 { last } else { found.last().map_or(last, Extent::file_end) };
        }
        Ok(shared)
    }

    /// Gives every hole of a range unwritten blocks.
    fn fill_holes(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE as u64, blocks_for(end));
        // Blocks that wait for delayed allocation get their homes by being written.
        inode.mapping().write_back(first, last)?;
        let missing = holes(inode, first, last)?.iter().map(|(_, count)| count).sum();
        let funding = self.store.alloc.reserve(missing)?;
        self.fill_holes_from(inode, offset, end, funding)
    }

    /// As [`Engine::fill_holes`], with what was reserved for it.
    fn fill_holes_from<'a>(
        &'a self,
        inode: &InodeRef,
        offset: u64,
        end: u64,
        mut funding: SpaceReservation<'a>,
    ) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE as u64, blocks_for(end));
        for (start, count) in holes(inode, first, last)? {
            let mut at = start;
            while at < start + count {
                let step = (start + count - at).min(STEP_BLOCKS);
                at += self.fill_hole(inode, at, step, &mut funding)?;
            }
        }
        Ok(())
    }

    /// Allocates for the front of a hole in one transaction; gives the blocks covered.
    fn fill_hole<'a>(
        &'a self,
        inode: &InodeRef,
        at: u64,
        count: u64,
        funding: &mut SpaceReservation<'a>,
    ) -> Result<u64> {
        let cost = |extents: usize| Cost::new(1, 128).with_extents(extents.max(4));
        let (mut transaction, extents) = self.store.begin_extents(cost)?;
        let goal = self.allocation_goal(inode, at)?;
        let count = count.min((extents as u64 / 8).max(1) * u64::from(EXTENT_BLOCKS_MAX));
        let mut runs = self.store.alloc.allocate(quire_alloc::Funding::Reserved(funding), goal, count, 1)?;
        // A fragmented volume may give more runs than one transaction takes.
        let runs_max = (extents / 4).max(1);
        if runs.len() > runs_max {
            let surplus = runs.split_off(runs_max);
            funding.merge(self.store.alloc.cancel(&surplus)?);
        }
        let mut pieces = Vec::new();
        let mut covered = 0;
        for run in &runs {
            pieces.extend(extents_of_run(at + covered, *run, true, self.store.snapshots.epoch()));
            covered += run.blocks;
        }
        let committed = (|| {
            self.pin_homes(transaction.ticket(), inode, at..at + covered, runs.iter().copied())?;
            let mut meta = inode.meta();
            let plan = self.store.plan_overlay(inode, &pieces)?;
            let mut record = meta.record.clone();
            record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
            transaction.put_inode(inode.number, &record);
            self.change_extents(&mut transaction, inode, plan);
            self.store.commit_extents(inode, transaction, Depends::Nothing)?;
            meta.record = record;
            Ok(())
        })();
        if let Err(error) = committed {
            drop(self.store.alloc.cancel(&runs)?);
            return Err(error);
        }
        Ok(covered)
    }
}

/// The holes of `first..last`: the first block of each, and how many it has.
fn holes(inode: &InodeRef, first: u64, last: u64) -> Result<Vec<(u64, u64)>> {
    let mut holes = Vec::new();
    let mut at = first;
    while at < last {
        let found = inode.read_extents(at, last - at, 256)?;
        let full = found.len() == 256;
        for extent in found {
            if extent.file_block > at {
                holes.push((at, extent.file_block - at));
            }
            at = at.max(extent.file_end());
        }
        if !full {
            if at < last {
                holes.push((at, last - at));
            }
            break;
        }
    }
    Ok(holes)
}

/// What making so many extents unwritten costs.
fn unwrite_cost(extents: usize) -> Cost {
    Cost::new(2, 256).with_extents(2 * extents + 4)
}

/// The whole blocks of a range of bytes, and its other parts, ready to be zeroed. In a file with units these
/// are whole units, and parts of units, each of which changes at once.
fn prepare_edges(inode: &InodeRef, offset: u64, end: u64) -> Result<(Range<u64>, Vec<Zeroing<'_>>)> {
    let unit = inode.unit_blocks().unwrap_or(1);
    let bytes = unit * BLOCK_SIZE as u64;
    let (first, last) = (offset.div_ceil(bytes), end / bytes);
    let mapping = inode.mapping();
    let parts = match first <= last {
        true => [offset..first * bytes, last * bytes..end],
        // All of it lies within one.
        false => [offset..end, end..end],
    };
    let mut edges = Vec::with_capacity(parts.len());
    for part in parts {
        // What lies behind the end of the file reads as zeros already.
        let end = part.end.min(inode.size());
        if part.start < end {
            edges.extend(mapping.prepare_zero(part.start, end)?);
        }
    }
    Ok((first * unit..last.max(first) * unit, edges))
}
