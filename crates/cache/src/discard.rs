//! Taking blocks out of the cache for good (truncate, punch, direct writes, eviction), and zeroing them in
//! place.
//!
//! A drop locks a folio's segments of the range exclusively, which waits for writeback and for readers with
//! shares; while a block is being read in it releases them and waits for that. Then the bits go, and the
//! space of blocks that were dirty without a home goes back. A folio that is left without a valid block
//! leaves the mapping if nobody else has it pinned; else it stays, empty, for reclaim.
//!
//! The caller keeps others from bringing the blocks back (gate exclusive or direct, exclusive sequence odd).
//! An operation that holds a reservation drops through a [`crate::WritebackHold`] and has prepared what it
//! zeroes ([`Mapping::prepare_zero`]): neither can fail, nor wait for a finisher of writeback.
//!
//! Neighbours: [`crate::mapping`] for removal, [`crate::write`] for zeroing.

use crate::backing::Backing;
use crate::core::MemoryWait;
use crate::folio::FolioPin;
use crate::index::BLOCKS_END;
use crate::index::Pins;
use crate::mapping::Mapping;
use crate::segment;
use crate::write::{Source, edges, homeless};
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};

/// Folios looked at with one visit to the index.
const FOLIOS_AT_ONCE: usize = 64;

impl Mapping {
    /// Drops blocks `[start, end)`, which the caller has just written back and which nobody can make dirty,
    /// from the cache; waits for their fills. What is to be lost is dropped by
    /// [`crate::WritebackHold::discard`].
    pub fn drop_written(&self, start: u64, end: u64) {
        self.drop_range(start, end);
    }

    /// Drops blocks `[start, end)` from the cache, dirty or not; waits for their writeback and fills.
    pub(crate) fn drop_range(&self, start: u64, end: u64) {
        let mut from = start;
        while from < end {
            let mut pins = Pins::new();
            self.index.pin_some(self.number, from, end, FOLIOS_AT_ONCE, &mut pins);
            let Some(last) = pins.last() else { return };
            let next = last.end_block();
            for pin in pins {
                self.drop_part(pin, from, end);
            }
            from = next;
        }
    }

    /// Drops the part of `[start, end)` that lies in one folio.
    fn drop_part(&self, pin: FolioPin, start: u64, end: u64) {
        let parking = &self.core.parking;
        let (from, to) = pin.clip(start, end);
        loop {
            pin.segments(from, to).for_each(|segment| segment.lock(parking));
            if !pin.filling().any(from, to) {
                break;
            }
            pin.segments(from, to).for_each(|segment| segment.unlock_unchanged(parking));
            self.wait_filled(&pin, start, end);
        }
        let homeless =
            (from..to).filter(|block| pin.dirty().get(*block) && !pin.mapped().get(*block)).count();
        pin.uptodate().clear(from, to);
        let dirty = pin.dirty().clear(from, to);
        pin.mapped().clear(from, to);
        pin.segments(from, to).for_each(|segment| segment.unlock(parking));

        if dirty > 0 {
            let low = pin.start() + u64::from(from);
            self.errors.clear(low, low + u64::from(to - from));
            self.settle(&pin);
            self.core.cleaned(u64::from(dirty));
        }
        if homeless > 0
            && let Ok(backing) = self.backing()
        {
            backing.unreserve(homeless as u64);
        }
        if pin.uptodate().is_empty() && pin.filling().is_empty() {
            self.remove(pin.start(), pin.folio(), 1);
            // Removed or not: if it is gone, the pin was the last and counts for nothing any more.
        }
    }

    /// Drops everything. The caller has written back what it wants to keep, and nobody uses the mapping.
    pub fn evict_all(&self) {
        loop {
            self.drop_range(0, BLOCKS_END);
            if self.index.len() == 0 {
                return;
            }
            // Reclaim or a finisher still looks at a folio.
            quire_base::sync::thread::yield_now();
        }
    }

    /// Makes ready to zero bytes `[start, end)`, no more than a batch, so that [`Zeroing::apply`] cannot
    /// fail. `None` where there is nothing to do: holes and unwritten blocks that are not dirty read as zeros
    /// already. For the partial edge blocks of truncate and punch, for the units that a punch cuts, and for
    /// what a write beyond EOF exposes. The caller holds the gate so that nobody writes there.
    pub fn prepare_zero(&self, start: u64, end: u64) -> Result<Option<Zeroing<'_>>> {
        let (first, stop) = (start / BLOCK_SIZE as u64, blocks_for(end));
        // What is still to be written is looked at before the map: in between it may get its home, not lose
        // it.
        if self.next_cached_data(first, stop).is_none() {
            let runs = crate::backing::map_all(&*self.backing()?, first, stop - first)?;
            if !runs.iter().any(|run| run.home.data().is_some()) {
                return Ok(None);
            }
        }
        let mut room = self.prepare_write(start, (end - start) as usize)?;
        let mut pins = Pins::new();
        let mut wait = MemoryWait::default();
        while let Err(short) = self.pin_or_make(first, stop, BLOCKS_END, &mut pins, &mut room) {
            self.core.refill_room(&mut room, short.0, &mut wait)?;
        }
        self.learn_homes(&pins, first, stop)?;
        // Valid once, a block stays valid while its folio is pinned: nobody else may drop it.
        let (head, tail) = edges(start, end);
        head.into_iter().chain(tail).try_for_each(|edge| self.fill_edge(&pins, edge))?;
        // Read-ahead that began before the gate was closed may still be under way: its bytes would land
        // behind the zeros.
        pins.iter().try_for_each(|pin| self.pass_filled(pin, first, stop))?;
        let mut promise = Promise { backing: self.backing()?, blocks: 0 };
        // Holes, and data that belongs to a snapshot, too.
        let homeless = homeless(&pins, first, stop);
        if homeless > 0 {
            promise.backing.reserve(homeless)?;
            promise.blocks = homeless;
        }
        Ok(Some(Zeroing { mapping: self, start, end, pins, promise }))
    }

    /// [`Mapping::prepare_zero`] and [`Zeroing::apply`] in one, for callers that change nothing else.
    pub fn zero(&self, start: u64, end: u64) -> Result<()> {
        self.prepare_zero(start, end)?.into_iter().for_each(Zeroing::apply);
        Ok(())
    }
}

/// Bytes that can be zeroed at once without failing: the blocks that they cover in part are in memory, and
/// each block has a home or space for one.
#[must_use]
pub struct Zeroing<'a> {
    mapping: &'a Mapping,
    start: u64,
    end: u64,
    pins: Pins,
    promise: Promise,
}

/// Reserved space; dropped, it goes back.
struct Promise {
    backing: Arc<dyn Backing>,
    blocks: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.backing.unreserve(self.blocks);
        }
    }
}

impl Zeroing<'_> {
    /// Zeroes them. Waits for writeback of the blocks: who holds a reservation holds writeback off as well
    /// ([`Mapping::hold_writeback`]).
    pub fn apply(self) {
        let Zeroing { mapping, start, end, pins, mut promise } = self;
        let (first, stop) = (start / BLOCK_SIZE as u64, blocks_for(end));
        let (head, tail) = edges(start, end);
        segment::lock_all(mapping.segments(&pins, first, stop), &mapping.core.parking);
        debug_assert!(mapping.may_copy(&pins, first, stop, head, tail));
        // The dirty blocks have it from here on.
        promise.blocks -= homeless(&pins, first, stop);
        mapping.change(&pins, start, Source::Zeros((end - start) as usize), &mut || {});
    }
}
