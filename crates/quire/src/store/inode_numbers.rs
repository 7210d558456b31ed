//! Inode numbers to hand out: ascending, never the same twice, and in ranges.
//!
//! Each shard takes a range of numbers from the volume's end of them and hands these out by itself. So
//! threads that create files at the same time change no common word for a number, and the records of what
//! each of them made lie in leaves of their own. The rest of a range when the volume closes is not used
//! again; there are 2^64.
//!
//! Invariants: every number in use is below the end, and so is every range; the superblock has the end, so
//! after a crash nothing that was handed out is handed out again. The end of a snapshot is not beyond the
//! volume's.
//!
//! Shared lines: the end, once in [`RANGE`] numbers.
//!
//! Neighbours: [`super::apply`] moves the end past numbers that a journal record names, and past the end that
//! a snapshot has, in replay.

use quire_base::InodeNo;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// Numbers that a shard takes at once: some twenty leaves of inode records.
pub(crate) const RANGE: u64 = 512;

#[repr(align(128))]
struct Line<T>(T);

/// See the module's documentation.
pub(crate) struct InodeNumbers {
    end: Line<AtomicU64>,
    ranges: [Line<Mutex<Range<u64>>>; SHARDS],
}

impl InodeNumbers {
    /// Numbers from `end` on.
    pub(crate) fn from(end: u64) -> InodeNumbers {
        InodeNumbers {
            end: Line(AtomicU64::new(end)),
            ranges: std::array::from_fn(|_| Line(Mutex::new(0..0))),
        }
    }

    /// A number that nobody has had.
    pub(crate) fn take(&self) -> InodeNo {
        let mut range = self.ranges[shard::current() % SHARDS].0.lock();
        if range.is_empty() {
            // Only a made-up image comes near the last number; it gets that one again and again.
            let take = |end: u64| Some(end.saturating_add(RANGE));
            let start =
                self.end.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).expect("always some");
            *range = start..start.saturating_add(RANGE);
        }
        let number = range.start;
        range.start = number.saturating_add(1);
        InodeNo(number)
    }

    /// Every number handed out, now or later by the ranges that are taken, is below this.
    pub(crate) fn end(&self) -> u64 {
        self.end.0.load(Ordering::Relaxed)
    }

    /// Numbers below `end` are in use.
    pub(crate) fn pass(&self, end: u64) {
        // Looked at first: what was handed out here is below already, and a look shares the line.
        if self.end() < end {
            self.end.0.fetch_max(end, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_handed_out_once_and_lie_below_the_end() {
        let numbers = InodeNumbers::from(7);
        let mut seen = BTreeSet::new();
        for n in 0..4 * RANGE {
            shard::set((n % 3) as usize);
            let number = numbers.take().0;
            assert!(number >= 7 && number < numbers.end());
            assert!(seen.insert(number));
        }
        let end = numbers.end();
        numbers.pass(end - 1);
        assert_eq!(numbers.end(), end);
        numbers.pass(end + 5);
        assert_eq!(numbers.end(), end + 5);
    }
}
