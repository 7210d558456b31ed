//! Snapshots that are taken while files without a name go, in the background.
//!
//! A snapshot is a checkpoint that a key in the tree keeps. Blocks that are freed after the checkpoint and
//! before the key are free on the volume, as nobody knows of the snapshot yet, and its maps have them.

use quire::{FormatOptions, OpenOptions, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use sim::image::{self, Thoroughness};
use std::sync::Arc;

const FILES: u32 = 60;
const SNAPSHOTS: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// Runs without the mistake, and those within which it must be found.
const SEEDS: u64 = 16;
const SEEDS_MAX: u64 = 200;

/// Files that are durable, have no name and are closed.
fn come_and_go(volume: &Volume) {
    for number in 0..FILES {
        let name = format!("n{number}");
        volume.write(&name, vec![number as u8; 40_000]).unwrap();
        let file = OpenOptions::new().read(true).open(volume, &name).unwrap();
        file.sync_all().unwrap();
        volume.remove_file(&name).unwrap();
    }
}

/// What is wrong with the volume that a run leaves.
fn run(seed: u64) -> Result<(), String> {
    let body = || {
        let device = Arc::new(SimulatedBackend::new(8192));
        FormatOptions::new().seed(1).clock(image::clock()).format_backend(device.clone()).unwrap();
        let volume = image::options().threads(true).open_backend(device.clone()).unwrap();
        let writer = {
            let volume = volume.clone();
            thread::Builder::new().spawn(move || come_and_go(&volume)).unwrap()
        };
        SNAPSHOTS.iter().for_each(|name| drop(volume.take_snapshot(name).unwrap()));
        writer.join().unwrap();
        volume.close().unwrap();
        device.visible()
    };
    let left = simulation::run(&Options { seed, step_limit: 10_000_000 }, body).unwrap();
    let thoroughness = Thoroughness { fsck_before: true, ..Thoroughness::default() };
    image::recover(&left, thoroughness).map(drop).map_err(|wrong| format!("seed {seed}: {wrong}"))
}

#[test]
fn what_a_snapshot_has_is_not_free() {
    mistakes::with(None, || (0..SEEDS).try_for_each(run)).unwrap();
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn blocks_freed_before_the_key_are_found() {
    let wrong = mistakes::with(Some(Mistake::FreedBeforeSnapshotKey), || (0..SEEDS_MAX).try_for_each(run));
    println!("{wrong:?}");
    assert!(wrong.is_err());
}
