//! One allocation group: 64 regions, the search for free runs in them, and the frees that wait.
//!
//! Block numbers are within the group, 0 to 262,143; blocks outside the data space are busy for ever.
//!
//! A [`Group`] is the locked bitmap with, on the same cache line, three hints that are written under the lock
//! and read without: the free count, a bound on the longest free run (for skipping groups), and the next-fit
//! cursor.

use crate::region::Region;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU32, Ordering};
use quire_base::{Result, Seq};
use quire_format::region::{REGION_BLOCKS, RegionMap};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Regions in a group.
pub(crate) const GROUP_REGIONS: u64 = 64;
/// Blocks in a group: 1 GiB.
pub(crate) const GROUP_BLOCKS: u64 = GROUP_REGIONS * REGION_BLOCKS;

const REGION: u32 = REGION_BLOCKS as u32;
const BLOCKS: u32 = GROUP_BLOCKS as u32;
/// The free count of a group that is not loaded.
const UNKNOWN: u32 = u32::MAX;

/// A run of blocks within a group.
pub(crate) type Piece = Range<u32>;

/// A group as the allocator keeps it.
#[repr(align(64))]
pub(crate) struct Group {
    free: AtomicU32,
    longest: AtomicU32,
    cursor: AtomicU32,
    map: Mutex<Option<Box<GroupMap>>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Group>() == 64);

impl Group {
    pub(crate) fn new() -> Group {
        Group {
            free: AtomicU32::new(UNKNOWN),
            longest: AtomicU32::new(UNKNOWN),
            cursor: AtomicU32::new(0),
            map: Mutex::new(None),
        }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.free.load(Ordering::Acquire) != UNKNOWN
    }

    /// Free blocks, if the group is loaded: a hint.
    pub(crate) fn free_count(&self) -> Option<u32> {
        Some(self.free.load(Ordering::Relaxed)).filter(|free| *free != UNKNOWN)
    }

    /// Whether a free run of `blocks` can be there, as far as is known.
    pub(crate) fn may_have_run(&self, blocks: u32) -> bool {
        self.longest.load(Ordering::Relaxed) >= blocks
    }

    /// No free run is longer, as far as is known: a hint.
    pub(crate) fn longest(&self) -> u32 {
        self.longest.load(Ordering::Relaxed)
    }

    /// Where the next search in the group starts: a hint.
    pub(crate) fn cursor(&self) -> u32 {
        self.cursor.load(Ordering::Relaxed)
    }

    /// Puts a loaded bitmap in place, unless another thread was first, or it does not hold any more.
    pub(crate) fn install(&self, map: GroupMap, holds: impl FnOnce() -> bool) -> bool {
        let mut place = self.map.lock();
        let first = place.is_none() && holds();
        if first {
            self.publish(&map);
            *place = Some(Box::new(map));
        }
        first
    }

    /// Does something to the bitmap, under the lock; nothing if it is not loaded.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut GroupMap) -> R) -> Option<R> {
        let mut place = self.map.lock();
        let map = place.as_mut()?;
        let result = act(map);
        self.publish(map);
        Some(result)
    }

    /// Moves the end of the data space out of the group, or on within it; if the group is loaded, blocks that
    /// were behind the end become free.
    pub(crate) fn grow(&self, move_end: impl FnOnce(), behind: Piece) -> Result<()> {
        let mut place = self.map.lock();
        move_end();
        let Some(map) = place.as_mut() else { return Ok(()) };
        let freed = map.give_back(behind);
        self.publish(map);
        freed
    }

    fn publish(&self, map: &GroupMap) {
        self.longest.store(map.longest, Ordering::Relaxed);
        self.cursor.store(map.cursor, Ordering::Relaxed);
        self.free.store(map.free, Ordering::Release);
    }
}

/// A group's bitmap.
pub(crate) struct GroupMap {
    regions: Vec<Region>,
    free: u32,
    /// No free run is longer.
    longest: u32,
    cursor: u32,
    deferred: BinaryHeap<Reverse<(Seq, u32, u32)>>,
    listed: bool,
}

impl GroupMap {
    /// From the used blocks of the group's regions, in order.
    pub(crate) fn new(maps: impl IntoIterator<Item = RegionMap>) -> GroupMap {
        let mut regions: Vec<Region> = maps.into_iter().map(Region::new).collect();
        regions.resize_with(GROUP_REGIONS as usize, || Region::new(RegionMap::full()));
        let free = regions.iter().map(Region::free_count).sum();
        GroupMap { regions, free, longest: free, cursor: 0, deferred: BinaryHeap::new(), listed: false }
    }

    pub(crate) fn cursor(&self) -> u32 {
        self.cursor
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn next(&self, from: u32, look: impl Fn(&Region, u32) -> Option<u32>) -> Option<u32> {
        let first = from / REGION;
        (first..GROUP_REGIONS as u32).find_map(|number| {
            let within = if number == first { from % REGION } else { 0 };
            Some(number * REGION + look(&self.regions[number as usize], within)?)
        })
    }

    /// The first maximal free run at or after `from`; a run that `from` lies in begins at `from`.
    fn next_free_run(&self, from: u32) -> Option<Piece> {
        let start = self.next(from, Region::next_free)?;
        Some(start..self.next(start, Region::next_busy).unwrap_or(BLOCKS))
    }

    /// The free blocks from `at` on, up to `want`; empty if `at` is busy.
    pub(crate) fn free_at(&self, at: u32, want: u32) -> Piece {
        match self.next_free_run(at) {
            Some(run) if run.start == at => at..run.end.min(at.saturating_add(want)),
            _ => at..at,
        }
    }

    /// The next run of `want` blocks from `from` on, around the end; or the longest, if all are shorter.
    pub(crate) fn find(&mut self, from: u32, want: u32) -> Option<Piece> {
        // With a known bound the search ends at the first run that reaches it, however fragmented the group
        // is.
        let enough = want.min(self.longest).max(1);
        let mut longest = 0..0;
        for part in [from..BLOCKS, 0..from] {
            let mut at = part.start;
            while let Some(run) = self.next_free_run(at).filter(|run| run.start < part.end) {
                if run.len() >= enough as usize {
                    return Some(run.start..run.end.min(run.start + want));
                }
                at = run.end;
                longest = longer(longest, run);
            }
        }
        // Everything was seen, so the bound is exact now.
        self.longest = longest.len() as u32;
        (!longest.is_empty()).then_some(longest)
    }

    /// The first run of `blocks` whose start, `base` added, is a multiple of `align`.
    pub(crate) fn find_aligned(&mut self, blocks: u32, base: u64, align: u64) -> Option<Piece> {
        if self.longest < blocks {
            return None;
        }
        let (mut at, mut longest) = (0, 0);
        while let Some(run) = self.next_free_run(at) {
            let start = (base + u64::from(run.start)).next_multiple_of(align) - base;
            if start + u64::from(blocks) <= u64::from(run.end) {
                return Some(start as u32..start as u32 + blocks);
            }
            at = run.end;
            longest = longest.max(run.len() as u32);
        }
        // Everything was seen, so the bound is exact now.
        self.longest = longest;
        None
    }

    /// Makes a free run busy; the next search starts behind it. Errors, changing nothing, if a block is busy.
    pub(crate) fn take(&mut self, piece: Piece) -> Result<()> {
        self.all_or_none(piece.clone(), Region::set_busy, Region::set_free)?;
        self.free -= piece.len() as u32;
        self.longest = self.longest.min(self.free);
        self.cursor = piece.end % BLOCKS;
        Ok(())
    }

    /// Takes free runs in order, from the cursor, until there are `blocks` or no more.
    pub(crate) fn take_pieces(&mut self, blocks: u32) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut missing = blocks;
        let mut at = self.cursor;
        while missing > 0 {
            let Some(run) = self.next_free_run(at).or_else(|| self.next_free_run(0)) else { break };
            let piece = run.start..run.end.min(run.start.saturating_add(missing));
            missing -= piece.len() as u32;
            at = piece.end;
            self.take(piece.clone())?;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Takes all free runs that lie in a piece; on errors, `pieces` is what it had taken.
    pub(crate) fn take_free_within(&mut self, piece: Piece, pieces: &mut Vec<Piece>) -> Result<()> {
        let cursor = self.cursor;
        let mut at = piece.start;
        while let Some(run) = self.next_free_run(at).filter(|run| run.start < piece.end) {
            let run = run.start..run.end.min(piece.end);
            at = run.end;
            self.take(run.clone())?;
            pieces.push(run);
        }
        // Nothing is written here, so searches go on where they were.
        self.cursor = cursor;
        Ok(())
    }

    /// Makes a busy run free that was taken and never used.
    pub(crate) fn give_back(&mut self, piece: Piece) -> Result<()> {
        self.all_or_none(piece.clone(), Region::set_free, Region::set_busy)?;
        self.grew(piece.len() as u32);
        Ok(())
    }

    /// Notes that the freeing of a busy run waits for `seq`. True if the group must be put on a list of those
    /// with deferred frees. Errors, changing nothing, if a block is free or being freed.
    pub(crate) fn defer(&mut self, seq: Seq, piece: Piece) -> Result<bool> {
        let undo = |region: &mut Region, start, blocks| region.cancel_freeing(start, blocks);
        self.all_or_none(piece.clone(), Region::begin_freeing, undo)?;
        self.deferred.push(Reverse((seq, piece.start, piece.end)));
        Ok(!std::mem::replace(&mut self.listed, true))
    }

    /// Takes the runs out whose freeing waited for `durable` or earlier; they stay busy until
    /// [`GroupMap::release`]. True if others still wait, and the group must go back on a list.
    pub(crate) fn due(&mut self, durable: Seq, out: &mut Vec<Piece>) -> bool {
        while let Some(&Reverse((seq, start, end))) = self.deferred.peek() {
            if seq > durable {
                return true;
            }
            out.push(start..end);
            self.deferred.pop();
        }
        self.listed = false;
        false
    }

    /// Makes a run free whose freeing was deferred and is now durable.
    pub(crate) fn release(&mut self, piece: Piece) -> Result<()> {
        for (number, start, blocks) in by_region(piece.clone()) {
            self.regions[number].end_freeing(start, blocks)?;
        }
        self.grew(piece.len() as u32);
        Ok(())
    }

    fn grew(&mut self, blocks: u32) {
        self.free += blocks;
        // The run may have joined two others.
        self.longest = self.longest.saturating_mul(2).saturating_add(blocks).min(self.free);
    }

    fn all_or_none(
        &mut self,
        piece: Piece,
        change: impl Fn(&mut Region, u32, u32) -> Result<()>,
        undo: impl Fn(&mut Region, u32, u32) -> Result<()>,
    ) -> Result<()> {
        for (done, (number, start, blocks)) in by_region(piece.clone()).enumerate() {
            if let Err(error) = change(&mut self.regions[number], start, blocks) {
                for (number, start, blocks) in by_region(piece).take(done) {
                    undo(&mut self.regions[number], start, blocks)?;
                }
                return Err(error.context(format!("region {number} of the group")));
            }
        }
        Ok(())
    }
}

fn longer(best: Piece, run: Piece) -> Piece {
    if run.len() > best.len() { run } else { best }
}

/// Cuts a piece at region borders: (region, first block within it, blocks).
fn by_region(piece: Piece) -> impl Iterator<Item = (usize, u32, u32)> {
    let mut at = piece.start;
    std::iter::from_fn(move || {
        (at < piece.end).then(|| {
            let blocks = (REGION - at % REGION).min(piece.end - at);
            let part = ((at / REGION) as usize, at % REGION, blocks);
            at += blocks;
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> GroupMap {
        GroupMap::new((0..GROUP_REGIONS).map(|_| RegionMap::new()))
    }

    #[test]
    fn runs_cross_region_borders() {
        let mut group = empty();
        group.take(4000..9000).unwrap();
        assert_eq!(group.next_free_run(4000), Some(9000..BLOCKS));
        assert_eq!(group.find(0, 5000), Some(9000..14000));
        assert_eq!(group.find(0, 4000), Some(0..4000));
        assert_eq!(group.free_at(3990, 100), 3990..4000);
        assert_eq!(group.free_at(4000, 100), 4000..4000);
        assert_eq!(group.find_aligned(1024, 0, 1024), Some(0..1024));
        assert_eq!(group.find_aligned(4096, 0, 4096), Some(12288..16384));
        assert_eq!(group.find_aligned(4096, 96, 4096), Some(12192..16288));
    }

    #[test]
    fn a_failed_change_changes_nothing() {
        let mut group = empty();
        group.take(8000..8001).unwrap();
        assert!(group.take(4000..9000).is_err());
        assert_eq!(group.free, BLOCKS - 1);
        group.take(4000..8000).unwrap();
        assert!(group.give_back(3999..8001).is_err());
        assert!(group.defer(Seq(1), 4000..8002).is_err());
        assert!(group.defer(Seq(1), 4000..8001).unwrap());
        assert!(!group.defer(Seq(1), 0..0).unwrap());
    }

    #[test]
    fn the_bound_on_runs_is_never_too_small() {
        let mut group = empty();
        group.take(0..BLOCKS).unwrap();
        assert_eq!(group.find(7, 1), None);
        for piece in [0..10, 20..30, 10..20] {
            group.give_back(piece).unwrap();
        }
        assert!(group.longest >= 30);
        assert_eq!(group.find(25, 31), Some(0..30));
        assert_eq!(group.longest, 30);
        assert_eq!(group.take_pieces(100).unwrap(), [Piece { start: 0, end: 30 }]);
    }

    #[test]
    fn frees_come_out_in_order_of_durability() {
        let mut group = empty();
        group.take(0..100).unwrap();
        assert!(group.defer(Seq(30), 0..10).unwrap());
        assert!(!group.defer(Seq(10), 10..20).unwrap());
        let mut out = Vec::new();
        assert!(group.due(Seq(29), &mut out));
        assert_eq!(out, [Piece { start: 10, end: 20 }]);
        assert!(!group.due(Seq(30), &mut out));
        assert!(group.take(10..20).is_err());
        group.release(10..20).unwrap();
        group.take(10..20).unwrap();
        assert!(group.defer(Seq(40), 10..20).unwrap());
    }
}
