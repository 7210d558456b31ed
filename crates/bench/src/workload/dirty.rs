//! `dirty`: threads overwrite random blocks of their own file (or of one file), durable one by one or all at
//! the end; what reaches the device is counted there.

use super::{CHUNK, Context, Work, add_device, check_blocks, fields, fill, needs_files, push_device};
use crate::arguments::{self, SyncEvery};
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// The workload.
pub struct Dirty(arguments::Dirty);

impl Dirty {
    /// Checks the options.
    pub fn new(options: arguments::Dirty) -> std::result::Result<Dirty, String> {
        check_blocks(options.bs, options.size)?;
        if !options.bs.is_multiple_of(4096) {
            return Err(format!("--bs {}: whole blocks of 4k are needed", options.bs));
        }
        Ok(Dirty(options))
    }

    fn files(&self) -> usize {
        if self.0.one_file { 1 } else { self.0.jobs }
    }
}

/// What a thread did.
struct Did {
    operations: u64,
    /// Those that ended before the stop.
    in_time: u64,
}

fn overwrite(
    file: &dyn Handle,
    mut random: Random,
    options: &arguments::Dirty,
    stage: &Stage,
) -> Result<Did> {
    let mut block = AlignedBuf::zeroed(options.bs as usize);
    let blocks = options.size / options.bs;
    let mut did = Did { operations: 0, in_time: 0 };
    while !stage.is_over() {
        did.operations += 1;
        block[..8].copy_from_slice(&did.operations.to_ne_bytes());
        file.write_at(&block, random.below(blocks) * options.bs)?;
        if options.sync == SyncEvery::Every {
            file.sync(true)?;
        }
        did.in_time += u64::from(!stage.is_over());
    }
    Ok(did)
}

impl Work for Dirty {
    fn name(&self) -> &'static str {
        "dirty"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.0;
        fields([
            ("jobs", json!(options.jobs)),
            ("bs", json!(size::show(options.bs))),
            ("size", json!(size::show(options.size))),
            ("sync", json!(if options.sync == SyncEvery::Every { "every" } else { "none" })),
            ("one_file", json!(options.one_file)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.files() as u64 * self.0.size
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        2 * self.file_bytes() + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        if *kind == Kind::Raw { None } else { needs_files(kind) }
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let options = &self.0;
        let mut files: Vec<Arc<dyn Handle>> = Vec::new();
        for n in 0..self.files() {
            context.phase("filling the files")?;
            let file =
                target.open(&format!("f{n}"), How::create(options.size.next_multiple_of(CHUNK as u64)))?;
            fill(&*file, options.size, true, context)?;
            files.push(file);
        }
        target.sync()?;
        let before = target.counters();
        let parts = (0..options.jobs).map(|n| {
            let (file, random) = (&*files[n % files.len()], context.random(1, n));
            Box::new(move |stage: &Stage| overwrite(file, random, options, stage)) as Part<'_, Did>
        });
        let parts = parts.collect();
        context.phase("overwriting")?;
        let begun = Instant::now();
        let (did, elapsed) = drive(context.surroundings, Until::Elapsed(context.duration()), parts)?;
        let all: u64 = did.iter().map(|did| did.operations).sum();
        let (operations, time) = match options.sync {
            SyncEvery::Every => (did.iter().map(|did| did.in_time).sum(), elapsed),
            // What is still in memory belongs to the work: its time and its bytes. So do the writes that were
            // under way when the time had passed.
            SyncEvery::None => {
                context.phase("syncing")?;
                files.iter().try_for_each(|file| file.sync(true))?;
                (all, begun.elapsed())
            }
        };
        let after = target.counters();
        let mut sample = Sample::default();
        sample.add("seconds", time.as_secs_f64());
        sample.add("operations", operations as f64);
        sample.add("bytes", (all * options.bs) as f64);
        add_device(&mut sample, &before, &after);
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "iops"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        let iops = sample.rate("operations", "seconds");
        figures.push("write_mib_s", iops * self.0.bs as f64 / f64::from(1 << 20));
        figures.push("iops", iops);
        push_device(&mut figures, sample);
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
    use std::time::Duration;

    /// Writes that the end overtook were counted, and the time until they returned was not.
    #[test]
    fn the_last_writes_count_with_their_time() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        let context = Context { seconds: Some(0.2), seed: 1, surroundings: &surroundings };
        let target = Slow { write: Duration::from_millis(600), sync: Duration::ZERO };
        for (sync, operations) in [(SyncEvery::None, 1.0), (SyncEvery::Every, 0.0)] {
            let work = Dirty(arguments::Dirty {
                jobs: 1,
                bs: 4096,
                size: 4096,
                sync,
                one_file: false,
                folio: None,
                track: None,
            });
            let sample = work.run(&target, &context).unwrap();
            assert_eq!(sample.sum("operations"), operations);
            assert_eq!(sample.sum("seconds") >= 0.6, sync == SyncEvery::None);
        }
    }
}
