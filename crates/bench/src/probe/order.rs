//! Stale reads: a read that begins after a write has returned must see it or a later one, whichever way both
//! go.
//!
//! One writer counts upwards in a block and publishes each number after its write has returned; readers take
//! the published number, read, and compare. With two writers in turn (one buffered, one direct) the order is
//! theirs.

use super::{Arena, Finding, load, part};
use crate::outcome::{Outcome, os};
use crate::workload::mixed::tagged;
use quire_base::Result;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::os::unix::fs::FileExt;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4;
const READERS: usize = 2;

/// Flags of the writer (two: in turn) and of the readers.
struct Way {
    name: &'static str,
    question: &'static str,
    writers: &'static [i32],
    readers: &'static [i32],
}

const DIRECT: i32 = libc::O_DIRECT;

const WAYS: [Way; 5] = [
    Way {
        name: "stale_buffered",
        question: "stale reads: written in one thread, read in another",
        writers: &[0],
        readers: &[0],
    },
    Way {
        name: "stale_direct_after_buffered",
        question: "stale reads: direct after a buffered write",
        writers: &[0],
        readers: &[DIRECT],
    },
    Way {
        name: "stale_buffered_after_direct",
        question: "stale reads: buffered after a direct write",
        writers: &[DIRECT],
        readers: &[0],
    },
    Way {
        name: "stale_direct_after_direct",
        question: "stale reads: direct after a direct write",
        writers: &[DIRECT],
        readers: &[DIRECT],
    },
    Way {
        name: "stale_both",
        question: "stale reads: direct and buffered writes in turn, both kinds of readers",
        writers: &[0, DIRECT],
        readers: &[0, DIRECT],
    },
];

/// All ways.
pub fn stale_reads(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    let direct = arena.can_direct();
    let mut findings = Vec::new();
    for way in &WAYS {
        let needs_direct = way.writers.iter().chain(way.readers).any(|&flags| flags != 0);
        findings.push(match &direct {
            Err(why) if needs_direct => Finding::not_tried(way.name, way.question, why),
            _ => race(arena, way)?,
        });
    }
    Ok(findings)
}

fn race(arena: &Arena<'_>, way: &Way) -> Outcome<Finding> {
    let first = arena.open(way.name, 0)?;
    first.write_all_at(&vec![0; BLOCK * BLOCKS as usize], 0).map_err(os("writing"))?;
    first.sync_all().map_err(os("fsync"))?;
    let published: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let published = &published;
    let files: Vec<File> =
        way.writers.iter().map(|&flags| arena.open(way.name, flags)).collect::<Result<_>>()?;
    let mut parts = vec![part(move |stage| {
        for number in 1.. {
            if stage.is_over() {
                break;
            }
            let block = number % BLOCKS;
            let file = &files[(number / BLOCKS) as usize % files.len()];
            file.write_all_at(&tagged(BLOCK, number), block * BLOCK as u64).map_err(os("writing"))?;
            published[block as usize].store(number, Ordering::SeqCst);
        }
        Ok((0, 0))
    })];
    for n in 0..READERS {
        let file = arena.open(way.name, way.readers[n % way.readers.len()])?;
        let mut random = arena.random(n);
        parts.push(part(move |stage| {
            let mut buffer = tagged(BLOCK, 0);
            let (mut stale, mut reads) = (0u64, 0u64);
            while !stage.is_over() {
                let block = random.below(BLOCKS);
                let at_least = published[block as usize].load(Ordering::SeqCst);
                let count = file.read_at(&mut buffer, block * BLOCK as u64).map_err(os("reading"))?;
                // A torn read is another race's finding: stale means that some word is older than it may be.
                let words = buffer[..count].as_chunks::<8>().0;
                reads += 1;
                let is_old = words.iter().any(|word| u64::from_ne_bytes(*word) < at_least);
                stale += u64::from(is_old || count < BLOCK);
            }
            Ok((stale, reads))
        }));
    }
    parts.extend(load::part_of(arena, way.name, BLOCK * BLOCKS as usize)?);
    let counts = arena.race(way.question, parts)?;
    arena.remove(way.name);
    let (stale, reads) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    Ok(Finding::counted(way.name, way.question, stale, reads))
}
