//! Random schedules of several threads that reserve, allocate, cancel, free and force on a volume of a few
//! blocks.
//!
//! Run: `RUSTFLAGS="--cfg shuttle" cargo test -p quire-alloc --test it shuttle_alloc --release`

use crate::common::empty;
use quire_alloc::{Allocator, Funding};
use quire_base::random::Random;
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, Seq, shard};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const START: u64 = 64 * 4096 - 4;
const BLOCKS: u64 = 9;

fn work(allocator: &Allocator, owned: &Mutex<BTreeSet<u64>>, seq: &AtomicU64, seed: u64) {
    let mut random = Random::seeded(seed);
    let forget = |runs: &[quire_alloc::Run]| {
        let mut owned = owned.lock().unwrap();
        assert!(runs.iter().flat_map(|run| run.start.0..run.end().0).all(|block| owned.remove(&block)));
    };
    for _ in 0..4 {
        shard::set(random.below(2) as usize);
        let want = 1 + random.below(3);
        let Ok(mut reservation) = allocator.reserve(want) else {
            allocator.durable(Seq(seq.load(Ordering::Relaxed)));
            continue;
        };
        let goal = BlockNo(START + random.below(BLOCKS));
        let runs =
            allocator.allocate(Funding::Reserved(&mut reservation), goal, want, want).expect("reserved");
        {
            let mut owned = owned.lock().unwrap();
            let new = runs.iter().flat_map(|run| run.start.0..run.end().0).all(|block| owned.insert(block));
            assert!(new, "a block has two owners: {runs:?}");
        }
        thread::yield_now();
        forget(&runs);
        if random.one_in(3) {
            drop(allocator.cancel(&runs).unwrap());
        } else {
            allocator.freed(Seq(seq.fetch_add(1, Ordering::Relaxed)), &runs).unwrap();
            if random.one_in(2) {
                allocator.durable(Seq(seq.load(Ordering::Relaxed)));
            }
        }
    }
}

fn model() {
    let (allocator, _) = empty(START, START + BLOCKS);
    let owned = Arc::new(Mutex::new(BTreeSet::new()));
    let seq = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let (allocator, owned, seq) = (allocator.clone(), owned.clone(), seq.clone());
            thread::spawn(move || work(&allocator, &owned, &seq, seed))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    allocator.durable(Seq(u64::MAX));
    assert_eq!((allocator.free_blocks(), allocator.reserved_blocks()), (BLOCKS, 0));
    allocator.check().unwrap();
}

#[test]
fn random_schedules() {
    shuttle::check_random(model, 3000);
}

#[test]
fn schedules_with_few_preemptions() {
    shuttle::check_pct(model, 2000, 3);
}
