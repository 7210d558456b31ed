//! `lab unlink`: what unlinking a great deal costs those who unlink, and those who do something else
//! meanwhile.
//!
//! A volume in memory holds many small files and one file of a tebibyte in many extents. One thread keeps
//! making, writing, reading and unlinking small files of its own in another directory, first alone, then
//! while the many files are unlinked one by one, then while the large one is freed behind its unlink. Told
//! are the latencies of both, and how much memory the process took on top.
//!
//! Neighbours: the program `lab` runs it; `quire::reaper` does the work.

use crate::arguments::Unlink;
use hdrhistogram::Histogram;
use quire::backend::MemoryBackend;
use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags};
use quire::{FormatOptions, Volume, VolumeOptions};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Result};
use quire_bench::outcome::{Outcome, failed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the large file.
const LARGE_BYTES: u64 = 1 << 40;
/// Time that the other operations are measured alone.
const IDLE: Duration = Duration::from_secs(3);

type Times = Histogram<u64>;

fn times() -> Times {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds in order")
}

fn row(what: &str, times: &Times) {
    let us = |nanos: u64| nanos as f64 / 1000.0;
    println!(
        "{what:46} {:>9} {:>10.1} {:>10.1} {:>10.1}",
        times.len(),
        us(times.value_at_quantile(0.5)),
        us(times.value_at_quantile(0.99)),
        us(times.max())
    );
}

/// Bytes of memory that the process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// One of the other operations: a small file's life.
fn other(volume: &Volume, directory: &InodeRef) -> Result<()> {
    let file = volume.inodes().create(directory, b"other", &Create::file(0o600))?;
    volume.inodes().write_at(&file, &[1; BLOCK_SIZE], 0, IoFlags::empty())?;
    volume.inodes().read_at(&file, &mut [0; BLOCK_SIZE], 0, IoFlags::empty())?;
    std::hint::black_box(volume.inodes().metadata(&file));
    volume.inodes().remove_file(directory, b"other")
}

/// Others' latencies until `over`.
fn others(volume: &Volume, directory: &InodeRef, over: &AtomicBool) -> Result<Times> {
    let mut seen = times();
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        other(volume, directory)?;
        seen.saturating_record(start.elapsed().as_nanos() as u64);
    }
    Ok(seen)
}

/// Runs `work` while others go on, watching memory; gives its outcome, the others' latencies, and the most
/// memory.
fn beside<T>(
    volume: &Volume,
    directory: &InodeRef,
    work: impl FnOnce() -> Result<T>,
) -> Outcome<(T, Times, u64)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let going = scope.spawn(|| others(volume, directory, &over));
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(resident());
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let seen = going.join().map_err(|_| failed("the other thread panicked"))??;
        let most = watch.join().map_err(|_| failed("the watching thread panicked"))?;
        Ok((done?, seen, most))
    })
}

/// A file of [`LARGE_BYTES`] with so many extents, and holes between them. Gives its blocks.
fn large_file(volume: &Volume, directory: &InodeRef, extents: u64) -> Result<u64> {
    let file = volume.inodes().create(directory, b"large", &Create::file(0o600))?;
    let stride = (LARGE_BYTES / extents).next_multiple_of(2 * BLOCK_SIZE as u64);
    for n in 0..extents {
        volume.inodes().allocate(&file, FallocateMode::Allocate, n * stride, stride / 2)?;
    }
    volume.inodes().set_len(&file, LARGE_BYTES)?;
    Ok(volume.inodes().metadata(&file).blocks() * 512 / BLOCK_SIZE as u64)
}

/// `lab unlink`.
pub fn unlink(arguments: &Unlink) -> Outcome {
    // As much again as the file takes, sparse.
    let backend = Arc::new(MemoryBackend::new(2 * LARGE_BYTES / BLOCK_SIZE as u64));
    FormatOptions::new().format_backend(backend.clone())?;
    let options = VolumeOptions::new().cache_bytes(256 << 20);
    let volume = options.open_backend(backend)?;
    let root = volume.inodes().root();
    let directory = |name: &[u8]| volume.inodes().create(&root, name, &Create::directory(0o755));
    let (many, elsewhere) = (directory(b"many")?, directory(b"elsewhere")?);
    let name = |n: u64| format!("file-{n}");
    println!("making {} files, and one of 1 TiB with {} extents", arguments.files, arguments.extents);
    for n in 0..arguments.files {
        let file = volume.inodes().create(&many, name(n).as_bytes(), &Create::file(0o600))?;
        volume.inodes().write_at(&file, &[7; 64], 0, IoFlags::empty())?;
    }
    let blocks = large_file(&volume, &many, arguments.extents)?;
    volume.sync()?;

    println!("{:46} {:>9} {:>10} {:>10} {:>10}", "latency, us", "count", "p50", "p99", "longest");
    let before = resident();
    let sleep = || {
        std::thread::sleep(IDLE);
        Ok(())
    };
    let ((), idle, _) = beside(&volume, &elsewhere, sleep)?;
    row("others, alone", &idle);
    let each = || -> Result<Times> {
        let mut seen = times();
        for n in 0..arguments.files {
            let start = Instant::now();
            volume.inodes().remove_file(&many, name(n).as_bytes())?;
            seen.saturating_record(start.elapsed().as_nanos() as u64);
        }
        Ok(seen)
    };
    let (unlinks, during, most) = beside(&volume, &elsewhere, each)?;
    row("unlink of each file", &unlinks);
    row("others meanwhile", &during);
    println!("memory on top: {} MiB", most.saturating_sub(before) >> 20);
    volume.drain_orphans();

    let large = || -> Result<(Duration, Duration)> {
        let freed = volume.statfs().free;
        let start = Instant::now();
        volume.inodes().remove_file(&many, b"large")?;
        let returned = start.elapsed();
        // Others take a few blocks meanwhile.
        while volume.statfs().free + 4096 < freed + blocks {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((returned, start.elapsed()))
    };
    let before = resident();
    let ((returned, freed), during, most) = beside(&volume, &elsewhere, large)?;
    println!("unlink of the large file returned after {returned:.1?}; it was freed after {freed:.1?}");
    row("others meanwhile", &during);
    println!("memory on top: {} MiB", most.saturating_sub(before) >> 20);
    volume.close()?;
    Ok(())
}
