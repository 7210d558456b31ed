//! Tickets: what was used since a ticket was made stays in memory.
//!
//! The cache's clock ticks once per round of eviction. Using a node stamps it with the clock; a ticket
//! remembers the clock of its making; eviction spares every node whose stamp is not below the oldest live
//! ticket.
//!
//! Protocol: a ticket reads the clock and enters its shard under the shard's lock. Eviction first advances
//! the clock, then looks into all shards. So a ticket that it did not see has read the advanced clock, and
//! what is used under it has a stamp at or above that.

use quire_base::shard::{self, SHARDS};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU64, Ordering};

/// Live tickets and the clock.
pub(crate) struct Tickets {
    clock: AtomicU64,
    shards: [Shard; SHARDS],
}

#[repr(align(64))]
#[derive(Default)]
struct Shard {
    /// (clock, live tickets of that clock), ascending.
    live: Mutex<Vec<(u64, u64)>>,
}

/// While it lives, no node that was used since it was made is evicted. See [`crate::Tree::ticket`].
#[must_use]
pub struct Ticket<'a> {
    tickets: &'a Tickets,
    shard: usize,
    clock: u64,
}

impl Tickets {
    pub(crate) fn new() -> Tickets {
        Tickets { clock: AtomicU64::new(1), shards: std::array::from_fn(|_| Shard::default()) }
    }

    #[inline]
    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    pub(crate) fn enter(&self) -> Ticket<'_> {
        let shard = shard::current() % SHARDS;
        let mut live = self.shards[shard].live.lock();
        let clock = self.clock();
        match live.last_mut() {
            Some((last, count)) if *last == clock => *count += 1,
            _ => live.push((clock, 1)),
        }
        Ticket { tickets: self, shard, clock }
    }

    /// Starts a round of eviction: gives the clock after the tick, and the stamp below which nodes may go.
    pub(crate) fn tick(&self) -> (u64, u64) {
        let clock = self.clock.fetch_add(1, Ordering::AcqRel) + 1;
        let oldest =
            self.shards.iter().filter_map(|shard| shard.live.lock().first().map(|(at, _)| *at)).min();
        (clock, oldest.unwrap_or(clock).min(clock))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut live = self.tickets.shards[self.shard].live.lock();
        if let Some(at) = live.iter().position(|(clock, _)| *clock == self.clock) {
            live[at].1 -= 1;
            if live[at].1 == 0 {
                live.remove(at);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ticket_bounds_eviction() {
        let tickets = Tickets::new();
        assert_eq!(tickets.tick(), (2, 2));
        let first = tickets.enter();
        assert_eq!(tickets.tick(), (3, 2));
        let second = tickets.enter();
        let third = tickets.enter();
        drop(first);
        assert_eq!(tickets.tick(), (4, 3));
        drop(third);
        assert_eq!(tickets.tick(), (5, 3));
        drop(second);
        assert_eq!(tickets.tick(), (6, 6));
    }
}
