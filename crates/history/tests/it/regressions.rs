//! What the checker has found in the engine, each with its story.

use history::campaign::Campaign;
use history::generate::{BLOCK, Plan};
use history::operation::Operation;
use history::simulated::check_plan;
use quire::inodes::IoFlags;
use quire_base::simulation::mistakes;

fn clean(plan: &Plan, runs: u64) {
    let outcome = mistakes::with(None, || Campaign::first(runs).run(|seed| check_plan(seed, plan, 4)));
    assert_eq!(outcome.found, None);
    assert_eq!(outcome.tally.undecided, 0);
}

fn sizes(count: usize) -> Vec<Operation> {
    vec![Operation::Size; count]
}

/// A log reader polled `stat` while an append of more than a batch was under way, and saw the file grow
/// twice: the size was published with each piece. A write is there entirely or not at all, its size included.
#[test]
fn a_long_append_moves_the_size_once() {
    let append = Operation::Append { len: 600 * BLOCK + 3, flags: IoFlags::APPEND };
    // Spread over the time that the append takes.
    let spread: Vec<_> =
        (0..6).flat_map(|_| [Operation::Size, Operation::Size, Operation::Pressure]).collect();
    let plan = Plan {
        setup: vec![Operation::Write { at: 0, len: 100, flags: IoFlags::empty() }],
        threads: vec![vec![append], spread.clone(), spread],
        end: vec![Operation::Size],
    };
    clean(&plan, 15);
}

/// The same of a direct write whose blocks lie apart: the size was published with each part of it.
#[test]
fn a_direct_write_to_scattered_blocks_moves_the_size_once() {
    let mut setup = Vec::new();
    for block in (0..24).step_by(2) {
        // Homes beyond the end of file, every other block.
        setup.push(Operation::Allocate {
            mode: history::operation::Mode::KeepSize,
            at: block * BLOCK,
            len: BLOCK,
        });
    }
    let write = Operation::Write { at: 0, len: 24 * BLOCK, flags: IoFlags::DIRECT };
    let all = Operation::Read { at: 0, len: 24 * BLOCK, direct: true };
    let plan = Plan {
        setup,
        threads: vec![vec![write], sizes(8), vec![Operation::Size, all.clone(), Operation::Size]],
        end: vec![all],
    };
    clean(&plan, 60);
}

/// The size that callers see while a truncate is under way is the old one until the new one stays: once a
/// reader found the file cut off, `stat` may not show it whole again.
#[test]
fn a_truncate_moves_the_size_once() {
    let plan = Plan {
        setup: vec![Operation::Write { at: 0, len: 20 * BLOCK, flags: IoFlags::empty() }],
        threads: vec![
            vec![Operation::Truncate { size: 10 * BLOCK + 5 }, Operation::Truncate { size: 30 * BLOCK }],
            vec![Operation::Read { at: 15 * BLOCK, len: 1, direct: false }, Operation::Size],
            vec![Operation::Size, Operation::Read { at: 15 * BLOCK, len: 1, direct: false }],
        ],
        end: vec![Operation::Size],
    };
    clean(&plan, 60);
}
