//! Histories under the scheduler that a seed decides: a whole volume on a simulated device whose completions
//! come in an order of their own, the engine's threads, and the threads of one file's history, several files
//! one after the other.
//!
//! Invariants: settings and seed decide everything; two runs give the same histories.
//!
//! Neighbours: [`crate::generate`] says what is done; [`crate::report`] checks it.

use crate::campaign::Tally;
use crate::generate::{Extent, Generator, Plan, Style};
use crate::graph::{self, Answer};
use crate::operation::Event;
use crate::perform::Bench;
use crate::report;
use parking_lot::Mutex;
use quire::{Clock, FormatOptions, Timestamp, VolumeOptions};
use quire_base::random::Random;
use quire_base::simulation;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::thread;
use quire_device::SimulatedBackend;
use quire_device::simulated::{Hold, Image};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a run is made from, beside its seed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which operations meet; None: as the seed has it.
    pub style: Option<Style>,
    /// Files of one run.
    pub files: u64,
    /// How much is done to each.
    pub extent: Extent,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { style: None, files: 6, extent: Extent { threads: 4, operations: 6 } }
    }
}

/// Blocks of the volume.
const BLOCKS: u64 = 24 << 8;
/// Points that the scheduler may pass in one run.
const STEPS_MAX: u64 = 20_000_000;
/// Contents that the check of one history looks at before it gives up.
const STATES_MAX: usize = 200_000;

/// What is done to the files of a run, one after the other.
#[derive(Clone, Copy)]
enum Work<'a> {
    Drawn(&'a Settings),
    Given(&'a Plan, u64),
}

impl Work<'_> {
    fn files(self) -> u64 {
        match self {
            Work::Drawn(settings) => settings.files,
            Work::Given(_, files) => files,
        }
    }

    fn plan(self, random: &mut Random) -> (Style, Plan) {
        match self {
            Work::Drawn(settings) => {
                let style = settings.style.unwrap_or_else(|| drawn_style(random));
                (style, Generator::new(random.next_u64(), style).plan(settings.extent))
            }
            Work::Given(plan, _) => (Style::Mixed, plan.clone()),
        }
    }
}

/// Does the run of a seed and checks its histories. Err: what is wrong, for people.
pub fn check(seed: u64, settings: &Settings) -> Result<Tally, String> {
    checked(seed, Work::Drawn(settings))
}

/// As [`check`], for so many files with one plan.
pub fn check_plan(seed: u64, plan: &Plan, files: u64) -> Result<Tally, String> {
    checked(seed, Work::Given(plan, files))
}

fn checked(seed: u64, work: Work<'_>) -> Result<Tally, String> {
    let (histories, steps) = worked(seed, work)?;
    let mut tally = Tally { steps, ..Tally::default() };
    for (file, (style, events)) in histories.iter().enumerate() {
        tally.histories += 1;
        tally.operations += events.len() as u64;
        let told = |report: String| format!("seed {seed}, file {file}, style {}: {report}", style.name());
        let decided = report::check(events, STATES_MAX).map_err(told)?;
        tally.undecided += u64::from(!decided);
        match graph::check(events) {
            Answer::Contradiction(report) if decided => {
                return Err(told(format!(
                    "one check has an order where the other says there is none: {report}"
                )));
            }
            Answer::Contradiction(report) => return Err(told(report)),
            Answer::Consistent => tally.graphs += 1,
            Answer::NotTaken => {}
        }
    }
    Ok(tally)
}

/// One file's style and history.
type History = (Style, Vec<Event>);

/// Does the run of a seed; its histories and the scheduler's points.
pub fn histories(seed: u64, settings: &Settings) -> Result<(Vec<History>, u64), String> {
    worked(seed, Work::Drawn(settings))
}

fn worked(seed: u64, work: Work<'_>) -> Result<(Vec<History>, u64), String> {
    // What was recorded is told even when the run fails.
    let kept: Mutex<Vec<Event>> = Mutex::new(Vec::new());
    let options = simulation::Options { seed, step_limit: STEPS_MAX };
    // Made before the run: it would be a part of the first one only.
    let image = fresh_image()?;
    let outcome = simulation::run(&options, || simulated(seed, &image, work, &kept));
    match outcome {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(format!("seed {seed}: {error}")),
        Err(failure) => {
            let mut text = format!("seed {seed}: {failure}\n");
            for event in kept.lock().iter() {
                text.push_str(&format!("  {event}\n"));
            }
            Err(text)
        }
    }
}

pub(crate) fn fresh_image() -> Result<Image, String> {
    static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
    IMAGE
        .get_or_init(|| {
            let device = Arc::new(SimulatedBackend::new(BLOCKS));
            let options = FormatOptions::new()
                .seed(1)
                .journal_bytes(1 << 20)
                .clock(Clock::simulated(Timestamp(1_000_000_000)));
            options.format_backend(device.clone()).map_err(|error| format!("mkfs: {error}"))?;
            Ok(device.visible())
        })
        .clone()
}

fn simulated(
    seed: u64,
    image: &Image,
    work: Work<'_>,
    kept: &Mutex<Vec<Event>>,
) -> Result<(Vec<History>, u64), String> {
    let mut random = Random::seeded(seed ^ 0x0041_5354_4f52_5921);
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    device.stop_recording();
    let stop = Arc::new(AtomicBool::new(false));
    let completer = {
        let (device, stop, random) = (device.clone(), stop.clone(), Random::seeded(random.next_u64()));
        spawn("device", move || complete(&device, &stop, random))
    };
    device.set_hold(
        [Hold::Nothing, Hold::Submitted, Hold::Submitted, Hold::Everything][random.below(4) as usize],
    );
    let worked = on_volume(&device, work, &mut random, kept);
    device.set_hold(Hold::Nothing);
    stop.store(true, Ordering::Release);
    completer.join().map_err(|_| "the device's thread panicked".to_owned())?;
    let histories = worked?;
    match device.violations().first() {
        Some(violation) => Err(format!("the device saw what it must not: {violation}")),
        None => Ok((histories, simulation::steps())),
    }
}

fn on_volume(
    device: &Arc<SimulatedBackend>,
    work: Work<'_>,
    random: &mut Random,
    kept: &Mutex<Vec<Event>>,
) -> Result<Vec<History>, String> {
    let told = |error: quire::Error| error.to_string();
    let options = VolumeOptions::new()
        .cache_bytes(if random.one_in(2) { 5 << 20 } else { 16 << 20 })
        .node_cache_bytes(1 << 20);
    let volume = options.open_backend(device.clone()).map_err(told)?;
    let other = Bench::other(&volume).map_err(told)?;
    let mut histories = Vec::new();
    for file in 0..work.files() {
        let (style, plan) = work.plan(random);
        let name = format!("file-{file}");
        let pause = Duration::from_millis([1, 200, 7_000][random.below(3) as usize]);
        let bench = Arc::new(Bench::new(&volume, &name, &other, pause).map_err(told)?);
        let done = follow(&bench, &plan);
        *kept.lock() = bench.events();
        done?;
        histories.push((style, bench.events()));
        let gone = volume.inodes().remove_file(&volume.inodes().root(), name.as_bytes());
        gone.map_err(told)?;
    }
    if let Some(error) = volume.failure() {
        return Err(format!("the volume shut down: {error}"));
    }
    drop(other);
    volume.close().map_err(told)?;
    Ok(histories)
}

/// Long requests cost more than the rest together: they are rarer.
pub(crate) fn drawn_style(random: &mut Random) -> Style {
    if random.one_in(25) {
        return Style::Large;
    }
    Style::ALL[random.below(Style::ALL.len() as u64 - 1) as usize]
}

/// Does a plan.
pub(crate) fn follow(bench: &Arc<Bench>, plan: &Plan) -> Result<(), String> {
    plan.setup.iter().for_each(|operation| bench.perform(0, operation));
    let workers: Vec<_> = plan
        .threads
        .iter()
        .enumerate()
        .map(|(number, operations)| {
            let (bench, operations) = (bench.clone(), operations.clone());
            spawn(&format!("worker-{}", number + 1), move || {
                operations.iter().for_each(|operation| bench.perform(number as u32 + 1, operation));
            })
        })
        .collect();
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked".to_owned())?;
    }
    bench.settle();
    plan.end.iter().for_each(|operation| bench.perform(0, operation));
    Ok(())
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread")
}

/// The device's own time: completes what is held, now soon, now late, in any order. Sleeps longer and longer
/// while there is nothing, so that a run in which nobody gets on reaches its end.
pub(crate) fn complete(device: &SimulatedBackend, stop: &AtomicBool, mut random: Random) {
    let mut idle = 0;
    while !stop.load(Ordering::Acquire) {
        if device.held() > 0 {
            idle = 0;
            if random.one_in(4) {
                let slow = if random.one_in(50) { 20_000 } else { 200 };
                thread::sleep(Duration::from_micros(1 + random.below(slow)));
            } else {
                device.release_one(&mut random);
            }
        } else {
            thread::sleep(Duration::from_micros(50 << idle));
            idle = (idle + 1).min(18);
        }
    }
    device.release_all(&mut random);
}
