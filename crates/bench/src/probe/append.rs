//! Appenders against each other, and readers that look at the size of a file that grows.
//!
//! Each append is one record: a header of two words (thread and number), then words that repeat a mix of
//! both. What is in the file at the end must be whole records, each once.

use super::{Arena, Finding, part};
use crate::outcome::{Outcome, os};
use quire_base::Result;
use quire_device::AlignedBuf;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

const APPENDERS: usize = 4;
/// Crosses pages in every way.
const BUFFERED_RECORD: usize = 5000;
/// O_DIRECT takes whole blocks.
const DIRECT_RECORD: usize = 8192;
/// A race ends before its file is larger.
const BYTES_MAX: u64 = 256 << 20;

fn fill(record: &mut [u8], thread: u64, number: u64) {
    let mix = (thread << 56) ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = record.as_chunks_mut::<8>().0;
    words.fill(mix.to_ne_bytes());
    words[0] = (thread + 1).to_ne_bytes();
    words[1] = number.to_ne_bytes();
}

/// Which record a whole one is.
fn identify(record: &[u8]) -> Option<(u64, u64)> {
    let words = record.as_chunks::<8>().0;
    let (thread, number) = (u64::from_ne_bytes(words[0]).checked_sub(1)?, u64::from_ne_bytes(words[1]));
    let mut wanted = vec![0; record.len()];
    fill(&mut wanted, thread, number);
    (thread < APPENDERS as u64 && wanted == record).then_some((thread, number))
}

/// Lost and interleaved appends, buffered and direct.
pub fn appends(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    let mut findings = race(arena, "buffered", 0, BUFFERED_RECORD)?;
    match arena.can_direct() {
        Ok(()) => findings.extend(race(arena, "direct", libc::O_DIRECT, DIRECT_RECORD)?),
        Err(why) => {
            for what in ["lost", "interleaved"] {
                let name = format!("{what}_appends_direct");
                findings.push(Finding::not_tried(name, format!("{what} appends, direct"), &why));
            }
        }
    }
    Ok(findings)
}

fn race(arena: &Arena<'_>, kind: &str, flags: i32, record: usize) -> Outcome<Vec<Finding>> {
    let name = format!("append_{kind}");
    let per_thread = BYTES_MAX / record as u64 / APPENDERS as u64;
    let mut parts = Vec::new();
    for thread in 0..APPENDERS as u64 {
        // Each with an open file of its own.
        let mut file = arena.open(&name, libc::O_APPEND | flags)?;
        parts.push(part(move |stage| {
            let mut buffer = AlignedBuf::zeroed(record);
            let mut number = 0;
            while !stage.is_over() && number < per_thread {
                fill(&mut buffer, thread, number);
                let count = file.write(&buffer).map_err(os("appending"))?;
                if count < buffer.len() {
                    break;
                }
                number += 1;
            }
            Ok(number)
        }));
    }
    let written = arena.race(&format!("appends, {kind}"), parts)?;
    let file = arena.open(&name, 0)?;
    let total: u64 = written.iter().sum();
    let (seen, damaged) = scan(&file, record)?;
    let whole = |thread: u64| (0..written[thread as usize]).filter(|&n| seen.contains(&(thread, n))).count();
    let lost = total - (0..APPENDERS as u64).map(|thread| whole(thread) as u64).sum::<u64>();
    arena.remove(&name);
    Ok(vec![
        Finding::counted(format!("lost_appends_{kind}"), format!("lost appends, {kind}"), lost, total),
        Finding::counted(
            format!("interleaved_appends_{kind}"),
            format!("interleaved appends, {kind}"),
            damaged,
            total,
        ),
    ])
}

/// The whole records of a file, and how many stretches are none.
fn scan(file: &File, record: usize) -> Result<(BTreeSet<(u64, u64)>, u64)> {
    let mut seen = BTreeSet::new();
    let mut damaged = 0;
    let mut buffer = vec![0; record];
    let bytes = file.metadata().map_err(os("looking at the size"))?.len();
    for at in (0..bytes).step_by(record) {
        let length = record.min((bytes - at) as usize);
        file.read_exact_at(&mut buffer[..length], at).map_err(os("reading"))?;
        match identify(&buffer[..length]).filter(|_| length == record) {
            Some(which) if seen.insert(which) => {}
            _ => damaged += 1,
        }
    }
    Ok((seen, damaged))
}

const GROWTH: usize = 64 << 10;

/// A file that grows by one writer's appends: does a reader ever see a size whose bytes are not there yet, or
/// a size in the midst of an append?
pub fn sizes(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    let name = "growing";
    let mut writer = arena.open(name, libc::O_APPEND)?;
    let reader = arena.open(name, 0)?;
    let grow = part(move |stage| {
        let block = vec![0xff; GROWTH];
        let mut grown = 0u64;
        while !stage.is_over() {
            if grown >= BYTES_MAX {
                // Begun anew, so that a fast file system does not fill the disk.
                writer.set_len(0).map_err(os("truncating"))?;
                grown = 0;
            }
            writer.write_all(&block).map_err(os("appending"))?;
            grown += GROWTH as u64;
        }
        Ok((0, 0, 0))
    });
    let look = part(|stage| {
        let mut block = vec![0; 4096];
        let (mut early, mut partial, mut looks) = (0u64, 0u64, 0u64);
        let mut last = 0;
        while !stage.is_over() {
            let size = reader.metadata().map_err(os("looking at the size"))?.len();
            if size == last || size == 0 {
                continue;
            }
            looks += 1;
            last = size;
            partial += u64::from(!size.is_multiple_of(GROWTH as u64));
            let wanted = block.len().min(size as usize);
            let count = reader.read_at(&mut block[..wanted], size - wanted as u64).map_err(os("reading"))?;
            let shrunk = reader.metadata().map_err(os("looking at the size"))?.len() < size;
            let bad = count < wanted || block[..count].iter().any(|&byte| byte != 0xff);
            early += u64::from(bad && !shrunk);
        }
        Ok((early, partial, looks))
    });
    let counts = arena.race("growth", vec![grow, look])?;
    arena.remove(name);
    let (early, partial, looks) =
        counts.iter().fold((0, 0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1, sum.2 + count.2));
    Ok(vec![
        Finding::counted("size_before_data", "size seen before its data", early, looks),
        Finding::counted("partial_appends", "size seen in the midst of an append (64k)", partial, looks),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_mixtures_are_seen() {
        let record = 100;
        let mut bytes = Vec::new();
        for number in 0..3 {
            let mut one = vec![0; record];
            fill(&mut one, 1, number);
            bytes.extend(one);
        }
        // The second record is half the first's.
        let (first, rest) = bytes.split_at_mut(record);
        rest[..48].copy_from_slice(&first[..48]);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let (seen, damaged) = scan(&file, record).unwrap();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 0), (1, 2)]);
        assert_eq!(damaged, 1);
    }
}
