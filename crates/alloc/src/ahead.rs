//! Blocks zeroed ahead: a small reserve of free blocks that hold durable zeros, for small data that is forced
//! at once.
//!
//! An extent record over such blocks may be made durable together with the data, in any order: what a crash
//! finds in them is zeros or the data, never what another file held.
//!
//! Protocol.
//! 1. [`Allocator::begin_zeroing`] takes a run of free blocks like any other allocation (J2: only blocks
//!    whose freeing is durable). The caller writes zeros and tells [`Allocator::end_zeroing`] the device's
//!    mark read after the write had completed.
//! 2. [`Allocator::take_zeroed`] hands a run out, if everything up to its mark has been flushed by then. A
//!    file that grows by small appends has a run of its own ahead of it (a *claim*, twice as long each time),
//!    so that logs written together do not lie block by block between one another; the first blocks of files
//!    made together are neighbours.
//! 3. When a reservation would fail, everything goes back first ([`Allocator::give_back_zeroed`]).
//!
//! The reserve lives in memory alone: no record names its blocks, so after a crash they are simply free.
//!
//! Invariants:
//! * A block is in the reserve, or handed out, or free, never two of these: its busy bit is set while it is
//!   in the reserve, and taking it out is what hands it out.
//! * A block is handed out as zeroed only if a flush submitted after its zeros were written has succeeded.
//! * To users the reserve is free space: it counts as free, its credits go back the moment it is handed out
//!   or given back, and it is never more than a 64th of what else is free when it is filled.
//! * It is filled on demand alone: who takes nothing has nothing zeroed.
//!
//! Neighbours: `fs` writes the zeros and decides which data takes such blocks; [`crate::reservation`] gives
//! back.

use crate::allocator::{Allocator, Funding};
use crate::reservation::SpaceReservation;
use quire_base::metrics::Counter;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::{BlockNo, InodeNo, Result};
use quire_format::extent::Run;
use std::collections::BTreeMap;

/// Blocks that one request takes at most; larger data is worth a flush of its own.
pub const ZEROED_AT_ONCE_MAX: u64 = 64;
/// Blocks zeroed by one write at most: 1 MiB.
const RUN_BLOCKS_MAX: u64 = 256;
/// The reserve at first, and at most: 256 KiB, 16 MiB.
const TARGET_FIRST: u64 = 64;
const TARGET_MAX: u64 = 4096;
/// The reserve is at most this part of the free space.
const PART_OF_FREE: u64 = 64;
/// Runs shorter than this are not worth a write.
const RUN_BLOCKS_MIN: u64 = 4;
/// A file's first claim, and the largest: 32 KiB, 4 MiB.
const CLAIM_FIRST: u64 = 8;
const CLAIM_MAX: u64 = 1024;
/// Files that have a run of their own.
const CLAIMS_MAX: usize = 64;

/// Zeros, and the device's mark that a flush must have covered.
#[derive(Clone, Copy, Debug)]
struct Zeroed {
    blocks: u64,
    mark: u64,
}

/// The run ahead of a file.
#[derive(Clone, Copy, Debug)]
struct Claim {
    start: BlockNo,
    zeroed: Zeroed,
    /// Blocks of the next claim of this file.
    next: u64,
    /// When it was last used.
    used: u64,
}

#[derive(Default)]
struct State {
    /// By first block.
    ready: BTreeMap<u64, Zeroed>,
    claims: BTreeMap<InodeNo, Claim>,
    /// Counts requests.
    now: u64,
    /// Blocks to have ready.
    target: u64,
    /// Where the next run should be.
    goal: BlockNo,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// Blocks in the reserve, those being zeroed included.
    blocks: AtomicU64,
    /// Of these, those being zeroed.
    zeroing: AtomicU64,
    used: AtomicBool,
    pub(crate) taken: Counter,
    pub(crate) missed: Counter,
}

impl Ahead {
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Whether anything was ever zeroed: else nothing can be given back, nor be on its way back.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }
}

impl State {
    /// Takes blocks in, and joins them with a neighbour of the same mark.
    fn insert(&mut self, start: BlockNo, zeroed: Zeroed) {
        let (mut start, mut zeroed) = (start.0, zeroed);
        if zeroed.blocks == 0 {
            return;
        }
        if let Some((&before, &other)) = self.ready.range(..start).next_back()
            && before + other.blocks == start
            && other.mark == zeroed.mark
        {
            self.ready.remove(&before);
            (start, zeroed.blocks) = (before, zeroed.blocks + other.blocks);
        }
        let end = start + zeroed.blocks;
        if let Some(other) = self.ready.get(&end).copied()
            && other.mark == zeroed.mark
        {
            self.ready.remove(&end);
            zeroed.blocks += other.blocks;
        }
        self.ready.insert(start, zeroed);
    }

    /// Takes up to `want` blocks that a flush has covered: at `goal` if they are there, else the first of a
    /// run that is long enough, else of the longest.
    fn take_ready(&mut self, goal: BlockNo, want: u64, flushed: u64) -> Option<(BlockNo, Zeroed)> {
        let is_covered = |zeroed: &Zeroed| zeroed.mark <= flushed;
        let at_goal = self.ready.get(&goal.0).filter(|zeroed| is_covered(zeroed)).map(|_| goal.0);
        let found = at_goal.or_else(|| {
            let mut longest: Option<(u64, u64)> = None;
            for (&start, zeroed) in self.ready.iter().filter(|(_, zeroed)| is_covered(zeroed)) {
                if zeroed.blocks >= want {
                    return Some(start);
                }
                if longest.is_none_or(|(_, blocks)| blocks < zeroed.blocks) {
                    longest = Some((start, zeroed.blocks));
                }
            }
            longest.map(|(start, _)| start)
        })?;
        let zeroed = self.ready.remove(&found)?;
        let got = zeroed.blocks.min(want);
        if zeroed.blocks > got {
            let rest = Zeroed { blocks: zeroed.blocks - got, ..zeroed };
            self.ready.insert(found + got, rest);
        }
        Some((BlockNo(found), Zeroed { blocks: got, ..zeroed }))
    }

    /// The next blocks of a file that grows at `goal`, from the run ahead of it.
    fn take_claimed(&mut self, inode: InodeNo, goal: BlockNo, want: u64, flushed: u64) -> Option<Run> {
        let mut claim = match self.claims.remove(&inode) {
            Some(claim) if claim.start == goal && claim.zeroed.blocks > 0 => claim,
            other => {
                let next = other.map_or(CLAIM_FIRST, |claim| claim.next);
                if let Some(claim) = other {
                    self.insert(claim.start, claim.zeroed);
                }
                self.target = self.target.max(2 * next).min(TARGET_MAX);
                let (start, zeroed) = self.take_ready(goal, next.max(want), flushed)?;
                Claim { start, zeroed, next: (2 * next).min(CLAIM_MAX), used: 0 }
            }
        };
        let run = Run::new(claim.start, want.min(claim.zeroed.blocks));
        claim.start = run.end();
        claim.zeroed.blocks -= run.blocks;
        claim.used = self.now;
        self.claims.insert(inode, claim);
        if self.claims.len() > CLAIMS_MAX
            && let Some(oldest) =
                self.claims.iter().min_by_key(|(_, claim)| claim.used).map(|(&inode, _)| inode)
        {
            self.unclaim(oldest);
        }
        Some(run)
    }

    fn unclaim(&mut self, inode: InodeNo) {
        if let Some(claim) = self.claims.remove(&inode) {
            self.insert(claim.start, claim.zeroed);
        }
    }
}

impl Allocator {
    /// Takes up to `want` blocks that hold durable zeros, for the data of `inode`, in place of as many of
    /// `reservation`: one run, near `goal` if it can be. `grows` says that `goal` is the end of what the file
    /// has: then it gets a run of its own. `flushed` is the device's flushed mark, read before. `None` if
    /// there are none; that, too, counts as demand.
    pub fn take_zeroed(
        &self,
        reservation: &mut SpaceReservation<'_>,
        (inode, grows): (InodeNo, bool),
        goal: BlockNo,
        want: u64,
        flushed: u64,
    ) -> Option<Run> {
        let want = want.min(reservation.blocks());
        if want == 0 || want > ZEROED_AT_ONCE_MAX {
            return None;
        }
        let mut state = self.ahead.state.lock();
        state.now += 1;
        state.target = state.target.max(TARGET_FIRST);
        let run = match grows {
            true => state.take_claimed(inode, goal, want, flushed),
            false => {
                state.take_ready(goal, want, flushed).map(|(start, zeroed)| Run::new(start, zeroed.blocks))
            }
        };
        let Some(run) = run else {
            if self.ahead.zeroing.load(Ordering::Relaxed) == 0 {
                state.goal = goal;
            } else {
                state.target = (2 * state.target).min(TARGET_MAX);
            }
            self.ahead.missed.add(1);
            return None;
        };
        self.ahead.blocks.fetch_sub(run.blocks, Ordering::AcqRel);
        // The reserve has paid for them: the promise that the data had goes back.
        drop(reservation.split(run.blocks));
        self.ahead.taken.add(run.blocks);
        Some(run)
    }

    /// Whether there is demand that the reserve does not meet, and space to meet it.
    pub fn wants_zeroes(&self) -> bool {
        let target = self.ahead.state.lock().target;
        2 * self.ahead.blocks() < self.bounded(target)
    }

    fn bounded(&self, target: u64) -> u64 {
        target.min(self.credits.get() / PART_OF_FREE)
    }

    /// Blocks to be zeroed now, if any are wanted: the caller writes zeros over them, all of them, and says
    /// so to [`Allocator::end_zeroing`]. May do I/O to load groups.
    pub fn begin_zeroing(&self) -> Option<Run> {
        let (target, goal) = {
            let state = self.ahead.state.lock();
            (self.bounded(state.target), state.goal)
        };
        let missing = target.saturating_sub(self.ahead.blocks()).min(RUN_BLOCKS_MAX);
        if missing < RUN_BLOCKS_MIN {
            return None;
        }
        // Straight from the credits: a reservation that is short would empty the reserve.
        let credits = self.credits.take(missing, missing).ok()?;
        self.reserved.add(credits);
        let mut funding = SpaceReservation::of(self, credits);
        let runs = self.allocate(Funding::Reserved(&mut funding), goal, missing, RUN_BLOCKS_MIN);
        let run = match runs.as_deref() {
            Ok([run]) => *run,
            Ok(runs) => {
                // Free space is in pieces: not worth it.
                if let Err(error) = self.cancel(runs) {
                    tracing::error!(%error, "giving back blocks that were to be zeroed");
                }
                return None;
            }
            Err(_) => return None,
        };
        self.ahead.used.store(true, Ordering::Release);
        self.ahead.state.lock().goal = run.end();
        self.ahead.blocks.fetch_add(run.blocks, Ordering::AcqRel);
        self.ahead.zeroing.fetch_add(run.blocks, Ordering::AcqRel);
        Some(run)
    }

    /// The zeros of a run from [`Allocator::begin_zeroing`] are written: `mark` is the device's mark, read
    /// since. `None` if they could not be written; the blocks are free again then.
    pub fn end_zeroing(&self, run: Run, mark: Option<u64>) -> Result<()> {
        let mut state = self.ahead.state.lock();
        self.ahead.zeroing.fetch_sub(run.blocks, Ordering::AcqRel);
        match mark {
            Some(mark) => {
                state.insert(run.start, Zeroed { blocks: run.blocks, mark });
                Ok(())
            }
            None => self.no_longer_ahead(run),
        }
    }

    /// Blocks that are being zeroed: free once that ends.
    pub fn zeroing_blocks(&self) -> u64 {
        self.ahead.zeroing.load(Ordering::Acquire)
    }

    /// The file will not grow soon: others may have the run ahead of it.
    pub fn unclaim_zeroed(&self, inode: InodeNo) {
        if self.ahead.blocks() > 0 {
            self.ahead.state.lock().unclaim(inode);
        }
    }

    /// Makes the whole reserve ordinary free space, but for what is being zeroed. Does no I/O.
    pub fn give_back_zeroed(&self) {
        // Under the lock to the end: who waits for it finds the credits.
        let mut state = self.ahead.state.lock();
        let State { ready, claims, target, .. } = &mut *state;
        let ready = std::mem::take(ready).into_iter().map(|(start, zeroed)| (BlockNo(start), zeroed));
        let claims = std::mem::take(claims).into_values().map(|claim| (claim.start, claim.zeroed));
        *target = 0;
        for (start, zeroed) in ready.chain(claims).filter(|(_, zeroed)| zeroed.blocks > 0) {
            if let Err(error) = self.no_longer_ahead(Run::new(start, zeroed.blocks)) {
                tracing::error!(%error, start = start.0, blocks = zeroed.blocks, "blocks zeroed ahead are lost");
            }
        }
    }

    fn no_longer_ahead(&self, run: Run) -> Result<()> {
        let (cleared, done) = self.clear(run);
        self.ahead.blocks.fetch_sub(run.blocks, Ordering::AcqRel);
        self.credits.put(cleared);
        done
    }
}
