//! Volumes that are given more space, a larger journal, another label. What crashes leave is in
//! `crates/sim/tests/mistakes/resize.rs`.

use crate::common::BLOCK;
use quire::{
    ErrorKind, FormatOptions, OpenOptions, ResizeOptions, Volume, VolumeOptions, set_label, set_uuid,
};
use rustix::fs::{FlockOperation, flock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn open(image: &Path) -> Volume {
    VolumeOptions::new().cache_bytes(16 * MIB).open(image).unwrap()
}

/// A volume of 64 MiB with a journal of 1 MiB, and a file in it.
fn volume(directory: &tempfile::TempDir) -> PathBuf {
    let image = directory.path().join("a.img");
    FormatOptions::new().size(64 * MIB).journal_bytes(MIB).format(&image).unwrap();
    let volume = open(&image);
    volume.write("old", vec![7; 100 * BLOCK]).unwrap();
    volume.close().unwrap();
    image
}

fn check(image: &Path) {
    let volume = open(image);
    assert_eq!(volume.read("old").unwrap(), vec![7; 100 * BLOCK]);
    volume.close().unwrap();
}

#[test]
fn a_larger_journal_is_used_and_the_old_one_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let before = open(&image).statfs();
    for (bytes, lost) in [(4 * MIB, 3 * MIB), (9 * MIB, 8 * MIB)] {
        let info = ResizeOptions::new().journal_bytes(bytes).resize(&image).unwrap();
        assert_eq!((info.journal_blocks, info.features.2), (bytes / BLOCK as u64, 1));
        check(&image);
        let volume = open(&image);
        let after = volume.statfs();
        assert_eq!(before.free - after.free, lost / BLOCK as u64);
        assert_eq!(before.blocks - after.blocks, lost / BLOCK as u64, "{before:?} {after:?}");
        // Several laps of the ring.
        let file = OpenOptions::new().write(true).create(true).open(&volume, "new").unwrap();
        for round in 0..3 * bytes / (64 << 10) {
            file.set_xattr("user.round", vec![round as u8; 60_000]).unwrap();
            if round % 16 == 0 {
                file.sync_all().unwrap();
            }
        }
        drop(file);
        volume.close().unwrap();
        check(&image);
    }
    // All free space can be had, the old ring's included, and nothing of the new one's.
    let volume = open(&image);
    let mut written = 0;
    let file = OpenOptions::new().write(true).create(true).open(&volume, "full").unwrap();
    let full = loop {
        match file.write_all_at(&vec![3; MIB as usize], written) {
            Ok(()) => written += MIB,
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(full, ErrorKind::NoSpace);
    assert!(written > 40 * MIB, "{written}");
    drop(file);
    volume.close().unwrap();
    check(&image);
    let volume = open(&image);
    let mut bytes = volume.read("full").unwrap();
    bytes.truncate(written as usize);
    assert!(bytes.iter().all(|byte| *byte == 3));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let bytes = std::fs::read(&image).unwrap();
    let refused = |options: ResizeOptions, kind: ErrorKind, words: &str| {
        let error = options.resize(&image).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(std::fs::read(&image).unwrap() == bytes, "{words}: the image has changed");
    };
    let journal = |bytes| ResizeOptions::new().journal_bytes(bytes);
    refused(journal(MIB / 2), ErrorKind::Invalid, "smaller");
    refused(journal(17 * MIB), ErrorKind::Invalid, "a quarter of the volume, here 16 MiB");
    refused(ResizeOptions::new().size(32 * MIB), ErrorKind::Invalid, "smaller");
    refused(ResizeOptions::new().size(1 << 51), ErrorKind::Invalid, "1 PiB");
    refused(journal(100 * MIB).size(128 * MIB), ErrorKind::Invalid, "here 32 MiB");

    let volume = open(&image);
    let busy = journal(4 * MIB).resize(&image).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    // Nearly full: there is free space, but not in one piece.
    for number in 0.. {
        if volume.write(format!("f{number}"), vec![1; MIB as usize]).is_err() {
            break;
        }
    }
    for number in 0..20 {
        volume.remove_file(format!("f{}", 2 * number)).unwrap();
    }
    volume.close().unwrap();
    let error = journal(12 * MIB).resize(&image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("in one piece"), "{error}");
    check(&image);

    let other = directory.path().join("other");
    std::fs::write(&other, "no volume").unwrap();
    let error = ResizeOptions::new().size(64 * MIB).resize(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAVolume, "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), b"no volume");
}

#[test]
fn a_volume_grows_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let before = open(&image).statfs();
    let info = ResizeOptions::new().size(100 * MIB).resize(&image).unwrap();
    assert_eq!(info.blocks, 100 * MIB / BLOCK as u64);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 100 * MIB);
    check(&image);

    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(200 * MIB + 100).unwrap();
    let info = ResizeOptions::new().whole().journal_bytes(8 * MIB).resize(&image).unwrap();
    assert_eq!((info.blocks, info.journal_blocks), (200 * MIB / BLOCK as u64, 2048));
    check(&image);
    let volume = open(&image);
    let added = (200 - 64 - 7) * MIB / BLOCK as u64;
    let after = volume.statfs();
    assert_eq!(after.blocks - before.blocks, added);
    // The metadata pool may have grown with the volume.
    let free = after.free - before.free;
    assert!(free <= added && free + 2048 >= added, "{free} of {added}");
    let large = vec![9; 150 * MIB as usize];
    volume.write("large", &large).unwrap();
    volume.close().unwrap();
    assert!(open(&image).read("large").unwrap() == large);

    // Once more to the same size: nothing to do.
    let info = ResizeOptions::new().whole().resize(&image).unwrap();
    assert_eq!(info.blocks, 200 * MIB / BLOCK as u64);
    let error = ResizeOptions::new().size(200 * MIB + 4096).resize(&image).unwrap_err();
    assert!(error.to_string().contains("at least 64 KiB"), "{error}");
}

/// Free space before the old end of a volume and the space behind it were one run to a larger journal. Zeros
/// went over the second superblocks at the old end, which the old shape still needed.
#[test]
fn a_journal_does_not_lie_over_the_old_end() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let volume = open(&image);
    let most = volume.statfs().free * BLOCK as u64 - 10 * MIB;
    volume.write("large", vec![9; most as usize]).unwrap();
    volume.close().unwrap();
    let grown = |bytes| ResizeOptions::new().size(76 * MIB).journal_bytes(bytes).resize(&image);
    assert_eq!(grown(17 * MIB).unwrap_err().kind(), ErrorKind::NoSpace);
    check(&image);
    // It fits behind it.
    grown(11 * MIB).unwrap();
    check(&image);
}

#[test]
fn a_uuid_changes_and_streams_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
    let before = FormatOptions::new().size(64 << 20).format(&image).unwrap();
    FormatOptions::new().size(64 << 20).format(&copy).unwrap();
    quire::take_snapshot(&image, "first").unwrap();
    let stream = |from: Option<&str>, name: &str| {
        let volume = VolumeOptions::new().read_only(true).open(&image).unwrap();
        let options = from.map_or_else(quire::SendOptions::new, |from| quire::SendOptions::new().from(from));
        let mut stream = Vec::new();
        options.send(&volume, name, &mut stream, &mut |_| ()).unwrap();
        quire::ReceiveOptions::new().receive(&copy, &mut &stream[..], &mut |_| ()).unwrap();
    };
    stream(None, "first");
    assert_eq!(set_uuid(&image, Some([0; 16])).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(set_uuid(&image, Some([7; 16])).unwrap().uuid, [7; 16]);
    let random = set_uuid(&image, None).unwrap().uuid;
    assert!(random != [7; 16] && random != before.uuid);
    let volume = Volume::open(&image).unwrap();
    volume.write("note", "later").unwrap();
    assert_eq!(volume.info().uuid, random);
    volume.close().unwrap();
    quire::take_snapshot(&image, "second").unwrap();
    stream(Some("first"), "second");
    assert_eq!(Volume::open(&copy).unwrap().read("note").unwrap(), b"later");
    assert_eq!(set_uuid(&image, Some(before.uuid)).unwrap().uuid, before.uuid);
}

#[test]
fn a_label_changes_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let before = open(&image).info();
    assert_eq!(set_label(&image, "Vorräte").unwrap().label, "Vorräte");
    check(&image);
    let after = open(&image).info();
    assert_eq!((after.label.as_str(), after.uuid, after.blocks), ("Vorräte", before.uuid, before.blocks));
    assert_eq!(set_label(&image, &"x".repeat(65)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(set_label(&image, "").unwrap().label, "");
    check(&image);
}

/// Where `format` was to enlarge the image, it looked for a volume's second superblocks at the end that the
/// file was to get: a volume whose beginning was overwritten was taken for nothing, and overwritten.
#[test]
fn a_format_that_enlarges_an_image_looks_at_its_end() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&vec![0; MIB as usize], 0).unwrap();
    drop(file);
    for options in [FormatOptions::new(), FormatOptions::new().size(128 * MIB)] {
        let refused = options.format(&image).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        assert!(refused.to_string().contains("beginning was overwritten"), "{refused}");
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 * MIB);
    }
    FormatOptions::new().size(128 * MIB).force(true).format(&image).unwrap();
    Volume::open(&image).unwrap().close().unwrap();
}

/// A volume with an unfinished receive was not resized, but its file had grown already when that was said.
#[test]
fn an_unfinished_receive_keeps_the_size_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (volume(&directory), directory.path().join("target"));
    quire::take_snapshot(&source, "first").unwrap();
    FormatOptions::new().size(64 * MIB).format(&target).unwrap();
    let volume = VolumeOptions::new().read_only(true).open(&source).unwrap();
    let mut stream = Vec::new();
    quire::SendOptions::new().send(&volume, "first", &mut stream, &mut |_| ()).unwrap();
    let cut = &stream[..stream.len() - 1];
    let broken = quire::ReceiveOptions::new().receive(&target, &mut &cut[..], &mut |_| ()).unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::UnexpectedEof, "{broken}");
    let refused = ResizeOptions::new().size(128 * MIB).resize(&target).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 64 * MIB);
}

/// A resize enlarged the image file, let it go, and opened it again. Where a program came in between, the
/// resize failed, and the file was larger all the same.
#[test]
fn a_resize_keeps_the_image_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let image = volume(&directory);
    for size in (65..71).map(|size| size * MIB) {
        let is_over = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = std::fs::File::open(&image).unwrap();
                let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
                let goes_on = || !is_over.load(Ordering::Acquire);
                // Once the resize has the image, this takes it as soon as it can be had, and keeps it.
                while goes_on() && lock() {
                    flock(&file, FlockOperation::Unlock).unwrap();
                }
                while goes_on() && !lock() {}
                while goes_on() {
                    std::thread::yield_now();
                }
            });
            let outcome = ResizeOptions::new().size(size).resize(&image);
            is_over.store(true, Ordering::Release);
            outcome
        });
        let len = std::fs::metadata(&image).unwrap().len();
        assert_eq!(
            outcome.map(|info| info.blocks).map_err(|error| (error, len)).unwrap(),
            size / BLOCK as u64
        );
    }
    check(&image);
}
