//! What waits to be freed, and who waits for that.
//!
//! Protocol. Inodes wait in a [`Queue`], what a crash left in a list, and that snapshots are deleted is a
//! word. The reaper sleeps while all three are empty; who adds something wakes it if it sleeps. A thread that
//! waits until nothing is left counts itself before it looks, and the reaper looks at that count after its
//! work: one of the two sees the other.
//!
//! Invariants: what is in a reaper's hands counts as left until it is freed or put aside.
//!
//! Neighbours: [`super`] frees; [`crate::snapshots::sweep`] deletes snapshots; [`crate::background`] has the
//! thread.

use super::queue::{Queue, Reaping};
use super::recovered::{Recovered, RecoveredOrphans};
use crate::store::orphan_slots::OrphanState;
use quire_base::InodeNo;
use quire_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use quire_base::sync::time::Duration;
use quire_base::sync::{Condvar, Mutex};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Orphans without a user.
    queue: Queue,
    /// Orphans that a crash left, to be freed after those.
    recovered: RecoveredOrphans,
    /// Snapshots are to be deleted.
    sweep: AtomicBool,
    state: Mutex<State>,
    /// Something waits, or the end.
    wake: Condvar,
    /// Threads that wait until nothing is left.
    drains: AtomicUsize,
    /// Signalled for them.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    /// Orphans that could not be freed.
    failed: Vec<InodeNo>,
}

impl Reaper {
    /// Queues an orphan.
    pub(super) fn push(&self, number: InodeNo) {
        if self.queue.push(number) {
            self.wake();
        }
    }

    /// Puts an orphan aside that could not be freed.
    pub(super) fn put_aside(&self, number: InodeNo) {
        self.state.lock().failed.push(number);
    }

    /// Queues what was put aside once more.
    pub(crate) fn queue_failed(&self) {
        let failed = std::mem::take(&mut self.state.lock().failed);
        failed.into_iter().for_each(|number| self.push(number));
    }

    /// The next orphan.
    pub(super) fn take(&self) -> Option<Reaping<'_>> {
        self.queue.take()
    }

    /// The next orphan of the current thread's shard, if more than `most` wait there.
    pub(super) fn take_excess(&self, most: usize) -> Option<Reaping<'_>> {
        self.queue.take_excess(most)
    }

    /// Lists what a crash left, before anybody takes of it.
    pub(super) fn list(&self, found: Vec<(InodeNo, OrphanState)>) {
        self.recovered.fill(found);
    }

    /// The next orphan that a crash left.
    pub(super) fn take_recovered(&self) -> Option<Recovered<'_>> {
        self.recovered.take()
    }

    /// Asks for a step at the deletion of snapshots.
    pub(crate) fn want_sweep(&self) {
        self.sweep.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether such a step is wanted; it is no longer then.
    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.swap(false, Ordering::SeqCst)
    }

    fn wake(&self) {
        let _state = self.state.lock();
        self.wake.notify_one();
    }

    /// Sleeps until there is something to do; false is the end. What a crash left and snapshots are no work
    /// while `is_closed`.
    pub(crate) fn next(&self, is_closed: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        let nothing_else = || self.recovered.is_empty() && !self.sweep.load(Ordering::SeqCst) || is_closed();
        while !state.stop && self.queue.fall_asleep() && nothing_else() {
            self.wake.wait(&mut state);
        }
        self.queue.wake();
        !state.stop
    }

    /// Rests for so long, or until something is asked for that a sleeping reaper is woken for.
    pub(crate) fn nap(&self, most: Duration) {
        let mut state = self.state.lock();
        if !state.stop && !most.is_zero() {
            self.wake.wait_for(&mut state, most);
        }
    }

    /// Ends the reaper's sleep for good.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// No orphan waits to be freed, and none is being freed.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: an orphan of a crash counts as left until it is queued.
        self.recovered.is_empty() && self.queue.is_idle()
    }

    /// Wakes those who wait until no orphan is left, if none is.
    pub(super) fn tell_drains(&self) {
        if self.drains.load(Ordering::SeqCst) > 0 && self.is_idle() {
            let _state = self.state.lock();
            self.idle.notify_all();
        }
    }

    /// Waits until no orphan is left, or for so long.
    pub(crate) fn await_idle(&self, most: Duration) {
        self.drains.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        if !self.is_idle() {
            self.wake.notify_one();
            self.idle.wait_for(&mut state, most);
        }
        drop(state);
        self.drains.fetch_sub(1, Ordering::SeqCst);
    }
}
