//! Readers against writers: torn reads of one hot range, and who gets how far when both sides are many.

use super::{Arena, Finding, load, part};
use crate::outcome::{Outcome, os};
use crate::sample::Latency;
use crate::workload::mixed::{is_torn, tagged};
use quire_base::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const SIZES: [(usize, &str); 4] = [(4 << 10, "4k"), (16 << 10, "16k"), (64 << 10, "64k"), (1 << 20, "1m")];
const WRITERS: usize = 2;
const READERS: usize = 2;

/// Buffered reads of a range that two writers keep overwriting whole: does a read ever see two writes?
pub fn torn_reads(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    SIZES.iter().map(|&(bytes, label)| torn_at(arena, bytes, label)).collect()
}

fn torn_at(arena: &Arena<'_>, bytes: usize, label: &str) -> Outcome<Finding> {
    let name = format!("torn_{label}");
    let file = arena.open(&name, 0)?;
    file.write_all_at(&tagged(bytes, 1), 0).map_err(os("writing"))?;
    let file = &file;
    let writers = (0..WRITERS).map(|n| {
        part(move |stage| {
            let blocks = [tagged(bytes, 2 + 2 * n as u64), tagged(bytes, 3 + 2 * n as u64)];
            for block in blocks.iter().cycle() {
                if stage.is_over() {
                    break;
                }
                file.write_all_at(block, 0).map_err(os("writing"))?;
            }
            Ok((0, 0))
        })
    });
    let readers = (0..READERS).map(|_| {
        part(move |stage| {
            let mut block = tagged(bytes, 0);
            let (mut torn, mut reads) = (0u64, 0u64);
            while !stage.is_over() {
                // One system call: reading on after a short count would be two operations.
                let count = file.read_at(&mut block, 0).map_err(os("reading"))?;
                reads += 1;
                torn += u64::from(is_torn(&block[..count / 8 * 8]));
            }
            Ok((torn, reads))
        })
    });
    let load = load::part_of(arena, &name, bytes)?;
    let parts = writers.chain(readers).chain(load).collect();
    let counts = arena.race(&format!("torn reads, {label}"), parts)?;
    arena.remove(&name);
    let (torn, reads) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    Ok(Finding::counted(name, format!("torn reads, {label}, buffered"), torn, reads))
}

const CROWD: usize = 4;
const CROWD_BLOCK: usize = 4 << 10;
const CROWD_BYTES: u64 = 16 << 20;
/// A side starves if it gets less than one in this many operations, with as many threads as the other.
const STARVED: u64 = 8;

/// As many readers as writers at random places of a cached file: does either side starve?
pub fn starvation(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    let file = arena.open("starve", 0)?;
    let chunk = tagged(1 << 20, 1);
    for at in (0..CROWD_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, at).map_err(os("writing"))?;
    }
    file.sync_all().map_err(os("fsync"))?;
    let file = &file;
    let crowd = (0..2 * CROWD).map(|n| {
        let mut random = arena.random(n);
        let writes = n % 2 == 1;
        part(move |stage| {
            let mut block = tagged(CROWD_BLOCK, n as u64 + 2);
            let mut latency = Latency::new();
            while !stage.is_over() {
                let offset = random.below(CROWD_BYTES / CROWD_BLOCK as u64) * CROWD_BLOCK as u64;
                let start = Instant::now();
                one(file, writes, &mut block, offset)?;
                latency.record(start.elapsed());
            }
            Ok((writes, latency))
        })
    });
    let results = arena.race("starvation", crowd.collect())?;
    arena.remove("starve");
    let side = |writes| {
        let of_side = results.iter().filter(move |(side, _)| *side == writes).map(|(_, latency)| latency);
        let count: u64 = of_side.clone().map(Latency::count).sum();
        (count, of_side.map(Latency::max_us).fold(0.0, f64::max) / 1000.0)
    };
    let (reads, writes) = (side(false), side(true));
    let all = reads.0 + writes.0;
    let finding = |name: &str, (count, longest): (u64, f64)| {
        let starved = count * STARVED < all;
        let share = 100.0 * count as f64 / (all as f64).max(1.0);
        Finding::counted(format!("{name}_starvation"), format!("{name} starved"), u64::from(starved), 1)
            .with_note(format!("{share:.1} % of {all} operations, longest wait {longest:.1} ms"))
    };
    Ok(vec![finding("readers", reads), finding("writers", writes)])
}

fn one(file: &File, writes: bool, block: &mut [u8], offset: u64) -> Result<()> {
    match writes {
        true => file.write_all_at(block, offset).map_err(os("writing")),
        false => file.read_exact_at(block, offset).map_err(os("reading")),
    }
}
