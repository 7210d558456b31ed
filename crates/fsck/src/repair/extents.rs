//! Fixes of extents: overlaps in a file, blocks that are not the file's, blocks that two files have.
//!
//! Blocks that two files have stay with the older inode; the other gets a copy, in blocks that are free by all
//! accounts and marked used in the same commit. The copy is durable before any extent names it.
//!
//! Neighbours: [`super::mender`] calls this; [`crate::space`] has found what is shared.

use super::mender::Mender;
use crate::fix::{Fixes, Relocation};
use crate::space;
use quire_base::{BLOCK_SIZE, BlockNo, InodeNo, Result};
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::{Extent, Run, carve, extents_of_run, overlay};
use quire_format::key::Key;
use quire_format::region::{REGION_BLOCKS, RegionMap, split_by_region};
use std::ops::ControlFlow;

/// Blocks copied at once.
const COPY_BLOCKS: u64 = 256;

impl Mender<'_> {
    pub(super) fn mend_extents(&mut self, fixes: &Fixes) -> Result<()> {
        for &inode in &fixes.disentangle {
            let extents = self.extents(inode)?;
            let mut clean: Vec<Extent> = Vec::with_capacity(extents.len());
            for extent in &extents {
                let end = clean.last().map_or(0, Extent::file_end);
                clean.extend(extent.clip(end, u64::MAX));
            }
            self.replace(inode, &extents, &clean)?;
        }
        for &(inode, file_block, blocks) in &fixes.punch {
            let extents = self.extents(inode)?;
            let left = carve(&extents, file_block, file_block.saturating_add(blocks));
            self.replace(inode, &extents, &left)?;
        }
        self.relocate_all(&fixes.relocate)
    }

    /// The extents of an inode that decode.
    fn extents(&mut self, inode: u64) -> Result<Vec<Extent>> {
        self.session.commit()?;
        let mut extents = Vec::new();
        let number = InodeNo(inode);
        self.view.tree.scan(Key::extent(number, 0), Key::extent(number, u64::MAX), &mut |key, value| {
            extents.extend(Extent::decode(key.offset, value));
            ControlFlow::Continue(())
        })?;
        Ok(extents)
    }

    /// Puts and deletes what differs. Both lists ascend.
    fn replace(&mut self, inode: u64, old: &[Extent], new: &[Extent]) -> Result<()> {
        let number = InodeNo(inode);
        for extent in old {
            if new.binary_search_by_key(&extent.file_block, |new| new.file_block).is_err() {
                self.delete(Key::extent(number, extent.file_block))?;
            }
        }
        for extent in new {
            let same = old
                .binary_search_by_key(&extent.file_block, |old| old.file_block)
                .map(|at| old[at] == *extent);
            if same != Ok(true) {
                self.put(Key::extent(number, extent.file_block), &extent.encode())?;
            }
        }
        self.session.commit()
    }

    fn relocate_all(&mut self, relocations: &[Relocation]) -> Result<()> {
        let wanted: u64 = relocations.iter().map(|relocation| relocation.blocks).sum();
        if wanted == 0 {
            return Ok(());
        }
        let mut free = self.free_runs(wanted)?;
        for relocation in relocations {
            self.relocate(relocation, &mut free)?;
        }
        Ok(())
    }

    /// Free runs of the data space with `wanted` blocks in all, if there are as many; the last comes first to hand.
    fn free_runs(&self, wanted: u64) -> Result<Vec<Run>> {
        let superblock = self.view.superblock;
        let (mut at, mut found) = (superblock.data_start.0, 0);
        let mut free: Vec<Run> = Vec::new();
        let mut take = |from: u64, to: u64| {
            if from < to && found < wanted {
                let blocks = (to - from).min(wanted - found);
                found += blocks;
                free.push(Run::new(BlockNo(from), blocks));
            }
        };
        space::compare(self.view, &self.analysis.contents.extents, &mut |comparison| {
            let base = comparison.region * REGION_BLOCKS;
            let Ok(marked) = &comparison.marked else {
                // Unknown: not free.
                take(at, base);
                at = at.max(base + REGION_BLOCKS);
                return Ok(());
            };
            let busy: [u64; 64] = std::array::from_fn(|word| comparison.used[word] | marked[word]);
            for (start, len) in space::runs(&busy) {
                take(at, base + start);
                at = at.max(base + start + len);
            }
            Ok(())
        })?;
        take(at, superblock.block_count);
        free.reverse();
        Ok(free)
    }

    /// Gives a file its own copy of blocks; without free blocks left, a hole.
    fn relocate(&mut self, relocation: &Relocation, free: &mut Vec<Run>) -> Result<()> {
        let Relocation { inode, file_block, blocks, disk_block } = *relocation;
        let extents = self.extents(inode)?;
        // As found, and still so: an earlier fix of the round may have changed it.
        let still =
            extents.iter().find_map(|extent| extent.clip(file_block, file_block + blocks)).filter(|part| {
                part.disk_block.0 + file_block - part.file_block == disk_block
                    && u64::from(part.len) == blocks
            });
        let Some(part) = still else { return Ok(()) };
        let mut copies: Vec<Extent> = Vec::new();
        let mut done = 0;
        while done < blocks {
            let Some(run) = free.pop() else { break };
            let count = run.blocks.min(blocks - done);
            if count < run.blocks {
                free.push(Run::new(run.start.offset(count), run.blocks - count));
            }
            let run = Run::new(run.start, count);
            self.copy(part.disk_block.offset(done), run)?;
            copies.extend(extents_of_run(file_block + done, run, part.unwritten));
            done += count;
        }
        if done > 0 {
            self.backend.flush()?;
        }
        for copy in &copies {
            self.mark_used(copy.run())?;
        }
        let new = overlay(&carve(&extents, file_block, file_block + blocks), &copies);
        self.replace(inode, &extents, &new)
    }

    fn copy(&self, from: BlockNo, to: Run) -> Result<()> {
        for at in (0..to.blocks).step_by(COPY_BLOCKS as usize) {
            let mut buffer = AlignedBuf::zeroed(COPY_BLOCKS.min(to.blocks - at) as usize * BLOCK_SIZE);
            self.backend.read(IoClass::Data, from.offset(at), &mut buffer)?;
            self.backend.write(IoClass::Data, to.start.offset(at), &buffer)?;
        }
        Ok(())
    }

    /// Marks blocks in their regions; a region that does not decode is written anew later.
    fn mark_used(&mut self, run: Run) -> Result<()> {
        for (region, start, blocks) in split_by_region(run) {
            self.session.commit()?;
            let value = self.view.tree.get(Key::region(region))?;
            let Ok(mut map) = value.map_or_else(|| Ok(RegionMap::new()), |value| RegionMap::decode(&value))
            else {
                continue;
            };
            map.set_used(start, blocks)?;
            self.session.set_region(region, &map);
        }
        Ok(())
    }
}
