//! The list of completions of a queue, and the descriptor that says whether there are any.
//!
//! Protocol: a request is counted when it [begins](Completions::begin), and its completion is put into the
//! list once, when it [ends](Completions::end). [`Completions::reap`] takes completions out. The signal is
//! raised with the first completion of an empty list and lowered when the list has been emptied, both under
//! the list's lock, so that it is up exactly while there is something to reap.
//!
//! Invariants: a completion is reaped by one thread; nobody sleeps while as much as they wait for is there,
//! or while no request is under way.
//!
//! Neighbours: [`crate::queue`] starts the requests; a loom model in `tests/it` checks this.

use quire_base::sync::time::Instant;
use quire_base::sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// What tells others that there is something to reap.
pub trait Signal {
    /// There is.
    fn raise(&self);
    /// There is nothing.
    fn lower(&self);
}

struct State<T> {
    ended: VecDeque<T>,
    /// Requests that have begun and not ended.
    under_way: usize,
    /// Threads that sleep.
    sleepers: usize,
}

/// The completions of a queue.
pub struct Completions<T, S> {
    state: Mutex<State<T>>,
    changed: Condvar,
    signal: S,
}

impl<T, S: Signal> Completions<T, S> {
    /// None yet.
    pub fn new(signal: S) -> Completions<T, S> {
        let state = State { ended: VecDeque::new(), under_way: 0, sleepers: 0 };
        Completions { state: Mutex::new(state), changed: Condvar::new(), signal }
    }

    /// What was given.
    pub fn signal(&self) -> &S {
        &self.signal
    }

    /// A request begins.
    pub fn begin(&self) {
        self.state.lock().under_way += 1;
    }

    /// A request that has begun has ended.
    pub fn end(&self, completion: T) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        state.ended.push_back(completion);
        if state.ended.len() == 1 {
            self.signal.raise();
        }
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes up to `most` completions, the oldest first. Waits until there are `least` of them (at most
    /// `most`), until no request is under way, or until the time.
    pub fn reap(&self, least: usize, most: usize, until: Option<Instant>) -> Vec<T> {
        let least = least.min(most);
        let mut state = self.state.lock();
        while state.ended.len() < least && state.under_way > 0 {
            state.sleepers += 1;
            let late = match until {
                None => {
                    self.changed.wait(&mut state);
                    false
                }
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.changed.wait_for(&mut state, left).timed_out()
                }
            };
            state.sleepers -= 1;
            if late {
                break;
            }
        }
        let count = most.min(state.ended.len());
        let taken: Vec<T> = state.ended.drain(..count).collect();
        if count > 0 && state.ended.is_empty() {
            self.signal.lower();
        }
        taken
    }

    /// Waits until every request has ended.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        while state.under_way > 0 {
            state.sleepers += 1;
            self.changed.wait(&mut state);
            state.sleepers -= 1;
        }
    }
}
