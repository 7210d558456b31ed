//! The structure lock, and data that it guards.
//!
//! Protocol: descents and changes within one leaf hold the lock shared; whatever changes the shape of the tree
//! (splits, merges, attaching and evicting nodes, a new root) holds it whole. [`Guarded`] data is read with a proof
//! that the lock is held and changed with a proof that it is held whole, so that a descent takes no further lock in
//! inner nodes.
//!
//! Invariants: a tree has one structure lock; guarded data never moves to another tree; proofs do not leave this
//! crate, and each function here that takes one is given that of the same tree. A thread holds at most one entry:
//! a second shared one could wait for a thread that waits for the first. No entry is held across device I/O.

use quire_base::sync::{ShardedRwLock, SharedGuard, WholeGuard};
use std::cell::UnsafeCell;

/// The structure lock of one tree.
#[derive(Default)]
pub(crate) struct Structure {
    lock: ShardedRwLock,
}

/// Proof of a shared entry.
pub(crate) struct Shared<'a> {
    _guard: SharedGuard<'a>,
}

/// Proof of the whole lock.
pub(crate) struct Whole<'a> {
    _guard: WholeGuard<'a>,
}

/// Proof of either.
pub(crate) trait Held {}
impl Held for Shared<'_> {}
impl Held for Whole<'_> {}

impl Structure {
    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared { _guard: self.lock.shared() }
    }

    pub(crate) fn whole(&self) -> Whole<'_> {
        Whole { _guard: self.lock.whole() }
    }
}

/// Data under the structure lock.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: references to the data are handed out under the structure lock only: several `&T` on several threads
// (so `T: Sync`), or one `&mut T` on any thread (so `T: Send`).
unsafe impl<T: Send + Sync> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Guarded<T> {
        Guarded(UnsafeCell::new(value))
    }

    /// Reads under a shared or whole entry.
    #[inline]
    pub(crate) fn get<'g>(&'g self, _held: &'g impl Held) -> &'g T {
        // SAFETY: the entry outlives the reference, and `get_mut` needs the whole lock, which excludes every other
        // entry; within a whole entry it needs `&mut Whole`, which ends the borrow of this reference.
        unsafe { &*self.0.get() }
    }

    /// Changes under the whole lock.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn get_mut<'g>(&'g self, _whole: &'g mut Whole<'_>) -> &'g mut T {
        // SAFETY: the whole lock excludes every other thread's entry, and the exclusive borrow of its only proof
        // excludes other references of this thread, into this or any other guarded data of the tree.
        unsafe { &mut *self.0.get() }
    }
}
