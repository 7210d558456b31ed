//! No false alarms: volumes that are as they should be, whatever a crash left of them.

use crate::common::editor::Editor;
use crate::common::*;
use quire::inodes::{Create, FallocateMode, IoFlags, XattrFlags};
use quire::{FormatOptions, RenameFlags, Volume};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::simulated::{CrashPolicy, SimulatedBackend};
use quire_format::journal::BlockHeader;
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
    let volume = options().open_backend(backend.clone()).unwrap();
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

/// Checks crash images of a run at many moments from the event `first` on; every one must be clean as the
/// crash left it, and again after a recovery that was cut off as well.
fn crash_everywhere(backend: &Arc<SimulatedBackend>, first: usize, rounds: u64, seed: u64) {
    let mut random = Random::seeded(seed);
    let (first, last) = (first as u64, backend.event_count() as u64);
    let events = last - first;
    let mut checked = 0;
    for round in 0..rounds {
        // Half of them evenly over the run, half of them anywhere.
        let at = if round % 2 == 0 { round * events / rounds } else { random.below(events) };
        let at = first + at;
        let policy = match random.below(4) {
            0 => CrashPolicy::Killed { seed: random.next_u64() },
            _ => CrashPolicy::Power { seed: random.next_u64() },
        };
        let Some(image) = backend.crash_at(at as usize, policy) else { continue };
        let when = format!("run {seed}, crash at {at} of {last}, {policy:?}");
        match check(&image) {
            Ok(report) => assert!(report.issues.is_empty(), "{when}: {:#?}", report.issues),
            Err(error) => panic!("{when}: {error}"),
        }
        checked += 1;
        if round % 5 == 0 {
            let again = Arc::new(SimulatedBackend::from_image(image));
            options().open_backend(again.clone()).unwrap().close().unwrap();
            let at = random.below(again.event_count() as u64) as usize;
            if let Some(image) = again.crash_at(at, CrashPolicy::Power { seed: random.next_u64() }) {
                assert_clean(&image, &format!("{when}, then at {at} of its recovery"));
            }
            assert_clean(&again.visible(), &format!("{when}, recovered"));
        }
    }
    assert!(checked * 2 >= rounds, "only {checked} of {rounds} moments could be looked at");
}

/// `QUIRE_FSCK_CRASHES` sets how many crash images of each run are checked.
fn crashes(default: u64) -> u64 {
    std::env::var("QUIRE_FSCK_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn no_crash_leaves_an_issue() {
    let backend = Arc::new(SimulatedBackend::from_image(format()));
    let volume = options().open_backend(backend.clone()).unwrap();
    let open = populate(&volume);
    volume.checkpoint().unwrap();
    let root = volume.inodes().root();
    for number in 0..20u32 {
        let name = format!("late-{number}");
        let file = volume.inodes().create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
        volume.inodes().write_at(&file, &[number as u8; 10_000], 0, IoFlags::empty()).unwrap();
        if number % 4 == 0 {
            volume.inodes().fsync(&file, false).unwrap();
        }
        if number % 5 == 0 {
            volume.inodes().set_len(&file, 100).unwrap();
            volume.inodes().remove_file(&root, name.as_bytes()).unwrap();
        }
    }
    drop(open);
    volume.close().unwrap();
    crash_everywhere(&backend, 0, crashes(80), 11);
}

/// The journal cut off at each of its blocks: every prefix of the transactions must leave a volume without an
/// issue. Gives how many of these have an operation that was cut off.
fn cut_everywhere(image: &quire_device::simulated::Image, what: &str) -> u64 {
    let editor = Editor::new(image);
    let superblock = editor.superblock(editor.newest());
    let payload = quire_format::journal::PAYLOAD_BYTES as u64;
    let (mut image, mut cut_off) = (image.clone(), 0);
    for block in (0..superblock.journal_blocks).rev() {
        let position = superblock.sequence.0 / payload + block;
        let at = superblock.journal_start.offset(position % superblock.journal_blocks);
        // What lies before belongs to the older checkpoint alone.
        let header = image.get(at).and_then(|block| BlockHeader::decode(&block[..]).ok());
        if header.is_none_or(|header| header.position < superblock.sequence.0) {
            continue;
        }
        image.set(at, None);
        let report = check(&image).unwrap();
        assert!(report.issues.is_empty(), "{what}, cut at block {block}: {:#?}", report.issues);
        if report.summary.logged_operations > 0 {
            cut_off += 1;
            if cut_off % 8 == 1 {
                let backend = device(&image);
                options().open_backend(backend.clone()).unwrap().close().unwrap();
                assert_clean(&backend.visible(), &format!("{what}, cut at block {block} and recovered"));
            }
        }
    }
    cut_off
}

#[test]
fn no_prefix_of_a_long_operation_leaves_an_issue() {
    let backend = Arc::new(SimulatedBackend::from_image(format()));
    let volume = options().open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let fragmented = |name: &str| {
        let file = volume.inodes().create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
        for at in 0..1200u64 {
            volume.inodes().write_at(&file, &[at as u8 | 1; 4096], at * 2 * 4096, IoFlags::empty()).unwrap();
        }
        volume.inodes().fsync(&file, false).unwrap();
        file
    };
    let (a, b, c) = (fragmented("a"), fragmented("b"), fragmented("c"));
    let first = backend.event_count();
    volume.inodes().allocate(&a, FallocateMode::Collapse, 8 * 4096, 16 * 4096).unwrap();
    volume.inodes().allocate(&b, FallocateMode::Insert, 8 * 4096, 16 * 4096).unwrap();
    volume.inodes().allocate(&c, FallocateMode::PunchHole, 4096, 400 * 4096).unwrap();
    volume.inodes().allocate(&c, FallocateMode::ZeroRange { keep_size: false }, 0, 40 * 4096).unwrap();
    volume.inodes().set_len(&a, 5000).unwrap();
    volume.inodes().set_len(&b, 1 << 30).unwrap();
    volume.inodes().remove_file(&root, b"b").unwrap();
    drop((a, b, c));
    volume.drain_orphans();
    volume.sync().unwrap();
    let image = backend.crash(CrashPolicy::KeepAll);
    volume.close().unwrap();
    crash_everywhere(&backend, first, crashes(60), 12);
    let cut_off = cut_everywhere(&image, "long operations");
    assert!(cut_off > 0, "no cut fell into a long operation");
}

#[test]
fn no_crash_of_a_random_run_leaves_an_issue() {
    for seed in 0..3 {
        let backend = Arc::new(SimulatedBackend::from_image(format()));
        let volume = options().open_backend(backend.clone()).unwrap();
        random_run(&volume, seed, 500);
        volume.sync().unwrap();
        cut_everywhere(&backend.crash(CrashPolicy::KeepAll), &format!("random run {seed}"));
        volume.close().unwrap();
        crash_everywhere(&backend, 0, crashes(60), seed + 100);
    }
}

#[test]
fn a_pool_that_grew_is_clean_at_any_moment() {
    let backend = Arc::new(SimulatedBackend::from_image(format()));
    let volume = options().open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let mut first = 0;
    for number in 0..12_000u32 {
        let name = format!("a-rather-long-name-so-that-leaves-are-filled-sooner-{number}");
        volume.inodes().create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
        if volume.metrics()["checkpoints_total"] > 0 && first == 0 {
            first = backend.event_count();
        }
    }
    volume.sync().unwrap();
    let image = backend.crash(CrashPolicy::KeepAll);
    let report = check(&image).unwrap();
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    assert!(report.summary.pool_blocks > 512 && report.summary.used_blocks > 0, "{:?}", report.summary);
    volume.close().unwrap();
    crash_everywhere(&backend, first, crashes(60) / 4, 13);
    let (report, after) = repair(&backend.visible());
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    assert_clean(&after, "after");
}

/// Creates, links, renames, writes, cuts, removes, with checkpoints and syncs in between.
fn random_run(volume: &Volume, seed: u64, steps: u32) {
    let mut random = Random::seeded(seed);
    let mut directories = vec![volume.inodes().root()];
    let mut held = Vec::new();
    for step in 0..steps {
        let directory = directories[random.below(directories.len() as u64) as usize].clone();
        let other = directories[random.below(directories.len() as u64) as usize].clone();
        let name = format!("n{}", random.below(12)).into_bytes();
        let other_name = format!("n{}", random.below(12)).into_bytes();
        // Whatever does not go (the name is taken, not there, of another type) does not matter.
        match random.below(14) {
            0 | 1 => drop(volume.inodes().create(&directory, &name, &Create::file(0o644))),
            2 => directories.extend(volume.inodes().create(&directory, &name, &Create::directory(0o755))),
            3 | 4 => drop(volume.inodes().remove_file(&directory, &name)),
            5 => drop(volume.inodes().remove_dir(&directory, &name)),
            6 => drop(volume.inodes().rename(&directory, &name, &other, &other_name, RenameFlags::empty())),
            7 => drop(
                volume
                    .inodes()
                    .lookup(&directory, &name)
                    .and_then(|inode| volume.inodes().hard_link(&inode, &other, &other_name)),
            ),
            8 | 9 => drop(volume.inodes().lookup(&directory, &name).and_then(|inode| {
                let (at, len) = (random.below(200_000), random.below(60_000) as usize);
                volume.inodes().write_at(&inode, &vec![step as u8; len], at, IoFlags::empty())
            })),
            10 => drop(
                volume
                    .inodes()
                    .lookup(&directory, &name)
                    .and_then(|inode| volume.inodes().set_len(&inode, random.below(200_000))),
            ),
            11 => drop(volume.inodes().lookup(&directory, &name).and_then(|inode| {
                let value = vec![7; random.below(3000) as usize];
                volume.inodes().set_xattr(&inode, b"user.x", &value, XattrFlags::empty())
            })),
            12 => match random.below(4) {
                0 => drop(volume.checkpoint()),
                1 => drop(volume.sync()),
                2 => volume.drain_orphans(),
                _ => held.extend(volume.inodes().lookup(&directory, &name)),
            },
            _ => drop(
                volume
                    .inodes()
                    .lookup(&directory, &name)
                    .and_then(|inode| volume.inodes().fsync(&inode, random.one_in(2))),
            ),
        }
    }
}

#[test]
fn progress_is_told_and_ends_where_it_should() {
    let told = RefCell::new(Vec::new());
    let tell = |progress: quire_fsck::Progress| told.borrow_mut().push(progress);
    check_backend(device(&closed()), &Options { progress: Some(&tell), ..Options::default() }).unwrap();
    let told = told.into_inner();
    for phase in ["superblocks", "metadata", "inodes", "names", "space"] {
        let last = told.iter().rfind(|progress| progress.phase == phase);
        assert!(last.is_some_and(|last| last.done == last.total), "{phase}: {last:?}");
    }
    assert!(told.iter().all(|progress| progress.done <= progress.total));
}

#[test]
fn an_image_file_is_checked_and_mended_but_not_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume.img");
    let format = FormatOptions::new().size(64 << 20);
    format.format(&path).unwrap();
    let volume = options().open(&path).unwrap();
    volume.inodes().create(&volume.inodes().root(), b"file", &Create::file(0o600)).unwrap();
    for repair in [false, true] {
        let error = quire_fsck::check(&path, &Options { repair, ..Options::default() }).unwrap_err();
        assert_eq!(error.kind(), quire::ErrorKind::Busy, "{error}");
    }
    volume.close().unwrap();
    assert_eq!(quire_fsck::check(&path, &Options::default()).unwrap().exit_code(), 0);

    // Slot A, in the middle of its fields.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[150] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(quire_fsck::check(&path, &Options::default()).unwrap().exit_code(), 4);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "a check without repair writes nothing");
    for expected in [1, 0] {
        let report = quire_fsck::check(&path, &Options { repair: true, ..Options::default() }).unwrap();
        assert_eq!(report.exit_code(), expected, "{:#?}", report.issues);
    }
}

#[test]
fn what_cannot_be_checked_is_an_error() {
    use quire::ErrorKind;
    let empty = quire_device::simulated::Image::new(BLOCKS);
    assert_eq!(check(&empty).unwrap_err().kind(), ErrorKind::NotAVolume);
    let tiny = quire_device::simulated::Image::new(4);
    assert_eq!(check(&tiny).unwrap_err().kind(), ErrorKind::NotAVolume);
    // Users check many images in one go: the message says which one holds no volume.
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, [b'x'; 65536]).unwrap();
    let error = quire_fsck::check(&text, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAVolume);
    assert!(error.to_string().contains("notes.txt"), "{error}");
    let missing = std::path::Path::new("/nonexistent/volume");
    let error = quire_fsck::check(missing, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
