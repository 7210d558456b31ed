//! Volumes whose tree is whole but says what cannot be: errors, never a panic, and nothing that recovery
//! would refuse.

use crate::common::{clock, file, new_volume, options};
use quire::backend::Backend;
use quire::inodes::{FallocateMode, IoFlags};
use quire::internals::repair::Session;
use quire::{AlignedBuf, ErrorKind, FileType, FormatOptions, roll_back_backend};
use quire_base::BlockNo;
use quire_device::simulated::{CrashPolicy, Event, Fault, FaultOp};
use quire_device::{IoClass, SimulatedBackend};
use quire_format::dirent::{Entry, cookie};
use quire_format::extent::Extent;
use quire_format::key::Key;
use quire_format::superblock::{FAR_BLOCKS, SLOT_BLOCKS, Superblock, orphan_blocks_max};
use quire_tree::{PoolState, Tree, TreeLimits};
use std::sync::Arc;
use std::time::Duration;

/// A file had two extents for one block. A truncate put both into a transaction, which is no list that a
/// record may carry: the encoder panicked, and without its assertion recovery would have refused the record.
#[test]
fn overlapping_extents_are_corrupt() {
    let (device, volume) = new_volume(4096);
    let file = file(&volume, "file");
    volume.inodes().write_at(&file, &[7; 10 * 4096], 0, IoFlags::empty()).unwrap();
    let number = file.number();
    drop(file);
    volume.close().unwrap();

    let mut session = Session::open(device.clone()).unwrap();
    let value = session.tree().get(Key::extent(number, 0)).unwrap().expect("the file has an extent");
    let first = Extent::decode(0, &value).unwrap();
    assert_eq!(first.len, 10);
    session.put(Key::extent(number, 4), &Extent { file_block: 4, len: 8, ..first }.encode());
    session.close().unwrap();

    let volume = options().open_backend(device.clone()).unwrap();
    let file = volume.inodes().lookup(&volume.inodes().root(), b"file").unwrap();
    let refused = [
        volume.inodes().set_len(&file, 0),
        volume.inodes().allocate(&file, FallocateMode::PunchHole, 0, 1 << 20),
        volume.inodes().read_at(&file, &mut [0; 10 * 4096], 0, IoFlags::empty()).map(|_| ()),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    drop(file);
    assert!(volume.failure().is_none(), "a damaged file does not take the volume down");
    volume.close().unwrap();
    options().open_backend(device).unwrap().close().unwrap();
}

/// A name lay under a cookie that does not go with it: it was listed, and could not be found. The removal of
/// the directory passed it, found the directory not empty, and began again for ever.
#[test]
fn the_removal_of_a_tree_ends_at_a_name_that_is_not_found() {
    let (device, volume) = new_volume(4096);
    volume.create_dir_all("dir/below").unwrap();
    volume.write("dir/below/file", [7; 100]).unwrap();
    let [below, file] = ["dir/below", "dir/below/file"].map(|path| volume.resolve(path).unwrap());
    let (directory, inode, generation) = (below.number(), file.number(), file.generation());
    drop((below, file));
    volume.close().unwrap();
    let mut session = Session::open(device.clone()).unwrap();
    let entry = Entry { inode, generation, file_type: FileType::Regular, name: b"nowhere" };
    session.put(Key::entry(directory, cookie(1, 0)), &entry.encode());
    session.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let removing = {
        let volume = volume.clone();
        std::thread::spawn(move || tell.send(volume.remove_dir_all("dir")))
    };
    let removed = told.recv_timeout(Duration::from_secs(30)).expect("the removal ends");
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::NotEmpty);
    removing.join().unwrap().unwrap();
    volume.close().unwrap();
}

/// Rewrites all copies of both superblocks of a volume of 4096 blocks.
fn forge(device: &dyn Backend, change: impl Fn(&mut Superblock)) {
    for slot in SLOT_BLOCKS {
        let mut block = AlignedBuf::blocks(1);
        device.read(IoClass::Metadata, slot, &mut block).unwrap();
        let mut superblock = Superblock::decode(&block).unwrap();
        change(&mut superblock);
        block.copy_from_slice(&superblock.encode());
        for copy in [slot, BlockNo(4096 - FAR_BLOCKS + slot.0)] {
            device.write(IoClass::Metadata, copy, &block).unwrap();
        }
    }
}

/// A superblock counted more free blocks than there were. When a file was removed, the count came to more
/// than the volume has: the next two checkpoints wrote superblocks that nobody could read, and with them the
/// volume was lost.
#[test]
fn superblocks_that_nobody_could_read_are_not_written() {
    let (device, volume) = new_volume(4096);
    volume.write("file", [7; 100 * 4096]).unwrap();
    volume.close().unwrap();
    forge(&*device, |superblock| {
        let space = superblock.data_space();
        superblock.free_blocks = space.end - space.start;
    });
    let volume = options().open_backend(device.clone()).unwrap();
    volume.remove_file("file").unwrap();
    assert_eq!(volume.close().unwrap_err().kind(), ErrorKind::Shutdown);
    // So a repair finds the volume.
    for slot in SLOT_BLOCKS {
        let mut block = AlignedBuf::blocks(1);
        device.read(IoClass::Metadata, slot, &mut block).unwrap();
        Superblock::decode(&block).unwrap();
    }
}

/// A superblock of a 16 MiB image named 65,536 orphan blocks, which the format allows: the mount took 535 MB
/// for their slots.
#[test]
fn more_orphan_blocks_than_the_volume_can_have_are_refused() {
    let (device, volume) = new_volume(4096);
    volume.close().unwrap();
    forge(&*device, |superblock| superblock.orphan_blocks = orphan_blocks_max(4096));
    let volume = options().open_backend(device.clone()).unwrap();
    assert_eq!(volume.recovery().damaged_orphan_blocks, 62, "the manifest names two");
    volume.close().unwrap();
    forge(&*device, |superblock| superblock.orphan_blocks = 1 << 16);
    let refused = options().open_backend(device.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

/// The orphan blocks of a snapshot were put into as many as the volume said it had. Rolling back to one that
/// had more panicked, behind the first superblock.
#[test]
fn a_snapshot_that_does_not_fit_the_volume_is_not_rolled_back_to() {
    let (device, volume) = new_volume(4096);
    volume.write("file", [7; 4096]).unwrap();
    volume.take_snapshot("kept").unwrap();
    volume.close().unwrap();
    forge(&*device, |superblock| superblock.orphan_blocks = 1);
    let before = device.events(0..usize::MAX).len();
    let refused = roll_back_backend(device.clone(), "kept").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    let events = device.events(before..usize::MAX);
    assert!(!events.iter().any(|event| matches!(event, Event::WriteSubmitted { .. })), "{events:?}");
}

/// The superblocks of both slots.
fn superblocks_of(device: &dyn Backend) -> [Superblock; 2] {
    SLOT_BLOCKS.map(|slot| {
        let mut block = AlignedBuf::blocks(1);
        device.read(IoClass::Metadata, slot, &mut block).unwrap();
        Superblock::decode(&block).unwrap()
    })
}

/// A root, or a page of the manifest, that could not be read ended the opening, though the older superblock
/// served where the same block had flipped bits.
#[test]
fn an_unreadable_checkpoint_is_passed_over_like_a_damaged_one() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    type Of = fn(&Superblock) -> BlockNo;
    let blocks: [Of; 3] =
        [|newest| newest.root.block, |newest| newest.space_root.block, |newest| newest.manifest.block];
    for block in blocks {
        let device = Arc::new(SimulatedBackend::new(4096));
        let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).metadata_copies(1).clock(clock());
        format.format_backend(device.clone()).unwrap();
        let volume = options().open_backend(device.clone()).unwrap();
        for name in NAMES {
            volume.write(name, name).unwrap();
            volume.sync().unwrap();
            if name != NAMES[2] {
                volume.checkpoint().unwrap();
            }
        }
        let device = Arc::new(SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll)));
        let superblocks = superblocks_of(&*device);
        let newest = superblocks.iter().max_by_key(|superblock| superblock.checkpoint).unwrap();
        let at = block(newest);
        device.inject(Fault::on(FaultOp::Read).region(at.0..at.0 + 1).times(u64::MAX));
        let volume = options().open_backend(device.clone()).unwrap();
        let fallback = volume.recovery().fallback.clone().expect("the newest checkpoint cannot be read");
        let name = ["A", "B"][newest.slot as usize];
        assert!(fallback.starts_with(&format!("checkpoint of superblock {name}: ")), "{fallback}");
        NAMES.into_iter().for_each(|name| assert_eq!(volume.read(name).unwrap(), name.as_bytes()));
        device.clear_faults();
        volume.close().unwrap();

        // With nothing to fall back on, it is still the device's error.
        let superblocks = superblocks_of(&*device);
        for superblock in &superblocks {
            let at = block(superblock);
            device.inject(Fault::on(FaultOp::Read).region(at.0..at.0 + 1).times(u64::MAX));
        }
        let refused = options().open_backend(device).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    }
}

/// Where the older superblock alone was bad, a mount said that the newest one was not good. The report does
/// not say which is newer, but which is bad.
#[test]
fn the_superblock_that_does_not_serve_is_named() {
    let (device, volume) = new_volume(4096);
    volume.close().unwrap();
    let superblocks = superblocks_of(&*device);
    let older = superblocks.iter().min_by_key(|superblock| superblock.checkpoint).unwrap().slot as usize;
    for at in [SLOT_BLOCKS[older], BlockNo(4096 - FAR_BLOCKS + SLOT_BLOCKS[older].0)] {
        device.write(IoClass::Metadata, at, &AlignedBuf::zeroed(4096)).unwrap();
    }
    let volume = options().open_backend(device).unwrap();
    let fallback = volume.recovery().fallback.clone().expect("one superblock is damaged");
    assert!(fallback.starts_with(&format!("superblock {}: ", ["A", "B"][older])), "{fallback}");
    volume.close().unwrap();
}

/// A leaf that only the replay of the journal needed, and that could not be read, ended the opening, though
/// the older superblock served where the same leaf had flipped bits.
#[test]
fn an_unreadable_leaf_that_replay_needs_is_passed_over() {
    let device = Arc::new(SimulatedBackend::new(4096));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).metadata_copies(1).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    volume.create_dir("many").unwrap();
    (0..400).for_each(|n| volume.write(format!("many/a-file-with-a-longer-name-{n:04}"), "").unwrap());
    volume.checkpoint().unwrap();
    volume.write("second", "second").unwrap();
    volume.checkpoint().unwrap();
    // What the replay reads of the root directory lies in a leaf that only the newest checkpoint has.
    volume.write("third", "third").unwrap();
    volume.sync().unwrap();
    let image = device.crash(CrashPolicy::LoseAll);
    let mut leaves = Vec::new();
    let found = quire_device::Device::new(Arc::new(SimulatedBackend::from_image(image.clone())));
    let superblocks = superblocks_of(&SimulatedBackend::from_image(image.clone()));
    let newest = superblocks.iter().max_by_key(|superblock| superblock.checkpoint).unwrap();
    let (id, limits) = (newest.volume_id(), TreeLimits::with_cache_bytes(16 << 20));
    let pool = PoolState::load(&found, id, newest.manifest, newest.block_count).unwrap();
    let tree = Tree::open(found, id, newest.roots(), pool, limits).unwrap();
    tree.walk(&mut |at, _| {
        leaves.extend((at.level == 0).then_some(at.block));
        Ok(())
    })
    .unwrap();
    assert!(leaves.len() > 2, "{leaves:?}");
    let mut passed_over = 0;
    for at in leaves {
        let device = Arc::new(SimulatedBackend::from_image(image.clone()));
        device.inject(Fault::on(FaultOp::Read).region(at.0..at.0 + 1).times(u64::MAX));
        match options().open_backend(device.clone()) {
            Ok(volume) => {
                passed_over += usize::from(volume.recovery().fallback.is_some());
                device.clear_faults();
                assert_eq!(volume.read("second").unwrap(), b"second");
                assert_eq!(volume.read("third").unwrap(), b"third");
                volume.close().unwrap();
            }
            // Both checkpoints have it.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
    }
    assert!(passed_over > 0);
}
