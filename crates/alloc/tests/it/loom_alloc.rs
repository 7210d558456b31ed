//! Every interleaving (up to three preemptions, or as a model says) of reserving, allocating, freeing and
//! becoming durable, on volumes of a few blocks.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p quire-alloc --test it loom_alloc --release`

use crate::common::{Tree, Trimmer, config, empty, run};
use quire_alloc::{AllocConfig, Allocator, Discard, Funding, RegionSource, SpaceAccount};
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, Result, Seq, shard};
use quire_format::region::RegionMap;

/// The last block of a group and the first two of the next: the walk over groups counts too.
const START: u64 = 64 * 4096 - 1;

fn check(model: impl Fn() + Send + Sync + 'static) {
    check_with(3, model);
}

fn check_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn take(allocator: &Allocator, blocks: u64) -> Result<Vec<quire_alloc::Run>> {
    allocator.allocate(Funding::Unreserved, BlockNo(START), blocks, blocks)
}

fn everything_back(allocator: &Allocator, blocks: u64) {
    assert_eq!(allocator.deferred_blocks(), 0);
    assert_eq!((allocator.free_blocks(), allocator.reserved_blocks()), (blocks, 0));
    allocator.check().unwrap();
}

/// What fits is granted to both, on whichever shard the credits lie, and what does not fit is not.
#[test]
fn reservations_neither_overlap_nor_refuse_what_fits() {
    check(|| {
        let (allocator, _) = empty(START, START + 3);
        let other = allocator.clone();
        let thread = thread::spawn(move || {
            shard::set(1);
            let one = other.reserve(1).expect("two and one fit three");
            shard::set(0);
            drop(one);
        });
        shard::set(0);
        let two = allocator.reserve(2).expect("two and one fit three");
        assert!(allocator.reserve(2).is_err());
        drop(two);
        thread.join().unwrap();
        everything_back(&allocator, 3);
    });
}

/// One credit is always there, though it lies now on one shard, now on the other: a thread that looks must
/// find it.
#[test]
fn credits_that_move_are_not_overlooked() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        let mine = allocator.reserve(1).unwrap();
        let there = allocator.reserve(1).unwrap();
        shard::set(1);
        drop(there);
        let other = allocator.clone();
        let (account, theirs) = (Arc::new(SpaceAccount::default()), Arc::new(SpaceAccount::default()));
        account.put(mine);
        let mine = theirs.clone();
        let thread = thread::spawn(move || {
            shard::set(0);
            drop(account.take(&other, 1));
            shard::set(1);
            theirs.put(other.reserve(1).expect("of two credits, others hold one at most"));
        });
        shard::set(0);
        mine.put(allocator.reserve(1).expect("of two credits, others hold one at most"));
        thread.join().unwrap();
        assert_eq!(allocator.free_blocks(), 0);
        drop(mine.take(&allocator, 2));
        everything_back(&allocator, 2);
    });
}

/// An account is used by threads that put, take, borrow and repay at once: nothing is lost and nothing comes
/// from nowhere.
#[test]
fn accounts_keep_what_was_put() {
    check(|| {
        let (allocator, _) = empty(START, START + 3);
        let account = Arc::new(SpaceAccount::default());
        account.put(allocator.reserve(2).unwrap());
        let (other, theirs) = (allocator.clone(), account.clone());
        let thread = thread::spawn(move || {
            let mut borrowed = theirs.borrow(&other, 2);
            theirs.repay(&mut borrowed);
        });
        let taken = account.take(&allocator, 1);
        assert!(taken.blocks() <= 1);
        drop(taken);
        account.put(allocator.reserve(1).unwrap());
        thread.join().unwrap();
        assert_eq!((account.due(), account.owed()), (2, 0));
        drop(account.take(&allocator, 2));
        everything_back(&allocator, 3);
    });
}

/// A thread that got a reservation while frees become durable finds the blocks.
#[test]
fn a_reservation_granted_by_a_free_finds_its_block() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        take(&allocator, 2).unwrap();
        allocator.freed(Seq(5), &[run(START + 1, 1)]).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || other.durable(Seq(5)));
        let got = allocator.reserve(1).map(|mut reservation| {
            let runs = allocator.allocate(Funding::Reserved(&mut reservation), BlockNo(START), 1, 1);
            assert_eq!(runs.unwrap(), [run(START + 1, 1)]);
        });
        thread.join().unwrap();
        assert_eq!(allocator.free_blocks(), if got.is_ok() { 0 } else { 1 });
        allocator.check().unwrap();
    });
}

/// Blocks that move behind a searcher's back: one thread gives its block back and takes one of the other
/// group, and again, while one with a reservation walks the groups.
#[test]
fn a_reservation_finds_a_block_while_others_move_theirs() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        take(&allocator, 1).unwrap();
        let mut reservation = allocator.reserve(1).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || {
            let mut at = START;
            for _ in 0..3 {
                let mut mine = other.cancel(&[run(at, 1)]).unwrap();
                let goal = BlockNo(2 * START + 1 - at);
                at = other.allocate(Funding::Reserved(&mut mine), goal, 1, 1).expect("reserved")[0].start.0;
            }
        });
        allocator.allocate(Funding::Reserved(&mut reservation), BlockNo(START), 1, 1).expect("reserved");
        thread.join().unwrap();
        assert_eq!(allocator.free_blocks(), 0);
        allocator.check().unwrap();
    });
}

/// Two forces report at once: what the later one covers is free when both have returned.
#[test]
fn nothing_due_is_left_behind() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        take(&allocator, 2).unwrap();
        allocator.freed(Seq(3), &[run(START, 1)]).unwrap();
        allocator.freed(Seq(7), &[run(START + 1, 1)]).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || other.durable(Seq(3)));
        allocator.durable(Seq(7));
        thread.join().unwrap();
        everything_back(&allocator, 2);
    });
}

/// A free that is reported while the journal becomes durable comes back exactly once.
#[test]
fn a_free_during_a_force_comes_back_once() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        take(&allocator, 2).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || {
            other.freed(Seq(4), &[run(START, 1)]).unwrap();
            other.freed(Seq(5), &[run(START, 1)]).unwrap_err();
        });
        allocator.durable(Seq(3));
        allocator.freed(Seq(2), &[run(START + 1, 1)]).unwrap();
        thread.join().unwrap();
        allocator.durable(Seq(4));
        everything_back(&allocator, 2);
    });
}

/// A force finds a free that it does not cover yet, and a later force covers it. A thread that needs the
/// space behind that one waits for the first, which has the free in hand: it saw none under way, and got
/// `NoSpace`.
#[test]
fn a_free_that_another_force_has_in_hand_is_waited_for() {
    // The first force takes the free out twice, and the other thread looks in between.
    check_with(4, || {
        let (allocator, _) = empty(START, START + 1);
        take(&allocator, 1).unwrap();
        allocator.freed(Seq(3), &[run(START, 1)]).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || other.durable(Seq(2)));
        allocator.durable(Seq(3));
        allocator.await_frees();
        take(&allocator, 1).expect("the free is durable");
        thread.join().unwrap();
        assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (0, 0));
        allocator.check().unwrap();
    });
}

/// A force put a free back on its list that it did not cover, and another one, which had begun after the wait
/// of a thread that needs the space, took it from there. The first was waited for, and the second was not.
#[test]
fn a_free_that_goes_from_force_to_force_is_waited_for() {
    // Both forces stop with the free out, and go on.
    check_with(4, || {
        let (allocator, _) = empty(START, START + 1);
        take(&allocator, 1).unwrap();
        allocator.freed(Seq(3), &[run(START, 1)]).unwrap();
        let forces = [Seq(2), Seq(4)].map(|seq| {
            let other = allocator.clone();
            thread::spawn(move || other.durable(seq))
        });
        allocator.durable(Seq(3));
        allocator.await_frees();
        take(&allocator, 1).expect("the free is durable");
        forces.into_iter().for_each(|force| force.join().unwrap());
        assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (0, 0));
        allocator.check().unwrap();
    });
}

/// Tells a discard of a block that somebody owns.
struct Owned(loom::sync::atomic::AtomicBool);

impl Discard for Owned {
    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<()> {
        for _ in 0..2 {
            assert!(!self.0.load(loom::sync::atomic::Ordering::SeqCst), "a block in use is discarded");
        }
        Ok(())
    }
}

/// A force notes what it freed, one thread discards, and one needs the space: it waits for what is under way,
/// and nobody discards what it was given.
#[test]
fn a_block_is_not_given_out_while_it_is_discarded() {
    check(|| {
        let owned = Arc::new(Owned(loom::sync::atomic::AtomicBool::new(false)));
        let config = AllocConfig { discard: true, ..config(START, START + 1) };
        let allocator = Allocator::new(config, Arc::new(Tree::default()), owned.clone()).unwrap();
        take(&allocator, 1).unwrap();
        allocator.freed(Seq(3), &[run(START, 1)]).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || {
            other.durable(Seq(3));
            other.discard_next();
        });
        allocator.durable(Seq(3));
        let taken = take(&allocator, 1).or_else(|_| {
            allocator.await_frees();
            take(&allocator, 1)
        });
        taken.expect("the free is durable, and nobody has it any more");
        owned.0.store(true, loom::sync::atomic::Ordering::SeqCst);
        thread.join().unwrap();
        assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (0, 0));
        allocator.check().unwrap();
    });
}

/// A volume grows within a group that another thread loads and allocates in: each finds what it was promised,
/// the new block is given out once, and so are the others.
#[test]
fn growing_beside_a_loader() {
    check(|| {
        let (allocator, _) = empty(START, START + 2);
        let other = allocator.clone();
        let thread = thread::spawn(move || take(&other, 2).expect("two are free before, too"));
        allocator.grow(BlockNo(START + 3)).unwrap();
        let mine = take(&allocator, 1).expect("three are free for both");
        let mut all: Vec<_> = thread.join().unwrap().into_iter().chain(mine).collect();
        all.sort_by_key(|run| run.start);
        assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start), "{all:?}");
        assert!(allocator.reserve(1).is_err());
        allocator.check().unwrap();
    });
}

/// Two threads load a group at once and allocate in it: the slower loader must not undo the other's
/// allocation.
#[test]
fn loading_twice_gives_no_block_twice() {
    struct Empty;
    impl RegionSource for Empty {
        fn load(&self, _: u64) -> Result<RegionMap> {
            thread::yield_now();
            Ok(RegionMap::new())
        }
        fn load_range(&self, _: std::ops::Range<u64>, _: &mut dyn FnMut(u64, RegionMap)) -> Result<()> {
            thread::yield_now();
            Ok(())
        }
    }
    check(|| {
        let config = config(START, START + 2);
        let allocator = Allocator::new(config, Arc::new(Empty), Arc::new(Trimmer::default())).unwrap();
        let other = allocator.clone();
        let thread = thread::spawn(move || take(&other, 1).unwrap());
        let mine = take(&allocator, 1).unwrap();
        assert_ne!(mine, thread.join().unwrap());
        allocator.check().unwrap();
    });
}
