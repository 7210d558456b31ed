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
            shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            mine.set(shard);
        }
        shard
    })
}

/// Makes `shard` the current thread's.
pub fn set(shard: usize) {
    MINE.with(|mine| mine.set(shard % SHARDS));
}
