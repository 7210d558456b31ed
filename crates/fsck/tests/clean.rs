//! No false alarms: volumes that are as they should be, whatever a crash left of them.

mod common;

use common::*;
use quire::{Create, IoFlags, Volume};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::simulated::{CrashPolicy, SimulatedBackend};
use quire_fsck::{Options, check_backend};
use std::cell::RefCell;

#[test]
fn a_new_volume_is_clean() {
    let image = format();
    let report = check(&image).unwrap();
    assert!(report.issues.is_empty(), "{report:#?}");
    assert_eq!((report.summary.inodes, report.summary.directories), (1, 1));
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn a_volume_in_use_is_clean_before_and_after_recovery() {
    let image = crashed();
    let report = check(&image).unwrap();
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    let summary = &report.summary;
    assert_eq!(summary.orphans, 3);
    assert!(summary.journal_records > 0 && summary.extents > 40 && summary.symlinks == 2, "{summary:?}");
    assert!(serde_json::to_string(&report).unwrap().contains("\"orphans\":3"));

    // Repairing what is not damaged changes nothing.
    let (repaired, after) = repair(&image);
    assert!(repaired.issues.is_empty());
    assert_eq!(check(&after).unwrap().summary, report.summary);

    let backend = device(&image);
    let volume = Volume::open_backend(backend.clone(), options()).unwrap();
    volume.close().unwrap();
    let report = check(&backend.visible()).unwrap();
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    assert_eq!((report.summary.orphans, report.summary.journal_records), (0, 0));
}

#[test]
fn a_volume_closed_with_orphans_and_a_logged_operation_is_clean() {
    let image = closed();
    let report = check(&image).unwrap();
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    assert_eq!((report.summary.orphans, report.summary.logged_operations), (3, 1));
}

#[test]
fn no_crash_leaves_an_issue() {
    let backend = Arc::new(SimulatedBackend::from_image(format()));
    let volume = Volume::open_backend(backend.clone(), options()).unwrap();
    let open = populate(&volume);
    volume.checkpoint().unwrap();
    let root = volume.root();
    for number in 0..20u32 {
        let name = format!("late-{number}");
        let file = volume.create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
        volume.write(&file, 0, &[number as u8; 10_000], IoFlags::empty()).unwrap();
        if number % 4 == 0 {
            volume.fsync(&file, false).unwrap();
        }
        if number % 5 == 0 {
            volume.truncate(&file, 100).unwrap();
            volume.unlink(&root, name.as_bytes()).unwrap();
        }
    }
    drop(open);
    volume.close().unwrap();

    let mut random = Random::seeded(11);
    let events = backend.event_count();
    for round in 0..60 {
        let at = if round < 20 { events - (round + 1) as usize } else { random.below(events as u64) as usize };
        let seed = random.next_u64();
        let Some(image) = backend.crash_at(at, CrashPolicy::Power { seed }) else { continue };
        match check(&image) {
            Ok(report) => {
                assert!(report.issues.is_empty(), "crash at {at} with seed {seed}: {:#?}", report.issues);
            }
            Err(error) => panic!("crash at {at} with seed {seed}: {error}"),
        }
    }
}

#[test]
fn progress_is_told_and_ends_where_it_should() {
    let told = RefCell::new(Vec::new());
    let tell = |progress: quire_fsck::Progress| told.borrow_mut().push(progress);
    check_backend(device(&closed()), &Options { repair: false, progress: Some(&tell) }).unwrap();
    let told = told.into_inner();
    for phase in ["superblocks", "metadata", "inodes", "names", "space"] {
        let last = told.iter().rfind(|progress| progress.phase == phase);
        assert!(last.is_some_and(|last| last.done == last.total), "{phase}: {last:?}");
    }
    assert!(told.iter().all(|progress| progress.done <= progress.total));
}

#[test]
fn what_cannot_be_checked_is_an_error() {
    use quire::ErrorKind;
    let empty = quire_device::simulated::Image::new(BLOCKS);
    assert_eq!(check(&empty).unwrap_err().kind(), ErrorKind::NotAVolume);
    let tiny = quire_device::simulated::Image::new(4);
    assert_eq!(check(&tiny).unwrap_err().kind(), ErrorKind::NotAVolume);
    let missing = std::path::Path::new("/nonexistent/volume");
    let error = quire_fsck::check(missing, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
