//! Taking blocks out of the cache for good (truncate, punch, direct writes, eviction), and zeroing them in place.
//!
//! A drop locks a folio's segments of the range exclusively, which waits for writeback and for readers with shares;
//! while a block is being read in it lets go and waits for that. Then the bits go, and the space of blocks that were
//! dirty without a home goes back. A folio that is left without a valid block leaves the mapping if nobody else has
//! it pinned; else it stays, empty, for reclaim.
//!
//! The caller keeps others from bringing the blocks back (gate exclusive or direct, exclusive sequence odd).
//!
//! Neighbours: [`crate::mapping`] for removal, [`crate::write`] for zeroing.

use crate::backing::Home;
use crate::folio::FolioPin;
use crate::index::Pins;
use crate::mapping::{BLOCKS_END, Mapping};
use crate::write::Source;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result};

/// Folios looked at with one visit to the index.
const FOLIOS_AT_ONCE: usize = 64;

impl Mapping {
    /// Drops blocks `[start, end)` from the cache, dirty or not; waits for their writeback and fills. Unwritten
    /// contents are lost: that is what truncate and punch want; others write back first.
    pub fn drop_range(&self, start: u64, end: u64) {
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

    /// Makes bytes `[start, end)` read as zeros: what holds data on the device or in memory is zeroed in memory and
    /// is dirty then; holes and unwritten blocks that are not dirty stay as they are. For the partial edge blocks of
    /// truncate and punch, and for what a write beyond EOF exposes. The caller holds the gate so that nobody writes
    /// there. An error may leave a part zeroed.
    pub fn zero(&self, start: u64, end: u64) -> Result<()> {
        let mut at = start;
        while at < end {
            // Pieces end on batch boundaries of the file.
            let batch = self.core.config.batch_bytes as u64;
            let stop = (at - at % batch + batch).min(end);
            self.zero_piece(at, stop)?;
            at = stop;
        }
        Ok(())
    }

    fn zero_piece(&self, start: u64, end: u64) -> Result<()> {
        let (first, last) = (start / BLOCK_SIZE as u64, blocks_for(end));
        // What is still to be written is looked at before the map: in between it may get its home, not lose it.
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut block = first;
        while let Some(part) = self.next_cached_data(block, last) {
            parts.push(part);
            block = part.1;
        }
        let runs = crate::backing::map_all(&*self.backing()?, first, last - first)?;
        let written = runs.iter().filter(|run| matches!(run.home, Home::Written(_)));
        parts.extend(written.map(|run| (run.file_block, run.file_block + run.count)));
        parts.sort_unstable();
        let mut done = first;
        for (from, to) in parts {
            let from = from.max(done);
            if from >= to {
                continue;
            }
            let low = (from * BLOCK_SIZE as u64).max(start);
            let high = (to * BLOCK_SIZE as u64).min(end);
            let room = self.prepare_write(low, (high - low) as usize)?;
            self.batch(room, low, Source::Zeros((high - low) as usize), &mut || {})?;
            done = to;
        }
        Ok(())
    }
}
