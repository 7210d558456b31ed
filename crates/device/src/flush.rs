//! Flush combining: many callers, few flushes, and nobody is told "durable" too early.
//!
//! Protocol. `completed` counts writes that have completed (counted after completion, so every counted write
//! is in the device). A *mark* is a value read from it. A caller asks that everything up to its mark be
//! durable:
//!
//! 1. `flushed >= mark`: done, no I/O.
//! 2. A flush is in flight: wait until it ends, look again. It was submitted with some `covers`; if that is
//!    at least the caller's mark the caller is served, else the mark was reached after the submission and
//!    does not count.
//! 3. No flush is in flight: become leader. Snap `covers = completed` (as late as possible, so that all who
//!    have gathered meanwhile are covered), flush, publish `flushed = covers`, wake everybody. Of those not
//!    covered one leads next.
//!
//! Invariants: at most one flush in flight; `flushed <= completed`; `flushed` only grows, and only to a
//! `covers` that was snapped before a flush that succeeded; a failed flush (or one whose backend panicked)
//! sets the latch before anybody wakes, and every waiter not served by an earlier success gets the latched
//! error.
//!
//! `completed` starts at 1 and `flushed` at 0: what earlier lives of the volume wrote may still sit in a
//! cache, so the first flush asked for always reaches the medium.

use crate::latch::ErrorLatch;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};

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

pub(crate) struct FlushCombiner {
    completed: AtomicU64,
    flushed: AtomicU64,
    /// Whether a flush is in flight.
    in_flight: Mutex<bool>,
    ended: Condvar,
}

impl FlushCombiner {
    pub(crate) fn new() -> FlushCombiner {
        FlushCombiner {
            completed: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            in_flight: Mutex::new(false),
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
        let mut in_flight = self.in_flight.lock();
        loop {
            if self.flushed_mark() >= mark {
                return Ok(served);
            }
            if let Some(error) = latch.get() {
                return Err(error);
            }
            if *in_flight {
                self.ended.wait(&mut in_flight);
                continue;
            }
            *in_flight = true;
            drop(in_flight);
            let mut lead = Lead { combiner: self, latch, covers: self.mark(), outcome: None };
            lead.outcome = Some(flush());
            drop(lead);
            served = Served::Led;
            in_flight = self.in_flight.lock();
        }
    }
}

/// The leader's duty to end its flush, whichever way it leaves.
struct Lead<'a> {
    combiner: &'a FlushCombiner,
    latch: &'a ErrorLatch,
    covers: u64,
    /// None until the flush has returned: it never did if the backend panicked.
    outcome: Option<Result<()>>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let outcome =
            self.outcome.take().unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "a flush panicked")));
        let mut in_flight = self.combiner.in_flight.lock();
        match outcome {
            Ok(()) => self.combiner.flushed.store(self.covers, Ordering::Release),
            Err(error) => {
                self.latch.set(&error);
            }
        }
        *in_flight = false;
        self.combiner.ended.notify_all();
    }
}
