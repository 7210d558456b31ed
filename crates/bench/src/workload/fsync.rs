//! `fsync`: many small files are written, then each is opened again by its path and made durable, one after
//! the other or many at a time. `--background` does that behind one thread that fsyncs a file of its own.

use super::{Context, Work, fields, needs_files};
use crate::arguments::{self, FsyncMode};
use crate::drive::{InTime, Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Latency, Sample};
use crate::size;
use crate::target::{How, Target};
use quire_base::Result;
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Fsyncs under way at a time in the mode `async`, for each thread.
const WINDOW: usize = 1024;
/// Bytes that the lone thread writes before each fsync.
const LONE_BYTES: usize = 4096;

/// The workload.
pub struct Fsync(pub arguments::Fsync);

/// One thread's files of one pass.
struct Batch<'a> {
    target: &'a dyn Target,
    options: &'a arguments::Fsync,
    directory: String,
}

impl Batch<'_> {
    fn path(&self, n: u64) -> String {
        format!("{}/f{n}", self.directory)
    }

    fn write(&self, content: &[u8], stage: &Stage) -> Result<()> {
        for n in 0..self.options.files {
            if stage.is_over() {
                break;
            }
            self.target.open(&self.path(n), How::create(self.options.file_size))?.write_at(content, 0)?;
            stage.advance(1);
        }
        Ok(())
    }

    /// `durable` counts the files, each when it is durable.
    fn make_durable(&self, durable: &InTime, stage: &Stage) -> Result<()> {
        let mut paths = (0..self.options.files).map(|n| self.path(n)).take_while(|_| {
            stage.advance(1);
            !stage.is_over()
        });
        match self.options.mode {
            FsyncMode::Serial => paths.try_for_each(|path| {
                self.target.open(&path, How::default())?.sync(false)?;
                durable.add();
                Ok(())
            }),
            FsyncMode::Async => self.target.sync_many(&mut paths, WINDOW, durable),
        }
    }

    fn remove(&self) -> Result<()> {
        (0..self.options.files).try_for_each(|n| self.target.unlink(&self.path(n)))
    }
}

impl Fsync {
    fn batches<'a>(&'a self, target: &'a dyn Target, pass: u64) -> Result<Vec<Batch<'a>>> {
        let make = |n| {
            let directory = format!("pass{pass}-{n}");
            target.make_directory(&directory)?;
            Ok(Batch { target, options: &self.0, directory })
        };
        (0..self.0.threads).map(make).collect()
    }

    /// One pass, both halves by all threads together.
    fn pass(&self, target: &dyn Target, pass: u64, sample: &mut Sample, context: &Context<'_>) -> Outcome {
        let batches = self.batches(target, pass)?;
        target.sync()?;
        let content = AlignedBuf::zeroed(self.0.file_size as usize);
        let total = self.0.files * self.0.threads as u64;
        let before = target.counters();
        let each = |act: fn(&Batch<'_>, &[u8], &Stage) -> Result<()>| {
            let content = &content;
            let part = move |batch| Box::new(move |stage: &Stage| act(batch, content, stage)) as Part<'_, ()>;
            let parts = batches.iter().map(part).collect();
            drive(context.surroundings, Until::Done(total), parts).map(|(_, elapsed)| elapsed.as_secs_f64())
        };
        context.phase("writing the files")?;
        let writing = each(|batch, content, stage| batch.write(content, stage))?;
        context.phase("making them durable")?;
        let durable = each(|batch, _, stage| batch.make_durable(&InTime::of(stage), stage))?;
        let after = target.counters();
        sample.add("seconds", writing + durable);
        sample.add("pass_seconds", durable);
        sample.add("passes", 1.0);
        sample.add("files", total as f64);
        sample.add_growth("log_forces", before.log_forces, after.log_forces);
        sample.add_growth("device_flushes", before.device_flushes, after.device_flushes);
        Ok(())
    }

    fn lone(&self, target: &dyn Target, stage: &Stage) -> Result<Latency> {
        let file = target.open("lone", How::create(LONE_BYTES as u64))?;
        let block = AlignedBuf::zeroed(LONE_BYTES);
        let mut latency = Latency::new();
        while !stage.is_over() {
            file.write_at(&block, 0)?;
            let start = Instant::now();
            file.sync(false)?;
            latency.record(start.elapsed());
        }
        Ok(latency)
    }

    /// Passes until the end; gives the files made durable before it.
    fn bulk(&self, target: &dyn Target, thread: usize, stage: &Stage) -> Result<u64> {
        let content = AlignedBuf::zeroed(self.0.file_size as usize);
        let durable = InTime::of(stage);
        for pass in 0.. {
            let directory = format!("bulk{pass}-{thread}");
            target.make_directory(&directory)?;
            let batch = Batch { target, options: &self.0, directory };
            batch.write(&content, stage)?;
            if stage.is_over() {
                break;
            }
            batch.make_durable(&durable, stage)?;
            if stage.is_over() {
                break;
            }
            batch.remove()?;
        }
        Ok(durable.count())
    }

    fn run_in_background(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let mut sample = Sample::default();
        let time = context.duration();
        context.phase("the lone thread, idle")?;
        let alone = vec![Box::new(|stage: &Stage| self.lone(target, stage)) as Part<'_, Latency>];
        let (idle, _) = drive(context.surroundings, Until::Elapsed(time / 2), alone)?;
        sample.add_latency("idle", &idle[0])?;
        enum Did {
            Lone(Box<Latency>),
            Bulk(u64),
        }
        context.phase("the lone thread before the bulk")?;
        let lone =
            Box::new(|stage: &Stage| Ok(Did::Lone(Box::new(self.lone(target, stage)?)))) as Part<'_, Did>;
        let bulk = (0..self.0.threads).map(|thread| {
            Box::new(move |stage: &Stage| self.bulk(target, thread, stage).map(Did::Bulk)) as Part<'_, Did>
        });
        let parts = std::iter::once(lone).chain(bulk).collect();
        let (did, elapsed) = drive(context.surroundings, Until::Elapsed(time), parts)?;
        sample.add("seconds", elapsed.as_secs_f64());
        for did in &did {
            match did {
                Did::Lone(latency) => sample.add_latency("lone", latency)?,
                Did::Bulk(files) => sample.add("files", *files as f64),
            }
        }
        Ok(sample)
    }
}

impl Work for Fsync {
    fn name(&self) -> &'static str {
        "fsync"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.0;
        fields([
            ("threads", json!(options.threads)),
            ("files", json!(options.files)),
            ("file_size", json!(size::show(options.file_size))),
            ("mode", json!(if options.mode == FsyncMode::Serial { "serial" } else { "async" })),
            ("background", json!(options.background)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.threads as u64 * self.0.files * self.0.file_size.next_multiple_of(4096)
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        3 * self.file_bytes() + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        if self.0.background {
            return self.run_in_background(target, context);
        }
        let wanted = Duration::from_secs_f64(context.seconds.unwrap_or(0.0)).as_secs_f64();
        let mut sample = Sample::default();
        for pass in 0.. {
            self.pass(target, pass, &mut sample, context)?;
            if sample.sum("seconds") >= wanted {
                break;
            }
            context.phase("removing the files")?;
            for thread in 0..self.0.threads {
                let directory = format!("pass{pass}-{thread}");
                Batch { target, options: &self.0, directory }.remove()?;
            }
        }
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "files_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("files_s", sample.rate("files", "seconds"));
        if self.0.background {
            for (name, latency) in [("lone", "lone"), ("lone_idle", "idle")] {
                for (percentile, percent) in [("p50", 50.0), ("p99", 99.0)] {
                    let value = sample.percentile_us(latency, percent).unwrap_or(0.0);
                    figures.push(format!("{name}_{percentile}_us"), value);
                }
            }
            return figures;
        }
        figures.push("fsync_pass_s", sample.rate("pass_seconds", "passes"));
        figures.push("files", sample.sum("files"));
        figures.push_known("log_forces", sample.known("log_forces"));
        figures.push_known("device_flushes", sample.known("device_flushes"));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Surroundings;
    use crate::interrupt::Interrupt;
    use crate::progress::Progress;
    use crate::target::slow::Slow;

    /// Files of a pass that the end cut off were not counted: where no pass was whole, the bulk seemed to
    /// have got nothing done.
    #[test]
    fn a_bulk_without_a_whole_pass_has_files() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        let target = Slow { write: Duration::ZERO, sync: Duration::from_millis(2) };
        for mode in [FsyncMode::Serial, FsyncMode::Async] {
            let work =
                Fsync(arguments::Fsync { threads: 1, files: 100_000, file_size: 1, mode, background: true });
            let bulk: Part<'_, u64> = Box::new(|stage| work.bulk(&target, 0, stage));
            let until = Until::Elapsed(Duration::from_millis(500));
            let (files, _) = drive(&surroundings, until, vec![bulk]).unwrap();
            assert!(files[0] > 0 && files[0] < 1000, "{mode:?}: {}", files[0]);
        }
    }
}
