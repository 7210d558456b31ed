//! Small cases, entirely: every crash point of a short workload, with every subset of the unflushed writes.
//!
//! Where more writes are unflushed than can be enumerated, the subsets are those of the newest ones with the
//! others kept, and those of the oldest with the others lost.
//!
//! Neighbours: [`crate::levels`] draws crashes of long workloads.

use crate::configurations::explore;
use crate::generate::{Profile, Style, steps};
use crate::image::{self, Thoroughness};
use crate::levels::base_model;
use crate::oracle::Oracle;
use crate::run;
use quire_device::simulated::CrashPolicy;

/// Goes through all crashes of so many operations of a seed's workload; gives the images examined. Up to
/// `bits` writes are enumerated at each crash point. An error names the crash.
pub fn run(seed: u64, operations: usize, style: Option<Style>, bits: u32) -> Result<u64, String> {
    let profile = Profile { faults: false, ..Profile::of(seed, style) };
    let start = run::format(&profile, seed)?;
    let once = Thoroughness {
        fsck_before: true,
        again: false,
        either_slot: false,
        delete_all: false,
        damaged: None,
    };
    let base = image::recover(&start, once)?;
    let alone = steps(seed, 1, operations).remove(0);
    let worked = run::work_alone(&start, &profile, &alone, 0)?;
    let configurations = explore(base_model(&base, true, &profile), &worked.threads)
        .map_err(|unexplained| unexplained.to_string())?;
    let oracle = Oracle::new(&base, &worked.threads, &configurations);
    let mut images = 0;
    for event in 0..=worked.ended {
        let writes = worked.device.unsafe_writes_at(event).unwrap_or(0) as u32;
        for kept in subsets(writes, bits) {
            let image = worked
                .device
                .crash_at(event, CrashPolicy::Subset { kept })
                .expect("an event of the workload");
            let told = |what: String| {
                format!("seed {seed}, crash after event {event}, writes {kept:#b} kept: {what}")
            };
            let thoroughness = Thoroughness { either_slot: images % 4 == 0, ..once };
            let found = image::recover(&image, thoroughness).map_err(told)?;
            for found in found.each() {
                if event >= worked.opened {
                    oracle.judge(event, found).map_err(told)?;
                } else if let Some(difference) = base.difference(found) {
                    return Err(told(format!("the opening changes the volume: {difference}")));
                }
            }
            images += 1;
        }
    }
    Ok(images)
}

/// Which of so many writes are kept, as bits.
fn subsets(writes: u32, bits: u32) -> Vec<u64> {
    let writes = writes.min(63);
    if writes <= bits {
        return (0..1 << writes).collect();
    }
    let rest = writes - bits;
    let newest = (0..1u64 << bits).map(|kept| kept << rest | ((1 << rest) - 1));
    let oldest = 0..1u64 << bits;
    newest.chain(oldest).collect()
}
