//! Byte ranges of one file, locked shared or exclusively, for direct I/O.
//!
//! Protocol: ranges are granted in the order of arrival. A newcomer counts the ranges, locked or waiting,
//! that overlap it where either of the two is exclusive, and waits until the count is zero. A range that is
//! unlocked takes itself off the counts that it is in, and wakes the waiters whose count becomes zero, and no
//! others. So no range is overtaken by one that conflicts with it, and none waits for ever.
//!
//! Ranges are sorted by class (log2 of their length), then by start. The ranges of a class that can overlap a
//! given one start in a window that ends where that one ends, and begins at most two lengths of the class
//! before it. Finding them takes O(log n) for each class in use; requests of one program mostly are of one
//! class.
//!
//! Invariant: a range that is locked conflicts with later ones only, so each conflict is in exactly one
//! count.
//!
//! Neighbours: [`super::direct`] holds ranges across its device I/O; in the lock order below the size lock.

use quire_base::sync::{Arc, Condvar, Mutex};
use std::collections::BTreeMap;

/// Names a range. Of two with one start and one class of lengths the earlier is the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeTicket {
    /// Where its class stands.
    class: usize,
    start: u64,
    number: u64,
}

/// The rest of a range.
struct Range {
    end: u64,
    exclusive: bool,
    /// Earlier ranges that conflict with it.
    conflicts: usize,
    /// Wakes its thread, if that had to wait.
    wake: Option<Arc<Condvar>>,
}

struct Class {
    /// log2 of the lengths; 0 for an empty range as well.
    log2: u32,
    /// By start and number.
    ranges: BTreeMap<(u64, u64), Range>,
}

#[derive(Default)]
struct Ranges {
    next_number: u64,
    /// Each class that has been in use.
    classes: Vec<Class>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct RangeLock {
    ranges: Mutex<Ranges>,
}

/// A locked range; unlocked when dropped.
#[must_use]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: RangeTicket,
}

impl RangeLock {
    /// Nothing locked.
    pub fn new() -> RangeLock {
        RangeLock::default()
    }

    /// Locks `start..end`, in bytes.
    pub fn lock(&self, start: u64, end: u64, exclusive: bool) -> RangeGuard<'_> {
        let mut ranges = self.ranges.lock();
        let mut conflicts = 0;
        ranges.for_conflicts(start, end, exclusive, |_| conflicts += 1);
        let wake = (conflicts > 0).then(|| Arc::new(Condvar::new()));
        let ticket = ranges.add(start, Range { end, exclusive, conflicts, wake: wake.clone() });
        if let Some(wake) = wake {
            while ranges.must_wait(ticket) {
                wake.wait(&mut ranges);
            }
        }
        RangeGuard { lock: self, ticket }
    }

    /// As [`RangeLock::lock`], if no range has to be waited for.
    pub fn try_lock(&self, start: u64, end: u64, exclusive: bool) -> Option<RangeGuard<'_>> {
        let mut ranges = self.ranges.lock();
        let mut conflicts = 0;
        ranges.for_conflicts(start, end, exclusive, |_| conflicts += 1);
        (conflicts == 0).then(|| {
            let ticket = ranges.add(start, Range { end, exclusive, conflicts, wake: None });
            RangeGuard { lock: self, ticket }
        })
    }

    /// The guard of a ticket that [`RangeGuard::into_ticket`] gave.
    pub fn resume(&self, ticket: RangeTicket) -> RangeGuard<'_> {
        RangeGuard { lock: self, ticket }
    }
}

impl RangeGuard<'_> {
    /// Keeps the range locked; the end of the operation takes it up again with [`RangeLock::resume`], once.
    pub fn into_ticket(self) -> RangeTicket {
        std::mem::ManuallyDrop::new(self).ticket
    }
}

impl Ranges {
    fn add(&mut self, start: u64, range: Range) -> RangeTicket {
        let log2 = (range.end - start).checked_ilog2().unwrap_or(0);
        let class = self.classes.iter().position(|class| class.log2 == log2).unwrap_or_else(|| {
            self.classes.push(Class { log2, ranges: BTreeMap::new() });
            self.classes.len() - 1
        });
        let number = self.next_number;
        self.next_number += 1;
        self.classes[class].ranges.insert((start, number), range);
        RangeTicket { class, start, number }
    }

    fn must_wait(&self, ticket: RangeTicket) -> bool {
        self.classes[ticket.class].ranges[&(ticket.start, ticket.number)].conflicts > 0
    }

    /// Calls `found` with each range that conflicts with `start..end`.
    fn for_conflicts(&mut self, start: u64, end: u64, exclusive: bool, mut found: impl FnMut(&mut Range)) {
        for class in &mut self.classes {
            let longest = u64::MAX >> (63 - class.log2);
            for (_, range) in class.ranges.range_mut((start.saturating_sub(longest), 0)..(end, 0)) {
                if start < range.end && (exclusive || range.exclusive) {
                    found(range);
                }
            }
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let RangeTicket { class, start, number } = self.ticket;
        let mut ranges = self.lock.ranges.lock();
        let range = ranges.classes[class].ranges.remove(&(start, number)).expect("unlocked once");
        ranges.for_conflicts(start, range.end, range.exclusive, |later| {
            later.conflicts -= 1;
            if later.conflicts == 0
                && let Some(wake) = &later.wake
            {
                wake.notify_one();
            }
        });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::random::Random;
    use std::sync::atomic::{AtomicI32, Ordering};

    #[test]
    fn overlapping_writers_exclude_and_apart_ones_do_not() {
        let lock = RangeLock::new();
        let first = lock.lock(0, 10, true);
        drop(lock.lock(10, 20, true));
        assert!(lock.try_lock(9, 11, false).is_none());
        drop(lock.try_lock(10, 20, true).expect("nobody has it"));
        drop(first);
        let _a = lock.lock(0, 10, false);
        drop(lock.lock(5, 6, false));
        drop(lock.lock(10, u64::MAX, true));
        drop(lock.lock(0, 0, true));
    }

    /// The window of each class holds what overlaps, whatever the lengths: compared with a look at every
    /// pair.
    #[test]
    fn every_conflict_is_found_once() {
        let mut random = Random::seeded(5);
        for _ in 0..500 {
            let mut ranges = Ranges::default();
            let mut all = Vec::new();
            for _ in 0..random.below(40) {
                let mut range = || {
                    let (length_bits, start_bits) = (random.below(63), random.below(63));
                    let (length, start) = (random.below(2 << length_bits), random.below(1 << start_bits));
                    (start, start + length, random.one_in(3))
                };
                let (start, end, exclusive) = range();
                ranges.add(start, Range { end, exclusive, conflicts: 0, wake: None });
                all.push((start, end, exclusive));
                let (start, end, exclusive) = range();
                let mut found = Vec::new();
                ranges.for_conflicts(start, end, exclusive, |range| found.push((range.end, range.exclusive)));
                let conflicts =
                    |other: &&(u64, u64, bool)| start < other.1 && other.0 < end && (exclusive || other.2);
                let mut wanted: Vec<_> =
                    all.iter().filter(conflicts).map(|(_, end, exclusive)| (*end, *exclusive)).collect();
                wanted.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn exclusive_ranges_are_exclusive_under_load() {
        let shared = Arc::new((RangeLock::new(), [const { AtomicI32::new(0) }; 16]));
        let threads: Vec<_> = (0..4)
            .map(|seed| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let mut random = Random::seeded(seed);
                    for _ in 0..4000 {
                        let (a, b) = (random.below(16) as usize, random.below(16) as usize);
                        let (start, end, exclusive) = (a.min(b), a.max(b) + 1, random.one_in(2));
                        let _range = shared.0.lock(start as u64, end as u64, exclusive);
                        // Readers count up, writers far down.
                        let share = if exclusive { -1000 } else { 1 };
                        for users in &shared.1[start..end] {
                            let before = users.fetch_add(share, Ordering::SeqCst);
                            assert!(if exclusive { before == 0 } else { before >= 0 });
                        }
                        for users in &shared.1[start..end] {
                            users.fetch_sub(share, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(shared.0.ranges.lock().classes.iter().all(|class| class.ranges.is_empty()));
    }
}
