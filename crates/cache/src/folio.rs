//! A folio: a power-of-two run of a file's blocks in memory. This is its header; the data is apart, in the
//! arena.
//!
//! ```text
//!  header (cache-line aligned, one size per order)
//!  +---------------------------+---------------------------------------------------------------+-----
//!  | owner, start, pins,       | group of up to 64 blocks: the data's address, segment words,  | next
//!  | heat, touched, listed     | then one word each of five bitmaps:                           | group
//!  |                           | uptodate dirty writeback fill mapped                          | ...
//!  +---------------------------+---------------------------------------------------------------+-----
//! ```
//! A folio has one segment a block up to 16, then each is a 16th of it. The words that an operation on a
//! block reads lie together: the first line and its group, which is one line of the largest folios. Every
//! group has the same address.
//!
//! State of a block
//! * `uptodate`: memory holds the file's contents. Set only after valid data is there (C1).
//! * `dirty`: memory is newer than the device. Implies `uptodate`.
//! * `writeback`: being written; its segment is held shared meanwhile (C2). Never together with `fill`.
//! * `fill`: being read in by the thread that set the bit. Never together with `uptodate`.
//! * `mapped`: the block is known to have a home on the device. A block that is dirty or in writeback and not
//!   `mapped` holds one block of delayed-allocation space.
//!
//! Lives. A header is recycled and never freed while the cache lives. Between lives its segments are locked,
//! so no optimistic reader accepts anything from it; owner, start and data change only then. A folio is
//! *dead* to a mapping when owner or start differ, which an optimistic reader checks after it took the
//! versions.
//!
//! Pins. A pin keeps a folio in its mapping. Pins are taken as [`crate::index`] says, or for a listed folio
//! under the mapping's list lock; a folio is removed unlisted and unpinned. A header may carry the pin of
//! a thread that was overtaken, and that gives it back at once: so the count is never reset, and a removal
//! that it stops is tried again. The cached read takes none.
//!
//! Neighbours: [`crate::slab`] owns headers, [`crate::index`] finds folios, `read`, `write`, `fill`,
//! `writeback` and `discard` change block states under the rules above.

use crate::bits::{Bits, masks};
use crate::marks::{Mark, Marks};
use crate::segment::SegmentLock;
use quire_base::BLOCK_SIZE;
use quire_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::ops::Deref;
use std::ptr::NonNull;
// Words that only guide reclaim, on which no protocol rests: models need not look at their orders.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool as HintBool, AtomicU32 as HintU32};

/// log2 of a folio's blocks.
pub type Order = u8;
/// The largest order: 512 blocks, 2 MiB.
pub const ORDER_MAX: Order = 9;
/// Bitmaps in a header.
const BITMAPS: usize = 5;
/// The owner of a header between lives.
const NOBODY: u64 = 0;

/// The five bitmaps, in the order of the header.
#[derive(Clone, Copy)]
enum Map {
    Uptodate,
    Dirty,
    Writeback,
    Fill,
    Mapped,
}

/// A header with its words at the end; see [`Folio`].
#[repr(C, align(64))]
pub struct FolioOf<W: ?Sized> {
    /// Mapping's number, or [`NOBODY`].
    owner: AtomicU64,
    /// First block within the file.
    start: AtomicU64,
    arena_number: AtomicU32,
    /// Holders that keep it in its mapping.
    pins: AtomicU32,
    /// See [`crate::reclaim`].
    pub(crate) heat: AtomicU32,
    /// Segments used of late, of a folio that may be split; see [`crate::reclaim`].
    pub(crate) touched: HintU32,
    order: Order,
    /// In its mapping's list of folios with dirty or in-writeback blocks.
    pub(crate) listed: AtomicBool,
    /// To leave when it is clean; see [`crate::hints`].
    pub(crate) fleeting: HintBool,
    /// [`group_segments_shift`] and [`group_words`] of its order.
    group_segments_shift: u8,
    group_words: u8,
    /// Where its marks are among these.
    mark: u16,
    marks: Arc<Marks>,
    words: W,
}

/// A folio's header.
pub type Folio = FolioOf<[AtomicU64]>;

/// The most segments that a folio has.
pub const SEGMENTS_MAX: u32 = 16;

/// Segments in a folio of `order`.
pub const fn segments_of(order: Order) -> u32 {
    if 1 << order < SEGMENTS_MAX { 1 << order } else { SEGMENTS_MAX }
}

/// Groups of a header: 64-bit words of one bitmap.
const fn groups_of(order: Order) -> usize {
    if order <= 6 { 1 } else { 1 << (order - 6) }
}

/// log2 of the segments of a group.
const fn group_segments_shift(order: Order) -> u32 {
    (segments_of(order) / groups_of(order) as u32).ilog2()
}

/// 64-bit words of a group. Where there are several, each begins a cache line.
const fn group_words(order: Order) -> usize {
    let words = 1 + (1 << group_segments_shift(order)) + BITMAPS;
    if groups_of(order) > 1 { words.next_multiple_of(8) } else { words }
}

/// Words before the first group, where groups begin a line.
const fn leading_words(order: Order) -> usize {
    // Under a model checker the atomics are larger, and the words begin beyond the first line.
    let offset = std::mem::offset_of!(FolioOf<[u64; 0]>, words);
    if groups_of(order) > 1 { (offset.next_multiple_of(64) - offset) / 8 } else { 0 }
}

const fn header_words(order: Order) -> usize {
    leading_words(order) + groups_of(order) * group_words(order)
}

/// Bytes of a header, as the byte limit counts them.
pub const fn header_bytes(order: Order) -> u64 {
    (std::mem::offset_of!(FolioOf<[u64; 0]>, words) + header_words(order) * 8).next_multiple_of(64) as u64
}

impl Folio {
    /// A header between lives: nobody's, every segment locked.
    pub(crate) fn boxed(order: Order, mark: Mark) -> Box<Folio> {
        fn with_words<const N: usize>(order: Order, mark: Mark) -> Box<Folio> {
            Box::new(FolioOf {
                owner: AtomicU64::new(NOBODY),
                start: AtomicU64::new(0),
                arena_number: AtomicU32::new(0),
                pins: AtomicU32::new(0),
                heat: AtomicU32::new(0),
                touched: HintU32::new(0),
                order,
                listed: AtomicBool::new(false),
                fleeting: HintBool::new(false),
                group_segments_shift: group_segments_shift(order) as u8,
                group_words: group_words(order) as u8,
                mark: mark.number,
                marks: mark.marks,
                words: std::array::from_fn::<AtomicU64, N, _>(|_| AtomicU64::new(0)),
            })
        }
        let folio = match order {
            0 => with_words::<{ header_words(0) }>(order, mark),
            1 => with_words::<{ header_words(1) }>(order, mark),
            2 => with_words::<{ header_words(2) }>(order, mark),
            3 => with_words::<{ header_words(3) }>(order, mark),
            4 => with_words::<{ header_words(4) }>(order, mark),
            5 => with_words::<{ header_words(5) }>(order, mark),
            6 => with_words::<{ header_words(6) }>(order, mark),
            7 => with_words::<{ header_words(7) }>(order, mark),
            8 => with_words::<{ header_words(8) }>(order, mark),
            ORDER_MAX => with_words::<{ header_words(ORDER_MAX) }>(order, mark),
            _ => unreachable!("orders are at most {ORDER_MAX}"),
        };
        for segment in folio.segments(0, folio.blocks()) {
            let locked = segment.try_lock();
            debug_assert!(locked);
        }
        folio
    }

    /// Whether it was used again since it was read in or written.
    pub(crate) fn is_proven(&self) -> bool {
        self.marks.proven.is_set(self.mark)
    }

    /// Says whether it is proven. Returns what was said before.
    pub(crate) fn set_proven(&self, proven: bool) -> bool {
        self.marks.proven.swap(self.mark, proven)
    }

    /// Says whether it is between lives.
    pub(crate) fn set_vacant(&self, vacant: bool) {
        self.marks.vacant.swap(self.mark, vacant);
    }

    /// Begins a life: the caller took this header from the slab's free list.
    pub(crate) fn begin(&self, owner: u64, start: u64, data: NonNull<u8>, arena_number: u32, heat: u32) {
        debug_assert!(owner != NOBODY && start.is_multiple_of(1 << self.order));
        self.owner.store(owner, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        let address = data.as_ptr().expose_provenance() as u64;
        for group in self.groups().chunks_exact(self.group_words.into()) {
            group[0].store(address, Ordering::Relaxed);
        }
        self.arena_number.store(arena_number, Ordering::Relaxed);
        self.heat.store(heat, Ordering::Relaxed);
        self.touched.store(0, Ordering::Relaxed);
        self.fleeting.store(false, Ordering::Relaxed);
    }

    /// Makes it a part of `whole`, whose segments the caller has locked: the state of its blocks is that of
    /// theirs. The part is not published yet; one of its words holds all of its blocks.
    pub(crate) fn inherit(&self, whole: &Folio) {
        let first = (self.start() - whole.start()) as u32;
        let (word, mask) = masks(first, first + self.blocks()).next().expect("a folio has a block");
        for (own, of_whole) in [(self.uptodate(), whole.uptodate()), (self.mapped(), whole.mapped())] {
            let bits = of_whole.word(word).load(Ordering::SeqCst) & mask;
            own.word(0).store(bits >> (first % 64), Ordering::SeqCst);
        }
    }

    /// Ends a life: clean or truncated, out of its mapping, all segments locked by the caller. Returns the
    /// arena's number of its data.
    pub(crate) fn end(&self) -> u32 {
        debug_assert!(self.dirty().is_empty() && self.writeback().is_empty() && self.filling().is_empty());
        self.owner.store(NOBODY, Ordering::Relaxed);
        self.uptodate().clear(0, self.blocks());
        self.mapped().clear(0, self.blocks());
        self.arena_number.load(Ordering::Relaxed)
    }

    /// Whether it is mapping `owner`'s folio that starts at `start`. Certain only for a holder of a pin or a
    /// segment, or once versions taken before have validated.
    pub(crate) fn is(&self, owner: u64, start: u64) -> bool {
        self.owner.load(Ordering::Relaxed) == owner && self.start.load(Ordering::Relaxed) == start
    }

    /// The mapping it belongs to; a hint without a pin.
    pub(crate) fn owner(&self) -> Option<u64> {
        let owner = self.owner.load(Ordering::Relaxed);
        (owner != NOBODY).then_some(owner)
    }

    /// First block within the file; as [`Folio::is`].
    pub fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    /// One past the last block within the file.
    pub fn end_block(&self) -> u64 {
        self.start() + u64::from(self.blocks())
    }

    /// log2 of its blocks.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The number of its memory in the arena.
    pub(crate) fn arena_number(&self) -> u32 {
        self.arena_number.load(Ordering::Relaxed)
    }

    /// Its blocks.
    pub fn blocks(&self) -> u32 {
        1 << self.order
    }

    /// Memory of `block` (within the folio).
    #[inline]
    pub(crate) fn memory(&self, block: u32) -> *mut u8 {
        let address =
            self.groups()[(block / 64) as usize * usize::from(self.group_words)].load(Ordering::Relaxed);
        std::ptr::with_exposed_provenance_mut::<u8>(address as usize)
            .wrapping_add(block as usize * BLOCK_SIZE)
    }

    /// The part of the file's blocks `[first, end)` that lies in this folio, as blocks of the folio.
    pub fn clip(&self, first: u64, end: u64) -> (u32, u32) {
        self.clip_at(self.start(), first, end)
    }

    /// As [`Folio::clip`], for a reader without a pin that knows where the folio started when it was found.
    pub fn clip_at(&self, start: u64, first: u64, end: u64) -> (u32, u32) {
        let from = first.saturating_sub(start).min(u64::from(self.blocks()));
        let to = end.saturating_sub(start).min(u64::from(self.blocks()));
        (from as u32, to as u32)
    }

    /// log2 of the blocks of a segment.
    fn segment_shift(&self) -> u32 {
        u32::from(self.order.saturating_sub(4))
    }

    /// The segment's lock.
    pub fn segment(&self, number: u32) -> &SegmentLock {
        debug_assert!(number < segments_of(self.order));
        let shift = self.group_segments_shift;
        let within = number & ((1 << shift) - 1);
        let group = (number >> shift) as usize;
        SegmentLock::from_word(&self.groups()[group * usize::from(self.group_words) + 1 + within as usize])
    }

    /// The number of the segment that holds `block` of the folio.
    pub fn segment_number(&self, block: u32) -> u32 {
        block >> self.segment_shift()
    }

    /// The blocks of a segment.
    pub fn segment_blocks(&self, number: u32) -> (u32, u32) {
        (number << self.segment_shift(), (number + 1) << self.segment_shift())
    }

    /// The segments of blocks `[from, to)` of the folio, ascending.
    pub fn segments(&self, from: u32, to: u32) -> impl Iterator<Item = &SegmentLock> {
        let last = if from < to { self.segment_number(to - 1) + 1 } else { 0 };
        (self.segment_number(from)..last).map(|number| self.segment(number))
    }

    /// The words of all groups.
    fn groups(&self) -> &[AtomicU64] {
        &self.words[leading_words(self.order)..]
    }

    fn bits(&self, map: Map) -> Bits<'_> {
        let first = 1 + (1 << self.group_segments_shift) + map as usize;
        Bits::new(&self.groups()[first..], self.group_words.into())
    }

    /// Blocks whose memory holds the file's contents.
    pub fn uptodate(&self) -> Bits<'_> {
        self.bits(Map::Uptodate)
    }

    /// Blocks newer than the device.
    pub fn dirty(&self) -> Bits<'_> {
        self.bits(Map::Dirty)
    }

    /// Blocks being written.
    pub fn writeback(&self) -> Bits<'_> {
        self.bits(Map::Writeback)
    }

    /// Blocks being read in.
    pub fn filling(&self) -> Bits<'_> {
        self.bits(Map::Fill)
    }

    /// Blocks known to have a home on the device.
    pub fn mapped(&self) -> Bits<'_> {
        self.bits(Map::Mapped)
    }

    /// Whether a block is dirty or in writeback. Dirty is looked at first: a block goes from dirty to
    /// writeback with both bits set in between.
    pub fn unfinished(&self) -> bool {
        !self.dirty().is_empty() || !self.writeback().is_empty()
    }

    /// Pins; a hint unless removal is excluded.
    pub(crate) fn pins(&self) -> u32 {
        self.pins.load(Ordering::Acquire)
    }

    /// Where waiters for its fill bits sleep.
    pub(crate) fn fill_address(&self) -> usize {
        std::ptr::from_ref(&self.pins) as usize
    }
}

impl std::fmt::Debug for Folio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "folio of {:?} at block {} ({} blocks, {} pins{}) uptodate {:?} dirty {:?} writeback {:?} fill {:?} mapped {:?} segments [",
            self.owner(),
            self.start(),
            self.blocks(),
            self.pins(),
            if self.listed.load(Ordering::Relaxed) { ", listed" } else { "" },
            self.uptodate(),
            self.dirty(),
            self.writeback(),
            self.filling(),
            self.mapped(),
        )?;
        for number in 0..segments_of(self.order) {
            write!(f, "{}{:?}", if number == 0 { "" } else { ", " }, self.segment(number))?;
        }
        f.write_str("]")
    }
}

/// A pointer to a header. Headers live as long as the cache, which everyone who has one keeps alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FolioRef(NonNull<Folio>);

// SAFETY: a header's fields are atomics or constant; it may be used from any thread.
unsafe impl Send for FolioRef {}
// SAFETY: as above.
unsafe impl Sync for FolioRef {}

impl FolioRef {
    /// A pointer to a header of the slab.
    pub(crate) fn new(folio: &Folio) -> FolioRef {
        FolioRef(NonNull::from(folio))
    }

    /// The address alone; aligned to 64 bytes.
    pub(crate) fn thin(self) -> NonNull<()> {
        self.0.cast()
    }

    /// The header at an address.
    ///
    /// # Safety
    /// `header` is [`FolioRef::thin`] of a header of this order.
    pub(crate) unsafe fn from_thin(header: NonNull<()>, order: Order) -> FolioRef {
        let words = header_words(order);
        let whole =
            std::ptr::slice_from_raw_parts_mut(header.as_ptr().cast::<AtomicU64>(), words) as *mut Folio;
        // SAFETY: not null, as `header` is not.
        FolioRef(unsafe { NonNull::new_unchecked(whole) })
    }
}

impl Deref for FolioRef {
    type Target = Folio;
    fn deref(&self) -> &Folio {
        // SAFETY: the slab frees headers only when the cache goes, and references are held only by mappings,
        // pins and jobs, each of which holds the cache.
        unsafe { self.0.as_ref() }
    }
}

/// Keeps a folio in its mapping while it lives.
pub struct FolioPin(FolioRef);

impl FolioPin {
    /// Pins; the caller excludes removal (see the module's documentation) or holds a pin.
    pub(crate) fn new(folio: FolioRef) -> FolioPin {
        folio.pins.fetch_add(1, Ordering::Relaxed);
        FolioPin(folio)
    }

    /// The folio.
    pub(crate) fn folio(&self) -> FolioRef {
        self.0
    }
}

impl Clone for FolioPin {
    fn clone(&self) -> FolioPin {
        FolioPin::new(self.0)
    }
}

impl Deref for FolioPin {
    type Target = Folio;
    fn deref(&self) -> &Folio {
        &self.0
    }
}

impl Drop for FolioPin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_size_that_the_limit_counts() {
        for order in 0..=ORDER_MAX {
            let folio = Folio::boxed(order, Mark::default());
            assert_eq!(size_of_val(&*folio) as u64, header_bytes(order), "order {order}");
            assert_eq!(std::ptr::from_ref(&*folio).cast::<u8>() as usize % 64, 0);
        }
        assert!(header_bytes(0) <= 128 && header_bytes(4) <= 256);
    }

    #[test]
    fn segments_cover_blocks() {
        for order in 0..=ORDER_MAX {
            let folio = Folio::boxed(order, Mark::default());
            for block in 0..folio.blocks() {
                let (from, to) = folio.segment_blocks(folio.segment_number(block));
                assert!((from..to).contains(&block));
            }
            assert_eq!(folio.segments(0, folio.blocks()).count() as u32, segments_of(order));
            assert!(folio.segments(0, folio.blocks()).all(SegmentLock::is_locked));
        }
        let folio = Folio::boxed(9, Mark::default());
        assert_eq!(folio.segments(31, 33).count(), 2);
        assert_eq!(folio.segments(5, 5).count(), 0);
    }
}
