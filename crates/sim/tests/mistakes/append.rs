//! Small durable appends, entirely: every crash of an append whose data is in its record, with every subset
//! of the unflushed writes, and torn ones.
//!
//! The append is there as a whole or not at all, and no byte that a truncate cut off before is back.

use super::every_crash;
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{FormatOptions, Volume};
use quire_base::simulation::mistakes;
use quire_device::SimulatedBackend;
use quire_device::simulated::Image;
use sim::image;
use std::sync::Arc;

/// What comes before the append of which all crashes are looked at.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// A forced append.
    Append,
    /// A truncate inside the block.
    Truncate,
    /// As before, and the block is written back, but not flushed.
    TruncateWrittenBack,
    /// A checkpoint: the block is at home.
    Checkpoint,
    /// Everything is closed and opened again.
    Remount,
}

const ALL: [Before; 5] =
    [Before::Append, Before::Truncate, Before::TruncateWrittenBack, Before::Checkpoint, Before::Remount];

fn forced(volume: &Volume, log: &InodeRef, byte: u8, bytes: usize) {
    volume.inodes().append(log, &vec![byte; bytes], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
}

/// The log after a crash.
fn contents(image: Image) -> Vec<u8> {
    let volume = image::options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
    let mut bytes = vec![0; log.size() as usize];
    volume.inodes().read_at(&log, &mut bytes, 0, IoFlags::empty()).unwrap();
    bytes
}

/// Whether a crash may leave this: what was there before, with the truncate or without it; or all of it.
fn is_right(found: &[u8], kept: usize, before: usize, appended: usize) -> bool {
    let (old, new) = found.split_at(kept.min(found.len()));
    let is_old = old.iter().all(|byte| matches!(byte, 1 | 2 | 4));
    match found.len() {
        len if len == kept => is_old,
        len if len == kept + appended => is_old && new.iter().all(|byte| *byte == 3),
        // What was written in place since the truncate may be there: zeros behind it.
        len if len == before => is_old && new.iter().all(|byte| matches!(byte, 0..=2)),
        _ => false,
    }
}

/// Goes through the crashes of an append of `appended` bytes; gives how many there were, and the first that
/// is wrong.
fn crashes(what: Before, appended: usize) -> (u64, Option<String>) {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(1).clock(sim::image::clock());
    format.format_backend(device.clone()).unwrap();
    let mut volume = image::options().open_backend(device.clone()).unwrap();
    let mut log = volume.inodes().create(&volume.inodes().root(), b"log", &Create::file(0o644)).unwrap();
    forced(&volume, &log, 1, 3000);
    forced(&volume, &log, 2, 100);
    let before = 3100;
    let kept = match what {
        Before::Truncate | Before::TruncateWrittenBack => 1000,
        _ => before,
    };
    let from = device.event_count();
    match what {
        Before::Append => {}
        Before::Truncate => volume.inodes().set_len(&log, kept as u64).unwrap(),
        Before::TruncateWrittenBack => {
            volume.inodes().set_len(&log, kept as u64).unwrap();
            volume.inodes().write_at(&log, &[4], 10, IoFlags::THROUGH).unwrap();
        }
        Before::Checkpoint => volume.checkpoint().unwrap(),
        Before::Remount => {
            drop(log);
            volume.close().unwrap();
            volume = image::options().open_backend(device.clone()).unwrap();
            log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
        }
    }
    forced(&volume, &log, 3, appended);
    every_crash::look_at(&device, from, (10, 8), &mut |image| {
        let found = contents(image);
        match is_right(&found, kept, before, appended) {
            true => Ok(()),
            false => Err(format!("{what:?}: {} bytes", found.len())),
        }
    })
}

#[test]
fn every_crash_shows_all_of_an_append_or_none() {
    let mut images = 0;
    mistakes::with(None, || {
        for what in ALL {
            for appended in [1, 100, 996, 2000, 4120] {
                let (looked, wrong) = crashes(what, appended);
                images += looked;
                assert!(wrong.is_none(), "{appended} bytes appended: {wrong:?}");
            }
        }
    });
    println!("{images} images");
    assert!(images > 200, "only {images} images");
}
