//! Growth inside the last block: the data and the record of the size need no order, and one flush covers
//! both.
//!
//! An append of less than a block overwrites the last block in place and raises the size on disk inside it.
//! The record would have to wait for the data if the block on disk could hold anything past the old size:
//! bytes that a truncate cut off, or that a crash left there before their record. If it holds zeros there the
//! record goes ahead, as over blocks zeroed ahead ([`super::ahead`]). This module knows when.
//!
//! # What a crash finds
//!
//! The file ends on disk at byte `s` of the block, the write makes it end at `t`, and no flush has come yet.
//!
//! * Neither record nor data, or the data alone: the file ends at `s`. Bytes past `s` do not count; the next
//!   life does not know them, and takes its first step with two flushes.
//! * The record alone: the file ends at `t`, with zeros from `s` on. No fsync has confirmed these bytes.
//! * Both: the new contents.
//! * A torn data write: each sector is old or new. Up to `s` both are the file's own bytes. They are the
//!   same, or the write overwrites them in place, which promises no more than this. From `s` on a sector has
//!   zeros or the data.
//!
//! # What is known
//!
//! Of one block of a file, the highest that was placed, [`Tail`] keeps from which byte on *every version that
//! a crash may leave* holds zeros. The cache says for each write how many bytes of its last block are filled,
//! up to the last byte that is not zero, from memory that does not change until the write has ended.
//!
//! * A block zeroed ahead starts with no byte filled, and that is durable.
//! * A write adds a version, as soon as it may be under way: the larger number counts, since a crash may
//!   leave either.
//! * A write that has completed makes all earlier versions impossible once a flush has covered its mark.
//!   Until then nothing is known, unless the earlier versions have no more bytes filled.
//! * Nothing is known of other blocks: those that were fallocated or allocated without zeroing, those of an
//!   earlier life, those written past the cache.
//!
//! Invariants: a block is written only through [`super::backing`], which tells, or by direct I/O, which makes
//! the file forget; so do all operations that have the file to themselves, since they free blocks and move
//! them. At most one write of a block is in flight (C2).
//!
//! Neighbours: [`super::backing`] tells of writes; [`super::ahead`] asks.

use quire_base::sync::Mutex;
use quire_base::{BLOCK_SIZE, BlockNo};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Tail(Mutex<Option<Known>>);

/// The block, and the bytes from its start that may be other than zero once `mark` has been flushed.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: BlockPlace,
    filled: usize,
    mark: u64,
}

/// A block of the file and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) file_block: u64,
    pub(crate) home: BlockNo,
}

/// What a block held on disk before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Zeros, durably.
    Zeros,
    /// What earlier writes of this file left.
    Written,
    /// Anything.
    Unknown,
}

impl Tail {
    /// Bytes of a block that may be other than zero, in every version that a crash may leave; `None` if that
    /// is not known. `flushed` is the device's flushed mark, read before.
    pub(crate) fn filled(&self, place: BlockPlace, flushed: u64) -> Option<usize> {
        let known = (*self.0.lock())?;
        (known.place == place && known.mark <= flushed).then_some(known.filled)
    }

    /// A block is about to be written, with so many bytes filled.
    pub(crate) fn write_begins(&self, place: BlockPlace, before: Before, filled: usize, flushed: u64) {
        let mut known = self.0.lock();
        let earlier = match before {
            Before::Zeros => Some(0),
            Before::Written => {
                known.filter(|known| known.place == place && known.mark <= flushed).map(|known| known.filled)
            }
            Before::Unknown => None,
        };
        match earlier {
            Some(earlier) => *known = Some(Known { place, filled: earlier.max(filled), mark: 0 }),
            // A block before the one that is known leaves it as it is.
            None if known.is_some_and(|known| known.place.file_block > place.file_block) => {}
            None => *known = None,
        }
    }

    /// A block was written, with so many bytes filled; `mark` was read since.
    pub(crate) fn write_ended(&self, place: BlockPlace, filled: usize, mark: u64) {
        let mut known = self.0.lock();
        let is_covered = |known: &Known| match known.place == place {
            true => known.mark == 0 && known.filled <= filled,
            false => known.place.file_block > place.file_block,
        };
        if !known.as_ref().is_some_and(is_covered) {
            *known = Some(Known { place, filled, mark });
        }
    }

    /// Blocks of the file are freed, moved, or written past the cache.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// Whether the record of a placement may go ahead of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// One past the last block that is written in place; all others of the placement hold durable zeros.
    pub(crate) written_end: u64,
    /// [`Tail::filled`] of that last block, before this write.
    pub(crate) tail: Option<usize>,
}

impl Ahead {
    /// Whether only zeros or the data can be seen if the size on disk rises from `on_disk` to `size` over a
    /// placement of the bytes `from..to`.
    pub(crate) fn shows_only_its_own(&self, on_disk: u64, size: u64, (from, to): (u64, u64)) -> bool {
        if size == on_disk {
            return true;
        }
        if on_disk < from || size > to {
            return false;
        }
        let written_end = self.written_end * BLOCK_SIZE as u64;
        // What rises above the blocks that are written in place lies in zeros.
        if on_disk >= written_end {
            return true;
        }
        let last = written_end - BLOCK_SIZE as u64;
        on_disk >= last && self.tail.is_some_and(|filled| filled as u64 <= on_disk - last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: BlockPlace = BlockPlace { file_block: 3, home: BlockNo(70) };

    #[test]
    fn appends_to_a_zeroed_block_are_known_at_once() {
        let tail = Tail::default();
        tail.write_begins(AT, Before::Zeros, 100, 5);
        assert_eq!(tail.filled(AT, 5), Some(100));
        tail.write_ended(AT, 100, 9);
        assert_eq!(tail.filled(AT, 5), Some(100));
        tail.write_begins(AT, Before::Written, 200, 5);
        tail.write_ended(AT, 200, 10);
        assert_eq!(tail.filled(AT, 5), Some(200));
    }

    #[test]
    fn an_unknown_block_is_known_when_its_write_has_been_flushed() {
        let tail = Tail::default();
        tail.write_begins(AT, Before::Written, 100, 5);
        assert_eq!(tail.filled(AT, 5), None);
        tail.write_ended(AT, 100, 9);
        assert_eq!((tail.filled(AT, 8), tail.filled(AT, 9)), (None, Some(100)));
        // Written again before the flush: the versions before the first write are still possible.
        tail.write_begins(AT, Before::Written, 200, 8);
        assert_eq!(tail.filled(AT, 100), None);
        tail.write_ended(AT, 200, 12);
        assert_eq!((tail.filled(AT, 11), tail.filled(AT, 12)), (None, Some(200)));
    }

    /// A truncate inside the block: the older version has more bytes filled until the newer one is flushed.
    #[test]
    fn the_version_with_the_most_bytes_counts() {
        let tail = Tail::default();
        tail.write_begins(AT, Before::Zeros, 3000, 5);
        tail.write_ended(AT, 3000, 6);
        tail.write_begins(AT, Before::Written, 40, 6);
        assert_eq!(tail.filled(AT, 6), Some(3000));
        tail.write_ended(AT, 40, 9);
        assert_eq!((tail.filled(AT, 8), tail.filled(AT, 9)), (None, Some(40)));
    }

    #[test]
    fn only_the_highest_block_is_kept() {
        let tail = Tail::default();
        tail.write_begins(AT, Before::Zeros, 10, 0);
        let before = BlockPlace { file_block: 1, home: BlockNo(68) };
        tail.write_begins(before, Before::Written, 4096, 0);
        tail.write_ended(before, 4096, 3);
        assert_eq!(tail.filled(AT, 0), Some(10));
        let behind = BlockPlace { file_block: 4, home: BlockNo(71) };
        tail.write_begins(behind, Before::Unknown, 10, 0);
        assert_eq!((tail.filled(AT, 0), tail.filled(behind, 9)), (None, None));
        // The same block, living elsewhere.
        tail.write_begins(AT, Before::Zeros, 10, 0);
        let moved = BlockPlace { home: BlockNo(90), ..AT };
        assert_eq!(tail.filled(moved, 9), None);
        tail.write_begins(moved, Before::Written, 10, 0);
        assert_eq!(tail.filled(AT, 9), None);
    }

    #[test]
    fn the_size_rises_over_zeros_alone() {
        let block = BLOCK_SIZE as u64;
        // Blocks 3 and 4; the file ends in block 3, which is written in place and has 100 bytes.
        let tail = Ahead { written_end: 4, tail: Some(100) };
        let range = (3 * block, 5 * block);
        assert!(tail.shows_only_its_own(3 * block + 100, 4 * block + 7, range));
        assert!(!tail.shows_only_its_own(3 * block + 99, 4 * block + 7, range), "a byte is older");
        assert!(!tail.shows_only_its_own(3 * block + 100, 5 * block + 1, range), "past the placement");
        assert!(!tail.shows_only_its_own(2 * block + 100, 4 * block, range), "before the placement");
        let unknown = Ahead { tail: None, ..tail };
        assert!(!unknown.shows_only_its_own(3 * block + 100, 4 * block, range));
        assert!(unknown.shows_only_its_own(4 * block, 4 * block + 7, range), "from a block's end");
        assert!(unknown.shows_only_its_own(9 * block, 9 * block, range), "no growth");
        let two = Ahead { written_end: 5, tail: Some(0) };
        assert!(
            !two.shows_only_its_own(3 * block + 100, 5 * block, range),
            "two blocks that were written before"
        );
    }
}
