//! One ring, the requests in it, and those that wait for room in it.
//!
//! Protocol:
//!
//! * Submitters, under the lock, append to `waiting` and move as many as fit into the ring ([`Queue::pump`]);
//!   one enter submits them all. At most [`IN_FLIGHT_MAX`] are in the ring, so the completion queue, twice as
//!   long, cannot overflow. A submitter that leaves more than [`WAITING_MAX`] behind waits for room; a
//!   completion thread, of whichever ring, never waits, so a `done` may submit.
//! * The completion thread sleeps in the kernel, without the lock, until there are completions. It takes them
//!   under the lock, puts short or interrupted transfers back at the front, pumps, and runs the `done`s
//!   without the lock.
//! * Stopping: the flag is set and a no-op wakes the thread, which ends when nothing is in flight or waiting.
//!
//! Invariants: a request is in `slots` exactly while the kernel may use it; `unsubmitted` names, in order,
//! the slots whose entries the kernel has not taken; the submission queue is touched only under the lock, the
//! completion queue only by the completion thread.
//!
//! If the kernel refuses to take entries for good, the ring is *broken*: what it has not taken, and
//! everything later, is done with system calls in the submitting thread.

use super::request::Request;
use crate::host::target::Target;
use crate::host::transfer::Step;
use io_uring::{EnterFlags, IoUring, opcode};
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use quire_base::{Error, Result};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Entries of the submission queue.
const RING_ENTRIES: u32 = 256;
/// Requests in the ring at most; one entry stays free for the no-op that wakes the completion thread.
const IN_FLIGHT_MAX: usize = RING_ENTRIES as usize - 1;
/// Requests that may wait for room before their submitter does.
const WAITING_MAX: usize = 1024;
/// Marks the no-op.
const WAKE: u64 = u64::MAX;
/// How often, a millisecond apart, entering is tried again when the kernel is short of memory.
const ENTER_RETRIES_MAX: u32 = 1000;

pub(super) fn make_ring() -> io::Result<IoUring> {
    IoUring::builder().dontfork().build(RING_ENTRIES)
}

pub(super) struct Queue {
    target: Arc<Target>,
    ring: IoUring,
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    /// Requests in the ring; a slot's index is its entry's user data.
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
    /// Slots (or [`WAKE`]) whose entries the kernel has not taken, in order.
    unsubmitted: VecDeque<u64>,
    is_stopping: bool,
    is_broken: bool,
}

impl State {
    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Queue {
    pub(super) fn new(target: Arc<Target>, ring: IoUring) -> Queue {
        Queue { target, ring, state: Mutex::default(), room: Condvar::new() }
    }

    /// Starts the requests; see the protocol. Waits for room only if the caller may wait.
    pub(super) fn submit(&self, requests: Vec<Request>, may_wait: bool) {
        let mut state = self.state.lock();
        state.waiting.extend(requests);
        let rejected = self.pump(&mut state);
        while may_wait && state.waiting.len() > WAITING_MAX {
            self.room.wait(&mut state);
        }
        drop(state);
        self.run_here(rejected);
    }

    /// Lets the completion thread end when it has nothing left to do. False if it may never wake, because the
    /// ring is broken and the kernel has nothing of it.
    pub(super) fn stop(&self) -> bool {
        let mut state = self.state.lock();
        state.is_stopping = true;
        if !state.is_broken && self.push(opcode::Nop::new().build().user_data(WAKE)) {
            state.unsubmitted.push_back(WAKE);
        }
        let rejected = self.enter(&mut state);
        let wakes = !state.is_broken || state.in_flight() > 0;
        drop(state);
        self.run_here(rejected);
        wakes
    }

    /// Moves waiting requests into the ring as far as there is room, and enters. Returns requests that must
    /// be done here because the ring is broken; call [`Queue::run_here`] with them after unlocking.
    fn pump(&self, state: &mut State) -> Vec<Request> {
        if state.is_broken {
            return state.waiting.drain(..).collect();
        }
        while state.in_flight() < IN_FLIGHT_MAX
            && let Some(request) = state.waiting.pop_front()
        {
            let slot = state.free.pop().unwrap_or_else(|| {
                state.slots.push(None);
                state.slots.len() - 1
            });
            let is_pushed = self.push(request.entry(self.target.raw_fd(), slot));
            debug_assert!(is_pushed, "the ring is longer than what may be in flight");
            state.slots[slot] = Some(request);
            state.unsubmitted.push_back(slot as u64);
        }
        self.enter(state)
    }

    /// Appends an entry; the caller holds the lock.
    fn push(&self, entry: io_uring::squeue::Entry) -> bool {
        // SAFETY: the lock makes this the only user of the submission queue. What the entry points to lives
        // in `slots` until its completion.
        unsafe { self.ring.submission_shared().push(&entry).is_ok() }
    }

    /// Submits what has been pushed. Returns requests that the kernel will never take.
    fn enter(&self, state: &mut State) -> Vec<Request> {
        let mut retries = 0;
        while !state.unsubmitted.is_empty() {
            let taken = match self.ring.submit() {
                Ok(taken) => taken,
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => 0,
                Err(e) => return self.give_up(state, &e),
            };
            state.unsubmitted.drain(..taken.min(state.unsubmitted.len()));
            if taken == 0 {
                if state.in_flight() > state.unsubmitted.len() {
                    // The kernel has others, whose completion brings the completion thread here again.
                    return Vec::new();
                }
                retries += 1;
                if retries > ENTER_RETRIES_MAX {
                    return self.give_up(state, &io::Error::from_raw_os_error(libc::EAGAIN));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Vec::new()
    }

    /// Stops using the ring for anything that the kernel has not taken. It never will: entering with a count
    /// of zero takes nothing.
    fn give_up(&self, state: &mut State, error: &io::Error) -> Vec<Request> {
        tracing::warn!(volume = self.target.name(), %error, "io_uring refuses requests; doing without");
        state.is_broken = true;
        let mut rejected = Vec::new();
        for slot in std::mem::take(&mut state.unsubmitted) {
            if slot != WAKE
                && let Some(request) = state.slots[slot as usize].take()
            {
                state.free.push(slot as usize);
                rejected.push(request);
            }
        }
        rejected.extend(state.waiting.drain(..));
        self.room.notify_all();
        rejected
    }

    fn run_here(&self, requests: Vec<Request>) {
        for mut request in requests {
            let outcome = request.run(self.target.raw_fd(), self.target.name());
            request.finish(outcome);
        }
    }

    /// The completion thread.
    pub(super) fn run(&self) {
        let mut answers = Vec::with_capacity(RING_ENTRIES as usize * 2);
        loop {
            self.wait_for_completions();
            // SAFETY: only this thread touches the completion queue.
            answers
                .extend(unsafe { self.ring.completion_shared() }.map(|cqe| (cqe.user_data(), cqe.result())));
            let mut state = self.state.lock();
            let ended = self.take_answers(&mut state, &mut answers);
            let rejected = self.pump(&mut state);
            if state.waiting.len() <= WAITING_MAX {
                self.room.notify_all();
            }
            drop(state);
            for (request, outcome) in ended {
                request.finish(outcome);
            }
            self.run_here(rejected);
            if is_over(self.state.lock()) {
                return;
            }
        }
    }

    /// Sleeps until there is a completion.
    fn wait_for_completions(&self) {
        // SAFETY: no argument is passed; entries are submitted only under the lock, by `enter`.
        let woken = unsafe { self.ring.submitter().enter::<()>(0, 1, EnterFlags::GETEVENTS.bits(), None) };
        if let Err(e) = woken
            && e.raw_os_error() != Some(libc::EINTR)
        {
            tracing::warn!(volume = self.target.name(), error = %e, "waiting for completions");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes requests that have ended out of the ring; puts the others back in line.
    fn take_answers(
        &self,
        state: &mut State,
        answers: &mut Vec<(u64, i32)>,
    ) -> Vec<(Request, Result<(), Error>)> {
        let mut ended = Vec::with_capacity(answers.len());
        for (user_data, answer) in answers.drain(..) {
            let Some(mut request) = state.slots.get_mut(user_data as usize).and_then(Option::take) else {
                continue;
            };
            state.free.push(user_data as usize);
            match request.answered(answer, self.target.name()) {
                Step::Ended(outcome) => ended.push((request, outcome)),
                Step::Again => state.waiting.push_front(request),
            }
        }
        ended
    }
}

fn is_over(state: MutexGuard<'_, State>) -> bool {
    state.is_stopping && state.in_flight() == 0 && state.waiting.is_empty()
}
