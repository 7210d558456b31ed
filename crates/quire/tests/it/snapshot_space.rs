//! The space that snapshots take, as it is told and as it is; volumes that they fill.

use crate::common::BLOCK;
use quire::backend::MemoryBackend;
use quire::internals::inspect::Image;
use quire::{
    ErrorKind, FormatOptions, ReceiveOptions, SendOptions, Volume, VolumeOptions,
    take_snapshot_backend as take_snapshot,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn made(mib: u64) -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(mib * MIB / BLOCK as u64));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    backend
}

fn open(backend: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(16 * MIB).open_backend(backend.clone()).unwrap()
}

fn bytes(seed: usize, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (seed * 7 + at / BLOCK + at % 251) as u8).collect()
}

/// Free blocks, and those of the metadata pool, which may take or give chunks.
fn free_or_pool(backend: &Arc<MemoryBackend>) -> u64 {
    let image = Image::load(backend.clone()).unwrap();
    image.superblock.free_blocks + image.tree.pool_state().blocks()
}

/// A snapshot of next to nothing was told to share the whole metadata pool with the volume, as if it were
/// files.
#[test]
fn fixed_areas_and_the_pool_are_no_files() {
    let backend = made(128);
    let volume = open(&backend);
    volume.write("small", bytes(1, 3)).unwrap();
    volume.close().unwrap();
    take_snapshot(backend.clone(), "s").unwrap();
    let told = Image::load(backend).unwrap().snapshot_space().unwrap();
    assert_eq!((told.each[0].file_blocks_alone, told.each[0].file_blocks_shared), (0, 3));
}

/// What a snapshot is said to have alone is what its deletion frees, in whatever order.
#[test]
fn a_deletion_frees_what_was_told() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let backend = made(128);
        for round in 0..4 {
            let volume = open(&backend);
            volume.write("always", bytes(1, 30)).unwrap();
            for file in 0..8 {
                if file >= round {
                    volume.write(format!("{file}"), bytes(file + round, 20 + file)).unwrap();
                }
            }
            volume.write(format!("only-{round}"), bytes(round, 40 + round)).unwrap();
            volume.close().unwrap();
            take_snapshot(backend.clone(), &format!("s{round}")).unwrap();
            let volume = open(&backend);
            volume.remove_file(format!("only-{round}")).unwrap();
            volume.close().unwrap();
        }
        for number in order {
            let name = format!("s{number}");
            let told = Image::load(backend.clone()).unwrap().snapshot_space().unwrap();
            let one = told.each.iter().find(|space| space.snapshot.name == name).unwrap().clone();
            assert!(one.file_blocks_alone >= 40 && one.pool_blocks_alone > 0, "{one:?}");
            let sum: u64 = told.each.iter().map(|space| space.alone()).sum();
            assert!(sum <= told.held_blocks && one.shared() > 0, "{told:?}");
            let before = free_or_pool(&backend);
            let volume = open(&backend);
            // The same, told by a volume that is in use.
            assert_eq!(volume.snapshot_space().unwrap().each, told.each);
            volume.delete_snapshot(&name).unwrap();
            volume.close().unwrap();
            assert_eq!(free_or_pool(&backend) - before, one.file_blocks_alone, "{name} of {order:?}");
        }
        let told = open(&backend).snapshot_space().unwrap();
        assert!(told.each.is_empty() && told.held_blocks == 0, "{told:?}");
    }
}

/// Nothing is lost on a volume that snapshots fill. Files can be removed there although that frees nothing
/// yet, and deleting the snapshot makes room.
#[test]
fn a_volume_that_snapshots_fill() {
    let backend = made(64);
    let volume = open(&backend);
    let (files, blocks) = (130, 64);
    for file in 0..files {
        volume.write(format!("{file}"), bytes(file, blocks)).unwrap();
    }
    volume.close().unwrap();
    take_snapshot(backend.clone(), "full").unwrap();
    let volume = open(&backend);
    // Overwrites take space, too, until there is none.
    let mut written = 0;
    let mut refused = 0;
    for round in 1..4 {
        for file in 0..files {
            let handle = quire::OpenOptions::new().write(true).open(&volume, format!("{file}")).unwrap();
            let outcome = handle.write_all_at(&bytes(file, blocks), 0).and_then(|()| handle.sync_data());
            match outcome {
                Ok(()) => written += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    refused += 1;
                }
            }
        }
        let filler = quire::OpenOptions::new().append(true).create(true).open(&volume, "filler").unwrap();
        while filler.append(&bytes(round, 8)).and_then(|_| filler.sync_data()).is_ok() {}
    }
    assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
    // The same bytes were written again: whether or not that succeeded, the content is the same.
    for file in 0..files {
        assert!(volume.read(format!("{file}")).unwrap() == bytes(file, blocks), "file {file}");
    }
    let reader = volume.open_snapshot("full").unwrap();
    for file in 0..files {
        volume.remove_file(format!("{file}")).unwrap();
        assert!(
            reader.read(format!("{file}")).unwrap() == bytes(file, blocks),
            "file {file} of the snapshot"
        );
    }
    volume.sync().unwrap();
    volume.drain_orphans();
    drop(reader);
    volume.remove_file("filler").unwrap();
    volume.sync().unwrap();
    volume.drain_orphans();
    let held = volume.snapshot_space().unwrap();
    let alone = held.each[0].file_blocks_alone;
    assert!(alone >= (files * blocks) as u64, "{held:?}");
    volume.delete_snapshot("full").unwrap();
    volume.sync().unwrap();
    for file in 0..files {
        volume.write(format!("again-{file}"), bytes(file, blocks)).unwrap();
    }
    volume.sync().unwrap();
    volume.close().unwrap();
}

/// Each leaf of the tree that a snapshot has goes elsewhere with its first change, and the snapshot keeps the
/// old one. Nothing was kept back for that: on a full volume removals used up what the pool was promised for
/// dirty data, and were refused then; neither could these data be written back nor a snapshot be deleted.
#[test]
fn removals_leave_room_for_what_was_written_and_for_deletions() {
    const FILES: usize = 60_000;
    let backend = made(256);
    // With few dirty nodes, the pool has little room beside what the tree needs.
    let options = VolumeOptions::new().cache_bytes(16 * MIB).node_cache_bytes(4 * MIB);
    let volume = options.open_backend(backend.clone()).unwrap();
    let name = |file: usize| format!("{file:0200}");
    for file in 0..FILES {
        volume.create_file(name(file)).unwrap();
    }
    volume.sync().unwrap();
    let filler = quire::OpenOptions::new().append(true).create(true).open(&volume, "filler").unwrap();
    let fill = |spared: u64| {
        while volume.statfs().available > spared
            && filler.append(&bytes(1, 8)).and_then(|_| filler.sync_data()).is_ok()
        {}
    };
    fill(20_000);
    let data = quire::OpenOptions::new().read(true).write(true).create(true).open(&volume, "data").unwrap();
    let (mut snapshots, mut accepted) = (0, 0);
    let refused = loop {
        match volume.take_snapshot(&snapshots.to_string()) {
            Ok(_) => {}
            Err(error) => break error,
        }
        fill(50);
        while data.write_all_at(&bytes(accepted, 1), (accepted * 2 * BLOCK) as u64).is_ok() {
            accepted += 1;
        }
        for file in (snapshots..FILES).step_by(10) {
            volume.remove_file(name(file)).unwrap();
        }
        volume.drain_orphans();
        snapshots += 1;
        assert!(snapshots < 10, "each takes the space of all metadata");
    };
    assert!(refused.kind() == ErrorKind::NoSpace && snapshots > 0, "{refused}");
    data.sync_data().unwrap();
    for block in 0..accepted {
        let mut read = vec![0; BLOCK];
        data.read_exact_at(&mut read, (block * 2 * BLOCK) as u64).unwrap();
        assert!(read == bytes(block, 1), "block {block}");
    }
    drop((data, filler));
    (0..snapshots).for_each(|number| volume.delete_snapshot(&number.to_string()).unwrap());
    volume.remove_file("filler").unwrap();
    volume.sync().unwrap();
    volume.drain_orphans();
    volume.take_snapshot("again").unwrap();
    volume.close().unwrap();
}

/// The space that is kept back for a snapshot's metadata is free again when none is shared any more.
#[test]
fn what_is_kept_back_for_a_snapshot_comes_back() {
    let volume = open(&made(64));
    for file in 0..2000 {
        volume.write(format!("{file:0200}"), []).unwrap();
    }
    volume.sync().unwrap();
    let available = || {
        volume.checkpoint().unwrap();
        volume.checkpoint().unwrap();
        volume.statfs().available
    };
    let (before, nodes) = (available(), volume.metrics()["tree_nodes"]);
    volume.take_snapshot("s").unwrap();
    let kept = before - available();
    assert!(kept >= nodes, "{kept} blocks are kept back for {nodes} nodes");
    volume.delete_snapshot("s").unwrap();
    assert_eq!(available(), before);
    volume.close().unwrap();
}

/// Two checkpoints after the deletion of a snapshot, what it alone had of the metadata pool is room again. A
/// transaction that found the pool full wrote none for that: where files had the rest of the volume, it was
/// refused although there was room.
#[test]
fn a_deletion_makes_room_for_metadata_beside_full_files() {
    let backend = made(256);
    let options = VolumeOptions::new().cache_bytes(16 * MIB).threads(false);
    let volume = options.open_backend(backend).unwrap();
    let mut files = Vec::new();
    while 5 * volume.metrics()["tree_nodes"] < volume.metrics()["tree_pool_blocks"] {
        let file = volume.create_file(format!("{}", files.len())).unwrap();
        file.set_xattr("user.x", [0; 1000]).unwrap();
        files.push(file);
        volume.background_step().unwrap();
    }
    volume.take_snapshot("kept").unwrap();
    let filler = volume.create_file("filler").unwrap();
    let fill = || {
        for blocks in [256, 16, 1] {
            while filler.append(&bytes(1, blocks)).and_then(|_| filler.sync_data()).is_ok() {}
        }
    };
    fill();
    // There is room for it all, and no longer when it has been done.
    files.iter().for_each(|file| file.set_xattr("user.x", [1; 1000]).unwrap());
    volume.sync().unwrap();
    fill();
    let mut more = files.iter().cycle().zip(1u64..).take(20 * files.len());
    let full = more.find_map(|(file, n)| file.set_xattr(format!("user.{n}"), [n as u8; 1000]).err());
    assert_eq!(full.expect("the pool is full at last").kind(), ErrorKind::NoSpace);
    // Needs more room than the deletion itself may have got by a chunk that was kept back.
    let large = || files[0].set_xattr("user.large", [1; 15_000]);
    assert_eq!(large().unwrap_err().kind(), ErrorKind::NoSpace);
    volume.delete_snapshot("kept").unwrap();
    large().unwrap();
}

/// A receive looked for the room of the stream's content alone. It began, wrote all of that, and then found
/// no room for its snapshot: the volume had an unfinished receive, which keeps changes out.
#[test]
fn a_receive_without_room_for_its_snapshot_does_not_begin() {
    let (source, target) = (made(128), made(32));
    let before = Image::load(target.clone()).unwrap().superblock;
    let volume = open(&source);
    // One block stays free.
    volume.write("large", bytes(1, before.free_blocks as usize - 1)).unwrap();
    volume.take_snapshot("s").unwrap();
    let mut stream = Vec::new();
    SendOptions::new().send(&volume, "s", &mut stream, &mut |_| ()).unwrap();
    volume.close().unwrap();

    let receive = ReceiveOptions::new().receive_backend(target.clone(), &mut &stream[..], &mut |_| ());
    let refused = receive.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(refused.to_string().contains("its snapshot needs room for"), "{refused}");
    let after = Image::load(target.clone()).unwrap().superblock;
    assert_eq!((after.checkpoint, after.free_blocks), (before.checkpoint, before.free_blocks));
    let volume = open(&target);
    assert!(volume.snapshots().unwrap().is_empty());
    volume.write("mine", "x").unwrap();
    volume.close().unwrap();
}
