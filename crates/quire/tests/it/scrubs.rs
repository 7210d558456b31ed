//! Scrubs of the data of a volume in use.

use crate::common::{file, new_volume, options};
use quire::{Clock, ScrubOptions, Timestamp, VolumeOptions};
use quire_device::IoClass;
use quire_device::simulated::{Fault, FaultOp};
use quire_format::superblock::SLOT_BLOCKS;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn data() -> ScrubOptions {
    ScrubOptions::new().data(true)
}

/// Reading the data of all files, and the names of those that cannot be read, set access times: a scrub each
/// month changed every inode, and a copy that others follow counted as changed.
#[test]
fn a_scrub_sets_no_access_times() {
    let (device, volume) = new_volume(16384);
    volume.create_dir_all("dir").unwrap();
    volume.write("dir/file", [7; 10_000]).unwrap();
    volume.close().unwrap();
    let clock = Clock::simulated(Timestamp(1_000_000_000));
    let volume = VolumeOptions::clock(options(), clock.clone()).open_backend(device.clone()).unwrap();
    clock.advance(3 * 24 * 3600 * 1_000_000_000);
    let times = || ["/", "dir", "dir/file"].map(|path| volume.metadata(path).unwrap().accessed());
    let before = times();
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.data_bytes, report.unreadable.len()), (10_000, 0));
    device.inject(Fault::on(FaultOp::Read).class(IoClass::Data).times(u64::MAX));
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.unreadable[0].path, Path::new("/dir/file"));
    device.clear_faults();
    assert_eq!(times(), before);
    volume.close().unwrap();
}

/// A scrub asked for the file's size again behind each piece: it never left a file that grew faster than it
/// was read.
#[test]
fn a_scrub_leaves_a_file_that_grows() {
    let (_device, volume) = new_volume(65536);
    volume.write("log", vec![7; 4 << 20]).unwrap();
    let log = quire::OpenOptions::new().append(true).open(&volume, "log").unwrap();
    let mut calls = 0;
    let report = volume
        .scrub(&data(), &mut |_| {
            calls += 1;
            log.write_all_at(&vec![8; 2 << 20], 0).unwrap();
            if calls < 40 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    assert!(calls < 40, "the scrub follows the file's end");
    assert!(report.is_good() && report.data_bytes >= 4 << 20);
    drop(log);
    volume.close().unwrap();
}

/// The last block of a file of the largest size reaches past what a file may have, and was called unreadable.
#[test]
fn the_end_of_a_file_of_the_largest_size_is_read() {
    let (_device, volume) = new_volume(16384);
    let largest = quire::OpenOptions::new().write(true).create(true).open(&volume, "largest").unwrap();
    let last = (1 << 63) - 2;
    largest.write_all_at(&[7], last).unwrap();
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_good() && report.data_bytes == 4095, "{report:#?}");
    drop(largest);
    volume.close().unwrap();
}

/// A scrub of a snapshot looked at the superblocks, the pool and the journal of the volume that has it: it
/// told of damage that is not the snapshot's, and could take what the volume was just writing for damage.
#[test]
fn a_scrub_of_a_snapshot_leaves_the_volume_alone() {
    let (device, volume) = new_volume(16384);
    volume.write("file", [7; 10_000]).unwrap();
    volume.take_snapshot("then").unwrap();
    for slot in SLOT_BLOCKS {
        device.rot(slot.0..slot.0 + 1, 3, 1);
    }
    let then = volume.open_snapshot("then").unwrap();
    let report = then.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.damaged == 0 && report.data_bytes == 10_000, "{report:#?}");
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    // It writes one of them itself when it begins.
    assert!(report.damaged > 0 && report.healed == report.damaged, "{report:#?}");
    drop(then);
    volume.close().unwrap();
}

/// Where the extents of a file could not be read a scrub took it for ended, and found nothing wrong with it.
#[test]
fn a_file_whose_extents_cannot_be_read_is_told() {
    use quire::internals::repair::Session;
    use quire_format::extent::Extent;
    use quire_format::key::Key;
    let (device, volume) = new_volume(4096);
    let bad = file(&volume, "bad");
    volume.inodes().write_at(&bad, &[7; 40_960], 0, quire::inodes::IoFlags::empty()).unwrap();
    let number = bad.number();
    drop(bad);
    volume.close().unwrap();
    let mut session = Session::open(device.clone()).unwrap();
    let value = session.tree().get(Key::extent(number, 0)).unwrap().expect("the file has an extent");
    let first = Extent::decode(0, &value).unwrap();
    session.put(Key::extent(number, 4), &Extent { file_block: 4, len: 8, ..first }.encode());
    session.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(!report.is_good(), "{report:?}");
    assert_eq!(report.unreadable[0].path, Path::new("/bad"));
    volume.close().unwrap();
}

/// A scrub wrote dirty blocks of a file before it read them. Where the device refused that, it called the
/// blocks unreadable, and the volume remembered damage that it did not have.
#[test]
fn what_cannot_be_written_is_not_unreadable() {
    let (device, volume) = new_volume(16384);
    for (name, byte) in [("dirty", 1), ("damaged", 2)] {
        volume.write(name, [byte; 40_960]).unwrap();
    }
    volume.sync().unwrap();
    let dirty = quire::OpenOptions::new().write(true).open(&volume, "dirty").unwrap();
    dirty.write_all_at(&[3; 40_960], 0).unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(u64::MAX));
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!(report.data_bytes, 40_960);
    // Clean blocks in the cache do not hide what the device cannot read.
    assert_eq!(volume.read("damaged").unwrap(), [2; 40_960]);
    device.inject(Fault::on(FaultOp::Read).class(IoClass::Data).times(u64::MAX));
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.unreadable.len(), 1, "{report:?}");
    assert_eq!(report.unreadable[0].path, Path::new("/damaged"));
    device.clear_faults();
    let report = volume.scrub(&data(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_good() && report.data_bytes == 2 * 40_960, "{report:?}");
    assert_eq!(volume.read("dirty").unwrap(), [3; 40_960]);
    drop(dirty);
    volume.close().unwrap();
}

/// A scrub that could overwrite neither a bad copy of a snapshot's metadata nor an unreadable block of the
/// journal shut the volume down, though another copy served, and the block was in no use.
#[test]
fn a_repair_that_the_device_refuses_ends_nothing() {
    use quire::AlignedBuf;
    use quire::backend::Backend;
    use quire::internals::repair::Session;
    use quire_format::{key::Key, snapshot::Snapshot};
    let (device, volume) = new_volume(16384);
    volume.write("file", "old").unwrap();
    volume.take_snapshot("first").unwrap();
    volume.write("file", "new").unwrap();
    volume.close().unwrap();
    let session = Session::open(device.clone()).unwrap();
    let value = session.tree().get(Key::snapshot(1)).unwrap().expect("the snapshot is there");
    let copy = Snapshot::decode(&value).unwrap().superblock.manifest.block;
    let journal = session.superblock().journal();
    session.close().unwrap();

    let volume = options().open_backend(device.clone()).unwrap();
    device.write(IoClass::Metadata, copy, &AlignedBuf::blocks(1)).unwrap();
    let unused = journal.start.0 + journal.blocks / 2;
    device.inject(Fault::on(FaultOp::Write).region(copy.0..copy.0 + 1).times(u64::MAX));
    for op in [FaultOp::Read, FaultOp::Write] {
        device.inject(Fault::on(op).region(unused..unused + 1).times(u64::MAX));
    }
    let report = volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.damaged, report.healed), (2, 0));
    volume.write("later", "later").unwrap();
    volume.sync().unwrap();
    device.clear_faults();
    volume.close().unwrap();
}

/// Nodes with a bad copy waited to be written anew behind one that could not be read at all any more: none of
/// them ever was, and each scrub ended with an error.
#[test]
fn a_node_that_is_lost_keeps_no_other_from_healing() {
    use quire::AlignedBuf;
    use quire::backend::{Backend, BlockNo};
    use quire::internals::inspect::Image;
    use quire_device::SimulatedBackend;
    let (device, volume) = new_volume(16384);
    volume.create_dir("many").unwrap();
    (0..800).for_each(|n| volume.write(format!("many/a-file-with-a-longer-name-{n:04}"), "").unwrap());
    volume.close().unwrap();
    let mut leaves: Vec<Vec<BlockNo>> = Vec::new();
    Image::load(device.clone())
        .unwrap()
        .tree
        .walk(&mut |at, _| {
            leaves.extend((at.level == 0).then(|| at.place().copies().collect()));
            Ok(())
        })
        .unwrap();
    let (first, second) = (&leaves[leaves.len() / 2], &leaves[leaves.len() / 2 + 1]);
    for copies in [first, second] {
        device.write(IoClass::Metadata, copies[0], &AlignedBuf::blocks(1)).unwrap();
    }
    let image = device.visible();
    // The other copy of the first is gone, too, once it has been read so often.
    let mut lost_late = 0;
    for reads in 0..5 {
        let device = Arc::new(SimulatedBackend::from_image(image.clone()));
        let other = first[1].0;
        device.inject(Fault::on(FaultOp::Read).region(other..other + 1).after(reads).times(u64::MAX));
        let volume = options().open_backend(device.clone()).unwrap();
        let report = volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap();
        let lost = report.lost.len() as u64;
        assert_eq!(report.healed, 2 - lost, "{report:?}");
        lost_late += report.damaged - report.healed;
        device.clear_faults();
        // It is found again.
        let report = volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((report.damaged, report.healed, report.is_good()), (lost, lost, true), "{report:?}");
        volume.close().unwrap();
    }
    assert!(lost_late > 0);
}
