//! Memory for the blocks of folios: 2 MiB chunks on huge pages, cut in powers of two by a buddy allocator.
//!
//! Layout. Chunks come from mappings of [`BATCH_CHUNKS`] chunks each and are aligned to their size. A piece
//! of order *o* is 2^o blocks, aligned to its size. Free pieces are kept in one ordered set per order, by
//! number (chunk number * 512 + block), and the lowest number is taken first: the arena fills from the
//! bottom, so chunks at the top become wholly free. *Bare* chunks, which have no memory, are taken last.
//! Wholly free chunks that nobody needed for [`IDLE_TIME`] give their memory back to the system
//! (`MADV_DONTNEED`), all but [`IDLE_CHUNKS`]. If they gave it back at once, the system would clear each page
//! again for a program that deletes one large file and writes the next. Those that the limit has no room for
//! do not wait: other things than folios may be charged to it meanwhile.
//!
//! A lower limit leaves what remains in use spread over all chunks. The free pieces between give their memory
//! back then, once ([`Arena::give_back`]), though that breaks huge pages; later pieces come from the
//! bottom again. Such a *broken* chunk is kept off huge pages until it is wholly free: the kernel makes a
//! huge page of small ones in the background where it may, and would fill what was given back again.
//!
//! The first touch of a huge page may take milliseconds (cleared; in a virtual machine also given by the
//! host), which a writer, and all who wait behind it, would feel. So where a thread runs
//! [`Arena::work_ahead`], the chunk that will be wanted next is touched by it when the one before is taken,
//! on another CPU than that of the one who took it: the kernel does not let go of a CPU while it clears.
//!
//! Invariants: memory is never unmapped while the arena lives, so a stale optimistic reader reads some bytes,
//! never a fault; a piece belongs to one holder or to the free sets; buddies are never both free.
//!
//! Neighbours: [`crate::slab`] takes memory for a folio's life.

use crate::folio::{ORDER_MAX, Order};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{BLOCK_SIZE, Timestamp};
use std::collections::BTreeSet;
use std::ptr::NonNull;

/// Blocks in a chunk.
const CHUNK_BLOCKS: u32 = 1 << ORDER_MAX;
/// Bytes in a chunk: a huge page.
pub const CHUNK_BYTES: usize = CHUNK_BLOCKS as usize * BLOCK_SIZE;
/// Chunks mapped at a time.
const BATCH_CHUNKS: usize = 32;
/// Wholly free chunks that keep their memory, against giving it back and taking it again.
const IDLE_CHUNKS: usize = 8;
/// Time without use after which the other free chunks lose their memory, nanoseconds.
const IDLE_TIME: i64 = 10_000_000_000;
/// Pieces that are taken out of the sets at a time, to give them back.
const PIECES_AT_ONCE: usize = 64;
/// Broken chunks that are kept off huge pages. Each may cut a mapping in three, and the kernel allows a
/// process 65,530.
const BROKEN_MAX: usize = 8192;
/// How long the system is not asked again after it had no memory.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A piece of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte, aligned to the piece's size.
    pub memory: NonNull<u8>,
    /// Number of its first block, for [`Arena::free`].
    pub number: u32,
}

/// See the module's documentation.
#[repr(align(64))]
pub struct Arena {
    inner: Mutex<Inner>,
    /// Something is wanted ahead, or the thread that works ahead is to end.
    ahead: Condvar,
}

/// In this order: each taking of a piece writes the first line, behind the lock, and one set of `free`.
#[repr(C)]
struct Inner {
    /// The fewest free chunks with memory since the last look.
    idle_low: usize,
    /// The bare chunk that is likely to be taken next, and the CPU that is busy with the one before.
    wanted: Option<(usize, usize)>,
    /// Free pieces, by order. Those of the highest order are free chunks with memory.
    free: [BTreeSet<u32>; ORDER_MAX as usize + 1],
    /// Free chunks without memory, by chunk number.
    bare: BTreeSet<usize>,
    /// Start of each chunk.
    chunks: Vec<NonNull<u8>>,
    chunks_max: usize,
    /// The limit was lowered, and free pieces have not been given back since.
    shrunk: bool,
    stopped: bool,
    /// What is looked at when whole chunks come and go; apart, to keep the rest on few lines.
    rare: Box<Rare>,
}

#[derive(Default)]
struct Rare {
    /// Chunks that are kept off huge pages, as pieces of them were given back, and how many there are.
    broken: Vec<bool>,
    broken_count: usize,
    /// Mappings, to unmap at the end: start and length.
    mappings: Vec<(NonNull<u8>, usize)>,
    /// When the system last had no memory, until it has some again.
    refused: Option<Instant>,
    /// When idle chunks were last looked at.
    looked: Timestamp,
}

// SAFETY: the pointers are to memory that the arena owns; access to the tables is under the mutex.
unsafe impl Send for Inner {}

impl Arena {
    /// An arena that maps at most `bytes_max`, rounded up to chunks, and two chunks for fragmentation.
    pub fn new(bytes_max: u64) -> Arena {
        let inner = Inner {
            chunks: Vec::new(),
            free: std::array::from_fn(|_| BTreeSet::new()),
            bare: BTreeSet::new(),
            chunks_max: 0,
            idle_low: 0,
            wanted: None,
            shrunk: false,
            stopped: false,
            rare: Box::default(),
        };
        let arena = Arena { inner: Mutex::new(inner), ahead: Condvar::new() };
        arena.set_limit(bytes_max);
        arena
    }

    /// Changes the limit; what is in use above it stays in use.
    pub fn set_limit(&self, bytes_max: u64) {
        let chunks = bytes_max.div_ceil(CHUNK_BYTES as u64).saturating_add(2);
        // Piece numbers are 32 bits: 2^23 chunks, 16 TiB of cache.
        let chunks = chunks.min(1 << 23) as usize;
        let mut inner = self.inner.lock();
        inner.shrunk |= chunks < inner.chunks_max;
        inner.chunks_max = chunks;
    }

    /// Gives memory that nobody needs back to the system, a few pieces at a time, so that no thread waits
    /// long for one. Usually these are chunks that were free for some time, and chunks that hold more than
    /// `spare_bytes`, which the limit still allows. After the limit was lowered, these are all free pieces,
    /// at once.
    pub fn give_back(&self, now: Timestamp, spare_bytes: u64) {
        let mut inner = self.inner.lock();
        let shrunk = std::mem::take(&mut inner.shrunk);
        let since = now.0.saturating_sub(inner.rare.looked.0);
        // The clock may have been set back.
        let is_due = !(0..IDLE_TIME).contains(&since);
        let idle = inner.idle();
        let unneeded = match (shrunk, is_due) {
            (true, _) => idle,
            (false, true) => inner.idle_low.min(idle),
            (false, false) => 0,
        };
        let surplus = idle.saturating_sub((spare_bytes / CHUNK_BYTES as u64) as usize);
        let count = unneeded.max(surplus).saturating_sub(IDLE_CHUNKS);
        // Before the lock is released: another thread is not to give the same chunks back.
        let left = idle - count;
        if shrunk || is_due {
            inner.rare.looked = now;
            inner.idle_low = left;
        } else {
            inner.idle_low = inner.idle_low.min(left);
        }
        drop(inner);
        self.give_back_chunks(count);
        if shrunk {
            self.give_back_pieces();
        }
    }

    /// Makes so many free chunks bare, from the top, as long as more than the reserve is free.
    fn give_back_chunks(&self, count: usize) {
        for _ in 0..count {
            let mut inner = self.inner.lock();
            if inner.idle() <= IDLE_CHUNKS {
                return;
            }
            // In no set meanwhile, so it is ours.
            let Some(number) = inner.free[ORDER_MAX as usize].pop_last() else { return };
            let start = inner.memory(number);
            drop(inner);
            let gone = system::give_back(start, CHUNK_BYTES);
            self.inner.lock().put_chunk(number, gone);
        }
    }

    fn give_back_pieces(&self) {
        for order in 0..ORDER_MAX {
            let mut from = 0;
            loop {
                let mut inner = self.inner.lock();
                let free = &mut inner.free[order as usize];
                let pieces: Vec<u32> = free.range(from..).take(PIECES_AT_ONCE).copied().collect();
                let Some(last) = pieces.last() else { break };
                from = last + 1;
                // In no set meanwhile, so they are ours.
                pieces.iter().for_each(|number| {
                    free.remove(number);
                });
                let starts: Vec<NonNull<u8>> = pieces.iter().map(|number| inner.memory(*number)).collect();
                let broken = inner.break_chunks(&pieces);
                drop(inner);
                broken.into_iter().for_each(|chunk| system::use_huge_pages(chunk, CHUNK_BYTES, false));
                for (number, start) in pieces.into_iter().zip(starts) {
                    system::give_back(start, BLOCK_SIZE << order);
                    self.free(number, order);
                }
            }
        }
    }

    /// Takes 2^`order` blocks; `None` when neither a free piece nor a chunk is left.
    pub fn alloc(&self, order: Order) -> Option<Piece> {
        let mut inner = self.inner.lock();
        let from = (order..=ORDER_MAX).find(|o| !inner.free[*o as usize].is_empty());
        let mut at = from.unwrap_or(ORDER_MAX);
        let number = match from {
            Some(at) => inner.free[at as usize].pop_first()?,
            None => inner.take_bare()?,
        };
        if at == ORDER_MAX {
            let idle = inner.idle();
            inner.idle_low = inner.idle_low.min(idle);
            inner.wanted = inner.next_without_memory().map(|chunk| (chunk, system::cpu()));
            if inner.wanted.is_some() {
                self.ahead.notify_one();
            }
        }
        while at > order {
            at -= 1;
            inner.free[at as usize].insert(number + (1 << at));
        }
        Some(Piece { memory: inner.memory(number), number })
    }

    /// Gives a piece back. Its memory may be handed out again at once.
    pub fn free(&self, number: u32, order: Order) {
        let mut inner = self.inner.lock();
        let (mut number, mut order) = (number, order);
        while order < ORDER_MAX && inner.free[order as usize].remove(&(number ^ (1 << order))) {
            number &= !(1 << order);
            order += 1;
        }
        if order < ORDER_MAX {
            inner.free[order as usize].insert(number);
            return;
        }
        let chunk = (number / CHUNK_BLOCKS) as usize;
        if !std::mem::take(&mut inner.rare.broken[chunk]) {
            inner.put_chunk(number, false);
            return;
        }
        // What is left of it is in small pages. The chunk is in no set meanwhile, so it is ours.
        inner.rare.broken_count -= 1;
        let start = inner.chunks[chunk];
        drop(inner);
        system::use_huge_pages(start, CHUNK_BYTES, true);
        let gone = system::give_back(start, CHUNK_BYTES);
        self.inner.lock().put_chunk(number, gone);
    }

    /// The life of a thread that gets memory for chunks before they are taken, until [`Arena::stop_ahead`].
    pub fn work_ahead(&self) {
        let elsewhere = system::Elsewhere::new();
        let mut inner = self.inner.lock();
        while !inner.stopped {
            let Some((chunk, cpu)) = inner.wanted.take() else {
                self.ahead.wait(&mut inner);
                continue;
            };
            let start = inner.chunks[chunk];
            drop(inner);
            elsewhere.leave(cpu);
            // Taken meanwhile, or even given back again: that does no harm, and what it then is shows below.
            let touched = system::touch(start, CHUNK_BYTES);
            inner = self.inner.lock();
            if touched && inner.bare.remove(&chunk) {
                inner.put_chunk(chunk as u32 * CHUNK_BLOCKS, false);
            }
        }
    }

    /// Ends [`Arena::work_ahead`], or lets it be started again.
    pub fn stop_ahead(&self, stopped: bool) {
        self.inner.lock().stopped = stopped;
        self.ahead.notify_all();
    }

    /// Bytes of chunks whose memory the system may have given us.
    pub fn resident_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        (inner.chunks.len() - inner.bare.len()) as u64 * CHUNK_BYTES as u64
    }
}

impl Inner {
    /// Where a block is.
    fn memory(&self, number: u32) -> NonNull<u8> {
        let offset = (number % CHUNK_BLOCKS) as usize * BLOCK_SIZE;
        // SAFETY: the offset is within the chunk.
        unsafe { self.chunks[(number / CHUNK_BLOCKS) as usize].add(offset) }
    }

    /// The chunk that will be taken next, if it is there and has no memory.
    fn next_without_memory(&self) -> Option<usize> {
        if self.idle() > 0 { None } else { self.bare.first().copied() }
    }

    /// Free chunks with memory.
    fn idle(&self) -> usize {
        self.free[ORDER_MAX as usize].len()
    }

    /// Takes a bare chunk, which a store then gives its memory. `None` if the limit or the system does not
    /// allow another one.
    fn take_bare(&mut self) -> Option<u32> {
        if self.bare.is_empty() && !self.grow(Instant::now, system::map) {
            return None;
        }
        self.bare.pop_first().map(|chunk| chunk as u32 * CHUNK_BLOCKS)
    }

    /// Puts a free chunk where it belongs.
    fn put_chunk(&mut self, number: u32, is_bare: bool) {
        if is_bare {
            self.bare.insert((number / CHUNK_BLOCKS) as usize);
        } else {
            self.free[ORDER_MAX as usize].insert(number);
        }
    }

    /// Notes that free pieces of these chunks are given back. Returns the chunks that are to be kept off huge
    /// pages and are not yet. Their pieces are in no set meanwhile, so none of them is wholly free before the
    /// caller has done it.
    fn break_chunks(&mut self, pieces: &[u32]) -> Vec<NonNull<u8>> {
        let mut fresh = Vec::new();
        for number in pieces {
            let chunk = (number / CHUNK_BLOCKS) as usize;
            if !self.rare.broken[chunk] && self.rare.broken_count < BROKEN_MAX {
                self.rare.broken[chunk] = true;
                self.rare.broken_count += 1;
                fresh.push(self.chunks[chunk]);
            }
        }
        fresh
    }

    /// Adds bare chunks; false if the limit or the system does not allow it.
    fn grow(
        &mut self,
        now: impl FnOnce() -> Instant,
        map: impl FnOnce(usize) -> Option<NonNull<u8>>,
    ) -> bool {
        let count = BATCH_CHUNKS.min(self.chunks_max.saturating_sub(self.chunks.len()));
        if count == 0 {
            return false;
        }
        let now = now();
        if self.rare.refused.is_some_and(|at| now.saturating_duration_since(at) < REFUSED_PAUSE) {
            return false;
        }
        let bytes = (count + 1) * CHUNK_BYTES;
        let Some(start) = map(bytes) else {
            if self.rare.refused.replace(now).is_none() {
                tracing::warn!(bytes, "the system has no memory for the cache");
            }
            return false;
        };
        self.rare.refused = None;
        self.rare.mappings.push((start, bytes));
        let skip = start.as_ptr().align_offset(CHUNK_BYTES);
        for i in 0..count {
            // SAFETY: `skip` is below one chunk and the mapping has one chunk more than it is cut into.
            self.chunks.push(unsafe { start.add(skip + i * CHUNK_BYTES) });
            self.rare.broken.push(false);
            self.bare.insert(self.chunks.len() - 1);
        }
        true
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (start, bytes) in std::mem::take(&mut self.inner.get_mut().rare.mappings) {
            system::unmap(start, bytes);
        }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner.lock();
        write!(
            f,
            "arena of {} chunks, {} bare; free pieces by order:",
            inner.chunks.len(),
            inner.bare.len()
        )?;
        inner.free.iter().try_for_each(|free| write!(f, " {}", free.len()))
    }
}

#[cfg(not(miri))]
mod system {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::ptr::NonNull;

    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }
                .ok()?;
        let start = NonNull::new(start.cast())?;
        use_huge_pages(start, bytes, true);
        Some(start)
    }

    /// Whether the kernel may back a range with huge pages.
    pub fn use_huge_pages(start: NonNull<u8>, bytes: usize, huge: bool) {
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is of our own mapping. Huge pages are only advice, which changes no byte, so a
        // refusal does not matter.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
    }

    /// Whether the memory went back; it then reads as zeros.
    pub fn give_back(start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is a free piece of our own private anonymous mapping. A stale optimistic reader
        // then reads zeros, and rejects them.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
    }

    /// The CPU of the calling thread.
    pub fn cpu() -> usize {
        quire_base::shard::processor()
    }

    /// Where the calling thread may run.
    pub struct Elsewhere(Option<CpuSet>);

    impl Elsewhere {
        pub fn new() -> Elsewhere {
            Elsewhere(sched_getaffinity(None).ok().filter(|allowed| allowed.count() > 1))
        }

        /// Keeps the thread that made it off a CPU, as far as it may run on others.
        pub fn leave(&self, cpu: usize) {
            if let Some(mut allowed) = self.0.filter(|_| cpu < CpuSet::MAX_CPU) {
                allowed.unset(cpu);
                // Refused only if the other CPUs have gone since; then it runs where it may.
                let _ = sched_setaffinity(None, &allowed);
            }
        }
    }

    /// Has the system give memory for a chunk, contents unchanged; whether it did.
    pub fn touch(start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is one chunk of our own mapping, which lives as long as the arena. Populating
        // changes no byte, so it does not matter who holds the chunk.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok()
    }

    pub fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: a mapping of `map`; the arena's owner is gone, so nobody holds a piece.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 4096).ok()?) })
    }

    pub fn use_huge_pages(_start: NonNull<u8>, _bytes: usize, _huge: bool) {}

    pub fn give_back(_start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    pub fn touch(_start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    pub fn cpu() -> usize {
        0
    }

    pub struct Elsewhere;

    impl Elsewhere {
        pub fn new() -> Elsewhere {
            Elsewhere
        }
        pub fn leave(&self, _cpu: usize) {}
    }

    pub fn unmap(start: NonNull<u8>, bytes: usize) {
        let layout = Layout::from_size_align(bytes, 4096).expect("as in map");
        // SAFETY: allocated by `map` with this layout.
        unsafe { dealloc(start.as_ptr(), layout) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
