//! Sequences of block numbers to try replacement policies on, each from a seed. `capacity` is what the cache
//! holds, in blocks; scans have numbers of their own.

use quire_base::random::Random;

/// A trace with its name and the blocks whose hits are counted (all, or those below a number).
pub struct Trace {
    pub name: &'static str,
    pub about: &'static str,
    pub blocks: Vec<u32>,
    /// Only accesses below this number count.
    pub counted_below: u32,
}

/// Where scans begin, beyond every other block.
const SCAN: u32 = 1 << 28;

/// Draws from a Zipf distribution over `count` ranks by inversion of its continuous form (exponent below 1).
fn zipf(random: &mut Random, count: u32, exponent: f64) -> u32 {
    let uniform = random.below(1 << 53) as f64 / (1u64 << 53) as f64;
    let rank = f64::from(count) * uniform.powf(1.0 / (1.0 - exponent));
    // Ranks are spread, so that neighbours are not equally popular.
    (rank as u32).wrapping_mul(0x9E37_79B1) % count
}

fn hot(random: &mut Random, capacity: u32) -> u32 {
    random.below(u64::from(capacity) / 2) as u32
}

/// Warms a hot set of half the cache, then streams ten times the cache past it: `ratio` stream blocks after
/// each hot one, each touched `touches` times.
fn streamed(capacity: u32, ratio: u32, touches: u32) -> Vec<u32> {
    let mut random = Random::seeded(3);
    let mut blocks: Vec<u32> = (0..4 * capacity).map(|_| hot(&mut random, capacity)).collect();
    for at in 0..10 * capacity {
        if at.is_multiple_of(ratio) {
            blocks.push(hot(&mut random, capacity));
        }
        (0..touches).for_each(|_| blocks.push(SCAN + at));
    }
    blocks
}

/// All traces.
pub fn all(capacity: u32) -> Vec<Trace> {
    let mut random = Random::seeded(1);
    let only_hot = capacity / 2;
    let zipf_only = (0..40 * capacity).map(|_| zipf(&mut random, 8 * capacity, 0.9)).collect();
    let mut scan = SCAN;
    let mut zipf_scans = Vec::new();
    for at in 0..40 * capacity {
        zipf_scans.push(zipf(&mut random, 8 * capacity, 0.9));
        // Every eight capacities a scan of two comes by, as fast as the rest together.
        if at % (8 * capacity) < 2 * capacity {
            zipf_scans.push(scan);
            scan += 1;
        }
    }
    let looped = (0..20 * capacity).map(|at| at % (capacity + capacity / 5)).collect();
    let mut shifting = Vec::new();
    for at in 0..40 * capacity {
        let set = at / (8 * capacity);
        shifting.push(set * capacity + hot(&mut random, capacity));
        if at.is_multiple_of(2) {
            shifting.push(SCAN + at);
        }
    }
    let trace = |name, about, blocks, counted_below| Trace { name, about, blocks, counted_below };
    vec![
        trace("zipf", "Zipf 0.9 over 8 x the cache", zipf_only, u32::MAX),
        trace("zipf+scans", "the same, scans of 2 x the cache now and then", zipf_scans, SCAN),
        trace("loop", "a loop over 1.2 x the cache", looped, u32::MAX),
        trace("shift", "a hot set of half the cache that moves, and a stream", shifting, SCAN),
        trace("hot 1:1", "hot set of half the cache, stream of 10 x", streamed(capacity, 1, 1), only_hot),
        trace("hot 1:4", "the same, 4 stream blocks for a hot one", streamed(capacity, 4, 1), only_hot),
        trace("hot 1:16", "the same, 16 for one", streamed(capacity, 16, 1), only_hot),
        trace("hot 1:4x4", "1:4, stream blocks touched 4 times", streamed(capacity, 4, 4), only_hot),
    ]
}
