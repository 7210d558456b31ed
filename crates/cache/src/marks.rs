//! Marks of headers: those of neighbours in the slab lie together.
//!
//! A header is *vacant* between lives, and a folio may be *proven* ([`crate::reclaim`]). Reclaim's hand has
//! nothing to do with either, mostly. In a large cache a look at a header is a miss of the processor's
//! caches; two lines of marks tell of 512 headers at once.
//!
//! Shared: a line is written when one of its folios is born or dies, proves itself or no longer does.
//!
//! Neighbours: [`crate::folio`] keeps the marks of a header, [`crate::slab`] looks for headers by them.

// Hints, which models need not interleave.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Headers whose marks lie together.
pub(crate) const MARKS: usize = 512;

/// One kind of mark, for [`MARKS`] headers in a row.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Line([AtomicU64; MARKS / 64]);

/// The marks of [`MARKS`] headers in a row.
#[derive(Default)]
pub(crate) struct Marks {
    pub vacant: Line,
    pub proven: Line,
}

impl Line {
    fn word(&self, number: u16) -> (&AtomicU64, u64) {
        (&self.0[usize::from(number) / 64], 1 << (number % 64))
    }

    /// Whether one is set.
    pub fn is_set(&self, number: u16) -> bool {
        let (word, bit) = self.word(number);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Sets or clears one. Returns whether it was set.
    pub fn swap(&self, number: u16, to: bool) -> bool {
        let (word, bit) = self.word(number);
        if self.is_set(number) == to {
            return to;
        }
        let before = match to {
            true => word.fetch_or(bit, Ordering::Relaxed),
            false => word.fetch_and(!bit, Ordering::Relaxed),
        };
        before & bit != 0
    }
}

impl Marks {
    /// The first from `number` on that is not vacant, and with `unproven` not proven.
    pub fn next(&self, number: usize, unproven: bool) -> Option<usize> {
        let mut number = number;
        while number < MARKS {
            let word = number / 64;
            let proven = if unproven { self.proven.0[word].load(Ordering::Relaxed) } else { 0 };
            let passed = self.vacant.0[word].load(Ordering::Relaxed) | proven;
            let wanted = !passed >> (number % 64);
            if wanted != 0 {
                return Some(number + wanted.trailing_zeros() as usize);
            }
            number = (word + 1) * 64;
        }
        None
    }
}

/// Where the marks of a new header are; by default alone.
#[derive(Default)]
pub(crate) struct Mark {
    pub marks: Arc<Marks>,
    pub number: u16,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_not_passed_over_are_found() {
        let marks = Marks::default();
        for number in (0..MARKS as u16).filter(|number| ![3, 64, 300, 511].contains(number)) {
            let line = if number % 3 == 0 { &marks.vacant } else { &marks.proven };
            assert!(!line.swap(number, true));
        }
        assert!(marks.proven.is_set(2) && !marks.vacant.is_set(2) && marks.proven.swap(2, true));
        let unproven = |from| marks.next(from, true);
        assert_eq!([0, 3, 4, 65, 301].map(unproven), [3, 3, 64, 300, 511].map(Some));
        assert!(marks.vacant.swap(510, false) && !marks.vacant.swap(510, false));
        assert_eq!([301, 511, 512].map(unproven), [Some(510), Some(511), None]);
        assert_eq!([0, 1, 6, 9].map(|from| marks.next(from, false)), [1, 1, 7, 10].map(Some));
    }
}
