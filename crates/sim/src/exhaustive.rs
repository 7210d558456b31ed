//! Small cases: every crash point of a short workload, with subsets of the unflushed writes ([`run`]); and
//! every short program over a few operations, with a crash behind each ([`programs`]).
//!
//! A write is kept or lost as a whole; [`crate::levels`] tears some. Few unflushed writes give every subset.
//! Of more, the subsets are those of the newest ones with the others kept, and those of the oldest with the
//! others lost. Writes from the 64th on are always lost.
//!
//! Neighbours: [`crate::levels`] draws crashes of long workloads.

use crate::configurations::explore;
use crate::generate::{Profile, Style, steps};
use crate::image::{self, Thoroughness};
use crate::levels::base_model;
use crate::operation::Operation;
use crate::oracle::Oracle;
use crate::run::{self, Worked};
use quire_device::simulated::CrashPolicy;

/// Goes through all crashes of so many operations of a seed's workload; gives the images examined. Up to
/// `bits` writes are enumerated at each crash point. An error names the crash.
pub fn run(seed: u64, operations: usize, style: Option<Style>, bits: u32) -> Result<u64, String> {
    let profile = Profile { faults: false, ..Profile::of(seed, style) };
    let start = run::format(&profile, seed)?;
    let once = Thoroughness { fsck_before: true, ..Thoroughness::default() };
    let base = image::recover(&start, once)?;
    let alone = steps(seed, 1, operations).remove(0);
    let worked = run::work_alone(&start, &profile, &alone, 0)?;
    let configurations = explore(base_model(&base, true, &profile), &worked.threads)
        .map_err(|unexplained| unexplained.to_string())?;
    let oracle = Oracle::new(&base, &worked.threads, &configurations);
    judge_live(&oracle, &worked)?;
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

/// Goes through all programs of `length` operations out of `alphabet`, each on the volume that `prepared`
/// leaves, and followed by `last`. The power is cut behind each operation; what is unflushed is lost, or
/// kept. Gives the images examined. An error names the program.
pub fn programs(
    profile: &Profile,
    prepared: &[Operation],
    alphabet: &[Operation],
    length: u32,
    last: &Operation,
) -> Result<u64, String> {
    let fresh = run::format(profile, 1)?;
    let worked = run::perform_alone(&fresh, profile, prepared, 0)?;
    if let Some(failed) = worked.threads[0].iter().find(|record| !record.succeeded()) {
        return Err(format!("preparing: {failed:?}"));
    }
    let start = worked.device.crash_at(worked.ended, CrashPolicy::KeepAll).expect("the last event");
    let once = Thoroughness::default();
    let base = image::recover(&start, once)?;
    let mut images = 0;
    for number in 0..alphabet.len().pow(length) {
        let letters = (0..length).map(|at| number / alphabet.len().pow(at) % alphabet.len());
        let program: Vec<Operation> =
            letters.map(|letter| alphabet[letter].clone()).chain([last.clone()]).collect();
        let told = |what: String| format!("{program:?}: {what}");
        let worked = run::perform_alone(&start, profile, &program, 100).map_err(told)?;
        let configurations = explore(base_model(&base, true, profile), &worked.threads)
            .map_err(|unexplained| told(unexplained.to_string()))?;
        let oracle = Oracle::new(&base, &worked.threads, &configurations);
        judge_live(&oracle, &worked).map_err(told)?;
        for record in &worked.threads[0] {
            for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
                let event = record.events.1;
                let image = worked.device.crash_at(event, policy).expect("an event of the program");
                let told = |what: String| told(format!("crash behind {:?}, {policy:?}: {what}", record.id));
                let found = image::recover(&image, once).map_err(told)?;
                found.each().try_for_each(|found| oracle.judge(event, found)).map_err(told)?;
                images += 1;
            }
        }
    }
    Ok(images)
}

/// What can be said without a crash: what the device saw, and what was read of snapshots.
fn judge_live(oracle: &Oracle<'_>, worked: &Worked) -> Result<(), String> {
    image::no_violations(&worked.device)?;
    oracle.judge_reads().map(drop)
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
