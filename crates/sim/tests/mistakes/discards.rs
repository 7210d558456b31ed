//! Discards that are under way while other threads look for space.
//!
//! A discarded block holds nothing of value until its discard has ended: a write that it overtakes would be
//! lost. So nobody is given such a block (J2), and the device never has a write and a discard of one block in
//! flight.

use quire::{FormatOptions, Volume};
use quire_base::random::Random;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::simulation::{self, Options};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::Hold;
use sim::image;
use std::sync::Arc;
use std::time::Duration;

const FILES: u8 = 12;
const FILE_BYTES: usize = 100_000;
/// Runs without the mistake, and those within which it must be found.
const SEEDS: u64 = 16;
const SEEDS_MAX: u64 = 50;

fn spawn(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().spawn(body).unwrap()
}

/// Writes files while all free space is discarded. The device ends its operations in an order of the seed's.
fn write_beside_trims(volume: &Volume, device: &Arc<SimulatedBackend>, seed: u64) {
    device.set_hold(Hold::Everything);
    let writer = spawn({
        let volume = volume.clone();
        move || {
            for number in 0..FILES {
                let file = volume.create_file(format!("n{number}")).unwrap();
                file.write_all_at(&vec![number; FILE_BYTES], 0).unwrap();
                file.sync_all().unwrap();
            }
        }
    });
    let trimmer = spawn({
        let volume = volume.clone();
        move || {
            for _ in 0..3 {
                volume.trim(0..u64::MAX).unwrap();
            }
        }
    });
    let mut random = Random::seeded(seed);
    while !writer.is_finished() || !trimmer.is_finished() {
        thread::sleep(Duration::from_micros(random.below(200)));
        device.release_one(&mut random);
    }
    device.set_hold(Hold::Nothing);
    device.release_all(&mut random);
    writer.join().unwrap();
    trimmer.join().unwrap();
}

/// What is wrong with a run.
fn run(seed: u64) -> Result<(), String> {
    let body = move || {
        let device = Arc::new(SimulatedBackend::new(8192));
        FormatOptions::new().seed(1).clock(image::clock()).format_backend(device.clone()).unwrap();
        let volume = image::options().threads(true).open_backend(device.clone()).unwrap();
        write_beside_trims(&volume, &device, seed);
        for number in 0..FILES {
            assert!(volume.read(format!("n{number}")).unwrap().iter().all(|byte| *byte == number));
        }
        device
    };
    let device = simulation::run(&Options { seed, step_limit: 10_000_000 }, body)
        .map_err(|failure| format!("seed {seed}: {failure:?}"))?;
    image::no_violations(&device).map_err(|what| format!("seed {seed}: {what}"))
}

#[test]
fn no_block_is_given_out_during_its_discard() {
    mistakes::with(None, || (0..SEEDS).try_for_each(run)).unwrap();
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_block_given_out_during_its_discard_is_found() {
    let wrong = mistakes::with(Some(Mistake::GivenOutDuringDiscard), || (0..SEEDS_MAX).try_for_each(run));
    println!("{wrong:?}");
    assert!(wrong.unwrap_err().contains("in flight"));
}
