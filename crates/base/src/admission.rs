//! Admission of operations: counted while they are under way, kept back for a while, or refused for good.
//!
//! Protocol. An operation counts itself in, in a shard of its own, and then looks at the state. The thread
//! that changes the state does so first and then waits for each shard to be empty. One of the two sees the
//! other. So behind [`Admission::hold`] and [`Admission::refuse`] no operation is under way, and none begins:
//! while the state is *held*, newcomers count themselves out again and sleep until [`Admission::release`];
//! once it is *refused*, they are turned away.
//!
//! Invariants: an operation that was admitted is never asked again. Refused is final. Whoever has one
//! admission takes a further one with [`Admitted::another`], which never waits: a second look at the state
//! would wait for a thread that waits for the first.
//!
//! Shared lines: each shard, by the threads that use it; the state, read by all and written where it changes.
//!
//! Neighbours: a volume admits changes, its device admits writes.

use crate::shard;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use crate::sync::{Condvar, Mutex};
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
use std::cell::RefCell;

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
thread_local! {
    /// Where the thread is admitted: entering there again would wait for itself once operations are held.
    static ENTERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

const OPEN: u8 = 0;
const HELD: u8 = 1;
const REFUSED: u8 = 2;

/// See the module's documentation.
#[derive(Default)]
pub struct Admission {
    shards: [Shard; shard::SHARDS],
    /// Changes under `waiting`.
    state: AtomicU8,
    waiting: Mutex<()>,
    /// Operations that are kept back wait for a change of the state.
    changed: Condvar,
    /// A thread that changes the state waits here for operations to end. An end wakes none that is kept back.
    ended: Condvar,
}

/// Between what a thread says and what it looks at. Sequentially consistent accesses need it under loom only,
/// which takes them for less.
fn settle() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    }
}

/// An operation under way.
#[must_use]
pub struct Admitted<'a> {
    admission: &'a Admission,
    shard: usize,
}

/// Why an operation was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Not now: operations are kept back.
    Held,
    /// Never again.
    Refused,
}

impl Admission {
    /// Admits an operation, when operations are no longer kept back; `None` if they are refused.
    pub fn enter(&self) -> Option<Admitted<'_>> {
        loop {
            match self.try_enter() {
                Ok(admitted) => return Some(admitted),
                Err(NotAdmitted::Refused) => return None,
                Err(NotAdmitted::Held) => {
                    let mut waiting = self.waiting.lock();
                    while self.state.load(Ordering::SeqCst) == HELD {
                        self.changed.wait(&mut waiting);
                    }
                }
            }
        }
    }

    /// Admits an operation, or says why not.
    pub fn try_enter(&self) -> Result<Admitted<'_>, NotAdmitted> {
        let shard = shard::current();
        self.shards[shard].0.fetch_add(1, Ordering::SeqCst);
        settle();
        let admitted = Admitted { admission: self, shard };
        match self.state.load(Ordering::SeqCst) {
            OPEN => {
                admitted.note();
                Ok(admitted)
            }
            HELD => Err(NotAdmitted::Held),
            _ => Err(NotAdmitted::Refused),
        }
    }

    /// The operation that [`Admitted::into_number`] gave the number of.
    pub fn resume(&self, shard: usize) -> Admitted<'_> {
        Admitted { admission: self, shard }
    }

    /// Keeps operations back from now on, and waits for those under way. False if operations are kept back
    /// already, or refused, or if another thread releases or refuses them meanwhile.
    pub fn hold(&self) -> bool {
        self.change(HELD, |state| state == OPEN)
    }

    /// Admits operations again that [`Admission::hold`] keeps back.
    pub fn release(&self) {
        let _waiting = self.waiting.lock();
        if self.state.load(Ordering::SeqCst) == HELD {
            self.state.store(OPEN, Ordering::SeqCst);
            self.changed.notify_all();
            self.ended.notify_all();
        }
    }

    /// Refuses operations from now on, also those that were kept back, and waits for those under way.
    pub fn refuse(&self) {
        self.change(REFUSED, |_| true);
    }

    /// Goes to a state, if it may, and waits until no operation is under way.
    fn change(&self, to: u8, may: impl Fn(u8) -> bool) -> bool {
        let mut waiting = self.waiting.lock();
        if !may(self.state.load(Ordering::SeqCst)) {
            return false;
        }
        self.state.store(to, Ordering::SeqCst);
        settle();
        self.changed.notify_all();
        self.ended.notify_all();
        for shard in &self.shards {
            // Another thread may release, or refuse, meanwhile.
            while self.state.load(Ordering::SeqCst) == to && shard.0.load(Ordering::SeqCst) > 0 {
                self.ended.wait(&mut waiting);
            }
        }
        self.state.load(Ordering::SeqCst) == to
    }
}

impl Admitted<'_> {
    /// A further admission beside this one.
    pub fn another(&self) -> Self {
        self.admission.shards[self.shard].0.fetch_add(1, Ordering::SeqCst);
        Admitted { admission: self.admission, shard: self.shard }
    }

    /// Lets it go on without the guard, until [`Admission::resume`].
    pub fn into_number(self) -> usize {
        self.forget();
        let shard = self.shard;
        std::mem::forget(self);
        shard
    }
}

impl Admitted<'_> {
    /// Debug builds: its thread may not enter again.
    fn note(&self) {
        // A thread that ends may have lost its list already, and still close files.
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        let _ = ENTERED.try_with(|entered| {
            let place = std::ptr::from_ref(self.admission).addr();
            assert!(!entered.borrow().contains(&place), "this thread is admitted already");
            entered.borrow_mut().push(place);
        });
    }

    fn forget(&self) {
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        let _ = ENTERED.try_with(|entered| {
            let place = std::ptr::from_ref(self.admission).addr();
            entered.borrow_mut().retain(|other| *other != place);
        });
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.forget();
        self.admission.shards[self.shard].0.fetch_sub(1, Ordering::SeqCst);
        settle();
        if self.admission.state.load(Ordering::SeqCst) != OPEN {
            drop(self.admission.waiting.lock());
            self.admission.ended.notify_all();
        }
    }
}
