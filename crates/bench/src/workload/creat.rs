//! `creat`: threads create, close and unlink files in one shared directory, or in one each.

use super::{Context, Work, fields, needs_files};
use crate::arguments;
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Sample};
use crate::target::{How, Target};
use quire_base::Result;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Operations between two steps of the progress line.
const BATCH: u64 = 64;

/// The workload.
pub struct Creat(pub arguments::Creat);

impl Creat {
    fn directory(&self, thread: usize) -> String {
        if self.0.private_dirs { format!("d{thread}") } else { "d".into() }
    }
}

fn create(
    target: &dyn Target,
    directory: &str,
    thread: usize,
    operations: u64,
    stage: &Stage,
) -> Result<u64> {
    for done in 0..operations {
        if done.is_multiple_of(BATCH) {
            stage.advance(BATCH);
        }
        let path = format!("{directory}/c{thread}-{done}");
        drop(target.open(&path, How::create(0))?);
        target.unlink(&path)?;
        if stage.is_over() {
            return Ok(done);
        }
    }
    Ok(operations)
}

impl Work for Creat {
    fn name(&self) -> &'static str {
        "creat"
    }

    fn params(&self) -> Map<String, Value> {
        fields([
            ("threads", json!(self.0.threads)),
            ("ops", json!(self.0.ops)),
            ("private_dirs", json!(self.0.private_dirs)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        0
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        2 << 30
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        // The bare server remembers no names, and needs none here.
        if *kind == Kind::FuseNull { None } else { needs_files(kind) }
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let threads = self.0.threads;
        let directories: Vec<String> = (0..threads).map(|thread| self.directory(thread)).collect();
        for directory in &directories[..if self.0.private_dirs { threads } else { 1 }] {
            target.make_directory(directory)?;
        }
        target.sync()?;
        let (operations, until) = match context.seconds {
            Some(seconds) => (u64::MAX, Until::Elapsed(Duration::from_secs_f64(seconds))),
            None => (self.0.ops, Until::Done(self.0.ops * threads as u64)),
        };
        let part = |(thread, directory)| {
            let directory: &String = directory;
            Box::new(move |stage: &Stage| create(target, directory, thread, operations, stage))
                as Part<'_, u64>
        };
        let parts = directories.iter().enumerate().map(part).collect();
        context.phase("creating")?;
        let (done, elapsed) = drive(context.surroundings, until, parts)?;
        let mut sample = Sample::default();
        sample.add("seconds", elapsed.as_secs_f64());
        sample.add("operations", done.iter().sum::<u64>() as f64);
        sample.add("passes", 1.0);
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "ops_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("ops_s", sample.rate("operations", "seconds"));
        figures.push("time_s", sample.rate("seconds", "passes"));
        figures
    }
}
