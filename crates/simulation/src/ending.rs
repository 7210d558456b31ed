//! How the threads of a run are ended that is over before they are.

use crate::scheduler::{State, Status, Wait};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Steps that all may take together after a thread was ended, before the next one is ended as well.
const STEPS_EACH: u64 = 20_000;

/// The order of ending.
pub(crate) struct Ending {
    /// Thread 0 first: what it owns closes while the others still work. Then the youngest.
    order: VecDeque<usize>,
    /// When the next one is ended at the latest.
    next_at: u64,
}

impl Ending {
    /// A thread was started while the run is being ended.
    pub fn add(&mut self, index: usize) {
        self.order.push_back(index);
    }
}

impl State {
    /// From now on threads are ended.
    pub fn begin_ending(&mut self) {
        if self.ending.is_none() {
            let mut order: VecDeque<usize> = (1..self.threads.len()).rev().collect();
            order.push_front(0);
            self.ending = Some(Ending { order, next_at: 0 });
            self.end_next();
        }
    }

    /// Ends one more thread; false when there is none left to end.
    pub fn end_next(&mut self) -> bool {
        let Some(ending) = &mut self.ending else { return false };
        while let Some(index) = ending.order.pop_front() {
            let slot = &mut self.threads[index];
            if slot.status == Status::Finished {
                continue;
            }
            ending.next_at = self.steps + STEPS_EACH;
            slot.ended.store(true, Ordering::Relaxed);
            // A thread that waits for scoped threads must go on waiting: they borrow from it.
            if let Status::Blocked(wait) = slot.status
                && !matches!(wait, Wait::Scope(_))
                && !slot.unwinding
            {
                slot.status = Status::Runnable;
            }
            return true;
        }
        false
    }

    /// Ends the next thread when the last one takes too long; false when all have been ended and get nowhere.
    pub fn hurry_ending(&mut self) -> bool {
        match &self.ending {
            Some(ending) if self.steps > ending.next_at => {
                self.end_next() || self.threads.iter().all(|slot| slot.status == Status::Finished)
            }
            _ => true,
        }
    }
}
