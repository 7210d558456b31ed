//! Snapshots that are taken while other threads append durably: a crash at every event, which loses all that
//! was not flushed.
//!
//! A reader of a snapshot replays no journal. So content that the journal has of it must be at home before
//! the snapshot can be found.

use super::every_crash;
use quire::inodes::{Create, IoFlags};
use quire::{ErrorKind, FormatOptions, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::Image;
use sim::image;
use std::sync::Arc;

const BLOCK: usize = 4096;
const LOGS: [&str; 3] = ["a", "b", "c"];
const APPENDS: u8 = 40;
const SNAPSHOTS: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// Runs without a mistake, and those within which it must be found: any change of the engine moves it.
const SEEDS: u64 = 16;
const SEEDS_MAX: u64 = 200;

fn append_durably(volume: &Volume, name: &str) {
    let inodes = volume.inodes();
    let log = inodes.create(&inodes.root(), name.as_bytes(), &Create::file(0o644)).unwrap();
    for byte in 1..=APPENDS {
        inodes.append(&log, &[byte; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
    }
}

/// The device of a run, and the events before it.
fn run(seed: u64) -> (Arc<SimulatedBackend>, usize) {
    let body = || {
        let device = Arc::new(SimulatedBackend::new(4096));
        FormatOptions::new().seed(1).clock(image::clock()).format_backend(device.clone()).unwrap();
        let volume = image::options().open_backend(device.clone()).unwrap();
        let from = device.event_count();
        let writers = LOGS.map(|name| {
            let volume = volume.clone();
            thread::Builder::new().spawn(move || append_durably(&volume, name)).unwrap()
        });
        SNAPSHOTS.iter().for_each(|name| drop(volume.take_snapshot(name).unwrap()));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        (device, from)
    };
    simulation::run(&Options { seed, step_limit: 3_000_000 }, body).unwrap()
}

/// Whether each snapshot that a crash left has the appends up to one of them.
fn look(image: Image) -> Result<(), String> {
    SNAPSHOTS.iter().try_for_each(|name| look_at_snapshot(&image, name))
}

fn look_at_snapshot(image: &Image, name: &str) -> Result<(), String> {
    let options = image::options().read_only(true).snapshot(name);
    let snapshot = match options.open_backend(Arc::new(SimulatedBackend::from_image(image.clone()))) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.unwrap(),
    };
    for log in LOGS {
        let Ok(bytes) = snapshot.read(log) else { continue };
        let wrong = |(block, byte): &(&[u8], u8)| block.iter().any(|found| found != byte);
        if let Some((_, byte)) = bytes.chunks(BLOCK).zip(1..).find(wrong) {
            return Err(format!("append {byte} of {} to {log} is not in {name}", bytes.len() / BLOCK));
        }
    }
    Ok(())
}

/// Goes through the crashes of so many runs; gives how many there were, and the first that is wrong.
fn crashes(seeds: u64) -> (u64, Option<String>) {
    let mut images = 0;
    for seed in 0..seeds {
        let (device, from) = run(seed);
        let (looked, wrong) = every_crash::look_at(&device, from, (0, 0), &mut look);
        images += looked;
        if let Some(wrong) = wrong {
            return (images, Some(format!("seed {seed}, {wrong}")));
        }
    }
    (images, None)
}

#[test]
fn content_of_a_snapshot_is_at_home() {
    let (images, wrong) = mistakes::with(None, || crashes(SEEDS));
    println!("{images} images");
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(images > 1000, "only {images} images");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_key_before_the_homes_is_found() {
    let wrong = mistakes::with(Some(Mistake::SnapshotKeyBeforeHomes), || crashes(SEEDS_MAX).1);
    println!("{wrong:?}");
    assert!(wrong.is_some());
}
