//! Insert and collapse where there is no room for what they do to the tree.

use crate::common::{BLOCK, file, log_insertion, options};
use quire::inodes::{FallocateMode, InodeRef, IoFlags};
use quire::{ErrorKind, FormatOptions, Volume};
use quire_device::MemoryBackend;
use std::sync::Arc;

const LEN: u64 = BLOCK as u64;
/// Of the volume, and of the file that fills much of it: each lies apart from the others.
const BLOCKS: u64 = 65536;
const EXTENTS: u64 = 30_000;

/// A volume in use with a file of many extents. They are allocated downwards, which leaves leaves half full.
fn fragmented() -> (Arc<MemoryBackend>, Volume, InodeRef) {
    let device = Arc::new(MemoryBackend::new(BLOCKS));
    let format = FormatOptions::new().seed(1).metadata_copies(1).journal_bytes(4 << 20);
    format.format_backend(device.clone()).unwrap();
    let volume = options().node_cache_bytes(4 << 20).open_backend(device.clone()).unwrap();
    let inode = file(&volume, "fragmented");
    for n in (0..EXTENTS).rev() {
        volume.inodes().allocate(&inode, FallocateMode::Allocate, 2 * n * LEN, LEN).unwrap();
    }
    for n in [0, EXTENTS / 2, EXTENTS - 1] {
        volume.inodes().write_at(&inode, &tag(n), 2 * n * LEN, IoFlags::empty()).unwrap();
    }
    volume.sync().unwrap();
    (device, volume, inode)
}

fn tag(n: u64) -> [u8; BLOCK] {
    [1 + (n % 251) as u8; BLOCK]
}

/// Gives all free space to a file.
fn fill(volume: &Volume) {
    let filler = file(volume, "filler");
    let (mut at, mut step) = (0, 1 << 30);
    while step >= LEN {
        match volume.inodes().allocate(&filler, FallocateMode::KeepSize, at, step) {
            Ok(()) => at += step,
            Err(error) if error.kind() == ErrorKind::NoSpace => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether the file is as it was made, moved by so many blocks.
fn check(volume: &Volume, by: u64) {
    let inode = volume.inodes().lookup(&volume.inodes().root(), b"fragmented").unwrap();
    assert_eq!(inode.size(), (2 * EXTENTS - 1 + by) * LEN);
    for n in [0, 1, EXTENTS / 2, EXTENTS - 1] {
        let mut block = [7; BLOCK];
        let at = (2 * n + by) * LEN;
        assert_eq!(volume.inodes().read_at(&inode, &mut block, at, IoFlags::empty()).unwrap(), BLOCK);
        assert!(block == if n == 1 { [0; BLOCK] } else { tag(n) }, "extent {n}, moved by {by}");
    }
}

/// An insertion changes every leaf of a file's extents, and a snapshot keeps each as it was. The operation
/// was logged with room for its first step. On a full volume the pool found no room for the others: the
/// volume shut down for all files, and could then be opened neither for writing, which would have been needed
/// to delete a snapshot, nor for reading. A collapse did the same.
#[test]
fn what_has_no_room_to_end_does_not_begin() {
    for mode in [FallocateMode::Insert, FallocateMode::Collapse] {
        let (device, volume, inode) = fragmented();
        file(&volume, "other");
        let mut by = 9;
        volume.inodes().allocate(&inode, FallocateMode::Insert, 0, by * LEN).unwrap();
        fill(&volume);
        let error = (0..9).find_map(|round| {
            volume.take_snapshot(&round.to_string()).unwrap();
            let outcome = volume.inodes().allocate(&inode, mode, 0, LEN);
            if outcome.is_ok() {
                by = if mode == FallocateMode::Insert { by + 1 } else { by - 1 };
            }
            outcome.err()
        });
        let error = error.expect("no volume has room for ever");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{mode:?}: {error}");
        assert!(volume.failure().is_none(), "{mode:?}");
        check(&volume, by);
        // All else goes on.
        volume.rename("other", "another").unwrap();
        volume.sync().unwrap();
        drop(inode);
        volume.close().unwrap();

        let volume = options().open_backend(device).unwrap();
        check(&volume, by);
        // Room makes it possible again, and the operation gives back what it had reserved.
        volume.remove_file("filler").unwrap();
        for snapshot in volume.snapshots().unwrap() {
            volume.delete_snapshot(&snapshot.name).unwrap();
        }
        volume.drain_orphans();
        let inode = volume.inodes().lookup(&volume.inodes().root(), b"fragmented").unwrap();
        volume.inodes().allocate(&inode, FallocateMode::Insert, 0, LEN).unwrap();
        check(&volume, by + 1);
        drop(inode);
        volume.close().unwrap();
    }
}

/// Where a crash had cut off such an operation, begun without room for its end, the volume could not be
/// opened any more, not even read-only. It opens now; the file waits until there is room, and the rest can be
/// used.
#[test]
fn what_cannot_be_finished_keeps_nobody_out() {
    let (device, volume, inode) = fragmented();
    let number = inode.number();
    volume.write("other", [1; 100]).unwrap();
    fill(&volume);
    volume.take_snapshot("first").unwrap();
    drop(inode);
    volume.close().unwrap();

    // As the operation of an earlier version leaves it. What the pool has left does for some.
    let mut moved = 0;
    loop {
        log_insertion(&device, number);
        let volume = options().open_backend(device.clone()).unwrap();
        let is_unfinished = volume.open_file("fragmented").is_err();
        if !is_unfinished {
            moved += 1;
            check(&volume, moved);
            volume.take_snapshot(&moved.to_string()).unwrap();
        }
        volume.close().unwrap();
        if is_unfinished {
            break;
        }
    }

    let unfinished = |volume: &Volume| {
        let error = volume.open_file("fragmented").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(volume.read("other").unwrap(), [1; 100]);
        assert!(volume.failure().is_none());
    };
    for _ in 0..2 {
        let volume = options().open_backend(device.clone()).unwrap();
        unfinished(&volume);
        let root = volume.inodes().root();
        assert_eq!(volume.inodes().remove_file(&root, b"fragmented").unwrap_err().kind(), ErrorKind::Busy);
        // It would show the file half moved.
        assert_eq!(volume.take_snapshot("half").unwrap_err().kind(), ErrorKind::Busy);
        volume.close().unwrap();
        let volume = options().read_only(true).open_backend(device.clone()).unwrap();
        unfinished(&volume);
        volume.close().unwrap();
    }
    let volume = options().open_backend(device.clone()).unwrap();
    for snapshot in volume.snapshots().unwrap() {
        volume.delete_snapshot(&snapshot.name).unwrap();
    }
    volume.close().unwrap();
    // Also in memory, where the volume is opened for reading.
    for read_only in [true, false] {
        let volume = options().read_only(read_only).open_backend(device.clone()).unwrap();
        check(&volume, moved + 1);
        volume.close().unwrap();
    }
}
