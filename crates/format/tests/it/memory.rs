//! What decoding takes of memory, counted by the allocator of the test program.

use quire_base::InodeNo;
use quire_format::record::{self, Change, Encoder};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that the thread has taken and not given back, and the most of that.
    static TAKEN: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends may have lost its count already.
    let _ = TAKEN.try_with(|taken| {
        let (now, most) = taken.get();
        taken.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A replay made all changes of a record at once. A forged record of 64 MiB, three bytes to a change, took
/// more than a gigabyte.
#[test]
fn the_changes_of_a_record_are_not_in_memory_at_once() {
    const CHANGES: usize = 100_000;
    let mut encoder = Encoder::new();
    (0..CHANGES).for_each(|_| encoder.push(&Change::OrphanSet { slot: 1, inode: InodeNo(2) }));
    let bytes = encoder.finish();
    TAKEN.set((0, 0));
    assert_eq!(record::changes(&bytes).expect("a record").count(), CHANGES);
    let (_, most) = TAKEN.get();
    assert!(most < 4096, "{most} bytes for a record of {} bytes", bytes.len());
}
