//! Groups in files whose growth by plain writes is not on disk yet.

use crate::common::{BLOCK, clock, file, options};
use crate::groups::{after_crash, read, write};
use quire::inodes::{InodeRef, SetAttributes};
use quire::{Commit, FormatOptions, Properties, Unit, Volume};
use quire_device::simulated::{CrashPolicy, Event, Image};
use quire_device::{IoClass, SimulatedBackend};
use std::sync::Arc;

/// A volume whose groups go to fresh blocks, or into records.
pub(crate) fn new_volume(exchanges: bool) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(4096));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let options = if exchanges { options().group_record_bytes(0) } else { options() };
    (device.clone(), options.open_backend(device).unwrap())
}

/// Makes a file untorn, in units of so many blocks; 1: it stays as it is.
pub(crate) fn set_unit(volume: &Volume, inode: &InodeRef, blocks: usize) {
    if blocks > 1 {
        let untorn = Some(Unit::from_bytes((blocks * BLOCK) as u64).unwrap());
        volume.inodes().set_properties(inode, Properties { untorn, ..Properties::default() }).unwrap();
    }
}

/// A group inside such growth that had its files to itself, since it cut one, put the size on disk at its own
/// end. That is a size which the file never had, and a record behind the group put it right. A crash that
/// tore the journal write between the two hid bytes of a plain write.
/// Records before the group move the border between two blocks of the journal over these.
#[test]
fn no_crash_shows_the_end_of_a_group_as_the_end_of_a_file() {
    (0..64).for_each(tear_the_record_behind_a_group);
}

/// With so many records before the group.
fn tear_the_record_behind_a_group(records: u32) {
    const SIZE: usize = 9000;
    let (device, volume) = new_volume(false);
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let files: Vec<InodeRef> = names.iter().map(|name| file(&volume, name)).collect();
    let cut = file(&volume, "cut");
    volume.sync().unwrap();
    change_modes(&volume, &cut, records);
    let mut group = volume.inodes().atomic();
    for file in &files {
        write(&volume, file, &[1; SIZE], 0);
        group.write_at(file, &[2; 3], 6000).unwrap();
    }
    group.set_len(&cut, 10).unwrap();
    let start = device.event_count();
    group.commit(Commit::Now).unwrap();
    for image in images_that_tear_the_journal(&device, start) {
        let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        for name in &names {
            let size = after.read(name).unwrap().len();
            let is_whole = size == SIZE || size.is_multiple_of(BLOCK);
            assert!(is_whole, "{records} records before the group: {name} never had {size} bytes");
        }
    }
}

/// A group inside such growth is there after a crash, below a size that takes in whole blocks and units.
#[test]
fn a_group_earns_whole_blocks_and_units_of_what_it_lies_in() {
    for exchanges in [false, true] {
        for unit in [1, 4] {
            let (device, volume) = new_volume(exchanges);
            let a = file(&volume, "a");
            set_unit(&volume, &a, unit);
            volume.sync().unwrap();
            for (end, at) in [(50_000, 6000), (90_000, 50_010), (90_010, 90_005)] {
                let before = read(&volume, &a).len();
                write(&volume, &a, &vec![1; end - before], before);
                let mut group = volume.inodes().atomic();
                group.write_at(&a, &[2; 3], at as u64).unwrap();
                group.commit(Commit::Now).unwrap();
                let live = read(&volume, &a);
                assert_eq!(live.len(), end);
                let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
                let seen = seen[0].as_ref().unwrap();
                let case = format!("exchanges {exchanges}, unit {unit}, group at {at}");
                assert!(seen.len() >= at + 3, "{case}: {} bytes", seen.len());
                let is_whole = seen.len() == end || seen.len().is_multiple_of(unit * BLOCK);
                assert!(is_whole, "{case}: the file never had {} bytes", seen.len());
                assert!(seen[..] == live[..seen.len()], "{case}");
            }
        }
    }
}

/// A group that ended before the end on disk left the size where it was. But its fresh blocks held the whole
/// unit, and so the first bytes of a plain write that had made the file longer since. The record behind the
/// group put that right; a crash that tore the journal write between the two showed the write in part. (Found
/// by `sim`.)
#[test]
fn a_unit_that_a_group_writes_shows_plain_growth_in_it_whole() {
    const UNIT: usize = 4;
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    for records in 0..64 {
        let (device, volume) = new_volume(true);
        let files: Vec<InodeRef> = names.iter().map(|name| file(&volume, name)).collect();
        for file in &files {
            set_unit(&volume, file, UNIT);
            write(&volume, file, &[1; 9000], 0);
        }
        volume.sync().unwrap();
        change_modes(&volume, &files[0], records);
        let mut group = volume.inodes().atomic();
        for file in &files {
            write(&volume, file, &[2; 7000], 6000);
            group.write_at(file, &[3; 1000], 4000).unwrap();
        }
        let start = device.event_count();
        group.commit(Commit::Now).unwrap();
        for image in images_that_tear_the_journal(&device, start) {
            let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
            for name in &names {
                let seen = after.read(name).unwrap();
                let is_whole = seen.len() == 13_000 || seen[6000..].iter().all(|byte| *byte == 1);
                assert!(is_whole, "{records} records before the group: {name} has a plain write in part");
            }
        }
    }
}

/// Journals so many records.
fn change_modes(volume: &Volume, inode: &InodeRef, records: u32) {
    for mode in 0..records {
        let mode = SetAttributes { mode: Some(0o600 + mode % 2), ..SetAttributes::default() };
        volume.inodes().set_attributes(inode, &mode).unwrap();
    }
}

/// What a crash leaves that takes the last blocks of a journal write back, of those since event `start`.
fn images_that_tear_the_journal(device: &SimulatedBackend, start: usize) -> Vec<Image> {
    let mut images = Vec::new();
    for (index, event) in (start..).zip(device.events(start..device.event_count())) {
        let Event::WriteSubmitted { class: Some(IoClass::Journal), at, contents, .. } = event else {
            continue;
        };
        let kept = device.crash_at(index + 1, CrashPolicy::KeepAll).unwrap();
        let lost = device.crash_at(index, CrashPolicy::KeepAll).unwrap();
        let blocks = contents.len() as u64;
        for first_lost in blocks.saturating_sub(3)..=blocks {
            let mut image = kept.clone();
            for block in (first_lost..blocks).map(|block| at.offset(block)) {
                image.set(block, lost.get(block).cloned());
            }
            images.push(image);
        }
    }
    images
}

/// A size that was set inside the unit in which a file ends was durable before a plain write to that unit,
/// which it came after: only where the size falls was such a write put on disk first, not where it rises.
/// (Found by `sim`.)
#[test]
fn a_larger_size_in_a_unit_brings_the_writes_before_it() {
    const UNIT: usize = 16;
    for (exchanges, by_group) in [(false, false), (false, true), (true, true)] {
        let (device, volume) = new_volume(exchanges);
        let (a, other) = (file(&volume, "a"), file(&volume, "other"));
        set_unit(&volume, &a, UNIT);
        write(&volume, &a, &[1; 19 * BLOCK], 0);
        volume.sync().unwrap();
        write(&volume, &a, &[2; BLOCK], 17 * BLOCK);
        if by_group {
            let mut group = volume.inodes().atomic();
            group.set_len(&a, 30 * BLOCK as u64).unwrap();
            group.commit(Commit::Now).unwrap();
        } else {
            volume.inodes().set_len(&a, 30 * BLOCK as u64).unwrap();
            write(&volume, &other, &[3; 10], 0);
            volume.inodes().fsync(&other, false).unwrap();
        }
        let live = read(&volume, &a);
        let seen = after_crash(device.crash(CrashPolicy::LoseAll), &["a"]);
        assert!(seen[0].as_ref().unwrap() == &live, "exchanges {exchanges}, by a group {by_group}");
    }
}
