//! Telling the device which blocks are free, in moments when nobody forces.
//!
//! Protocol. What was freed is given to the discarder when its free is durable (the allocator keeps it); the
//! periodic commit wakes the thread. It discards one range at a time while no flush is asked for, and one at
//! least every [`PATIENCE`]. Where there is no thread, and at a close, [`Store::discard_the_rest`] does what
//! time allows.
//!
//! Neighbours: [`quire_alloc`] keeps the ranges; [`crate::background`] has the thread.

use super::Store;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Condvar, Mutex};

/// For how long no flush must have been asked for before freed ranges are discarded. On many devices a
/// discard slows the flushes that follow it; on an image file it makes each a commit of the host's journal.
const QUIET: Duration = Duration::from_millis(50);

/// Where flushes never pause, one discard goes ahead all the same after so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a close spends on ranges that nobody has discarded yet.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Discarder {
    stop: Mutex<bool>,
    /// Freed ranges wait, or the end.
    wake: Condvar,
}

impl Discarder {
    fn wake(&self) {
        let _stop = self.stop.lock();
        self.wake.notify_one();
    }

    /// Ends the discarder's sleep for good.
    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }
}

impl Store {
    /// Wakes the discarder if there is something for it.
    pub(crate) fn discard_later(&self) {
        if self.alloc.has_discards() {
            self.discarder.wake();
        }
    }

    /// The life of the discarder.
    pub(crate) fn serve_discards(&self) {
        let flushes = || self.device.stats().flush_requests;
        let mut next = Instant::now() + PATIENCE;
        loop {
            let before = {
                let mut stop = self.discarder.stop.lock();
                while !*stop && (!self.alloc.has_discards() || self.failure().is_some()) {
                    self.discarder.wake.wait(&mut stop);
                }
                let before = flushes();
                if !*stop {
                    self.discarder.wake.wait_for(&mut stop, QUIET);
                }
                if *stop {
                    return;
                }
                before
            };
            let mut go = flushes() == before || Instant::now() >= next;
            while go && self.failure().is_none() && self.alloc.discard_next() {
                next = Instant::now() + PATIENCE;
                go = flushes() == before;
            }
        }
    }

    /// Discards what the discarder has left, as far as the time goes that a close has for it.
    pub(crate) fn discard_the_rest(&self) {
        let end = Instant::now() + CLOSE_MAX;
        while Instant::now() < end && self.alloc.discard_next() {}
        if self.alloc.has_discards() {
            tracing::info!("the volume closes with freed space that has not been discarded");
        }
    }
}
