//! Flush combining: many callers, few flushes, and nobody is told "durable" too early.
//!
//! Protocol. `completed` counts writes that have completed (counted after completion, so every counted write is
//! in the device). A *mark* is a value read from it. A caller asks that everything up to its mark be durable:
//!
//! 1. `flushed >= mark`: done, no I/O.
//! 2. A flush in flight has `covers >= mark`: wait for it. One with less was submitted before the mark was reached and
//!    does not count.
//! 3. Fewer than [`IN_FLIGHT_MAX`] are in flight: lead another. Snap `covers = completed` (as late as possible, so that
//!    all who have gathered meanwhile are covered), flush, tell. Else wait until one has ended, and look again.
//!
//! Several in flight: a caller whose write completed just behind the submission of a flush does not wait for that one
//! before its own begins. A flush counts only when all that were submitted before it have succeeded: what a failed one
//! lost is unknowable, and a device may report it to that one alone.
//!
//! Invariants: `flushed <= completed`; `flushed` only grows, and only to a `covers` that was snapped before a flush that
//! succeeded, as all earlier ones did; a failed flush (or one whose backend panicked) sets the latch before anybody
//! wakes, and every waiter not served by an earlier success gets the latched error.
//!
//! `completed` starts at 1 and `flushed` at 0: what earlier lives of the volume wrote may still sit in a cache, so
//! the first flush asked for always reaches the medium.
//!
//! Shared lines: `completed`, by all that write; the lock, by all that flush.

use crate::latch::ErrorLatch;
use quire_base::broken::{Broken, is_broken};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};
use std::collections::VecDeque;

/// How a request to flush was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// It was durable already.
    AlreadyDurable,
    /// By flushes that others led.
    Joined,
    /// By a flush of its own (and of everybody it covered).
    Led,
}

/// Flushes in flight at most. More would serve nobody sooner: the block layer queues them behind one another.
const IN_FLIGHT_MAX: usize = 4;

pub(crate) struct FlushCombiner {
    completed: AtomicU64,
    flushed: AtomicU64,
    flights: Mutex<Flights>,
    ended: Condvar,
}

/// Flushes in flight, and those that ended before one that was submitted earlier; in the order of submission.
struct Flights {
    list: VecDeque<Flight>,
    /// Number of the first in the list; they are numbered as they are submitted.
    first: u64,
    /// One has failed: none behind it counts.
    failed: bool,
}

struct Flight {
    covers: u64,
    /// Whether it succeeded, once it has ended.
    ended: Option<bool>,
}

impl FlushCombiner {
    pub(crate) fn new() -> FlushCombiner {
        FlushCombiner {
            completed: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            flights: Mutex::new(Flights {
                list: VecDeque::with_capacity(IN_FLIGHT_MAX),
                first: 0,
                failed: false,
            }),
            ended: Condvar::new(),
        }
    }

    /// Counts a write that has completed.
    pub(crate) fn write_completed(&self) {
        self.completed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn mark(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    pub(crate) fn flushed_mark(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Returns once everything up to `mark` is durable, or with the latched error.
    pub(crate) fn flush_to(
        &self,
        mark: u64,
        latch: &ErrorLatch,
        flush: impl Fn() -> Result<()>,
    ) -> Result<Served> {
        if self.flushed_mark() >= mark {
            return Ok(Served::AlreadyDurable);
        }
        assert!(mark <= self.mark(), "mark {mark} is ahead of all completed writes");
        let mut served = Served::Joined;
        let mut flights = self.flights.lock();
        loop {
            if self.flushed_mark() >= mark {
                return Ok(served);
            }
            if let Some(error) = latch.get() {
                return Err(error);
            }
            let is_covered = flights.list.back().is_some_and(|last| last.covers >= mark);
            if is_covered
                || flights.list.len() == IN_FLIGHT_MAX
                || (is_broken(Broken::FlushJoinedLate) && !flights.list.is_empty())
            {
                self.ended.wait(&mut flights);
                if is_broken(Broken::FlushJoinedLate) && latch.get().is_none() {
                    return Ok(served);
                }
                continue;
            }
            let covers = self.mark();
            flights.list.push_back(Flight { covers, ended: None });
            let number = flights.first + flights.list.len() as u64 - 1;
            drop(flights);
            let mut lead = Lead { combiner: self, latch, number, outcome: None };
            lead.outcome = Some(flush());
            drop(lead);
            served = Served::Led;
            flights = self.flights.lock();
        }
    }
}

/// The leader's duty to end its flush, whichever way it leaves.
struct Lead<'a> {
    combiner: &'a FlushCombiner,
    latch: &'a ErrorLatch,
    number: u64,
    /// None until the flush has returned: it never did if the backend panicked.
    outcome: Option<Result<()>>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let outcome =
            self.outcome.take().unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "a flush panicked")));
        let mut flights = self.combiner.flights.lock();
        let at = (self.number - flights.first) as usize;
        flights.list[at].ended = Some(outcome.is_ok());
        if let Err(error) = outcome {
            self.latch.set(&error);
        }
        let before = flights.first;
        while let Some(Flight { covers, ended: Some(succeeded) }) = flights.list.front() {
            let (covers, succeeded) = (*covers, *succeeded);
            flights.list.pop_front();
            flights.first += 1;
            flights.failed |= !succeeded;
            if !flights.failed {
                self.combiner.flushed.store(covers, Ordering::Release);
            }
        }
        if flights.first != before {
            self.combiner.ended.notify_all();
        }
    }
}
