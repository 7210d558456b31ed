//! The memory of a traced operation: an allocator that stands aside.
//!
//! Which lines two operations share through the system's allocator is not the engine's doing, and differs
//! from one allocator to the next. So the program runs on [`Arena`]: outside of a traced operation it is the
//! system's allocator; within one it hands out fresh memory of the operation's own side and takes nothing
//! back, as an allocator with a cache for each thread does at its best. Whatever the operation allocates is
//! then its own, and what remains of conflicts is on memory that was there before.
//!
//! Invariants: [`enter`] is called only in a process that traces one operation and then ends (a fork of the
//! program), so memory that is not taken back does not add up.
//!
//! Neighbours: [`super::trace`] enters it; `main` installs it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sides that have memory of their own.
pub const SIDES: usize = 2;
/// Bytes that one operation can allocate.
const SIDE_BYTES: usize = 64 << 20;
const LINE: usize = 64;

/// The side whose operation is traced, plus one; 0 outside.
static SIDE: AtomicUsize = AtomicUsize::new(0);
static SPANS: [Span; SIDES] = [const { Span { next: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; SIDES];

/// What is left of a side's memory, on lines of its own.
#[repr(align(128))]
struct Span {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// The program's allocator.
pub struct Arena;

/// Sets the sides' memory aside, before anything is traced.
pub fn prepare() {
    for span in &SPANS {
        if span.end.load(Ordering::Relaxed) == 0 {
            let layout = Layout::from_size_align(SIDE_BYTES, 4096).expect("a size and a power of two");
            // SAFETY: the layout has a size; the memory is never given back.
            let start = unsafe { System.alloc_zeroed(layout) } as usize;
            assert_ne!(start, 0, "no memory for the sides of a conflict report");
            span.next.store(start, Ordering::Relaxed);
            span.end.store(start + SIDE_BYTES, Ordering::Relaxed);
        }
    }
}

/// From now on this process allocates for `side`.
pub fn enter(side: usize) {
    SIDE.store(side + 1, Ordering::Relaxed);
}

/// Runs `make` with the side's memory, with room behind it: for what the report itself has operations write,
/// such as its clock. Once.
pub fn alone<T>(side: usize, make: impl FnOnce() -> T) -> T {
    ALONE.next.store(SPANS[side].next.load(Ordering::Relaxed), Ordering::Relaxed);
    enter(side);
    let made = make();
    SIDE.store(0, Ordering::Relaxed);
    let end = SPANS[side].next.fetch_add(2 * LINE, Ordering::Relaxed);
    ALONE.end.store(end, Ordering::Relaxed);
    made
}

/// Whether memory is a side's.
fn owns(address: usize) -> bool {
    let has = |span: &Span| {
        let end = span.end.load(Ordering::Relaxed);
        (end.saturating_sub(SIDE_BYTES)..end).contains(&address)
    };
    SPANS.iter().any(has)
}

/// What [`alone`] made.
static ALONE: Span = Span { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };

/// What is the report's own and not the engine's: this bookkeeping, and what [`alone`] made.
pub fn is_ours(address: u64) -> bool {
    let spans = SPANS.as_ptr_range();
    let alone = ALONE.next.load(Ordering::Relaxed) as u64..ALONE.end.load(Ordering::Relaxed) as u64;
    (spans.start as u64..spans.end as u64).contains(&address) || alone.contains(&address)
}

// SAFETY: outside of a traced operation it is the system's allocator; within one, each call gets a range of
// its own of memory that is never given back.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(side) = SIDE.load(Ordering::Relaxed).checked_sub(1) else {
            // SAFETY: as the caller's promise.
            return unsafe { System.alloc(layout) };
        };
        // A process that traces has one thread; the loop serves the letter of the contract.
        let span = &SPANS[side];
        let mut next = span.next.load(Ordering::Relaxed);
        loop {
            let start = next.next_multiple_of(layout.align());
            let end = start + layout.size();
            if end > span.end.load(Ordering::Relaxed) {
                return std::ptr::null_mut();
            }
            match span.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return start as *mut u8,
                Err(now) => next = now,
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if SIDE.load(Ordering::Relaxed) == 0 && !owns(memory as usize) {
            // SAFETY: the system's own, or the caller breaks its promise.
            unsafe { System.dealloc(memory, layout) }
        }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if SIDE.load(Ordering::Relaxed) == 0 {
            // SAFETY: as the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller's promise. A side's memory is zero until it is handed out, once.
        unsafe { self.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if SIDE.load(Ordering::Relaxed) == 0 && !owns(memory as usize) {
            // SAFETY: as the caller's promise.
            return unsafe { System.realloc(memory, layout, size) };
        }
        let Ok(larger) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the layout is valid and not empty, as the caller promises of the size.
        let moved = unsafe { self.alloc(larger) };
        if !moved.is_null() {
            // SAFETY: both are as large as the smaller of the two, and `moved` is new.
            unsafe { std::ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
        }
        moved
    }
}
