//! Hit rates of replacement policies on a few traces, Quire's own among them: the real cache, in front of a
//! device in memory.
//!
//! `cargo run --release -p quire-cache --example reclaim`

#[path = "../../tests/it/common/mod.rs"]
mod common;
mod policies;
mod traces;

use common::{BS, FakeFile, World};
use policies::{ClockPro, Lru, Policy, S3Fifo, TwoQ};
use quire_base::sync::Arc;
use quire_cache::{CacheConfig, ReadView};

/// Blocks that the caches hold.
const CAPACITY: u32 = 4096;
/// What a block costs in the real cache: data, header, index; and the part of the limit that is kept for
/// nodes.
const BLOCK_COST: u64 = BS + 128 + 8;

/// The cache itself; a block is in a folio of its own.
struct Quire {
    world: World,
    file: Arc<FakeFile>,
}

impl Quire {
    fn new(capacity: u32) -> Quire {
        let mut config = CacheConfig::new(u64::from(capacity) * BLOCK_COST * 32 / 31);
        config.batch_bytes = 64 << 10;
        config.order_max = 0;
        config.readahead_bytes = 0;
        let world = World::new(config);
        let file = world.file();
        file.size.store(BS << 30, std::sync::atomic::Ordering::Relaxed);
        Quire { world, file }
    }
}

impl Policy for Quire {
    fn name(&self) -> &'static str {
        "Quire"
    }
    fn access(&mut self, block: u32) -> bool {
        let mut word = [0; 8];
        let view = || ReadView { exclusive_sequence: 0, size: BS << 30 };
        let at = u64::from(block) * BS;
        let hit = self.file.mapping().try_read(at, &mut word, view).is_some();
        if !hit {
            self.file.mapping().read(at, &mut word, &|| BS << 30).expect("a hole can be read");
        }
        hit
    }
}

fn hit_rate(policy: &mut dyn Policy, trace: &traces::Trace) -> f64 {
    // The first quarter warms up.
    let warm = trace.blocks.len() / 4;
    let (mut hits, mut all) = (0u64, 0u64);
    for (at, block) in trace.blocks.iter().enumerate() {
        let hit = policy.access(*block);
        if at >= warm && *block < trace.counted_below {
            all += 1;
            hits += u64::from(hit);
        }
    }
    hits as f64 / all as f64 * 100.0
}

fn main() {
    let traces = traces::all(CAPACITY);
    let capacity = CAPACITY as usize;
    let make = |number: usize| -> Box<dyn Policy> {
        match number {
            0 => Box::new(Lru::new(capacity)),
            1 => Box::new(TwoQ::new(capacity)),
            2 => Box::new(S3Fifo::new(capacity)),
            3 => Box::new(ClockPro::new(capacity)),
            _ => Box::new(Quire::new(CAPACITY)),
        }
    };
    println!("hit rate in percent, {CAPACITY} blocks");
    print!("{:<12}", "");
    (0..5).for_each(|number| print!("{:>10}", make(number).name()));
    println!();
    for trace in &traces {
        print!("{:<12}", trace.name);
        for number in 0..5 {
            let mut policy = make(number);
            print!("{:>10.1}", hit_rate(&mut *policy, trace));
        }
        println!("  {}", trace.about);
    }
    let quire = Quire::new(CAPACITY);
    println!("\nQuire's limit: {} bytes", quire.world.cache.usage().limit_bytes);
}
