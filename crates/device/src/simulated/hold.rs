//! Completions kept back, to be released one by one in an order that the test chooses.
//!
//! Protocol: a held operation has its submission event; its end event, its effect on what reads see, and its
//! `done` (or the return of a blocked caller) come with the release. Whether it fails is decided at
//! submission. A device whose power was cut fails what is still held.

use super::state::State;
use super::{SimulatedBackend, power_is_off};
use crate::backend::Io;
use quire_base::Result;
use quire_base::random::Random;
use quire_base::sync::MutexGuard;

/// Which operations are kept back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hold {
    /// None: everything completes before its call returns.
    #[default]
    Nothing,
    /// Those given to `submit`.
    Submitted,
    /// Also synchronous writes, flushes and discards: their callers block until another thread releases them.
    Everything,
}

/// A held operation.
pub(super) struct Held {
    pub(super) id: u64,
    pub(super) outcome: Result<()>,
    pub(super) waiting: Waiting,
}

/// The waiting side.
pub(super) enum Waiting {
    /// A submitted request.
    Request(Io),
    /// A caller blocked in `write` or `discard`.
    Writer,
    /// A caller blocked in `flush`.
    Flusher,
}

impl SimulatedBackend {
    /// Sets what is kept back from now on. What is held stays held until released.
    pub fn set_hold(&self, hold: Hold) {
        self.state.lock().hold = hold;
    }

    /// Number of operations held.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Releases the held operation at `index` (0 is the oldest); false if there is none. Runs its `done`.
    pub fn release(&self, index: usize) -> bool {
        let mut state = self.state.lock();
        if index >= state.held.len() {
            return false;
        }
        let Held { id, mut outcome, waiting } = state.held.remove(index);
        if state.is_off {
            outcome = Err(power_is_off());
        }
        match waiting {
            Waiting::Request(io) => {
                // SAFETY: `done` has not run, so the segments are valid.
                unsafe { state.end_io(id, &io, &outcome) };
                drop(state);
                (io.done)(outcome);
            }
            Waiting::Writer => {
                state.end_write(id, &outcome);
                state.released.insert(id, outcome);
                self.released.notify_all();
            }
            Waiting::Flusher => {
                state.end_flush(id, &outcome);
                state.released.insert(id, outcome);
                self.released.notify_all();
            }
        }
        true
    }

    /// Releases one held operation, chosen by `random`; false if there is none.
    pub fn release_one(&self, random: &mut Random) -> bool {
        let held = self.held() as u64;
        held > 0 && self.release(random.below(held) as usize)
    }

    /// Releases operations in an order chosen by `random` until none is held (those that completions start
    /// included); returns how many.
    pub fn release_all(&self, random: &mut Random) -> usize {
        let mut count = 0;
        while self.release_one(random) {
            count += 1;
        }
        count
    }

    pub(super) fn wait_for_release(
        &self,
        mut state: MutexGuard<'_, State>,
        id: u64,
        outcome: Result<()>,
        is_flush: bool,
    ) -> Result<()> {
        let waiting = if is_flush { Waiting::Flusher } else { Waiting::Writer };
        state.held.push(Held { id, outcome, waiting });
        loop {
            if let Some(outcome) = state.released.remove(&id) {
                return outcome;
            }
            self.released.wait(&mut state);
        }
    }
}
