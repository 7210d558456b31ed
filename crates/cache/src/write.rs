//! The write batch: one write, up to the batch limit, that readers see entirely or not at all.
//!
//! Order of a batch
//! 1. throttle, and room for the folios it may need ([`Mapping::prepare_write`], before the caller enters the
//!    gate);
//! 2. a folio for every block, pinned; the homes of blocks not known to have one are asked for;
//! 3. partial edge blocks that are not uptodate are read in (only these), fills under way are waited for;
//! 4. all segments are locked, in ascending order, and 3 is checked again (else: unlock, from 2);
//! 5. space is reserved for blocks that become dirty without a home: the last thing that can fail;
//! 6. copy; `uptodate`, then `dirty`; folios are listed; the caller publishes a larger size; unlock.
//!
//! Invariants: nothing is changed before 6. No segment is held while anything waits for the device, for
//! memory or for a fill bit. Writeback's shares are waited for with lower segments held; they end by
//! themselves (C2).
//!
//! Neighbours: [`crate::segment`] for the lock, [`crate::throttle`] and [`crate::core`] for 1,
//! [`crate::fill`] for 3.

use crate::bits::masks;
use crate::budget::Room;
use crate::copy;
use crate::core::MemoryWait;
use crate::folio::FolioPin;
use crate::index::BLOCKS_END;
use crate::index::Pins;
use crate::mapping::Mapping;
use crate::reclaim::touch;
use crate::segment::{self, SegmentLock};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, Result};

/// Where the bytes of a batch come from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A caller's buffer.
    Bytes(&'a [u8]),
    /// This many zeros.
    Zeros(usize),
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Zeros(len) => *len,
        }
    }
}

impl Mapping {
    /// What a write of `len` bytes (at most a batch) at `offset` waits for before it enters the gate: the
    /// dirty limit, and memory. What is not used goes back when the room is dropped.
    pub fn prepare_write(&self, offset: u64, len: usize) -> Result<Room<'_>> {
        self.check_batch(offset, len)?;
        crate::throttle::throttle(&self.core, len as u64)?;
        let mut room = Room::empty(&self.core.budget);
        let (first, end) = (offset / BLOCK_SIZE as u64, blocks_for(offset + len as u64));
        match self.index.look_up_one(first) {
            Some((start, folio)) if end <= start + u64::from(folio.blocks()) => {
                // What the batch will need soon; the header's first line is in hand by then.
                copy::prefetch_line(std::ptr::from_ref(&*folio).cast::<u8>());
                copy::prefetch(folio.memory((first - start) as u32), len);
            }
            _ => self.make_room(&mut room, first, end)?,
        }
        Ok(room)
    }

    /// Writes `data`, at most a batch, at `offset`. The caller holds the gate buffered (or exclusively).
    /// `before_unlock` runs when the data is in place and still locked: it publishes a larger size, takes no
    /// lock above the inode's attributes, and cannot fail. On an error nothing has changed.
    pub fn write_with(
        &self,
        room: Room<'_>,
        offset: u64,
        data: &[u8],
        before_unlock: &mut dyn FnMut(),
    ) -> Result<()> {
        self.check_batch(offset, data.len())?;
        self.batch(room, offset, Source::Bytes(data), before_unlock)
    }

    /// [`Mapping::prepare_write`] and [`Mapping::write_with`] in one, for callers without a gate to enter
    /// between: a piece, at most a batch, of a larger write whose caller holds the gate exclusively and keeps
    /// optimistic readers out throttles and takes memory with the gate held.
    pub fn write(&self, offset: u64, data: &[u8], before_unlock: &mut dyn FnMut()) -> Result<()> {
        let room = self.prepare_write(offset, data.len())?;
        self.write_with(room, offset, data, before_unlock)
    }

    fn check_batch(&self, offset: u64, len: usize) -> Result<()> {
        if len > self.core.config.batch_bytes {
            return Err(Error::invalid(format!(
                "a batch of {len} bytes is over the limit of {}",
                self.core.config.batch_bytes
            )));
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > BLOCKS_END * BLOCK_SIZE as u64) {
            return Err(Error::invalid(format!(
                "a write of {len} bytes at {offset} passes the largest offset"
            )));
        }
        Ok(())
    }

    pub(crate) fn batch(
        &self,
        mut room: Room<'_>,
        offset: u64,
        source: Source<'_>,
        before_unlock: &mut dyn FnMut(),
    ) -> Result<()> {
        if source.len() == 0 {
            before_unlock();
            return Ok(());
        }
        let bytes_end = offset + source.len() as u64;
        let (first, end) = (offset / BLOCK_SIZE as u64, blocks_for(bytes_end));
        let (head, tail) = edges(offset, bytes_end);
        let mut pins = Pins::new();
        let mut wait = MemoryWait::default();
        loop {
            if let Err(short) = self.pin_or_make(first, end, BLOCKS_END, &mut pins, &mut room) {
                self.core.refill_room(&mut room, short.0, &mut wait)?;
                continue;
            }
            self.learn_homes(&pins, first, end)?;
            for edge in [head, tail].into_iter().flatten() {
                self.fill_edge(&pins, edge)?;
            }
            pins.iter().try_for_each(|pin| self.pass_filled(pin, first, end))?;
            self.lock(&pins, first, end)?;
            if !self.may_copy(&pins, first, end, head, tail) {
                self.unlock_unchanged(&pins, first, end);
                self.core.metrics.write_retries.add(1);
                continue;
            }
            let homeless = homeless(&pins, first, end);
            let reserved = match homeless {
                0 => Ok(()),
                _ => self.backing().and_then(|backing| patience::at_once(|| backing.reserve(homeless))),
            };
            if let Err(error) = reserved {
                self.unlock_unchanged(&pins, first, end);
                return Err(error);
            }
            self.change(&pins, offset, source, before_unlock);
            self.core.metrics.writes.add(1);
            return Ok(());
        }
    }

    /// Locks all segments of blocks `[first, end)`, in order; on a thread that may not wait all or, failing,
    /// none.
    fn lock(&self, pins: &Pins, first: u64, end: u64) -> Result<()> {
        if patience::may_wait() {
            self.lock_segments(pins, first, end);
            return Ok(());
        }
        if self.try_lock(pins, first, end) { Ok(()) } else { patience::check("blocks that others hold") }
    }

    /// Locks all segments of blocks `[first, end)`, or none.
    pub(crate) fn try_lock(&self, pins: &Pins, first: u64, end: u64) -> bool {
        let mut locked = 0;
        let all = self.segments(pins, first, end).all(|segment| {
            let got = segment.try_lock();
            locked += usize::from(got);
            got
        });
        if !all {
            let parking = &self.core.parking;
            let held = self.segments(pins, first, end).take(locked);
            held.for_each(|segment| segment.unlock_unchanged(parking));
        }
        all
    }

    /// The segments of blocks `[first, end)`, ascending.
    pub(crate) fn segments<'a>(
        &self,
        pins: &'a Pins,
        first: u64,
        end: u64,
    ) -> impl Iterator<Item = &'a SegmentLock> {
        pins.iter().flat_map(move |pin| {
            let (from, to) = pin.clip(first, end);
            pin.segments(from, to)
        })
    }

    fn lock_segments(&self, pins: &Pins, first: u64, end: u64) {
        segment::lock_all(self.segments(pins, first, end), &self.core.parking);
    }

    pub(crate) fn unlock_unchanged(&self, pins: &Pins, first: u64, end: u64) {
        self.segments(pins, first, end).for_each(|segment| segment.unlock_unchanged(&self.core.parking));
    }

    /// Under the locks: edges are valid, and nobody reads a block in.
    pub(crate) fn may_copy(
        &self,
        pins: &Pins,
        first: u64,
        end: u64,
        head: Option<u64>,
        tail: Option<u64>,
    ) -> bool {
        pins.iter().all(|pin| {
            let (from, to) = pin.clip(first, end);
            let valid = |edge: Option<u64>| {
                edge.is_none_or(|edge| {
                    let (block, stop) = pin.clip(edge, edge + 1);
                    pin.uptodate().all(block, stop)
                })
            };
            debug_assert!(!pin.writeback().any(from, to), "in writeback without a share: {:?}", &**pin);
            !pin.filling().any(from, to) && valid(head) && valid(tail)
        })
    }

    /// Reads an edge block in if it is not there.
    pub(crate) fn fill_edge(&self, pins: &Pins, edge: u64) -> Result<()> {
        let present = pins.iter().any(|pin| {
            let (block, stop) = pin.clip(edge, edge + 1);
            block < stop && pin.uptodate().get(block)
        });
        if present { Ok(()) } else { self.fill(pins, edge, edge + 1, None) }
    }

    /// Asks for the homes of blocks that are neither known to have one nor dirty (a dirty block without a
    /// home is known to have none).
    pub(crate) fn learn_homes(&self, pins: &Pins, first: u64, end: u64) -> Result<()> {
        let count = self.forget_old_homes();
        let mut unknown: Option<(u64, u64)> = None;
        for pin in pins {
            let (from, to) = pin.clip(first, end);
            for (word, mask) in masks(from, to) {
                let known = pin.mapped().word(word).load(Ordering::SeqCst)
                    | pin.dirty().word(word).load(Ordering::SeqCst)
                    | pin.writeback().word(word).load(Ordering::SeqCst);
                let ask = mask & !known;
                if ask != 0 {
                    let base = pin.start() + word as u64 * 64;
                    let low = base + u64::from(ask.trailing_zeros());
                    let high = base + 64 - u64::from(ask.leading_zeros());
                    unknown = Some((unknown.map_or(low, |(from, _)| from), high));
                }
            }
        }
        let Some((from, to)) = unknown else { return Ok(()) };
        let runs = crate::backing::map_all(&*self.backing()?, from, to - from)?;
        self.note_homes(count, || {
            for run in runs.into_iter().filter(|run| !run.home.needs_blocks()) {
                for pin in pins {
                    let (low, high) = pin.clip(run.file_block, run.file_block + run.count);
                    pin.mapped().set(low, high);
                }
            }
        });
        Ok(())
    }

    /// The part of a batch that cannot fail: all segments are locked. Unlocks them.
    pub(crate) fn change(
        &self,
        pins: &Pins,
        offset: u64,
        source: Source<'_>,
        before_unlock: &mut dyn FnMut(),
    ) {
        let bytes_end = offset + source.len() as u64;
        let (first, end) = (offset / BLOCK_SIZE as u64, blocks_for(bytes_end));
        for pin in pins {
            store(pin, offset, bytes_end, source);
        }
        let mut fresh = 0;
        for pin in pins {
            let (from, to) = pin.clip(first, end);
            pin.uptodate().set(from, to);
            fresh += u64::from(pin.dirty().set(from, to));
        }
        if fresh > 0 {
            self.core.unfinished_blocks.fetch_add(fresh, Ordering::Relaxed);
        }
        for pin in pins {
            self.enlist(pin, pin.folio());
            let (from, to) = pin.clip(first, end);
            touch(&self.core, pin, from, to);
        }
        before_unlock();
        self.segments(pins, first, end).for_each(|segment| segment.unlock(&self.core.parking));
    }
}

/// The first and the last block of bytes `[start, end)`, where these cover it in part.
pub(crate) fn edges(start: u64, end: u64) -> (Option<u64>, Option<u64>) {
    let partial = |at: u64| (!at.is_multiple_of(BLOCK_SIZE as u64)).then_some(at / BLOCK_SIZE as u64);
    (partial(start), partial(end))
}

/// Blocks of `[first, end)` that would become dirty without a home. Under the locks.
pub(crate) fn homeless(pins: &Pins, first: u64, end: u64) -> u64 {
    let mut count = 0;
    for pin in pins {
        let (from, to) = pin.clip(first, end);
        for (word, mask) in masks(from, to) {
            let settled = pin.mapped().word(word).load(Ordering::SeqCst)
                | pin.dirty().word(word).load(Ordering::SeqCst);
            count += u64::from((mask & !settled).count_ones());
        }
    }
    count
}

/// Copies the part of the batch `[offset, bytes_end)` that lies in this folio.
pub(crate) fn store(pin: &FolioPin, offset: u64, bytes_end: u64, source: Source<'_>) {
    let base = pin.start() * BLOCK_SIZE as u64;
    let low = base.max(offset);
    let high = (pin.end_block() * BLOCK_SIZE as u64).min(bytes_end);
    if low >= high {
        return;
    }
    let memory = pin.memory(0).wrapping_add((low - base) as usize);
    match source {
        Source::Bytes(bytes) => {
            let part = &bytes[(low - offset) as usize..(high - offset) as usize];
            // SAFETY: the bytes are within the pinned folio's blocks, whose segments the caller holds
            // exclusively.
            unsafe { copy::copy_in(part, memory) }
        }
        // SAFETY: as above.
        Source::Zeros(_) => unsafe { copy::zero(memory, (high - low) as usize) },
    }
}
