//! Live = recovered: after every operation, what is durable and what is seen are the same.
//!
//! One thread works; after each operation everything is synced, and the device as it is, with or without what
//! no flush has made safe, is recovered: fsck finds nothing, and names, attributes, contents and free space
//! are those of the live volume.
//!
//! Neighbours: [`crate::levels`] for crashes at all other moments.

use crate::generate::{Profile, Style, steps};
use crate::image::{self, State, Thoroughness};
use crate::operation::Outcome;
use crate::run::{self, Bench};
use quire::ErrorKind;
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// Does so many operations of a seed's workload; gives the images compared. An error says after what they
/// differ.
pub fn run(seed: u64, operations: usize, style: Option<Style>) -> Result<u64, String> {
    let profile = Profile { faults: false, ..Profile::of(seed, style) };
    let start = run::format(&profile, seed)?;
    let device = Arc::new(SimulatedBackend::from_image(start));
    let bench = Bench::open(device.clone(), &profile, false, 0)?;
    for (number, step) in steps(seed, 1, operations).remove(0).into_iter().enumerate() {
        let record = bench.step(step, &profile, true);
        let told =
            |what: String| format!("seed {seed}, after operation {number}, {:?}: {what}", record.operation);
        let volume = bench.volume();
        let is_wrong = match record.outcome {
            Outcome::Error(ErrorKind::Corrupt | ErrorKind::Shutdown | ErrorKind::Io) => true,
            Outcome::Error(ErrorKind::NoSpace) => {
                profile.style != Style::Full || !record.operation.may_take_space()
            }
            _ => false,
        };
        if is_wrong {
            return Err(told(format!("{:?}", record.outcome)));
        }
        // Recovery frees at once what else is freed in the background.
        volume.drain_orphans();
        image::finish_deletions(&volume).map_err(told)?;
        match volume.sync() {
            // A full volume says so, and what it could not write is not durable.
            Err(error) if error.kind() == ErrorKind::NoSpace && profile.style == Style::Full => continue,
            synced => synced.map_err(|error| told(format!("sync: {error}")))?,
        }
        let policy = if number % 2 == 0 { CrashPolicy::KeepAll } else { CrashPolicy::LoseAll };
        let live = State::take(&volume).map_err(told)?;
        let thoroughness = Thoroughness {
            fsck_before: true,
            again: number % 8 == 0,
            either_slot: number % 4 == 0,
            delete_all: number % 16 == 5,
            damaged: (number % 4 == 1).then_some(number as u64),
        };
        if let Outcome::Kept(number, read) = &record.outcome {
            let kept = live.kept.get(number).ok_or_else(|| told(format!("snapshot {number} is gone")))?;
            if let Some(difference) = kept.difference(read) {
                return Err(told(format!("snapshot {number}: {difference}")));
            }
        }
        let recovered = image::recover(&device.crash(policy), thoroughness).map_err(told)?;
        if let Some(difference) = recovered.each().find_map(|recovered| live.difference(recovered)) {
            return Err(told(format!("live against recovered: {difference}")));
        }
        // What is open without a name has its space still, until a crash.
        if !bench.nameless() {
            let now = image::fsck(&device.visible(), "fsck of the live volume").map_err(told)?;
            let (live, recovered) =
                (live.free_blocks + now.pool_blocks, recovered.free_blocks + recovered.pool_blocks);
            if live != recovered {
                return Err(told(format!(
                    "{live} blocks are free or the pool's live, {recovered} recovered"
                )));
            }
        }
    }
    image::no_violations(&device).map_err(|what| format!("seed {seed}: {what}"))?;
    device.cut_power(CrashPolicy::LoseAll);
    bench.abandon();
    Ok(operations as u64)
}
