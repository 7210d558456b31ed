//! The count of free blocks that nobody was promised, in shards, so that reservations of different threads
//! rarely meet.
//!
//! Protocol: a taker tries its own shard (compare and swap), then the central count under its lock. When the
//! central count is short, every shard is *closed* and what it held joins the central count; takes and puts
//! of a closed shard go to the centre. A taker that finds plenty in the centre opens its shard again with a
//! stock.
//!
//! Invariants: the sum never goes below zero. Only the holder of the central lock opens, closes or stocks
//! shards. A refusal is exact: at the moment the last shard was closed, all there was lay in the centre.

use crossbeam_utils::CachePadded;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU64, Ordering};

/// Number of shards: few under a model checker, which explores each.
#[cfg(not(any(loom, shuttle)))]
const COUNT: usize = SHARDS;
#[cfg(any(loom, shuttle))]
const COUNT: usize = if SHARDS < 2 { SHARDS } else { 2 };

/// What a closed shard's word holds.
const CLOSED: u64 = u64::MAX;

/// Blocks that a shard is refilled with at most: 4 MiB.
const BATCH: u64 = 1024;

pub(crate) struct Credits {
    lines: [CachePadded<AtomicU64>; COUNT],
    central: Mutex<u64>,
}

impl Credits {
    pub(crate) fn new(blocks: u64) -> Credits {
        Credits {
            lines: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            central: Mutex::new(blocks),
        }
    }

    /// Takes `want` credits, or what there is if that is at least `min`; gives how many. Fails with what
    /// there was.
    pub(crate) fn take(&self, min: u64, want: u64) -> Result<u64, u64> {
        self.take_on(shard::current(), min, want)
    }

    pub(crate) fn take_on(&self, shard: usize, min: u64, want: u64) -> Result<u64, u64> {
        let mine = &self.lines[shard % COUNT];
        let mut have = mine.load(Ordering::Relaxed);
        while have != CLOSED && have >= want {
            match mine.compare_exchange_weak(have, have - want, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(want),
                Err(now) => have = now,
            }
        }
        let mut central = self.central.lock();
        if *central < want {
            *central += self.lines.iter().map(|line| held(line.swap(CLOSED, Ordering::AcqRel))).sum::<u64>();
        }
        let got = want.min(*central);
        if got < min {
            return Err(*central);
        }
        *central -= got;
        // Near the end nothing is stocked, or every other taker would have to close the shard again.
        let stock = (*central / (4 * COUNT as u64)).min(BATCH);
        if stock > 0 {
            *central -= stock;
            *central += held(mine.swap(stock, Ordering::AcqRel));
        }
        Ok(got)
    }

    /// Gives credits back, or new ones.
    pub(crate) fn put(&self, blocks: u64) {
        self.put_on(shard::current(), blocks);
    }

    pub(crate) fn put_on(&self, shard: usize, blocks: u64) {
        let mine = &self.lines[shard % COUNT];
        let mut have = mine.load(Ordering::Relaxed);
        while have != CLOSED && have + blocks <= 2 * BATCH {
            match mine.compare_exchange_weak(have, have + blocks, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => have = now,
            }
        }
        *self.central.lock() += blocks;
    }

    /// The sum; exact when nobody takes or puts.
    pub(crate) fn get(&self) -> u64 {
        let central = self.central.lock();
        *central + self.lines.iter().map(|line| held(line.load(Ordering::Acquire))).sum::<u64>()
    }
}

/// The credits in a shard's word.
fn held(word: u64) -> u64 {
    if word == CLOSED { 0 } else { word }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_credit_is_found_wherever_it_lies() {
        let credits = Credits::new(1_000_000);
        for shard in 0..COUNT {
            assert_eq!(credits.take_on(shard, 1, 1), Ok(1));
        }
        let left = 1_000_000 - COUNT as u64;
        assert_eq!(credits.get(), left);
        assert_eq!(credits.take_on(3, left + 1, left + 1), Err(left));
        assert_eq!(credits.take_on(5, 1, left + 1), Ok(left));
        assert_eq!(credits.take_on(0, 1, 1), Err(0));
        credits.put_on(7, 9);
        assert_eq!(credits.take_on(1, 9, 9), Ok(9));
        assert_eq!(credits.get(), 0);
        // All shards are closed now; with plenty they open again.
        assert_eq!(held(credits.lines[1].load(Ordering::Relaxed)), 0);
        credits.put_on(1, 100_000);
        assert_eq!(credits.take_on(1, 1, 1), Ok(1));
        assert_eq!(credits.lines[1].load(Ordering::Relaxed), BATCH);
        assert_eq!(credits.get(), 99_999);
    }

    #[test]
    fn large_returns_go_to_the_centre() {
        let credits = Credits::new(0);
        credits.put_on(2, 1 << 40);
        assert_eq!(credits.lines[2].load(Ordering::Relaxed), 0);
        credits.put_on(2, 5);
        assert_eq!(credits.take_on(2, 5, 5), Ok(5));
        assert_eq!(credits.get(), 1 << 40);
    }
}
