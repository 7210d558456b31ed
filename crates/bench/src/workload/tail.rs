//! `tail`: threads overwrite 4 KiB of a file of their own and make it durable, first on an idle file system
//! and then beside others that disturb them. The figures are what one such overwrite takes, and what the
//! others got done.
//!
//! | disturber | threads | what it does |
//! | --- | --- | --- |
//! | bulk | 2 | writes new files of `--size` from start to end and makes each durable |
//! | append | 2 | one appends 256 KiB as fast as it can, the other makes the file durable every 100 ms |
//! | delete | 1 | unlinks `--files` files of `--size` made beforehand, evenly over the time |
//! | create | 2 | create and unlink in one directory |
//!
//! Invariant: the space in use is bounded. A bulk thread keeps two files, the appender two of
//! [`APPEND_FILES`] times `--size`; what is older is unlinked.

use super::{CHUNK, Context, Work, fields, fill, needs_files, overwrite};
use crate::arguments::{self, Disturber};
use crate::drive::{Part, Stage, Timed, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Latency, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::sync::{Arc, Mutex};
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Bytes of one overwrite.
const BLOCK: usize = 4096;
/// Bytes of the file that a measured thread overwrites.
const FILE_BYTES: u64 = 1 << 20;
/// Threads of the disturbers `bulk` and `create`.
const PAIR: usize = 2;
/// Bytes of one append.
const APPEND: usize = 256 << 10;
/// Time between two fsyncs of the file that is appended to.
const APPEND_PAUSE: Duration = Duration::from_millis(100);
/// A file that is appended to grows to so many times `--size`; then the next one begins.
const APPEND_FILES: u64 = 4;
/// How often a thread that waits for its time looks whether all is over.
const TICK: Duration = Duration::from_millis(5);

/// The workload.
pub struct Tail(pub arguments::Tail);

/// What a thread did.
enum Did {
    Overwrites(Box<Timed>),
    Bulk(Moved),
    Appends(Moved),
    AppendSyncs(Box<Latency>),
    Deletes(Box<Latency>),
    Creates(u64),
}

/// Bytes made durable, and the time until they were.
struct Moved {
    bytes: u64,
    time: Duration,
}

/// Sleeps until `at`; false if all is over before.
fn wait_until(at: Instant, stage: &Stage) -> bool {
    while !stage.is_over() {
        match at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(TICK)),
            _ => return true,
        }
    }
    false
}

/// The file that is appended to now.
struct Log {
    file: Mutex<Arc<dyn Handle>>,
}

impl Log {
    fn path(n: u64) -> String {
        format!("append{n}")
    }

    fn open(target: &dyn Target, n: u64, room: u64) -> Result<Arc<dyn Handle>> {
        target.open(&Log::path(n), How { append: true, ..How::create(room) })
    }

    fn append(&self, target: &dyn Target, room: u64, stage: &Stage) -> Result<Did> {
        let block = filled(APPEND);
        let start = Instant::now();
        let mut file = self.file.lock().clone();
        let (mut bytes, mut number, mut end) = (0, 0, 0);
        while !stage.is_over() {
            if end >= room {
                file.sync(false)?;
                number += 1;
                end = 0;
                file = Log::open(target, number, room)?;
                *self.file.lock() = file.clone();
                if number >= 2 {
                    target.unlink(&Log::path(number - 2))?;
                }
            }
            file.write_at(&block, 0)?;
            end += APPEND as u64;
            bytes += APPEND as u64;
        }
        file.sync(false)?;
        Ok(Did::Appends(Moved { bytes, time: start.elapsed() }))
    }

    fn sync(&self, stage: &Stage) -> Result<Did> {
        let mut latency = Latency::new();
        while wait_until(Instant::now() + APPEND_PAUSE, stage) {
            let file = self.file.lock().clone();
            let start = Instant::now();
            file.sync(false)?;
            latency.record(start.elapsed());
        }
        Ok(Did::AppendSyncs(Box::new(latency)))
    }
}

/// Bytes that a disk cannot keep as nothing.
fn filled(bytes: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes);
    buffer.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 41 + n / 253) as u8);
    buffer
}

impl Tail {
    fn has(&self, disturber: Disturber) -> bool {
        self.0.with.contains(&disturber)
    }

    fn bulk(&self, target: &dyn Target, thread: usize, stage: &Stage) -> Result<Did> {
        let content = filled(CHUNK);
        let path = |n: u64| format!("bulk{thread}-{n}");
        let start = Instant::now();
        let mut moved = Moved { bytes: 0, time: Duration::ZERO };
        for n in 0.. {
            let file = target.open(&path(n), How::create(self.0.size))?;
            let mut at = 0;
            while at < self.0.size && !stage.is_over() {
                let len = CHUNK.min((self.0.size - at) as usize);
                file.write_at(&content[..len], at)?;
                at += len as u64;
            }
            // The last file counts as far as it came, with the time that its fsync takes.
            file.sync(false)?;
            moved.bytes += at;
            moved.time = start.elapsed();
            if stage.is_over() {
                break;
            }
            if n >= 1 {
                target.unlink(&path(n - 1))?;
            }
        }
        Ok(Did::Bulk(moved))
    }

    fn delete(&self, target: &dyn Target, time: Duration, stage: &Stage) -> Result<Did> {
        let start = Instant::now();
        let mut latency = Latency::new();
        for n in 0..self.0.files {
            let share = (n as f64 + 0.5) / self.0.files as f64;
            if !wait_until(start + time.mul_f64(share), stage) {
                break;
            }
            let unlink = Instant::now();
            target.unlink(&format!("deleted{n}"))?;
            latency.record(unlink.elapsed());
        }
        Ok(Did::Deletes(Box::new(latency)))
    }

    fn create(target: &dyn Target, thread: usize, stage: &Stage) -> Result<Did> {
        let mut done = 0;
        loop {
            let path = format!("created/c{thread}-{done}");
            drop(target.open(&path, How::create(0))?);
            target.unlink(&path)?;
            if stage.is_over() {
                return Ok(Did::Creates(done));
            }
            done += 1;
        }
    }

    /// The measured threads' parts.
    fn overwrites<'a>(
        files: &'a [Arc<dyn Handle>],
        role: u64,
        context: &'a Context<'_>,
    ) -> impl Iterator<Item = Part<'a, Did>> {
        files.iter().enumerate().map(move |(thread, file)| {
            let random = context.random(role, thread);
            let write = |block: &[u8], at| file.write_at(block, at).and_then(|()| file.sync(true));
            Box::new(move |stage: &Stage| {
                let timed = overwrite(FILE_BYTES, BLOCK, random, stage, write)?;
                Ok(Did::Overwrites(Box::new(timed)))
            }) as Part<'_, Did>
        })
    }

    fn disturbers<'a>(
        &'a self,
        target: &'a dyn Target,
        log: &'a Option<Log>,
        time: Duration,
    ) -> Vec<Part<'a, Did>> {
        let mut parts: Vec<Part<'a, Did>> = Vec::new();
        if self.has(Disturber::Bulk) {
            for thread in 0..PAIR {
                parts.push(Box::new(move |stage| self.bulk(target, thread, stage)));
            }
        }
        if let Some(log) = log {
            let room = APPEND_FILES * self.0.size;
            parts.push(Box::new(move |stage| log.append(target, room, stage)));
            parts.push(Box::new(move |stage| log.sync(stage)));
        }
        if self.has(Disturber::Delete) {
            parts.push(Box::new(move |stage| self.delete(target, time, stage)));
        }
        if self.has(Disturber::Create) {
            for thread in 0..PAIR {
                parts.push(Box::new(move |stage| Tail::create(target, thread, stage)));
            }
        }
        parts
    }

    /// Adds what the threads of the disturbed phase did.
    fn account(did: &[Did], elapsed: Duration, sample: &mut Sample) -> Outcome {
        sample.add("seconds", elapsed.as_secs_f64());
        for did in did {
            match did {
                Did::Overwrites(timed) => {
                    sample.add("operations", timed.operations as f64);
                    sample.add_latency("beside", &timed.latency)?;
                }
                Did::Bulk(moved) => {
                    sample.add("bulk_bytes", moved.bytes as f64);
                    sample.add("bulk_seconds", moved.time.as_secs_f64() / PAIR as f64);
                }
                Did::Appends(moved) => {
                    sample.add("append_bytes", moved.bytes as f64);
                    sample.add("append_seconds", moved.time.as_secs_f64());
                }
                Did::AppendSyncs(latency) => sample.add_latency("append_fsync", latency)?,
                Did::Deletes(latency) => {
                    sample.add("deletes", latency.count() as f64);
                    sample.add_latency("delete", latency)?;
                }
                Did::Creates(count) => sample.add("creates", *count as f64),
            }
        }
        Ok(())
    }
}

impl Work for Tail {
    fn name(&self) -> &'static str {
        "tail"
    }

    fn params(&self) -> Map<String, Value> {
        let with: Vec<&str> = self.0.with.iter().map(|disturber| disturber.name()).collect();
        fields([
            ("threads", json!(self.0.threads)),
            ("with", json!(with)),
            ("size", json!(size::show(self.0.size))),
            ("files", json!(self.0.files)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.threads as u64 * FILE_BYTES
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        let files = |disturber, count| if self.has(disturber) { count * self.0.size } else { 0 };
        let used = self.file_bytes()
            + files(Disturber::Bulk, 2 * PAIR as u64)
            + files(Disturber::Append, 2 * APPEND_FILES)
            + files(Disturber::Delete, self.0.files);
        // What was unlinked may become free a little later.
        used + used / 4 + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let mut files = Vec::new();
        for thread in 0..self.0.threads {
            context.phase("filling the files")?;
            let file = target.open(&format!("tail{thread}"), How::create(FILE_BYTES))?;
            fill(&*file, FILE_BYTES, true, context)?;
            files.push(file);
        }
        if self.has(Disturber::Delete) {
            for n in 0..self.0.files {
                context.phase("making the files to delete")?;
                fill(
                    &*target.open(&format!("deleted{n}"), How::create(self.0.size))?,
                    self.0.size,
                    false,
                    context,
                )?;
            }
        }
        if self.has(Disturber::Create) {
            target.make_directory("created")?;
        }
        let log = match self.has(Disturber::Append) {
            true => {
                let file = Log::open(target, 0, APPEND_FILES * self.0.size)?;
                Some(Log { file: Mutex::new(file) })
            }
            false => None,
        };
        target.sync()?;
        let time = context.duration();
        let mut sample = Sample::default();
        context.phase("overwriting, idle")?;
        let parts = Tail::overwrites(&files, 1, context).collect();
        let (idle, _) = drive(context.surroundings, Until::Elapsed(time), parts)?;
        for did in &idle {
            if let Did::Overwrites(timed) = did {
                sample.add_latency("idle", &timed.latency)?;
            }
        }
        context.phase("overwriting beside the others")?;
        let parts = Tail::overwrites(&files, 2, context).chain(self.disturbers(target, &log, time)).collect();
        let (did, elapsed) = drive(context.surroundings, Until::Elapsed(time), parts)?;
        Tail::account(&did, elapsed, &mut sample)?;
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "ops_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("ops_s", sample.rate("operations", "seconds"));
        for (prefix, name, percentiles) in [
            ("idle_", "idle", &[("p50", 50.0), ("p99", 99.0)][..]),
            ("", "beside", &[("p50", 50.0), ("p99", 99.0), ("p999", 99.9)][..]),
        ] {
            for &(percentile, percent) in percentiles {
                let value = sample.percentile_us(name, percent).unwrap_or(0.0);
                figures.push(format!("{prefix}{percentile}_us"), value);
            }
            figures.push(format!("{prefix}max_us"), sample.max_us(name).unwrap_or(0.0));
        }
        figures.push_known("append_fsync_max_us", sample.max_us("append_fsync"));
        let mib = f64::from(1 << 20);
        let known = |of: &str, over: &str| sample.known(of).map(|_| sample.rate(of, over));
        figures.push_known("bulk_mib_s", known("bulk_bytes", "bulk_seconds").map(|rate| rate / mib));
        figures.push_known("append_mib_s", known("append_bytes", "append_seconds").map(|rate| rate / mib));
        // The rate at which files could be unlinked one behind the other.
        let mean = sample.mean_us("delete").filter(|&mean| mean > 0.0);
        let deletes = sample.known("deletes");
        figures.push_known("deletes_s", deletes.map(|_| mean.map_or(0.0, |mean| 1e6 / mean)));
        figures.push_known("deletes", deletes);
        figures.push_known("creates_s", known("creates", "seconds"));
        figures
    }
}
