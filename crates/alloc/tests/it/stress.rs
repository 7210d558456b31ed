//! Many threads on a volume that is nearly full: no block has two owners, and the counts add up.

use crate::common::empty;
use quire_alloc::{Allocator, Funding, Run};
use quire_base::random::Random;
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, ErrorKind, Seq};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const GROUP: u64 = 64 * 4096;
const START: u64 = GROUP - 3000;
const END: u64 = GROUP + 3000;

struct Owners(Vec<AtomicU8>);

impl Owners {
    fn swap(&self, runs: &[Run], from: u8, to: u8) {
        for block in runs.iter().flat_map(|run| run.start.0..run.end().0) {
            let place = &self.0[(block - START) as usize];
            assert_eq!(place.swap(to, Ordering::SeqCst), from, "block {block} has two owners");
        }
    }
}

fn work(allocator: &Allocator, owners: &Owners, seq: &AtomicU64, seed: u64) {
    let mut random = Random::seeded(seed);
    let mut held: Vec<Run> = Vec::new();
    let mut reserved = allocator.reserve(0).unwrap();
    for _ in 0..20_000 {
        match random.below(10) {
            0 => {
                if let Ok(more) = allocator.reserve(random.below(200)) {
                    reserved.merge(more);
                }
            }
            1..=4 => {
                let want = 1 + random.below(64);
                let min = 1 + random.below(want);
                let goal = BlockNo(START + random.below(END - START));
                let funded = reserved.blocks() >= min;
                let funding = if funded { Funding::Reserved(&mut reserved) } else { Funding::Unreserved };
                match allocator.allocate(funding, goal, want, min) {
                    Ok(runs) => {
                        owners.swap(&runs, 0, 1);
                        held.extend(runs);
                    }
                    Err(error) => assert!(!funded && error.kind() == ErrorKind::NoSpace, "{error}"),
                }
            }
            5 if !held.is_empty() => {
                let run = held.swap_remove(random.below(held.len() as u64) as usize);
                owners.swap(&[run], 1, 0);
                reserved.merge(allocator.cancel(&[run]).unwrap());
            }
            6..=8 if !held.is_empty() => {
                let run = held.swap_remove(random.below(held.len() as u64) as usize);
                owners.swap(&[run], 1, 0);
                allocator.ensure_loaded(&[run]).unwrap();
                allocator.freed(Seq(seq.fetch_add(1, Ordering::SeqCst)), &[run]).unwrap();
            }
            _ => {
                drop(reserved.split(reserved.blocks() / 2));
                allocator.durable(Seq(seq.load(Ordering::SeqCst).saturating_sub(random.below(20))));
            }
        }
    }
    owners.swap(&held, 1, 0);
    drop(allocator.cancel(&held).unwrap());
}

#[test]
fn no_block_has_two_owners() {
    let (allocator, _) = empty(START, END);
    let owners = Arc::new(Owners((START..END).map(|_| AtomicU8::new(0)).collect()));
    let seq = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..8)
        .map(|seed| {
            let (allocator, owners, seq) = (allocator.clone(), owners.clone(), seq.clone());
            thread::spawn(move || work(&allocator, &owners, &seq, seed))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    allocator.durable(Seq(u64::MAX));
    assert_eq!(
        (allocator.free_blocks(), allocator.reserved_blocks(), allocator.deferred_blocks()),
        (END - START, 0, 0)
    );
    allocator.check().unwrap();
}
