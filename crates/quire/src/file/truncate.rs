//! Explicit size changes.
//!
//! Protocol, with the gate held exclusively and the exclusive sequence odd:
//! * *Shrinking*: growth below the new size that has not reached the disk is written back first (so that the
//!   new size does not expose what was never written). When everything that can fail is done
//!   ([`super::prepared`]) the partial block at the new end is zeroed in the cache, folios beyond are
//!   dropped, and one transaction sets the size and frees the extents. Where they are too many for one
//!   transaction it sets the size and logs the operation, and bounded transactions free the rest.
//! * *Growing*: the partial block at the old end is zeroed and written back before a record raises the size
//!   past it (J6), since after a crash its tail on disk may still hold what an earlier truncate cut off.
//!
//! A truncate that frees nothing is one small transaction, with neither orphan nor logged operation.
//!
//! Neighbours: [`crate::reaper`] frees bounded pieces and finishes logged operations after a crash.

use super::prepared::Plan;
use super::range_end;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::inode::{Inode, InodeRef};
use crate::lease::moving::Moving;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};

impl Engine {
    /// Sets a file's size in bytes. What lies beyond is gone; what is gained reads as zeros. Its set-id bits
    /// and capabilities go too.
    pub(crate) fn truncate(self: &Arc<Engine>, inode: &InodeRef, size: u64) -> Result<()> {
        let moving = self.begin_moving()?;
        inode.check_regular()?;
        range_end(size, 0)?;
        self.clear_privileges(inode)?;
        self.resize_begun(moving, inode, size)
    }

    /// As [`Engine::truncate`], for callers that decide about set-id bits themselves.
    pub(crate) fn resize(self: &Arc<Engine>, inode: &InodeRef, size: u64) -> Result<()> {
        let moving = self.begin_moving()?;
        inode.check_regular()?;
        range_end(size, 0)?;
        self.clear_capabilities(inode)?;
        self.resize_begun(moving, inode, size)
    }

    fn resize_begun(self: &Arc<Engine>, mut moving: Moving<'_>, inode: &InodeRef, size: u64) -> Result<()> {
        let blocks = || inode.blocks_resized(size);
        self.retry_without_space(|| {
            self.exclusively_moving(inode, &mut moving, blocks, || self.set_size(inode, size))
        })
    }

    /// As [`Engine::truncate`], for callers that hold the gate exclusively and the size lock.
    pub(crate) fn set_size(self: &Arc<Engine>, inode: &InodeRef, size: u64) -> Result<()> {
        if size > inode.size() { self.grow(inode, size) } else { self.shrink(inode, size) }
    }

    /// Zeroes the tail of the partial block at the end of the file and puts it on disk, so that a record may
    /// raise the size.
    pub(crate) fn settle_tail(&self, inode: &InodeRef) -> Result<()> {
        let size = inode.size();
        let block_end = size.next_multiple_of(BLOCK_SIZE as u64);
        if size < block_end {
            let mapping = inode.mapping();
            mapping.zero(size, block_end)?;
            let block = size / BLOCK_SIZE as u64;
            mapping.write_back(block, block + 1)?;
        }
        Ok(())
    }

    /// Puts on disk what must be there before a record raises the size to `size`.
    pub(crate) fn settle_growth(&self, inode: &InodeRef, size: u64) -> Result<()> {
        // Growth that has not reached the disk goes first: the block at the end on disk may still hold there
        // what an earlier truncate cut off.
        let on_disk = inode.meta().record.size;
        if on_disk < inode.size()
            && let Some(mapping) = inode.mapping.get()
        {
            let growth = inode.blocks_touched(on_disk, inode.size());
            mapping.write_back(growth.start, growth.end)?;
        }
        self.settle_tail(inode)?;
        // A larger size shows all of the unit in which the file ends so far.
        self.settle_end(inode, inode.size())?;
        self.settle_end(inode, size)?;
        self.settle_beyond(inode, blocks_for(inode.size()), blocks_for(size))
    }

    fn grow(&self, inode: &InodeRef, size: u64) -> Result<()> {
        self.settle_growth(inode, size)?;
        let mut transaction = self.store.begin(Cost::new(1, 128))?;
        transaction.warm(&[Key::inode(inode.number)])?;
        let mut meta = inode.meta();
        inode.fold_times(&mut meta);
        let record = self.with_size(&meta.record, size);
        transaction.put_inode(inode.number, &record);
        let seq = transaction.commit(inode.written())?;
        inode.committed_data(seq);
        meta.record = record;
        meta.dirty = false;
        inode.set_size(&mut meta, size);
        Ok(())
    }

    /// The record with another size, changed now.
    pub(crate) fn with_size(&self, record: &InodeRecord, size: u64) -> InodeRecord {
        let now = self.store.options.clock.now();
        InodeRecord { size, mtime: now, ctime: now, ..record.clone() }
    }

    /// Writes back the unit in which the file ends, or is to end: else a crash could leave a record with
    /// another size, and take a write to the unit that came before it.
    pub(crate) fn settle_end(&self, inode: &InodeRef, size: u64) -> Result<()> {
        if let (Some(mapping), Some(unit)) = (inode.mapping.get(), inode.unit_blocks()) {
            let start = size / BLOCK_SIZE as u64 / unit * unit;
            let is_inside = size > start * BLOCK_SIZE as u64;
            if is_inside && start < blocks_for(inode.size()) {
                mapping.write_back(start, start + unit)?;
            }
        }
        Ok(())
    }

    fn shrink(self: &Arc<Engine>, inode: &InodeRef, size: u64) -> Result<()> {
        let first = blocks_for(size);
        self.settle_end(inode, size)?;
        let on_disk = inode.meta().record.size;
        if let Some(mapping) = inode.mapping.get()
            && on_disk < size
        {
            let growth = inode.blocks_touched(on_disk, size);
            mapping.write_back(growth.start, growth.end)?;
        }
        let cuts_block = !size.is_multiple_of(BLOCK_SIZE as u64) && size < inode.size();
        let edge = match cuts_block {
            true => inode.mapping().prepare_zero(size, first * BLOCK_SIZE as u64)?,
            false => None,
        };
        let plan = Plan {
            bytes: size..u64::MAX,
            blocks: first..FILE_BLOCKS_MAX,
            edges: edge.into_iter().collect(),
            may_log: true,
        };
        let cost = |extents| Cost::new(3, 256).with_extents(extents + 2).critical();
        let logged = self.prepare(inode, plan, cost)?.apply(|mut transaction, room| {
            let mut meta = inode.meta();
            inode.fold_times(&mut meta);
            let mut record = self.with_size(&meta.record, size);
            let logged = match room.logged {
                Some(id) => {
                    let operation =
                        self.logged_operation(inode, LoggedKind::Truncate, first, FILE_BLOCKS_MAX, size);
                    transaction.put(Key::logged(id), &operation.encode());
                    Some((id, operation))
                }
                None => {
                    let beyond = self.store.extents_in(inode, first, FILE_BLOCKS_MAX - first, usize::MAX)?;
                    let kept = beyond.iter().filter_map(|extent| extent.clip(0, first)).collect();
                    let plan = Replacement::between(beyond, kept);
                    record.blocks = record.blocks.saturating_add_signed(plan.blocks_gained());
                    self.change_extents(&mut transaction, inode, plan);
                    None
                }
            };
            transaction.put_inode(inode.number, &record);
            // Growth was written back so that the new size may show it.
            let grows = size > meta.record.size;
            let depends = if grows { inode.written() } else { Depends::Nothing };
            self.store.commit_extents(inode, transaction, depends)?;
            meta.record = record;
            meta.dirty = false;
            meta.emptied |= size == 0;
            // Under the lock: nobody may see the new record with the old size and raise it again.
            inode.set_size(&mut meta, size);
            Ok(logged)
        })?;
        if let Some((id, operation)) = logged {
            self.run_logged_live(inode, id, operation)?;
        }
        Ok(())
    }

    /// The id of a logged operation that is to begin.
    pub(crate) fn new_logged_id(&self) -> u64 {
        self.store.next_logged.fetch_add(1, Ordering::Relaxed)
    }

    /// A logged operation on an inode.
    pub(crate) fn logged_operation(
        &self,
        inode: &Inode,
        kind: LoggedKind,
        start: u64,
        end: u64,
        size: u64,
    ) -> LoggedOp {
        let cursor = if kind == LoggedKind::Insert { FILE_BLOCKS_MAX } else { end };
        LoggedOp { kind, inode: inode.number, generation: inode.generation, start, end, cursor, size }
    }
}
