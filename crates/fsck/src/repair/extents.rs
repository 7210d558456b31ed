//! Fixes of extents: overlaps in a file, blocks that are not the file's, blocks that two files have.
//!
//! Blocks that two files have stay with the older inode; the other gets a copy, in blocks that are free by
//! all accounts and marked used in the same commit. The copy is durable before any extent names it. A
//! repair that may lose data makes a hole of what it cannot copy.
//!
//! Neighbours: [`super::mender`] calls this; [`crate::space`] has found what is shared.

use super::mender::Mender;
use crate::fix::{Fixes, Relocation};
use crate::space;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, InodeNo, Result};
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::{Extent, Run, carve, extents_of_run, overlay};
use quire_format::key::Key;
use quire_format::region::{REGION_BLOCKS, RegionMap, split_by_region};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Blocks copied at once.
const COPY_BLOCKS: u64 = 256;

/// What is left of a file's extents without its holes, which ascend: (inode, first file block, blocks).
fn without(extents: &[Extent], holes: &[(u64, u64, u64)]) -> Vec<Extent> {
    let mut left = Vec::with_capacity(extents.len());
    // Holes of which the end has been passed; they may overlap, so the furthest end counts.
    let (mut next, mut open_end) = (0, 0);
    for extent in extents {
        let mut at = extent.file_block;
        while let Some(&(_, start, blocks)) = holes.get(next).filter(|hole| hole.1 < extent.file_end()) {
            left.extend(extent.clip(at.max(open_end), start));
            open_end = open_end.max(start.saturating_add(blocks));
            at = at.max(start);
            next += 1;
        }
        left.extend(extent.clip(at.max(open_end), u64::MAX));
    }
    left
}

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
        let mut punch = fixes.punch.clone();
        punch.sort_unstable();
        for holes in punch.chunk_by(|one, other| one.0 == other.0) {
            let inode = holes[0].0;
            let extents = self.extents(inode)?;
            let left = without(&extents, holes);
            self.replace(inode, &extents, &left)?;
        }
        self.relocate_all(&fixes.relocate)
    }

    /// The extents of an inode that decode.
    fn extents(&mut self, inode: u64) -> Result<Vec<Extent>> {
        self.session.commit()?;
        self.extents_between(Key::extent(InodeNo(inode), 0), Key::extent(InodeNo(inode), u64::MAX))
    }

    /// Those that reach into file blocks `from..to`, which is not empty, and perhaps the one before.
    fn extents_about(&mut self, inode: u64, from: u64, to: u64) -> Result<Vec<Extent>> {
        self.session.commit()?;
        let (lowest, first) = (Key::extent(InodeNo(inode), 0), Key::extent(InodeNo(inode), from));
        let before = self.view.tree.last_at_or_before(first, lowest)?;
        let first = before.map_or(first, |(key, _)| key);
        self.extents_between(first, Key::extent(InodeNo(inode), to - 1))
    }

    fn extents_between(&self, first: Key, last: Key) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        self.view.tree.scan(first, last, &mut |key, value| {
            extents.extend(Extent::decode(key.offset, value));
            ControlFlow::Continue(())
        })?;
        Ok(extents)
    }

    /// Puts and deletes what differs. An old extent goes in the commit that has all that takes its place: the
    /// repair after a crash frees blocks that no extent names.
    fn replace(&mut self, inode: u64, old: &[Extent], new: &[Extent]) -> Result<()> {
        let by_place = |list: &[Extent]| BTreeMap::from_iter(list.iter().map(|one| (one.file_block, *one)));
        let (old, new) = (by_place(old), by_place(new));
        let mut end = 0;
        for place in BTreeSet::from_iter(old.keys().chain(new.keys())) {
            if *place >= end {
                self.commit_if_many()?;
            }
            let (before, after) = (old.get(place), new.get(place));
            end = [before, after].into_iter().flatten().map(Extent::file_end).fold(end, u64::max);
            let key = Key::extent(InodeNo(inode), *place);
            match after {
                Some(after) if before != Some(after) => self.session.put(key, &after.encode()),
                Some(_) => {}
                None => self.session.delete(key),
            }
        }
        self.session.commit()
    }

    /// Copies first, all of them, then one flush, then the extents that name the copies.
    fn relocate_all(&mut self, relocations: &[Relocation]) -> Result<()> {
        let relocations = BTreeSet::from_iter(relocations);
        let wanted: u64 = relocations.iter().map(|relocation| relocation.blocks).sum();
        if wanted == 0 {
            return Ok(());
        }
        let mut free = self.free_runs(wanted)?;
        let mut copied = Vec::with_capacity(relocations.len());
        for relocation in relocations {
            if let Some((_, part)) = self.still_there(relocation)? {
                let copies = match self.copies(&part, &mut free) {
                    Err(error) if self.gives_up => {
                        tracing::debug!(%error, inode = relocation.inode, "shared blocks become a hole");
                        Vec::new()
                    }
                    copies => copies?,
                };
                copied.push((relocation, copies));
            }
        }
        self.backend.flush()?;
        for (relocation, copies) in copied {
            // Of one file's blocks, an earlier relocation may have had the same.
            let Some((extents, part)) = self.still_there(relocation)? else { continue };
            for copy in &copies {
                self.mark_used(copy.run())?;
            }
            let new = overlay(&carve(&extents, part.file_block, part.file_end()), &copies);
            self.replace(relocation.inode, &extents, &new)?;
        }
        Ok(())
    }

    /// The extents about a relocation, and the part of one that it is of; `None` if an earlier fix of the
    /// round has changed it.
    fn still_there(&mut self, relocation: &Relocation) -> Result<Option<(Vec<Extent>, Extent)>> {
        let Relocation { inode, file_block, blocks, disk_block } = *relocation;
        let extents = self.extents_about(inode, file_block, file_block + blocks)?;
        let part =
            extents.iter().find_map(|extent| extent.clip(file_block, file_block + blocks)).filter(|part| {
                part.disk_block.0 + file_block - part.file_block == disk_block
                    && u64::from(part.len) == blocks
            });
        Ok(part.map(|part| (extents, part)))
    }

    /// Free runs of the data space with `wanted` blocks in all, if there are as many; the last comes first to
    /// hand.
    fn free_runs(&self, wanted: u64) -> Result<Vec<Run>> {
        let superblock = self.view.superblock;
        let (mut at, mut found) = (superblock.data_start.0, 0);
        let mut free: Vec<Run> = Vec::new();
        let mut take = |from: u64, to: u64| {
            let to = to.min(superblock.data_end.0);
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
        take(at, superblock.data_end.0);
        free.reverse();
        Ok(free)
    }

    /// A file's own copy of its blocks, written but named by no extent yet.
    ///
    /// Errors: `NoSpace`, before any file has lost what it shares.
    fn copies(&self, part: &Extent, free: &mut Vec<Run>) -> Result<Vec<Extent>> {
        let mut copies: Vec<Extent> = Vec::new();
        let (mut done, blocks) = (0, u64::from(part.len));
        while done < blocks {
            let run = free.pop().ok_or_else(|| {
                Error::new(
                    ErrorKind::NoSpace,
                    "the volume has no free blocks for a copy of what two files share: delete some files, or let the \
                     volume grow (quire resize), then run the repair again",
                )
            })?;
            let count = run.blocks.min(blocks - done);
            if count < run.blocks {
                free.push(Run::new(run.start.offset(count), run.blocks - count));
            }
            let run = Run::new(run.start, count);
            self.copy(part.disk_block.offset(done), run)?;
            copies.extend(extents_of_run(
                part.file_block + done,
                run,
                part.unwritten,
                self.view.superblock.epoch,
            ));
            done += count;
        }
        Ok(copies)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn holes_at_once_are_holes_one_by_one(
            gaps in proptest::collection::vec((0u64..4, 1u32..9), 0..20),
            mut holes in proptest::collection::vec((Just(7u64), 0u64..150, 1u64..20), 0..20),
        ) {
            let (mut extents, mut at) = (Vec::new(), 0);
            for (gap, len) in gaps {
                let file_block = at + gap;
                extents.push(Extent { file_block, disk_block: BlockNo(1000 + at * 3), len, unwritten: false, birth: 0 });
                at = file_block + u64::from(len);
            }
            holes.sort_unstable();
            let one_by_one = holes.iter().fold(extents.clone(), |left, hole| carve(&left, hole.1, hole.1 + hole.2));
            prop_assert_eq!(without(&extents, &holes), one_by_one);
        }
    }
}
