//! The room that a transaction holds until it has committed: journal bytes and tree nodes, claimed and given
//! back together.
//!
//! A [`Reservation`] owns both. They go back when it is dropped, and then threads that wait for room are told
//! ([`super::room_queue`]): nothing is ever given back silently, a claim that got only one of the two
//! included.
//!
//! Space for data is not in it. A write is promised space, and blocks for the metadata pool beside it, when
//! it makes blocks dirty, and the transaction that uses the promise comes only when they have been written.
//! Until then the promise lies in accounts ([`super::pool_promise`]). Writeback does not reserve when it is
//! submitted: the worst case of nodes for all the requests that may be with the device is several times what
//! may be dirty.
//!
//! After a clean close nothing is reserved: [`Store::check_nothing_reserved`].
//!
//! Neighbours: [`super::transaction`] holds one; `journal` and `tree` do the accounts.

use super::Store;
use super::room_queue::RoomQueue;
use quire_base::{Error, patience};
use quire_journal::{JournalReservation, Short as JournalShort};
use quire_tree::{Class, NodeReservation, Short};

/// How much is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Tree nodes that may become dirty.
    pub(crate) nodes: usize,
    /// Payload bytes of one journal record.
    pub(crate) journal_bytes: usize,
    /// Whether it may use the last of the room, which is kept for frees and promises.
    pub(crate) class: Class,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// Others have reserved it, or a checkpoint is needed.
    Room,
    /// Only a larger metadata pool makes room.
    PoolFull,
    /// There will never be any.
    Failed(Error),
}

/// See the module's documentation. The fields are given back in this order.
#[must_use]
pub(crate) struct Reservation<'a> {
    /// Journal bytes.
    pub(crate) journal: JournalReservation<'a>,
    _nodes: NodeReservation<'a>,
    _given_back: GivenBack<'a>,
}

/// Tells that something was given back, when it is dropped.
struct GivenBack<'a>(&'a RoomQueue);

impl Drop for GivenBack<'_> {
    fn drop(&mut self) {
        crate::lock_order::reservation_ended();
        self.0.notify();
    }
}

/// How a claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// By the first in the queue: a claim that fails tells nobody. Waits for the journal's buffer.
    Mine,
    /// By a newcomer that may wait for the journal's buffer.
    Newcomer,
    /// By a thread that waits for nothing.
    Nonblocking,
}

impl Store {
    /// Claims what there is. Waits neither for the ring nor for nodes.
    pub(crate) fn claim(&self, amount: Amount, turn: Turn) -> Result<Reservation<'_>, Shortage> {
        let journal = self.journal().map_err(Shortage::Failed)?;
        let claimed = match turn != Turn::Nonblocking && patience::may_wait() {
            true => journal.try_reserve(amount.journal_bytes),
            false => journal.try_reserve_now(amount.journal_bytes),
        };
        let journal = claimed.map_err(|short| match short {
            JournalShort::Checkpoint | JournalShort::Buffer => Shortage::Room,
            // A force that made room may have met it.
            JournalShort::Failed(error) if journal.failure().is_some() => {
                Shortage::Failed(self.shut_down(&error))
            }
            JournalShort::Failed(error) => Shortage::Failed(error),
        })?;
        match self.tree.try_reserve(amount.nodes, amount.class) {
            Ok(nodes) => {
                crate::lock_order::reservation_begins();
                Ok(Reservation { journal, _nodes: nodes, _given_back: GivenBack(&self.room) })
            }
            Err(short) => {
                drop(journal);
                if turn != Turn::Mine {
                    self.room.notify();
                }
                Err(match short {
                    Short::Checkpoint => Shortage::Room,
                    Short::PoolFull => Shortage::PoolFull,
                })
            }
        }
    }

    /// Whether checkpoints alone would make room, though nobody gave anything back.
    pub(crate) fn checkpoints_make_room(&self, amount: Amount) -> bool {
        self.tree.has_room_when_clean(amount.nodes, amount.class)
            && self.journal.as_ref().is_some_and(|journal| journal.has_room_when_empty(amount.journal_bytes))
    }

    /// Ends the standing reserve, and checks that everything else that was ever reserved has been given back.
    /// Nothing uses the volume any more, and all data has been written. Debug builds panic at what was lost;
    /// others log it.
    pub(crate) fn check_nothing_reserved(&self) {
        self.end_standing_reserve();
        let journal = self.journal.as_ref().map_or(0, |journal| journal.usage().reserved_bytes);
        let (nodes, space) = (self.tree.reserved_nodes(), self.alloc.reserved_blocks());
        let (due, owed) = (self.pool_promise.due(), self.pool_promise.owed());
        if (journal, nodes, space, due, owed) != (0, 0, 0, 0, 0) {
            tracing::error!(journal, nodes, space, due, owed, "what was reserved has not been given back");
            debug_assert!(
                std::thread::panicking(),
                "not given back: {journal} journal bytes, {nodes} tree nodes, {space} blocks; kept for the pool: {due} \
                 blocks, {owed} of them owed"
            );
        }
    }

    /// Whether there are reservations, which come back.
    pub(crate) fn has_reservations(&self) -> bool {
        self.tree.reserved_nodes() > 0
            || self.journal.as_ref().is_some_and(|journal| journal.usage().reserved_bytes > 0)
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{FormatOptions, VolumeOptions};
    use quire_base::sync::Arc;
    use quire_device::MemoryBackend;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Writers that hold segments wait for room without them, give it back and claim it again. They were
    /// refused then as long as others queued, and these by them: four threads sent each other back for as
    /// long as they wrote.
    #[test]
    fn what_was_waited_for_is_not_refused_for_the_queue() {
        let backend = Arc::new(MemoryBackend::new(4096));
        FormatOptions::new().format_backend(backend.clone()).expect("a new volume");
        let volume = VolumeOptions::new().threads(false).open_backend(backend).expect("a new volume opens");
        let store = &volume.engine().store;
        let cost = crate::store::transaction::Cost::new(1, 100).critical();
        let somebody = store.room.join(Class::Critical);
        assert!(store.try_begin(cost, false).is_none());
        assert!(store.try_begin(cost, true).is_some());
        drop(somebody);
        assert!(store.try_begin(cost, false).is_some());

        let file = volume.create_file("file").expect("there is space");
        file.write_all_at(&[1; 4096], 0).expect("there is space");
        quire_cache::Backing::wait_for_room(&***file.inode(), 1).expect("there is room");
        let somebody = store.room.join(Class::Critical);
        // It would queue behind that one for ever.
        file.sync_data().expect("there is room");
        drop((somebody, file));
        volume.close().expect("nothing is reserved");
    }

    /// Counts that somebody forgot to give back made a volume smaller until the next mount, and nobody was
    /// told.
    #[test]
    fn what_is_lost_is_found_at_a_clean_close() {
        let lose_room = |store: &Store| {
            let amount = Amount { nodes: 1, journal_bytes: 100, class: Class::Normal };
            let lose = || std::mem::forget(store.claim(amount, Turn::Newcomer).ok());
            // The thread that lost it could not reserve again.
            std::thread::scope(|scope| scope.spawn(lose).join().expect("there is room"));
        };
        let lose_space = |store: &Store| std::mem::forget(store.alloc.reserve(3).expect("there is space"));
        let lose_promise =
            |store: &Store| store.pool_promise.put(store.alloc.reserve(3).expect("there is space"));
        let losses: [&dyn Fn(&Store); 4] = [&|_: &Store| (), &lose_room, &lose_space, &lose_promise];
        for (number, lose) in losses.into_iter().enumerate() {
            let backend = Arc::new(MemoryBackend::new(4096));
            FormatOptions::new().format_backend(backend.clone()).expect("a new volume");
            let options = VolumeOptions::new().threads(false);
            let volume = options.open_backend(backend).expect("a new volume opens");
            volume.write("file", [7; 100_000]).expect("there is space");
            lose(&volume.engine().store);
            let closed = catch_unwind(AssertUnwindSafe(|| volume.close()));
            assert_eq!(closed.is_err(), number > 0, "loss {number}");
        }
    }
}
