//! An fsync under way: what is to be made durable and how soon, and a future that tells when it is.
//!
//! The future needs no runtime: syncers of the volume do the work, it only waits to be woken. [`Syncing::wait`] is for
//! threads. It begins when it is made, as far as there is room ([`super::sync_queue`]); what there is no room for begins
//! when the future is polled or waited for, once others have ended.
//!
//! Dropping it withdraws what has not begun, and what waits for a force of others; what a syncer has in hand ends, and
//! nobody hears of it. Nothing is promised of a withdrawn fsync, and no other one is affected: data that was written stays
//! written, records that were journaled stay, and a file whose data could not be written says so to the next one.
//!
//! Neighbours: [`super::fsync`] makes and serves them.

use super::fsync::{Pending, SyncQueue};
use super::sync_queue::Admitted;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// How soon an fsync forces the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At once.
    #[default]
    Now,
    /// It writes the data at once, and then waits for a force that somebody else makes. If there was none within this time
    /// it makes one itself.
    Lazy(Duration),
}

/// What an fsync makes durable, and how soon: at first everything of a file, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncOptions {
    pub(crate) data_only: bool,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) durability: Durability,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions::new()
    }
}

impl SyncOptions {
    /// Contents, attributes and name, at once (fsync).
    pub const fn new() -> SyncOptions {
        SyncOptions { data_only: false, offset: 0, len: u64::MAX, durability: Durability::Now }
    }

    /// Only what reading the contents back needs (fdatasync).
    #[must_use]
    pub fn data_only(mut self, data_only: bool) -> SyncOptions {
        self.data_only = data_only;
        self
    }

    /// Of the contents only bytes `[offset, offset + len)`; with a file that has grown, what lies before them from the end
    /// that is durable, or reading them back could not reach them.
    #[must_use]
    pub fn range(mut self, offset: u64, len: u64) -> SyncOptions {
        (self.offset, self.len) = (offset, len);
        self
    }

    /// How soon.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> SyncOptions {
        self.durability = durability;
        self
    }
}

/// What the syncers and the future share.
pub(crate) struct Promise {
    state: Mutex<PromiseState>,
    ended: Condvar,
}

struct PromiseState {
    /// Fsyncs that have not ended.
    left: usize,
    /// Ok, or the first error.
    outcome: Result<()>,
    waker: Option<Waker>,
    /// Nobody will hear of it.
    withdrawn: bool,
}

impl Promise {
    pub(crate) fn new(left: usize) -> Arc<Promise> {
        let state = PromiseState { left, outcome: Ok(()), waker: None, withdrawn: false };
        Arc::new(Promise { state: Mutex::new(state), ended: Condvar::new() })
    }

    /// One of its fsyncs has ended.
    pub(crate) fn end(&self, outcome: Result<()>) {
        let mut state = self.state.lock();
        if state.outcome.is_ok() {
            state.outcome = outcome;
        }
        state.left -= 1;
        let waker = if state.left == 0 { state.waker.take() } else { None };
        let is_over = state.left == 0;
        drop(state);
        if is_over {
            self.ended.notify_all();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().left == 0
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.state.lock().withdrawn
    }
}

/// See the module's documentation. The outcome is the first error of the fsyncs that it stands for.
#[must_use = "an fsync that is not waited for promises nothing, and is withdrawn when this is dropped"]
pub struct Syncing {
    queue: Arc<SyncQueue>,
    promise: Arc<Promise>,
    /// What there was no room for, the first one last.
    rest: Vec<Pending>,
    /// What is or was in the queue.
    tickets: Vec<std::ops::Range<u64>>,
    /// The place in the line of those that wait for room.
    place: Option<u64>,
}

impl Syncing {
    /// Begins `pending`, each of which ends `promise` once.
    pub(crate) fn begin(queue: Arc<SyncQueue>, promise: Arc<Promise>, mut pending: Vec<Pending>) -> Syncing {
        pending.reverse();
        let mut syncing = Syncing { queue, promise, rest: pending, tickets: Vec::new(), place: None };
        syncing.admit();
        syncing
    }

    /// Puts into the queue what there is room for; true if that is everything.
    fn admit(&mut self) -> bool {
        if self.rest.is_empty() {
            return true;
        }
        match self.queue.admit(&mut self.rest) {
            Admitted::Some(tickets) => match self.tickets.last_mut() {
                Some(last) if last.end == tickets.start => last.end = tickets.end,
                _ if tickets.is_empty() => {}
                _ => self.tickets.push(tickets),
            },
            Admitted::Closed => {
                for refused in self.rest.drain(..) {
                    drop(refused);
                    self.promise.end(Err(closed()));
                }
            }
        }
        self.rest.is_empty()
    }

    /// Waits on this thread. Not for completions of other fsyncs, whose thread does the work.
    pub fn wait(mut self) -> Result<()> {
        while !self.admit() {
            self.queue.sleep_for_room();
        }
        let mut state = self.promise.state.lock();
        while state.left > 0 {
            self.promise.ended.wait(&mut state);
        }
        state.outcome.clone()
    }

    /// Whether it has ended, so that waiting for it does not wait.
    pub fn is_over(&self) -> bool {
        self.promise.is_over()
    }
}

/// What an fsync is told that came too late.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Shutdown, "the volume was closed before the data was durable")
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        while !this.admit() {
            let before = this.place.take();
            this.place = this.queue.wait_for_room(before, context.waker());
            if this.place.is_some() {
                break;
            }
        }
        if this.rest.is_empty()
            && let Some(place) = this.place.take()
        {
            this.queue.leave_line(place);
        }
        let mut state = this.promise.state.lock();
        if state.left == 0 {
            return Poll::Ready(state.outcome.clone());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.queue.leave_line(place);
        }
        let is_over = {
            let mut state = self.promise.state.lock();
            state.withdrawn = state.left > 0;
            !state.withdrawn
        };
        if !is_over {
            for tickets in self.tickets.drain(..) {
                // What they hold goes without the queue's lock.
                drop(self.queue.withdraw(tickets));
            }
        }
    }
}

impl std::fmt::Debug for Syncing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left = self.promise.state.lock().left;
        write!(f, "Syncing ({left} fsyncs to end, {} without room)", self.rest.len())
    }
}
