//! Blocks of a group that have left the memory: whole blocks of one file, written to fresh blocks of the
//! disk.
//!
//! No record names the fresh blocks. So they can be written again while the group is open, nobody but the
//! group reads them, and whatever ends the group gives them back: a drop to the allocator, a crash by
//! forgetting. The commit's transaction gives them to the file ([`super::exchange`]); from then on they are
//! the file's ([`Streamed::taken`]).
//!
//! Space. Blocks are taken before a write enters the group ([`Streamed::ensure`]), so a write that finds no
//! room leaves the group as it was, and streaming cannot run out of space. Some are taken ahead, so that a
//! group that is written in order is in few pieces.
//!
//! Invariant: what is below the group's end is whole: a block is here with all of its bytes, or not at all.
//!
//! Neighbours: [`super::collected`] decides which blocks leave the memory.

use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_alloc::Funding;
use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::{BLOCK_SIZE, BlockNo, Result, patience};
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::{EXTENT_BLOCKS_MAX, Extent, Run, extents_of_run};
use rangemap::{RangeMap, RangeSet};
use std::collections::VecDeque;
use std::ops::Range;

/// Blocks that are read at a time.
const READ_BLOCKS: u64 = 256;

/// See the module's documentation.
pub(super) struct Streamed {
    inode: InodeRef,
    /// By block of the file: its block on disk, less its own number.
    homes: RangeMap<u64, u64>,
    /// Blocks in `homes`.
    blocks: u64,
    /// Blocks that are taken and hold nothing yet.
    spare: VecDeque<Run>,
    /// Whether a record has given the blocks of `homes` to the file.
    taken: AtomicBool,
}

impl Streamed {
    pub(super) fn new(inode: &InodeRef) -> Streamed {
        Streamed {
            inode: inode.clone(),
            homes: RangeMap::new(),
            blocks: 0,
            spare: VecDeque::new(),
            taken: AtomicBool::new(false),
        }
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.inode.engine
    }

    /// Blocks that are on disk.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.homes.contains_key(&block)
    }

    /// Runs of blocks of the file, ascending.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Range<u64>> {
        self.homes.iter().map(|(run, _)| run)
    }

    /// The last run.
    pub(super) fn last(&self) -> Option<&Range<u64>> {
        self.homes.last_range_value().map(|(run, _)| run)
    }

    /// What of `run` is not here.
    pub(super) fn gaps(&self, run: &Range<u64>) -> Vec<Range<u64>> {
        self.homes.gaps(run).collect()
    }

    /// What of `run` is here.
    pub(super) fn within(&self, run: &Range<u64>) -> RangeSet<u64> {
        self.homes_of(run.clone()).into_iter().map(|(piece, _)| piece).collect()
    }

    /// The fresh blocks as extents of the file.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        let birth = self.engine().store.snapshots.epoch();
        self.homes.iter().flat_map(move |(run, shift)| {
            extents_of_run(run.start, Run::new(home(run.start, *shift), run.end - run.start), false, birth)
        })
    }

    fn spare_blocks(&self) -> u64 {
        self.spare.iter().map(|run| run.blocks).sum()
    }

    /// Takes fresh blocks until there is one for each of `blocks` blocks of the file, and if it takes any,
    /// some more, up to `ahead`. Errors: `NoSpace`.
    pub(super) fn ensure(&mut self, blocks: u64, ahead: u64) -> Result<()> {
        let missing = blocks.saturating_sub(self.blocks + self.spare_blocks());
        if missing == 0 {
            return Ok(());
        }
        let engine = self.engine().clone();
        let mut goal = match self.spare.back() {
            Some(run) => run.end(),
            None => match self.homes.last_range_value() {
                Some((run, shift)) => home(run.end, *shift),
                None => engine.allocation_goal(&self.inode, 0)?,
            },
        };
        let reserve = || engine.store.alloc.reserve_between(missing, missing.max(ahead));
        let mut reservation = engine.retry_without_space(reserve)?;
        while reservation.blocks() > 0 {
            let want = reservation.blocks().min(u64::from(EXTENT_BLOCKS_MAX));
            // All of them: in one run if there is one, else in as many as it takes.
            for run in engine.store.alloc.allocate(Funding::Reserved(&mut reservation), goal, want, want)? {
                goal = run.end();
                self.spare.push_back(run);
            }
        }
        Ok(())
    }

    /// Gives blocks of the file that have none a fresh one; there are enough ([`Streamed::ensure`]).
    pub(super) fn assign(&mut self, run: &Range<u64>) {
        for gap in self.gaps(run) {
            let mut at = gap.start;
            while at < gap.end {
                let spare = self.spare.front_mut().expect("as many spare blocks as are needed");
                let count = spare.blocks.min(gap.end - at);
                self.homes.insert(at..at + count, spare.start.0.wrapping_sub(at));
                *spare = Run::new(spare.start.offset(count), spare.blocks - count);
                if spare.blocks == 0 {
                    self.spare.pop_front();
                }
                at += count;
            }
            self.blocks += gap.end - gap.start;
        }
    }

    /// Pieces of `run`, each in one run on disk, and where.
    fn homes_of(&self, run: Range<u64>) -> Vec<(Range<u64>, BlockNo)> {
        let clip = |(piece, shift): (&Range<u64>, &u64)| {
            let piece = piece.start.max(run.start)..piece.end.min(run.end);
            (piece.clone(), home(piece.start, *shift))
        };
        self.homes.overlapping(run.clone()).map(clip).collect()
    }

    /// Writes blocks that have fresh ones. `compose` fills memory from a block of the file on.
    pub(super) fn write(
        &self,
        run: &Range<u64>,
        buffer: &mut [u8],
        mut compose: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        for (piece, start) in self.homes_of(run.clone()) {
            let mut at = piece.start;
            while at < piece.end {
                let count = ((buffer.len() / BLOCK_SIZE) as u64).min(piece.end - at);
                let bytes = &mut buffer[..count as usize * BLOCK_SIZE];
                compose(at, bytes)?;
                self.engine().store.device.write(IoClass::Data, start.offset(at - piece.start), bytes)?;
                at += count;
            }
        }
        Ok(())
    }

    /// Lays what is on disk over what a read from `offset` gave.
    pub(super) fn overlay(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (size, end) = (BLOCK_SIZE as u64, offset + out.len() as u64);
        if out.is_empty() {
            return Ok(());
        }
        for (piece, start) in self.homes_of(offset / size..end.div_ceil(size)) {
            patience::check("a large group's blocks")?;
            let mut at = piece.start;
            while at < piece.end {
                let count = READ_BLOCKS.min(piece.end - at);
                let mut bytes = AlignedBuf::blocks(count as usize);
                self.engine().store.device.read(IoClass::Data, start.offset(at - piece.start), &mut bytes)?;
                let from = at * size;
                let (low, high) = (from.max(offset), (from + count * size).min(end));
                out[(low - offset) as usize..(high - offset) as usize]
                    .copy_from_slice(&bytes[(low - from) as usize..(high - from) as usize]);
                at += count;
            }
        }
        Ok(())
    }

    /// Forgets the blocks from `first` on. Their fresh blocks are spare.
    pub(super) fn cut(&mut self, first: u64) {
        for (piece, start) in self.homes_of(first..u64::MAX) {
            let blocks = piece.end - piece.start;
            self.blocks -= blocks;
            self.spare.push_back(Run::new(start, blocks));
        }
        self.homes.remove(first..u64::MAX);
    }

    /// Gives back blocks that hold nothing, as far as more are taken than `blocks`.
    pub(super) fn release_beyond(&mut self, blocks: u64) {
        let mut surplus = (self.blocks + self.spare_blocks()).saturating_sub(blocks).min(self.spare_blocks());
        let mut released = Vec::new();
        while surplus > 0
            && let Some(run) = self.spare.pop_back()
        {
            let count = surplus.min(run.blocks);
            let kept = run.blocks - count;
            released.push(Run::new(run.start.offset(kept), count));
            if kept > 0 {
                self.spare.push_back(Run::new(run.start, kept));
            }
            surplus -= count;
        }
        self.give_back(released);
    }

    fn give_back(&self, runs: Vec<Run>) {
        if !runs.is_empty()
            && let Err(error) = self.engine().store.alloc.cancel(&runs)
        {
            tracing::error!(%error, "giving back the blocks of a group that was not committed");
        }
    }

    /// A record has given the blocks to the file.
    pub(super) fn taken(&self) {
        self.taken.store(true, Ordering::Release);
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.release_beyond(0);
        if !self.taken.load(Ordering::Acquire) {
            self.give_back(
                self.homes_of(0..u64::MAX)
                    .into_iter()
                    .map(|(run, start)| Run::new(start, run.end - run.start))
                    .collect(),
            );
        }
    }
}

/// The block on disk of a block of the file.
fn home(block: u64, shift: u64) -> BlockNo {
    BlockNo(block.wrapping_add(shift))
}
