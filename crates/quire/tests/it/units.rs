//! Units of untorn files beside changes of the file's shape.

use crate::common::{BLOCK, file, new_volume};
use crate::groups::{after_crash, read, write};
use crate::groups_over_growth::set_unit;
use quire::inodes::{FallocateMode, InodeRef, IoFlags};
use quire::{Commit, ErrorKind, Volume};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// Blocks of a unit.
const UNIT: usize = 4;

/// A volume with a file in units, which holds ones in so many blocks on disk.
fn with_ones(blocks: usize) -> (Arc<SimulatedBackend>, Volume, InodeRef) {
    let (device, volume) = new_volume(8192);
    let a = file(&volume, "a");
    set_unit(&volume, &a, UNIT);
    write(&volume, &a, &vec![1; blocks * BLOCK], 0);
    volume.sync().unwrap();
    (device, volume, a)
}

/// Makes the journal durable, and no data of other files.
fn force_journal(volume: &Volume) {
    let other = file(volume, "other");
    volume.inodes().fsync(&other, false).unwrap();
}

/// An insertion or a collapse inside a unit wrote back what is behind its point, and not the rest of the
/// unit. A crash showed the moved blocks beside blocks without a write that came before: a unit that the
/// cache never held.
#[test]
fn a_shift_inside_a_unit_takes_earlier_writes_along() {
    for mode in [FallocateMode::Insert, FallocateMode::Collapse] {
        let (device, volume, a) = with_ones(12);
        write(&volume, &a, &[3; BLOCK], 6 * BLOCK);
        volume.sync().unwrap();
        write(&volume, &a, &[2; BLOCK], 4 * BLOCK);
        volume.inodes().allocate(&a, mode, 5 * BLOCK as u64, BLOCK as u64).unwrap();
        let live = read(&volume, &a);
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert!(seen[0].as_ref() == Some(&live), "{mode:?}: moved, and without the write before");
    }
}

/// Growth past the unit in which a file ends on disk wrote back the unit of the new end, and not that of the
/// old one: a crash showed the old unit with zeros behind it, and without a write that came before the
/// growth. A file that had grown in memory had the same with each size in between, and in the record of a
/// group, or of a unit behind.
#[test]
fn a_size_beyond_a_unit_brings_the_writes_before_it() {
    const END: u64 = 16 * BLOCK as u64;
    type Grow = fn(&Volume, &InodeRef);
    let ways: [(&str, bool, Grow); 8] = [
        ("a size", false, |volume, a| volume.inodes().set_len(a, END).unwrap()),
        ("a size behind growth", true, |volume, a| volume.inodes().set_len(a, END).unwrap()),
        ("a size within growth", true, |volume, a| volume.inodes().set_len(a, 5 * BLOCK as u64).unwrap()),
        ("an allocation", false, |volume, a| {
            volume.inodes().allocate(a, FallocateMode::Allocate, 4 * BLOCK as u64, END).unwrap();
        }),
        ("zeros", false, |volume, a| {
            let mode = FallocateMode::ZeroRange { keep_size: false };
            volume.inodes().allocate(a, mode, BLOCK as u64 + 5, END).unwrap();
        }),
        ("an insertion", true, |volume, a| {
            volume.inodes().allocate(a, FallocateMode::Insert, 4 * BLOCK as u64, BLOCK as u64).unwrap();
        }),
        ("a group", false, |volume, a| {
            let mut group = volume.inodes().atomic();
            group.write_at(a, &[3; BLOCK], 4 * BLOCK as u64).unwrap();
            group.commit(Commit::Now).unwrap();
        }),
        ("the next unit", false, |volume, a| {
            volume.inodes().write_at(a, &[3; BLOCK], 4 * BLOCK as u64, IoFlags::THROUGH).unwrap();
        }),
    ];
    let mut failures = Vec::new();
    for (way, is_longer, grow) in ways {
        let (device, volume, a) = with_ones(2);
        write(&volume, &a, &[2; BLOCK], 0);
        if is_longer {
            write(&volume, &a, &[3; 2 * BLOCK], 4 * BLOCK);
        }
        grow(&volume, &a);
        force_journal(&volume);
        let live = read(&volume, &a);
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        let seen = seen[0].as_ref().unwrap();
        // A write that nobody has forced may be gone.
        let is_old = way == "the next unit" && seen == &[1; 2 * BLOCK];
        if !is_old && seen != &live {
            failures.push(format!("{way}: {} bytes, and a unit without a write before", seen.len()));
        }
        if is_old {
            volume.inodes().fsync(&a, true).unwrap();
            let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
            assert!(seen[0].as_ref() == Some(&live), "{way}: after an fsync");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A punch that cuts units zeroed their parts one after the other, and then prepared its transaction. If a
/// later step found no space, for blocks that a snapshot has, the call failed and the earlier parts were
/// zeros.
#[test]
fn a_punch_that_finds_no_space_leaves_cut_units_as_they_were() {
    let (_, volume, a) = with_ones(16);
    volume.take_snapshot("s").unwrap();
    let filler = file(&volume, "filler");
    let (mut filled, mut step) = (0, 1 << 24);
    while step >= BLOCK as u64 {
        match volume.inodes().allocate(&filler, FallocateMode::KeepSize, filled, step) {
            Ok(()) => filled += step,
            Err(error) if error.kind() == ErrorKind::NoSpace => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    let (from, to) = (BLOCK + 10, 14 * BLOCK + 10);
    let mut refused = 0;
    for free in 1.. {
        match volume.inodes().allocate(&a, FallocateMode::PunchHole, from as u64, (to - from) as u64) {
            Ok(()) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        assert!(read(&volume, &a) == [1; 16 * BLOCK], "a part of what failed was done");
        refused += 1;
        // Space for one block more.
        let last = filled - free * BLOCK as u64;
        volume.inodes().allocate(&filler, FallocateMode::PunchHole, last, BLOCK as u64).unwrap();
        volume.sync().unwrap();
    }
    assert!(refused > 4, "there was space at once");
    let mut wanted = [1; 16 * BLOCK];
    wanted[from..to].fill(0);
    assert!(read(&volume, &a) == wanted);
}

/// What a punch within one unit, or over the border of two, leaves after a crash.
#[test]
fn a_punch_that_has_no_whole_unit_changes_each_as_a_whole() {
    for (from, to) in [(10, 3 * BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK + 10, 6 * BLOCK + 10)] {
        let (device, volume, a) = with_ones(12);
        let start = device.event_count();
        volume.inodes().allocate(&a, FallocateMode::PunchHole, from as u64, (to - from) as u64).unwrap();
        volume.sync().unwrap();
        let mut after = vec![1; 12 * BLOCK];
        after[from..to].fill(0);
        assert!(read(&volume, &a) == after);
        for (seed, event) in (start..=device.event_count()).enumerate() {
            let Some(image) = device.crash_at(event, CrashPolicy::Power { seed: seed as u64 }) else {
                continue;
            };
            let seen = after_crash(image, &["a"]);
            for (found, after) in
                seen[0].as_ref().unwrap().chunks(UNIT * BLOCK).zip(after.chunks(UNIT * BLOCK))
            {
                let whole = found == after || found == [1; UNIT * BLOCK];
                assert!(whole, "{from}..{to}, event {event}: a unit is there in part");
            }
        }
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert!(seen[0].as_ref() == Some(&after));
    }
}
