//! Snapshots: crashes of taking one, of work beside several, of deleting one and of rolling back, with
//! several fates of the unflushed writes.
//!
//! Whatever a crash leaves is clean for fsck before and after recovery. Each snapshot that is there has what
//! the files had when it was taken. The volume has what it had when it was last synced, or what was written
//! since.

use crate::images::on;
use quire::internals::inspect::Image as Opened;
use quire::internals::snapshots;
use quire::{OpenOptions, Volume, roll_back_backend, take_snapshot_backend};
use quire_base::BLOCK_SIZE;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use sim::image::{self, Thoroughness};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const VOLUME_BLOCKS: u64 = 8192;
/// Crashes that are tried of one run.
const CRASHES: usize = 60;

type Files = BTreeMap<String, Vec<u8>>;

fn open(device: &Arc<SimulatedBackend>) -> Volume {
    image::options().open_backend(device.clone()).unwrap()
}

fn files(volume: &Volume) -> Files {
    let entries = volume.read_dir("/").unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let bytes = volume.read(&name).unwrap();
            (name, bytes)
        })
        .collect()
}

/// What each snapshot has that is not being deleted.
fn of_snapshots(image: &Image) -> BTreeMap<String, Files> {
    let table = snapshots::table(&Opened::load(on(image)).unwrap().tree).unwrap();
    let whole = table.into_iter().filter(|(_, snapshot)| snapshot.deleting.is_none());
    whole
        .map(|(_, snapshot)| {
            let options = image::options().read_only(true).snapshot(&snapshot.name);
            let volume = options.open_backend(on(image)).unwrap();
            (snapshot.name, files(&volume))
        })
        .collect()
}

fn block(seed: u8, number: usize) -> Vec<u8> {
    (0..BLOCK_SIZE).map(|at| seed ^ number as u8 ^ (at % 251) as u8).collect()
}

/// Changes files in the ways that free or overwrite their blocks.
fn work(volume: &Volume, round: u8) {
    let open =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).open(volume, name).unwrap();
    let file = open("n0");
    for at in [0usize, 3, 9] {
        file.write_all_at(&block(round, at), (at * BLOCK_SIZE) as u64).unwrap();
    }
    file.sync_all().unwrap();
    let cut = open("n1");
    cut.set_len(u64::from(20 - round) * BLOCK_SIZE as u64 + 77).unwrap();
    volume.write(format!("n{}", 10 + round), vec![round; 9 * BLOCK_SIZE]).unwrap();
    let _ = volume.remove_file(format!("n{}", 9 + round));
    volume.sync().unwrap();
}

/// A volume with snapshots `a`, `b` and `c`, closed; with what the files are, and were.
fn sample() -> (Image, Files, BTreeMap<String, Files>) {
    let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
    quire::FormatOptions::new().seed(3).clock(image::clock()).format_backend(device.clone()).unwrap();
    let volume = open(&device);
    for name in ["n0", "n1"] {
        volume.write(name, (0..20).flat_map(|at| block(0x80, at)).collect::<Vec<u8>>()).unwrap();
    }
    volume.close().unwrap();
    let mut taken = BTreeMap::new();
    for (round, name) in ["a", "b", "c"].into_iter().enumerate() {
        let volume = open(&device);
        work(&volume, round as u8);
        taken.insert(name.to_owned(), files(&volume));
        volume.close().unwrap();
        take_snapshot_backend(device.clone(), name).unwrap();
    }
    let volume = open(&device);
    work(&volume, 3);
    let now = files(&volume);
    volume.close().unwrap();
    (device.visible(), now, taken)
}

/// Says what is wrong with files, those of a volume and those of its snapshots.
type Check<'a> = &'a dyn Fn(&Files, &BTreeMap<String, Files>) -> Result<(), String>;

/// Crashes of what was done to a device; `check` says what is wrong with an image, or with what recovery
/// makes of it.
fn crashes(
    device: &Arc<SimulatedBackend>,
    taken: &BTreeMap<String, Files>,
    check: Check<'_>,
) -> Result<(), String> {
    crashes_with(device, 0..0, taken, check)
}

/// What recovery makes of a device whose power goes behind its last event, with all that may go.
fn afterwards(device: &SimulatedBackend) -> (Files, BTreeMap<String, Files>) {
    let image = device.crash_at(device.event_count(), CrashPolicy::LoseAll).unwrap();
    (files(&open(&on(&image))), of_snapshots(&image))
}

/// As [`crashes`], and before each event of `closely`.
fn crashes_with(
    device: &Arc<SimulatedBackend>,
    closely: Range<usize>,
    taken: &BTreeMap<String, Files>,
    check: Check<'_>,
) -> Result<(), String> {
    let thoroughness = Thoroughness { fsck_before: true, again: true, ..Thoroughness::default() };
    let events = device.event_count();
    let spread = (0..=events).step_by((events / CRASHES).max(1));
    for event in spread.filter(|event| !closely.contains(event)).chain(closely.clone()) {
        let seed = event as u64;
        let others = [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed }];
        for policy in
            others.into_iter().chain((0..2).map(|fate| CrashPolicy::Power { seed: 100 * seed + fate }))
        {
            let Some(crashed) = device.crash_at(event, policy) else { continue };
            let wrong = |what: String| format!("event {event} of {events}, {policy:?}: {what}");
            image::recover(&crashed, thoroughness).map_err(|found| wrong(found.to_string()))?;
            let recovered = on(&crashed);
            let volume = open(&recovered);
            let now = files(&volume);
            volume.close().unwrap();
            for image in [crashed, recovered.visible()] {
                let there = of_snapshots(&image);
                for (name, found) in &there {
                    if taken.get(name).is_some_and(|files| files != found) {
                        return Err(wrong(format!("snapshot {name} has changed")));
                    }
                }
                check(&now, &there).map_err(wrong)?;
            }
        }
    }
    Ok(())
}

fn taking() -> Result<(), String> {
    let (image, now, mut taken) = sample();
    let device = on(&image);
    taken.insert("d".into(), now.clone());
    take_snapshot_backend(device.clone(), "d").unwrap();
    crashes(&device, &taken, &|files, there| {
        if *files != now {
            Err("files have changed".into())
        } else if there.len() < 3 {
            Err("one is lost".into())
        } else {
            Ok(())
        }
    })?;
    match afterwards(&device).1.len() {
        4 => Ok(()),
        others => Err(format!("a snapshot that was taken is lost: {others} are there")),
    }
}

/// As [`taking`], of a volume in use, whose files have changes that nobody has synced.
fn taking_in_use() -> Result<(), String> {
    let (image, _, mut taken) = sample();
    let device = on(&image);
    let volume = open(&device);
    work(&volume, 4);
    let file = OpenOptions::new().read(true).write(true).open(&volume, "n0").unwrap();
    for at in [1usize, 3, 25] {
        file.write_all_at(&block(0x11, at), (at * BLOCK_SIZE) as u64).unwrap();
    }
    volume.write("n30", block(0x22, 0)).unwrap();
    taken.insert("d".into(), files(&volume));
    let before = device.event_count();
    volume.take_snapshot("d").unwrap();
    let cut = before..device.event_count();
    for at in [1usize, 25, 2] {
        file.write_all_at(&block(0x33, at), (at * BLOCK_SIZE) as u64).unwrap();
    }
    drop(file);
    let synced = [5, 6].map(|round| {
        work(&volume, round);
        volume.checkpoint().unwrap();
        files(&volume)
    });
    drop(volume);
    if files(&open(&on(&device.visible()))) != synced[1] {
        return Err("the volume has changed".into());
    }
    crashes_with(&device, cut.clone(), &taken, &|files, there| {
        if there.len() < 3 || !["n0", "n1"].iter().all(|name| files.contains_key(*name)) {
            Err(format!("{} snapshots are left, and the files {:?}", there.len(), files.keys()))
        } else {
            Ok(())
        }
    })?;
    match of_snapshots(&device.crash_at(cut.end, CrashPolicy::LoseAll).unwrap()).len() {
        4 => Ok(()),
        others => Err(format!("a snapshot that was taken is lost: {others} are there")),
    }
}

fn working() -> Result<(), String> {
    let (image, _, taken) = sample();
    let device = on(&image);
    let volume = open(&device);
    for round in 4..8 {
        work(&volume, round);
        volume.checkpoint().unwrap();
    }
    volume.close().unwrap();
    crashes(&device, &taken, &|_, there| {
        if there.len() == 3 { Ok(()) } else { Err(format!("{} snapshots are left", there.len())) }
    })
}

fn deleting(name: &str) -> Result<(), String> {
    let (image, now, taken) = sample();
    let device = on(&image);
    let volume = open(&device);
    volume.delete_snapshot(name).unwrap();
    // What was freed is used again.
    work(&volume, 9);
    volume.checkpoint().unwrap();
    work(&volume, 10);
    drop(volume);
    crashes(&device, &taken, &|files, there| {
        let others = there.keys().filter(|other| *other != name).count();
        if others != 2 || files.len() < now.len() - 1 {
            Err(format!("{others} others are left"))
        } else {
            Ok(())
        }
    })
}

fn rolling_back() -> Result<(), String> {
    let (image, now, taken) = sample();
    let device = on(&image);
    roll_back_backend(device.clone(), "c").unwrap();
    crashes(&device, &taken, &|files, there| {
        if there.len() != 3 {
            Err(format!("{} snapshots are left", there.len()))
        } else if *files != now && *files != taken["c"] {
            Err("the volume is neither what it was nor the snapshot".into())
        } else {
            Ok(())
        }
    })?;
    match afterwards(&device).0 == taken["c"] {
        true => Ok(()),
        false => Err("a rollback that had ended is lost".into()),
    }
}

fn all() -> Result<(), String> {
    taking()?;
    taking_in_use()?;
    working()?;
    for name in ["a", "b", "c"] {
        deleting(name)?;
    }
    rolling_back()
}

#[test]
fn snapshots_keep_what_they_have_whatever_crashes() {
    mistakes::with(None, || all().unwrap_or_else(|wrong| panic!("{wrong}")));
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn each_mistake_is_found_by_its_case() {
    let of_snapshots = [
        Mistake::SharedOverwritten,
        Mistake::SharedFreed,
        Mistake::DeadFreedEarly,
        Mistake::DeadNeverFreed,
        Mistake::KeptNodesReused,
        Mistake::SnapshotWithoutSync,
    ];
    for mistake in of_snapshots {
        // Some are met by an assertion of the engine first.
        let found = mistakes::with(Some(mistake), || std::panic::catch_unwind(all));
        assert!(!matches!(found, Ok(Ok(()))), "{mistake:?} is not found");
    }
}
