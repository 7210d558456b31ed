//! Blocks that are freed, and get another owner, while what the journal has of them is on its way home.
//!
//! A batch of homes is written without a lock. What frees or moves such blocks waits for the batch: else the
//! home could be the later one of two writes, over what the new owner has made durable.

use quire::{Commit, FormatOptions, Volume};
use quire_base::random::Random;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Hold, Image};
use sim::image;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 128;
/// Blocks of a group: few enough for a record.
const GROUP: usize = 8;
/// Blocks that are free beside those of the old file.
const SPARE: u64 = 200;
/// Microseconds after the start of a checkpoint within which the blocks become those of the other file. The
/// device takes 100 for each operation, on average.
const LATER_MAX: u64 = 400;
/// Runs without the mistake, and those within which it must be found.
const SEEDS: u64 = 16;
const SEEDS_MAX: u64 = 200;

/// Journals blocks by groups, and then has them written home while they become those of another file. The
/// device ends its operations in an order of the seed's. Gives what it has in the end.
fn reuse(volume: &Volume, device: &SimulatedBackend, seed: u64) -> Image {
    let old = volume.create_file("old").unwrap();
    old.write_all_at(&[1; BLOCKS * BLOCK], 0).unwrap();
    // Metadata takes some of it, too: in steps.
    let rest = volume.create_file("rest").unwrap();
    for free in std::iter::repeat_with(|| volume.statfs().available).take_while(|free| *free > SPARE) {
        rest.allocate(rest.metadata().size(), (free - SPARE).min(256) * BLOCK as u64).unwrap();
        volume.sync().unwrap();
    }
    for at in (0..BLOCKS).step_by(GROUP) {
        let mut group = old.atomic();
        group.write_at(&[2; GROUP * BLOCK], (at * BLOCK) as u64).unwrap();
        group.commit(Commit::Now).unwrap();
    }
    device.set_hold(Hold::Everything);
    let homes = {
        let volume = volume.clone();
        thread::Builder::new().spawn(move || volume.checkpoint().unwrap()).unwrap()
    };
    let mut random = Random::seeded(seed);
    let owner = {
        let volume = volume.clone();
        // A checkpoint does other things before a batch.
        let later = Duration::from_micros(random.below(LATER_MAX));
        let body = move || {
            thread::sleep(later);
            old.set_len(0).unwrap();
            volume.sync().unwrap();
            let new = volume.create_file("new").unwrap();
            // More than the spare blocks: it has some of the old file's.
            new.write_all_at(&[3; (SPARE as usize + BLOCKS - 24) * BLOCK], 0).unwrap();
            new.sync_all().unwrap();
        };
        thread::Builder::new().spawn(body).unwrap()
    };
    while !homes.is_finished() || !owner.is_finished() {
        thread::sleep(Duration::from_micros(random.below(200)));
        // The newest operation, mostly: what the checkpoint began before the blocks are freed ends late.
        match random.below(8) {
            0 => device.release_one(&mut random),
            _ => device.release(device.held().saturating_sub(1)),
        };
    }
    device.set_hold(Hold::Nothing);
    device.release_all(&mut random);
    homes.join().unwrap();
    owner.join().unwrap();
    device.crash(CrashPolicy::KeepAll)
}

/// What is wrong with the volume that a run leaves.
fn run(seed: u64) -> Result<(), String> {
    let body = move || {
        let device = Arc::new(SimulatedBackend::new(4096));
        let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(image::clock());
        format.format_backend(device.clone()).unwrap();
        let volume = image::options().threads(true).open_backend(device.clone()).unwrap();
        let left = reuse(&volume, &device, seed);
        drop(volume);
        left
    };
    let left = simulation::run(&Options { seed, step_limit: 10_000_000 }, body)
        .map_err(|error| format!("{error:?}"))?;
    let volume = image::options().open_backend(Arc::new(SimulatedBackend::from_image(left))).unwrap();
    match volume.read("new").unwrap().iter().all(|byte| *byte == 3) {
        true => Ok(()),
        false => Err(format!("seed {seed}: the new file has what the old one had")),
    }
}

#[test]
fn a_home_is_never_the_later_write() {
    mistakes::with(None, || (0..SEEDS).try_for_each(run)).unwrap();
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_batch_that_nobody_waits_for_is_found() {
    let wrong = mistakes::with(Some(Mistake::BatchNotAwaited), || (0..SEEDS_MAX).try_for_each(run));
    println!("{wrong:?}");
    assert!(wrong.unwrap_err().contains("had"));
}
