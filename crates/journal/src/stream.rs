//! The record stream in memory: where it ends, how much of it is promised, and the buffer that holds its
//! newest part.
//!
//! Three words decide everything, all in stream positions (bytes):
//! * `head`: where the next record goes. An append adds its length; closing a block moves it to the next
//!   block.
//! * `claimed`: `head` rounded up to a block, plus what outstanding reservations may still need, a block of
//!   padding for each of their records included. It never falls below that sum. An append moves room from
//!   reservation to head and gives back what it did not need; padding changes nothing, since it ends where
//!   `head` rounds up to. So the one comparison `claimed <= limit`, made when reserving, holds for all that
//!   can happen later.
//! * the limits: `durable + buffer` and `tail + ring`. They only grow, so an old value read by chance is a
//!   safe one.
//!
//! The buffer is a ring of block images; the stream piece at position p is in slot (p / 4032) mod slots.
//! Appenders copy into it in parallel, each into the range that `head` gave it, and then leave its length in
//! the *mark* of its start. The committer walks from mark to mark, and takes them away, until it has passed
//! all that it is to write; it waits at a start without a mark. It then owns the images, until their slots
//! are recycled when they are durable. So appenders tell the committer without meeting one another: marks lie
//! as their records do, at half the distance.
//!
//! Waiting without lost wake-ups: who waits for room sets a flag in the very word that the other side changes
//! (`WAITING` in `claimed`), so either it sees the change or the changer sees the flag. A thread that waits
//! for a mark says so in `wanted` and looks at the mark again; who leaves a mark looks at `wanted`
//! afterwards; both fence in between.
//!
//! Shared lines: `ends`, changed thrice by each append; the line where one record's bytes end and another's
//! begin; `wanted`, which is read by all and written when a committer comes to a record that is still being
//! copied.
//!
//! Neighbours: [`crate::journal`] reserves and appends, [`crate::commit`] closes, writes and recycles.

use crate::failure::Failure;
use crossbeam_utils::CachePadded;
use quire_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use quire_base::sync::{Condvar, Mutex, spin_loop};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_format::journal::{
    HEADER_BYTES, PAYLOAD_BYTES, POSITION_MAX, RECORD_ALIGN, RecordHeader, block_ceil,
};
use std::cell::UnsafeCell;

const PAYLOAD: u64 = PAYLOAD_BYTES as u64;
/// Room that the padding behind one record can take.
pub const PADDING_MAX: u64 = PAYLOAD;
/// In `claimed`: somebody waits for room.
const WAITING: u64 = 1 << 63;
const NO_RECORD: u32 = u32::MAX;
/// Looks at a missing mark before the committer goes to sleep: a copy of a record takes less than a
/// microsecond.
const SPINS: usize = if cfg!(any(loom, shuttle)) { 0 } else { 200 };

/// Why room was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The ring is full until its tail moves.
    Ring,
    /// The buffer is full until a block becomes durable, or a reservation is given back.
    Buffer,
    /// The stream has no positions left.
    Exhausted,
}

#[repr(C, align(4096))]
struct Page(UnsafeCell<[u8; BLOCK_SIZE]>);

// SAFETY: a page is written only by the owners of disjoint stream ranges (see `Stream::copy`) and, when all
// of them are done, by the one committer (`Stream::seal`); the marks in `Slot` order the two.
unsafe impl Sync for Page {}
// SAFETY: plain bytes.
unsafe impl Send for Page {}

/// Positions of a block that share a mark: of a block's records each has one of its own.
#[cfg(not(any(loom, shuttle)))]
const MARK_BYTES: usize = RECORD_ALIGN;
#[cfg(not(any(loom, shuttle)))]
const MARKS: usize = PAYLOAD_BYTES / MARK_BYTES;
/// Few under a model checker, whose records are few and at least so long.
#[cfg(any(loom, shuttle))]
const MARK_BYTES: usize = 24;
#[cfg(any(loom, shuttle))]
const MARKS: usize = 16;

#[repr(align(64))]
struct Slot {
    /// Where a record that is whole begins: its bytes. Zero elsewhere.
    marks: [AtomicU32; MARKS],
    /// Offset of the first record that starts here, or `NO_RECORD`; stored by the walk.
    first_record: AtomicU32,
}

/// How far whole records have been passed.
struct Walk {
    /// The start of a record.
    at: u64,
    /// Committers that wait for a mark.
    waiting: u32,
}

/// The words that every append changes: both on one line, so that appends meet on one only.
struct Ends {
    head: AtomicU64,
    claimed: AtomicU64,
}

/// See the module's documentation.
pub struct Stream {
    ends: CachePadded<Ends>,
    buffer_limit: CachePadded<AtomicU64>,
    ring_limit: AtomicU64,
    ring_bytes: u64,
    pages: Box<[Page]>,
    slots: Box<[Slot]>,
    room: Mutex<()>,
    room_freed: Condvar,
    walk: Mutex<Walk>,
    filled: Condvar,
    /// A committer waits for a mark. Written under `walk`.
    wanted: CachePadded<AtomicBool>,
}

/// A range of the stream that exactly one thread has to fill.
pub struct Claimed {
    start: u64,
    bytes: u64,
}

impl Claimed {
    /// The position behind the range: the record's `Seq`.
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Stream {
    /// An empty stream that goes on at `head` (the start of a block), with a ring of `ring` blocks needed
    /// from `tail` on, and a buffer of `slots` blocks.
    pub fn new(head: u64, tail: u64, ring: u64, slots: usize) -> Stream {
        let slots = slots.max(1);
        let ring_bytes = ring.saturating_mul(PAYLOAD).min(POSITION_MAX);
        Stream {
            ends: CachePadded::new(Ends { head: AtomicU64::new(head), claimed: AtomicU64::new(head) }),
            buffer_limit: CachePadded::new(AtomicU64::new(head + slots as u64 * PAYLOAD)),
            ring_limit: AtomicU64::new(tail + ring_bytes),
            ring_bytes,
            // SAFETY: a page is bytes, and zeros are bytes.
            pages: unsafe { Box::new_zeroed_slice(slots).assume_init() },
            slots: (0..slots)
                .map(|_| Slot {
                    marks: std::array::from_fn(|_| AtomicU32::new(0)),
                    first_record: AtomicU32::new(NO_RECORD),
                })
                .collect(),
            room: Mutex::new(()),
            room_freed: Condvar::new(),
            walk: Mutex::new(Walk { at: head, waiting: 0 }),
            filled: Condvar::new(),
            wanted: CachePadded::new(AtomicBool::new(false)),
        }
    }

    /// Where the next record goes.
    pub fn head(&self) -> u64 {
        self.ends.head.load(Ordering::Acquire)
    }

    /// `head` rounded up, plus what reservations may still need.
    pub fn claimed(&self) -> u64 {
        self.ends.claimed.load(Ordering::Acquire) & !WAITING
    }

    /// The first position that the ring has no room for.
    pub fn ring_limit(&self) -> u64 {
        self.ring_limit.load(Ordering::Acquire)
    }

    /// Bytes of the stream that the ring holds.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Bytes of the stream that the buffer holds.
    pub fn buffer_bytes(&self) -> u64 {
        self.slots.len() as u64 * PAYLOAD
    }

    /// Promises `charge` bytes, or says what is short. Never waits.
    pub fn claim(&self, charge: u64) -> Result<(), Shortage> {
        let mut seen = self.ends.claimed.load(Ordering::Acquire);
        loop {
            let next = (seen & !WAITING).saturating_add(charge);
            if next > POSITION_MAX {
                return Err(Shortage::Exhausted);
            }
            if next > self.ring_limit.load(Ordering::Acquire) {
                return Err(Shortage::Ring);
            }
            if next > self.buffer_limit.load(Ordering::Acquire) {
                return Err(Shortage::Buffer);
            }
            let swapped = self.ends.claimed.compare_exchange_weak(
                seen,
                seen + charge,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swapped {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back what was promised and is not needed.
    pub fn unclaim(&self, charge: u64) {
        // The exchange is made for a charge of zero too: an append that used all of its room may be what the
        // waiting thread needs in order to have something to force.
        if self.ends.claimed.fetch_sub(charge, Ordering::AcqRel) & WAITING != 0 {
            self.wake_waiters();
        }
    }

    /// Waits until a claim of `charge` bytes may fit the buffer, or the head is behind `forced`, or a failure
    /// is set. May return early.
    pub fn wait_for_room(&self, charge: u64, forced: u64, failure: &Failure) {
        let mut room = self.room.lock();
        let claimed = self.ends.claimed.fetch_or(WAITING, Ordering::AcqRel) & !WAITING;
        let fits = claimed.saturating_add(charge) <= self.buffer_limit.load(Ordering::Acquire);
        if fits || self.head() > forced || failure.is_set() {
            return;
        }
        self.room_freed.wait(&mut room);
    }

    fn wake_waiters(&self) {
        let _room = self.room.lock();
        self.ends.claimed.fetch_and(!WAITING, Ordering::AcqRel);
        self.room_freed.notify_all();
    }

    /// Wakes everyone who waits here, after a failure was set.
    pub fn wake_all(&self) {
        self.wake_waiters();
        let _walk = self.walk.lock();
        self.filled.notify_all();
    }

    /// Takes the next `bytes` of the stream. The caller has claimed them and a block of padding, and must
    /// fill the range with [`Stream::fill`]; `unclaim` of what the two values differ by is the caller's too.
    ///
    /// Returns the range and how much of the claim it used up.
    pub fn advance(&self, bytes: u64) -> (Claimed, u64) {
        debug_assert!(bytes.is_multiple_of(RECORD_ALIGN as u64) && bytes > 0);
        let start = self.ends.head.fetch_add(bytes, Ordering::AcqRel);
        (Claimed { start, bytes }, block_ceil(start + bytes) - block_ceil(start))
    }

    /// Moves the head to the start of a block; the range to pad, if there is one, and the new head.
    pub fn close(&self) -> (Option<Claimed>, u64) {
        let mut head = self.ends.head.load(Ordering::Acquire);
        loop {
            let end = block_ceil(head);
            if end == head {
                return (None, end);
            }
            match self.ends.head.compare_exchange_weak(head, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (Some(Claimed { start: head, bytes: end - head }), end),
                Err(now) => head = now,
            }
        }
    }

    /// Copies `bytes` to `offset` within a range.
    ///
    /// Panics if they do not fit the range.
    pub fn copy(&self, range: &mut Claimed, offset: u64, bytes: &[u8]) {
        assert!(
            offset.saturating_add(bytes.len() as u64) <= range.bytes,
            "copy outside of the claimed range"
        );
        let mut at = range.start + offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % PAYLOAD) as usize;
            let (now, later) = rest.split_at(rest.len().min(PAYLOAD_BYTES - within));
            // SAFETY: `within + now.len() <= PAYLOAD_BYTES`, so the target lies in the page. The range
            // belongs to the caller alone (`head` gave it out once, `&mut` proves that it is one thread), the
            // page is this lap's (`claimed` never runs ahead of recycled slots), and the committer looks only
            // when `fill` has counted it.
            unsafe {
                let page = self.page(at).cast::<u8>().add(HEADER_BYTES + within);
                std::ptr::copy_nonoverlapping(now.as_ptr(), page, now.len());
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Marks a range as filled: its bytes are final.
    pub fn fill(&self, range: Claimed) {
        self.mark(range.start).store(range.bytes as u32, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) {
            let _walk = self.walk.lock();
            self.filled.notify_all();
        }
    }

    /// Fills a range that [`Stream::close`] gave out.
    pub fn pad(&self, mut range: Claimed) {
        static ZEROS: [u8; PAYLOAD_BYTES] = [0; PAYLOAD_BYTES];
        self.copy(&mut range, 0, &RecordHeader::PADDING.encode());
        let header = RecordHeader::PADDING.encode().len();
        let rest = range.bytes as usize - header;
        self.copy(&mut range, header as u64, &ZEROS[..rest]);
        self.fill(range);
    }

    /// Waits until every byte before `end` (the start of a block) is filled; true if it had to wait for a
    /// straggler. Fails with the first failure, since a range whose owner panicked never fills.
    pub fn wait_filled(&self, end: u64, failure: &Failure) -> Result<bool> {
        let mut waited = false;
        let mut walk = self.walk.lock();
        while walk.at < end {
            if self.pass(&mut walk) {
                continue;
            }
            waited = true;
            let at = walk.at;
            if (0..SPINS).any(|_| {
                spin_loop();
                self.mark(at).load(Ordering::Relaxed) != 0
            }) {
                continue;
            }
            walk.waiting += 1;
            self.wanted.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let failed = failure.check();
            if failed.is_ok() && self.mark(at).load(Ordering::Relaxed) == 0 {
                self.filled.wait(&mut walk);
            }
            walk.waiting -= 1;
            self.wanted.store(walk.waiting > 0, Ordering::Relaxed);
            failed?;
        }
        Ok(waited)
    }

    /// Moves the walk behind the record that begins there, and takes its mark away; false if it is not whole.
    fn pass(&self, walk: &mut Walk) -> bool {
        let mark = self.mark(walk.at);
        let bytes = mark.load(Ordering::Acquire);
        if bytes == 0 {
            return false;
        }
        mark.store(0, Ordering::Relaxed);
        let first = &self.slot(walk.at).first_record;
        if first.load(Ordering::Relaxed) == NO_RECORD {
            first.store((walk.at % PAYLOAD) as u32, Ordering::Relaxed);
        }
        walk.at += u64::from(bytes);
        true
    }

    /// Runs `seal(position, first_record, image)` on every block of `start..end` (starts of blocks).
    ///
    /// # Safety
    /// Every byte of the range is filled ([`Stream::wait_filled`]), the range is not recycled, and nobody
    /// else reads or writes these images meanwhile.
    pub unsafe fn seal(
        &self,
        start: u64,
        end: u64,
        mut seal: impl FnMut(u64, Option<u16>, &mut [u8; BLOCK_SIZE]),
    ) {
        for at in (start..end).step_by(PAYLOAD_BYTES) {
            let first = self.slot(at).first_record.load(Ordering::Relaxed);
            let first = (first != NO_RECORD).then_some(first as u16);
            // SAFETY: no other thread uses the image.
            seal(at, first, unsafe { &mut *self.page(at) });
        }
    }

    /// The images of `start..end`, cut where the buffer or a ring of `ring` blocks wraps: ring index and
    /// bytes of each run.
    ///
    /// # Safety
    /// Every byte of the range is filled, and the range is neither sealed nor recycled while the slices are
    /// in use.
    pub unsafe fn images(&self, start: u64, end: u64, ring: u64) -> Vec<(u64, &[u8])> {
        let mut runs = Vec::new();
        let mut at = start;
        while at < end {
            let number = at / PAYLOAD;
            let index = (number % self.pages.len() as u64) as usize;
            let left = (end - at) / PAYLOAD;
            let count = left.min(ring - number % ring).min((self.pages.len() - index) as u64);
            // SAFETY: pages are contiguous and `index + count` is within them; the caller keeps writers away.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    self.pages[index..index + count as usize].as_ptr().cast::<u8>(),
                    count as usize * BLOCK_SIZE,
                )
            };
            runs.push((number % ring, bytes));
            at += count * PAYLOAD;
        }
        runs
    }

    /// Makes the slots of `start..end` (starts of blocks), now durable, usable for the next lap.
    pub fn recycle(&self, start: u64, end: u64) {
        for at in (start..end).step_by(PAYLOAD_BYTES) {
            self.slot(at).first_record.store(NO_RECORD, Ordering::Relaxed);
        }
        self.buffer_limit.store(end + self.buffer_bytes(), Ordering::Release);
        // The exchange orders the new limit before the flag of a thread that comes to wait after it.
        if self.ends.claimed.fetch_add(0, Ordering::AcqRel) & WAITING != 0 {
            self.wake_waiters();
        }
    }

    /// The ring is needed from `tail` on only.
    pub fn set_tail(&self, tail: u64) {
        self.ring_limit.fetch_max(tail + self.ring_bytes, Ordering::AcqRel);
    }

    fn slot(&self, at: u64) -> &Slot {
        &self.slots[(at / PAYLOAD % self.slots.len() as u64) as usize]
    }

    /// The mark of the record that begins at `at`.
    fn mark(&self, at: u64) -> &AtomicU32 {
        &self.slot(at).marks[(at % PAYLOAD) as usize / MARK_BYTES % MARKS]
    }

    fn page(&self, at: u64) -> *mut [u8; BLOCK_SIZE] {
        self.pages[(at / PAYLOAD % self.pages.len() as u64) as usize].0.get()
    }
}

impl Shortage {
    /// The error of a stream that has no positions left.
    pub fn exhausted() -> Error {
        Error::new(ErrorKind::NoSpace, "the journal has used up its positions: copy the volume to a new one")
    }
}
