//! Snapshots: what they hold, and the space that they cost. What crashes leave is in
//! `crates/sim/tests/mistakes/snapshots.rs`.

use crate::common::{BLOCK, copy_of, log_insertion};
use quire::backend::{Backend, IoClass, MemoryBackend};
use quire::internals::inspect::Image;
use quire::{
    ErrorKind, FormatOptions, OpenOptions, Volume, VolumeOptions, roll_back_backend,
    take_snapshot_backend as take_snapshot,
};
use quire_format::key::Key;
use quire_format::snapshot::Snapshot;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn made() -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(128 * MIB / BLOCK as u64));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    backend
}

fn open(backend: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(16 * MIB).open_backend(backend.clone()).unwrap()
}

fn open_snapshot(backend: &Arc<MemoryBackend>, name: &str) -> Volume {
    let options = VolumeOptions::new().cache_bytes(16 * MIB).read_only(true).snapshot(name);
    options.open_backend(backend.clone()).unwrap()
}

fn bytes(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| seed ^ (at / BLOCK) as u8 ^ (at % 251) as u8).collect()
}

/// Every path with its content.
fn contents(volume: &Volume) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in volume.read_dir("/").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        all.push((name.clone(), volume.read(&name).unwrap()));
    }
    all.sort();
    all
}

/// Changes files in every way that writes to their blocks.
fn change(volume: &Volume, round: u8) {
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(volume, name).unwrap();
    let whole = open("whole");
    whole.write_all_at(&bytes(0x40 + round, 64), 0).unwrap();
    whole.sync_all().unwrap();
    let parts = open("parts");
    for at in [5, 17, 30] {
        parts.write_all_at(&[round; 100], (at * BLOCK + 7) as u64).unwrap();
    }
    parts.sync_data().unwrap();
    parts.write_all_at(&bytes(round, 1)[..100], 3 * BLOCK as u64).unwrap();
    let cut = open("cut");
    cut.set_len((20 * BLOCK + 99 + usize::from(round)) as u64).unwrap();
    cut.set_len(40 * BLOCK as u64).unwrap();
    if round == 0 {
        volume.remove_file("gone").unwrap();
        volume.rename("old-name", "new-name").unwrap();
    }
    volume.write(format!("new-{round}"), bytes(round, 20)).unwrap();
    volume.sync().unwrap();
}

fn fill(volume: &Volume) {
    for (seed, name) in ["whole", "parts", "cut", "gone", "old-name"].into_iter().enumerate() {
        volume.write(name, bytes(seed as u8, 64)).unwrap();
    }
}

#[test]
fn a_snapshot_keeps_what_was_there() {
    let backend = made();
    let volume = open(&backend);
    fill(&volume);
    volume.close().unwrap();
    let mut expected = Vec::new();
    for round in 0..3 {
        let volume = open(&backend);
        let before = contents(&volume);
        volume.close().unwrap();
        let name = format!("s{round}");
        assert_eq!(take_snapshot(backend.clone(), &name).unwrap().number, u32::from(round) + 1);
        expected.push((name, before));
        let volume = open(&backend);
        change(&volume, round);
        volume.close().unwrap();
        for (name, before) in &expected {
            assert!(contents(&open_snapshot(&backend, name)) == *before, "{name} has changed");
        }
    }
    assert_eq!(take_snapshot(backend.clone(), "s1").unwrap_err().kind(), ErrorKind::Exists);
    let volume = open(&backend);
    let names: Vec<String> = volume.snapshots().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["s0", "s1", "s2"]);
    // In the middle, then the newest, then the last one.
    for (left, name) in [(2, "s1"), (1, "s2"), (0, "s0")] {
        let before = volume.statfs().free;
        volume.delete_snapshot(name).unwrap();
        assert!(volume.statfs().free > before, "deleting {name} frees nothing");
        assert_eq!(volume.snapshots().unwrap().len(), left);
        expected.retain(|(other, _)| other != name);
        change(&volume, 7);
        volume.sync().unwrap();
        for (name, before) in &expected {
            assert!(contents(&open_snapshot(&backend, name)) == *before, "{name} has changed");
        }
    }
    assert_eq!(volume.delete_snapshot("s0").unwrap_err().kind(), ErrorKind::NotFound);
    volume.close().unwrap();
}

/// Zeroing a range that a snapshot has, too, left a hole instead of blocks, and the file's count of blocks as
/// it was: fsck found it wrong, and a write that `zero_range` had made room for could fail.
#[test]
fn a_range_that_is_zeroed_keeps_its_blocks() {
    let backend = made();
    let volume = open(&backend);
    fill(&volume);
    let before = contents(&volume);
    volume.close().unwrap();
    take_snapshot(backend.clone(), "s").unwrap();
    let volume = open(&backend);
    let file = OpenOptions::new().read(true).write(true).open(&volume, "whole").unwrap();
    let blocks = file.metadata().blocks();
    let available = volume.statfs().available;
    file.zero_range((10 * BLOCK + 5) as u64, (20 * BLOCK) as u64).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().blocks(), blocks);
    // 19 whole blocks and two that were cut; the pool may have grown.
    assert!(volume.statfs().available <= available - 21, "the snapshot has the old blocks");
    drop(file);
    volume.close().unwrap();
    let image = Image::load(backend.clone()).unwrap();
    let number = open(&backend).resolve("whole").unwrap().number();
    let mapped: u64 = image.extents(number).unwrap().iter().map(|extent| u64::from(extent.len)).sum();
    assert_eq!(mapped, 64, "the range has holes");
    assert!(contents(&open_snapshot(&backend, "s")) == before, "the snapshot has changed");
    let mut expected = before;
    let whole = expected.iter_mut().find(|(name, _)| name == "whole").unwrap();
    whole.1[10 * BLOCK + 5..30 * BLOCK + 5].fill(0);
    assert!(contents(&open(&backend)) == expected);
}

/// All space comes back: a volume that had snapshots has as much as one that never had any.
#[test]
fn deleted_snapshots_leave_nothing() {
    let [plain, snapped] = [made(), made()];
    for backend in [&plain, &snapped] {
        let volume = open(backend);
        fill(&volume);
        volume.close().unwrap();
    }
    for round in 0..4 {
        take_snapshot(snapped.clone(), &format!("s{round}")).unwrap();
        for backend in [&plain, &snapped] {
            let volume = open(backend);
            change(&volume, round);
            volume.close().unwrap();
        }
    }
    let volume = open(&snapped);
    for round in [2, 0, 3, 1] {
        volume.delete_snapshot(&format!("s{round}")).unwrap();
    }
    volume.close().unwrap();
    assert!(contents(&open(&plain)) == contents(&open(&snapped)));
    // Either may have taken chunks for its metadata.
    let free_or_pool = |backend: &Arc<MemoryBackend>| {
        let image = Image::load(backend.clone()).unwrap();
        let pool = image.tree.pool_state();
        assert_eq!(pool.only_kept_blocks(), 0);
        image.superblock.free_blocks + pool.blocks()
    };
    assert_eq!(free_or_pool(&plain), free_or_pool(&snapped));
}

/// The volume is what it was, its snapshots stay, and nothing is given out twice.
#[test]
fn a_volume_rolls_back_to_its_newest_snapshot() {
    let backend = made();
    let volume = open(&backend);
    fill(&volume);
    volume.close().unwrap();
    let mut then = Vec::new();
    for round in 0..2 {
        take_snapshot(backend.clone(), &format!("s{round}")).unwrap();
        let volume = open(&backend);
        then.push(contents(&volume));
        change(&volume, round);
        volume.close().unwrap();
    }
    assert_eq!(roll_back_backend(backend.clone(), "s0").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(roll_back_backend(backend.clone(), "s2").unwrap_err().kind(), ErrorKind::NotFound);
    for round in 0..2 {
        roll_back_backend(backend.clone(), "s1").unwrap();
        let volume = open(&backend);
        assert!(contents(&volume) == then[1]);
        change(&volume, 5 + round);
        volume.close().unwrap();
        for (name, then) in [("s0", &then[0]), ("s1", &then[1])] {
            assert!(contents(&open_snapshot(&backend, name)) == *then, "{name} has changed");
        }
    }
}

/// A crash came while a snapshot was being deleted, and a node of its space tree could not be read. Threads
/// tried the deletion again and again. An opening without them failed: no snapshot could be taken or deleted
/// on a volume that nobody had open. So did a read-only opening that had to finish an operation in memory,
/// though it needs no space of a snapshot.
#[test]
fn a_deletion_of_what_cannot_be_read_comes_to_its_end() {
    let backend = made();
    let options = || VolumeOptions::new().cache_bytes(16 * MIB).threads(false);
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.write("file", bytes(1, 10)).unwrap();
    let file = volume.open_file("file").unwrap().inode().number();
    volume.take_snapshot("damaged").unwrap();
    volume.write("later", bytes(2, 10)).unwrap();
    volume.sync().unwrap();
    volume.checkpoint().unwrap();
    volume.delete_snapshot_later("damaged").unwrap();
    let backend = copy_of(&backend);
    let tree = Image::load(backend.clone()).unwrap().tree;
    let snapshot = Snapshot::decode(&tree.get(Key::snapshot(1)).unwrap().unwrap()).unwrap();
    assert!(snapshot.deleting.is_some());
    for copy in snapshot.superblock.roots()[0].place().copies() {
        backend.write(IoClass::Metadata, copy, &[7; BLOCK]).unwrap();
    }

    let volume = options().open_backend(backend.clone()).unwrap();
    assert!(volume.read("file").unwrap() == bytes(1, 10));
    assert!(volume.snapshots().unwrap().is_empty());
    volume.close().unwrap();
    take_snapshot(backend.clone(), "another").unwrap();
    log_insertion(&backend, file);
    let volume = options().read_only(true).open_backend(backend).unwrap();
    assert!(volume.read("file").unwrap()[BLOCK..] == bytes(1, 10));
}
