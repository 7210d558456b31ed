//! Discards, apart from the forces that make them due.
//!
//! Protocol. A freed block is *deferred* until its freeing is durable ([`crate::deferred`]), then *queued*,
//! then its discard is *under way*, and then it is free. Its busy bit is set until then. A force only queues.
//! [`Allocator::discard_next`], which a thread of the volume calls, takes the next run of at most
//! [`RUN_BLOCKS_MAX`] blocks, so that no discard holds up reads and writes for long, discards it with nothing
//! locked, and frees it.
//!
//! When space is short, what is queued is freed without a discard ([`Allocator::skip_discards`]): the next
//! owner writes there, and that is worth more. What is under way can only be waited for
//! ([`Allocator::await_frees`]). A thread that has taken durable frees out of their groups, to free or to
//! queue them, counts as under way until it has done so.
//!
//! Invariants:
//! * A run is queued, or under way, or free, never two of these: whoever takes it out of the queue frees it.
//! * A block is given out only when no discard of it is under way, and discarded only when its freeing is
//!   durable (J2).
//! * The credits of a run are back before its discard counts as ended: whoever has waited finds them.
//!
//! Neighbours: [`crate::deferred`] queues; `fs` has the thread, and waits where it finds no space.

use crate::allocator::Allocator;
use quire_base::BlockNo;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_format::extent::Run;
use std::collections::BTreeMap;

/// Blocks of one discard at most: 32 MiB.
pub const RUN_BLOCKS_MAX: u64 = 8192;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Discarding {
    state: Mutex<State>,
    /// Nothing is under way any more.
    idle: Condvar,
    /// Blocks in the queue, so that a look takes no lock.
    queued: AtomicU64,
}

#[derive(Default)]
struct State {
    /// First block and number of blocks; no two runs touch.
    queue: BTreeMap<u64, u64>,
    under_way: usize,
}

impl Discarding {
    pub(crate) fn queue(&self, run: Run) {
        let mut state = self.state.lock();
        let (mut start, mut end) = (run.start.0, run.end().0);
        if let Some((&before, &blocks)) = state.queue.range(..start).next_back()
            && before + blocks == start
        {
            state.queue.remove(&before);
            start = before;
        }
        if let Some(blocks) = state.queue.remove(&end) {
            end += blocks;
        }
        state.queue.insert(start, end - start);
        self.queued.fetch_add(run.blocks, Ordering::AcqRel);
    }

    /// The next run, whose discard counts as under way until [`Discarding::ended`].
    fn begin(&self) -> Option<Run> {
        let mut state = self.state.lock();
        let (start, blocks) = state.queue.pop_first()?;
        let now = blocks.min(RUN_BLOCKS_MAX);
        if blocks > now {
            state.queue.insert(start + now, blocks - now);
        }
        state.under_way += 1;
        self.queued.fetch_sub(now, Ordering::AcqRel);
        Some(Run::new(BlockNo(start), now))
    }

    /// Counts frees as under way that their thread is about to take out of their groups.
    pub(crate) fn settling(&self) -> UnderWay<'_> {
        self.state.lock().under_way += 1;
        UnderWay(self)
    }

    fn ended(&self) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            self.idle.notify_all();
        }
    }

    fn take_queue(&self) -> Vec<Run> {
        let mut state = self.state.lock();
        let queue = std::mem::take(&mut state.queue);
        self.queued.fetch_sub(queue.values().sum(), Ordering::AcqRel);
        drop(state);
        queue.into_iter().map(|(start, blocks)| Run::new(BlockNo(start), blocks)).collect()
    }
}

/// Frees under way; they end also if the thread panics, and their blocks then stay busy.
pub(crate) struct UnderWay<'a>(&'a Discarding);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Allocator {
    /// Whether runs are queued for their discard.
    pub fn has_discards(&self) -> bool {
        self.discarding.queued.load(Ordering::Acquire) > 0
    }

    /// Discards the next queued run and makes it reusable. Does I/O. False if nothing was queued.
    pub fn discard_next(&self) -> bool {
        let Some(run) = self.discarding.begin() else { return false };
        let under_way = UnderWay(&self.discarding);
        self.discard(run);
        self.free_run(run);
        drop(under_way);
        true
    }

    /// Makes everything that is queued reusable without a discard. True if there was anything.
    pub(crate) fn skip_discards(&self) -> bool {
        let runs = self.discarding.take_queue();
        for &run in &runs {
            self.counts.discards_skipped.add(1);
            self.free_run(run);
        }
        !runs.is_empty()
    }

    /// Returns when no durable free is kept back, neither queued for its discard nor in the hands of another
    /// thread: for callers that have found no space.
    pub fn await_frees(&self) {
        loop {
            self.skip_discards();
            let mut state = self.discarding.state.lock();
            while state.under_way > 0 {
                self.discarding.idle.wait(&mut state);
            }
            // What was under way may have queued its frees.
            if state.queue.is_empty() {
                return;
            }
        }
    }
}
