//! The cached read: without a lock where possible, else with every segment shared.
//!
//! Optimistic ([`Mapping::try_read`]): look at size and exclusive sequence; find the folios; take every
//! segment's version; check that the folios are still this mapping's and every block is uptodate; copy; look
//! at all of it again. A disturbed attempt leaves garbage in the caller's buffer, which is never reported.
//! No line that others write is written. A missing folio or block, holes included, ends the attempt.
//!
//! Locked ([`Mapping::read`]): the caller holds the gate. A folio for every block, missing blocks filled,
//! segments shared in ascending order over the whole range, then the size is looked at again: if it has grown
//! past what this read took for the end, it starts over; else copy. Both are untorn against write batches,
//! which lock all their segments, and publish the size before they unlock the first.
//!
//! Neighbours: [`crate::segment`] has the argument, [`crate::fill`] the misses.

use crate::copy;
use crate::core::MemoryWait;
use crate::folio::{Folio, FolioRef, SEGMENTS_MAX};
use crate::hints::Pattern;
use crate::index::BLOCKS_END;
use crate::index::Pins;
use crate::mapping::Mapping;
use crate::reclaim::touch;
use crate::segment::{self, SegmentLock, Version};
use quire_base::sync::atomic::{Ordering, fence};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};
use smallvec::SmallVec;

/// Optimistic attempts before the slow path.
const ATTEMPTS: u32 = 4;

/// What an optimistic read needs to know of the inode: looked at before and after the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadView {
    /// Counts exclusive operations; odd while one is under way.
    pub exclusive_sequence: u64,
    /// The file's size in bytes.
    pub size: u64,
}

/// Bytes of a read at `offset` that lie below `size`.
fn clip(offset: u64, len: usize, size: u64) -> usize {
    usize::try_from(size.saturating_sub(offset)).map_or(len, |below| below.min(len))
}

impl Mapping {
    /// Reads without a lock, as many bytes as the file has at `offset`, up to the length of `buf`. `None`:
    /// something is not cached or is being changed, use [`Mapping::read`]; the buffer then holds anything.
    /// `view` reads with acquire order.
    pub fn try_read(&self, offset: u64, buf: &mut [u8], view: impl Fn() -> ReadView) -> Option<usize> {
        for _ in 0..ATTEMPTS {
            let seen = view();
            if seen.exclusive_sequence % 2 == 1 {
                return None;
            }
            let len = clip(offset, buf.len(), seen.size);
            let clipped = len < buf.len();
            let copied = if len == 0 { Some(true) } else { self.try_copy(offset, &mut buf[..len]) };
            match copied {
                None => return None,
                Some(true) => {
                    let now = view();
                    let same_sequence = now.exclusive_sequence == seen.exclusive_sequence;
                    let same_size = !clipped || now.size == seen.size;
                    if same_sequence && same_size {
                        self.core.metrics.reads_optimistic.add(1);
                        return Some(len);
                    }
                }
                Some(false) => {}
            }
            self.core.metrics.reads_disturbed.add(1);
            quire_base::sync::spin_loop();
        }
        None
    }

    /// One attempt: `None` if it cannot succeed soon, false if a writer disturbed it.
    fn try_copy(&self, offset: u64, buf: &mut [u8]) -> Option<bool> {
        let first = offset / BLOCK_SIZE as u64;
        let end = blocks_for(offset + buf.len() as u64);
        if let Some((start, folio)) = self.index.look_up_one(first)
            && end <= start + u64::from(folio.blocks())
        {
            return self.try_copy_one(start, folio, offset, buf);
        }
        let mut found: SmallVec<[(u64, FolioRef); 4]> = SmallVec::new();
        if !self.index.look_up(first, end, &mut found) {
            return None;
        }
        // The folios are not pinned: they may die here, and live again elsewhere.
        let parts = || found.iter().map(|(start, folio)| (*start, folio.clip_at(*start, first, end), *folio));
        let segments = || {
            found.iter().flat_map(|(start, folio)| {
                let (from, to) = folio.clip_at(*start, first, end);
                folio.segments(from, to)
            })
        };
        let mut versions: SmallVec<[Version; 16]> = SmallVec::new();
        if !segment::collect_versions(segments(), &mut versions) {
            return Some(false);
        }
        for (start, (from, to), folio) in parts() {
            if !folio.is(self.number, start) || !folio.uptodate().all(from, to) {
                // Dead, or a block is missing; a writer that is just making it valid counts as well.
                return None;
            }
        }
        for (start, (from, to), folio) in parts() {
            self.copy_part(&folio, start, from, to, offset, buf);
        }
        if !segment::all_unchanged(segments(), &versions) {
            return Some(false);
        }
        parts().for_each(|(_, (from, to), folio)| touch(&self.core, &folio, from, to));
        Some(true)
    }

    /// [`Mapping::try_copy`] within one folio, which is most reads: nothing is gathered, and the lines that
    /// will be needed are asked for before the first of them is looked at. Whose folio it is stands on
    /// another line than the rest and is looked at last, between the two looks at the versions, while which
    /// it cannot change.
    #[inline]
    fn try_copy_one(&self, start: u64, folio: FolioRef, offset: u64, buf: &mut [u8]) -> Option<bool> {
        let base = start * BLOCK_SIZE as u64;
        let within = (offset - base) as usize;
        let (from, to) = ((within / BLOCK_SIZE) as u32, (within + buf.len()).div_ceil(BLOCK_SIZE) as u32);
        copy::prefetch_line(std::ptr::from_ref(&*folio).cast::<u8>());
        let skip = within % BLOCK_SIZE;
        copy::prefetch(folio.memory(from).wrapping_add(skip), buf.len());
        let (low, high) = (folio.segment_number(from), folio.segment_number(to - 1));
        let mut versions = [Version::default(); SEGMENTS_MAX as usize];
        for (number, version) in (low..=high).zip(&mut versions) {
            match folio.segment(number).version() {
                Some(found) => *version = found,
                None => return Some(false),
            }
        }
        if !folio.uptodate().all(from, to) {
            // A block is missing; a writer that is just making it valid counts as well.
            return None;
        }
        // Where the memory is was not certain before the versions were taken.
        // SAFETY: as in `copy_part`.
        unsafe { copy::copy_out(folio.memory(from).wrapping_add(skip), buf) };
        let is_ours = folio.is(self.number, start);
        fence(Ordering::Acquire);
        let unchanged =
            (low..=high).zip(&versions).all(|(number, version)| folio.segment(number).unchanged(*version));
        if unchanged && !is_ours {
            return None;
        }
        if unchanged {
            touch(&self.core, &folio, from, to);
        }
        Some(unchanged)
    }

    /// Copies the part of the read at `offset` that blocks `[from, to)` of the folio hold.
    fn copy_part(&self, folio: &Folio, start: u64, from: u32, to: u32, offset: u64, buf: &mut [u8]) {
        let base = start * BLOCK_SIZE as u64;
        let low = (base + u64::from(from) * BLOCK_SIZE as u64).max(offset);
        let high = (base + u64::from(to) * BLOCK_SIZE as u64).min(offset + buf.len() as u64);
        let target = &mut buf[(low - offset) as usize..(high - offset) as usize];
        // SAFETY: the bytes are within the folio's blocks, whose memory stays mapped as long as the cache; a
        // copy that raced with a change, or with another life of the header, is thrown away by the caller.
        unsafe { copy::copy_out(folio.memory(0).wrapping_add((low - base) as usize), target) }
    }

    /// Reads as many bytes as the file has at `offset`, up to the length of `buf`. The caller holds the gate
    /// (buffered for up to a batch; beyond that the pieces are untorn one by one, and the whole only if the
    /// gate keeps writers out). `size` loads the file's size.
    pub fn read(&self, offset: u64, buf: &mut [u8], size: &dyn Fn() -> u64) -> Result<usize> {
        // No file reaches further. The size is for later: a write may raise it until the segments are shared.
        let len = clip(offset, buf.len(), BLOCKS_END * BLOCK_SIZE as u64);
        let buf = &mut buf[..len];
        let batch = self.core.config.batch_bytes;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            // Pieces end on batch boundaries of the file.
            let piece = (batch - (at % batch as u64) as usize).min(buf.len() - done);
            let piece = if buf.len() <= batch { buf.len() } else { piece };
            let count = self.read_piece(at, &mut buf[done..done + piece], size)?;
            done += count;
            if count < piece {
                break;
            }
        }
        Ok(done)
    }

    fn read_piece(&self, offset: u64, buf: &mut [u8], size: &dyn Fn() -> u64) -> Result<usize> {
        self.core.metrics.reads_locked.add(1);
        let mut room = crate::budget::Room::empty(&self.core.budget);
        let mut wait = MemoryWait::default();
        loop {
            let seen = size();
            let len = clip(offset, buf.len(), seen);
            if len == 0 {
                return Ok(0);
            }
            let first = offset / BLOCK_SIZE as u64;
            let end = blocks_for(offset + len as u64);
            self.make_room(&mut room, first, end)?;
            let mut pins = Pins::new();
            if let Err(short) = self.pin_or_make(first, end, blocks_for(seen), &mut pins, &mut room) {
                self.core.refill_room(&mut room, short.0, &mut wait)?;
                continue;
            }
            self.fill_for_read(&pins, first, end, blocks_for(seen))?;

            let segments = || {
                pins.iter().flat_map(|pin| {
                    let (from, to) = pin.clip(first, end);
                    pin.segments(from, to)
                })
            };
            segments().for_each(|segment: &SegmentLock| segment.share(&self.core.parking));
            let unlock = || segments().for_each(|segment| segment.unshare(&self.core.parking));
            let valid = pins.iter().all(|pin| {
                let (from, to) = pin.clip(first, end);
                pin.uptodate().all(from, to)
            });
            // The size last: a write that extended the file published it before it unlocked a segment.
            let now = clip(offset, buf.len(), size());
            if !valid || now > len {
                unlock();
                continue;
            }
            let len = len.min(now);
            for pin in &pins {
                let (from, to) = pin.clip(first, blocks_for(offset + len as u64).max(first));
                if from < to {
                    self.copy_part(pin, pin.start(), from, to, offset, &mut buf[..len]);
                }
                touch(&self.core, pin, from, to);
            }
            unlock();
            return Ok(len);
        }
    }

    /// Fills what the read needs; a miss that continues a stream reads ahead, twice as far each time.
    fn fill_for_read(&self, pins: &Pins, first: u64, end: u64, size_blocks: u64) -> Result<()> {
        let mut valid = true;
        let miss = pins.iter().find_map(|pin| {
            let (from, to) = pin.clip(first, end);
            let absent = |block: &u32| !pin.uptodate().get(*block);
            valid &= pin.uptodate().all(from, to);
            (from..to)
                .find(|block| absent(block) && !pin.filling().get(*block))
                .map(|block| pin.start() + u64::from(block))
        });
        let Some(miss) = miss else {
            // At most what is being read in already.
            return if valid { Ok(()) } else { self.fill(pins, first, end, None) };
        };
        // A tiny cache is not to be emptied by readahead; and what is read ahead is to be used within an
        // epoch of reclaim.
        let most = self.core.config.readahead_bytes.min(self.core.budget.limit() / 32) / BLOCK_SIZE as u64;
        let streaming = miss == self.ahead_next.load(Ordering::Relaxed);
        let doubled = (self.ahead_blocks.load(Ordering::Relaxed) * 2).max(2 * (end - first)).min(most);
        let ahead = match self.pattern.get() {
            Pattern::Normal if streaming => doubled,
            Pattern::Normal | Pattern::Random => 0,
            Pattern::Sequential => most,
        };
        let ahead_end = (end + ahead).min(size_blocks).max(end);
        self.ahead_blocks.store(ahead, Ordering::Relaxed);
        self.ahead_next.store(ahead_end, Ordering::Relaxed);
        if ahead_end == end {
            return self.fill(pins, first, end, None);
        }
        let mut more = Pins::new();
        let pinned_end = pins.last().map_or(end, |pin| pin.end_block()).max(end);
        if pinned_end < ahead_end {
            self.make_ahead(pinned_end, ahead_end, &mut more);
        }
        self.fill(pins, first, end, Some((&more, ahead_end)))
    }
}
