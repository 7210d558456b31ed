//! `untorn`: threads overwrite random aligned blocks of their own file, each durable before the next.
//!
//! The engine's options say what it promises about a block over a crash: `quire@untorn=8k`, `xfs@atomic`, or
//! nothing.

use super::{
    CHUNK, Context, Each, Work, check_blocks, drive_durably, fields, fill, needs_files, overwrite,
    push_device,
};
use crate::arguments;
use crate::drive::{Part, Stage, Timed};
use crate::engine::Kind;
use crate::outcome::{Outcome, Trouble};
use crate::sample::{Figures, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::sync::Arc;
use serde_json::{Map, Value, json};

/// The workload.
pub struct Untorn(arguments::Untorn);

impl Untorn {
    /// Checks the options.
    pub fn new(options: arguments::Untorn) -> std::result::Result<Untorn, String> {
        check_blocks(options.bs, options.size)?;
        if !options.bs.is_multiple_of(4096) {
            return Err(format!("--bs {}: whole blocks of 4k are needed", options.bs));
        }
        if !options.size.is_multiple_of(4096) {
            return Err(format!("--size {}: whole blocks of 4k are needed", options.size));
        }
        Ok(Untorn(options))
    }
}

impl Work for Untorn {
    fn name(&self) -> &'static str {
        "untorn"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.0;
        fields([
            ("jobs", json!(options.jobs)),
            ("bs", json!(size::show(options.bs))),
            ("size", json!(size::show(options.size))),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.jobs as u64 * self.0.size
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
        for n in 0..options.jobs {
            context.phase("filling the files")?;
            let room = options.size.next_multiple_of(CHUNK as u64);
            let file = target.open(&format!("f{n}"), How::create(room))?;
            fill(&*file, options.size, true, context)?;
            if let Some(why) = file.refuses_durable(options.bs) {
                return Err(Trouble::Skipped(why));
            }
            files.push(file);
        }
        target.settle()?;
        let parts = files.iter().enumerate().map(|(n, file)| {
            let random = context.random(1, n);
            let write = |block: &[u8], at| file.write_durably(block, at);
            Box::new(move |stage: &Stage| overwrite(options.size, options.bs as usize, random, stage, write))
                as Part<'_, Timed>
        });
        let each = Each { name: "write", bytes: options.bs };
        drive_durably(target, context, "overwriting", each, parts.collect())
    }

    fn headline(&self) -> &'static str {
        "iops"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("iops", sample.rate("operations", "seconds"));
        figures.push("p50_us", sample.percentile_us("write", 50.0).unwrap_or(0.0));
        figures.push("p99_us", sample.percentile_us("write", 99.0).unwrap_or(0.0));
        push_device(&mut figures, sample);
        figures
    }
}
