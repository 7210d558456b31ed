//! Growth inside the last block, entirely: every crash of an append whose record goes beside its data, with
//! every subset of the unflushed writes, and torn ones.
//!
//! An append of less than a block took two flushes. With one, a crash may keep the record of the size and
//! lose the data: then the bytes between the old end and the new one must be zeros, and not those that a
//! truncate cut off before.

use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{FormatOptions, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use sim::image;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// What comes before the append of which all crashes are looked at.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// A forced append: the block is known.
    Append,
    /// A truncate inside the block.
    Truncate,
    /// As before, and the block is written back, but not flushed.
    TruncateWrittenBack,
    /// Everything is closed and opened again.
    Remount,
}

const ALL: [Before; 4] = [Before::Append, Before::Truncate, Before::TruncateWrittenBack, Before::Remount];

fn forced(volume: &Volume, log: &InodeRef, byte: u8, bytes: usize) {
    volume.inodes().append(log, &vec![byte; bytes], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
}

/// The log after a crash, if it is there.
fn contents(image: Image) -> Vec<u8> {
    let volume = image::options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
    let mut bytes = vec![0; log.size() as usize];
    volume.inodes().read_at(&log, &mut bytes, 0, IoFlags::empty()).unwrap();
    bytes
}

/// Whether a crash may leave this: the old bytes as far as they were kept, then what was appended, sector by
/// sector, or zeros.
fn is_right(found: &[u8], kept: usize, before: usize, appended: usize) -> bool {
    if found.len() == before {
        // The truncate, if there was one, is lost; what was written in place since may be there.
        return found.iter().all(|byte| *byte <= 4);
    }
    let (old, new) = found.split_at(kept.min(found.len()));
    found.len() >= kept
        && found.len() <= kept + appended
        && old.iter().all(|byte| matches!(byte, 1 | 2 | 4))
        && new.iter().all(|byte| matches!(byte, 0 | 3))
}

/// Goes through the crashes of an append of `appended` bytes; gives how many there were, and the first that
/// is wrong.
fn crashes(what: Before, appended: usize) -> (u64, Option<String>) {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(1).clock(sim::image::clock());
    format.format_backend(device.clone()).unwrap();
    let mut volume = image::options().open_backend(device.clone()).unwrap();
    let warm = volume.inodes().create(&volume.inodes().root(), b"warm", &Create::file(0o644)).unwrap();
    for _ in 0..4 {
        forced(&volume, &warm, 9, BLOCK);
        volume.background_step().unwrap();
    }
    let mut log = volume.inodes().create(&volume.inodes().root(), b"log", &Create::file(0o644)).unwrap();
    forced(&volume, &log, 1, 3000);
    forced(&volume, &log, 2, 100);
    let before = 3100;
    let kept = match what {
        Before::Append | Before::Remount => before,
        Before::Truncate | Before::TruncateWrittenBack => 1000,
    };
    let from = device.event_count();
    match what {
        Before::Append => {}
        Before::Truncate => volume.inodes().set_len(&log, kept as u64).unwrap(),
        Before::TruncateWrittenBack => {
            volume.inodes().set_len(&log, kept as u64).unwrap();
            volume.inodes().write_at(&log, &[4], 10, IoFlags::THROUGH).unwrap();
        }
        Before::Remount => {
            drop((log, warm));
            volume.close().unwrap();
            volume = image::options().open_backend(device.clone()).unwrap();
            log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
        }
    }
    forced(&volume, &log, 3, appended);
    let mut images = 0;
    for event in from..=device.event_count() {
        let writes = device.unsafe_writes_at(event).unwrap_or(0).min(10);
        let subsets = (0..1u64 << writes).map(|kept| CrashPolicy::Subset { kept });
        for policy in subsets.chain((0..8).map(|seed| CrashPolicy::Power { seed })) {
            let Some(image) = device.crash_at(event, policy) else { continue };
            let found = contents(image);
            images += 1;
            if !is_right(&found, kept, before, appended) {
                let wrong = format!("{what:?}, event {event}, {policy:?}: {} bytes", found.len());
                return (images, Some(wrong));
            }
        }
    }
    (images, None)
}

#[test]
fn every_crash_shows_zeros_or_the_data() {
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

#[test]
#[cfg_attr(not(mistakes), ignore = "scripts/mistakes runs it")]
fn each_mistake_is_found_by_its_case() {
    for (mistake, what) in [
        (Mistake::TailBelievedZero, Before::Truncate),
        (Mistake::TailKnownBeforeFlush, Before::TruncateWrittenBack),
        (Mistake::SizeOverUnflushedTail, Before::Truncate),
    ] {
        let wrong = mistakes::with(Some(mistake), || crashes(what, 100).1);
        println!("{mistake:?}: {wrong:?}");
        assert!(wrong.is_some(), "{mistake:?} is not found");
    }
}
