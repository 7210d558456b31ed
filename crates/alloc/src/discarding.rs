//! Discards, apart from the forces that make them due.
//!
//! Protocol. A freed block is *deferred* until its freeing is durable ([`crate::deferred`]), and then it is
//! free: any operation that needs space takes it, as a block that is written again soon is better not
//! discarded. Where freed blocks are discarded, its range is noted as well. [`Allocator::discard_next`],
//! which a thread of the volume calls, takes the next noted range of at most [`RUN_BLOCKS_MAX`] blocks, so
//! that no discard holds up reads and writes for long. It allocates what is still free there, discards that
//! with nothing locked, and gives it back.
//!
//! When space is short, a range is passed over: its next owner writes there, and that is worth more. What is
//! under way can be waited for ([`Allocator::await_frees`]). A thread that has taken durable frees out of
//! their groups, to free them, counts as under way until it has done so. What is under way has numbers, in
//! the order in which it began: a thread does not wait for what begins after its call, so its wait ends.
//!
//! Invariants:
//! * A block is given out only when no discard of it is under way, and discarded only when its freeing is
//!   durable (J2).
//! * A discard pays for its blocks as any allocation does, so those who hold a reservation find blocks.
//! * The credits of a run are back before its discard counts as ended: a thread that has waited finds them.
//!
//! Neighbours: [`crate::deferred`] notes ranges; `fs` has the thread, and waits where it finds no space.

use crate::allocator::Allocator;
use crate::reservation::SpaceReservation;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{BlockNo, ErrorKind, Result};
use quire_format::extent::{Run, total_blocks};
use rangemap::RangeSet;

/// Blocks of one discard at most: 32 MiB.
pub const RUN_BLOCKS_MAX: u64 = 8192;

/// Ranges that are remembered at most; what else is freed then is not discarded.
const RANGES_MAX: usize = 1 << 16;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Discarding {
    state: Mutex<State>,
    /// Something that was under way has ended.
    ended: Condvar,
    /// Whether ranges are noted, so that a look takes no lock.
    any: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Ranges that were freed since they were last discarded. Parts of them may be in use again.
    freed: RangeSet<u64>,
    /// The numbers of what is under way, ascending.
    under_way: Vec<u64>,
    /// The number of what begins next.
    next: u64,
}

impl State {
    fn begin<'a>(&mut self, discarding: &'a Discarding) -> UnderWay<'a> {
        let number = self.next;
        self.next += 1;
        self.under_way.push(number);
        UnderWay { discarding, number }
    }
}

impl Discarding {
    /// Notes a range that is free now; false if there are too many.
    pub(crate) fn note(&self, run: Run) -> bool {
        let mut state = self.state.lock();
        if state.freed.len() >= RANGES_MAX {
            return false;
        }
        state.freed.insert(run.start.0..run.end().0);
        self.any.store(true, Ordering::Release);
        true
    }

    /// The next range, whose discard counts as under way until the guard is dropped.
    fn begin(&self) -> Option<(Run, UnderWay<'_>)> {
        let mut state = self.state.lock();
        let range = state.freed.first()?.clone();
        let run = Run::new(BlockNo(range.start), (range.end - range.start).min(RUN_BLOCKS_MAX));
        state.freed.remove(run.start.0..run.end().0);
        self.any.store(!state.freed.is_empty(), Ordering::Release);
        let under_way = state.begin(self);
        Some((run, under_way))
    }

    /// Counts frees as under way that their thread is about to take out of their groups.
    pub(crate) fn settling(&self) -> UnderWay<'_> {
        self.state.lock().begin(self)
    }

    /// Waits for the end of what is under way now.
    fn await_those_under_way(&self) {
        let mut state = self.state.lock();
        let next = state.next;
        while state.under_way.first().is_some_and(|number| *number < next) {
            self.ended.wait(&mut state);
        }
    }
}

/// Frees or a discard under way; they end also if the thread panics, and their blocks then stay busy.
pub(crate) struct UnderWay<'a> {
    discarding: &'a Discarding,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.discarding.state.lock().under_way.retain(|number| *number != self.number);
        self.discarding.ended.notify_all();
    }
}

impl Allocator {
    /// Whether freed ranges wait for their discard.
    pub fn has_discards(&self) -> bool {
        self.discarding.any.load(Ordering::Acquire)
    }

    /// Discards what is still free of the next range that was freed. Does I/O. False if there was no range.
    pub fn discard_next(&self) -> bool {
        let Some((range, _under_way)) = self.discarding.begin() else { return false };
        self.discard_free_of(range);
        true
    }

    /// Discards what is free of a range of the data space, of at most [`RUN_BLOCKS_MAX`] blocks; gives how
    /// many blocks that were. Does I/O. None if space is so short that the range may be needed meanwhile.
    pub fn discard_free(&self, range: Run) -> Option<u64> {
        // Whoever finds no space waits for what is under way.
        let _under_way = self.discarding.settling();
        self.discard_free_of(range)
    }

    /// The caller counts as under way.
    fn discard_free_of(&self, range: Run) -> Option<u64> {
        let Ok(blocks) = self.credits.take(range.blocks, range.blocks) else {
            self.counts.discards_skipped.add(1);
            return None;
        };
        self.reserved.add(blocks);
        let mut reservation = SpaceReservation::of(self, blocks);
        let mut runs = Vec::new();
        let taken = self.take_free_within(range, &mut runs);
        reservation.spend(total_blocks(&runs));
        // What others have of the range was paid for by them.
        drop(reservation);
        let discarded = runs.iter().map(|run| self.discard(*run)).sum();
        // The blocks are those that were taken above, so they can be given back.
        if let Err(error) = taken.and(self.cancel(&runs).map(drop)) {
            tracing::error!(%error, "free space could not be taken for its discard");
        }
        Some(discarded)
    }

    /// Takes every free block of a range; on errors, `runs` is what it had taken.
    fn take_free_within(&self, range: Run, runs: &mut Vec<Run>) -> Result<()> {
        for (number, piece) in self.pieces(range)? {
            let mut pieces = Vec::new();
            let taken = self.change(number, |group| group.take_free_within(piece, &mut pieces));
            runs.extend(pieces.into_iter().map(|piece| self.run_of(number, piece)));
            taken?;
        }
        Ok(())
    }

    /// Gives how many blocks were discarded. A discard that fails loses nothing: the blocks are merely not
    /// trimmed.
    fn discard(&self, run: Run) -> u64 {
        self.counts.discards.add(1);
        match self.device.discard(run.start, run.blocks) {
            Ok(()) => {
                self.counts.discarded_blocks.add(run.blocks);
                run.blocks
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => 0,
            Err(error) => {
                self.counts.discard_failures.add(1);
                tracing::warn!(%error, start = run.start.0, blocks = run.blocks, "discard failed");
                0
            }
        }
    }

    /// Returns when every free that was durable at the call has been made, and the discards that were under
    /// way have ended: for callers that have found no space.
    pub fn await_frees(&self) {
        // These may put a free back on its list, if they began before it was durable. Threads that begin
        // later do not: who takes it from there has it in hand until it is made.
        self.discarding.await_those_under_way();
        self.settle();
        self.discarding.await_those_under_way();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A thread that had found no space waited until nothing at all was under way. Where forces and discards
    /// overlapped, each begun before the last had ended, it waited for as long as they went on.
    #[test]
    fn what_begins_later_is_not_waited_for() {
        let discarding = Discarding::default();
        let mut under_way = discarding.settling();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| discarding.await_those_under_way());
            while !waits.is_finished() && start.elapsed() < Duration::from_secs(30) {
                let next = discarding.settling();
                std::thread::yield_now();
                drop(std::mem::replace(&mut under_way, next));
            }
            let waited_for_all = !waits.is_finished();
            drop(under_way);
            assert!(!waited_for_all, "it waits for what began after it");
        });
    }

    /// What was under way at the call is waited for, in whatever order it ends.
    #[test]
    fn all_that_is_under_way_is_waited_for() {
        let discarding = Discarding::default();
        let (first, second) = (discarding.settling(), discarding.settling());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| discarding.await_those_under_way());
            drop(second);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(first);
        });
        assert!(discarding.state.lock().under_way.is_empty());
    }
}
