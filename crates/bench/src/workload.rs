//! The workloads: what is done to an engine, and which figures come of it.
//!
//! A workload is handed a fresh target, prepares it, measures, and gives a [`Sample`]; samples of several
//! rounds add up, and the figures are made from the sum.

pub mod append;
pub mod creat;
pub mod dirty;
pub mod fsync;
pub mod group;
pub mod mixed;
pub mod orphan;
pub mod scale;
pub mod snapshot;
pub mod tail;
pub mod untorn;

use crate::arguments::Workload;
use crate::drive::{Part, Stage, Surroundings, Timed, Until, drive};
use crate::engine::Kind;
use crate::outcome::{Outcome, Trouble};
use crate::sample::{Figures, Sample};
use crate::target::{Counters, Handle, Target};
use quire_base::Result;
use quire_base::random::Random;
use quire_device::AlignedBuf;
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// What a run gives a workload.
pub struct Context<'a> {
    /// Measured time of a round in seconds, if it was asked for.
    pub seconds: Option<f64>,
    /// Seed of all chance.
    pub seed: u64,
    /// Ctrl-C and progress.
    pub surroundings: &'a Surroundings<'a>,
}

/// Measured time where neither a time nor a number of operations was asked for.
const SECONDS: f64 = 10.0;

impl Context<'_> {
    /// The measured time.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS))
    }

    /// A stream of chance of its own for each thread of each role.
    pub fn random(&self, role: u64, thread: usize) -> Random {
        Random::seeded(self.seed ^ (role << 48) ^ ((thread as u64 + 1) << 32))
    }

    /// Shows what begins; fails once Ctrl-C was pressed.
    pub fn phase(&self, name: &str) -> Outcome {
        self.surroundings.progress.phase(name);
        self.surroundings.interrupt.check()
    }
}

/// A workload with its options.
pub trait Work {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// Its options, for the JSON.
    fn params(&self) -> Map<String, Value>;
    /// Bytes of its files together.
    fn file_bytes(&self) -> u64;
    /// Files that it makes at most, where an engine must know.
    fn files(&self) -> u64 {
        0
    }
    /// Bytes that an image needs for it, `seconds` long.
    fn device_bytes(&self, seconds: f64) -> u64;
    /// Why it cannot run on an engine of this kind, if it cannot.
    fn refuses(&self, kind: &Kind) -> Option<String>;
    /// Prepares and measures.
    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample>;
    /// The figure that engines are compared by; more is better.
    fn headline(&self) -> &'static str;
    /// The figures, in the order in which they are shown.
    fn figures(&self, sample: &Sample) -> Figures;
}

/// The workload of a command line, or what is wrong with its options.
pub fn make(workload: &Workload) -> Outcome<Box<dyn Work>> {
    Ok(match workload {
        Workload::Mixed { options, .. } => {
            Box::new(mixed::Mixed::new(options.clone()).map_err(Trouble::Usage)?)
        }
        Workload::Dirty { options, .. } => {
            Box::new(dirty::Dirty::new(options.clone()).map_err(Trouble::Usage)?)
        }
        Workload::Fsync { options, .. } => Box::new(fsync::Fsync(options.clone())),
        Workload::Append { options, .. } => Box::new(append::Append(options.clone())),
        Workload::Orphan { options, common } => {
            Box::new(orphan::Orphan::new(options.clone(), common.seconds.is_some()))
        }
        Workload::Creat { options, .. } => Box::new(creat::Creat(options.clone())),
        Workload::Tail { options, .. } => Box::new(tail::Tail(options.clone())),
        Workload::Untorn { options, .. } => {
            Box::new(untorn::Untorn::new(options.clone()).map_err(Trouble::Usage)?)
        }
        Workload::Group { options, .. } => {
            Box::new(group::Group::new(options.clone()).map_err(Trouble::Usage)?)
        }
        Workload::Snapshot { options, .. } => {
            Box::new(snapshot::Snapshot::new(options.clone()).map_err(Trouble::Usage)?)
        }
        Workload::Scale { options, .. } => Box::new(scale::Scale(options.clone())),
    })
}

/// Engines that have no files cannot run what needs them.
fn needs_files(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Memcpy => Some("memcpy is a limit of mixed only".into()),
        Kind::Raw => Some("the bare image has no files".into()),
        Kind::FuseNull => Some("fuse-null keeps one file, for mixed, and no names, for creat".into()),
        _ => None,
    }
}

const CHUNK: usize = 1 << 20;

/// Writes a file from start to end, makes it durable, and reads it once, so that it is allocated, clean and
/// cached.
fn fill(file: &dyn Handle, bytes: u64, read_back: bool, context: &Context<'_>) -> Outcome {
    let mut buffer = AlignedBuf::zeroed(CHUNK);
    let mut each = |act: &mut dyn FnMut(&mut [u8], u64) -> Result<()>| -> Outcome {
        for at in (0..bytes).step_by(CHUNK) {
            context.surroundings.interrupt.check()?;
            context.surroundings.progress.at(at, bytes);
            let len = CHUNK.min((bytes - at) as usize);
            act(&mut buffer[..len], at)?;
        }
        Ok(())
    };
    each(&mut |buffer, at| file.write_at(buffer, at))?;
    file.sync(false)?;
    if read_back {
        each(&mut |buffer, at| file.read_at(buffer, at).map(drop))?;
    }
    Ok(())
}

/// Puts what the device had to do into a sample.
fn add_device(sample: &mut Sample, before: &Counters, after: &Counters) {
    sample.add_growth("device", before.device_bytes_written, after.device_bytes_written);
    sample.add_growth("data", before.data_bytes_written, after.data_bytes_written);
    sample.add_growth("flushes", before.device_flushes, after.device_flushes);
}

/// The figures of [`add_device`], where they are known, beside the sum `bytes` of what was written.
fn push_device(figures: &mut Figures, sample: &Sample) {
    figures.push("bytes_written", sample.sum("bytes"));
    figures.push_known("device_bytes_written", sample.known("device"));
    let over_bytes = |name| sample.known(name).map(|_| sample.rate(name, "bytes"));
    figures.push_known("write_amplification", over_bytes("device"));
    figures.push_known("data_write_amplification", over_bytes("data"));
    figures.push_known("device_flushes", sample.known("flushes"));
}

/// Overwrites random aligned blocks of `bs` bytes, of `size`, until the stage is over. `write` takes a block
/// and its place, and returns when it is durable.
fn overwrite(
    size: u64,
    bs: usize,
    mut random: Random,
    stage: &Stage,
    write: impl Fn(&[u8], u64) -> Result<()>,
) -> Result<Timed> {
    let mut block = AlignedBuf::zeroed(bs);
    let blocks = size / bs as u64;
    let mut timed = Timed::default();
    while !stage.is_over() {
        block[..8].copy_from_slice(&(timed.latency.count() + 1).to_ne_bytes());
        let at = random.below(blocks) * bs as u64;
        let start = Instant::now();
        write(&block, at)?;
        timed.record(start.elapsed(), stage);
    }
    Ok(timed)
}

/// What each operation of a run is.
struct Each {
    /// As its latencies are called.
    name: &'static str,
    /// That it writes.
    bytes: u64,
}

/// Runs threads whose operations are durable, each before the next, for the run's time.
fn drive_durably(
    target: &dyn Target,
    context: &Context<'_>,
    phase: &'static str,
    each: Each,
    parts: Vec<Part<'_, Timed>>,
) -> Outcome<Sample> {
    context.phase(phase)?;
    let before = target.counters();
    let (timed, elapsed) = drive(context.surroundings, Until::Elapsed(context.duration()), parts)?;
    let stopped = target.counters();
    context.phase("settling")?;
    target.settle()?;
    let settled = target.counters();
    let mut sample = Sample::default();
    sample.add("seconds", elapsed.as_secs_f64());
    for timed in &timed {
        sample.add("operations", timed.operations as f64);
        sample.add("bytes", (timed.latency.count() * each.bytes) as f64);
        sample.add_latency(each.name, &timed.latency)?;
    }
    // The flushes that operations waited for; the bytes that they caused, whenever those were written.
    let after = Counters { device_flushes: stopped.device_flushes, ..settled };
    add_device(&mut sample, &before, &after);
    Ok(sample)
}

/// A block size must divide into aligned offsets of a file.
fn check_blocks(bs: u64, size: u64) -> std::result::Result<(), String> {
    if !bs.is_multiple_of(8) || bs > 1 << 30 {
        return Err(format!("--bs {bs}: a multiple of 8 up to 1g is needed"));
    }
    if bs > size {
        return Err(format!("--bs {bs} is larger than --size {size}"));
    }
    Ok(())
}

/// Options as JSON fields.
fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
