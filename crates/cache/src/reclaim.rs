//! Taking memory back: which folio leaves when the byte limit is reached.
//!
//! S3-FIFO (Yang et al., SOSP 2023) in the form of a clock: the hand goes round over the slab of headers
//! instead of two queues. A folio is born *on trial*. When the hand comes by, one on trial that was used
//! again is *proven* and stays; another leaves, and a ghost of it stays for a while ([`crate::ghosts`]): if
//! it is wanted back, it is proven at birth. The hand passes proven folios over as long as those on trial are
//! a tenth of the cache; only when they are fewer do proven ones cool, one step of their heat of 0 to 3 each
//! time, and leave when cold. So a stream of any length runs through what is on trial, however seldom the hot
//! set is used meanwhile; and one that is no longer used gives way as soon as others prove themselves.
//!
//! A folio gains one of heat when it is used two *epochs* after its birth or its last gain, or later. An
//! epoch is as long as it takes to make a sixteenth of the cache anew. So the many small reads of one
//! sequential scan, of folios that were read ahead, prove nothing. A read of a folio that is hot writes
//! nothing.
//!
//! Why this one: `examples/reclaim` runs it beside LRU, 2Q, S3-FIFO and CLOCK-Pro; docs/benchmarks.md has the
//! table. It needs no list that readers or a hit would have to change, as LRU and 2Q do, and none of
//! CLOCK-Pro's three hands.
//!
//! The hand passes over proven folios and vacant headers by their marks ([`crate::marks`]), without a look at
//! the headers.
//!
//! A header is reused from a free list, last freed first, so a newborn usually sits just behind the hand and
//! has a whole round before it is judged. Free headers and folios with unfinished, filling or pinned blocks
//! are passed.
//!
//! Of a large folio that cools, but is used in a few of its segments all the while, those stay as folios of
//! their own and the rest is given back: a bit a segment says which were used since the hand last cooled it.
//!
//! Invariants: a folio leaves only unpinned and clean (C3), out of its mapping's index with its segments
//! locked, which then stay locked until the header's next life. Reclaim waits for nothing.
//!
//! Neighbours: [`crate::core::Core::fill_room`] calls it, [`crate::flusher`] calls it ahead of need.

use crate::copy;
use crate::core::Core;
use crate::folio::{Folio, FolioRef, Order, SEGMENTS_MAX, header_bytes};
use crate::mapping::Mapping;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, InodeNo};
use smallvec::SmallVec;

const HEAT_MAX: u32 = 3;
/// What a use is worth, in visits of the hand.
const HEAT_GAIN: u32 = 1;
/// Epochs between two uses that count.
const EPOCHS_APART: u32 = 2;
const HEAT_SHIFT: u32 = 16;
const EPOCH_MASK: u32 = (1 << HEAT_SHIFT) - 1;
/// Headers looked at between two moves of the hand, all of them, whatever is wanted.
const LOOKS: usize = 8;
/// Bytes of a header that most looks need.
const HEADER_BYTES: usize = header_bytes(0) as usize;
/// The part of the cache that folios on trial may take before the proven ones have to cool.
const TRIAL_SHARE: u64 = 10;
/// Folios from this order on (256 KiB) are split.
const SPLIT_ORDER: Order = 6;
/// Segments used, of a folio's 16, up to which it is split.
const SPLIT_SEGMENTS: u32 = 8;
/// In `touched`: the hand has cooled it before, so that the bits stand for all that time.
const WATCHED: u32 = 1 << SEGMENTS_MAX;

/// Counts blocks of new folios; for spare ones, before their next lives.
pub(crate) fn count_births(core: &Core, blocks: u64) {
    let epoch_blocks = (core.budget.limit() / BLOCK_SIZE as u64 / 16).max(1);
    let before = core.births.fetch_add(blocks, Ordering::Relaxed);
    let epoch = ((before + blocks) / epoch_blocks) as u32 & EPOCH_MASK;
    if before / epoch_blocks != (before + blocks) / epoch_blocks {
        core.epoch.store(epoch, Ordering::Relaxed);
    }
}

/// The heat word of a new folio. One that is wanted back has been used twice.
pub(crate) fn newborn(core: &Core, wanted_back: bool) -> u32 {
    core.epoch.load(Ordering::Relaxed) | (u32::from(wanted_back) * HEAT_GAIN) << HEAT_SHIFT
}

/// Notes a use of blocks `[from, to)` of the folio. Writes at most every other epoch, and never to a hot
/// folio, but for the bits of a large one's segments once each time it has cooled.
pub(crate) fn touch(core: &Core, folio: &Folio, from: u32, to: u32) {
    if folio.order() >= SPLIT_ORDER && from < to {
        let (low, high) = (folio.segment_number(from), folio.segment_number(to - 1));
        let used = (2 << high) - (1 << low);
        let touched = folio.touched.load(Ordering::Relaxed);
        if touched & used != used {
            folio.touched.store(touched | used, Ordering::Relaxed);
        }
    }
    let heat = folio.heat.load(Ordering::Relaxed);
    let epoch = core.epoch.load(Ordering::Relaxed);
    if epoch.wrapping_sub(heat) & EPOCH_MASK >= EPOCHS_APART && heat >> HEAT_SHIFT < HEAT_MAX {
        let warmer = (heat >> HEAT_SHIFT) + HEAT_GAIN;
        folio.heat.store(warmer.min(HEAT_MAX) << HEAT_SHIFT | epoch, Ordering::Relaxed);
    }
}

/// Sets whether a folio is proven, and keeps the account.
pub(crate) fn prove(core: &Core, folio: &Folio, proven: bool) {
    let bytes = (BLOCK_SIZE as u64) << folio.order();
    match (folio.set_proven(proven), proven) {
        (false, true) => drop(core.proven_bytes.fetch_add(bytes, Ordering::Relaxed)),
        (true, false) => drop(core.proven_bytes.fetch_sub(bytes, Ordering::Relaxed)),
        _ => {}
    }
}

/// Whether nothing has shown yet that the folio is used more than once.
pub(crate) fn is_on_trial(folio: &Folio) -> bool {
    !folio.is_proven() && folio.heat.load(Ordering::Relaxed) >> HEAT_SHIFT == 0
}

/// Whether a folio that is to begin there left not long ago.
pub(crate) fn is_wanted_back(core: &Core, inode: InodeNo, start: u64) -> bool {
    let births = core.births.load(Ordering::Relaxed);
    core.ghosts.take(inode, start, births as u32, core.budget.limit() / BLOCK_SIZE as u64)
}

/// Drops clean folios until about `want` bytes are free again, then spare ones; returns how many were freed.
pub(crate) fn reclaim(core: &Core, want: u64) -> u64 {
    let freed = drop_clean(core, want, |folio| core.retire(folio));
    if freed < want { freed + core.drain_spares() } else { freed }
}

/// Drops a few clean folios, and keeps single blocks of them as spare ones of this shard, which may have
/// `most`; returns how many bytes were freed or kept.
pub(crate) fn reclaim_spares(core: &Core, most: u64) -> u64 {
    let mut kept = 0;
    // Half, as the hand may find more than is wanted.
    let freed = drop_clean(core, most.div_ceil(2) * BLOCK_SIZE as u64, |folio| {
        kept += u64::from(core.retire_to_spares(folio));
    });
    count_births(core, kept);
    if freed == 0 { core.drain_spares() } else { freed }
}

/// Takes clean folios out of their mappings until `want` bytes of them have come to `retire`, which ends
/// their lives. Returns how many bytes they and the parts of split ones were.
fn drop_clean(core: &Core, want: u64, mut retire: impl FnMut(FolioRef)) -> u64 {
    let headers = core.slab.len();
    let mut freed = 0;
    let mut looked = 0;
    let mut batch: SmallVec<[FolioRef; LOOKS]> = SmallVec::new();
    let mut owner = None;
    // The first round may only prove, the next only find what had to be passed over; then every folio cools
    // to zero in as many rounds as it can have heat, and leaves in the next.
    while freed < want && looked < (HEAT_MAX as usize + 3) * headers + LOOKS {
        let trial = core.budget.limit().saturating_sub(core.proven_bytes.load(Ordering::Relaxed));
        let cools = trial < core.budget.limit() / TRIAL_SHARE || looked > 2 * headers;
        looked += move_hand(core, headers, !cools, &mut batch);
        // Most are on no line of this processor's.
        batch.iter().for_each(|folio| copy::prefetch(std::ptr::from_ref(&**folio).cast(), HEADER_BYTES));
        core.metrics.reclaim_looks.add(batch.len() as u64);
        for folio in &batch {
            freed += look_at(core, *folio, cools, &mut owner, &mut retire);
        }
    }
    freed
}

/// Moves the hand by [`LOOKS`] folios, with `unproven` of those that are not proven, which come to `batch`;
/// beyond `headers` it begins anew. Returns the slots that it has passed, at least one.
fn move_hand(core: &Core, headers: usize, unproven: bool, batch: &mut SmallVec<[FolioRef; LOOKS]>) -> usize {
    loop {
        let hand = core.hand.load(Ordering::Relaxed);
        let from = if hand < headers { hand } else { 0 };
        batch.clear();
        let next = core.slab.visit(from, LOOKS, unproven, batch);
        // Another thread that was quicker looks at these.
        if core.hand.compare_exchange(hand, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return (next - from).max(1);
        }
    }
}

/// The mapping that was looked up last: neighbours often are of one.
type Owner = Option<Arc<Mapping>>;

fn mapping_of<'a>(core: &Core, number: u64, last: &'a mut Owner) -> Option<&'a Mapping> {
    if last.as_ref().is_none_or(|last| last.number != number) {
        *last = core.mapping(number);
    }
    last.as_deref()
}

/// Proves, cools or splits a folio, or drops it when it may go. Returns the bytes freed.
fn look_at(
    core: &Core,
    folio: FolioRef,
    cools: bool,
    last: &mut Owner,
    retire: &mut impl FnMut(FolioRef),
) -> u64 {
    let Some(owner) = folio.owner() else { return 0 };
    if folio.pins() > 0 || folio.listed.load(Ordering::Relaxed) || !folio.filling().is_empty() {
        return 0;
    }
    let start = folio.start();
    let heat = folio.heat.load(Ordering::Relaxed);
    let proven = folio.is_proven();
    let warm = heat >> HEAT_SHIFT > 0;
    if proven || warm {
        if !proven {
            prove(core, &folio, true);
            return 0;
        }
        if !cools {
            return 0;
        }
        let freed = split_if_used_in_parts(core, folio, owner, heat, last);
        if freed > 0 {
            return freed;
        }
        if warm {
            folio.heat.store(heat - (1 << HEAT_SHIFT), Ordering::Relaxed);
            return 0;
        }
    }
    let Some(mapping) = mapping_of(core, owner, last) else { return 0 };
    if !mapping.take_out(start, folio, 0) {
        return 0;
    }
    let bytes = (BLOCK_SIZE as u64) << folio.order();
    retire(folio);
    if !proven {
        core.ghosts.add(mapping.inode, start, core.births.load(Ordering::Relaxed) as u32);
    }
    core.metrics.folios_reclaimed.add(1);
    bytes
}

/// Gives back what has not been used of a large folio since the hand last cooled it, if that is the half at
/// least.
fn split_if_used_in_parts(core: &Core, folio: FolioRef, owner: u64, heat: u32, last: &mut Owner) -> u64 {
    if folio.order() < SPLIT_ORDER {
        return 0;
    }
    let touched = folio.touched.swap(WATCHED, Ordering::Relaxed);
    let used = touched & !WATCHED;
    if touched & WATCHED == 0 || used == 0 || used.count_ones() > SPLIT_SEGMENTS {
        return 0;
    }
    let Some(mapping) = mapping_of(core, owner, last) else { return 0 };
    let freed = mapping.split(folio.start(), folio, used, heat);
    core.metrics.folios_split.add(u64::from(freed > 0));
    freed
}
