//! Insert and collapse where there is no room for what they do to the tree.

use crate::common::{BLOCK, copy_of, file, log_insertion, options};
use quire::inodes::{FallocateMode, InodeRef, IoFlags};
use quire::internals::repair::Session;
use quire::{ErrorKind, FormatOptions, ReceiveOptions, SendOptions, Volume, take_snapshot_backend};
use quire_device::MemoryBackend;
use quire_format::key::Key;
use quire_format::region::{REGION_BLOCKS, RegionMap};
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
    let allocate = |n| volume.inodes().allocate(&inode, FallocateMode::Allocate, 2 * n * LEN, LEN);
    (0..EXTENTS).rev().try_for_each(allocate).unwrap();
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

/// Which blocks are in use, by region, and how many are free.
struct Space {
    maps: Vec<RegionMap>,
    free: u64,
}

const REGIONS: u64 = BLOCKS / REGION_BLOCKS;

fn full_map() -> RegionMap {
    let mut map = RegionMap::new();
    map.add(0, REGION_BLOCKS as u32);
    map
}

/// Has a volume that nobody has open believe in other space; gives what it had.
fn replace_space(device: &Arc<MemoryBackend>, space: &Space) -> Space {
    let mut session = Session::open(device.clone()).unwrap();
    let map = |region| session.tree().get_with(Key::region(region), RegionMap::decode).unwrap();
    let maps = (0..REGIONS).map(|region| map(region).map_or_else(RegionMap::new, Result::unwrap)).collect();
    let superblock = session.superblock();
    let before = Space { maps, free: superblock.free_blocks };
    let (inodes, next_inode) = (superblock.inode_count, superblock.next_inode);
    (0..).zip(&space.maps).for_each(|(region, map)| session.set_region(region, map));
    session.set_counters(space.free, inodes, next_inode);
    session.close().unwrap();
    before
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
        let by = 9;
        volume.inodes().allocate(&inode, FallocateMode::Insert, 0, by * LEN).unwrap();
        volume.take_snapshot("s").unwrap();
        fill(&volume);
        let error = volume.inodes().allocate(&inode, mode, 0, LEN).unwrap_err();
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
    drop(inode);
    volume.close().unwrap();

    // As an earlier version leaves it, which kept no room back for snapshots. What the pool has left does for
    // some.
    let mut moved = 0;
    let sender = loop {
        take_snapshot_backend(device.clone(), &moved.to_string()).unwrap();
        let copy = copy_of(&device);
        let space = replace_space(&device, &Space { maps: vec![full_map(); REGIONS as usize], free: 0 });
        log_insertion(&device, number);
        let volume = options().open_backend(device.clone()).unwrap();
        let is_unfinished = volume.open_file("fragmented").is_err();
        volume.close().unwrap();
        if is_unfinished {
            break copy;
        }
        moved += 1;
        replace_space(&device, &space);
    };
    forced_receive_takes(&sender, &copy_of(&device), &moved.to_string());

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

/// Such an operation made `receive --force` fail with the advice for a sender, that its snapshot has half an
/// operation in it. It is a change of the target, which `--force` gives up like any other.
fn forced_receive_takes(sender: &Arc<MemoryBackend>, target: &Arc<MemoryBackend>, from: &str) {
    let volume = options().open_backend(sender.clone()).unwrap();
    volume.write("other", [2; 100]).unwrap();
    volume.close().unwrap();
    take_snapshot_backend(sender.clone(), "later").unwrap();
    let volume = options().read_only(true).open_backend(sender.clone()).unwrap();
    let mut stream = Vec::new();
    SendOptions::new().from(from).send(&volume, "later", &mut stream, &mut |_| ()).unwrap();
    let receive = |force| {
        let options = ReceiveOptions::new().force(force);
        options.receive_backend(target.clone(), &mut &stream[..], &mut |_| ())
    };
    let error = receive(false).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("--force"), "{error}");
    receive(true).unwrap();
    let volume = options().read_only(true).open_backend(target.clone()).unwrap();
    assert_eq!(volume.read("other").unwrap(), [2; 100]);
    check(&volume, from.parse().unwrap());
}
