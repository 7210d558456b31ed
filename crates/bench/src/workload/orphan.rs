//! `orphan`: what makes a file system remember inodes across a crash. Each thread shrinks its own fully
//! written file step by step; or it creates a file, unlinks it while it is open, and closes it. The final
//! force is inside the time.

use super::{Context, Work, fields, fill, needs_files};
use crate::arguments;
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Sample};
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::sync::Arc;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Operations between two looks at the time and two steps of the progress line.
const BATCH: u64 = 64;
/// Bytes of all files of one pass at most, where a time is asked for and passes follow each other.
const PASS_BYTES: u64 = 1 << 30;

/// The workload.
pub struct Orphan {
    options: arguments::Orphan,
    /// Of a thread in one pass.
    operations: u64,
}

impl Orphan {
    /// With a time there are as many operations in a pass as its files have room for.
    pub fn new(options: arguments::Orphan, has_time: bool) -> Orphan {
        let fits = PASS_BYTES / (options.threads as u64 * options.step).max(1);
        let is_bounded = has_time && !options.unlink_open;
        let operations = if is_bounded { options.ops.min(fits.max(1)) } else { options.ops };
        Orphan { options, operations }
    }

    /// Makes the files of a pass whole; gives them.
    fn files(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Vec<Arc<dyn Handle>>> {
        let bytes = self.operations * self.options.step;
        let mut files = Vec::new();
        for thread in 0..self.options.threads {
            context.phase("filling the files")?;
            let file = target.open(&format!("f{thread}"), How::create(bytes))?;
            fill(&*file, bytes, false, context)?;
            files.push(file);
        }
        target.sync()?;
        Ok(files)
    }

    fn shrink(&self, file: &dyn Handle, operations: u64, stage: &Stage) -> Result<u64> {
        for done in 0..operations {
            if done.is_multiple_of(BATCH) {
                stage.advance(BATCH);
                if stage.is_over() {
                    return Ok(done);
                }
            }
            file.truncate((operations - done - 1) * self.options.step)?;
        }
        Ok(operations)
    }

    fn unlink_open(&self, target: &dyn Target, thread: usize, operations: u64, stage: &Stage) -> Result<u64> {
        for done in 0..operations {
            if done.is_multiple_of(BATCH) {
                stage.advance(BATCH);
                if stage.is_over() {
                    return Ok(done);
                }
            }
            let path = format!("u{thread}-{done}");
            let file = target.open(&path, How::create(0))?;
            target.unlink(&path)?;
            drop(file);
        }
        Ok(operations)
    }
}

impl Work for Orphan {
    fn name(&self) -> &'static str {
        "orphan"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.options;
        fields([
            ("threads", json!(options.threads)),
            ("ops", json!(options.ops)),
            ("step", json!(options.step)),
            ("unlink_open", json!(options.unlink_open)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        let options = &self.options;
        if options.unlink_open { 0 } else { options.threads as u64 * self.operations * options.step }
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        self.file_bytes() + self.file_bytes() / 4 + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        needs_files(kind)
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let wanted = context.seconds.unwrap_or(0.0);
        let operations = self.operations;
        let total = operations * self.options.threads as u64;
        let mut sample = Sample::default();
        loop {
            let files = if self.options.unlink_open { Vec::new() } else { self.files(target, context)? };
            let before = target.counters();
            let part = |thread: usize| -> Part<'_, u64> {
                match files.get(thread) {
                    Some(file) => Box::new(move |stage| self.shrink(&**file, operations, stage)),
                    None => Box::new(move |stage| self.unlink_open(target, thread, operations, stage)),
                }
            };
            let parts = (0..self.options.threads).map(part).collect();
            context.phase("making orphans")?;
            let (done, elapsed) = drive(context.surroundings, Until::Done(total), parts)?;
            let force = Instant::now();
            target.sync()?;
            sample.add("seconds", elapsed.as_secs_f64() + force.elapsed().as_secs_f64());
            sample.add("operations", done.iter().sum::<u64>() as f64);
            sample.add("passes", 1.0);
            sample.add_growth("claims", before.orphan_claims, target.counters().orphan_claims);
            if sample.sum("seconds") >= wanted {
                return Ok(sample);
            }
        }
    }

    fn headline(&self) -> &'static str {
        "ops_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("ops_s", sample.rate("operations", "seconds"));
        figures.push("time_s", sample.rate("seconds", "passes"));
        figures.push("operations", sample.sum("operations"));
        figures.push_known("orphan_claims", sample.known("claims"));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The image had room for all `--ops`, of which a pass with a time does only what fits into its files.
    #[test]
    fn a_time_bounds_the_image() {
        let options =
            arguments::Orphan { threads: 2, ops: 1 << 30, step: 4096, orphans: None, unlink_open: false };
        assert_eq!(Orphan::new(options.clone(), true).file_bytes(), PASS_BYTES);
        assert_eq!(Orphan::new(options, false).file_bytes(), 8 << 40);
    }
}
