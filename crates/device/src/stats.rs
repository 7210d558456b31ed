//! What the device was asked to do, counted: operations, bytes and run lengths by [`IoClass`], flushes,
//! discards.
//!
//! Counters are plain words in one group of cache lines a shard, so counting never makes two threads meet; a
//! reading folds the shards and is exact when nothing is in flight.

use crate::backend::{IoClass, IoOp};
use quire_base::BLOCK_SIZE;
use quire_base::shard::{self, SHARDS};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a run-length histogram: 1 block, 2-3, 4-7, ... the last holds 2048 blocks (8 MiB) and longer.
pub const RUN_BUCKETS: usize = 12;

/// How long transfers were. Bucket `i` counts transfers of 2^i to 2^(i+1) - 1 blocks; the last is open-ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunLengths(pub [u64; RUN_BUCKETS]);

impl RunLengths {
    fn bucket(bytes: u64) -> usize {
        let blocks = (bytes / BLOCK_SIZE as u64).max(1);
        (blocks.ilog2() as usize).min(RUN_BUCKETS - 1)
    }
}

/// Totals of one direction of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Transfers that completed without error.
    pub ops: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// Lengths of those that completed.
    pub runs: RunLengths,
}

impl Transfers {
    /// Mean length of a transfer in bytes; 0 if there was none.
    pub fn mean_bytes(&self) -> u64 {
        self.bytes.checked_div(self.ops).unwrap_or(0)
    }
}

/// Totals of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Device to memory.
    pub reads: Transfers,
    /// Memory to device.
    pub writes: Transfers,
}

/// A reading of a device's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// By class, in the order of [`IoClass::ALL`].
    pub classes: [ClassStats; 3],
    /// Calls that asked for durability.
    pub flush_requests: u64,
    /// Of these, answered without any flush: it was durable already.
    pub flush_needless: u64,
    /// Of these, served by a flush that somebody else led.
    pub flush_joined: u64,
    /// Flushes sent to the backend.
    pub flushes: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Discards sent to the backend.
    pub discards: u64,
    /// Blocks that were discarded.
    pub discarded_blocks: u64,
}

impl DeviceStats {
    /// Totals of `class`.
    pub fn class(&self, class: IoClass) -> &ClassStats {
        &self.classes[class.index()]
    }
}

impl fmt::Display for DeviceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for class in IoClass::ALL {
            for (doing, transfers) in
                [("read", &self.class(class).reads), ("write", &self.class(class).writes)]
            {
                writeln!(
                    f,
                    "{class} {doing}: {} ops, {} bytes, mean {}, errors {}, runs {:?}",
                    transfers.ops,
                    transfers.bytes,
                    transfers.mean_bytes(),
                    transfers.errors,
                    transfers.runs.0
                )?;
            }
        }
        writeln!(
            f,
            "flush: {} asked, {} needless, {} joined, {} sent, {} failed",
            self.flush_requests, self.flush_needless, self.flush_joined, self.flushes, self.flush_errors
        )?;
        write!(f, "discard: {} sent, {} blocks", self.discards, self.discarded_blocks)
    }
}

/// One direction of one class in one shard.
#[derive(Default)]
struct Cell {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    runs: [AtomicU64; RUN_BUCKETS],
}

/// Things counted that are not transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tally {
    FlushRequests,
    FlushNeedless,
    FlushJoined,
    Flushes,
    FlushErrors,
    Discards,
    DiscardedBlocks,
}

const TALLIES: usize = Tally::DiscardedBlocks as usize + 1;

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    cells: [[Cell; 2]; 3],
    tallies: [AtomicU64; TALLIES],
}

/// The live counters.
pub(crate) struct Counters {
    /// [`SHARDS`] of them, on the heap: together they would fill the small stacks of model checkers.
    shards: Box<[Shard]>,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Adds to a tally.
    pub(crate) fn add(&self, tally: Tally, amount: u64) {
        self.shards[shard::current()].tallies[tally as usize].fetch_add(amount, Ordering::Relaxed);
    }

    fn total(&self, tally: Tally) -> u64 {
        self.shards.iter().map(|shard| shard.tallies[tally as usize].load(Ordering::Relaxed)).sum()
    }

    /// Counts a transfer that has ended.
    pub(crate) fn transferred(&self, class: IoClass, op: IoOp, bytes: u64, ok: bool) {
        let cell = &self.shards[shard::current()].cells[class.index()][op as usize];
        if ok {
            cell.ops.fetch_add(1, Ordering::Relaxed);
            cell.bytes.fetch_add(bytes, Ordering::Relaxed);
            cell.runs[RunLengths::bucket(bytes)].fetch_add(1, Ordering::Relaxed);
        } else {
            cell.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fold(&self, class: IoClass, op: IoOp) -> Transfers {
        let mut sum = Transfers::default();
        for shard in self.shards.iter() {
            let cell = &shard.cells[class.index()][op as usize];
            sum.ops += cell.ops.load(Ordering::Relaxed);
            sum.bytes += cell.bytes.load(Ordering::Relaxed);
            sum.errors += cell.errors.load(Ordering::Relaxed);
            for (total, bucket) in sum.runs.0.iter_mut().zip(&cell.runs) {
                *total += bucket.load(Ordering::Relaxed);
            }
        }
        sum
    }

    pub(crate) fn read(&self) -> DeviceStats {
        DeviceStats {
            classes: IoClass::ALL.map(|class| ClassStats {
                reads: self.fold(class, IoOp::Read),
                writes: self.fold(class, IoOp::Write),
            }),
            flush_requests: self.total(Tally::FlushRequests),
            flush_needless: self.total(Tally::FlushNeedless),
            flush_joined: self.total(Tally::FlushJoined),
            flushes: self.total(Tally::Flushes),
            flush_errors: self.total(Tally::FlushErrors),
            discards: self.total(Tally::Discards),
            discarded_blocks: self.total(Tally::DiscardedBlocks),
        }
    }
}
