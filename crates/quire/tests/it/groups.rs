//! Groups of writes and untorn units: what readers see, and what a crash leaves.

use crate::common::{BLOCK, clock, file, new_volume, options};
use quire::inodes::{FallocateMode, InodeGroup, InodeRef, IoFlags};
use quire::{Commit, ErrorKind, FormatOptions, OpenOptions, Properties, Unit, Volume, VolumeOptions};
use quire_base::random::Random;
use quire_device::simulated::{CrashPolicy, Image};
use quire_device::{MemoryBackend, SimulatedBackend};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub(crate) fn read(volume: &Volume, inode: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; inode.size() as usize];
    let read = volume.inodes().read_at(inode, &mut bytes, 0, IoFlags::empty()).unwrap();
    bytes.truncate(read);
    bytes
}

pub(crate) fn read_direct(volume: &Volume, inode: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; (inode.size() as usize).next_multiple_of(BLOCK)];
    let read = volume.inodes().read_at(inode, &mut bytes, 0, IoFlags::DIRECT).unwrap();
    bytes.truncate(read);
    bytes
}

pub(crate) fn write(volume: &Volume, inode: &InodeRef, data: &[u8], offset: usize) {
    volume.inodes().write_at(inode, data, offset as u64, IoFlags::empty()).unwrap();
}

fn found(volume: &Volume, name: &str) -> Option<Vec<u8>> {
    let inode = volume.inodes().lookup(&volume.inodes().root(), name.as_bytes()).ok()?;
    let cached = read(volume, &inode);
    assert_eq!(cached, read_direct(volume, &inode), "{name}: direct and buffered reads differ");
    Some(cached)
}

/// Opens what a crash has left, for writing and, before that, read-only: both must show the same.
pub(crate) fn after_crash(image: Image, names: &[&str]) -> Vec<Option<Vec<u8>>> {
    let device = Arc::new(SimulatedBackend::from_image(image));
    let seen = |read_only| -> Vec<Option<Vec<u8>>> {
        let volume = options().read_only(read_only).open_backend(device.clone()).unwrap();
        let seen = names.iter().map(|name| found(&volume, name)).collect();
        volume.close().unwrap();
        seen
    };
    let before = seen(true);
    let after = seen(false);
    assert!(before == after, "a read-only mount and recovery show different contents");
    assert!(seen(true) == after, "a second mount shows different contents");
    after
}

#[test]
fn a_group_is_seen_by_its_owner_alone_until_it_is_committed() {
    let (_, volume) = new_volume(4096);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    write(&volume, &a, &[1; 3 * BLOCK], 0);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[2; BLOCK], 100).unwrap();
    group.write_at(&a, &[3; 50], 60).unwrap();
    group.write_at(&b, &[4; 10], BLOCK as u64 - 5).unwrap();
    assert_eq!(read(&volume, &a), [1; 3 * BLOCK]);
    assert_eq!(b.size(), 0);
    assert_eq!(group.size(&b), BLOCK as u64 + 5);
    let mut wanted = vec![1; 3 * BLOCK];
    wanted[100..100 + BLOCK].fill(2);
    wanted[60..110].fill(3);
    let mut seen = vec![9; 3 * BLOCK + 7];
    assert_eq!(group.read_at(&a, &mut seen, 0).unwrap(), 3 * BLOCK);
    assert_eq!(seen[..3 * BLOCK], wanted);
    group.commit(Commit::Ordered).unwrap();
    assert_eq!(read(&volume, &a), wanted);
    assert_eq!(read_direct(&volume, &a), wanted);
    let b = read(&volume, &b);
    assert_eq!((b.len(), &b[..BLOCK - 5], &b[BLOCK - 5..]), (BLOCK + 5, &[0; BLOCK - 5][..], &[4; 10][..]));
}

#[test]
fn a_dropped_group_leaves_nothing() {
    let (_, volume) = new_volume(4096);
    let a = file(&volume, "a");
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[2; BLOCK], 0).unwrap();
    drop(group);
    volume.inodes().atomic().commit(Commit::Now).unwrap();
    assert_eq!(a.size(), 0);
}

/// Files were told apart by their numbers alone: the write went to the file of that number in the group's
/// volume.
#[test]
fn a_group_takes_files_of_its_volume_alone() {
    let ((_, volume), (_, other)) = (new_volume(4096), new_volume(4096));
    let (ours, theirs) = (file(&volume, "a"), file(&other, "a"));
    assert_eq!(ours.number(), theirs.number());
    let mut group = volume.inodes().atomic();
    group.write_at(&ours, &[1; 10], 0).unwrap();
    let refused = [
        group.write_at(&theirs, &[2; 10], 0),
        group.set_len(&theirs, 5),
        group.read_at(&theirs, &mut [0; 10], 0).map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::CrossDevice);
    }
    group.commit(Commit::Now).unwrap();
    assert_eq!((read(&volume, &ours), theirs.size()), (vec![1; 10], 0));
}

#[test]
fn the_group_of_an_open_file_tells_its_size() {
    let (_, volume) = new_volume(4096);
    let file = OpenOptions::new().read(true).append(true).create(true).open(&volume, "a").unwrap();
    file.append(b"0123456789").unwrap();
    let mut group = file.atomic();
    assert_eq!(group.size().unwrap(), 10);
    group.set_len(4).unwrap();
    assert_eq!(group.size().unwrap(), 4);
    group.write_at(b"xy", 6).unwrap();
    assert_eq!((group.size().unwrap(), file.metadata().len()), (8, 10));
    group.commit(Commit::Ordered).unwrap();
    let mut seen = [9; 10];
    assert_eq!(file.read_at(&mut seen, 0).unwrap(), 8);
    assert_eq!(&seen[..8], b"0123\0\0xy");
}

#[test]
fn a_group_that_finds_no_room_is_refused_and_stays_as_it_was() {
    let (_, volume) = new_volume(8192);
    let a = file(&volume, "a");
    let most = volume.group_bytes_max() as usize;
    assert!((20 << 20..32 << 20).contains(&most), "{most}");
    let much = 20 << 20;
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &vec![7; much], 0).unwrap();
    let refused = group.write_at(&a, &vec![8; much], much as u64).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    // What it has may be written over.
    group.write_at(&a, &[9; 3], 10).unwrap();
    group.commit(Commit::Now).unwrap();
    let mut wanted = vec![7; much];
    wanted[10..13].fill(9);
    assert!(read(&volume, &a) == wanted);
}

/// In a large folio one segment lock covers several blocks: a group that wrote two of them, with a gap
/// between, locked it twice and waited for itself.
#[test]
fn a_group_may_write_two_blocks_of_one_segment() {
    let (_, volume) = new_volume(4096);
    let a = file(&volume, "a");
    write(&volume, &a, &vec![1; 512 * BLOCK], 0);
    let mut group = volume.inodes().atomic();
    for block in [0, 2, 5, 40, 300] {
        group.write_at(&a, &[2; BLOCK], block * BLOCK as u64).unwrap();
    }
    group.commit(Commit::Now).unwrap();
    let bytes = read(&volume, &a);
    for (block, byte) in [(0, 2), (1, 1), (2, 2), (4, 1), (5, 2), (40, 2), (299, 1), (300, 2)] {
        assert_eq!(bytes[block * BLOCK], byte, "block {block}");
    }
    // The locks are free again.
    write(&volume, &a, &[3; 512 * BLOCK], 0);
}

/// Writes and sizes in a group against a plain vector.
#[test]
fn a_group_does_what_its_writes_would_do() {
    let (_, volume) = new_volume(4096);
    let a = file(&volume, "a");
    for seed in 0..200 {
        let mut random = Random::seeded(seed);
        let mut wanted = read(&volume, &a);
        let mut group: InodeGroup = volume.inodes().atomic();
        for _ in 0..1 + random.below(8) {
            if random.below(4) == 0 {
                let size = random.below(50_000) as usize;
                group.set_len(&a, size as u64).unwrap();
                wanted.resize(size, 0);
                assert_eq!(group.size(&a), size as u64);
                continue;
            }
            let at = random.below(40_000) as usize;
            let data = vec![random.below(256) as u8; 1 + random.below(9_000) as usize];
            group.write_at(&a, &data, at as u64).unwrap();
            wanted.resize(wanted.len().max(at + data.len()), 0);
            wanted[at..at + data.len()].copy_from_slice(&data);
            let mut seen = vec![1; wanted.len() + 3];
            assert_eq!(group.read_at(&a, &mut seen, 0).unwrap(), wanted.len(), "seed {seed}");
            assert!(seen[..wanted.len()] == wanted, "seed {seed}");
        }
        group.commit(Commit::Ordered).unwrap();
        assert!(read(&volume, &a) == wanted, "seed {seed}");
        if seed % 16 == 0 {
            volume.checkpoint().unwrap();
            assert!(read_direct(&volume, &a) == wanted, "seed {seed}");
        }
    }
}

/// A second write at the offset of a longer one took the longer one's tail out of the group.
#[test]
fn a_shorter_write_at_the_same_offset_keeps_the_tail() {
    let (_, volume) = new_volume(4096);
    let a = file(&volume, "a");
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[1; 100], 50).unwrap();
    group.write_at(&a, &[2; 30], 50).unwrap();
    group.commit(Commit::Ordered).unwrap();
    let mut wanted = vec![0; 150];
    wanted[50..150].fill(1);
    wanted[50..80].fill(2);
    assert_eq!(read(&volume, &a), wanted);
}

/// A group inside a file whose growth was not written yet was acknowledged as durable, and a crash took it
/// back: the size on disk stayed below it. An earlier version raised the size over zeros.
#[test]
fn a_group_inside_unwritten_growth_is_durable_with_what_lies_before_it() {
    let (device, volume) = new_volume(4096);
    let a = file(&volume, "a");
    volume.sync().unwrap();
    write(&volume, &a, &[1; 8 * BLOCK], 0);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[2; BLOCK], 4 * BLOCK as u64).unwrap();
    group.commit(Commit::Now).unwrap();
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    let wanted = [vec![1; 4 * BLOCK], vec![2; BLOCK]].concat();
    assert!(seen[0].as_deref() == Some(&wanted[..]), "the group, over what was written before it");
}

/// A truncate inside a unit is durable with what was written to the unit before it.
#[test]
fn a_truncate_that_cuts_a_unit_takes_earlier_writes_along() {
    let (device, volume) = new_volume(4096);
    let a = file(&volume, "a");
    let untorn = Some(Unit::from_bytes(4 * BLOCK as u64).unwrap());
    volume.inodes().set_properties(&a, Properties { untorn, ..Properties::default() }).unwrap();
    write(&volume, &a, &[1; 4 * BLOCK], 0);
    volume.sync().unwrap();
    write(&volume, &a, &[2; 4 * BLOCK], 0);
    volume.inodes().set_len(&a, 2 * BLOCK as u64 + 5).unwrap();
    // Records only.
    volume.checkpoint().unwrap();
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    assert!(seen[0].as_deref() == Some(&[2; 2 * BLOCK + 5][..]), "cut, and without the write before the cut");
}

/// A group that writes a part of a unit has what earlier writes left dirty in the rest of it.
#[test]
fn a_group_takes_whole_units() {
    let (device, volume) = new_volume(4096);
    let a = file(&volume, "a");
    let untorn = Some(Unit::from_bytes(4 * BLOCK as u64).unwrap());
    volume.inodes().set_properties(&a, Properties { untorn, ..Properties::default() }).unwrap();
    write(&volume, &a, &[1; 6 * BLOCK], 0);
    volume.sync().unwrap();
    write(&volume, &a, &[2; 6 * BLOCK], 0);
    let mut group = volume.inodes().atomic();
    for at in [BLOCK + 5, 4 * BLOCK + 5] {
        group.write_at(&a, &[3; 10], at as u64).unwrap();
    }
    group.commit(Commit::Now).unwrap();
    let mut wanted = vec![2; 6 * BLOCK];
    wanted[BLOCK + 5..BLOCK + 15].fill(3);
    wanted[4 * BLOCK + 5..4 * BLOCK + 15].fill(3);
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    assert!(seen[0].as_ref().unwrap() == &wanted, "a unit with the group and without the write before it");
}

/// What was written before a change of the unit was durable, but for the size.
#[test]
fn a_change_of_the_unit_makes_the_file_durable() {
    let (device, volume) = new_volume(4096);
    let a = file(&volume, "a");
    write(&volume, &a, &[1; 5000], 0);
    let untorn = Some(Unit::from_bytes(2 * BLOCK as u64).unwrap());
    volume.inodes().set_properties(&a, Properties { untorn, ..Properties::default() }).unwrap();
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    assert_eq!(seen[0].as_deref(), Some(&[1; 5000][..]));
}

/// Whatever moment a crash picks: all of a group or nothing, and never less than what was acknowledged.
#[test]
fn a_crash_leaves_all_of_a_group_or_nothing() {
    let (device, volume) = new_volume(4096);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    let blocks = 6;
    write(&volume, &a, &vec![0; blocks * BLOCK], 0);
    write(&volume, &b, &vec![0; blocks * BLOCK], 0);
    volume.sync().unwrap();
    let mut random = Random::seeded(7);
    // (events before, events after, durable at the end)
    let mut steps = vec![];
    for number in 1..=40u8 {
        let before = device.event_count();
        let mut group = volume.inodes().atomic();
        for inode in [&a, &b] {
            for block in 0..blocks {
                group.write_at(inode, &[number; BLOCK], (block * BLOCK) as u64).unwrap();
            }
        }
        let now = random.below(2) == 0;
        group.commit(if now { Commit::Now } else { Commit::Ordered }).unwrap();
        if random.below(5) == 0 {
            volume.checkpoint().unwrap();
        }
        steps.push((before, device.event_count(), now));
    }
    let first = steps[0].0;
    let last = device.event_count();
    for (seed, event) in (first..=last).enumerate() {
        for policy in [CrashPolicy::Power { seed: seed as u64 }, CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
            let Some(image) = device.crash_at(event, policy) else { continue };
            let seen = after_crash(image, &["a", "b"]);
            let (a, b) = (seen[0].as_ref().unwrap(), seen[1].as_ref().unwrap());
            let value = a[0];
            assert!(a.iter().chain(b).all(|byte| *byte == value), "event {event}: a group is there in part");
            let durable =
                steps.iter().rposition(|(_, end, now)| *now && *end <= event).map_or(0, |at| at + 1);
            let begun = steps.iter().filter(|(start, ..)| *start < event).count();
            assert!(
                (durable..=begun).contains(&usize::from(value)),
                "event {event}: {value} of {durable}..={begun}"
            );
        }
    }
}

/// A lazy commit forced what plain writes had left dirty in one of its files, and failed if that failed.
#[test]
fn a_lazy_commit_forces_its_record_alone() {
    let (device, volume) = new_volume(4096);
    let a = file(&volume, "a");
    write(&volume, &a, &[1; 4 * BLOCK], 0);
    volume.sync().unwrap();
    write(&volume, &a, &[2; BLOCK], 3 * BLOCK);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[3; BLOCK], 0).unwrap();
    group.commit(Commit::Lazy(Duration::from_millis(1))).unwrap();
    let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
    let bytes = seen[0].as_ref().unwrap();
    assert!(bytes[..BLOCK] == [3; BLOCK], "the group is durable");
    assert!(bytes[BLOCK..] == [1; 3 * BLOCK], "what is no part of it was not forced");
}

/// A lazy commit held back every freeze, snapshot and close, and with them all other changes, until somebody
/// forced. Those that force were among what it held back.
#[test]
fn a_lazy_commit_that_waits_holds_nobody_back() {
    let wait = Duration::from_secs(60);
    for closes in [false, true] {
        let device = Arc::new(MemoryBackend::new(4096));
        FormatOptions::new().format_backend(device.clone()).unwrap();
        let volume = VolumeOptions::new().commit_seconds(600).open_backend(device).unwrap();
        let inode = file(&volume, "a");
        let committer = {
            let (volume, inode) = (volume.clone(), inode.clone());
            std::thread::spawn(move || {
                let mut group = volume.inodes().atomic();
                group.write_at(&inode, &[1; 10], 0).unwrap();
                group.commit(Commit::Lazy(wait))
            })
        };
        while inode.size() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        if closes {
            drop(inode);
            volume.close().unwrap();
        } else {
            drop(volume.freeze().unwrap());
        }
        committer.join().unwrap().unwrap();
        assert!(start.elapsed() < wait / 2, "closes: {closes}");
    }
}

/// Commits whose durability is told later: visible at once, and durable when that is told.
#[test]
fn commits_that_nobody_waits_for() {
    for threads in [false, true] {
        let (device, volume) = new_volume(4096);
        let (a, b) = (file(&volume, "a"), file(&volume, "b"));
        volume.close().unwrap();
        drop((a, b));
        let volume = options().threads(threads).open_backend(device.clone()).unwrap();
        let found = |name: &str| volume.inodes().lookup(&volume.inodes().root(), name.as_bytes()).unwrap();
        let (a, b) = (found("a"), found("b"));
        let (told, ended) = mpsc::channel();
        for number in 1..=50 {
            let mut group = volume.inodes().atomic();
            group.write_at(&a, &[number; 100], 0).unwrap();
            group.write_at(&b, &[number; 100], 0).unwrap();
            let commit = match number % 3 {
                0 => Commit::Lazy(Duration::from_millis(5)),
                1 => Commit::Ordered,
                _ => Commit::Now,
            };
            let told = told.clone();
            group.commit_then(commit, Box::new(move |outcome| told.send((number, outcome)).unwrap()));
            assert_eq!(read(&volume, &a), [number; 100]);
        }
        volume
            .inodes()
            .atomic()
            .commit_then(Commit::Now, Box::new(move |outcome| told.send((51, outcome)).unwrap()));
        let mut numbers: Vec<u8> =
            ended.iter().map(|(number, outcome)| (number, outcome.unwrap()).0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=51).collect::<Vec<_>>(), "each was told once");
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a", "b"]);
        assert!(
            seen.iter().all(|file| file.as_deref() == Some(&[50; 100][..])),
            "threads {threads}: {seen:?}"
        );

        for commit in [Commit::Ordered, Commit::Lazy(Duration::ZERO), Commit::Now] {
            let mut group = volume.inodes().atomic();
            group.write_at(&a, b"future", 0).unwrap();
            group.commit_async(commit).unwrap().wait().unwrap();
        }
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert_eq!(&seen[0].as_ref().unwrap()[..6], b"future");
        volume.inodes().atomic().commit_async(Commit::Now).unwrap().wait().unwrap();
        drop((a, b));
        volume.close().unwrap();
    }
}

/// A block that a record would put back is written through the journal, by every writer: else a replay
/// would put an old version over what was fsynced later.
#[test]
fn what_is_written_after_a_group_survives_its_replay() {
    for direct in [false, true] {
        let (device, volume) = new_volume(4096);
        let a = file(&volume, "a");
        write(&volume, &a, &[1; 4 * BLOCK], 0);
        volume.sync().unwrap();
        let mut group = volume.inodes().atomic();
        group.write_at(&a, &[2; 4 * BLOCK], 0).unwrap();
        group.commit(Commit::Now).unwrap();
        let flags = if direct { IoFlags::DIRECT | IoFlags::SYNC } else { IoFlags::SYNC };
        volume.inodes().write_at(&a, &[3; 2 * BLOCK], BLOCK as u64, flags).unwrap();
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
            let seen = after_crash(device.crash(policy), &["a"]);
            let bytes = seen[0].as_ref().unwrap();
            assert!(bytes[..BLOCK] == [2; BLOCK] && bytes[3 * BLOCK..] == [2; BLOCK], "direct {direct}");
            assert!(bytes[BLOCK..3 * BLOCK] == [3; 2 * BLOCK], "direct {direct}: an old version came back");
        }
    }
}

/// Freed, zeroed and moved blocks: a replay puts nothing into a block that has become somebody else's or
/// reads as zeros, and finds blocks that have moved.
#[test]
fn replay_follows_blocks_that_are_freed_zeroed_or_moved() {
    for case in 0..5 {
        let (device, volume) = new_volume(4096);
        let inodes = volume.inodes();
        let a = file(&volume, "a");
        write(&volume, &a, &[1; 8 * BLOCK], 0);
        volume.sync().unwrap();
        let mut group = inodes.atomic();
        group.write_at(&a, &[2; 8 * BLOCK], 0).unwrap();
        group.commit(Commit::Now).unwrap();
        let mut wanted = vec![2; 8 * BLOCK];
        let (at, len) = (2 * BLOCK as u64, 3 * BLOCK as u64);
        match case {
            0 => {
                inodes.set_len(&a, at).unwrap();
                wanted.truncate(at as usize);
            }
            1 => {
                inodes.allocate(&a, FallocateMode::PunchHole, at, len).unwrap();
                wanted[2 * BLOCK..5 * BLOCK].fill(0);
            }
            2 => {
                inodes.allocate(&a, FallocateMode::ZeroRange { keep_size: true }, at, len).unwrap();
                wanted[2 * BLOCK..5 * BLOCK].fill(0);
            }
            3 => {
                inodes.allocate(&a, FallocateMode::Collapse, at, len).unwrap();
                wanted.truncate(5 * BLOCK);
            }
            _ => {
                inodes.allocate(&a, FallocateMode::Insert, at, len).unwrap();
                wanted.splice(2 * BLOCK..2 * BLOCK, vec![0; 3 * BLOCK]);
            }
        }
        volume.sync().unwrap();
        // What was freed gets a new owner, with data of its own.
        let b = file(&volume, "b");
        write(&volume, &b, &[5; 8 * BLOCK], 0);
        inodes.fsync(&b, false).unwrap();
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed: 1 }] {
            let seen = after_crash(device.crash(policy), &["a", "b"]);
            assert!(seen[0].as_ref().unwrap() == &wanted, "case {case}");
            assert!(seen[1].as_ref().unwrap() == &[5; 8 * BLOCK], "case {case}");
        }
    }
}

/// Each unit of a file holds, after a crash, one of the values that it had in the cache.
#[test]
fn a_crash_leaves_no_unit_in_part() {
    for (unit, seed) in [("4k", 1), ("8k", 2), ("16k", 3), ("64k", 4), ("128k", 5)] {
        let unit: Unit = unit.parse().unwrap();
        let bytes = unit.bytes() as usize;
        let (device, volume) = new_volume(8192);
        let inodes = volume.inodes();
        let a = file(&volume, "a");
        inodes.set_properties(&a, Properties { untorn: Some(unit), ..Properties::default() }).unwrap();
        let units = (1 << 20) / bytes;
        let mut random = Random::seeded(seed);
        let mut durable = vec![0u8; units];
        // (event, what was durable from there on)
        let mut history = vec![(device.event_count(), durable.clone())];
        let mut now = durable.clone();
        for _ in 0..60 {
            for _ in 0..1 + random.below(6) {
                let at = random.below(units as u64) as usize;
                now[at] = now[at].wrapping_add(1).max(1);
                // A write of a part would leave the unit uneven by itself.
                let flags = if random.below(4) == 0 { IoFlags::DIRECT } else { IoFlags::empty() };
                inodes.write_at(&a, &vec![now[at]; bytes], (at * bytes) as u64, flags).unwrap();
            }
            match random.below(8) {
                0 => volume.background_step().unwrap(),
                1 => volume.checkpoint().unwrap(),
                2 => {
                    let at = random.below(units as u64 - 1) as usize;
                    let (from, len) = (at * bytes, 2 * bytes);
                    inodes.allocate(&a, FallocateMode::PunchHole, from as u64, len as u64).unwrap();
                    now[at..at + 2].fill(0);
                }
                3..6 => {
                    inodes.fsync(&a, true).unwrap();
                    durable.clone_from(&now);
                }
                _ => {}
            }
            history.push((device.event_count(), durable.clone()));
        }
        let last = device.event_count();
        let step = ((last - history[0].0) / 150).max(1);
        for (seed, event) in (history[0].0..=last).step_by(step).enumerate() {
            let Some(image) = device.crash_at(event, CrashPolicy::Power { seed: seed as u64 }) else {
                continue;
            };
            let seen = after_crash(image, &["a"]);
            let Some(seen) = &seen[0] else { continue };
            for (number, unit) in seen.chunks(bytes).enumerate() {
                let value = unit[0];
                assert!(
                    unit.iter().all(|byte| *byte == value),
                    "unit {number} is there in part, event {event}"
                );
            }
        }
        assert!(volume.failure().is_none());
    }
}

/// A punch, or zeros over a range, that cut units leave none in part either.
#[test]
fn a_cut_unit_changes_as_a_whole() {
    let unit = 16 << 10;
    for zero in [false, true] {
        let (device, volume) = new_volume(8192);
        let inodes = volume.inodes();
        let a = file(&volume, "a");
        let untorn = Some(Unit::from_bytes(unit as u64).unwrap());
        inodes.set_properties(&a, Properties { untorn, ..Properties::default() }).unwrap();
        let before = vec![1; 4 * unit];
        write(&volume, &a, &before, 0);
        inodes.fsync(&a, false).unwrap();
        let start = device.event_count();
        let (from, to) = (unit + 5000, 3 * unit + 9000);
        let mode = if zero { FallocateMode::ZeroRange { keep_size: true } } else { FallocateMode::PunchHole };
        inodes.allocate(&a, mode, from as u64, (to - from) as u64).unwrap();
        volume.sync().unwrap();
        let mut after = before.clone();
        after[from..to].fill(0);
        assert!(read(&volume, &a) == after);
        for (seed, event) in (start..=device.event_count()).enumerate() {
            let Some(image) = device.crash_at(event, CrashPolicy::Power { seed: seed as u64 }) else {
                continue;
            };
            let seen = after_crash(image, &["a"]);
            for (number, found) in seen[0].as_ref().unwrap().chunks(unit).enumerate() {
                let part = number * unit..(number + 1) * unit;
                let whole = found == &before[part.clone()] || found == &after[part];
                assert!(whole, "unit {number} is there in part, event {event}, zero {zero}");
            }
        }
    }
}

/// A group that cuts a file frees what lies beyond with it, however many extents that is.
#[test]
fn a_crash_leaves_all_of_a_cutting_group_or_nothing() {
    for extents in [3, 200] {
        let (device, volume) = new_volume(8192);
        let (a, b) = (file(&volume, "a"), file(&volume, "b"));
        // Two files that grow in turns have an extent for each block.
        for block in 0..extents {
            for inode in [&a, &b] {
                write(&volume, inode, &[1; BLOCK], block * BLOCK);
                volume.inodes().fsync(inode, false).unwrap();
            }
        }
        let before = vec![1; extents * BLOCK];
        let mut after = vec![2; BLOCK + 10];
        after[BLOCK..].fill(1);
        let start = device.event_count();
        let mut group = volume.inodes().atomic();
        group.write_at(&a, &[2; BLOCK], 0).unwrap();
        group.set_len(&a, BLOCK as u64 + 10).unwrap();
        group.write_at(&b, &[3; 10], 0).unwrap();
        group.commit(Commit::Now).unwrap();
        let end = device.event_count();
        assert!(read(&volume, &a) == after);
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        for (seed, event) in (start..=device.event_count()).enumerate() {
            let Some(image) = device.crash_at(event, CrashPolicy::Power { seed: seed as u64 }) else {
                continue;
            };
            let seen = after_crash(image, &["a", "b"]);
            let (a, b) = (seen[0].as_ref().unwrap(), seen[1].as_ref().unwrap());
            let is_there = b[0] == 3;
            assert!(a == if is_there { &after } else { &before }, "{extents} extents, event {event}");
            assert!(is_there || event < end, "{extents} extents, event {event}: lost");
        }
        let free = volume.statfs().available;
        volume.inodes().set_len(&a, 0).unwrap();
        volume.sync().unwrap();
        assert!(volume.statfs().available <= free + 4, "blocks of the cut are still in use");
    }
}

/// A group of many small new files passed what a record holds by what stands beside their bytes. The commit
/// was refused as invalid, though the group had not reached its limit.
#[test]
fn many_files_in_a_group() {
    let device = Arc::new(MemoryBackend::new((512 << 20) / BLOCK as u64));
    FormatOptions::new().seed(1).clock(clock()).format_backend(device.clone()).unwrap();
    let volume = options().cache_bytes(64 << 20).open_backend(device).unwrap();
    let files: Vec<InodeRef> = (0..240).map(|number| file(&volume, &number.to_string())).collect();
    let mut group = volume.inodes().atomic();
    for file in &files {
        group.write_at(file, &[7; 2 * BLOCK], 0).unwrap();
    }
    group.commit(Commit::Now).unwrap();
    assert!((0..240).all(|number| volume.read(number.to_string()).unwrap() == [7; 2 * BLOCK]));
}

/// A commit needed a level of the stack for each file whose size it set, and nothing bounded their number: a
/// group of thousands ended the process.
#[test]
fn a_group_has_a_bounded_number_of_files() {
    let commit = || {
        let (_, volume) = new_volume(16_384);
        let files: Vec<InodeRef> = (0..5000).map(|number| file(&volume, &number.to_string())).collect();
        let mut group = volume.inodes().atomic();
        let outcomes: Vec<_> = files.iter().map(|file| group.set_len(file, 1)).collect();
        let (taken, refused) = outcomes.split_at(512);
        assert!(taken.iter().all(Result::is_ok));
        let is_refusal = |outcome: &quire::Result<()>| {
            outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooLarge)
        };
        assert!(refused.iter().all(is_refusal));
        assert!(is_refusal(&group.write_at(&files[512], &[1], 0)));
        group.write_at(&files[511], &[1], 0).unwrap();
        group.commit(Commit::Now).unwrap();
        assert!(files.iter().enumerate().all(|(number, file)| file.size() == u64::from(number < 512)));
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(commit).unwrap().join().unwrap();
}

/// A read took the file's size behind its bytes: what somebody appended in between was shown as zeros.
#[test]
fn a_group_shows_no_zeros_for_what_others_append() {
    let (_, volume) = new_volume(16_384);
    let a = file(&volume, "a");
    write(&volume, &a, &[255; BLOCK], 0);
    let mut group = volume.inodes().atomic();
    group.write_at(&a, &[255], 0).unwrap();
    std::thread::scope(|scope| {
        let append = || (1..4000).for_each(|block| write(&volume, &a, &[255; BLOCK], block * BLOCK));
        let appender = scope.spawn(append);
        let mut seen = vec![0; 4 * BLOCK];
        while !appender.is_finished() {
            let at = a.size() - BLOCK as u64;
            let read = group.read_at(&a, &mut seen, at).unwrap();
            let zero = seen[..read].iter().position(|byte| *byte == 0);
            assert_eq!(zero, None, "in {read} bytes from {at}");
        }
    });
}
