//! Writeback where the file's map cannot be read for a while.

use crate::common::{BLOCK, clock, file, options};
use crate::groups::{after_crash, write};
use quire::inodes::{Create, DirectoryEntry, FallocateMode};
use quire::{Commit, FormatOptions};
use quire_device::simulated::{CrashPolicy, Fault, FaultOp};
use quire_device::{IoClass, SimulatedBackend};
use std::sync::Arc;

/// Entries of the directory that evicts all else from the smallest node cache.
const NAMES: usize = 12_000;
/// Extents of a fragmented file: several leaves.
const EXTENTS: u64 = 600;

/// Writeback asks whether the journal has a record of a block, and goes through the journal if it has. An
/// error of that look counted as "no": if the device could be read again right after it, the block was
/// written to its home, the fsync returned, and the replay after a crash put the recorded content over it.
#[test]
fn a_look_for_records_that_fails_finds_no_lack_of_them() {
    let device = Arc::new(SimulatedBackend::new(64 << 10));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).metadata_copies(1).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let volume = options().node_cache_bytes(1).open_backend(device.clone()).unwrap();
    let inodes = volume.inodes();
    let large = inodes.create(&inodes.root(), b"large", &Create::directory(0o755)).unwrap();
    let first = inodes.create(&large, b"0", &Create::file(0o644)).unwrap();
    for name in 1..NAMES {
        inodes.hard_link(&first, &large, name.to_string().as_bytes()).unwrap();
    }
    // So that the file shares no leaf with the large directory.
    let between = file(&volume, "between");
    for n in 0..EXTENTS {
        let (at, len) = (2 * n * BLOCK as u64, BLOCK as u64);
        inodes.allocate(&between, FallocateMode::Allocate, at, len).unwrap();
    }
    let a = file(&volume, "a");
    write(&volume, &a, &[1; BLOCK], 0);
    volume.sync().unwrap();
    (0..2).for_each(|_| volume.checkpoint().unwrap());

    let mut group = inodes.atomic();
    group.write_at(&a, &[2; BLOCK], 0).unwrap();
    group.commit(Commit::Now).unwrap();
    write(&volume, &a, &[3; BLOCK], 0);
    let mut go_on = |_: DirectoryEntry<'_>| true;
    (0..3).for_each(|_| inodes.read_dir(&large, 0, &mut go_on).unwrap());
    device.inject(Fault::on(FaultOp::Read).class(IoClass::Metadata));
    let loads = || volume.metrics()["tree_loads_total"];
    let before = loads();
    let outcome = inodes.fsync(&a, true);
    assert!(loads() > before, "the map was in memory: the test shows nothing");
    if outcome.is_err() {
        // What has failed is still dirty.
        inodes.fsync(&a, true).unwrap();
    }
    let seen = after_crash(device.crash(CrashPolicy::KeepAll), &["a"]);
    assert!(seen[0].as_deref() == Some(&[3; BLOCK][..]), "{outcome:?}, and the data is lost");
}
