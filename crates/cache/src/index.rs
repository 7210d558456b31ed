//! A file's index of folios: which folio holds a block.
//!
//! An ordered map under a reader-writer lock; the interface (look up a range into a caller's list, insert if
//! nothing overlaps, remove on a condition) is the one that a lock-free index can keep.
//!
//! Invariants: folios do not overlap; a folio is in the index exactly during its life; pins are taken under the
//! lock held shared, removal happens under the lock held exclusively.
//!
//! Neighbours: [`crate::mapping`] is the only user. The lock is a leaf but for segment locks that are only tried.

use crate::folio::{FolioPin, FolioRef};
use quire_base::sync::RwLock;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Bytes that an entry costs, as the byte limit counts them.
pub const ENTRY_BYTES: u64 = 64;

/// Folios of an operation, ascending.
pub type Pins = SmallVec<[FolioPin; 4]>;

/// See the module's documentation.
#[derive(Default)]
pub struct Index {
    folios: RwLock<BTreeMap<u64, FolioRef>>,
}

/// The folios that overlap `[first, end)`, ascending.
fn overlapping(
    folios: &BTreeMap<u64, FolioRef>,
    first: u64,
    end: u64,
) -> impl Iterator<Item = (u64, FolioRef)> + '_ {
    let before = folios
        .range(..first)
        .next_back()
        .filter(move |(start, folio)| **start + u64::from(folio.blocks()) > first && first < end);
    before.into_iter().chain(folios.range(first..end.max(first))).map(|(start, folio)| (*start, *folio))
}

impl Index {
    /// Pins the folios that overlap blocks `[first, end)`, and returns the blocks of the range that none covers.
    pub fn pin(&self, first: u64, end: u64, pins: &mut Pins) -> u64 {
        let mut missing = end - first;
        for (start, folio) in overlapping(&self.folios.read(), first, end) {
            let folio_end = start + u64::from(folio.blocks());
            missing -= folio_end.min(end) - start.max(first);
            pins.push(FolioPin::new(folio));
        }
        missing
    }

    /// Pins at most `count` folios that overlap `[first, end)`.
    pub fn pin_some(&self, first: u64, end: u64, count: usize, pins: &mut Pins) {
        for (_, folio) in overlapping(&self.folios.read(), first, end).take(count) {
            pins.push(FolioPin::new(folio));
        }
    }

    /// The blocks of `[first, end)` that no folio covers.
    pub fn missing(&self, first: u64, end: u64) -> u64 {
        overlapping(&self.folios.read(), first, end).fold(end - first, |missing, (start, folio)| {
            missing - ((start + u64::from(folio.blocks())).min(end) - start.max(first))
        })
    }

    /// The folios that cover all of `[first, end)`, without pins: they may die at once. False if a block has none.
    pub fn look_up(&self, first: u64, end: u64, found: &mut SmallVec<[(u64, FolioRef); 4]>) -> bool {
        let mut next = first;
        let folios = self.folios.read();
        for (start, folio) in overlapping(&folios, first, end) {
            if start > next {
                return false;
            }
            next = start + u64::from(folio.blocks());
            found.push((start, folio));
        }
        next >= end
    }

    /// Adds a folio and pins it, unless another overlaps it.
    pub fn insert(&self, folio: FolioRef) -> Option<FolioPin> {
        let mut folios = self.folios.write();
        let (start, end) = (folio.start(), folio.end_block());
        if overlapping(&folios, start, end).next().is_some() {
            return None;
        }
        folios.insert(start, folio);
        Some(FolioPin::new(folio))
    }

    /// Removes `folio` if it is here, at `start`, and `may_leave` holds.
    pub fn remove_if(&self, start: u64, folio: FolioRef, may_leave: impl FnOnce() -> bool) -> bool {
        let mut folios = self.folios.write();
        if folios.get(&start) != Some(&folio) || !may_leave() {
            return false;
        }
        folios.remove(&start);
        true
    }

    /// Whether no folio overlaps `[first, end)`.
    pub fn is_free(&self, first: u64, end: u64) -> bool {
        overlapping(&self.folios.read(), first, end).next().is_none()
    }

    /// Folios in the index.
    pub fn len(&self) -> usize {
        self.folios.read().len()
    }
}
