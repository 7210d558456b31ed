//! Counters for slow paths and totals, and histograms of times. Each is sharded by thread, one cache line a
//! shard, and folded when read, so counting never makes two threads meet.

pub mod histogram;

pub use histogram::{Histogram, Times};

use crate::shard::{self, SHARDS};
use std::sync::atomic::{AtomicU64, Ordering};

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

/// A sum of unsigned amounts. Wraps at 2^64; additions and subtractions commute.
#[derive(Default)]
pub struct Counter {
    lines: [Line; SHARDS],
}

impl Counter {
    /// Zero.
    pub fn new() -> Counter {
        Counter::default()
    }
    /// A sum that begins at `sum`.
    pub fn starting_at(sum: u64) -> Counter {
        let counter = Counter::default();
        counter.lines[0].0.store(sum, Ordering::Relaxed);
        counter
    }
    /// Makes the sum `sum`, while nobody counts.
    pub fn set(&self, sum: u64) {
        for line in &self.lines {
            line.0.store(0, Ordering::Relaxed);
        }
        self.lines[0].0.store(sum, Ordering::Relaxed);
    }
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.lines[shard::current()].0.fetch_add(amount, Ordering::Relaxed);
    }
    /// Takes `amount` off; the sum, not the shard, must stay at or above zero.
    pub fn sub(&self, amount: u64) {
        self.lines[shard::current()].0.fetch_sub(amount, Ordering::Relaxed);
    }
    /// The sum; exact when nobody is adding.
    pub fn get(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.wrapping_add(line.0.load(Ordering::Relaxed)))
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}
