//! How long things took: counts by time, four buckets to each power of two, so that a percentile is known to
//! within a fifth. Sharded by thread like the counters, each shard on lines of its own, and folded when read.
//!
//! The benchmarks use `hdrhistogram`. Here a time is noted on the path of every read and write, by threads
//! that share nothing, and read while they go on: that takes atomic buckets, which its recorders (one per
//! thread, handed over to be merged) do not have.

use crate::shard::{self, SHARDS};
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets: times of up to 2^36 ns, 68 s; what takes longer counts there.
pub const BUCKETS: usize = 4 * 36;

#[repr(align(64))]
struct Shard([AtomicU64; BUCKETS]);

/// Times, in nanoseconds.
pub struct Histogram {
    shards: Box<[Shard]>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let shard = |_| Shard([const { AtomicU64::new(0) }; BUCKETS]);
        Histogram { shards: (0..SHARDS).map(shard).collect() }
    }
}

/// The bucket of a time: its power of two and the two bits below.
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(4);
    let power = nanos.ilog2() as usize;
    (4 * (power - 1) + (nanos >> (power - 2)) as usize % 4 - 4).min(BUCKETS - 1)
}

/// The first time that a later bucket has.
fn upper_end(bucket: usize) -> u64 {
    let (power, quarter) = (bucket / 4 + 2, bucket as u64 % 4);
    (5 + quarter) << (power - 2)
}

impl Histogram {
    /// Notes a time.
    pub fn note(&self, nanos: u64) {
        self.shards[shard::current()].0[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// All shards together.
    pub fn read(&self) -> Times {
        let mut counts = [0; BUCKETS];
        for shard in &self.shards {
            for (sum, count) in counts.iter_mut().zip(&shard.0) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        Times { counts }
    }
}

/// A reading of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    counts: [u64; BUCKETS],
}

impl Times {
    /// Times noted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper ends of buckets, in nanoseconds, with how many times lie below, ascending; up to the last one
    /// that has any.
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let used = self.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let mut below = 0;
        let ends = self.counts[..used].iter().enumerate().map(|(bucket, count)| {
            below += count;
            (upper_end(bucket), below)
        });
        ends.collect()
    }

    /// The time in nanoseconds, rounded up to its bucket's end, that `share` (0 to 1) of all do not exceed. 0
    /// if there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        self.cumulative().into_iter().find(|(_, below)| *below >= wanted).map_or(0, |(end, _)| end)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gap_or_overlap() {
        for number in 0..BUCKETS - 1 {
            let end = upper_end(number);
            assert_eq!(bucket(end - 1), number);
            assert_eq!(bucket(end), number + 1);
        }
        assert_eq!((bucket(0), bucket(4), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_near() {
        let histogram = Histogram::default();
        (1..=1000u64).for_each(|micros| histogram.note(micros * 1000));
        let times = histogram.read();
        assert_eq!(times.count(), 1000);
        for (share, exact) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let found = times.quantile(share) as f64;
            assert!(found >= exact && found <= exact * 1.25, "{share}: {found}");
        }
        assert_eq!(Histogram::default().read().quantile(0.5), 0);
    }
}
