//! A metadata pool that gives chunks back: every crash of that, and of the files that get the blocks then.
//!
//! Whatever a crash leaves is clean for fsck before and after recovery, from either superblock slot alone as
//! well; no space is lost, and what was synced is there. Snapshots have what they had.

use crate::images::on;
use quire::{ErrorKind, FormatOptions, Volume};
use quire_base::BLOCK_SIZE;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use sim::image::{self, State, Thoroughness};
use std::sync::Arc;

const VOLUME_BLOCKS: u64 = 16384;
/// Blocks of each file that is written behind the shrinking.
const FILE_BLOCKS: usize = 128;
const THOROUGHNESS: Thoroughness =
    Thoroughness { fsck_before: true, again: true, either_slot: true, delete_all: false, damaged: None };

fn open(device: &Arc<SimulatedBackend>) -> Volume {
    image::options().open_backend(device.clone()).unwrap()
}

fn pool_blocks(volume: &Volume) -> u64 {
    volume.metrics()["tree_pool_blocks"]
}

/// A volume that has had many names, so that its pool has grown, and has few now, or has orphans of them
/// where the new chunk `is_used`. Gives the blocks that the pool began with.
fn grown(is_used: bool) -> (Arc<SimulatedBackend>, Volume, u64) {
    let device = Arc::new(SimulatedBackend::new(VOLUME_BLOCKS));
    let format = FormatOptions::new().seed(3).clock(image::clock()).metadata_copies(1);
    format.format_backend(device.clone()).unwrap();
    let volume = open(&device);
    let began = pool_blocks(&volume);
    let mut names = Vec::new();
    volume.create_dir("many").unwrap();
    while pool_blocks(&volume) == began {
        let name = format!("many/{:0200}", names.len());
        volume.write(&name, b"").unwrap();
        names.push(name);
    }
    volume.write("n0", vec![7; 9 * BLOCK_SIZE]).unwrap();
    for name in names {
        volume.remove_file(name).unwrap();
        if !is_used {
            // One orphan at a time, so that few blocks of them are ever written.
            volume.drain_orphans();
        }
    }
    volume.remove_dir("many").unwrap();
    volume.sync().unwrap();
    volume.checkpoint().unwrap();
    (device, volume, began)
}

/// Fills the volume with files that are synced; gives by when each was.
fn fill(device: &SimulatedBackend, volume: &Volume) -> Vec<usize> {
    let mut synced = Vec::new();
    for number in 1..=u8::MAX {
        let name = format!("n{number}");
        match volume.write(&name, vec![number; FILE_BLOCKS * BLOCK_SIZE]) {
            Ok(()) => volume.sync().unwrap(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
        synced.push(device.event_count());
    }
    synced
}

/// Goes through the crashes; gives how many were tried, or the first that is wrong.
fn crashes() -> Result<u64, String> {
    let (device, volume, began) = grown(true);
    let from = device.event_count();
    let space = |found: &State| found.free_blocks + found.pool_blocks;
    let expected = space(&image::recover(&device.visible(), THOROUGHNESS)?);
    volume.background_step().map_err(|error| error.to_string())?;
    if pool_blocks(&volume) != began {
        return Err(format!("the pool has {} blocks still", pool_blocks(&volume)));
    }
    volume.sync().unwrap();
    let shrunk = device.event_count();
    let synced = fill(&device, &volume);
    let mut tried = 0;
    // Most of what follows is content of files, of which some crashes will do.
    let later = (shrunk + 1..=device.event_count()).step_by((device.event_count() - shrunk).div_ceil(12));
    for event in (from..=shrunk).chain(later) {
        let seed = event as u64;
        let writes = device.unsafe_writes_at(event).unwrap_or(0);
        let power =
            (0..if writes > 0 { 2 } else { 0 }).map(|fate| CrashPolicy::Power { seed: 100 * seed + fate });
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll].into_iter().chain(power) {
            let Some(crashed) = device.crash_at(event, policy) else { continue };
            let wrong = |what: String| format!("event {event} ({from}, {shrunk}), {policy:?}: {what}");
            let found = image::recover(&crashed, THOROUGHNESS).map_err(wrong)?;
            if event <= shrunk && space(&found) != expected {
                return Err(wrong(format!("{} blocks instead of {expected}", space(&found))));
            }
            let volume = image::options().read_only(true).open_backend(on(&crashed)).unwrap();
            let has = |name: &str, byte: u8, blocks: usize| {
                volume.read(name).is_ok_and(|bytes| bytes == vec![byte; blocks * BLOCK_SIZE])
            };
            let lost = synced
                .iter()
                .zip(1..)
                .find(|(end, number)| **end <= event && !has(&format!("n{number}"), *number, FILE_BLOCKS));
            if let Some((_, number)) = lost {
                return Err(wrong(format!("n{number} is lost")));
            }
            if !has("n0", 7, 9) {
                return Err(wrong("n0 is another one".into()));
            }
            tried += 1;
        }
    }
    Ok(tried)
}

/// A snapshot from before the shrinking, one from behind it, and one in which files have the chunk's blocks.
/// The first is deleted when no file has them any more. Says what is wrong with the third.
fn with_snapshots() -> Result<(), String> {
    let (device, volume, began) = grown(false);
    volume.take_snapshot("before").unwrap();
    volume.background_step().map_err(|error| error.to_string())?;
    if pool_blocks(&volume) == began {
        volume.write("n201", b"").unwrap();
        volume.take_snapshot("between").unwrap();
    }
    let files = fill(&device, &volume).len();
    volume.take_snapshot("files").unwrap();
    (1..=files).for_each(|number| volume.remove_file(format!("n{number}")).unwrap());
    volume.drain_orphans();
    volume.sync().unwrap();
    volume.delete_snapshot("before").unwrap();
    volume.sync().unwrap();
    // Where its blocks are free, they are these files' now.
    let _ = fill(&device, &volume);
    let kept = image::options().read_only(true).snapshot("files").open_backend(on(&device.visible()));
    let kept = kept.map_err(|error| error.to_string())?;
    for number in 1..=files as u8 {
        let bytes = kept.read(format!("n{number}")).map_err(|error| error.to_string())?;
        if bytes != vec![number; FILE_BLOCKS * BLOCK_SIZE] {
            return Err(format!("n{number} of the snapshot is another one"));
        }
    }
    volume.close().map_err(|error| error.to_string())?;
    image::recover(&device.visible(), THOROUGHNESS).map(drop)
}

#[test]
fn no_crash_of_a_shrinking_pool_loses_anything() {
    mistakes::with(None, || {
        let tried = crashes().unwrap_or_else(|wrong| panic!("{wrong}"));
        assert!(tried > 100, "{tried}");
    });
}

#[test]
fn a_pool_keeps_its_size_while_there_are_snapshots() {
    mistakes::with(None, || with_snapshots().unwrap_or_else(|wrong| panic!("{wrong}")));
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn each_mistake_is_found_by_its_case() {
    let early = mistakes::with(Some(Mistake::ChunkGivenUpEarly), || crashes().map(drop));
    let beside = mistakes::with(Some(Mistake::PoolShrinksUnderSnapshots), with_snapshots);
    for found in [early, beside] {
        println!("{found:?}");
        assert!(found.is_err(), "a mistake is not found");
    }
}
