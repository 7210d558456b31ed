//! A reader-writer lock whose readers do not meet.
//!
//! Protocol: a shared entry locks its thread's shard for reading; a whole entry locks every shard for
//! writing, in ascending order. Shared entries of threads with different shards touch different cache lines;
//! a whole entry costs one lock a shard, so it is for rare events (the barrier of a checkpoint).
//!
//! Invariants: whole and shared never overlap; a thread that waits for the whole lock keeps newcomers of the
//! shards it has already taken out, so it gets in after at most one critical section a shard.

use super::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::shard;
use crossbeam_utils::CachePadded;

/// Number of shards: few under a model checker, which explores each.
#[cfg(not(any(loom, shuttle)))]
const COUNT: usize = shard::SHARDS;
#[cfg(any(loom, shuttle))]
const COUNT: usize = 2;

/// See the module's documentation.
pub struct ShardedRwLock {
    lines: [CachePadded<RwLock<()>>; COUNT],
}

/// A shared entry; ends when dropped.
pub struct SharedGuard<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

/// The whole lock; ends when dropped.
pub struct WholeGuard<'a> {
    _guards: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Default for ShardedRwLock {
    fn default() -> ShardedRwLock {
        ShardedRwLock::new()
    }
}

impl ShardedRwLock {
    /// An unlocked lock.
    pub fn new() -> ShardedRwLock {
        ShardedRwLock { lines: std::array::from_fn(|_| CachePadded::new(RwLock::new(()))) }
    }
    /// Enters shared, on the current thread's shard.
    #[track_caller]
    pub fn shared(&self) -> SharedGuard<'_> {
        SharedGuard { _guard: self.lines[shard::current() % COUNT].read() }
    }
    /// Enters alone.
    #[track_caller]
    pub fn whole(&self) -> WholeGuard<'_> {
        WholeGuard { _guards: self.lines.iter().map(|line| line.write()).collect() }
    }
}
