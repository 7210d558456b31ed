//! `scale`: one thread creates many small files, looks at each, and deletes them all, with bounded memory.
//! Whether the last files are made as fast as the first ones says whether the cost depends on what is there.

use super::{Context, Work, fields, needs_files};
use crate::arguments;
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::report::machine;
use crate::sample::{Figures, Sample};
use crate::size;
use crate::target::{How, Target};
use quire_base::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Files of a directory.
const DIRECTORY: u64 = 1000;
/// Bytes of a file.
const FILE_BYTES: usize = 1000;
/// Bytes of an image for each file: one block of data, and room for an inode, a name and an extent wherever
/// an engine keeps them.
const DEVICE_BYTES: u64 = 4096 + 1024;
/// Operations between two steps of the progress line.
const BATCH: u64 = 64;

/// The workload.
pub struct Scale(pub arguments::Scale);

fn directory(n: u64) -> String {
    format!("d{}", n / DIRECTORY)
}

fn path(n: u64) -> String {
    format!("d{}/f{}", n / DIRECTORY, n % DIRECTORY)
}

impl Scale {
    /// Does `each` for every file; gives the times at which the first tenth, the rest but one tenth, and the
    /// last tenth were done.
    fn pass(
        &self,
        context: &Context<'_>,
        phase: &str,
        each: &(dyn Fn(u64) -> Result<()> + Sync),
    ) -> Outcome<[Duration; 3]> {
        context.phase(phase)?;
        let files = self.0.files;
        let (first, last) = (self.tenth(), files - self.tenth());
        let part = move |stage: &Stage| -> Result<[Duration; 3]> {
            let start = Instant::now();
            let mut times = [Duration::ZERO; 3];
            for n in 0..files {
                if n.is_multiple_of(BATCH) {
                    stage.advance(BATCH);
                    if stage.is_over() {
                        break;
                    }
                }
                each(n)?;
                if n + 1 == first {
                    times[0] = start.elapsed();
                }
                if n + 1 == last {
                    times[1] = start.elapsed();
                }
            }
            times[2] = start.elapsed();
            Ok(times)
        };
        let parts = vec![Box::new(part) as Part<'_, [Duration; 3]>];
        let (times, _) = drive(context.surroundings, Until::Done(files), parts)?;
        Ok(times[0])
    }

    fn tenth(&self) -> u64 {
        (self.0.files / 10).max(1)
    }
}

impl Work for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn params(&self) -> Map<String, Value> {
        fields([("files", json!(self.0.files)), ("cache", json!(size::show(self.0.cache)))])
    }

    fn file_bytes(&self) -> u64 {
        self.0.files * 4096
    }

    fn files(&self) -> u64 {
        self.0.files
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        self.0.files * DEVICE_BYTES + (2 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let content = [0x5a; FILE_BYTES];
        let mut sample = Sample::default();
        let process = target.process();
        machine::reset_resident_peak(process);
        let create = |n: u64| {
            if n.is_multiple_of(DIRECTORY) {
                target.make_directory(&directory(n))?;
            }
            target.open(&path(n), How::create(FILE_BYTES as u64))?.write_at(&content, 0)
        };
        let [first, middle, all] = self.pass(context, "creating", &create)?;
        sample.add("tenth", self.tenth() as f64);
        sample.add("first_seconds", first.as_secs_f64());
        sample.add("last_seconds", (all - middle).as_secs_f64());
        context.phase("syncing")?;
        target.sync()?;
        let raise_resident = |sample: &mut Sample| {
            if let Some(bytes) = machine::resident_peak_bytes(process) {
                sample.raise("resident", bytes as f64);
            }
        };
        raise_resident(&mut sample);
        if let Some(took) = target.opening()? {
            sample.raise("opening_seconds", took.as_secs_f64());
            // Meanwhile this process had two volumes.
            machine::reset_resident_peak(process);
        }
        let look = |n: u64| match target.size_of(&path(n))? {
            bytes if bytes == FILE_BYTES as u64 => Ok(()),
            bytes => Err(Error::new(ErrorKind::Corrupt, format!("{} has {bytes} bytes", path(n)))),
        };
        let [_, _, looked] = self.pass(context, "looking at all", &look)?;
        let delete = |n: u64| {
            target.unlink(&path(n))?;
            if (n + 1).is_multiple_of(DIRECTORY) || n + 1 == self.0.files {
                target.remove_directory(&directory(n))?;
            }
            Ok(())
        };
        let [_, _, deleted] = self.pass(context, "deleting", &delete)?;
        context.phase("syncing")?;
        let force = Instant::now();
        target.sync()?;
        sample.add("files", self.0.files as f64);
        sample.add("stat_seconds", looked.as_secs_f64());
        sample.add("delete_seconds", (deleted + force.elapsed()).as_secs_f64());
        raise_resident(&mut sample);
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "create_last_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("create_first_s", sample.rate("tenth", "first_seconds"));
        figures.push("create_last_s", sample.rate("tenth", "last_seconds"));
        figures.push("stat_s", sample.rate("files", "stat_seconds"));
        figures.push("delete_s", sample.rate("files", "delete_seconds"));
        figures.push_known("open_us", sample.highest("opening_seconds").map(|seconds| seconds * 1e6));
        figures.push_known("rss_max_mib", sample.highest("resident").map(|bytes| bytes / f64::from(1 << 20)));
        figures
    }
}
