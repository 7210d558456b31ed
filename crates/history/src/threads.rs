//! Histories of the system's own threads, as fast as the machine lets them: many short ones, with an exact
//! answer each, and a long one without a pause, for the polynomial check.
//!
//! What happens is up to chance; the seed only chooses what the threads do.
//!
//! Neighbours: [`crate::simulated`] does the same under a scheduler that repeats.

use crate::campaign::Tally;
use crate::generate::{BLOCK, Extent, Generator, LONG_BLOCKS, Plan};
use crate::graph::{self, Answer};
use crate::operation::{Event, Operation};
use crate::perform::Bench;
use crate::report;
use crate::simulated::{complete, drawn_style, follow, fresh_image, spawn};
use quire::inodes::{InodeRef, IoFlags};
use quire::{Volume, VolumeOptions};
use quire_base::random::Random;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_device::SimulatedBackend;
use quire_device::simulated::Hold;
use std::sync::Arc;
use std::time::Duration;

/// How much one run does.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Short histories.
    pub short: u64,
    /// Threads of the long one.
    pub threads: u64,
    /// Operations of each of them.
    pub operations: usize,
}

impl Default for Amount {
    fn default() -> Amount {
        Amount { short: 40, threads: 6, operations: 1500 }
    }
}

/// Contents that the check of a short history looks at before it gives up.
const STATES_MAX: usize = 100_000;
/// What a pause of the system's threads is.
const PAUSE: Duration = Duration::from_micros(300);

/// Does one run and checks it. Err: what is wrong, for people.
pub fn check(seed: u64, amount: &Amount) -> Result<Tally, String> {
    let mut random = Random::seeded(seed);
    let device = Arc::new(SimulatedBackend::from_image(fresh_image()?));
    device.stop_recording();
    let stop = Arc::new(AtomicBool::new(false));
    let completer = {
        let (device, stop, random) = (device.clone(), stop.clone(), Random::seeded(random.next_u64()));
        spawn("device", move || complete(&device, &stop, random))
    };
    device.set_hold(if random.one_in(3) { Hold::Nothing } else { Hold::Submitted });
    let worked = on_volume(&device, &mut random, amount);
    device.set_hold(Hold::Nothing);
    stop.store(true, Ordering::Release);
    completer.join().map_err(|_| "the device's thread panicked".to_owned())?;
    let tally = worked.map_err(|report| format!("seed {seed}: {report}"))?;
    match device.violations().first() {
        Some(violation) => Err(format!("seed {seed}: the device saw what it must not: {violation}")),
        None => Ok(tally),
    }
}

fn on_volume(device: &Arc<SimulatedBackend>, random: &mut Random, amount: &Amount) -> Result<Tally, String> {
    let told = |error: quire::Error| error.to_string();
    let options = VolumeOptions::new()
        .cache_bytes(if random.one_in(2) { 5 << 20 } else { 16 << 20 })
        .node_cache_bytes(1 << 20);
    let volume = options.open_backend(device.clone()).map_err(told)?;
    let other = Bench::other(&volume).map_err(told)?;
    let mut tally = Tally::default();
    for file in 0..amount.short {
        let style = drawn_style(random);
        let plan = Generator::new(random.next_u64(), style).plan(Extent { threads: 4, operations: 12 });
        let events = events(&volume, &other, &format!("short-{file}"), &plan)?;
        let decided = report::check(&events, STATES_MAX)
            .map_err(|report| format!("file {file}, style {}: {report}", style.name()))?;
        tally.histories += 1;
        tally.operations += events.len() as u64;
        tally.undecided += u64::from(!decided);
    }
    let events = events(&volume, &other, "long", &long_plan(random, amount))?;
    tally.operations += events.len() as u64;
    report::check_each(&events).map_err(|report| format!("the long history: {report}"))?;
    match graph::check(&events) {
        Answer::Consistent => (tally.histories, tally.graphs) = (tally.histories + 1, tally.graphs + 1),
        Answer::Contradiction(report) => return Err(format!("the long history: {report}")),
        Answer::NotTaken => return Err("the long history has operations that the check does not take".into()),
    }
    if let Some(error) = volume.failure() {
        return Err(format!("the volume shut down: {error}"));
    }
    drop(other);
    volume.close().map_err(told)?;
    Ok(tally)
}

fn long_plan(random: &mut Random, amount: &Amount) -> Plan {
    let all = LONG_BLOCKS * BLOCK;
    let setup = vec![Operation::Write { at: 0, len: all, flags: IoFlags::DIRECT }];
    let threads =
        (0..amount.threads).map(|_| Generator::long(random.next_u64(), amount.operations)).collect();
    let reads = [false, true].map(|direct| Operation::Read { at: 0, len: all, direct });
    Plan { setup, threads, end: reads.to_vec() }
}

fn events(volume: &Volume, other: &InodeRef, name: &str, plan: &Plan) -> Result<Vec<Event>, String> {
    let told = |error: quire::Error| error.to_string();
    let bench = Arc::new(Bench::new(volume, name, other, PAUSE).map_err(told)?);
    follow(&bench, plan)?;
    volume.inodes().remove_file(&volume.inodes().root(), name.as_bytes()).map_err(told)?;
    Ok(bench.events())
}
