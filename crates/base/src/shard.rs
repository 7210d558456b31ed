//! Which of several copies of a thing the current thread uses.
//!
//! A thread gets a number when it first asks (round robin) and keeps it. Measurements that replay one
//! operation alone (conflict reports) set the number from outside with [`set`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shards that sharded structures have; a power of two.
pub const SHARDS: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The current thread's shard, below [`SHARDS`].
pub fn current() -> usize {
    MINE.with(|mine| {
        let mut shard = mine.get();
        if shard == usize::MAX {
            shard = number() % SHARDS;
            mine.set(shard);
        }
        shard
    })
}

/// Simulated threads go by their number in the run, so that runs repeat.
fn number() -> usize {
    #[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
    if let Some(number) = crate::simulation::thread_number() {
        return number;
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The processor that runs this thread now, as a hint; 0 if the system does not say.
///
/// The C library is asked: it has the answer in the thread's own memory. Going to the kernel's shared object
/// instead, as `rustix` does, ends programs under valgrind, which hides that object.
pub fn processor() -> usize {
    // SAFETY: no arguments, no memory.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Makes `shard` the current thread's.
pub fn set(shard: usize) {
    MINE.with(|mine| mine.set(shard % SHARDS));
}

/// Which of `count` shards (at least one) the thing at `address` belongs to. Always the first where runs must
/// repeat: addresses differ from one run to the next.
pub const fn by_address(address: usize, count: usize) -> usize {
    if cfg!(feature = "simulation") {
        return 0;
    }
    let mixed = (address as u64 >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    mixed as usize % count
}
