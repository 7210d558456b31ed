//! `snapshot`: threads overwrite 4 KiB somewhere in one of many small files, and make it durable, in four
//! phases of the same length: with nobody else, while snapshots are taken at even distances, with these kept,
//! and while they are deleted. An engine without snapshots runs the same load four times.
//!
//! The last phase ends when the last snapshot is deleted, if that comes first. An overwrite opens its file,
//! as most that work on so many do.

use super::{Context, Work, fields, needs_files};
use crate::arguments;
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Latency, Sample};
use crate::size;
use crate::target::{How, Target};
use quire_base::Result;
use quire_base::random::Random;
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Bytes of one overwrite.
const BLOCK: usize = 4096;
/// Files of a directory.
const DIRECTORY_FILES: u64 = 1000;
/// How often a waiting thread looks whether all is over.
const TICK: Duration = Duration::from_millis(5);

/// The workload.
pub struct Snapshot(arguments::SnapshotWork);

/// What a thread did.
enum Did {
    Overwrites(Box<Latency>),
    Took(Box<Latency>),
    Deleted(Duration),
}

/// The phases, with the names of their sums and latencies.
const PHASES: [(&str, &str, &str); 4] = [
    ("before", "before_operations", "before_seconds"),
    ("while", "while_operations", "while_seconds"),
    ("after", "after_operations", "after_seconds"),
    ("deleting", "deleting_operations", "deleting_seconds"),
];

impl Snapshot {
    /// Checks the options.
    pub fn new(options: arguments::SnapshotWork) -> std::result::Result<Snapshot, String> {
        if options.size < BLOCK as u64 {
            return Err(format!("--size {}: a file has at least 4k", size::show(options.size)));
        }
        Ok(Snapshot(options))
    }

    fn path(number: u64) -> String {
        format!("d{}/f{number}", number / DIRECTORY_FILES)
    }

    fn name(number: u64) -> String {
        format!("s{number}")
    }

    fn overwrite(&self, target: &dyn Target, mut random: Random, stage: &Stage) -> Result<Did> {
        let mut block = AlignedBuf::zeroed(BLOCK);
        let mut latency = Latency::new();
        let blocks = self.0.size / BLOCK as u64;
        while !stage.is_over() {
            block[..8].copy_from_slice(&latency.count().to_ne_bytes());
            let (path, at) = (Snapshot::path(random.below(self.0.files)), random.below(blocks));
            let start = Instant::now();
            let file = target.open(&path, How::default())?;
            file.write_at(&block, at * BLOCK as u64)?;
            file.sync(true)?;
            latency.record(start.elapsed());
            stage.advance(1);
        }
        Ok(Did::Overwrites(Box::new(latency)))
    }

    fn take(&self, target: &dyn Target, time: Duration, stage: &Stage) -> Result<Did> {
        let (start, mut latency) = (Instant::now(), Latency::new());
        for number in 0..self.0.snapshots {
            let due = start + time.mul_f64((number as f64 + 0.5) / self.0.snapshots as f64);
            while !stage.is_over() && Instant::now() < due {
                std::thread::sleep(TICK.min(due.saturating_duration_since(Instant::now())));
            }
            // All are taken, however late: the next phases need them.
            let begun = Instant::now();
            target.snapshot(&Snapshot::name(number))?;
            latency.record(begun.elapsed());
        }
        Ok(Did::Took(Box::new(latency)))
    }

    fn delete(&self, target: &dyn Target, stage: &Stage) -> Result<Did> {
        let start = Instant::now();
        (0..self.0.snapshots).try_for_each(|number| target.delete_snapshot(&Snapshot::name(number)))?;
        let took = start.elapsed();
        stage.end();
        Ok(Did::Deleted(took))
    }
}

impl Work for Snapshot {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn params(&self) -> Map<String, Value> {
        fields([
            ("files", json!(self.0.files)),
            ("size", json!(size::show(self.0.size))),
            ("writers", json!(self.0.writers)),
            ("snapshots", json!(self.0.snapshots)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.files * self.0.size
    }

    fn files(&self) -> u64 {
        self.0.files + self.0.files / DIRECTORY_FILES + 1
    }

    fn device_bytes(&self, seconds: f64) -> u64 {
        // Besides the files twice, metadata of small files, and what writers can write in that time.
        2 * self.file_bytes() + self.0.files * 1024 + (seconds * 100e6) as u64 + (2 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        context.phase("making the files")?;
        for number in 0..self.0.files {
            context.surroundings.interrupt.check()?;
            context.surroundings.progress.at(number, self.0.files);
            if number.is_multiple_of(DIRECTORY_FILES) {
                target.make_directory(&format!("d{}", number / DIRECTORY_FILES))?;
            }
            let file = target.open(&Snapshot::path(number), How::create(self.0.size))?;
            file.write_at(&vec![1; self.0.size as usize], 0)?;
        }
        target.sync()?;
        let mut sample = Sample::default();
        let time = context.duration();
        for (role, (phase, operations, seconds)) in PHASES.into_iter().enumerate() {
            context.phase(phase)?;
            let mut parts: Vec<Part<'_, Did>> = Vec::new();
            for thread in 0..self.0.writers {
                let random = context.random(role as u64, thread);
                parts.push(Box::new(move |stage| self.overwrite(target, random, stage)));
            }
            match phase {
                "while" if target.has_snapshots() => {
                    parts.push(Box::new(move |stage| self.take(target, time, stage)));
                }
                "deleting" if target.has_snapshots() => {
                    parts.push(Box::new(move |stage| self.delete(target, stage)));
                }
                _ => {}
            }
            let (did, elapsed) = drive(context.surroundings, Until::Elapsed(time), parts)?;
            sample.add(seconds, elapsed.as_secs_f64());
            for did in did {
                match did {
                    Did::Overwrites(latency) => {
                        sample.add(operations, latency.count() as f64);
                        sample.add_latency(phase, &latency)?;
                    }
                    Did::Took(latency) => sample.add_latency("snapshot", &latency)?,
                    Did::Deleted(took) => sample.add("deletion_seconds", took.as_secs_f64()),
                }
            }
        }
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "after_ops_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        let ms = |us: Option<f64>| us.map(|us| us / 1000.0);
        figures.push_known("snapshot_ms", ms(sample.percentile_us("snapshot", 50.0)));
        figures.push_known("snapshot_max_ms", ms(sample.max_us("snapshot")));
        for (phase, operations, seconds) in PHASES {
            figures.push(format!("{phase}_ops_s"), sample.rate(operations, seconds));
        }
        for phase in ["before", "while"] {
            figures.push_known(format!("{phase}_p999_us"), sample.percentile_us(phase, 99.9));
        }
        figures.push_known("while_max_us", sample.max_us("while"));
        figures.push_known("delete_s", sample.known("deletion_seconds"));
        figures
    }
}
