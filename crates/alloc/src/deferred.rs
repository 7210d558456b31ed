//! Frees that wait until they are durable.
//!
//! Protocol:
//! 1. *Before* the barrier, [`Allocator::ensure_loaded`] loads the groups of the blocks about to be freed.
//!    From then on their busy bits are in memory and no later load can read a tree that has already forgotten
//!    them.
//! 2. *At apply*, as the last step, when the tree's regions show the blocks as free, [`Allocator::freed`]
//!    marks them as being freed and queues them in their group with the transaction's `Seq`. No I/O, no
//!    waiting but for the group's lock.
//! 3. After a force, [`Allocator::durable`] takes from the queues what is due, waits for homes that are being
//!    written, clears the busy bits, and only then returns the credits. Where freed blocks are discarded,
//!    that comes later, as far as they are still free then ([`crate::discarding`]).
//!
//! Groups with queued frees are named on sharded lists, so that a force costs nothing for the others. A group
//! is on at most one list. Beside each list stands whether it has any, so that a force with nothing to free
//! reads these lines and writes none.

use crate::allocator::Allocator;
use crate::group::Piece;
use crossbeam_utils::CachePadded;
use quire_base::metrics::Counter;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use quire_base::{Error, Result, Seq};
use quire_format::extent::Run;

#[cfg(not(any(loom, shuttle)))]
const LISTS: usize = SHARDS;
#[cfg(any(loom, shuttle))]
const LISTS: usize = if SHARDS < 1 { SHARDS } else { 1 };

#[derive(Default)]
struct List {
    groups: Mutex<Vec<usize>>,
    /// Whether `groups` has any. Changes under its lock.
    any: AtomicBool,
}

/// Which groups have deferred frees, and up to where the journal is durable.
pub(crate) struct Deferred {
    lists: [CachePadded<List>; LISTS],
    durable: AtomicU64,
    pub(crate) blocks: Counter,
}

impl Deferred {
    pub(crate) fn new() -> Deferred {
        Deferred { lists: Default::default(), durable: AtomicU64::new(0), blocks: Counter::new() }
    }

    fn list(&self, group: usize) {
        let list = &self.lists[shard::current() % LISTS];
        let mut groups = list.groups.lock();
        groups.push(group);
        list.any.store(true, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        !self.lists.iter().any(|list| list.any.load(Ordering::Acquire))
    }

    /// Empties the lists; ascending, so that runs of neighbouring groups meet.
    fn take_lists(&self) -> Vec<usize> {
        let mut groups = Vec::new();
        for list in &self.lists {
            let mut listed = list.groups.lock();
            groups.append(&mut listed);
            list.any.store(false, Ordering::Release);
        }
        groups.sort_unstable();
        groups
    }
}

impl Allocator {
    /// Loads the groups of blocks that are about to be freed. May do I/O: call it before the barrier.
    ///
    /// Errors if a run lies outside the data space (kind `Corrupt`) or a group cannot be loaded.
    pub fn ensure_loaded(&self, runs: &[Run]) -> Result<()> {
        for run in runs {
            for (group, _) in self.pieces(*run)? {
                self.load(group)?;
            }
        }
        Ok(())
    }

    /// Notes that the transaction at `seq` has freed `runs`: they are reusable once `seq` is durable. To be
    /// called as the last step of applying it; does no I/O.
    ///
    /// Errors (kind `Corrupt`) if a block is not in use or is being freed already: two owners freed it. The
    /// part of the run in that group is then never given out again; the rest is freed as asked.
    pub fn freed(&self, seq: Seq, runs: &[Run]) -> Result<()> {
        let mut result = Ok(());
        for run in runs {
            let done = self.defer_run(seq, *run);
            result = result
                .and(done.map_err(|e| e.context(format!("freeing blocks {}+{}", run.start, run.blocks))));
        }
        result
    }

    /// Defers what can be deferred of a run; gives the first error.
    fn defer_run(&self, seq: Seq, run: Run) -> Result<()> {
        let mut result = Ok(());
        for (number, piece) in self.pieces(run)? {
            result = result.and(self.defer(seq, number, piece));
        }
        result
    }

    fn defer(&self, seq: Seq, number: usize, piece: Piece) -> Result<()> {
        let blocks = piece.len() as u64;
        let list = self.groups[number].with(|group| group.defer(seq, piece)).ok_or_else(|| {
            Error::corrupt(format!("allocation group {number} was not loaded before its blocks were freed"))
        })??;
        self.deferred.blocks.add(blocks);
        if list {
            self.deferred.list(number);
        }
        Ok(())
    }

    /// Notes that the journal is durable up to `seq`: frees up to it become reusable, and are noted for their
    /// discard if that is on. Does no I/O. Calling it again with the same `seq` picks up transactions that
    /// were applied after they were durable.
    pub fn durable(&self, seq: Seq) {
        self.deferred.durable.fetch_max(seq.0, Ordering::AcqRel);
        // Before the look at the lists. One of two threads sees what the other did: a thread that puts a
        // group back on a list looks at the position behind it.
        fence(Ordering::SeqCst);
        self.settle();
    }

    /// Makes due frees reusable. True if there were any.
    pub(crate) fn settle(&self) -> bool {
        let mut any = false;
        // Held until the end: `await_frees` must not return before this call has made its last free.
        let mut under_way = None;
        loop {
            // Most forces end here, and share no more than this look.
            if self.deferred.is_empty() {
                return any;
            }
            under_way.get_or_insert_with(|| self.discarding.settling());
            let durable = self.deferred.durable.load(Ordering::Acquire);
            let mut due = Vec::new();
            let mut pieces = Vec::new();
            for number in self.deferred.take_lists() {
                let waiting = self.groups[number].with(|group| group.due(Seq(durable), &mut pieces));
                due.extend(pieces.drain(..).map(|piece| self.run_of(number, piece)));
                if waiting == Some(true) {
                    self.deferred.list(number);
                }
            }
            if !due.is_empty() {
                any = true;
                // Nobody else has them yet, and no write of a home begins that still knows them.
                self.device.await_writes();
                self.free_for_good(due);
            }
            // A thread that moved the position on meanwhile may have found the lists empty because of us.
            fence(Ordering::SeqCst);
            if self.deferred.durable.load(Ordering::Acquire) == durable {
                return any;
            }
        }
    }

    fn free_for_good(&self, mut runs: Vec<Run>) {
        runs.sort_unstable();
        runs.dedup_by(|next, last| {
            let adjacent = last.end() == next.start;
            if adjacent {
                last.blocks += next.blocks;
            }
            adjacent
        });
        for run in runs {
            self.free_run(run);
            if self.discard && !self.discarding.note(run) {
                self.counts.discards_skipped.add(1);
            }
        }
    }

    /// The last step of every free.
    pub(crate) fn free_run(&self, run: Run) {
        match self.release_run(run) {
            Ok(()) => self.credits.put(run.blocks),
            // Not possible while `defer` checks; the blocks stay busy, so nobody gets them twice.
            Err(error) => {
                tracing::error!(%error, start = run.start.0, blocks = run.blocks, "freed blocks are lost")
            }
        }
        self.deferred.blocks.sub(run.blocks);
    }

    fn release_run(&self, run: Run) -> Result<()> {
        for (number, piece) in self.pieces(run)? {
            let _moving = self.movement.shared();
            self.groups[number].with(|group| group.release(piece)).unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}
