//! Taking memory back: which folio leaves when the byte limit is reached.
//!
//! A clock over the slab of headers. A folio has a heat of 0 to 6. It is born cold and gains two the first time it
//! is used in an *epoch* other than its last; the hand takes one each time it comes by. An epoch is as long as it
//! takes to make a sixteenth of the cache anew. So the many small reads of one sequential scan count once, and a scanned folio leaves the first time the
//! hand comes by, while the hot set is warmed in every epoch and survives several rounds. A read of a folio that
//! is hot writes nothing.
//!
//! A header is reused from a free list, last freed first, so a newborn usually sits just behind the hand and has a
//! whole round before it is judged. Free headers and folios with unfinished, filling or pinned blocks are passed.
//!
//! Invariants: a folio leaves only unpinned and clean (C3), out of its mapping's index with its segments locked,
//! which then stay locked until the header's next life. Reclaim waits for nothing.
//!
//! Neighbours: [`crate::core::Core::fill_room`] calls it, [`crate::flusher`] calls it ahead of need.

use crate::core::Core;
use crate::folio::{Folio, FolioRef, Order};
use quire_base::BLOCK_SIZE;
use quire_base::sync::atomic::Ordering;

const HEAT_MAX: u32 = 6;
/// What a use is worth, in visits of the hand.
const HEAT_GAIN: u32 = 2;
const HEAT_SHIFT: u32 = 16;
const EPOCH_MASK: u32 = (1 << HEAT_SHIFT) - 1;
/// Headers looked at between two moves of the hand.
const LOOKS: usize = 32;

/// The heat word of a new folio; counts the birth.
pub(crate) fn newborn(core: &Core, order: Order) -> u32 {
    let blocks = 1u64 << order;
    let epoch_blocks = (core.budget.limit() / BLOCK_SIZE as u64 / 16).max(1);
    let before = core.births.fetch_add(blocks, Ordering::Relaxed);
    let epoch = ((before + blocks) / epoch_blocks) as u32 & EPOCH_MASK;
    if before / epoch_blocks != (before + blocks) / epoch_blocks {
        core.epoch.store(epoch, Ordering::Relaxed);
    }
    epoch
}

/// Notes a use. Writes at most once an epoch, and never to a hot folio.
pub(crate) fn touch(core: &Core, folio: &Folio) {
    let heat = folio.heat.load(Ordering::Relaxed);
    let epoch = core.epoch.load(Ordering::Relaxed);
    if heat & EPOCH_MASK != epoch && heat >> HEAT_SHIFT < HEAT_MAX {
        let warmer = (heat >> HEAT_SHIFT) + HEAT_GAIN;
        folio.heat.store(warmer.min(HEAT_MAX) << HEAT_SHIFT | epoch, Ordering::Relaxed);
    }
}

/// Drops clean folios until about `want` bytes are free again; returns how many were freed.
pub(crate) fn reclaim(core: &Core, want: u64) -> u64 {
    let headers = core.slab.len();
    let mut freed = 0;
    let mut looked = 0;
    let mut batch: Vec<FolioRef> = Vec::with_capacity(LOOKS);
    // Every folio cools to zero in as many rounds as it can have heat, and leaves in the next.
    while freed < want && looked < (HEAT_MAX as usize + 1) * headers + LOOKS {
        let from = core.hand.fetch_add(LOOKS, Ordering::Relaxed) % headers.next_multiple_of(LOOKS).max(LOOKS);
        batch.clear();
        core.slab.visit(from, LOOKS, &mut batch);
        looked += LOOKS;
        for folio in &batch {
            freed += look_at(core, *folio);
        }
    }
    core.metrics.reclaim_looks.add(looked as u64);
    freed
}

/// Cools a folio, or drops it when it is cold and may go. Returns the bytes freed.
fn look_at(core: &Core, folio: FolioRef) -> u64 {
    let Some(owner) = folio.owner() else { return 0 };
    if folio.pins() > 0 || folio.listed.load(Ordering::Relaxed) || !folio.filling().is_empty() {
        return 0;
    }
    let heat = folio.heat.load(Ordering::Relaxed);
    if heat >> HEAT_SHIFT > 0 {
        folio.heat.store(heat - (1 << HEAT_SHIFT), Ordering::Relaxed);
        return 0;
    }
    let start = folio.start();
    let Some(mapping) = core.mapping(owner) else { return 0 };
    if !mapping.remove(start, folio, 0) {
        return 0;
    }
    core.metrics.folios_reclaimed.add(1);
    (BLOCK_SIZE as u64) << folio.order()
}
