//! Threads that write, append, read, write back and reclaim at once: every read is one write's bytes, whole.

use crate::common::{FakeFile, World};
use quire_base::Clock;
use quire_base::random::Random;
use quire_cache::{CacheConfig, ReadView};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FILE: u64 = 4 << 20;

fn tagged(tag: u64, len: usize) -> Vec<u8> {
    tag.to_le_bytes().iter().copied().cycle().take(len).collect()
}

/// The one tag of a buffer.
fn tag_of(bytes: &[u8]) -> Result<u64, (usize, u64, u64)> {
    let word = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap());
    let first = word(0);
    match (0..bytes.len()).step_by(8).find(|i| word(*i) != first) {
        None => Ok(first),
        Some(i) => Err((i, first, word(i))),
    }
}

fn read(file: &FakeFile, offset: u64, buf: &mut [u8], optimistic: bool) -> usize {
    let view = || ReadView { exclusive_sequence: 0, size: file.size.load(Ordering::Acquire) };
    if optimistic && let Some(count) = file.mapping().try_read(offset, buf, view) {
        return count;
    }
    file.mapping().read(offset, buf, &|| file.size.load(Ordering::Acquire)).unwrap()
}

fn race(limit: u64, order_max: u8, sizes: &[usize], slow_device: bool) {
    let mut config = CacheConfig::new(limit);
    config.order_max = order_max;
    config.batch_bytes = 256 << 10;
    let world = World::with_clock(config, Clock::System);
    world.faulty.slow.store(slow_device, Ordering::Relaxed);
    world.cache.start().unwrap();
    let files: Vec<_> = sizes.iter().map(|size| (world.file(), *size)).collect();
    for (file, size) in &files {
        for slot in 0..FILE / *size as u64 {
            file.write(slot * *size as u64, &tagged(1, *size)).unwrap();
        }
    }
    let log = world.file();
    let stop = Arc::new(AtomicBool::new(false));
    let reads = AtomicU64::new(0);
    let deadline = Instant::now() + Duration::from_millis(1500);
    thread::scope(|scope| {
        for id in 0..3u64 {
            let (files, stop) = (&files, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(id);
                let mut sequence = id << 32;
                while !stop.load(Ordering::Relaxed) {
                    let (file, size) = &files[random.below(files.len() as u64) as usize];
                    let slot = random.below(FILE / *size as u64);
                    sequence += 1;
                    file.write(slot * *size as u64, &tagged(sequence, *size)).unwrap();
                }
            });
        }
        for id in 0..3u64 {
            let (files, stop, reads) = (&files, &stop, &reads);
            scope.spawn(move || {
                let mut random = Random::seeded(100 + id);
                let mut buf = vec![0; 256 << 10];
                while !stop.load(Ordering::Relaxed) {
                    let (file, size) = &files[random.below(files.len() as u64) as usize];
                    let slot = random.below(FILE / *size as u64);
                    let count = read(file, slot * *size as u64, &mut buf[..*size], !random.one_in(3));
                    assert_eq!(count, *size);
                    if let Err((at, first, other)) = tag_of(&buf[..*size]) {
                        panic!("torn read of {size} in slot {slot}: {first:x}, but {other:x} at {at}");
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        {
            // One thread appends records of changing sizes; readers never see a part of one.
            let (log, stop) = (&log, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(7);
                for sequence in 1u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let at = log.size.load(Ordering::Acquire);
                    if at > 64 << 20 {
                        break;
                    }
                    let len = 4096 + 8 * random.below(8000) as usize;
                    let mut record = tagged(sequence, len);
                    record[..8].copy_from_slice(&(len as u64).to_le_bytes());
                    record[8..16].copy_from_slice(&sequence.to_le_bytes());
                    log.write(at, &record).unwrap();
                }
            });
            scope.spawn(move || {
                let mut buf = vec![0; 128 << 10];
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    let count = read(log, at, &mut buf, at % 16 < 8);
                    let mut used = 0;
                    while used + 16 <= count {
                        let len = u64::from_le_bytes(buf[used..used + 8].try_into().unwrap()) as usize;
                        assert!((4096..=4096 + 64_000).contains(&len), "no record at {at} + {used}: {len}");
                        if used + len > count {
                            break;
                        }
                        tag_of(&buf[used + 8..used + len]).expect("a torn record");
                        used += len;
                    }
                    // A short read ends at the end of a record: sizes are published with the data.
                    assert!(
                        count == buf.len() || used == count,
                        "a part of a record at {at}: {used} of {count}"
                    );
                    at += used as u64;
                }
            });
        }
        {
            let (world, files, stop) = (&world, &files, &stop);
            scope.spawn(move || {
                let mut random = Random::seeded(55);
                while !stop.load(Ordering::Relaxed) {
                    world.cache.reclaim(random.below(1 << 20));
                    let (file, _) = &files[random.below(files.len() as u64) as usize];
                    match random.below(3) {
                        0 => file.mapping().write_back(0, quire_cache::BLOCKS_END).unwrap(),
                        1 => world.cache.write_back_all().unwrap(),
                        _ => thread::sleep(Duration::from_millis(2)),
                    }
                }
            });
        }
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            let usage = world.cache.usage();
            assert!(usage.used_bytes <= usage.limit_bytes);
        }
        stop.store(true, Ordering::Relaxed);
    });
    world.cache.write_back_all().unwrap();
    for (file, size) in &files {
        file.mapping().evict_all();
        let mut buf = vec![0; *size];
        for slot in 0..FILE / *size as u64 {
            assert_eq!(read(file, slot * *size as u64, &mut buf, false), *size);
            tag_of(&buf).expect("torn on the device");
        }
        assert_eq!(file.reserved(), 0);
    }
    log.mapping().evict_all();
    world.cache.stop();
    assert_eq!(world.cache.usage().dirty_bytes, 0);
    assert_eq!(world.faulty.overlaps.load(Ordering::SeqCst), 0, "two writes of one block in flight");
    eprintln!("{} reads, {:?}", reads.load(Ordering::Relaxed), world.cache.metrics());
}

#[test]
fn all_sizes_in_a_roomy_cache() {
    race(64 << 20, 4, &[4 << 10, 16 << 10, 64 << 10, 256 << 10], false);
}

#[test]
fn all_sizes_in_a_cache_that_is_always_full() {
    race(4 << 20, 4, &[4 << 10, 16 << 10, 64 << 10, 256 << 10], false);
}

#[test]
fn huge_folios_and_a_slow_device() {
    race(12 << 20, 9, &[4 << 10, 64 << 10, 256 << 10], true);
}
