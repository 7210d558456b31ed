//! Allocating ahead, punching and zeroing.
//!
//! All hold the gate exclusively with the exclusive sequence odd, so they are atomic to readers and writers. Space
//! is reserved before anything changes: ENOSPC leaves everything as it was. A punch or zeroing of more extents than
//! one transaction takes is a logged operation: after a crash all of it is done, or nothing.
//!
//! Neighbours: [`super::shift`] for collapse and insert; [`super::truncate`] for the size.

use super::range_end;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::inode::InodeRef;
use crate::transaction::{Cost, Depends, EXTENTS_PER_TRANSACTION};
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, Result};
use quire_format::extent::{EXTENT_BLOCKS_MAX, Extent, extents_of_run};
use quire_format::key::Key;
use quire_format::logged::LoggedKind;

/// What [`crate::Volume::allocate`] does with a range.
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
        self.check_writable()?;
        inode.check_regular()?;
        if len == 0 {
            return Err(Error::invalid("a range of zero bytes cannot be allocated"));
        }
        let end = range_end(offset, len)?;
        match mode {
            FallocateMode::Collapse => return self.collapse(inode, offset, len),
            FallocateMode::Insert => return self.insert(inode, offset, len),
            _ => {}
        }
        self.clear_privileges(inode)?;
        let change = || {
            match mode {
                FallocateMode::PunchHole => self.punch(inode, offset, end)?,
                FallocateMode::ZeroRange { .. } => {
                    self.fill_holes(inode, offset, end)?;
                    self.zero_blocks(inode, offset, end)?;
                }
                _ => self.fill_holes(inode, offset, end)?,
            }
            let keeps_size =
                !matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false });
            if !keeps_size && end > inode.size() {
                return self.set_size(inode, end);
            }
            Ok(())
        };
        self.retry_without_space(|| self.exclusively(inode, change))?;
        inode.touch_written();
        Ok(())
    }

    /// Gives blocks back. Edge blocks are zeroed through the cache.
    fn punch(self: &Arc<Engine>, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        self.check_room_to_free()?;
        let (first, last) = self.zero_edges(inode, offset, end)?;
        if first < last {
            inode.mapping().drop_range(first, last);
            self.free_blocks(inode, first, last)?;
        }
        Ok(())
    }

    /// Frees what a range of blocks has, in one transaction or as a logged operation.
    fn free_blocks(self: &Arc<Engine>, inode: &InodeRef, first: u64, last: u64) -> Result<()> {
        let cost = |extents| Cost::new(3, 256).with_extents(extents + 2).critical();
        let (mut transaction, batch) = self.begin_extents(cost)?;
        let mut meta = inode.meta();
        let found = self.extents_in(inode, first, last - first, batch + 1)?;
        if found.is_empty() {
            return Ok(());
        }
        if found.len() > batch {
            let (id, operation) = self.logged_operation(inode, LoggedKind::Punch, first, last, inode.size());
            transaction.put(Key::logged(id), &operation.encode());
            transaction.commit(Depends::Nothing)?;
            drop(meta);
            return self.run_logged_live(inode, id, operation);
        }
        let kept = found
            .iter()
            .flat_map(|extent| [extent.clip(0, first), extent.clip(last, u64::MAX)])
            .flatten()
            .collect();
        let plan = Replacement::between(found, kept);
        let mut record = meta.record.clone();
        record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
        transaction.put_inode(inode.number, &record);
        transaction.extents(inode.number, plan.removed, plan.inserted);
        self.commit_extents(inode, transaction, Depends::Nothing)?;
        meta.record = record;
        Ok(())
    }

    /// Zeroes the parts of a range that are not whole blocks; gives the whole blocks as `first..last`.
    fn zero_edges(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<(u64, u64)> {
        let block = BLOCK_SIZE as u64;
        let (first, last) = (offset.div_ceil(block), end / block);
        let mapping = inode.mapping();
        if first > last {
            mapping.zero(offset, end)?;
            return Ok((first, first));
        }
        if offset < first * block {
            mapping.zero(offset, first * block)?;
        }
        if last * block < end {
            mapping.zero(last * block, end)?;
        }
        Ok((first, last))
    }

    /// Makes whole blocks of a range unwritten; they have homes already.
    fn zero_blocks(self: &Arc<Engine>, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        let (first, last) = self.zero_edges(inode, offset, end)?;
        if first >= last {
            return Ok(());
        }
        let extents = self.extents_in(inode, first, last - first, EXTENTS_PER_TRANSACTION + 1)?;
        if extents.len() <= EXTENTS_PER_TRANSACTION {
            return self.unwrite(inode, first, last);
        }
        let (id, operation) = self.logged_operation(inode, LoggedKind::Zero, first, last, inode.size());
        let mut transaction = self.begin(Cost::new(1, 128))?;
        transaction.put(Key::logged(id), &operation.encode());
        transaction.commit(Depends::Nothing)?;
        match self.unwrite(inode, first, last) {
            Ok(()) => self.finish_logged_live(inode, id, operation),
            // It cannot stay half done. Finishing it as after a crash frees the blocks, which reads as zeros too.
            Err(error) => self.run_logged_live(inode, id, operation).and(Err(error)),
        }
    }

    /// Makes what is written of whole blocks unwritten, and drops them from the cache.
    fn unwrite(&self, inode: &InodeRef, first: u64, last: u64) -> Result<()> {
        inode.mapping().drop_range(first, last);
        let mut at = first;
        while at < last {
            let mut transaction =
                self.begin(Cost::new(1, 128).with_extents(2 * EXTENTS_PER_TRANSACTION + 4))?;
            let mut meta = inode.meta();
            let found = self.extents_in(inode, at, last - at, EXTENTS_PER_TRANSACTION)?;
            let pieces: Vec<Extent> = found
                .iter()
                .filter_map(|extent| extent.clip(at, last))
                .map(|extent| Extent { unwritten: true, ..extent })
                .collect();
            at = pieces.last().map_or(last, Extent::file_end);
            let plan = self.plan_overlay(inode, &pieces)?;
            if plan.len() == 0 {
                continue;
            }
            let record = meta.record.clone();
            transaction.put_inode(inode.number, &record);
            transaction.extents(inode.number, plan.removed, plan.inserted);
            self.commit_extents(inode, transaction, Depends::Nothing)?;
            meta.record = record;
        }
        Ok(())
    }

    /// Sees to it that whole blocks beyond the end of file read as zeros once the size passes them. They are holes or
    /// unwritten, but for what a crash left: blocks written ahead of a gap that the size never passed (J6). The caller
    /// holds the size lock.
    pub(crate) fn settle_beyond(&self, inode: &InodeRef, first: u64, last: u64) -> Result<()> {
        let mut at = first;
        while at < last {
            let found = inode.read_extents(at, last - at, 64)?;
            if found.iter().any(|extent| !extent.unwritten) {
                return self.unwrite(inode, at, last);
            }
            at = if found.len() < 64 { last } else { found.last().map_or(last, Extent::file_end) };
        }
        Ok(())
    }

    /// Gives every hole of a range unwritten blocks.
    fn fill_holes(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE as u64, blocks_for(end));
        // Blocks that wait for delayed allocation get their homes by being written.
        inode.mapping().write_back(first, last)?;
        let mut missing = 0;
        self.for_each_hole(inode, first, last, |start, count| {
            missing += count;
            let _ = start;
            Ok(())
        })?;
        let reservation = self.alloc.reserve(missing)?;
        let mut holes = Vec::new();
        self.for_each_hole(inode, first, last, |start, count| {
            holes.push((start, count));
            Ok(())
        })?;
        let mut funding = reservation;
        for (start, count) in holes {
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
        funding: &mut quire_alloc::SpaceReservation<'a>,
    ) -> Result<u64> {
        let mut transaction = self.begin(Cost::new(1, 128).with_extents(EXTENTS_PER_TRANSACTION))?;
        let mut meta = inode.meta();
        let goal = self.allocation_goal(inode, at)?;
        let mut runs = self.alloc.allocate(quire_alloc::Funding::Reserved(funding), goal, count, 1)?;
        // A fragmented volume may give more runs than one transaction takes.
        if runs.len() > EXTENTS_PER_TRANSACTION / 4 {
            let surplus = runs.split_off(EXTENTS_PER_TRANSACTION / 4);
            funding.merge(self.alloc.cancel(&surplus)?);
        }
        let mut pieces = Vec::new();
        let mut covered = 0;
        for run in &runs {
            pieces.extend(extents_of_run(at + covered, *run, true));
            covered += run.blocks;
        }
        let committed = (|| {
            let plan = self.plan_overlay(inode, &pieces)?;
            let mut record = meta.record.clone();
            record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
            transaction.put_inode(inode.number, &record);
            transaction.extents(inode.number, plan.removed, plan.inserted);
            self.commit_extents(inode, transaction, Depends::Nothing)?;
            meta.record = record;
            Ok(())
        })();
        if let Err(error) = committed {
            drop(self.alloc.cancel(&runs)?);
            return Err(error);
        }
        Ok(covered)
    }

    /// Calls `visit(first block, count)` for each hole of `first..last`.
    fn for_each_hole(
        &self,
        inode: &InodeRef,
        first: u64,
        last: u64,
        mut visit: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut at = first;
        while at < last {
            let found = inode.read_extents(at, last - at, 256)?;
            let full = found.len() == 256;
            for extent in found {
                if extent.file_block > at {
                    visit(at, extent.file_block - at)?;
                }
                at = at.max(extent.file_end());
            }
            if !full {
                if at < last {
                    visit(at, last - at)?;
                }
                return Ok(());
            }
        }
        Ok(())
    }
}
