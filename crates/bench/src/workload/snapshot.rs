//! `snapshot`: each thread overwrites random blocks of its own file and makes each durable, as `dirty` does,
//! on a volume that holds many small files besides. There are four phases of the same length: with nobody
//! else, while snapshots are taken at even distances, with these kept, and while they are deleted. An engine
//! without snapshots runs the same load four times. Last, one more snapshot is taken with nothing beside it.
//!
//! The fourth phase ends when the last snapshot is deleted, if that comes first.

use super::{CHUNK, Context, Work, fields, fill, needs_files, overwrite};
use crate::arguments;
use crate::drive::{Part, Stage, Timed, Until, drive};
use crate::engine::Kind;
use crate::engine::kernel::{FileSystem, is_installed};
use crate::outcome::Outcome;
use crate::sample::{Figures, Latency, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::sync::Arc;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Bytes of one overwrite.
const BLOCK: usize = 4096;
/// Small files of a directory, and the bytes of each.
const DIRECTORY_FILES: u64 = 1000;
const SMALL_BYTES: usize = 1000;
/// How often a waiting thread looks whether all is over.
const TICK: Duration = Duration::from_millis(5);

/// The workload.
pub struct Snapshot(arguments::SnapshotWork);

/// What a thread did.
enum Did {
    Overwrites(Box<Timed>),
    /// The times of snapshots, and for how long each kept changes back, where that can be told.
    Took(Box<Latency>, Box<Latency>),
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

    fn name(number: u64) -> String {
        format!("s{number}")
    }

    fn make_small_files(&self, target: &dyn Target, context: &Context<'_>) -> Outcome {
        context.phase("making the small files")?;
        for number in 0..self.0.files {
            context.surroundings.interrupt.check()?;
            context.surroundings.progress.at(number, self.0.files);
            let directory = format!("d{}", number / DIRECTORY_FILES);
            if number.is_multiple_of(DIRECTORY_FILES) {
                target.make_directory(&directory)?;
            }
            let file = target.open(&format!("{directory}/f{number}"), How::create(SMALL_BYTES as u64))?;
            file.write_at(&[1; SMALL_BYTES], 0)?;
        }
        Ok(())
    }

    /// The files that are overwritten, one for each thread, in the cache.
    fn make_files(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Vec<Arc<dyn Handle>>> {
        context.phase("filling the files")?;
        let bytes = self.0.size.next_multiple_of(CHUNK as u64);
        let make = |job| {
            let file = target.open(&format!("job{job}"), How::create(bytes))?;
            fill(&*file, self.0.size, true, context)?;
            Ok(file)
        };
        (0..self.0.jobs).map(make).collect()
    }

    fn take(&self, target: &dyn Target, time: Duration, stage: &Stage) -> Result<Did> {
        let (start, mut latency, mut holds) = (Instant::now(), Latency::new(), Latency::new());
        for number in 0..self.0.snapshots {
            let due = start + time.mul_f64((number as f64 + 0.5) / self.0.snapshots as f64);
            while !stage.is_over() && Instant::now() < due {
                std::thread::sleep(TICK.min(due.saturating_duration_since(Instant::now())));
            }
            // All are taken, however late: the next phases need them.
            let (before, begun) = (target.counters().snapshot_hold_us, Instant::now());
            target.snapshot(&Snapshot::name(number))?;
            latency.record(begun.elapsed());
            if let (Some(before), Some(after)) = (before, target.counters().snapshot_hold_us) {
                holds.record(Duration::from_micros(after - before));
            }
        }
        Ok(Did::Took(Box::new(latency), Box::new(holds)))
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
            ("jobs", json!(self.0.jobs)),
            ("size", json!(size::show(self.0.size))),
            ("files", json!(self.0.files)),
            ("snapshots", json!(self.0.snapshots)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.jobs as u64 * self.0.size
    }

    fn files(&self) -> u64 {
        self.0.jobs as u64 + self.0.files + self.0.files / DIRECTORY_FILES + 1
    }

    fn device_bytes(&self, seconds: f64) -> u64 {
        // Small files with their metadata, and what the threads can overwrite in that time.
        let small = self.0.files * (BLOCK as u64 + 1024);
        2 * self.file_bytes() + small + (seconds * 100e6) as u64 + (2 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        if *kind == Kind::Kernel(FileSystem::Btrfs) && !is_installed("btrfs") {
            return Some("the program btrfs, which takes snapshots, is not installed".into());
        }
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        self.make_small_files(target, context)?;
        let files = self.make_files(target, context)?;
        target.sync()?;
        let mut sample = Sample::default();
        let time = context.duration();
        for (role, (phase, operations, seconds)) in PHASES.into_iter().enumerate() {
            context.phase(phase)?;
            let mut parts: Vec<Part<'_, Did>> = Vec::new();
            for (thread, file) in files.iter().enumerate() {
                let random = context.random(role as u64, thread);
                let write = |block: &[u8], at| file.write_at(block, at).and_then(|()| file.sync(true));
                parts.push(Box::new(move |stage| {
                    let timed = overwrite(self.0.size, BLOCK, random, stage, write)?;
                    Ok(Did::Overwrites(Box::new(timed)))
                }));
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
                    Did::Overwrites(timed) => {
                        sample.add(operations, timed.operations as f64);
                        sample.add_latency(phase, &timed.latency)?;
                    }
                    Did::Took(latency, holds) => {
                        sample.add_latency("snapshot", &latency)?;
                        if holds.count() > 0 {
                            sample.add_latency("hold", &holds)?;
                        }
                    }
                    Did::Deleted(took) => {
                        sample.add("deletion_seconds", took.as_secs_f64());
                        sample.add("deletions", 1.0);
                    }
                }
            }
        }
        if target.has_snapshots() {
            context.phase("one more snapshot")?;
            let start = Instant::now();
            target.snapshot(&Snapshot::name(self.0.snapshots))?;
            sample.add("idle_snapshot_seconds", start.elapsed().as_secs_f64());
            sample.add("idle_snapshots", 1.0);
        }
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "iops_after"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        let ms = |us: Option<f64>| us.map(|us| us / 1000.0);
        for (phase, operations, seconds) in PHASES {
            figures.push(format!("iops_{phase}"), sample.rate(operations, seconds));
        }
        figures.push_known("snapshot_p50_ms", ms(sample.percentile_us("snapshot", 50.0)));
        figures.push_known("snapshot_max_ms", ms(sample.max_us("snapshot")));
        let mean = |seconds: &str, count: &str| sample.known(count).map(|_| sample.rate(seconds, count));
        let idle = mean("idle_snapshot_seconds", "idle_snapshots");
        figures.push_known("snapshot_idle_ms", idle.map(|seconds| seconds * 1000.0));
        figures.push_known("hold_p50_ms", ms(sample.percentile_us("hold", 50.0)));
        figures.push_known("hold_max_ms", ms(sample.max_us("hold")));
        figures.push_known("stall_max_ms", ms(sample.max_us("while")));
        for phase in ["before", "while"] {
            figures.push_known(format!("{phase}_p999_us"), sample.percentile_us(phase, 99.9));
        }
        figures.push_known("delete_s", mean("deletion_seconds", "deletions"));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of single events were sums over the rounds: five rounds showed a deletion five times as long
    /// as it was.
    #[test]
    fn a_time_is_that_of_one_round() {
        let options = arguments::SnapshotWork { jobs: 1, size: 4096, files: 1, snapshots: 1 };
        let work = Snapshot::new(options).unwrap();
        let mut round = Sample::default();
        for (seconds, count) in
            [("idle_snapshot_seconds", "idle_snapshots"), ("deletion_seconds", "deletions")]
        {
            round.add(seconds, 0.5);
            round.add(count, 1.0);
        }
        let mut all = Sample::default();
        all.merge(&round).unwrap();
        all.merge(&round).unwrap();
        let figures = work.figures(&all);
        assert_eq!(figures.get("snapshot_idle_ms"), Some(500.0));
        assert_eq!(figures.get("delete_s"), Some(0.5));
    }
}
