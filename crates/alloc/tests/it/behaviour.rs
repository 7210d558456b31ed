//! Placement, limits and the order of discards, one behaviour a test.

use crate::common::{Tree, Trimmer, config, empty, run};
use quire_alloc::{AllocConfig, Allocator, Funding, RegionSource, Run};
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, Error, ErrorKind, InodeNo, Result, Seq, patience};
use quire_format::region::RegionMap;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::Instant;

const GROUP: u64 = 64 * 4096;

fn allocate(allocator: &Allocator, goal: u64, want: u64, min: u64) -> Result<Vec<Run>> {
    allocator.allocate(Funding::Unreserved, BlockNo(goal), want, min)
}

/// Every second block of 1000..3000 is used, all else too.
fn comb() -> Arc<Allocator> {
    let tree = Arc::new(Tree::default());
    let used: Vec<Run> = (1000..3000).step_by(2).map(|block| run(block, 1)).collect();
    tree.apply(&used, &[]).unwrap();
    let config = AllocConfig { free_blocks: 1000, ..config(1000, 3000) };
    Allocator::new(config, tree, Arc::new(Trimmer::default())).unwrap()
}

#[test]
fn sequential_appends_stay_in_one_run() {
    let (allocator, _) = empty(100, 3 * GROUP);
    let mut end = allocator.goal_for_inode(InodeNo(5)).0;
    let first = end;
    for blocks in [1, 7, 300, 4096, 10_000] {
        assert_eq!(allocate(&allocator, end, blocks, 1).unwrap(), [run(end, blocks)]);
        end += blocks;
    }
    assert_eq!(allocator.stats().at_goal, 5);
    // Someone else's blocks are in the way: the next free run behind.
    let blocker = allocate(&allocator, end, 10, 10).unwrap();
    assert_eq!(allocate(&allocator, end, 5, 5).unwrap(), [run(blocker[0].end().0, 5)]);
    assert!(first >= 100);
}

#[test]
fn a_whole_run_elsewhere_is_better_than_a_short_one_here() {
    let (allocator, _) = empty(0, GROUP);
    let parts = allocate(&allocator, 0, 1000, 1000).unwrap();
    assert_eq!(parts, [run(0, 1000)]);
    drop(allocator.cancel(&[run(100, 10)]).unwrap());
    assert_eq!(allocate(&allocator, 100, 100, 1).unwrap(), [run(1000, 100)]);
    // Half of it right here is better.
    assert_eq!(allocate(&allocator, 100, 20, 1).unwrap(), [run(100, 10)]);
}

#[test]
fn a_fragmented_volume_gives_several_runs_only_for_the_minimum() {
    let allocator = comb();
    assert_eq!(allocate(&allocator, 1000, 100, 1).unwrap().len(), 1);
    let runs = allocate(&allocator, 1000, 100, 50).unwrap();
    assert_eq!(runs.len(), 50);
    let distinct: BTreeSet<u64> = runs.iter().map(|run| run.start.0).collect();
    assert!(distinct.len() == 50 && distinct.iter().all(|block| block % 2 == 1));
    assert_eq!(allocator.contiguous(2, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(allocator.stats().shortened, 1);
    allocator.check().unwrap();
}

#[test]
fn a_volume_can_be_filled_to_the_last_block() {
    let (allocator, tree) = empty(50, GROUP + 1000);
    let mut runs = Vec::new();
    while let Ok(more) = allocate(&allocator, 60, 30_000, 1) {
        runs.extend(more);
    }
    assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), GROUP + 950);
    assert_eq!(allocator.free_blocks(), 0);
    let error = allocator.reserve(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    tree.apply(&runs, &[]).unwrap();

    tree.apply(&[], &[run(500, 8)]).unwrap();
    allocator.freed(Seq(9), &[run(500, 8)]).unwrap();
    let error = allocator.reserve(8).unwrap_err();
    assert!(error.to_string().contains("8 freed but waiting for the journal"), "{error}");
    allocator.durable(Seq(8));
    assert!(allocator.reserve(1).is_err());
    allocator.durable(Seq(9));
    assert_eq!(allocate(&allocator, 60, 8, 8).unwrap(), [run(500, 8)]);
    allocator.check().unwrap();
}

/// A transaction can be durable before it is applied; its frees must not wait for the next force.
#[test]
fn frees_reported_after_they_are_durable_are_found_when_space_is_short() {
    let (allocator, _) = empty(0, 100);
    allocate(&allocator, 0, 100, 100).unwrap();
    allocator.durable(Seq(50));
    allocator.freed(Seq(40), &[run(0, 10)]).unwrap();
    assert_eq!(allocate(&allocator, 0, 10, 10).unwrap(), [run(0, 10)]);
}

#[test]
fn reserved_space_cannot_be_taken_by_others() {
    let (allocator, _) = empty(0, 100);
    let mut mine = allocator.reserve(60).unwrap();
    assert_eq!(allocate(&allocator, 0, 100, 1).unwrap(), [run(0, 40)]);
    assert!(allocate(&allocator, 0, 1, 1).is_err());
    let mut part = mine.split(25);
    let got = allocator.allocate(Funding::Reserved(&mut part), BlockNo(0), 100, 25).unwrap();
    assert_eq!((got, part.blocks(), mine.blocks()), (vec![run(40, 25)], 0, 35));
    // A failed write keeps its place in the queue.
    mine.merge(allocator.cancel(&[run(40, 25)]).unwrap());
    assert_eq!((mine.blocks(), allocator.free_blocks()), (60, 0));
    drop(mine);
    assert_eq!((allocator.reserved_blocks(), allocator.free_blocks()), (0, 60));
}

#[test]
fn a_double_free_is_an_error_and_the_block_is_given_to_nobody() {
    let (allocator, _) = empty(0, 100);
    allocate(&allocator, 0, 20, 20).unwrap();
    allocator.freed(Seq(5), &[run(4, 4)]).unwrap();
    for again in [run(4, 4), run(7, 2), run(0, 5), run(30, 1)] {
        let error = allocator.freed(Seq(6), &[again]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    // Runs without a fault beside it are freed as asked.
    assert!(allocator.freed(Seq(6), &[run(4, 1), run(10, 2)]).is_err());
    allocator.durable(Seq(6));
    assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (86, 0));
    assert!(allocator.freed(Seq(7), &[run(99, 2)]).is_err());
    assert!(allocator.ensure_loaded(&[run(u64::MAX - 1, 5)]).is_err());
    allocator.check().unwrap();
}

#[test]
fn frees_need_their_group_loaded_before() {
    let (allocator, _) = empty(0, 100);
    assert!(allocator.freed(Seq(1), &[run(0, 1)]).is_err());
}

#[test]
fn chunks_are_contiguous_and_aligned_and_apart_from_what_is_used() {
    let tree = Arc::new(Tree::default());
    tree.apply(&[run(1024, 5000)], &[]).unwrap();
    let config = AllocConfig { free_blocks: 2 * GROUP - 100 - 5000, ..config(100, 2 * GROUP) };
    let allocator = Allocator::new(config, tree, Arc::new(Trimmer::default())).unwrap();
    assert_eq!(allocator.contiguous(1024, 1024).unwrap(), run(6144, 1024));
    assert_eq!(allocator.contiguous(GROUP, GROUP).unwrap(), run(GROUP, GROUP));
    assert_eq!(allocator.contiguous(GROUP, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(allocator.contiguous(1, 3).unwrap_err().kind(), ErrorKind::Invalid);
    allocator.check().unwrap();
}

#[test]
fn sixteen_tebibytes_cost_nothing_until_used() {
    let blocks = 1u64 << 32;
    let start = Instant::now();
    let (allocator, _) = empty(1 << 16, blocks);
    let made = start.elapsed();
    assert!(made.as_millis() < 100, "{made:?}");
    let stats = allocator.stats();
    assert_eq!((stats.groups, stats.groups_loaded, stats.free_blocks), (16384, 0, blocks - (1 << 16)));
    allocate(&allocator, blocks - 10, 10, 10).unwrap();
    assert_eq!(allocator.stats().groups_loaded, 1);
    let homes: BTreeSet<u64> =
        (0..100u64).map(|n| allocator.goal_for_inode(InodeNo(n * 1024)).0 / GROUP).collect();
    assert!(homes.len() > 90, "inodes far apart are spread: {}", homes.len());
}

#[test]
fn contradictions_are_refused() {
    let new = |config| Allocator::new(config, Arc::new(Tree::default()), Arc::new(Trimmer::default()));
    assert!(new(config(5, 5)).is_err());
    assert!(new(config(5, u64::MAX)).is_err());
    assert!(new(AllocConfig { free_blocks: 96, ..config(5, 100) }).is_err());
    let (allocator, _) = empty(0, 100);
    assert!(allocate(&allocator, 0, 5, 0).is_err());
    assert!(allocate(&allocator, 0, 5, 6).is_err());
}

/// A free count on disk that is too high must end in an error, not in an endless search or a lost
/// reservation.
#[test]
fn a_wrong_free_count_is_found() {
    let tree = Arc::new(Tree::default());
    tree.apply(&[run(0, 90)], &[]).unwrap();
    let config = AllocConfig { free_blocks: 20, ..config(0, 100) };
    let allocator = Allocator::new(config, tree, Arc::new(Trimmer::default())).unwrap();
    let mut reservation = allocator.reserve(15).unwrap();
    let error = allocator.allocate(Funding::Reserved(&mut reservation), BlockNo(0), 15, 15).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(reservation.blocks(), 15);
    drop(reservation);
    assert_eq!((allocator.free_blocks(), allocator.reserved_blocks()), (20, 0));
    assert_eq!(allocate(&allocator, 0, 10, 10).unwrap(), [run(90, 10)]);
    assert!(allocator.check().is_err());
}

struct Broken;

impl RegionSource for Broken {
    fn load(&self, _: u64) -> Result<RegionMap> {
        Err(Error::corrupt("bad region"))
    }
}

#[test]
fn a_group_that_cannot_be_loaded_gives_its_error_and_costs_no_space() {
    let allocator = Allocator::new(config(0, 100), Arc::new(Broken), Arc::new(Trimmer::default())).unwrap();
    assert_eq!(allocate(&allocator, 0, 1, 1).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(allocator.contiguous(4, 1).is_err());
    assert!(allocator.ensure_loaded(&[run(0, 1)]).is_err());
    assert_eq!((allocator.free_blocks(), allocator.reserved_blocks()), (100, 0));
}

#[test]
fn discards_are_merged_and_nothing_is_given_out_meanwhile() {
    let slot: Arc<OnceLock<Arc<Allocator>>> = Arc::new(OnceLock::new());
    let seen = slot.clone();
    let trimmer = Arc::new(Trimmer {
        during: Some(Box::new(move |run| {
            let allocator = seen.get().unwrap();
            assert!(allocator.reserve(1).is_err(), "{run:?} was promised while its discard was under way");
            let (busy, _) = allocator.busy_blocks(0).unwrap();
            assert!((run.start.0..run.end().0).all(|block| busy.is_used(block as u32)));
        })),
        ..Trimmer::default()
    });
    let config = AllocConfig { discard: true, ..config(0, 100) };
    let allocator = Allocator::new(config, Arc::new(Tree::default()), trimmer.clone()).unwrap();
    let _ = slot.set(allocator.clone());
    allocate(&allocator, 0, 100, 100).unwrap();
    for (seq, freed) in [(3, run(10, 10)), (1, run(0, 10)), (2, run(20, 10))] {
        allocator.freed(Seq(seq), &[freed]).unwrap();
    }
    assert!(allocator.reserve(1).is_err());
    allocator.durable(Seq(3));
    assert!(trimmer.runs.lock().unwrap().is_empty(), "a force does not discard");
    assert!(allocator.has_discards() && allocator.discard_next() && !allocator.discard_next());
    assert_eq!(*trimmer.runs.lock().unwrap(), [run(0, 30)]);
    assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (30, 0));
    assert_eq!(allocator.stats().discarded_blocks, 30);
}

#[test]
fn a_failed_discard_still_frees() {
    let config = AllocConfig { discard: true, ..config(0, 100) };
    // Of a device that does not discard at all, a trim told of all free blocks.
    for (kind, failures) in [(ErrorKind::Io, 1), (ErrorKind::Unsupported, 0)] {
        let trimmer = Trimmer { fail: Some(kind), ..Trimmer::default() };
        let allocator = Allocator::new(config.clone(), Arc::new(Tree::default()), Arc::new(trimmer)).unwrap();
        allocate(&allocator, 0, 100, 100).unwrap();
        allocator.freed(Seq(3), &[run(10, 10)]).unwrap();
        allocator.durable(Seq(3));
        assert!(allocator.discard_next());
        assert_eq!((allocator.free_blocks(), allocator.stats().discard_failures), (10, failures));
        // A trim told of blocks that the device had refused to discard.
        assert_eq!(allocator.discard_free(run(10, 10)), Some(0));
        assert_eq!(allocator.stats().discarded_blocks, 0);
    }
}

/// A thread that takes a mount's requests waited for homes that were being written, with a file's segments
/// locked, to get blocks whose freeing had become durable.
#[test]
fn a_thread_that_may_not_wait_leaves_due_frees_to_others() {
    let trimmer = Arc::new(Trimmer::default());
    let allocator = Allocator::new(config(0, 100), Arc::new(Tree::default()), trimmer.clone()).unwrap();
    allocate(&allocator, 0, 100, 100).unwrap();
    allocator.durable(Seq(3));
    allocator.freed(Seq(3), &[run(10, 10)]).unwrap();
    let refused = patience::at_once(|| allocator.reserve(1).map(drop)).unwrap_err();
    assert_eq!((refused.kind(), trimmer.waits.load(Ordering::Relaxed)), (ErrorKind::NoSpace, 0));
    drop(allocator.reserve(1).unwrap());
    assert_eq!(trimmer.waits.load(Ordering::Relaxed), 1);
}

/// Freed blocks were kept back until their discard: a writer got ENOSPC, and a volume that was written and
/// freed all the time went over its whole device instead of using the same blocks again.
#[test]
fn freed_blocks_are_free_before_their_discard_and_what_is_used_again_is_not_discarded() {
    let config = AllocConfig { discard: true, ..config(0, 100) };
    let trimmer = Arc::new(Trimmer::default());
    let allocator = Allocator::new(config, Arc::new(Tree::default()), trimmer.clone()).unwrap();
    allocate(&allocator, 0, 100, 100).unwrap();
    allocator.freed(Seq(3), &[run(10, 10), run(50, 5)]).unwrap();
    allocator.durable(Seq(3));
    assert_eq!(allocator.free_blocks(), 15);
    assert_eq!(allocate(&allocator, 12, 4, 4).unwrap(), [run(12, 4)]);
    while allocator.discard_next() {}
    assert_eq!(*trimmer.runs.lock().unwrap(), [run(10, 2), run(16, 4), run(50, 5)]);
    assert_eq!((allocator.free_blocks(), allocator.stats().discards_skipped), (11, 0));
    allocator.check().unwrap();
}

/// A discard pays for its blocks as any allocation does: those who were promised space find it.
#[test]
fn what_is_short_of_space_goes_before_discards() {
    let config = AllocConfig { discard: true, ..config(0, 100) };
    let trimmer = Arc::new(Trimmer::default());
    let allocator = Allocator::new(config, Arc::new(Tree::default()), trimmer.clone()).unwrap();
    allocate(&allocator, 0, 100, 100).unwrap();
    allocator.freed(Seq(3), &[run(10, 10), run(50, 5)]).unwrap();
    allocator.durable(Seq(3));
    let reservation = allocator.reserve(15).unwrap();
    while allocator.discard_next() {}
    assert!(trimmer.runs.lock().unwrap().is_empty());
    drop(reservation);
    assert_eq!((allocator.free_blocks(), allocator.stats().discards_skipped), (15, 2));
    allocator.await_frees();
}

#[test]
fn a_discard_is_bounded() {
    use quire_alloc::discarding::RUN_BLOCKS_MAX;
    let blocks = 2 * RUN_BLOCKS_MAX + 100;
    let config = AllocConfig { discard: true, ..config(0, blocks) };
    let trimmer = Arc::new(Trimmer::default());
    let allocator = Allocator::new(config, Arc::new(Tree::default()), trimmer.clone()).unwrap();
    allocate(&allocator, 0, blocks, blocks).unwrap();
    allocator.freed(Seq(1), &[run(0, blocks)]).unwrap();
    allocator.durable(Seq(1));
    while allocator.discard_next() {}
    let lengths: Vec<u64> = trimmer.runs.lock().unwrap().iter().map(|run| run.blocks).collect();
    assert_eq!(lengths, [RUN_BLOCKS_MAX, RUN_BLOCKS_MAX, 100]);
    assert_eq!((allocator.free_blocks(), allocator.deferred_blocks()), (blocks, 0));
}

/// Two loaders: the slow one reads regions that the quick one's allocations have changed since, and must drop
/// them.
#[test]
fn a_slow_loader_does_not_bring_old_regions_back() {
    struct Slow {
        tree: Tree,
        calls: AtomicU64,
        pass: Barrier,
    }
    impl RegionSource for Slow {
        fn load(&self, region: u64) -> Result<RegionMap> {
            let map = self.tree.load(region);
            if region == 0 && self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
                self.pass.wait();
                self.pass.wait();
            }
            map
        }
    }
    let source = Arc::new(Slow { tree: Tree::default(), calls: AtomicU64::new(0), pass: Barrier::new(2) });
    let allocator = Allocator::new(config(0, 1000), source.clone(), Arc::new(Trimmer::default())).unwrap();
    let slow = {
        let allocator = allocator.clone();
        thread::spawn(move || allocate(&allocator, 0, 10, 10).unwrap())
    };
    source.pass.wait();
    let mine = allocate(&allocator, 0, 10, 10).unwrap();
    source.tree.apply(&mine, &[]).unwrap();
    source.pass.wait();
    assert_eq!((mine, slow.join().unwrap()), (vec![run(0, 10)], vec![run(10, 10)]));
    assert_eq!(allocator.stats().groups_loaded, 1);
}

#[test]
fn describes_itself() {
    let (allocator, _) = empty(0, GROUP + 5);
    allocate(&allocator, 0, 10, 10).unwrap();
    assert_eq!(allocator.describe(), "group 0: 262134 free, runs to 262134, next at 10\n");
    assert!(allocator.stats().to_string().contains("groups: 2, 1 loaded"));
}

/// A data space that grows within a group, to its end and over several groups: what is new is free once, and
/// what was used stays used, whether the group of the old end was loaded or not.
#[test]
fn the_data_space_grows() {
    const GROUP: u64 = 64 * 4096;
    for is_loaded in [false, true] {
        let (allocator, tree) = empty(16, 5000);
        let mut used = Vec::new();
        if is_loaded {
            used = allocator.allocate(Funding::Unreserved, BlockNo(16), 100, 100).unwrap();
            tree.apply(&used, &[]).unwrap();
        }
        let taken: u64 = used.iter().map(|run| run.blocks).sum();
        for end in [5000, 5001, 9000, GROUP, GROUP + 7, 9 * GROUP + 1] {
            allocator.grow(BlockNo(end)).unwrap();
            assert_eq!(allocator.free_blocks(), end - 16 - taken);
            allocator.check().unwrap();
        }
        assert!(allocator.grow(BlockNo(8 * GROUP)).is_err(), "it gets no smaller");
        let all = allocator.free_blocks();
        let runs = allocator.allocate(Funding::Unreserved, BlockNo(0), all, all).unwrap();
        assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), all);
        assert!(allocator.reserve(1).is_err());
        allocator.check().unwrap();
    }
}
