//! Volumes whose tree is whole but says what cannot be: errors, never a panic, and nothing that recovery
//! would refuse.

use crate::common::{file, new_volume, options};
use quire::backend::Backend;
use quire::inodes::{FallocateMode, IoFlags};
use quire::internals::repair::Session;
use quire::{AlignedBuf, ErrorKind, roll_back_backend};
use quire_base::BlockNo;
use quire_device::IoClass;
use quire_device::simulated::Event;
use quire_format::extent::Extent;
use quire_format::key::Key;
use quire_format::superblock::{FAR_BLOCKS, SLOT_BLOCKS, Superblock, orphan_blocks_max};

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
