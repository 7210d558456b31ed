//! A file's mapping: its folios, the list of those with unfinished blocks, its writeback in flight, its
//! errors.
//!
//! Lists. A folio with a dirty or in-writeback block is *listed*: it is in `list.folios` with its flag set.
//! A thread that sets dirty bits then looks at the flag ([`Mapping::enlist`]); one that clears bits takes
//! the list lock, takes the flag off, looks at the bits, and puts it back or unlists ([`Mapping::settle`]).
//! All of it is sequentially consistent, so at least one of the two sees the other, and no unfinished folio
//! stays unlisted once its writer has unlocked. A mapping with a listed folio is in the cache's list of dirty
//! mappings.
//!
//! Waits. Those who wait for writeback are in `waits`, with the blocks that they wait for:
//! [`crate::snapshot`].
//!
//! Lock order: index (leaf but for tried segments); waits, then list, then the cache's list of dirty
//! mappings.
//!
//! Neighbours: `read`, `write`, `fill`, `writeback`, `finish` and `discard` are its operations, one file
//! each.

use crate::backing::Backing;
use crate::bits::masks;
use crate::budget::Room;
use crate::core::Core;
use crate::dirty_line::Place;
use crate::errors::Errors;
use crate::folio::{Folio, FolioPin, FolioRef, Order, SEGMENTS_MAX, header_bytes};
use crate::hints::PatternCell;
use crate::homes::HomesKnown;
use crate::index::{BLOCK_COST, BLOCKS_END, ENTRY_BYTES, Index, Pins};
use crate::snapshot::Waits;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, Condvar, Mutex, Weak};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, Timestamp};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Dirty folios up to which a file is small.
pub(crate) const SMALL_FOLIOS: usize = 16;
/// Listed folios looked at with one visit to the list.
const FOLIOS_AT_ONCE: usize = 256;

/// A file in the cache.
pub struct Mapping {
    pub(crate) core: Arc<Core>,
    pub(crate) number: u64,
    pub(crate) inode: InodeNo,
    pub(crate) me: Weak<Mapping>,
    backing: Weak<dyn Backing>,
    pub(crate) index: Index,
    pub(crate) errors: Errors,
    pub(crate) homes: HomesKnown,
    /// Somebody has made it durable ([`Mapping::note_forced`]).
    forced: AtomicBool,
    list: Mutex<List>,
    pub(crate) waits: Mutex<Waits>,
    /// Signalled when a gathering ends while somebody waits to keep writeback off a range ([`crate::hold`]).
    pub(crate) gathering_ended: Condvar,
    /// Held by the one gathering of units that works on the file ([`crate::journaled`]).
    pub(crate) journaling: Mutex<()>,
    /// Where a sequential stream of misses would go on: of folios made, and of read-ahead.
    make_next: AtomicU64,
    make_streak: AtomicU64,
    pub(crate) ahead_next: AtomicU64,
    pub(crate) ahead_blocks: AtomicU64,
    pub(crate) pattern: PatternCell,
    /// A background thread is gathering.
    pub(crate) flushing: AtomicBool,
    /// Where it left off, the end of what its pass covers, and whether the pass has left something behind.
    pub(crate) flush_cursor: AtomicU64,
    pub(crate) flush_end: AtomicU64,
    pub(crate) flush_leaves: AtomicBool,
}

#[derive(Default)]
struct List {
    folios: BTreeMap<u64, FolioRef>,
    /// Where the mapping stands in the cache's line of dirty ones, if anything is listed.
    place: Option<Place>,
    /// Since when what the last background pass has left behind waits.
    left_since: Option<Timestamp>,
}

/// A folio could not be made: the bytes that the caller's room should have.
pub(crate) struct Short(pub u64);

impl Mapping {
    pub(crate) fn new(core: Arc<Core>, inode: InodeNo, backing: Weak<dyn Backing>) -> Arc<Mapping> {
        let number = core.new_mapping_number();
        let mapping = Arc::new_cyclic(|me: &Weak<Mapping>| Mapping {
            number,
            inode,
            me: me.clone(),
            backing,
            index: Index::default(),
            errors: Errors::default(),
            homes: HomesKnown::since(core.homes.load(Ordering::SeqCst)),
            forced: AtomicBool::new(false),
            list: Mutex::new(List::default()),
            waits: Mutex::new(Waits::default()),
            gathering_ended: Condvar::new(),
            journaling: Mutex::new(()),
            make_next: AtomicU64::new(0),
            make_streak: AtomicU64::new(0),
            ahead_next: AtomicU64::new(0),
            ahead_blocks: AtomicU64::new(0),
            pattern: PatternCell::default(),
            flushing: AtomicBool::new(false),
            flush_cursor: AtomicU64::new(0),
            flush_end: AtomicU64::new(0),
            flush_leaves: AtomicBool::new(false),
            core,
        });
        mapping.core.register(number, Arc::downgrade(&mapping));
        mapping
    }

    /// The file behind it.
    pub(crate) fn backing(&self) -> Result<Arc<dyn Backing>> {
        self.backing.upgrade().ok_or_else(|| {
            Error::new(ErrorKind::Stale, format!("inode {} left memory before its cached data", self.inode))
        })
    }

    pub(crate) fn this(&self) -> Arc<Mapping> {
        self.me.upgrade().expect("a mapping in use is alive")
    }

    // ---- folios ----

    /// Pins a folio for every block of `[first, end)`, making what is missing from `room`. `stream_end`
    /// bounds how far beyond `end` a sequential stream may get a larger folio. When the room is too small:
    /// what it should hold, and `pins` is empty.
    pub(crate) fn pin_or_make(
        &self,
        first: u64,
        end: u64,
        stream_end: u64,
        pins: &mut Pins,
        room: &mut Room<'_>,
    ) -> std::result::Result<(), Short> {
        let mut made = Pins::new();
        loop {
            pins.clear();
            if self.index.pin(self.number, first, end, pins) == 0 {
                return Ok(());
            }
            let mut next = first;
            let mut gaps: smallvec::SmallVec<[(u64, u64); 4]> = smallvec::SmallVec::new();
            for pin in pins.iter() {
                if pin.start() > next {
                    gaps.push((next, pin.start()));
                }
                next = pin.end_block();
            }
            if next < end {
                gaps.push((next, end));
            }
            for (from, to) in gaps {
                if !self.make_folios(from, to, stream_end, &mut made, room) {
                    pins.clear();
                    return Err(Short(self.index.missing(first, end).max(1) * BLOCK_COST));
                }
            }
        }
    }

    /// Makes folios for the blocks of a gap; stops early when others were quicker. False: no room.
    fn make_folios(&self, from: u64, to: u64, stream_end: u64, made: &mut Pins, room: &mut Room<'_>) -> bool {
        let sequential = self.make_next.load(Ordering::Relaxed) == from && from != 0;
        let streak = if sequential { self.make_streak.load(Ordering::Relaxed) } else { 0 };
        let mut at = from;
        while at < to {
            let order_max = self.core.config.order_max;
            let mut order = fitting_order(at, to, order_max);
            let wanted = stream_order(at, streak + (at - from), order_max);
            if wanted > order
                && at + (1 << wanted) <= stream_end
                && self.index.is_free(at, at + (1 << wanted))
            {
                order = wanted;
            }
            let aligned = at & !((1 << order_max) - 1);
            if self.core.config.order_fixed && self.index.is_free(aligned, aligned + (1 << order_max)) {
                (at, order) = (aligned, order_max);
            }
            let gap = at.max(from);
            let folio = loop {
                // A larger folio than the gap needs may use only what is free beyond the room.
                match self.core.make_folio(self, at, order, room) {
                    Some(folio) => break folio,
                    None if order == 0 => return false,
                    None => (at, order) = (gap, fitting_order(gap, to, order - 1)),
                }
            };
            match self.index.insert(folio, &self.core.nodes, &self.core.budget) {
                Some(pin) => made.push(pin),
                None => {
                    self.discard_newborn(folio);
                    return true;
                }
            }
            at += 1 << order;
        }
        self.make_next.store(at, Ordering::Relaxed);
        self.make_streak.store(streak + (at - from), Ordering::Relaxed);
        true
    }

    /// Takes back a folio that found its place taken: nobody else has seen it.
    fn discard_newborn(&self, folio: FolioRef) {
        for segment in folio.segments(0, folio.blocks()) {
            segment.lock(&self.core.parking);
        }
        self.core.retire(folio);
    }

    /// Room for the folios that the blocks of `[first, end)` lack; waits for memory. A lone block that
    /// continues no stream, which would earn it a larger folio, needs none if there is a spare folio.
    pub(crate) fn make_room(&self, room: &mut Room<'_>, first: u64, end: u64) -> Result<()> {
        let missing = self.index.missing(first, end);
        let is_lone = missing == 1 && self.make_next.load(Ordering::Relaxed) != first;
        self.core.fill_room_or_spare(room, missing * BLOCK_COST, is_lone)
    }

    /// Makes folios for the blocks of `[first, end)` that have none, if memory can be had without waiting,
    /// and pins all: this is for readahead. Folios end where it ends: larger ones would take memory from what
    /// is hot.
    pub(crate) fn make_ahead(&self, first: u64, end: u64, pins: &mut Pins) {
        let mut room = Room::empty(&self.core.budget);
        let bytes = self.index.missing(first, end) * BLOCK_COST;
        let charged = self.core.budget.try_charge(bytes)
            || (crate::reclaim::reclaim(&self.core, bytes) > 0 && self.core.budget.try_charge(bytes));
        if !charged {
            return;
        }
        room.add(bytes);
        let _ = self.pin_or_make(first, end, end, pins, &mut room);
    }

    /// Removes a folio from the mapping and ends its life if it has at most the caller's `own_pins`, is
    /// neither listed nor being filled, and all of its segments are free.
    pub(crate) fn remove(&self, start: u64, folio: FolioRef, own_pins: u32) -> bool {
        let left = self.take_out(start, folio, own_pins);
        if left {
            self.core.retire(folio);
        }
        left
    }

    /// As [`Mapping::remove`]; the caller ends its life.
    pub(crate) fn take_out(&self, start: u64, folio: FolioRef, own_pins: u32) -> bool {
        self.index.remove_if(start, folio, &self.core.nodes, || self.may_leave(start, folio, own_pins))
    }

    /// Locks every segment of a folio that nobody uses, for one that removes it from the index.
    fn may_leave(&self, start: u64, folio: FolioRef, own_pins: u32) -> bool {
        // The flag before the pins: a pin taken from the list is older than the unlisting.
        let is_idle =
            || !folio.listed.load(Ordering::Acquire) && folio.pins() == own_pins && !folio.unfinished();
        let may_be_locked = folio.is(self.number, start) && is_idle() && folio.filling().is_empty();
        if !may_be_locked || !lock_whole(&folio, &self.core) {
            return false;
        }
        // A writer may have come and gone since the first look. One gathering may then have pinned the folio,
        // and another have written it and taken it from the list. Nobody lists a folio that is locked whole.
        let leaves = is_idle();
        if !leaves {
            unlock_whole(&folio, &self.core);
        }
        leaves
    }

    /// Splits a folio as [`Mapping::remove`] would remove it: the segments of `keep` become folios with this
    /// heat, the rest is given back. Returns the bytes given back; 0 if it stays as it is.
    pub(crate) fn split(&self, start: u64, folio: FolioRef, keep: u32, heat: u32) -> u64 {
        let core = &self.core;
        let order = folio.order() - SEGMENTS_MAX.ilog2() as Order;
        let blocks = 1u32 << order;
        let kept = |number: &u32| keep >> number & 1 != 0;
        let header = |_| {
            core.slab.recycle(order).unwrap_or_else(|| {
                core.budget.charge_fixed(header_bytes(order));
                core.slab.create(order)
            })
        };
        let parts: smallvec::SmallVec<[FolioRef; SEGMENTS_MAX as usize]> =
            (0..SEGMENTS_MAX).filter(kept).map(header).collect();
        let left = self.index.replace(start, folio, &parts, &core.nodes, &core.budget, || {
            if !self.may_leave(start, folio, 0) {
                return false;
            }
            for (part, number) in parts.iter().zip((0..SEGMENTS_MAX).filter(kept)) {
                let first = number * blocks;
                let memory = NonNull::new(folio.memory(first)).expect("a folio has memory");
                part.begin(self.number, start + u64::from(first), memory, folio.arena_number() + first, heat);
                part.inherit(&folio);
                crate::reclaim::prove(core, part, true);
                part.segments(0, blocks).for_each(|segment| segment.unlock(&core.parking));
            }
            true
        });
        if !left {
            parts.into_iter().for_each(|part| core.slab.give_back(part));
            return 0;
        }
        crate::reclaim::prove(core, &folio, false);
        let number = folio.end();
        core.slab.give_back(folio);
        let given = (0..SEGMENTS_MAX).filter(|segment| !kept(segment));
        given.for_each(|segment| core.arena.free(number + segment * blocks, order));
        let part_bytes = BLOCK_SIZE as u64 * u64::from(blocks);
        let bytes = part_bytes * u64::from(SEGMENTS_MAX - keep.count_ones());
        core.budget.charge_over(ENTRY_BYTES * (parts.len() as u64 - 1));
        core.budget.uncharge(bytes);
        core.notify_progress();
        bytes
    }

    // ---- the list of unfinished folios ----

    /// Lists a folio after dirty bits were set, with its segments still locked.
    pub(crate) fn enlist(&self, folio: &Folio, me: FolioRef) {
        if folio.listed.load(Ordering::SeqCst) {
            return;
        }
        let mut list = self.list.lock();
        if folio.listed.load(Ordering::SeqCst) {
            return;
        }
        folio.listed.store(true, Ordering::SeqCst);
        list.folios.insert(folio.start(), me);
        match list.place {
            None => {
                let since = self.core.clock.now();
                list.place = Some(self.core.dirty.lock().join(self.me.clone(), since, self.is_forced()));
            }
            // Once, when it becomes a large file.
            Some(place) if list.folios.len() == SMALL_FOLIOS + 1 => {
                list.place = Some(self.core.dirty.lock().enlarge(place));
            }
            Some(_) => {}
        }
    }

    /// Unlists a folio if nothing in it is dirty or in writeback any more.
    pub(crate) fn settle(&self, folio: &Folio) {
        // Blocks go from writeback back to dirty under this lock: between the two looks below they would be
        // in neither, and a folio that is not listed is nothing to a look at the file.
        let _waits = self.waits.lock();
        let mut list = self.list.lock();
        if !folio.listed.load(Ordering::SeqCst) {
            return;
        }
        folio.listed.store(false, Ordering::SeqCst);
        if folio.unfinished() {
            folio.listed.store(true, Ordering::SeqCst);
            return;
        }
        list.folios.remove(&folio.start());
        if list.folios.is_empty()
            && let Some(place) = list.place.take()
        {
            self.core.dirty.lock().leave(place);
            list.left_since = None;
            // A pass that somebody else's writing has overtaken is over.
            self.flush_cursor.store(0, Ordering::Relaxed);
        }
    }

    /// Pins up to `count` listed folios that overlap `[first, end)`, ascending.
    pub(crate) fn pin_listed(&self, first: u64, end: u64, count: usize, pins: &mut Vec<FolioPin>) {
        let list = self.list.lock();
        for folio in listed_from(&list.folios, first, end).take(count) {
            pins.push(FolioPin::new(folio));
        }
    }

    /// The end of what is dirty or in flight, in blocks.
    pub(crate) fn listed_end(&self) -> u64 {
        let list = self.list.lock();
        list.folios.last_key_value().map_or(0, |(start, folio)| start + u64::from(folio.blocks()))
    }

    /// Where the segment begins that the next append changes, if its folio is listed and `blocks_min` blocks
    /// lie before it.
    pub(crate) fn tail(&self, blocks_min: u64) -> Option<u64> {
        let end = self.backing().ok()?.size() / BLOCK_SIZE as u64;
        let list = self.list.lock();
        let (start, folio) = list.folios.last_key_value()?;
        let block = end.checked_sub(*start).filter(|block| *block < u64::from(folio.blocks()))?;
        let segment = folio.segment_blocks(folio.segment_number(block as u32)).0;
        Some(start + u64::from(segment)).filter(|tail| *tail >= blocks_min)
    }

    /// Notes that a program makes the file durable: it will do so again, and wait for what is dirty then. So
    /// its data is written early from now on, but for what is dirty already.
    pub fn note_forced(&self) {
        if !self.is_forced() {
            self.forced.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.forced.load(Ordering::Relaxed)
    }

    /// Notes that a background pass has ended: the mapping waits anew from now on, but for what the pass has
    /// left behind, which waits since `left_since`.
    pub(crate) fn gathered(&self, left_since: Option<Timestamp>) {
        let mut list = self.list.lock();
        if let Some(place) = list.place {
            let since = self.core.clock.now();
            list.place = Some(self.core.dirty.lock().go_back(place, since, self.is_forced()));
            list.left_since = left_since;
        }
    }

    /// Since when what the last background pass has left behind waits.
    pub(crate) fn left_since(&self) -> Option<Timestamp> {
        self.list.lock().left_since
    }

    /// The lowest block from `from` on that is dirty or being written, in the order of the file.
    pub fn first_unfinished(&self, from: u64) -> Option<u64> {
        self.first_listed(from, BLOCKS_END, true).map(|(start, _)| start)
    }

    /// The lowest block from `from` on that is dirty and not yet being written.
    pub fn first_dirty(&self, from: u64) -> Option<u64> {
        self.first_listed(from, BLOCKS_END, false).map(|(start, _)| start)
    }

    /// The next run of blocks in `[from, end)` that is dirty or being written, as start and end, as far as it
    /// lies in one folio: data for SEEK_DATA that the extents may not know of yet.
    pub fn next_cached_data(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        self.first_listed(from, end, true)
    }

    /// The first run within one folio.
    fn first_listed(&self, from: u64, end: u64, writeback: bool) -> Option<(u64, u64)> {
        // With it no block goes from writeback back to dirty between the two looks.
        let _waits = writeback.then(|| self.waits.lock());
        let list = self.list.lock();
        for folio in listed_from(&list.folios, from, end) {
            let (first, last) = folio.clip(from, end);
            let wanted = |block: u32| {
                // Dirty before writeback: see `Folio::unfinished`.
                folio.dirty().get(block) || (writeback && folio.writeback().get(block))
            };
            if let Some(block) = (first..last).find(|block| wanted(*block)) {
                let stop = (block..last).find(|block| !wanted(*block)).unwrap_or(last);
                return Some((folio.start() + u64::from(block), folio.start() + u64::from(stop)));
            }
        }
        None
    }

    /// Calls `look` with the dirty and the writeback bits of some of the blocks of `[first, end)`: those of a
    /// word, which is numbered by its first block's number divided by 64, as far as one folio has them. Gives
    /// where to go on.
    pub(crate) fn for_listed_words(&self, first: u64, end: u64, mut look: impl FnMut(u64, u64, u64)) -> u64 {
        let list = self.list.lock();
        let mut next = end;
        for (looked_at, folio) in listed_from(&list.folios, first, end).enumerate() {
            if looked_at == FOLIOS_AT_ONCE {
                return next;
            }
            let (from, to) = folio.clip(first, end);
            for (word, mask) in masks(from, to) {
                let block = folio.start() + word as u64 * 64;
                // Dirty before writeback: see `Folio::unfinished`.
                let dirty = folio.dirty().word(word).load(Ordering::SeqCst) & mask;
                let writeback = folio.writeback().word(word).load(Ordering::SeqCst) & mask;
                look(block / 64, dirty << (block % 64), writeback << (block % 64));
            }
            next = folio.end_block().min(end);
        }
        end
    }

    /// Whether the cache has nothing of blocks `[first, end)`.
    pub fn is_free(&self, first: u64, end: u64) -> bool {
        self.index.is_free(first, end)
    }

    /// Whether nothing is dirty or being written.
    pub fn is_clean(&self) -> bool {
        self.list.lock().folios.is_empty()
    }

    /// The writeback error that sticks to the file, until the blocks it hit are written.
    pub fn error(&self) -> Option<Error> {
        self.errors.within(0, BLOCKS_END)
    }

    /// The file's number.
    pub fn inode(&self) -> InodeNo {
        self.inode
    }

    /// Folios in memory.
    pub fn folios(&self) -> usize {
        self.index.len()
    }

    /// Whether blocks are being read in.
    pub fn is_filling(&self) -> bool {
        let mut pins = Pins::new();
        self.index.pin(self.number, 0, BLOCKS_END, &mut pins);
        pins.iter().any(|pin| !pin.filling().is_empty())
    }

    /// A readable account of every folio, for debugging.
    pub fn dump(&self) -> String {
        use std::fmt::Write;
        let mut pins = Pins::new();
        self.index.pin(self.number, 0, BLOCKS_END, &mut pins);
        let mut text = format!("mapping {} of inode {}: {} folios\n", self.number, self.inode, pins.len());
        for pin in &pins {
            let _ = writeln!(text, "  {:?}", &**pin);
        }
        text
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.evict_all();
        self.core.unregister(self.number);
        if let Some(place) = self.list.lock().place.take() {
            self.core.dirty.lock().leave(place);
        }
    }
}

/// Listed folios that overlap `[first, end)`, ascending.
fn listed_from(
    folios: &BTreeMap<u64, FolioRef>,
    first: u64,
    end: u64,
) -> impl Iterator<Item = FolioRef> + '_ {
    let before = folios
        .range(..first)
        .next_back()
        .filter(move |(start, folio)| first < end && **start + u64::from(folio.blocks()) > first);
    before.into_iter().chain(folios.range(first..end.max(first))).map(|(_, folio)| *folio)
}

/// Locks every segment of a folio if all are free.
fn lock_whole(folio: &Folio, core: &Core) -> bool {
    let locked = folio.segments(0, folio.blocks()).take_while(|segment| segment.try_lock()).count();
    if locked as u32 == crate::folio::segments_of(folio.order()) {
        return true;
    }
    folio
        .segments(0, folio.blocks())
        .take(locked)
        .for_each(|segment| segment.unlock_unchanged(&core.parking));
    false
}

fn unlock_whole(folio: &Folio, core: &Core) {
    folio.segments(0, folio.blocks()).for_each(|segment| segment.unlock_unchanged(&core.parking));
}

/// The largest aligned folio at `at` that ends at or before `end`.
fn fitting_order(at: u64, end: u64, order_max: Order) -> Order {
    let by_size = (end - at).ilog2();
    by_size.min(at.trailing_zeros()).min(u32::from(order_max)) as Order
}

/// The order that a sequential stream of `streak` blocks has earned at `at`: half of what it has gone
/// through.
fn stream_order(at: u64, streak: u64, order_max: Order) -> Order {
    let earned = (streak / 2).max(1).ilog2();
    earned.min(at.trailing_zeros()).min(u32::from(order_max)) as Order
}
