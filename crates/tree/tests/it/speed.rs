//! Times of the basic operations, for a look at orders of magnitude: run with
//! `--release -- --ignored --nocapture`.

use crate::common::stamp;
use quire_base::random::Random;
use quire_base::{BlockNo, InodeNo};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_tree::{PoolState, Tree, TreeLimits};
use std::hint::black_box;
use std::time::Instant;

#[test]
#[ignore = "a measurement"]
fn times_of_operations() {
    for count in [1_000, 100_000, 1_000_000] {
        measure(count);
    }
}

fn measure(keys: u64) {
    const COUNT: u64 = 1_000_000;
    println!("{keys} keys");
    let device = Device::in_memory(1 << 18);
    let pool = PoolState::new(&[Run::new(BlockNo(16), 1 << 17)], 1);
    let tree = Tree::create(device.clone(), 1, pool, TreeLimits::with_cache_bytes(1 << 30));
    let key = |n: u64| Key::inode(InodeNo(n));
    let time = |what: &str, run: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        (0..COUNT).for_each(&mut *run);
        println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / COUNT as f64);
    };
    time("insert ascending", &mut |n| tree.put(key(2 * (n % keys)), &[1; 100]).unwrap());
    let mut random = Random::seeded(1);
    time("insert random", &mut |_| tree.put(key(2 * random.below(keys) + 1), &[2; 100]).unwrap());
    time("replace random", &mut |n| tree.put(key(2 * random.below(keys)), &n.to_le_bytes()).unwrap());
    time("get random", &mut |_| {
        black_box(tree.get_with(key(2 * random.below(keys)), |value| value.len()).unwrap());
    });
    time("get ascending", &mut |n| {
        black_box(tree.get_with(key(2 * (n % keys)), |value| value.len()).unwrap());
    });
    let start = Instant::now();
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(1)).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "checkpoint: {} nodes, {:.0} MiB/s",
        image.nodes_written,
        image.blocks_written as f64 / 256. / seconds
    );
    time("delete random", &mut |_| {
        black_box(tree.delete(key(random.below(2 * keys))).unwrap());
    });
    println!("{:?}", tree.stats());
}
