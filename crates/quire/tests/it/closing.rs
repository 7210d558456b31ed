//! What the close of a volume says.

use crate::common::{BLOCK, file, log_insertion, new_volume, options};
use quire::ErrorKind;
use quire::inodes::IoFlags;
use quire_base::random::Random;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold};
use quire_device::{IoClass, SimulatedBackend};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A volume that had failed wrote nothing back when it was closed, and said that all was well: a program that
/// only looked at the close took unsynced data for durable. A second close said so of every failure.
#[test]
fn closing_a_volume_that_has_failed_is_an_error() {
    let (device, volume) = new_volume(16384);
    let new = file(&volume, "new");
    volume.sync().unwrap();
    volume.inodes().write_at(&new, &[1; 4096], 0, IoFlags::empty()).unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal));
    volume.sync().unwrap_err();
    drop(new);
    let failure = volume.failure().expect("nothing is sure after a journal write that fails");
    for closing in [volume.clone(), volume] {
        let refused = closing.close().expect_err("unsynced data is lost");
        assert_eq!(refused.to_string(), failure.to_string());
        assert_eq!(refused.kind(), ErrorKind::Shutdown);
    }
}

/// A second close said that all was well after the first had failed at its own work.
#[test]
fn both_closes_give_the_error_of_the_first() {
    let (device, volume) = new_volume(16384);
    volume.write("new", [1; 4096]).unwrap();
    device.inject(Fault::on(FaultOp::Write).times(u64::MAX));
    let first = volume.clone().close().expect_err("nothing can be written");
    device.clear_faults();
    assert_eq!(volume.close().expect_err("nothing was written").to_string(), first.to_string());
}

/// A second close returned at once, and said that all was well, while the first was writing.
#[test]
fn a_second_close_waits_for_the_first() {
    let (device, volume) = new_volume(16384);
    volume.write("new", [1; 4096]).unwrap();
    device.set_hold(Hold::Everything);
    let (other, third) = (volume.clone(), volume.clone());
    let first = std::thread::spawn(move || volume.close());
    let start = Instant::now();
    while device.held() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30) && !first.is_finished(), "the close writes");
        std::thread::yield_now();
    }
    let second = std::thread::spawn(move || other.close());
    std::thread::sleep(Duration::from_millis(100));
    let waited = !second.is_finished();
    device.set_hold(Hold::Nothing);
    device.release_all(&mut Random::seeded(1));
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
    assert!(waited, "the second close returned while the first was at work");
    third.close().unwrap();
}

/// A lookup by a clone after the close loaded inodes, which hold the engine, as the engine holds them: the
/// image stayed locked until the process ended.
#[test]
fn what_was_looked_up_after_the_close_does_not_keep_the_volume() {
    let (device, volume) = new_volume(16384);
    volume.create_dir("d").unwrap();
    volume.write("d/f", "x").unwrap();
    let other = volume.clone();
    volume.close().unwrap();
    assert_eq!(other.read("d/f").unwrap(), b"x");
    assert!(std::sync::Arc::strong_count(&device) > 1, "the clone has it");
    drop(other);
    assert_eq!(std::sync::Arc::strong_count(&device), 1);
}

/// A volume that has failed is closed without a sync. A write that its cache had begun, and that completed
/// after the close, was never finished: it kept the volume in memory, and the image locked, until the process
/// ended.
#[test]
fn a_write_under_way_does_not_keep_a_failed_volume() {
    let (device, volume) = new_volume(16384);
    volume.close().unwrap();
    let volume = options().threads(true).open_backend(device.clone()).unwrap();
    let (data, other) = (file(&volume, "data"), file(&volume, "other"));
    device.set_hold(Hold::Submitted);
    volume.inodes().write_at(&data, &[1; 40960], 0, IoFlags::UNCACHED).unwrap();
    assert!(device.held() > 0, "it is on its way to the device");
    device.set_hold(Hold::Nothing);
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal));
    volume.inodes().fsync(&other, false).unwrap_err();
    drop((data, other));
    let closing = std::thread::spawn(move || volume.close());
    // It has time to return too early.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        if closing.is_finished() {
            break;
        }
    }
    device.release_all(&mut Random::seeded(1));
    closing.join().unwrap().unwrap_err();
    assert_eq!(std::sync::Arc::strong_count(&device), 1);
}

/// A checkpoint of a volume that was opened read-only counted as a failure, and shut it down.
#[test]
fn a_checkpoint_of_a_read_only_volume_is_refused_and_does_no_harm() {
    let (device, volume) = new_volume(16384);
    volume.write("f", "x").unwrap();
    volume.take_snapshot("s").unwrap();
    let snapshot = volume.open_snapshot("s").unwrap();
    assert_eq!(snapshot.checkpoint().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(snapshot.failure().is_none());
    drop(snapshot);
    volume.close().unwrap();
    let volume = crate::common::options().read_only(true).open_backend(device).unwrap();
    assert_eq!(volume.checkpoint().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(volume.failure().is_none());
    assert_eq!(volume.write("f", "y").unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// An error while an operation was finished that a crash had cut off made the opening fail. The inode of the
/// operation held the engine, and the engine held the inode: the image stayed locked, and every later opening
/// was refused as `Busy`, until the process ended.
#[test]
fn an_opening_that_fails_leaves_the_volume() {
    let (device, volume) = new_volume(16384);
    let new = file(&volume, "new");
    // Each block an extent of its own.
    for block in (0..400).step_by(2) {
        volume.inodes().write_at(&new, &[1; BLOCK], (block * BLOCK) as u64, IoFlags::empty()).unwrap();
    }
    let number = new.number();
    drop(new);
    volume.close().unwrap();
    log_insertion(&device, number);
    let image = device.crash(CrashPolicy::KeepAll);
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Flush] {
        let mut failed = 0;
        for passed in 0..100 {
            let device = Arc::new(SimulatedBackend::from_image(image.clone()));
            device.inject(Fault::on(op).after(passed).times(u64::MAX));
            let opened = options().open_backend(device.clone());
            failed += u32::from(opened.is_err());
            drop(opened);
            assert_eq!(Arc::strong_count(&device), 1, "{op:?} {passed}");
            device.clear_faults();
            options().open_backend(device.clone()).unwrap().close().unwrap();
        }
        assert!(failed > 0, "no {op:?} makes an opening fail");
    }
}
