//! `mixed`: readers and writers at random aligned offsets of one file that is filled and cached beforehand.
//!
//! Torn reads. Each write carries one tag in all its words, from a few buffers that are filled beforehand, so
//! that nothing is paid for tags in the measured time. Every block therefore holds one tag, and a read that
//! finds two is torn. Every 64th read is looked at, between two measured operations.
//!
//! Latency is the time from one operation's end to the next one's: one look at the clock for each.

use super::{CHUNK, Context, Work, check_blocks, fields, fill};
use crate::arguments;
use crate::drive::{Part, Stage, Until, drive};
use crate::engine::Kind;
use crate::outcome::Outcome;
use crate::sample::{Figures, Latency, Sample};
use crate::size;
use crate::target::{Handle, How, Target};
use quire_base::random::Random;
use quire_base::{Error, ErrorKind, Result};
use quire_device::AlignedBuf;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Reads between two that are checked.
const CHECK_EVERY: u64 = 64;
/// Buffers of a writer while they are small; two beyond.
const TAGS: usize = 4;
const SMALL: u64 = 64 << 10;
const READER: u64 = 1;
const WRITER: u64 = 2;
/// The one file; the name that `fuse-null` serves.
const FILE: &str = quire_fuse::null::FILE;

/// The workload.
pub struct Mixed(arguments::Mixed);

impl Mixed {
    /// Checks the options.
    pub fn new(options: arguments::Mixed) -> std::result::Result<Mixed, String> {
        check_blocks(options.bs, options.size)?;
        if options.readers + options.writers == 0 {
            return Err("neither a reader nor a writer".into());
        }
        Ok(Mixed(options))
    }

    fn offsets(&self) -> u64 {
        self.0.size / self.0.bs
    }
}

/// What one thread measured.
#[derive(Default)]
struct Tally {
    is_writer: bool,
    operations: u64,
    latency: Latency,
    checked: u64,
    torn: u64,
}

/// Whether a block holds the words of more than one write.
pub fn is_torn(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<8>();
    words.windows(2).any(|pair| pair[0] != pair[1]) || !rest.is_empty()
}

/// A block of one tag.
pub fn tagged(bytes: usize, tag: u64) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(bytes);
    block.as_chunks_mut::<8>().0.fill(tag.to_ne_bytes());
    block
}

fn read(file: &dyn Handle, mut random: Random, blocks: u64, bs: usize, stage: &Stage) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut buffer = AlignedBuf::zeroed(bs);
    let mut last = Instant::now();
    loop {
        let count = file.read_at(&mut buffer, random.below(blocks) * bs as u64)?;
        if count != bs {
            return Err(Error::new(ErrorKind::Io, format!("a read gave {count} of {bs} bytes")));
        }
        let mut now = Instant::now();
        tally.latency.record(now - last);
        if stage.is_over() {
            return Ok(tally);
        }
        if tally.operations.is_multiple_of(CHECK_EVERY) {
            tally.checked += 1;
            tally.torn += u64::from(is_torn(&buffer));
            now = Instant::now();
        }
        tally.operations += 1;
        last = now;
    }
}

fn write(
    file: &dyn Handle,
    mut random: Random,
    blocks: u64,
    buffers: &[AlignedBuf],
    stage: &Stage,
) -> Result<Tally> {
    let mut tally = Tally { is_writer: true, ..Tally::default() };
    let bs = buffers[0].len() as u64;
    let mut last = Instant::now();
    for buffer in buffers.iter().cycle() {
        file.write_at(buffer, random.below(blocks) * bs)?;
        let now = Instant::now();
        tally.latency.record(now - last);
        if stage.is_over() {
            break;
        }
        tally.operations += 1;
        last = now;
    }
    Ok(tally)
}

impl Work for Mixed {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn params(&self) -> Map<String, Value> {
        let options = &self.0;
        fields([
            ("readers", json!(options.readers)),
            ("writers", json!(options.writers)),
            ("bs", json!(size::show(options.bs))),
            ("size", json!(size::show(options.size))),
        ])
    }

    fn file_bytes(&self) -> u64 {
        self.0.size
    }

    fn device_bytes(&self, _seconds: f64) -> u64 {
        // Twice: btrfs writes overwrites elsewhere.
        2 * self.0.size + (1 << 30)
    }

    fn refuses(&self, kind: &Kind) -> Option<String> {
        (*kind == Kind::Raw).then(|| "raw is a limit of dirty, append and durable writes only".into())
    }

    fn run(&self, target: &dyn Target, context: &Context<'_>) -> Outcome<Sample> {
        let options = &self.0;
        let bs = options.bs as usize;
        context.phase("filling the file")?;
        let file = target.open(FILE, How::create(options.size.next_multiple_of(CHUNK as u64)))?;
        fill(&*file, options.size, true, context)?;
        target.sync()?;
        let tags = if options.bs <= SMALL { TAGS } else { 2 };
        let buffers: Vec<Vec<AlignedBuf>> = (0..options.writers)
            .map(|n| (0..tags).map(|tag| tagged(bs, ((n as u64 + 1) << 32) | (tag as u64 + 1))).collect())
            .collect();
        let (file, blocks) = (&*file, self.offsets());
        let readers = (0..options.readers).map(|n| {
            let random = context.random(READER, n);
            Box::new(move |stage: &Stage| read(file, random, blocks, bs, stage)) as Part<'_, Tally>
        });
        let writers = buffers.iter().enumerate().map(|(n, buffers)| {
            let random = context.random(WRITER, n);
            Box::new(move |stage: &Stage| write(file, random, blocks, buffers, stage)) as Part<'_, Tally>
        });
        let parts = readers.chain(writers).collect();
        context.phase("mixed")?;
        let (tallies, elapsed) = drive(context.surroundings, Until::Elapsed(context.duration()), parts)?;
        let mut sample = Sample::default();
        sample.add("seconds", elapsed.as_secs_f64());
        for tally in &tallies {
            let mib = tally.operations as f64 * options.bs as f64 / f64::from(1 << 20);
            if tally.is_writer {
                sample.add("write_mib", mib);
                sample.add_latency("write", &tally.latency)?;
            } else {
                sample.add("read_mib", mib);
                sample.add("checked", tally.checked as f64);
                sample.add("torn", tally.torn as f64);
                sample.add_latency("read", &tally.latency)?;
            }
        }
        Ok(sample)
    }

    fn headline(&self) -> &'static str {
        "total_mib_s"
    }

    fn figures(&self, sample: &Sample) -> Figures {
        let mut figures = Figures::default();
        figures.push("read_mib_s", sample.rate("read_mib", "seconds"));
        figures.push("write_mib_s", sample.rate("write_mib", "seconds"));
        figures.push("total_mib_s", sample.rate("read_mib", "seconds") + sample.rate("write_mib", "seconds"));
        for side in ["read", "write"] {
            for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)] {
                let value = sample.percentile_us(side, percent).unwrap_or(0.0);
                figures.push(format!("{side}_{name}_us"), value);
            }
            figures.push(format!("{side}_max_us"), sample.max_us(side).unwrap_or(0.0));
        }
        figures.push("torn_reads", sample.sum("torn"));
        figures.push("checked_reads", sample.sum("checked"));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Surroundings;
    use crate::interrupt::Interrupt;
    use crate::outcome::Trouble;
    use crate::progress::Progress;
    use std::time::Duration;

    #[test]
    fn tearing_is_seen_in_any_word() {
        let mut block = tagged(4096, 7);
        assert!(!is_torn(&block));
        block[4088] = 8;
        assert!(is_torn(&block));
        let mut block = tagged(4096, 7);
        block[0] = 8;
        assert!(is_torn(&block));
    }

    /// Short reads were counted as whole ones.
    #[test]
    fn a_short_read_is_a_failure() {
        struct Short;
        impl Handle for Short {
            fn read_at(&self, buffer: &mut [u8], _: u64) -> Result<usize> {
                Ok(buffer.len() - 1)
            }
            fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
                Ok(())
            }
            fn sync(&self, _: bool) -> Result<()> {
                Ok(())
            }
        }
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let surroundings = Surroundings { interrupt: &interrupt, progress: &progress };
        let part: Part<'_, Tally> = Box::new(|stage| read(&Short, Random::seeded(1), 4, 4096, stage));
        let outcome = drive(&surroundings, Until::Elapsed(Duration::from_millis(50)), vec![part]);
        assert!(matches!(outcome.map(drop), Err(Trouble::Failed(_))));
    }

    #[test]
    fn options_are_checked() {
        let options = |readers, writers, bs, size| arguments::Mixed { readers, writers, bs, size };
        assert!(Mixed::new(options(1, 1, 4096, 1 << 20)).is_ok());
        assert!(Mixed::new(options(0, 0, 4096, 1 << 20)).is_err());
        assert!(Mixed::new(options(1, 1, 4097, 1 << 20)).is_err());
        assert!(Mixed::new(options(1, 1, 4096, 4088)).is_err());
    }
}
