//! The allocator against a set of blocks, over volumes small enough to run full, at the border of two groups.

use crate::common::{Tree, Trimmer, config, run};
use proptest::prelude::*;
use proptest::sample::Index;
use quire_alloc::{AllocConfig, Allocator, Funding, Run, SpaceAccount};
use quire_base::sync::Arc;
use quire_base::{BlockNo, ErrorKind, Seq};
use std::collections::{BTreeMap, BTreeSet};

const GROUP: u64 = 64 * 4096;
const START: u64 = GROUP - 70;
const END: u64 = GROUP + 90;

#[derive(Clone, Debug)]
enum Op {
    Reserve(u64),
    Release(Index),
    Allocate { reserved: bool, goal: u64, want: u64, min: u64 },
    Contiguous { blocks: u64, align: u32 },
    Commit(Index),
    Cancel(Index, bool),
    Free(Index, Index, u64),
    FreeTwice(Index),
    FreeFree(u64),
    Durable(u64),
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    prop_oneof![
        2 => (0u64..60).prop_map(Op::Reserve),
        1 => index().prop_map(Op::Release),
        6 => (any::<bool>(), START - 5..END + 5, 1u64..80, 1u64..80).prop_map(|(reserved, goal, a, b)| {
            Op::Allocate { reserved, goal, want: a.max(b), min: a.min(b) }
        }),
        1 => (1u64..20, 0u32..6).prop_map(|(blocks, align)| Op::Contiguous { blocks, align }),
        5 => index().prop_map(Op::Commit),
        1 => (index(), any::<bool>()).prop_map(|(at, keep)| Op::Cancel(at, keep)),
        4 => (index(), index(), 0u64..4).prop_map(|(at, part, ahead)| Op::Free(at, part, ahead)),
        1 => index().prop_map(Op::FreeTwice),
        1 => (START..END).prop_map(Op::FreeFree),
        3 => (0u64..3).prop_map(Op::Durable),
        1 => Just(Op::Remount),
    ]
}

struct Model {
    free: BTreeSet<u64>,
    /// Allocated, no record yet.
    loose: Vec<Run>,
    /// Used by an applied record.
    used: Vec<Run>,
    freeing: BTreeMap<u64, u64>,
    reserved: Vec<u64>,
    seq: u64,
    durable: u64,
}

impl Model {
    fn promised(&self) -> u64 {
        self.reserved.iter().sum()
    }
    fn available(&self) -> u64 {
        self.free.len() as u64 - self.promised()
    }
    fn take(&mut self, runs: &[Run]) {
        for run in runs {
            for block in run.start.0..run.end().0 {
                assert!(self.free.remove(&block), "block {block} was given out but was not free");
            }
            self.loose.push(*run);
        }
    }
    fn settle(&mut self) {
        let durable = self.durable;
        self.free.extend(self.freeing.iter().filter(|(_, seq)| **seq <= durable).map(|(block, _)| *block));
        self.freeing.retain(|_, seq| *seq > durable);
    }
}

fn pick<T>(list: &mut Vec<T>, at: &Index) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(at.index(list.len())))
}

fn mount(free: u64, discard: bool, tree: &Arc<Tree>) -> Arc<Allocator> {
    let config = AllocConfig { free_blocks: free, discard, ..config(START, END) };
    Allocator::new(config, tree.clone(), Arc::new(Trimmer::default())).unwrap()
}

fn play(ops: Vec<Op>, discard: bool) {
    let tree = Arc::new(Tree::default());
    // The last ten blocks and one in the middle are in use all the time.
    tree.apply(&[run(END - 10, 10), run(START + 33, 1)], &[]).unwrap();
    let free: BTreeSet<u64> = (START..END - 10).filter(|block| *block != START + 33).collect();
    let mut allocator = mount(free.len() as u64, discard, &tree);
    let account = SpaceAccount::default();
    let mut model = Model {
        free,
        loose: Vec::new(),
        used: Vec::new(),
        freeing: BTreeMap::new(),
        reserved: Vec::new(),
        seq: 1,
        durable: 0,
    };
    for op in ops {
        match op {
            Op::Reserve(blocks) => match allocator.reserve(blocks) {
                Ok(reservation) => {
                    assert!(blocks <= model.available());
                    model.reserved.push(reservation.blocks());
                    account.put(reservation);
                }
                Err(error) => {
                    assert!(blocks > model.available() && error.kind() == ErrorKind::NoSpace, "{error}");
                }
            },
            Op::Release(at) => {
                if let Some(blocks) = pick(&mut model.reserved, &at) {
                    drop(account.take(&allocator, blocks));
                }
            }
            Op::Allocate { reserved: true, goal, want, min } => {
                let Some(blocks) = model.reserved.pop() else { continue };
                let mut reservation = account.take(&allocator, blocks);
                let got = allocator.allocate(Funding::Reserved(&mut reservation), BlockNo(goal), want, min);
                let left = reservation.blocks();
                account.put(reservation);
                match got {
                    Ok(runs) => {
                        let total: u64 = runs.iter().map(|run| run.blocks).sum();
                        assert!((min..=want).contains(&total) && left == blocks - total);
                        model.take(&runs);
                    }
                    Err(error) => {
                        assert!(min > blocks && error.kind() == ErrorKind::Invalid, "reserved, but {error}");
                        assert_eq!(left, blocks);
                    }
                }
                model.reserved.push(left);
            }
            Op::Allocate { reserved: false, goal, want, min } => {
                match allocator.allocate(Funding::Unreserved, BlockNo(goal), want, min) {
                    Ok(runs) => {
                        let total: u64 = runs.iter().map(|run| run.blocks).sum();
                        assert!((min..=want).contains(&total) && total <= model.available());
                        model.take(&runs);
                    }
                    Err(error) => {
                        assert!(min > model.available() && error.kind() == ErrorKind::NoSpace, "{error}");
                    }
                }
            }
            Op::Contiguous { blocks, align } => match allocator.contiguous(blocks, 1 << align) {
                Ok(run) => {
                    assert!(run.blocks == blocks && run.start.0 % (1 << align) == 0);
                    assert!(blocks <= model.available());
                    model.take(&[run]);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    let fits = |start: &u64| {
                        start.is_multiple_of(1 << align)
                            // A run does not cross the border of two groups.
                            && start / GROUP == (start + blocks - 1) / GROUP
                            && (0..blocks).all(|i| model.free.contains(&(start + i)))
                    };
                    assert!(blocks > model.available() || !model.free.iter().any(fits));
                }
            },
            Op::Commit(at) => {
                if let Some(run) = pick(&mut model.loose, &at) {
                    tree.apply(&[run], &[]).unwrap();
                    model.used.push(run);
                }
            }
            Op::Cancel(at, keep) => {
                if let Some(run) = pick(&mut model.loose, &at) {
                    let reservation = allocator.cancel(&[run]).unwrap();
                    assert_eq!(reservation.blocks(), run.blocks);
                    model.free.extend(run.start.0..run.end().0);
                    if keep {
                        model.reserved.push(reservation.blocks());
                        account.put(reservation);
                    }
                }
            }
            Op::Free(at, part, ahead) => {
                let Some(whole) = pick(&mut model.used, &at) else { continue };
                let freed = Run::new(whole.start, 1 + part.index(whole.blocks as usize) as u64);
                if freed.blocks < whole.blocks {
                    model.used.push(Run::new(freed.end(), whole.blocks - freed.blocks));
                }
                model.seq += 1;
                let seq = model.seq + ahead;
                allocator.ensure_loaded(&[freed]).unwrap();
                tree.apply(&[], &[freed]).unwrap();
                allocator.freed(Seq(seq), &[freed]).unwrap();
                model.freeing.extend((freed.start.0..freed.end().0).map(|block| (block, seq)));
            }
            Op::FreeTwice(at) => {
                if !model.freeing.is_empty() {
                    let block = *model.freeing.keys().nth(at.index(model.freeing.len())).unwrap();
                    assert_eq!(
                        allocator.freed(Seq(1), &[run(block, 1)]).unwrap_err().kind(),
                        ErrorKind::Corrupt
                    );
                    assert!(allocator.cancel(&[run(block, 1)]).is_err());
                }
            }
            Op::FreeFree(block) => {
                if model.free.contains(&block) {
                    allocator.ensure_loaded(&[run(block, 1)]).unwrap();
                    assert!(allocator.freed(Seq(1), &[run(block, 1)]).is_err());
                    assert!(allocator.cancel(&[run(block, 1)]).is_err());
                }
            }
            Op::Durable(behind) => {
                model.durable = model.durable.max(model.seq.saturating_sub(behind));
                allocator.durable(Seq(model.durable));
                while allocator.discard_next() {}
                model.settle();
            }
            Op::Remount => {
                // What was reserved or allocated without a record is gone, what waited is free.
                for run in model.loose.drain(..) {
                    model.free.extend(run.start.0..run.end().0);
                }
                model.free.extend(std::mem::take(&mut model.freeing).into_keys());
                model.reserved.clear();
                drop(account.take(&allocator, account.due()));
                allocator = mount(model.free.len() as u64, discard, &tree);
            }
        }
        assert_eq!(allocator.free_blocks(), model.available());
        assert_eq!(allocator.reserved_blocks(), model.promised());
        assert_eq!(account.due(), model.promised());
        assert_eq!(allocator.deferred_blocks(), model.freeing.len() as u64);
    }
    allocator.check().unwrap();
    drop(account.take(&allocator, account.due()));
    for block in START..END {
        let (busy, freeing) = allocator.busy_blocks(block / 4096).unwrap();
        assert_eq!(!busy.is_used((block % 4096) as u32), model.free.contains(&block));
        assert_eq!(freeing.is_used((block % 4096) as u32), model.freeing.contains_key(&block));
    }
    for outside in [START - 1, END] {
        assert!(allocator.busy_blocks(outside / 4096).unwrap().0.is_used((outside % 4096) as u32));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn follows_a_set_of_blocks(ops in prop::collection::vec(op(), 0..120), discard: bool) {
        play(ops, discard);
    }
}
