//! The one order in which locks are taken, and the lock that orders each key.
//!
//! From the outside in; a thread that holds one takes only later ones:
//!
//! | rank | lock | may be held across device I/O |
//! | --- | --- | --- |
//! | 1 | throttle and memory for a batch (cache) | yes |
//! | 2 | rename mutex (`Engine::rename`) | yes |
//! | 3 | directory liveness and buckets (`Names`), parents first, then by inode number | yes |
//! | 4 | gate, in inode order | yes |
//! | 5 | size lock | yes |
//! | 6 | range lock of direct I/O | yes |
//! | 7 | transaction reservation (`Store::begin`) | yes |
//! | 8 | segments, by (inode, index) | no, but for writeback's shared ones |
//! | 9 | inode attributes and extent map (`Inode::meta`), in inode order | no |
//! | 10 | barrier, shared | no |
//! | 11 | tree latches | no |
//! | 12 | allocation group | no |
//! | 13 | journal buffer | no |
//!
//! Between ranks 6 and 7: the deletion of a snapshot under way (`Engine::sweep`), then `Store::frees`. A
//! thread that takes a snapshot, or freezes, holds `Engine::frozen`, keeps changes back, and takes `frees`
//! whole, with nothing else in hand: no thread that has one of these waits for a change to begin. A thread
//! that makes the volume larger holds `Engine::frozen`, then counts as a change without waiting for that, and
//! then takes the checkpoint mutex. A thread that makes the metadata pool smaller holds `Store::shrinking`,
//! and before it at most its own change; it takes the checkpoint mutex, reserves, and takes `frees` shared.
//!
//! Outside of all stands the mutex that a close holds (`OpenVolume::closed`), and then the wait for leases
//! ([`crate::lease`]): a thread that waits for the return of a lease holds none of these, and no admission
//! ([`crate::changes`]), which it takes again behind the wait. The table of leases is a leaf.
//!
//! The checkpoint mutex stands apart: a thread that takes it holds no reservation and nothing below rank 7,
//! and it takes the barrier whole. The thread that takes a snapshot is the one exception: it reserves for the
//! snapshot's key first, and then takes the mutex for the checkpoint that the key is to name. Whoever holds
//! the mutex waits for no reservation, so the two cannot wait for one another. The mutex of the standing
//! reserve (`Store::standing`) comes behind it, and before the allocator and the pool's map.
//!
//! Finishers of writeback hold segments shared (rank 8) and begin transactions (rank 7) all the same: that is
//! allowed because a checkpoint, which is all that `begin` can wait for, takes no segment and needs no
//! writeback (J9). A thread that forces a file may write a lone request itself and then is a finisher too,
//! under the gate, size lock and range lock that it holds: what finishes writeback waits for none of these.
//!
//! An operation that drops cached blocks holds writeback off their range before it reserves
//! ([`crate::file::prepared`]), so that with the reservation it waits for no finisher. A thread that waits
//! for the end of that hold has nothing that the operation may want.
//!
//! Whatever orders a key is held from before the `Seq` of a transaction that changes it until it is applied:
//!
//! | key | ordered by |
//! | --- | --- |
//! | Inode, Extent, Symlink, Xattr | the inode's `meta` |
//! | Entry | the bucket of its name in its directory |
//! | orphan slot or key | the inode's `meta` |
//! | LoggedOp | the gate of its inode, exclusively (in recovery: there is only one thread) |
//! | FreeSpace, Dead | nothing: changes of disjoint blocks commute, the leaf's latch suffices |
//! | Snapshot, Receive | `Engine::frozen` while one is taken, `Engine::sweep` while one is deleted; a receive has the volume to itself |
//!
//! Debug builds check a part of this. The guard of `meta` owns a [`quire_base::patience::Forbidden`]: a
//! thread that holds one panics where it would read a leaf from the device, do other I/O, or wait for room or
//! for a checkpoint. So what is read or changed under `meta` is loaded before: a transaction's ticket keeps
//! in memory what was used since it began (`Transaction::warm`). And [`assert_may_reserve`], which `begin`
//! calls, finds a thread that reserves under `meta` or with another reservation in hand.

/// Counts the reservations of a thread, in debug builds. Model checkers run many threads of the model on one
/// of the system's: nothing is counted there.
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod held {
    use std::cell::Cell;

    thread_local! {
        static RESERVATIONS: Cell<u32> = const { Cell::new(0) };
    }

    pub(crate) fn reservation_begins() {
        RESERVATIONS.with(|held| held.set(held.get() + 1));
    }

    pub(crate) fn reservation_ended() {
        RESERVATIONS.with(|held| held.set(held.get() - 1));
    }

    pub(crate) fn reservations() -> u32 {
        RESERVATIONS.with(Cell::get)
    }
}

#[cfg(not(all(debug_assertions, not(any(loom, shuttle)))))]
mod held {
    pub(crate) fn reservation_begins() {}
    pub(crate) fn reservation_ended() {}
    pub(crate) fn reservations() -> u32 {
        0
    }
}

pub(crate) use held::{reservation_begins, reservation_ended};

/// Panics in debug builds if the current thread holds a lock that comes after the reservation, or a
/// reservation: it might wait for itself.
pub(crate) fn assert_may_reserve() {
    debug_assert_eq!(held::reservations(), 0, "a reservation was asked for with another one in hand");
    quire_base::patience::assert_holds_nothing("a reservation");
}
