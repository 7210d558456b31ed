//! `group`: transactions of several random 4 KiB overwrites of one file, durable as a whole.
//!
//! Quire commits groups, kernel file systems keep the rollback journal of a database, and the bare image
//! takes one write of as many bytes. Each thread opens the file by itself.

use super::{CHUNK, Context, Each, Work, drive_durably, fields, fill, needs_files, push_device};
use crate::arguments;
use crate::drive::{Part, Stage, Timed};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Sample};
use crate::size;
use crate::target::{Handle, How, Piece, Target};
use quire_base::Result;
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Bytes of one overwrite.
const PAGE: u64 = 4096;

/// The workload.
pub struct Group(arguments::Group);

impl Group {
    /// Checks the options.
    pub fn new(options: arguments::Group) -> std::result::Result<Group, String> {
        if !options.size.is_multiple_of(PAGE) || options.size / PAGE < options.writes {
            return Err(format!(
                "--size {}: whole blocks of 4k are needed, at least as many as --writes {}",
                options.size, options.writes
            ));
        }
        Ok(Group(options))
    }
}

/// Commits until the stage is over.
fn commit(file: &dyn Handle, mut random: Random, options: &arguments::Group, stage: &Stage) -> Result<Timed> {
    let mut pages = AlignedBuf::zeroed((options.writes * PAGE) as usize);
    let mut places: Vec<u64> = Vec::new();
    let mut timed = Timed::default();
    while !stage.is_over() {
        places.clear();
        while (places.len() as u64) < options.writes {
            let place = random.below(options.size / PAGE) * PAGE;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        for page in pages.chunks_mut(PAGE as usize) {
            page[..8].copy_from_slice(&(timed.latency.count() + 1).to_ne_bytes());
        }
        let pieces: Vec<Piece<'_>> = pages.chunks(PAGE as usize).zip(places.iter().copied()).collect();
        let start = Instant::now();
        file.group(&pieces)?;
        timed.record(start.elapsed(), stage);
    }
    Ok(timed)
}

impl Work for Group {
    fn name(&self) -> &'static str {
        "group"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.0;
        fields([
            ("threads", json!(options.threads)),
            ("writes", json!(options.writes)),
            ("size", json!(size::show(options.size))),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.size
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        2 * self.file_bytes() + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        if *kind == Kind::Raw { None } else { needs_files(kind) }
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let options = &self.0;
        let how = How::create(options.size.next_multiple_of(CHUNK as u64));
        context.phase("filling the file")?;
        fill(&*target.open("db", how)?, options.size, true, context)?;
        let files = (0..options.threads).map(|_| target.open("db", how));
        let files = files.collect::<Result<Vec<Arc<dyn Handle>>>>()?;
        target.settle()?;
        let parts = files.iter().enumerate().map(|(n, file)| {
            let random = context.random(1, n);
            Box::new(move |stage: &Stage| commit(&**file, random, options, stage)) as Part<'_, Timed>
        });
        let each = Each { name: "commit", bytes: options.writes * PAGE };
        drive_durably(target, context, "committing", each, parts.collect())
    }

    fn headline(&self) -> &'static str {
        "commits_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("commits_s", sample.rate("operations", "seconds"));
        figures.push("p50_us", sample.percentile_us("commit", 50.0).unwrap_or(0.0));
        figures.push("p99_us", sample.percentile_us("commit", 99.0).unwrap_or(0.0));
        push_device(&mut figures, sample);
        figures
    }
}
