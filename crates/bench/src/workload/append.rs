//! `append`: durable (O_DSYNC) appends to one log file, or overwrites of it from start to end, round and
//! round.

use super::{Context, Work, fields, fill, needs_files};
use crate::arguments;
use crate::drive::{Part, Stage, Timed, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::Result;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Bytes of the log that is overwritten.
const LOG_BYTES: u64 = 64 << 20;
/// Durable writes a second that no device under this is expected to exceed; sizes the image.
const RATE_MAX: f64 = 50_000.0;

/// The workload.
pub struct Append(pub arguments::Append);

impl Append {
    /// Bytes of the log: whole writes.
    fn log_bytes(&self) -> u64 {
        LOG_BYTES.next_multiple_of(self.0.bs)
    }
}

fn write(file: &dyn Handle, place: Option<(&AtomicU64, u64)>, bs: usize, stage: &Stage) -> Result<Timed> {
    let mut block = AlignedBuf::zeroed(bs);
    let mut timed = Timed::default();
    let mut n = 0u64;
    while !stage.is_over() {
        n += 1;
        block[0] = n as u8;
        let offset = place.map_or(0, |(next, bytes)| next.fetch_add(bs as u64, Ordering::Relaxed) % bytes);
        let start = Instant::now();
        file.write_at(&block, offset)?;
        timed.record(start.elapsed(), stage);
    }
    Ok(timed)
}

impl Work for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn params(&self) -> Map<String, Value> {
        fields([
            ("threads", json!(self.0.threads)),
            ("bs", json!(size::show(self.0.bs))),
            ("overwrite", json!(self.0.overwrite)),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.log_bytes()
    }

    fn device_bytes(&self, seconds: f64) -> u64 {
        let appended = (seconds * RATE_MAX * self.0.bs as f64).min((8u64 << 30) as f64) as u64;
        let log = if self.0.overwrite { 2 * self.log_bytes() } else { appended.next_multiple_of(4096) };
        log + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        match kind {
            Kind::Raw if self.0.bs.is_multiple_of(4096) => None,
            Kind::Raw => Some("the bare image takes whole blocks of 4k".into()),
            _ => needs_files(kind),
        }
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let bs = self.0.bs as usize;
        let how = How { data_sync: true, append: !self.0.overwrite, ..How::create(self.log_bytes()) };
        if self.0.overwrite {
            context.phase("filling the log")?;
            let file = target.open("log", How::create(self.log_bytes()))?;
            fill(&*file, self.log_bytes(), false, context)?;
        }
        let file = target.open("log", how)?;
        target.sync()?;
        let next = AtomicU64::new(0);
        let place = self.0.overwrite.then_some((&next, self.log_bytes()));
        let parts = (0..self.0.threads).map(|_| {
            let file = &*file;
            Box::new(move |stage: &Stage| write(file, place, bs, stage)) as Part<'_, Timed>
        });
        let parts = parts.collect();
        context.phase("appending")?;
        let before = target.counters();
        let (timed, elapsed) = drive(context.surroundings, Until::Elapsed(context.duration()), parts)?;
        let mut sample = Sample::default();
        let after = target.counters();
        sample.add("seconds", elapsed.as_secs_f64());
        sample.add_growth("device_flushes", before.device_flushes, after.device_flushes);
        for timed in &timed {
            sample.add("operations", timed.operations as f64);
            sample.add("all", timed.latency.count() as f64);
            sample.add_latency("write", &timed.latency)?;
        }
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "ops_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("ops_s", sample.rate("operations", "seconds"));
        figures.push("p50_us", sample.percentile_us("write", 50.0).unwrap_or(0.0));
        figures.push("p99_us", sample.percentile_us("write", 99.0).unwrap_or(0.0));
        figures.push("operations", sample.sum("all"));
        figures.push_known("device_flushes", sample.known("device_flushes"));
        figures
    }
}
