//! Byte ranges of one file, locked shared or exclusively, for direct I/O.
//!
//! Protocol: a list of holders and waiters in the order of arrival. A request waits while an earlier one, holding
//! or waiting, overlaps it and either of the two is exclusive; so nobody is overtaken by what conflicts with it.
//!
//! Neighbours: [`super::direct`] holds ranges across its device I/O; in the lock order below the size lock.

use quire_base::sync::{Condvar, Mutex};

struct Entry {
    ticket: u64,
    start: u64,
    end: u64,
    exclusive: bool,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        self.start < other.end && other.start < self.end && (self.exclusive || other.exclusive)
    }
}

#[derive(Default)]
struct Ranges {
    next_ticket: u64,
    entries: Vec<Entry>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct RangeLock {
    ranges: Mutex<Ranges>,
    changed: Condvar,
}

/// A locked range; unlocked when dropped.
#[must_use]
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

impl RangeLock {
    pub(crate) fn new() -> RangeLock {
        RangeLock::default()
    }

    /// Locks `start..end`, in bytes.
    pub(crate) fn lock(&self, start: u64, end: u64, exclusive: bool) -> RangeGuard<'_> {
        let mut ranges = self.ranges.lock();
        let ticket = ranges.next_ticket;
        ranges.next_ticket += 1;
        ranges.entries.push(Entry { ticket, start, end, exclusive });
        while ranges.must_wait(ticket) {
            self.changed.wait(&mut ranges);
        }
        RangeGuard { lock: self, ticket }
    }
}

impl RangeLock {
    /// The guard of a ticket that [`RangeGuard::into_ticket`] gave.
    pub(crate) fn resume(&self, ticket: u64) -> RangeGuard<'_> {
        RangeGuard { lock: self, ticket }
    }
}

impl RangeGuard<'_> {
    /// Keeps the range locked; whoever ends the operation takes it up again with [`RangeLock::resume`], once.
    pub(crate) fn into_ticket(self) -> u64 {
        std::mem::ManuallyDrop::new(self).ticket
    }
}

impl Ranges {
    fn must_wait(&self, ticket: u64) -> bool {
        let at =
            self.entries.iter().position(|entry| entry.ticket == ticket).expect("a waiter is in the list");
        let mine = &self.entries[at];
        self.entries[..at].iter().any(|earlier| earlier.conflicts(mine))
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut ranges = self.lock.ranges.lock();
        ranges.entries.retain(|entry| entry.ticket != self.ticket);
        self.lock.changed.notify_all();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    #[test]
    fn overlapping_writers_exclude_and_apart_ones_do_not() {
        let lock = RangeLock::new();
        let first = lock.lock(0, 10, true);
        drop(lock.lock(10, 20, true));
        drop(first);
        let _a = lock.lock(0, 10, false);
        drop(lock.lock(5, 6, false));
    }

    #[test]
    fn exclusive_ranges_are_exclusive_under_load() {
        let shared = Arc::new((RangeLock::new(), AtomicI32::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        let _range = shared.0.lock(3, 9, true);
                        assert_eq!(shared.1.fetch_add(1, Ordering::SeqCst), 0);
                        shared.1.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
