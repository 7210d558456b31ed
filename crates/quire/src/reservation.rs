//! What a transaction holds until it has committed: journal bytes and tree nodes, claimed together and given back
//! together.
//!
//! A [`Reservation`] owns both. They go back when it is dropped, and then whoever waits for room is told
//! ([`crate::room_queue`]): nothing is ever given back silently, a claim that got only one of the two included.
//!
//! Neighbours: [`crate::transaction`] holds one; `journal` and `tree` do the accounts.

use crate::engine::Engine;
use crate::room_queue::RoomQueue;
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

impl Engine {
    /// Claims what there is. Waits neither for the ring nor for nodes.
    pub(crate) fn claim(&self, amount: Amount, turn: Turn) -> Result<Reservation<'_>, Shortage> {
        let journal = self.journal().map_err(Shortage::Failed)?;
        let claimed = match turn != Turn::Nonblocking && patience::may_wait() {
            true => journal.try_reserve(amount.journal_bytes),
            false => journal.try_reserve_now(amount.journal_bytes),
        };
        let journal = claimed.map_err(|short| match short {
            JournalShort::Checkpoint | JournalShort::Buffer => Shortage::Room,
            JournalShort::Failed(error) => Shortage::Failed(self.check_writable().err().unwrap_or(error)),
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

    /// Whether there are reservations, which come back.
    pub(crate) fn has_reservations(&self) -> bool {
        self.tree.reserved_nodes() > 0
            || self.journal.as_ref().is_some_and(|journal| journal.usage().reserved_bytes > 0)
    }
}
