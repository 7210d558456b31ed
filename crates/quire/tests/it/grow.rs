//! Volumes that grow while they are in use: under writers, full, with snapshots. What crashes leave is in
//! `crates/sim/tests/mistakes/grow.rs`.

use crate::common::{BLOCK, new_volume};
use quire::backend::MemoryBackend;
use quire::{AlignedBuf, ErrorKind, FormatOptions, OpenOptions, ScrubOptions, Volume, VolumeOptions};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const WRITERS: usize = 4;
/// Bytes of a writer's file.
const FILE_BYTES: usize = 64 << 10;

fn made(bytes: u64) -> Arc<MemoryBackend> {
    let device = Arc::new(MemoryBackend::new(bytes / BLOCK as u64));
    FormatOptions::new().format_backend(device.clone()).unwrap();
    device
}

fn open(device: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(12 * MIB).open_backend(device.clone()).unwrap()
}

fn image(directory: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let image = directory.path().join("a.img");
    FormatOptions::new().size(bytes).format(&image).unwrap();
    image
}

fn open_image(image: &Path) -> Volume {
    VolumeOptions::new().cache_bytes(12 * MIB).open(image).unwrap()
}

fn piece(name: &str, number: u64) -> Vec<u8> {
    let seed = name.bytes().fold(number, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    (0..FILE_BYTES as u64 / 8)
        .flat_map(|word| (seed ^ word.wrapping_mul(0x9E37_79B9)).to_le_bytes())
        .collect()
}

fn check_piece(volume: &Volume, name: &str, number: u64) {
    let found = volume.read(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(found == piece(name, number), "{name} is another one");
}

/// Writes files until there is no space for one more; gives how many there are.
fn fill(volume: &Volume, prefix: &str) -> u64 {
    for number in 0.. {
        let name = format!("{prefix}{number}");
        if let Err(error) = volume.write(&name, piece(&name, number)) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            take_away(volume, &name);
            return number;
        }
    }
    unreachable!()
}

/// Removes a file for which there was no space, perhaps not even for its name.
fn take_away(volume: &Volume, name: &str) {
    if let Err(error) = volume.remove_file(name) {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

fn check_filled(volume: &Volume, prefix: &str, count: u64) {
    (0..count).for_each(|number| check_piece(volume, &format!("{prefix}{number}"), number));
}

fn scrub(volume: &Volume) {
    let report = volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.damaged, report.lost.len()), (0, 0), "{report:?}");
}

/// Makes files, directly or through the cache, and reads them back; says how many.
fn work(volume: &Volume, writer: usize, rounds: &AtomicU64, stop: &AtomicBool) -> u64 {
    let direct = writer % 2 == 1;
    let options = || OpenOptions::new().read(true).write(true).create(true).direct(direct);
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}.{number}");
        let mut bytes = AlignedBuf::zeroed(FILE_BYTES);
        bytes.copy_from_slice(&piece(&name, number));
        let outcome = options().open(volume, &name).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            if number.is_multiple_of(3) { file.sync_data() } else { Ok(()) }
        });
        match outcome {
            Ok(()) => {
                check_piece(volume, &name, number);
                number += 1;
            }
            // The same again, until there is space for it.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                take_away(volume, &name);
                if let Some(last) = number.checked_sub(1) {
                    check_piece(volume, &format!("w{writer}.{last}"), last);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        rounds.fetch_add(1, Ordering::Release);
    }
    number
}

/// Readers and writers go on while the volume grows several times, over groups of the allocator, and what
/// they write to the new space is theirs after the next opening, too.
#[test]
fn a_volume_grows_under_writers() {
    let device = made(24 * MIB);
    let volume = open(&device);
    let (rounds, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let wait_for_more = |more: u64| {
        let (start, from) = (Instant::now(), rounds.load(Ordering::Acquire));
        while rounds.load(Ordering::Acquire) < from + more {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody gets on");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let kept: Vec<u64> = std::thread::scope(|scope| {
        let (volume, rounds, stop) = (&volume, &rounds, &stop);
        let spawn = |writer| scope.spawn(move || work(volume, writer, rounds, stop));
        let writers: Vec<_> = (0..WRITERS).map(spawn).collect();
        let mut bytes = 24 * MIB;
        for more in [1, 7, 24, 1200, 40] {
            wait_for_more(100);
            let before = volume.statfs();
            bytes += more * MIB;
            let info = volume.grow(bytes).unwrap();
            assert_eq!(info.blocks * BLOCK as u64, bytes);
            let after = volume.statfs();
            assert_eq!((after.blocks - before.blocks) * BLOCK as u64, more * MIB);
        }
        wait_for_more(400);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let check = |volume: &Volume| {
        for (writer, count) in kept.iter().enumerate() {
            assert!(*count > 10, "{kept:?}");
            check_filled(volume, &format!("w{writer}."), *count);
        }
        scrub(volume);
    };
    check(&volume);
    volume.close().unwrap();
    let volume = open(&device);
    assert_eq!(volume.info().blocks * BLOCK as u64, 1296 * MIB);
    check(&volume);
    volume.close().unwrap();
}

/// A volume without a free block grows, on an image file: its file gets longer, and all of the new space can
/// be had, and no more than that.
#[test]
fn a_full_volume_grows() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(&directory, 16 * MIB);
    let volume = open_image(&image);
    let mut filled = vec![("a".to_owned(), fill(&volume, "a"))];
    // To the last block, as far as data goes.
    let mut last = 0;
    while volume.write(format!("last{last}"), vec![1; BLOCK]).is_ok() {
        last += 1;
    }
    let _ = volume.remove_file(format!("last{last}"));
    volume.sync().unwrap();
    for (round, mib) in [17, 40, 64].into_iter().enumerate() {
        volume.grow(mib * MIB).unwrap();
        assert_eq!(std::fs::metadata(&image).unwrap().len(), mib * MIB);
        let space = volume.statfs();
        let prefix = format!("r{round}.");
        let count = fill(&volume, &prefix);
        let had = count * FILE_BYTES as u64 / BLOCK as u64;
        assert!(had > space.available / 2, "{had} of {space:?}");
        filled.push((prefix, count));
        volume.sync().unwrap();
    }
    let check =
        |volume: &Volume| filled.iter().for_each(|(prefix, count)| check_filled(volume, prefix, *count));
    check(&volume);
    volume.close().unwrap();
    let volume = open_image(&image);
    check(&volume);
    scrub(&volume);
    volume.trim(0..u64::MAX).unwrap();
    volume.close().unwrap();
}

/// Snapshots from before and after a growth can be read, deleted and rolled back to; the volume keeps its
/// new size.
#[test]
fn snapshots_of_both_sizes() {
    for (back_to, is_early) in [("late", false), ("early", true)] {
        let device = made(16 * MIB);
        let volume = open(&device);
        let old = fill(&volume, "old") - 8;
        (old..old + 8).for_each(|number| volume.remove_file(format!("old{number}")).unwrap());
        volume.take_snapshot("early").unwrap();
        volume.grow(48 * MIB).unwrap();
        for number in 0..20 {
            let name = format!("old{number}");
            volume.write(&name, piece(&name, number + 1000)).unwrap();
        }
        for number in 0..150 {
            let name = format!("new{number}");
            volume.write(&name, piece(&name, number)).unwrap();
        }
        volume.take_snapshot("late").unwrap();
        (0..100).for_each(|number| volume.remove_file(format!("new{number}")).unwrap());
        (0..10).for_each(|number| volume.remove_file(format!("old{number}")).unwrap());
        let early = volume.open_snapshot("early").unwrap();
        check_filled(&early, "old", old);
        assert!(early.read("new0").is_err());
        let late = volume.open_snapshot("late").unwrap();
        check_filled(&late, "new", 150);
        check_piece(&late, "old3", 1003);
        drop((early, late));
        let blocks = volume.statfs().blocks;
        volume.close().unwrap();

        if is_early {
            let volume = open(&device);
            volume.delete_snapshot("late").unwrap();
            volume.close().unwrap();
        }
        let info = quire::roll_back_backend(device.clone(), back_to).unwrap();
        assert_eq!(info.blocks * BLOCK as u64, 48 * MIB, "a rollback leaves the size");
        let volume = open(&device);
        assert_eq!(volume.statfs().blocks, blocks);
        match is_early {
            true => {
                check_filled(&volume, "old", old);
                assert!(volume.read("new0").is_err());
            }
            false => check_filled(&volume, "new", 150),
        }
        // The space behind the old end is there for files.
        let more = fill(&volume, "more");
        check_filled(&volume, "more", more);
        assert!(is_early == (more > 290), "{more}");
        scrub(&volume);
        (0..more).for_each(|number| volume.remove_file(format!("more{number}")).unwrap());
        volume.delete_snapshot("early").unwrap();
        if !is_early {
            volume.delete_snapshot("late").unwrap();
        }
        volume.grow(64 * MIB).unwrap();
        volume.close().unwrap();
        open(&device).close().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(&directory, 16 * MIB);
    let volume = open_image(&image);
    let refused = |bytes: u64, kind: ErrorKind, words: &str| {
        let error = volume.grow(bytes).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 16 * MIB);
    };
    refused(15 * MIB, ErrorKind::Invalid, "cannot be made smaller");
    refused(16 * MIB + 3 * BLOCK as u64, ErrorKind::Invalid, "at least 64 KiB");
    refused(1 << 51, ErrorKind::Invalid, "1 PiB");
    let frozen = volume.freeze().unwrap();
    refused(32 * MIB, ErrorKind::Busy, "frozen");
    drop(frozen);
    // Neither is anything done where nothing is to be done.
    assert_eq!(volume.grow(16 * MIB + 10).unwrap().blocks, 4096);
    assert_eq!(volume.grow_whole().unwrap().blocks, 4096);
    volume.close().unwrap();

    let reader = VolumeOptions::new().read_only(true).open(&image).unwrap();
    assert_eq!(reader.grow(32 * MIB).unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(reader);

    let (device, volume) = new_volume(4096);
    let error = volume.grow(32 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("has room for 16 MiB, 32 MiB were asked for"), "{error}");
    volume.close().unwrap();
    drop(device);
}

/// A file that has been enlarged from outside is taken whole, and the second copies of the superblocks are at
/// its end then.
#[test]
fn as_large_as_the_file_has_become() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(&directory, 16 * MIB);
    let volume = open_image(&image);
    volume.write("old", vec![3; 100 * BLOCK]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(80 * MIB + 100).unwrap();
    assert_eq!(volume.grow_whole().unwrap().blocks * BLOCK as u64, 80 * MIB);
    let count = fill(&volume, "new");
    assert!(count > 900, "{count}");
    volume.close().unwrap();
    // Either superblock's first copy is lost.
    use std::os::unix::fs::FileExt;
    for slot in [0, 8] {
        file.write_all_at(&[0; BLOCK], slot * BLOCK as u64).unwrap();
        let volume = open_image(&image);
        assert!(volume.recovery().second_copy.is_some());
        check_filled(&volume, "new", count);
        volume.close().unwrap();
    }
}
