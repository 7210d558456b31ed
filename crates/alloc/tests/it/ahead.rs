//! Blocks zeroed ahead: handed out once, only behind a flush, and free space to everyone else.

use crate::common::{empty, run};
use quire_alloc::{Allocator, Funding, Run};
use quire_base::{BlockNo, ErrorKind, InodeNo};
use std::collections::BTreeSet;

const BLOCKS: u64 = 20_000;

/// A request of one block, with its own promise.
fn take(allocator: &Allocator, inode: u64, grows: bool, goal: u64, flushed: u64) -> Option<Run> {
    let mut promise = allocator.reserve(1).unwrap();
    let run = allocator.take_zeroed(&mut promise, (InodeNo(inode), grows), BlockNo(goal), 1, flushed);
    assert_eq!(promise.blocks(), if run.is_some() { 0 } else { 1 });
    run
}

/// Fills the reserve; the zeros are written at `mark`.
fn fill(allocator: &Allocator, mark: u64) -> u64 {
    let mut blocks = 0;
    while let Some(run) = allocator.begin_zeroing() {
        blocks += run.blocks;
        allocator.end_zeroing(run, Some(mark)).unwrap();
    }
    blocks
}

#[test]
fn nothing_is_zeroed_without_demand() {
    let (allocator, _) = empty(0, BLOCKS);
    assert!(!allocator.wants_zeroes() && allocator.begin_zeroing().is_none());
    assert_eq!(take(&allocator, 1, false, 0, 0), None);
    assert!(allocator.wants_zeroes());
    assert_eq!(fill(&allocator, 5), 64);
    assert!(!allocator.wants_zeroes());
}

#[test]
fn zeros_count_only_when_flushed_and_blocks_are_handed_out_once() {
    let (allocator, _) = empty(0, BLOCKS);
    take(&allocator, 1, false, 0, 0);
    let reserve = fill(&allocator, 5);
    assert_eq!(take(&allocator, 1, false, 0, 4), None);
    let mut seen = BTreeSet::new();
    for n in 0..reserve {
        let run = take(&allocator, 1, n % 2 == 0, 7 * n, 5).or_else(|| {
            // The rest lies ahead of the file that grows.
            allocator.unclaim_zeroed(InodeNo(1));
            take(&allocator, 1, false, 0, 5)
        });
        let run = run.expect("there is one left");
        assert!(seen.insert(run.start.0) && run.blocks == 1, "{run:?} twice");
    }
    assert_eq!(take(&allocator, 1, false, 0, 5), None);
    assert_eq!(allocator.free_blocks(), BLOCKS - reserve);
    let taken: Vec<Run> = seen.iter().map(|&block| run(block, 1)).collect();
    drop(allocator.cancel(&taken).unwrap());
    assert_eq!(allocator.free_blocks(), BLOCKS);
    allocator.check().unwrap();
}

#[test]
fn the_reserve_gives_way() {
    let (allocator, _) = empty(0, BLOCKS);
    take(&allocator, 1, false, 0, 0);
    let reserve = fill(&allocator, 1);
    assert!(reserve > 0 && allocator.free_blocks() == BLOCKS);
    take(&allocator, 3, true, 0, 1).unwrap();
    let all = allocator.reserve(BLOCKS - 1).unwrap();
    assert_eq!((allocator.free_blocks(), allocator.stats().zeroed_blocks), (0, 0));
    assert_eq!(allocator.reserve(1).unwrap_err().kind(), ErrorKind::NoSpace);
    drop(all);
    allocator.check().unwrap();
    let runs = allocator.allocate(Funding::Unreserved, BlockNo(0), BLOCKS - 1, BLOCKS - 1).unwrap();
    assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), BLOCKS - 1);
    allocator.check().unwrap();
}

#[test]
fn a_long_run_is_found_where_the_reserve_was() {
    let (allocator, _) = empty(0, BLOCKS);
    take(&allocator, 1, false, 10_000, 0);
    fill(&allocator, 1);
    assert_eq!(allocator.contiguous(BLOCKS, 1).unwrap(), run(0, BLOCKS));
}

#[test]
fn blocks_that_could_not_be_zeroed_are_free() {
    let (allocator, _) = empty(0, BLOCKS);
    take(&allocator, 1, false, 0, 0);
    let run = allocator.begin_zeroing().unwrap();
    assert_eq!((allocator.zeroing_blocks(), allocator.free_blocks()), (run.blocks, BLOCKS));
    allocator.end_zeroing(run, None).unwrap();
    assert_eq!((allocator.zeroing_blocks(), allocator.free_blocks()), (0, BLOCKS));
    assert_eq!(take(&allocator, 1, false, 0, u64::MAX), None);
    allocator.check().unwrap();
}

#[test]
fn files_that_grow_have_runs_of_their_own() {
    let (allocator, _) = empty(0, BLOCKS);
    let mut ends = [0, 0, 0];
    let mut jumps = 0;
    for round in 0..200u64 {
        for (inode, end) in ends.iter_mut().enumerate() {
            fill(&allocator, round);
            if let Some(run) = take(&allocator, inode as u64, true, *end, round) {
                jumps += u32::from(run.start.0 != *end);
                *end = run.end().0;
            }
        }
    }
    assert!(jumps < 100, "{jumps} jumps in 600 blocks");
    // A file that was removed leaves its run to others.
    (0..3).for_each(|inode| allocator.unclaim_zeroed(InodeNo(inode)));
    let left = allocator.stats().zeroed_blocks;
    let others = (0..left).filter(|_| take(&allocator, 9, false, 0, u64::MAX).is_some()).count();
    assert_eq!(others as u64, left);
}
