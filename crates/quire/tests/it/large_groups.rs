//! Groups that no record of the journal takes: their content goes to fresh blocks, which one transaction
//! exchanges with the old ones.

use crate::common::{BLOCK, file, new_volume, options};
use crate::groups::{after_crash, read, read_direct, write};
use quire::inodes::{FallocateMode, InodeGroup, IoFlags};
use quire::{Commit, ErrorKind, FormatOptions, Properties, Unit, Volume};
use quire_base::random::Random;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold};
use quire_device::{IoClass, MemoryBackend, SimulatedBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: usize = 1 << 20;

/// A volume all of whose groups go to fresh blocks.
fn new_exchanging(blocks: u64) -> (Arc<SimulatedBackend>, Volume) {
    let (device, volume) = new_volume(blocks);
    volume.close().unwrap();
    let volume = options().group_record_bytes(0).open_backend(device.clone()).unwrap();
    (device, volume)
}

#[test]
fn a_group_larger_than_a_record_is_there_as_a_whole() {
    let (device, volume) = new_volume(16_384);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    write(&volume, &a, &vec![1; 6 * MIB], 0);
    write(&volume, &b, &[1; 100], 0);
    volume.sync().unwrap();
    // Dirty in the cache: the group takes it along where it writes, and only there.
    write(&volume, &a, &[7; BLOCK], MIB);
    write(&volume, &a, &[8; 10], 5 * MIB);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![2; 3 * MIB], MIB as u64 + 10).unwrap();
    group.write_at(&b, &[3; 9000], 50).unwrap();
    let mut wanted = read(&volume, &a);
    assert_eq!((wanted[MIB], wanted[MIB + 10]), (7, 7));
    wanted[MIB + 10..4 * MIB + 10].fill(2);
    let mut wanted_b = vec![1; 9050];
    wanted_b[50..].fill(3);
    group.commit(Commit::Ordered).unwrap();
    for _ in 0..2 {
        assert!(read(&volume, &a) == wanted && read_direct(&volume, &a) == wanted);
        assert!(read(&volume, &b) == wanted_b && read_direct(&volume, &b) == wanted_b);
        volume.checkpoint().unwrap();
    }
    // A write in place goes to the new blocks.
    volume.inodes().write_at(&a, &[9; BLOCK], 2 * MIB as u64, IoFlags::SYNC).unwrap();
    wanted[2 * MIB..2 * MIB + BLOCK].fill(9);
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a", "b"]);
    assert!(seen[0].as_ref() == Some(&wanted) && seen[1].as_ref() == Some(&wanted_b));
}

#[test]
fn a_commit_that_is_only_ordered_is_durable_with_the_next_force() {
    let (device, volume) = new_exchanging(4096);
    let a = file(&volume, "a");
    write(&volume, &a, &[1; 8 * BLOCK], 0);
    volume.sync().unwrap();
    let group = |byte: u8, commit| {
        let mut group = volume.inodes().atomic();
        group.write_at(&a, &[byte; 8 * BLOCK], 0).unwrap();
        group.commit(commit).unwrap();
    };
    let after = || after_crash(device.crash(CrashPolicy::LoseAll), &["a"])[0].clone().unwrap();
    group(2, Commit::Ordered);
    assert!(read(&volume, &a) == [2; 8 * BLOCK] && after() == [1; 8 * BLOCK]);
    volume.inodes().fsync(&a, true).unwrap();
    assert!(after() == [2; 8 * BLOCK], "an fsync of the file covers the group");
    group(3, Commit::Lazy(std::time::Duration::from_millis(1)));
    assert!(after() == [3; 8 * BLOCK]);
    group(4, Commit::Now);
    assert!(after() == [4; 8 * BLOCK]);
}

/// Writes and sizes in a group against a plain vector, over what plain writes have left dirty.
#[test]
fn a_group_does_what_its_writes_would_do() {
    for unit in [None, Some(4 * BLOCK as u64)] {
        let (device, volume) = new_exchanging(8192);
        let a = file(&volume, "a");
        if let Some(unit) = unit {
            let untorn = Some(Unit::from_bytes(unit).unwrap());
            volume.inodes().set_properties(&a, Properties { untorn, ..Properties::default() }).unwrap();
        }
        for seed in 0..150 {
            let mut random = Random::seeded(seed);
            let dirty = vec![random.below(256) as u8; 1 + random.below(9000) as usize];
            write(&volume, &a, &dirty, random.below(60_000) as usize);
            if random.below(5) == 0 {
                let mode = FallocateMode::PunchHole;
                volume.inodes().allocate(&a, mode, random.below(40_000), 1 + random.below(30_000)).unwrap();
            }
            let mut wanted = read(&volume, &a);
            let commit = if random.below(3) == 0 { Commit::Now } else { Commit::Ordered };
            let is_synced = commit == Commit::Now && random.below(2) == 0;
            if is_synced {
                volume.inodes().fsync(&a, false).unwrap();
            }
            let mut group: InodeGroup = volume.inodes().atomic();
            for _ in 0..1 + random.below(8) {
                if random.below(4) == 0 {
                    let size = random.below(60_000) as usize;
                    group.set_len(&a, size as u64).unwrap();
                    wanted.resize(size, 0);
                    continue;
                }
                let at = random.below(60_000) as usize;
                let data = vec![random.below(256) as u8; 1 + random.below(20_000) as usize];
                group.write_at(&a, &data, at as u64).unwrap();
                wanted.resize(wanted.len().max(at + data.len()), 0);
                wanted[at..at + data.len()].copy_from_slice(&data);
                let mut seen = vec![1; wanted.len() + 3];
                assert_eq!(group.read_at(&a, &mut seen, 0).unwrap(), wanted.len(), "seed {seed}");
                assert!(seen[..wanted.len()] == wanted, "seed {seed}, unit {unit:?}: in the group");
            }
            group.commit(commit).unwrap();
            assert!(read(&volume, &a) == wanted, "seed {seed}, unit {unit:?}");
            if seed % 8 == 0 {
                assert!(read_direct(&volume, &a) == wanted, "seed {seed}, unit {unit:?}");
            }
            if is_synced {
                let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
                assert!(seen[0].as_ref() == Some(&wanted), "seed {seed}, unit {unit:?}: after a crash");
            }
        }
        drop(a);
        volume.close().unwrap();
    }
}

/// Whatever moment a crash picks: all of a group or nothing, sizes included, and never less than what was
/// acknowledged.
#[test]
fn a_crash_leaves_all_of_a_group_or_nothing() {
    let (device, volume) = new_exchanging(4096);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    write(&volume, &a, &[0; 6 * BLOCK], 0);
    write(&volume, &b, &[0; 6 * BLOCK], 0);
    volume.sync().unwrap();
    let mut random = Random::seeded(7);
    // (events before, events after, durable at the end)
    let mut steps = vec![];
    for number in 1..=30u8 {
        let before = device.event_count();
        if random.below(2) == 0 {
            // Dirty, and covered by the group.
            write(&volume, &a, &[99; 3 * BLOCK], BLOCK);
        }
        let before = if random.below(2) == 0 { before } else { device.event_count() };
        let mut group = volume.inodes().atomic();
        for inode in [&a, &b] {
            let blocks = 4 + usize::from(number) % 5;
            group.set_len(inode, (blocks * BLOCK - 7) as u64).unwrap();
            group.write_at(inode, &vec![number; blocks * BLOCK - 7], 0).unwrap();
        }
        let now = random.below(2) == 0;
        group.commit(if now { Commit::Now } else { Commit::Ordered }).unwrap();
        if random.below(5) == 0 {
            volume.checkpoint().unwrap();
        }
        steps.push((before, device.event_count(), now));
    }
    for (seed, event) in (steps[0].0..=device.event_count()).enumerate() {
        for policy in [CrashPolicy::Power { seed: seed as u64 }, CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
            let Some(image) = device.crash_at(event, policy) else { continue };
            let seen = after_crash(image, &["a", "b"]);
            let (a, b) = (seen[0].as_ref().unwrap(), seen[1].as_ref().unwrap());
            let value = a[0];
            assert!(a == b && a.iter().all(|byte| *byte == value), "event {event}: there in part");
            let size = if value == 0 { 6 * BLOCK } else { (4 + usize::from(value) % 5) * BLOCK - 7 };
            assert_eq!(a.len(), size, "event {event}");
            let durable =
                steps.iter().rposition(|(_, end, now)| *now && *end <= event).map_or(0, |at| at + 1);
            let begun = steps.iter().filter(|(start, ..)| *start < event).count();
            assert!((durable..=begun).contains(&usize::from(value)), "event {event}: {value}");
        }
    }
}

/// What cannot be committed changes nothing, not even what was dirty.
#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (_, volume) = new_volume(8192);
    let a = file(&volume, "a");
    write(&volume, &a, &vec![1; 20 * MIB], 0);
    volume.sync().unwrap();
    write(&volume, &a, &[2; BLOCK], 4 * BLOCK);
    let wanted = read(&volume, &a);
    // Free space: the old blocks stay used until the new ones are durable.
    let mut group = volume.inodes().atomic();
    assert_eq!(group.write_at(&a, &vec![3; 14 * MIB], 0).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(group.is_empty());
    group.write_at(&a, &vec![3; 5 * MIB], 0).unwrap();
    assert_eq!(group.write_at(&a, &vec![4; 14 * MIB], 0).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(read(&volume, &a) == wanted && read_direct(&volume, &a) == wanted);
    group.commit(Commit::Now).unwrap();
    let wanted = [vec![3; 5 * MIB], wanted[5 * MIB..].to_vec()].concat();
    assert!(read(&volume, &a) == wanted && read_direct(&volume, &a) == wanted);
}

/// A refused write left the blocks that it had taken with the group, and then the commit found no room.
#[test]
fn a_refused_write_keeps_no_blocks() {
    let (_, volume) = new_volume(8192);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    volume.sync().unwrap();
    let before = available(&volume);
    for written in [5 * BLOCK, 2 * MIB] {
        let mut group = volume.inodes().atomic();
        group.write_at(&a, &vec![1; written], 0).unwrap();
        group.write_at(&b, &vec![1; 3 * BLOCK], 0).unwrap();
        let held = available(&volume);
        let much = vec![2; (held + 300) as usize * BLOCK];
        for len in [much.len(), much.len() - BLOCK] {
            let refused = group.write_at(&a, &much[..len], written as u64).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        }
        assert!(available(&volume) >= held, "{before}, {held}, {}", available(&volume));
        // Nor does one whose content is cut off again.
        group.write_at(&a, &vec![2; 9 * MIB], 0).unwrap();
        group.set_len(&a, written as u64).unwrap();
        group.commit(Commit::Now).unwrap();
        let wanted = vec![2; written];
        assert!(read(&volume, &a) == wanted && read(&volume, &b) == [1; 3 * BLOCK]);
        let used = (written / BLOCK + 3 + 512) as u64;
        assert!(before - available(&volume) <= used, "{before}, {}", available(&volume));
    }
}

/// A group of more than a record takes has a limit for its places, too.
#[test]
fn a_group_in_too_many_places_is_refused_and_stays_as_it_was() {
    let (device, volume) = new_volume(32_768);
    let a = file(&volume, "a");
    write(&volume, &a, &vec![1; 8 * MIB], 0);
    volume.sync().unwrap();
    let mut group = volume.inodes().atomic();
    let mut places = 0;
    let refused = loop {
        match group.write_at(&a, &[4; 10], places * 2 * BLOCK as u64) {
            Ok(()) => places += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused.kind(), places), (ErrorKind::TooLarge, 512), "{refused}");
    group.commit(Commit::Now).unwrap();
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    for (at, byte) in seen[0].as_ref().unwrap().iter().enumerate() {
        let is_written = at % (2 * BLOCK) < 10 && at / (2 * BLOCK) < 512;
        assert_eq!(*byte, if is_written { 4 } else { 1 }, "byte {at}");
    }
}

/// Only the commit sees how many extents the files have.
#[test]
fn a_file_in_too_many_pieces_is_refused() {
    let (_, volume) = new_volume(16_384);
    let a = file(&volume, "a");
    // Every other block is allocated and not written.
    volume.inodes().allocate(&a, FallocateMode::Allocate, 0, 2100 * BLOCK as u64).unwrap();
    for block in (0..2100).step_by(2) {
        volume.inodes().write_at(&a, &[1; BLOCK], (block * BLOCK) as u64, IoFlags::DIRECT).unwrap();
    }
    let before = read(&volume, &a);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![2; 2100 * BLOCK], 0).unwrap();
    assert_eq!(group.commit(Commit::Now).unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(read(&volume, &a) == before);
    // The volume goes on.
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![2; 600 * BLOCK], 0).unwrap();
    group.commit(Commit::Now).unwrap();
    assert!(read(&volume, &a)[..600 * BLOCK] == vec![2; 600 * BLOCK]);
}

/// Parts of blocks stay in memory. Groups share what they may have there; one that ends gives its part back.
#[test]
fn large_groups_share_the_memory_of_incomplete_blocks() {
    let (_, volume) = new_volume(32_768);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    let half = [1; BLOCK / 2];
    let mut first = volume.inodes().atomic();
    let mut halves = 0;
    let refused = loop {
        match first.write_at(&a, &half, halves * BLOCK as u64) {
            Ok(()) => halves += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::TooLarge, "{refused}");
    let held = halves as usize * half.len();
    assert!((15 * MIB..=16 * MIB).contains(&held), "{held}");
    let mut second = volume.inodes().atomic();
    assert_eq!(second.write_at(&b, &vec![1; 3 * MIB], 0).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(second.write_at(&b, &[1; 10 * BLOCK], 0).unwrap_err().kind(), ErrorKind::TooLarge);
    first.commit(Commit::Now).unwrap();
    second.write_at(&b, &vec![1; 3 * MIB], 0).unwrap();
    drop(second);
    let bytes = read(&volume, &a);
    for block in 0..halves as usize {
        assert_eq!((bytes[block * BLOCK], bytes[block * BLOCK + 2047]), (1, 1), "block {block}");
        assert!(block + 1 == halves as usize || bytes[block * BLOCK + 2048] == 0, "block {block}");
    }
}

/// Groups that a record takes were not counted. Programs that began many and ended none had the server's
/// memory.
#[test]
fn small_groups_share_the_memory_too() {
    let (_, volume) = new_volume(32_768);
    let a = file(&volume, "a");
    let part = vec![1; 16 * BLOCK];
    let mut groups = Vec::new();
    let refused = loop {
        let mut group = volume.inodes().atomic();
        match group.write_at(&a, &part, 0) {
            Ok(()) if groups.len() < 300 => groups.push(group),
            outcome => break outcome.expect_err("a limit"),
        }
    };
    assert_eq!((refused.kind(), groups.len()), (ErrorKind::TooLarge, 255), "{refused}");
    let mut late = volume.inodes().atomic();
    assert_eq!(late.write_at(&a, &part, 0).unwrap_err().kind(), ErrorKind::TooLarge);
    groups.pop().unwrap().commit(Commit::Now).unwrap();
    late.write_at(&a, &part, 0).unwrap();
    drop(groups.pop());
    late.write_at(&a, &part, part.len() as u64).unwrap();
    late.commit(Commit::Now).unwrap();
    assert!(read(&volume, &a) == vec![1; 2 * part.len()]);
}

fn available(volume: &Volume) -> u64 {
    volume.statfs().available
}

/// A group of several times the cache is there as a whole; one that is dropped gives its blocks back.
#[test]
fn a_group_larger_than_the_memory_streams() {
    let (device, volume) = new_volume(32_768);
    let a = file(&volume, "a");
    write(&volume, &a, &vec![1; 8 * MIB], 0);
    volume.sync().unwrap();
    let before = available(&volume);
    for ends in ["drop", "crash", "commit"] {
        let mut group = volume.inodes().atomic();
        let mut wanted = vec![0; 48 * MIB + 10];
        let mut random = Random::seeded(3);
        // Piece by piece, in any order, some twice.
        let mut places: Vec<usize> = (0..96).map(|place| place * MIB / 2 + 10).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, random.below(at as u64 + 1) as usize);
        }
        places.extend_from_within(..9);
        wanted[..10].fill(1);
        for (number, place) in places.iter().enumerate() {
            let data = vec![number as u8 | 128; MIB / 2];
            group.write_at(&a, &data, *place as u64).unwrap();
            wanted[*place..place + MIB / 2].copy_from_slice(&data);
        }
        assert!(before - available(&volume) >= 48 * 256, "the group has taken its blocks");
        let mut seen = vec![0; wanted.len() + 1];
        assert_eq!(group.read_at(&a, &mut seen, 0).unwrap(), wanted.len());
        assert!(seen[..wanted.len()] == wanted);
        assert!(read(&volume, &a) == vec![1; 8 * MIB]);
        match ends {
            "drop" => {
                drop(group);
                assert_eq!(available(&volume), before);
            }
            "crash" => {
                let found = after_crash(device.crash(CrashPolicy::KeepAll), &["a"]);
                assert!(found[0].as_ref().unwrap() == &vec![1; 8 * MIB]);
            }
            _ => {
                group.commit(Commit::Now).unwrap();
                assert!(read(&volume, &a) == wanted);
                let found = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
                assert!(found[0].as_ref() == Some(&wanted));
            }
        }
    }
    // What the commit did not need is back, too: the old blocks of the file pay for some of the new ones.
    assert!(before - available(&volume) <= 40 * 256 + 64, "{before}, {}", available(&volume));
}

/// A write to the device that fails while a group streams ends the group, and nothing else.
#[test]
fn a_group_that_could_not_stream_is_refused_for_good() {
    let (device, volume) = new_volume(16_384);
    let a = file(&volume, "a");
    write(&volume, &a, &[1; BLOCK], 0);
    volume.sync().unwrap();
    let mut group = volume.inodes().atomic();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).after(1).times(1));
    let failed = group.write_at(&a, &vec![2; 9 * MIB], 0).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert_eq!(group.write_at(&a, &[2], 0).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(group.commit(Commit::Now).unwrap_err().kind(), ErrorKind::Io);
    assert!(read(&volume, &a) == [1; BLOCK]);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![2; 9 * MIB], 0).unwrap();
    group.commit(Commit::Now).unwrap();
    assert!(read(&volume, &a) == vec![2; 9 * MIB]);
}

/// A commit held the file while it wrote the whole group.
#[test]
fn readers_and_writers_go_on_while_a_group_is_written() {
    let (device, volume) = new_volume(8192);
    let a = file(&volume, "a");
    write(&volume, &a, &[1; 4 * BLOCK], 0);
    volume.sync().unwrap();
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![2; MIB - 20 * BLOCK], 0).unwrap();
    group.write_at(&a, &[2; 20 * BLOCK], (MIB - 20 * BLOCK) as u64).unwrap();
    std::thread::scope(|scope| {
        device.set_hold(Hold::Everything);
        let commit = scope.spawn(|| group.commit(Commit::Ordered));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while device.held() == 0 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        // The group is being written.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (a, volume) = (&a, &volume);
        scope.spawn(move || {
            assert!(read(volume, a) == [1; 4 * BLOCK]);
            write(volume, a, &[3; 10], 0);
            write(volume, a, &[4; BLOCK], 300 * BLOCK);
            sender.send(()).unwrap();
        });
        let passed = receiver.recv_timeout(std::time::Duration::from_secs(60));
        device.set_hold(Hold::Nothing);
        while !commit.is_finished() {
            device.release(0);
            std::thread::yield_now();
        }
        passed.expect("others wait for the group's writes");
        commit.join().unwrap().unwrap();
    });
    let mut wanted = vec![0; 301 * BLOCK];
    wanted[..MIB].fill(2);
    wanted[300 * BLOCK..].fill(4);
    assert!(read(&volume, &a) == wanted);
}

/// Readers see all of a group or nothing, whatever they read.
#[test]
fn readers_beside_commits_see_whole_groups() {
    let (_, volume) = new_exchanging(8192);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    write(&volume, &a, &[0; 32 * BLOCK], 0);
    write(&volume, &b, &[0; 32 * BLOCK], 0);
    let done = AtomicBool::new(false);
    let inodes = volume.inodes();
    std::thread::scope(|scope| {
        for flags in [IoFlags::empty(), IoFlags::DIRECT] {
            let (a, b, done) = (&a, &b, &done);
            scope.spawn(move || {
                let (mut of_a, mut of_b) = (vec![0; 32 * BLOCK], vec![0; 32 * BLOCK]);
                while !done.load(Ordering::Relaxed) {
                    inodes.read_at(a, &mut of_a, 0, flags).unwrap();
                    inodes.read_at(b, &mut of_b, 0, flags).unwrap();
                    assert!(of_a.iter().all(|byte| *byte == of_a[0]), "{flags:?}");
                    assert!(of_b.iter().all(|byte| *byte == of_b[0]), "{flags:?}");
                    assert!(of_b[0] >= of_a[0], "{flags:?}: b is older than a");
                }
            });
        }
        for number in 1..=200u8 {
            let mut group = inodes.atomic();
            group.write_at(&a, &[number; 32 * BLOCK], 0).unwrap();
            group.write_at(&b, &[number; 32 * BLOCK], 0).unwrap();
            group.commit(Commit::Ordered).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Each file of a large group took blocks ahead as if it were the only one: a group of some dozens of files
/// found no space on a volume that was empty.
#[test]
fn a_group_over_many_files_does_not_empty_the_volume() {
    // A journal of 1 MiB takes a record for half as many files as one of 4.
    for (journal_bytes, count) in [(4 << 20, 512), (1 << 20, 248)] {
        let device = Arc::new(MemoryBackend::new(16384));
        FormatOptions::new().seed(1).journal_bytes(journal_bytes).format_backend(device.clone()).unwrap();
        let volume = options().open_backend(device).unwrap();
        let before = available(&volume);
        let files: Vec<_> = (0..513).map(|n| volume.create_file(format!("m{n}")).unwrap()).collect();
        let mut group = volume.atomic();
        for (n, file) in files.iter().enumerate() {
            match group.write_at(file, &[n as u8; 4096], 0) {
                Err(error) if n == count => assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}"),
                outcome => outcome.unwrap_or_else(|error| panic!("file {n}: {error}")),
            }
            if n == count {
                break;
            }
        }
        assert!(available(&volume) > before / 4, "{} of {before} blocks are left", available(&volume));
        group.commit(Commit::Now).unwrap();
        for n in 0..count {
            assert_eq!(volume.read(format!("m{n}")).unwrap(), [n as u8; 4096]);
        }
    }
}
