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

fn overwrite(
    file: &dyn Handle,
    mut random: Random,
    options: &arguments::Dirty,
    stage: &Stage,
) -> Result<u64> {
    let mut block = AlignedBuf::zeroed(options.bs as usize);
    let blocks = options.size / options.bs;
    let mut operations = 0u64;
    while !stage.is_over() {
        operations += 1;
        block[..8].copy_from_slice(&operations.to_ne_bytes());
        file.write_at(&block, random.below(blocks) * options.bs)?;
        if options.sync == SyncEvery::Every {
            file.sync(true)?;
        }
    }
    Ok(operations)
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
            Box::new(move |stage: &Stage| overwrite(file, random, options, stage)) as Part<'_, u64>
        });
        let parts = parts.collect();
        context.phase("overwriting")?;
        let (operations, elapsed) = drive(context.surroundings, Until::Elapsed(context.duration()), parts)?;
        // What is still in memory belongs to the work: its time and its bytes.
        let ending = Instant::now();
        if options.sync == SyncEvery::None {
            context.phase("syncing")?;
            files.iter().try_for_each(|file| file.sync(true))?;
        }
        let seconds = elapsed.as_secs_f64()
            + if options.sync == SyncEvery::None { ending.elapsed().as_secs_f64() } else { 0.0 };
        let after = target.counters();
        let operations: u64 = operations.iter().sum();
        let mut sample = Sample::default();
        sample.add("seconds", seconds);
        sample.add("operations", operations as f64);
        sample.add("bytes", (operations * options.bs) as f64);
        add_device(&mut sample, &before, &after);
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "iops"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("write_mib_s", sample.rate("bytes", "seconds") / f64::from(1 << 20));
        figures.push("iops", sample.rate("operations", "seconds"));
        push_device(&mut figures, sample);
        figures
    }
}
