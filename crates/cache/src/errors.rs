//! Writeback errors that stay with a file until the blocks they hit are written (or dropped).
//!
//! Invariant: a block is in the set from before its failed run stops counting as in flight until a later run
//! that holds it succeeds, or it is dropped. So who waits for writeback and then asks sees every failure.
//!
//! Neighbours: [`crate::finish`] records and clears, `write_back` asks.

use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::{Error, Timestamp};
use std::collections::BTreeMap;

/// Failed blocks of one mapping.
pub(crate) struct Errors {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// First error since the set was last empty.
    first: Option<Error>,
    /// When something last failed.
    at: Timestamp,
    /// Failed blocks, as ranges: start to end.
    blocks: BTreeMap<u64, u64>,
}

impl Default for Errors {
    fn default() -> Errors {
        Errors { any: AtomicBool::new(false), state: Mutex::new(State::default()) }
    }
}

impl Errors {
    /// Adds blocks `[first, end)`.
    pub fn record(&self, first: u64, end: u64, error: &Error, now: Timestamp) {
        let mut state = self.state.lock();
        state.at = now;
        state.first.get_or_insert_with(|| error.clone());
        take_out(&mut state.blocks, first, end);
        state.blocks.insert(first, end);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Removes blocks `[first, end)`.
    pub fn clear(&self, first: u64, end: u64) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        take_out(&mut state.blocks, first, end);
        if state.blocks.is_empty() {
            state.first = None;
            self.any.store(false, Ordering::SeqCst);
        }
    }

    /// The error, if a block of `[first, end)` is in the set.
    pub fn within(&self, first: u64, end: u64) -> Option<Error> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let state = self.state.lock();
        let hit = state.blocks.range(..end).next_back().is_some_and(|(_, range_end)| *range_end > first);
        hit.then(|| state.first.clone()).flatten()
    }

    /// When something last failed, if the set is not empty.
    pub fn failed_at(&self) -> Option<Timestamp> {
        self.any.load(Ordering::SeqCst).then(|| self.state.lock().at)
    }
}

fn take_out(blocks: &mut BTreeMap<u64, u64>, first: u64, end: u64) {
    while let Some((&start, &range_end)) = blocks.range(..end).next_back().filter(|(_, e)| **e > first) {
        blocks.remove(&start);
        if start < first {
            blocks.insert(start, first);
        }
        if range_end > end {
            blocks.insert(end, range_end);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::ErrorKind;

    #[test]
    fn the_error_goes_with_its_last_block() {
        let errors = Errors::default();
        let error = Error::new(ErrorKind::Io, "x");
        errors.record(10, 20, &error, Timestamp(1));
        errors.record(15, 30, &error, Timestamp(2));
        assert!(errors.within(0, 10).is_none() && errors.within(29, 30).is_some());
        errors.clear(12, 28);
        assert!(errors.within(12, 28).is_none() && errors.within(11, 12).is_some());
        errors.clear(0, 12);
        assert!(errors.within(0, u64::MAX).is_some());
        errors.clear(28, u64::MAX);
        assert!(errors.within(0, u64::MAX).is_none() && errors.failed_at().is_none());
    }
}
