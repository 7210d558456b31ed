//! A scrub that a crash interrupts, and that goes on: every crash of a scrub of a volume that has a bad copy
//! of each second piece of metadata.
//!
//! Each checkpoint of a scrub stores how far it is. What lies before that position must be whole in the same
//! checkpoint: a scrub that goes on does not look there again.

use quire::{FormatOptions, ScrubOptions, ScrubReport, Volume};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use sim::{damage, image};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A volume with many nodes, each in two places, of which half have a bad copy.
fn damaged() -> Image {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(5).metadata_copies(2).clock(image::clock());
    format.format_backend(device.clone()).unwrap();
    let volume = open(&device);
    for number in 0..400 {
        volume.write(format!("a file with a long name, of number {number}"), [1; 10]).unwrap();
    }
    volume.close().unwrap();
    damage::at_rest(&device.visible(), 11).unwrap().expect("metadata is there twice").0
}

fn open(device: &Arc<SimulatedBackend>) -> Volume {
    image::options().open_backend(device.clone()).unwrap()
}

fn scrub(volume: &Volume, resume: bool) -> ScrubReport {
    volume.scrub(&ScrubOptions::new().resume(resume), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The crashes of a scrub; gives how many there were, and the first behind which a scrub that goes on leaves
/// something bad.
fn crashes() -> (u64, Option<String>) {
    let device = Arc::new(SimulatedBackend::from_image(damaged()));
    let volume = open(&device);
    let from = device.event_count();
    assert!(scrub(&volume, false).healed > 0);
    let mut images = 0;
    for event in from..=device.event_count() {
        for policy in [CrashPolicy::KeepAll, CrashPolicy::LoseAll, CrashPolicy::Power { seed: event as u64 }]
        {
            let Some(crashed) = device.crash_at(event, policy) else { continue };
            let again = open(&Arc::new(SimulatedBackend::from_image(crashed)));
            images += 1;
            scrub(&again, true);
            let left = scrub(&again, false);
            if left.damaged > 0 || !left.is_good() {
                return (images, Some(format!("event {event}, {policy:?}: {} are bad", left.damaged)));
            }
        }
    }
    (images, None)
}

#[test]
fn a_scrub_that_goes_on_leaves_nothing_bad() {
    let (images, wrong) = mistakes::with(None, crashes);
    println!("{images} images");
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(images > 20, "only {images} images");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn an_early_position_is_seen() {
    let mistake = Mistake::ScrubPositionEarly;
    let wrong = mistakes::with(Some(mistake), || crashes().1);
    println!("{mistake:?}: {wrong:?}");
    assert!(wrong.is_some(), "{mistake:?} is not found");
}
