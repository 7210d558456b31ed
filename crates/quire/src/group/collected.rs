//! What a group has collected for one file.
//!
//! Bytes in memory, by offset, over whole blocks that have left the memory for fresh blocks of the disk; and
//! the runs of blocks that both touch, whole units: of these the group's limits are made, so they are counted
//! as the writes come.
//!
//! Invariant: `runs` and `blocks` follow from the content and the file's unit. The unit may change before the
//! commit, which therefore counts again ([`GroupPart::runs`], [`Collected::runs_now`]).
//!
//! Neighbours: [`super`] collects; [`super::commit`] and [`super::exchange`] write.

use super::pieces::Pieces;
use super::streamed::Streamed;
use crate::inode::InodeRef;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};
use quire_cache::GroupPart;
use rangemap::RangeSet;
use std::ops::Range;

/// A group's bytes for one file.
pub(super) struct Collected {
    pub(super) inode: InodeRef,
    /// In memory, over what is on disk.
    pub(super) pieces: Pieces,
    /// On disk.
    pub(super) streamed: Streamed,
    /// The size, if the group has set one; nothing lies beyond it.
    pub(super) size: Option<u64>,
    /// The lowest size that the group has set. What the file holds beyond it when the group is committed is
    /// gone, also where the group has made the file longer again.
    cut: Option<u64>,
    /// The blocks of everything.
    runs: RangeSet<u64>,
    blocks: u64,
}

impl Collected {
    pub(super) fn new(inode: &InodeRef) -> Collected {
        Collected {
            inode: inode.clone(),
            pieces: Pieces::default(),
            streamed: Streamed::new(inode),
            size: None,
            cut: None,
            runs: RangeSet::new(),
            blocks: 0,
        }
    }

    /// The end of the last byte written, or the size that was set.
    pub(super) fn end(&self) -> u64 {
        let in_memory = self.pieces.last().map_or(0, |piece| piece.end);
        let on_disk = self.streamed.last().map_or(0, |run| run.end * BLOCK_SIZE as u64);
        self.size.unwrap_or(in_memory.max(on_disk))
    }

    /// Where the last bytes that were written in one piece begin, or earlier.
    pub(super) fn last_start(&self) -> Option<u64> {
        let in_memory = self.pieces.last().map(|piece| piece.start);
        in_memory.max(self.streamed.last().map(|run| run.start * BLOCK_SIZE as u64))
    }

    /// The size that a crash has to leave with the group, if the file ends before it on disk. Plain writes
    /// may have made the file longer already. Then the size goes to the end of the group's last block, or
    /// unit, as it goes over plain writes, or to the end of the file: never to the group's own end, which the
    /// file never had. Also where the group itself ends before the end on disk: the rest of its last unit is
    /// written with it. The size on disk never falls while the gate's permit is held.
    pub(super) fn earns(&self, on_disk: u64) -> Option<u64> {
        let (end, size) = (self.end(), self.inode.size());
        let reached = match self.size {
            None if end < size => end.next_multiple_of(unit_of(&self.inode) * BLOCK_SIZE as u64).min(size),
            _ => end,
        };
        (reached > on_disk).then_some(reached)
    }

    /// As [`Collected::earns`], for a caller that holds no `meta`.
    pub(super) fn earns_now(&self) -> Option<u64> {
        let on_disk = self.inode.meta().record.size;
        self.earns(on_disk)
    }

    /// The size as the group's owner sees it.
    pub(super) fn seen_size(&self) -> u64 {
        self.size.unwrap_or(self.inode.size().max(self.end()))
    }

    /// The blocks of a range of bytes, whole units.
    fn blocks_of(&self, start: u64, end: u64) -> Range<u64> {
        let unit = unit_of(&self.inode);
        start / BLOCK_SIZE as u64 / unit * unit..blocks_for(end).next_multiple_of(unit)
    }

    /// Blocks that it writes, whole units, if it writes `[start, end)` as well.
    pub(super) fn blocks_with(&self, start: u64, end: u64) -> u64 {
        let blocks = self.blocks_of(start, end);
        let new: u64 = match blocks.is_empty() {
            true => 0,
            false => self.runs.gaps(&blocks).map(|gap| gap.end - gap.start).sum(),
        };
        self.blocks + new
    }

    /// Blocks that it writes, and the runs that they make.
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.blocks, self.runs.len())
    }

    /// Puts bytes over what is there. The size follows with [`Collected::reach`].
    pub(super) fn insert(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let blocks = self.blocks_of(offset, end);
        self.blocks = self.blocks_with(offset, end);
        self.runs.insert(blocks);
        self.pieces.insert(offset, data);
    }

    /// A size that the group has set rises to `end`.
    pub(super) fn reach(&mut self, end: u64) {
        self.size = self.size.map(|size| size.max(end));
    }

    /// Sets the size, and takes out what lies beyond. On an error nothing has changed.
    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        let block = size / BLOCK_SIZE as u64;
        let start = block * BLOCK_SIZE as u64;
        let first_cut = match start < size && self.streamed.contains(block) {
            // Only whole blocks are on disk: what is left of this one comes back.
            true => {
                let mut left = vec![0; (size - start) as usize];
                self.overlay(start, &mut left)?;
                self.pieces.insert(start, &left);
                block
            }
            false => blocks_for(size),
        };
        self.pieces.take_out(size, u64::MAX);
        self.streamed.cut(first_cut);
        let in_memory = self.pieces.spans().into_iter().map(|span| self.blocks_of(span.start, span.end));
        let on_disk = self
            .streamed
            .runs()
            .map(|run| self.blocks_of(run.start * BLOCK_SIZE as u64, run.end * BLOCK_SIZE as u64));
        self.runs = in_memory.chain(on_disk).collect();
        self.blocks = self.runs.iter().map(|run| run.end - run.start).sum();
        self.size = Some(size);
        self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
        Ok(())
    }

    /// Where the file's own bytes end, as the group leaves them: see `cut`.
    pub(super) fn keeps(&self) -> u64 {
        self.cut.unwrap_or(u64::MAX)
    }

    /// Lays what the group has over what a read from `offset` gave.
    pub(super) fn overlay(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.streamed.overlay(offset, out)?;
        self.pieces.overlay(offset, out);
        Ok(())
    }

    /// Writes what needs nothing of the file to fresh blocks: blocks that the group has as a whole. The rest
    /// stays in memory. After an error it is unknown what the fresh blocks hold.
    pub(super) fn stream(&mut self, buffer: &mut [u8]) -> Result<()> {
        let size = BLOCK_SIZE as u64;
        let mut whole: RangeSet<u64> = RangeSet::new();
        for span in self.pieces.spans() {
            let covered = span.start.div_ceil(size)..span.end / size;
            if !covered.is_empty() {
                whole.insert(covered);
            }
            // Written over in part.
            for edge in [span.start / size, (span.end - 1) / size] {
                if self.streamed.contains(edge) {
                    whole.insert(edge..edge + 1);
                }
            }
        }
        let new: u64 =
            whole.iter().flat_map(|run| self.streamed.gaps(run)).map(|gap| gap.end - gap.start).sum();
        self.streamed.ensure(self.streamed.blocks() + new, 0)?;
        for run in whole.iter() {
            let known: RangeSet<u64> = self.streamed.within(run);
            self.streamed.assign(run);
            self.streamed.write(run, buffer, |first, out| self.compose(&known, first, out))?;
        }
        for run in whole.iter() {
            self.pieces.take_out(run.start * size, run.end * size);
        }
        Ok(())
    }

    /// What blocks from `first` on hold, of which `known` are on disk already.
    fn compose(&self, known: &RangeSet<u64>, first: u64, out: &mut [u8]) -> Result<()> {
        let start = first * BLOCK_SIZE as u64;
        for (at, block) in (first..).zip(out.chunks_exact_mut(BLOCK_SIZE)) {
            let from = (at - first) * BLOCK_SIZE as u64 + start;
            if known.contains(&at) && !self.pieces.covers(from, from + BLOCK_SIZE as u64) {
                self.streamed.overlay(from, block)?;
            }
        }
        self.pieces.overlay(start, out);
        Ok(())
    }

    /// Zeros for what the blocks that the group writes in part hold beyond a cut, and for the rest of the
    /// block in which the cut is: else the file's own bytes would stay there. `keeps` and the file's size do
    /// not change meanwhile. For what one record takes; else [`Collected::cut_filler`] does, in less memory.
    pub(super) fn fillers(&self) -> Vec<(u64, Vec<u8>)> {
        if self.cut.is_none() {
            return Vec::new();
        }
        let (size, unit) = (BLOCK_SIZE as u64, unit_of(&self.inode));
        let from_unit = |first: u64, end: u64| first / unit * unit..end;
        let mut runs: RangeSet<u64> = self.streamed.runs().map(|run| from_unit(run.start, run.end)).collect();
        runs.extend(
            self.pieces.spans().into_iter().map(|span| from_unit(span.start / size, blocks_for(span.end))),
        );
        runs.extend(self.cut_block());
        self.zeros_beyond_cut(&runs)
    }

    /// Of these zeros only the rest of the block in which the cut is, so that this block is written: for a
    /// commit that reads no bytes of the file beyond `keeps`.
    pub(super) fn cut_filler(&self) -> Vec<(u64, Vec<u8>)> {
        self.zeros_beyond_cut(&self.cut_block().into_iter().collect())
    }

    /// The block in which the cut is, if the file has bytes of its own behind the cut there.
    fn cut_block(&self) -> Option<Range<u64>> {
        let is_inside = |cut: &u64| *cut < self.inode.size() && !cut.is_multiple_of(BLOCK_SIZE as u64);
        let block = self.cut.filter(is_inside)? / BLOCK_SIZE as u64;
        Some(block..block + 1)
    }

    /// Zeros for what the group has not itself, beyond the cut, of runs of blocks.
    fn zeros_beyond_cut(&self, runs: &RangeSet<u64>) -> Vec<(u64, Vec<u8>)> {
        let (size, cut) = (BLOCK_SIZE as u64, self.keeps());
        let missing = runs.iter().flat_map(|run| self.streamed.gaps(run));
        let bytes = missing.map(|gap| cut.max(gap.start * size)..gap.end * size);
        let in_memory: RangeSet<u64> = self.pieces.spans().into_iter().collect();
        let gaps = |bytes: Range<u64>| in_memory.gaps(&bytes).collect::<Vec<_>>();
        let bytes = bytes.filter(|bytes| !bytes.is_empty()).flat_map(gaps);
        bytes.map(|gap| (gap.start, vec![0; (gap.end - gap.start) as usize])).collect()
    }

    /// What is in memory, as the cache takes it, with [`Collected::fillers`] or [`Collected::cut_filler`].
    pub(super) fn part<'a>(&'a self, fillers: &'a [(u64, Vec<u8>)]) -> GroupPart<'a> {
        let mut ranges: Vec<(u64, &[u8])> = self.pieces.iter().collect();
        ranges.extend(fillers.iter().map(|(at, bytes)| (*at, &bytes[..])));
        ranges.sort_unstable_by_key(|(at, _)| *at);
        GroupPart {
            mapping: self.inode.mapping(),
            ranges,
            unit: unit_of(&self.inode),
            blocks: blocks_for(self.inode.size().min(self.keeps())),
        }
    }

    /// All runs of blocks that the group writes, with the rest of their units; `part` is what is in memory.
    pub(super) fn runs_now(&self, part: &GroupPart<'_>) -> RangeSet<u64> {
        let mut runs: RangeSet<u64> = part.runs().into_iter().map(|(first, end)| first..end).collect();
        let unit = part.unit;
        for run in self.streamed.runs() {
            let end = run.end.next_multiple_of(unit).min(part.blocks.max(run.end));
            runs.insert(run.start / unit * unit..end);
        }
        runs
    }
}

/// Blocks of the file's unit, or 1.
fn unit_of(inode: &InodeRef) -> u64 {
    inode.unit_blocks().unwrap_or(1)
}
