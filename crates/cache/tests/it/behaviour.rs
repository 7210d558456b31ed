//! One property a test: what writeback, reclaim, throttling and readahead promise.

use crate::common::{BS, FakeFile, World, pattern, tiny};
use quire_base::{Clock, ErrorKind, shard};
use quire_cache::{BLOCKS_END, CacheConfig, GroupPart, ReadView, write_group};
use std::sync::atomic::Ordering;

fn roomy() -> CacheConfig {
    CacheConfig::new(64 << 20)
}

#[test]
fn only_dirty_blocks_are_written() {
    let mut config = roomy();
    config.order_max = 9;
    let world = World::new(config);
    let file = world.file();
    file.write(0, &pattern(1, 1 << 20)).unwrap();
    file.write(1 << 20, &pattern(2, 1 << 20)).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    let before = world.faulty.write_bytes.load(Ordering::Relaxed);
    for block in (0..512).step_by(5) {
        file.write(block * BS + 100, &[7]).unwrap();
    }
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(world.faulty.write_bytes.load(Ordering::Relaxed) - before, 103 * BS);
}

#[test]
fn neighbours_are_one_request_across_folios() {
    let world = World::new(roomy());
    let file = world.file();
    for block in 0..256 {
        file.write(block * BS, &pattern(block, BS as usize)).unwrap();
    }
    assert!(file.mapping().folios() > 10);
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(world.faulty.writes.load(Ordering::Relaxed), 1);
}

/// Of many requests the last, left alone in the outbox, was taken for the only one: the thread wrote it while
/// the others were at the device, and handed nothing more over meanwhile.
#[test]
fn a_thread_writes_the_only_request_itself_and_not_the_last_of_many() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, BS as usize)).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(world.faulty.writes_inline.load(Ordering::Relaxed), 1);
    file.scatter.store(true, Ordering::Relaxed);
    // One more request than are handed over at a time.
    file.write(2 * BS, &pattern(2, 34 * BS as usize)).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert!(world.faulty.writes.load(Ordering::Relaxed) > 17);
    assert_eq!(world.faulty.writes_inline.load(Ordering::Relaxed), 1);
}

#[test]
fn a_small_file_gets_small_folios() {
    let world = World::new(roomy());
    let before = world.cache.usage().used_bytes;
    let mut files = Vec::new();
    for _ in 0..100 {
        let file = world.file();
        file.write(0, &[1; 300]).unwrap();
        file.mapping().write_back(0, BLOCKS_END).unwrap();
        files.push(file);
    }
    let each = (world.cache.usage().used_bytes - before) / 100;
    assert!(each < 4096 + 256, "{each} bytes for a file of 300");
}

#[test]
fn a_partial_write_reads_in_its_edges_only() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(3, 1 << 20)).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    file.mapping().evict_all();
    file.write(5 * BS + 7, &pattern(4, 20 * BS as usize)).unwrap();
    assert_eq!(world.cache.metrics().fill_blocks.get(), 2);
}

/// A database panics when a kernel forgets a failed write: fsync must fail until the block is written.
#[test]
fn an_error_stays_until_the_block_is_written() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 100_000)).unwrap();
    world.faulty.fail_writes.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(file.mapping().write_back(0, BLOCKS_END).unwrap_err().kind(), ErrorKind::Io);
        assert!(file.mapping().error().is_some() && !file.mapping().is_clean());
    }
    // A range that did not fail is not blamed.
    file.write(1 << 20, &[1; 10]).unwrap();
    world.faulty.fail_writes.store(false, Ordering::SeqCst);
    file.mapping().write_back(256, 257).unwrap();
    assert!(file.mapping().error().is_some());
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert!(file.mapping().error().is_none() && file.mapping().is_clean());
    assert_eq!(file.reserved(), 0);
}

#[test]
fn a_refusal_lets_go_of_everything_and_tries_again() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 1 << 20)).unwrap();
    file.refuse.store(3, Ordering::SeqCst);
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(file.waits.load(Ordering::SeqCst), 3);
    assert!(file.mapping().is_clean());
}

/// A run that joined the gathering behind a refused one counted as a second refusal, for which the thread
/// waited with nothing to write.
#[test]
fn a_refusal_is_waited_for_once() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, BS as usize)).unwrap();
    file.write(2 * BS, &pattern(2, BS as usize)).unwrap();
    file.refuse.store(1, Ordering::SeqCst);
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(file.waits.load(Ordering::SeqCst), 1);
    assert!(file.mapping().is_clean());
}

#[test]
fn a_full_volume_refuses_before_anything_changes() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 8 * BS as usize)).unwrap();
    let space = std::mem::take(&mut file.state.lock().unwrap().space);
    let error = file.write(4 * BS, &pattern(2, 8 * BS as usize)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(file.size.load(Ordering::Relaxed), 8 * BS);
    assert_eq!(file.read(0, 1 << 20).unwrap(), pattern(1, 8 * BS as usize));
    // What has its space already can be rewritten.
    file.write(0, &pattern(3, 8 * BS as usize)).unwrap();
    file.state.lock().unwrap().space = space;
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert_eq!(file.reserved(), 0);
}

#[test]
fn dropped_dirty_blocks_give_their_space_back() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 64 * BS as usize)).unwrap();
    assert_eq!(file.reserved(), 64);
    file.mapping().hold_writeback(10, 20).discard(10, 20);
    assert_eq!(file.reserved(), 54);
    file.mapping().hold_writeback(0, BLOCKS_END).discard(0, BLOCKS_END);
    assert_eq!((file.reserved(), world.cache.usage().dirty_bytes), (0, 0));
    assert!(file.mapping().is_clean());
}

#[test]
fn a_sequential_reader_is_read_ahead_for() {
    let world = World::new(roomy());
    let file = world.file();
    let data = pattern(9, 4 << 20);
    data.chunks(1 << 20).enumerate().for_each(|(i, part)| file.write((i << 20) as u64, part).unwrap());
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    file.mapping().evict_all();
    for at in (0..4u64 << 20).step_by(4096) {
        assert_eq!(file.read(at, 4096).unwrap(), data[at as usize..at as usize + 4096]);
    }
    let metrics = world.cache.metrics();
    assert_eq!(metrics.fill_blocks.get(), 1024);
    assert!(metrics.fill_ios.get() < 40, "{} requests for 4 MiB", metrics.fill_ios.get());
    // Random reads read what they ask for.
    file.mapping().evict_all();
    let before = metrics.fill_blocks.get();
    for i in 0..50u64 {
        file.read((i * 37 % 1000) * BS, 4096).unwrap();
    }
    assert_eq!(metrics.fill_blocks.get() - before, 50);
}

/// A bad block that was read ahead failed the read of those before it, which travelled in the same request: a
/// program that copies what can be read lost them.
#[test]
fn a_bad_block_ahead_fails_nothing_before_it() {
    const BAD: u64 = 200;
    let world = World::new(roomy());
    let file = world.file();
    let data = pattern(9, 1 << 20);
    file.write(0, &data).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    file.mapping().evict_all();
    let home = file.state.lock().unwrap().extents[&BAD].0;
    world.faulty.bad_block.store(home, Ordering::SeqCst);
    for block in 0..256 {
        let read = file.read(block * BS, BS as usize);
        if block == BAD {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Io);
        } else {
            assert_eq!(read.unwrap(), data[(block * BS) as usize..][..BS as usize], "block {block}");
        }
    }
}

#[test]
fn a_hot_set_survives_a_scan() {
    let mut config = CacheConfig::new(16 << 20);
    config.batch_bytes = 64 << 10;
    let world = World::new(config);
    let (hot, scan) = (world.file(), world.file());
    for block in 0..2048 {
        hot.write(block * BS, &[1; 4096]).unwrap();
    }
    for at in 0..(40 << 20 >> 16) {
        scan.write(at << 16, &[2; 1 << 16]).unwrap();
    }
    world.cache.write_back_all().unwrap();
    let mut random = quire_base::random::Random::seeded(3);
    let mut buf = vec![0; 4096];
    let (mut hits, mut looks) = (0, 0);
    for round in 0..4 {
        for step in 0..(40u64 << 20 >> 12) {
            scan.read(step * BS, 4096).unwrap();
            let at = random.below(2048) * BS;
            let view = || ReadView { exclusive_sequence: 0, size: hot.size.load(Ordering::Acquire) };
            let hit = hot.mapping().try_read(at, &mut buf, view).is_some();
            if !hit {
                hot.read(at, 4096).unwrap();
            }
            if round > 0 {
                looks += 1;
                hits += u64::from(hit);
            }
        }
    }
    assert!(hits * 100 >= looks * 90, "{hits} of {looks}");
}

#[test]
fn old_data_is_written_in_the_background() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 10_000)).unwrap();
    assert!(!world.cache.background_step());
    assert!(!file.mapping().is_clean());
    world.clock.advance(31_000_000_000);
    assert!(world.cache.background_step());
    assert!(file.mapping().is_clean());
}

#[test]
fn a_writer_faster_than_the_device_stays_within_the_limits() {
    let mut config = CacheConfig::new(8 << 20);
    config.batch_bytes = 256 << 10;
    let world = World::with_clock(config, Clock::System);
    world.faulty.slow.store(true, Ordering::Relaxed);
    world.cache.start().unwrap();
    let files: Vec<_> = (0..3).map(|_| world.file()).collect();
    std::thread::scope(|scope| {
        for file in &files {
            let world = &world;
            scope.spawn(move || {
                for i in 0..150u64 {
                    file.write(i * (256 << 10), &pattern(i, 256 << 10)).unwrap();
                    let usage = world.cache.usage();
                    assert!(usage.used_bytes <= usage.limit_bytes);
                    assert!(usage.dirty_bytes <= usage.limit_bytes / 2 + (1 << 20), "{usage:?}");
                }
            });
        }
    });
    world.cache.write_back_all().unwrap();
    assert_eq!(files[1].read(77 * (256 << 10), 256 << 10).unwrap(), pattern(77, 256 << 10));
}

#[test]
fn limits_that_do_not_fit_are_refused() {
    let world = World::new(tiny());
    assert_eq!(world.cache.set_limit(1000).unwrap_err().kind(), ErrorKind::Invalid);
    let file = world.file();
    assert_eq!(file.write(0, &vec![0; 65 << 10]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(file.write(u64::MAX - 5, &[0; 10]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(file.mapping().read(u64::MAX - 5, &mut [0; 10], &|| 5).unwrap(), 0);
    assert_eq!(
        file.mapping().try_read(u64::MAX - 5, &mut [0; 10], || ReadView { exclusive_sequence: 0, size: 5 }),
        Some(0)
    );
    file.write(100, &[]).unwrap();
    assert_eq!(file.read(0, 0).unwrap(), []);
}

#[test]
fn a_lower_limit_takes_effect() {
    let world = World::new(roomy());
    let file = world.file();
    for i in 0..40 {
        file.write(i << 20, &pattern(i, 1 << 20)).unwrap();
    }
    world.cache.write_back_all().unwrap();
    world.cache.set_limit(8 << 20).unwrap();
    assert!(world.cache.usage().used_bytes <= 8 << 20);
    assert_eq!(file.read(3 << 20, 1 << 20).unwrap(), pattern(3, 1 << 20));
}

/// Folios that reclaim keeps for the next misses of a shard would be out of reach of others that need memory.
#[test]
fn what_is_spare_for_one_shard_is_there_for_all() {
    let config = CacheConfig::new(32 << 20);
    let least = config.limit_bytes_min();
    let world = World::new(config);
    let file = world.file();
    let piece = pattern(1, 1 << 20);
    (0..48).for_each(|i| file.write(i << 20, &piece).unwrap());
    world.cache.write_back_all().unwrap();
    file.mapping().evict_all();
    for n in 0..16_000 {
        shard::set(n as usize);
        let at = n * 37 % (48 << 8) * BS;
        assert_eq!(file.read(at, 8).unwrap(), piece[(at % (1 << 20)) as usize..][..8]);
        let usage = world.cache.usage();
        assert!(usage.used_bytes <= usage.limit_bytes);
    }
    file.mapping().evict_all();
    let usage = world.cache.usage();
    let fixed = usage.limit_bytes - least - world.cache.spare_bytes();
    let spare = usage.used_bytes - fixed;
    assert!((1..=usage.limit_bytes / 64).contains(&spare), "{spare} of {usage:?}");
    // All that the limit leaves, but what is kept for index nodes.
    let all = (usage.limit_bytes - (1 << 20) - fixed) / BS * BS;
    let room = world.cache.room_for_buffer(all).unwrap();
    assert_eq!(room.bytes(), all);
    drop(room);
    assert_eq!(world.cache.usage().used_bytes, fixed);
}

/// A limit below what the cache's tables take, which stay, was accepted: nothing fitted any more, and every
/// write and miss failed after it had waited for memory.
#[test]
fn a_limit_leaves_room_beside_the_tables() {
    let world = World::new(roomy());
    let file = world.file();
    // Folios of a block each, far apart: headers and index nodes.
    for i in 0..16_000 {
        file.write(i * 64 * BS, &[1; 4096]).unwrap();
    }
    world.cache.write_back_all().unwrap();
    let refused = world.cache.set_limit(6 << 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let text = refused.to_string();
    let least = text.split("at least ").nth(1).and_then(|rest| rest.split(',').next()).expect(&text);
    let least: u64 = least.parse().unwrap();
    assert!((8 << 20..32 << 20).contains(&least), "{text}");
    assert_eq!(world.cache.set_limit(least - 1).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(world.cache.usage().limit_bytes, 64 << 20);
    world.cache.set_limit(least).unwrap();
    assert!(world.cache.usage().used_bytes <= least);
    for i in 0..16 {
        file.write((i << 20) + 17, &pattern(i, 1 << 20)).unwrap();
        assert!(world.cache.usage().used_bytes <= least);
        assert!(world.cache.usage().dirty_bytes <= 3 << 20);
    }
    for i in 0..15 {
        let written = file.read((i << 20) + 17, 1 << 20).unwrap();
        assert!(written == pattern(i, 1 << 20), "piece {i}");
    }
}

#[test]
fn unfinished_blocks_are_reported_in_order() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(3 * BS, &[1; 8192]).unwrap();
    file.write(40 * BS, &[1; 10]).unwrap();
    let mapping = file.mapping();
    assert_eq!(mapping.first_unfinished(0), Some(3));
    assert_eq!(mapping.first_unfinished(5), Some(40));
    assert_eq!(mapping.next_cached_data(0, 100), Some((3, 4)), "block 4 lies in a folio of its own");
    assert_eq!(mapping.next_cached_data(4, 100), Some((4, 5)));
    assert_eq!(mapping.next_cached_data(5, 40), None);
    mapping.write_back(0, 10).unwrap();
    assert_eq!(mapping.first_dirty(0), Some(40));
    assert!(mapping.dump().contains("dirty"));
}

/// A run that was finished after its file had been let go dropped its references to the file before its pins.
/// The end of the mapping then waited for those pins, on the same thread: a finisher spun for ever, and
/// closing hung on it.
#[test]
fn a_run_may_outlive_every_other_user_of_its_file() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let world = World::new(roomy());
        let file = world.file();
        file.write(0, &pattern(1, 100_000)).unwrap();
        file.mapping().snapshot(0, BLOCKS_END).start();
        drop(file);
        world.cache.finish_some();
        tell.send((world.faulty.writes.load(Ordering::Relaxed), world.cache.usage().dirty_bytes)).unwrap();
    });
    assert_eq!(told.recv_timeout(std::time::Duration::from_secs(60)), Ok((1, 0)));
}

/// Small files that are written together are few large requests at the device.
#[test]
fn small_files_are_written_together() {
    let world = World::new(CacheConfig::new(64 << 20));
    let files: Vec<_> = (0..2000).map(|_| world.file()).collect();
    for (number, file) in files.iter().enumerate() {
        file.write(0, &pattern(number as u64, 4096)).unwrap();
    }
    world.cache.write_back_all().unwrap();
    let (writes, bytes) =
        (world.faulty.writes.load(Ordering::SeqCst), world.faulty.write_bytes.load(Ordering::SeqCst));
    assert_eq!(bytes, 2000 * BS);
    assert!(bytes / writes >= 256 << 10, "{bytes} bytes in {writes} writes");
    for (number, file) in files.iter().enumerate() {
        file.mapping().evict_all();
        assert!(file.read(0, 4096).unwrap() == pattern(number as u64, 4096), "file {number}");
    }
}

/// A background step sorted all dirty files to write a few of them: with a million small ones, the steps that
/// wrote them looked at each some hundred times. Counted here, not timed.
#[test]
fn a_background_step_looks_at_what_it_writes() {
    let mut config = CacheConfig::new(256 << 20);
    config.dirty_background_bytes = 0;
    let world = World::new(config);
    let files: Vec<_> = (0..10_000).map(|_| world.file()).collect();
    files.iter().for_each(|file| file.write(0, &pattern(1, 4096)).unwrap());
    let mut steps = 0;
    while world.cache.background_step() {
        steps += 1;
    }
    assert!(steps >= 3, "{steps} steps: one writes everything");
    let looks = world.cache.metrics().flusher_looks.get();
    assert!(looks <= 10_000 + 2 * steps, "{looks} looks at 10,000 files in {steps} steps");
    assert_eq!(world.faulty.write_bytes.load(Ordering::SeqCst), 10_000 * BS);
    let writes = world.faulty.writes.load(Ordering::SeqCst);
    assert!(writes <= 10_000 * BS / (256 << 10), "{writes} writes: neighbours are written together");
    assert!(files.iter().all(|file| file.mapping().is_clean()));
}

/// A file that grows as fast as it is written kept the background pass over it going for ever: blocks behind
/// the pass, and files that became dirty later, were not written.
#[test]
fn a_growing_file_does_not_keep_the_others_waiting() {
    let mut config = CacheConfig::new(256 << 20);
    config.dirty_background_bytes = 0;
    let world = World::new(config);
    let (grows, waits) = (world.file(), world.file());
    let piece = pattern(1, 1 << 20);
    let mut end = 0;
    let mut append = |count: u64| {
        for _ in 0..count {
            grows.write(end, &piece).unwrap();
            end += piece.len() as u64;
        }
    };
    append(40);
    waits.write(0, &pattern(2, 4096)).unwrap();
    for _ in 0..4 {
        assert!(world.cache.background_step());
        append(16);
    }
    assert!(waits.mapping().is_clean());
}

/// Background writeback wrote the end of a growing log at every pass, and the next append waited for the
/// device meanwhile. The end is written when the file has rested for a second, and when data is old.
#[test]
fn background_writeback_leaves_the_end_of_a_growing_file_alone() {
    let mut config = CacheConfig::new(256 << 20);
    config.dirty_background_bytes = 0;
    let world = World::new(config);
    let log = world.file();
    let record = pattern(1, 60_000);
    let mut size = 0;
    let mut append = || {
        log.write(size, &record).unwrap();
        size += record.len() as u64;
        size
    };
    for _ in 0..100 {
        append();
    }
    for _ in 0..3 {
        while world.cache.background_step() {}
        let last = append() / BS;
        let left = log.mapping().first_unfinished(0).expect("the end is dirty");
        assert!(left <= last && left + 48 >= last, "blocks {left} to {last} are left");
    }
    while world.cache.background_step() {}
    assert!(!log.mapping().is_clean());
    assert!(!world.cache.background_step(), "nothing but the end is left");
    world.clock.advance(1_000_000_000);
    assert!(world.cache.background_step());
    assert!(log.mapping().is_clean());

    // A small file is written at once.
    let small = world.file();
    small.write(0, &pattern(2, 100_000)).unwrap();
    assert!(world.cache.background_step());
    assert!(small.mapping().is_clean());
}

/// Each pass over a file made all of it young, also the end that it left alone: beside other writes to the
/// file the end was never written.
#[test]
fn what_a_pass_leaves_behind_keeps_its_age() {
    let mut config = CacheConfig::new(256 << 20);
    config.dirty_background_bytes = 0;
    let world = World::new(config);
    let file = world.file();
    (0..4).for_each(|piece| file.write(piece << 20, &pattern(piece, 1 << 20)).unwrap());
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    file.write(4 << 20, &pattern(5, 100)).unwrap();
    let step = |second| {
        world.clock.advance(1_000_000_000);
        file.write(second * BS, &pattern(second, 10)).unwrap();
        assert!(world.cache.background_step());
        file.mapping().is_clean()
    };
    assert!((0..20).all(|second| !step(second)), "the end of the file is left alone");
    assert!((20..32).any(step), "the end of the file is old");
}

/// PostgreSQL's checkpoint wrote pages for half a minute and then fsynced the file: the pages were all dirty
/// still. On a mount the kernel keeps writers out of a file that is being fsynced, and those who only ask
/// for its end, and no transaction got through for 2.4 seconds. What programs make durable is written early.
#[test]
fn what_programs_make_durable_is_written_after_a_second() {
    let world = World::new(CacheConfig::new(256 << 20));
    let (database, other) = (world.file(), world.file());
    for file in [&database, &other] {
        file.write(0, &pattern(1, 1 << 20)).unwrap();
        file.mapping().write_back(0, BLOCKS_END).unwrap();
    }
    database.mapping().note_forced();
    let write = |file: &FakeFile, seed| file.write(0, &pattern(seed, 8192)).unwrap();
    write(&database, 2);
    write(&other, 2);
    world.clock.advance(900_000_000);
    assert!(!world.cache.background_step());
    world.clock.advance(100_000_000);
    assert!(world.cache.background_step());
    assert!(database.mapping().is_clean() && !other.mapping().is_clean());

    // Again and again, whatever became dirty before it and waits for longer.
    write(&database, 3);
    assert!(!world.cache.background_step());
    world.clock.advance(1_000_000_000);
    assert!(world.cache.background_step());
    assert!(database.mapping().is_clean() && !other.mapping().is_clean());
    world.clock.advance(28_000_000_000);
    assert!(world.cache.background_step());
    assert!(other.mapping().is_clean());
}

/// As first written, that let the end of a log that is fsynced now and then be written each second, and
/// appends waited for the device meanwhile. An fsync does not wait for it for long.
#[test]
fn the_end_of_a_log_that_is_fsynced_waits_for_the_fsync() {
    for before in [0, 250 * BS] {
        let world = World::new(CacheConfig::new(256 << 20));
        let log = world.file();
        log.write(0, &pattern(1, before as usize)).unwrap();
        log.mapping().write_back(0, BLOCKS_END).unwrap();
        log.mapping().note_forced();
        let writes = || world.faulty.writes.load(Ordering::SeqCst);
        let before_appends = writes();
        for second in 0..29 {
            log.write(before + second * 100, &pattern(second, 100)).unwrap();
            assert!(!world.cache.background_step(), "second {second}");
            world.clock.advance(1_000_000_000);
        }
        assert_eq!(writes(), before_appends);
        assert!((0..3).any(|_| {
            world.clock.advance(1_000_000_000);
            world.cache.background_step()
        }));
        assert!(log.mapping().is_clean());
    }
}

/// The line of dirty files was once in the order of the times at which they are due. Files that were dirty
/// when the clock was set back then stood behind all that became dirty later, for hours.
#[test]
fn a_clock_that_is_set_back_keeps_nobody_waiting() {
    let world = World::new(CacheConfig::new(256 << 20));
    world.clock.advance(7_200_000_000_000);
    let (before, later) = (world.file(), world.file());
    before.write(0, &pattern(1, 8192)).unwrap();
    world.clock.advance(-3_600_000_000_000);
    later.write(0, &pattern(1, 8192)).unwrap();
    assert!(world.cache.background_step());
    assert!(before.mapping().is_clean() && !later.mapping().is_clean());
}

/// What had become old was written in one piece, and the flushes of all programs waited for the device to
/// write it: a tenth of the transactions of a database, while its checkpoint went on.
#[test]
fn what_is_due_is_written_in_small_parts() {
    let world = World::new(CacheConfig::new(256 << 20));
    let files: Vec<_> = (0..512).map(|_| world.file()).collect();
    files.iter().for_each(|file| file.write(0, &pattern(1, 4096)).unwrap());
    world.clock.advance(30_000_000_000);
    world.cache.start().unwrap();
    while !files.iter().all(|file| file.mapping().is_clean()) {
        std::thread::yield_now();
    }
    world.cache.stop();
    assert!(world.cache.metrics().flusher_steps.get() >= 15);
}

/// A request of several files that fails has failed for each of them, and each tells it until it is written.
#[test]
fn a_failed_request_of_several_files_sticks_to_each() {
    let world = World::new(CacheConfig::new(64 << 20));
    let files: Vec<_> = (0..8).map(|_| world.file()).collect();
    files.iter().for_each(|file| file.write(0, &pattern(1, 4096)).unwrap());
    world.faulty.fail_writes.store(true, Ordering::SeqCst);
    assert!(world.cache.write_back_all().is_err());
    for file in &files {
        assert!(file.mapping().error().is_some() && !file.mapping().is_clean());
        assert!(file.mapping().write_back(0, BLOCKS_END).is_err());
        assert_eq!(file.reserved(), 1, "its block is still to be placed");
    }
    world.faulty.fail_writes.store(false, Ordering::SeqCst);
    files[3].mapping().write_back(0, BLOCKS_END).unwrap();
    assert!(files[3].mapping().error().is_none() && files[4].mapping().error().is_some());
    world.cache.write_back_all().unwrap();
    assert!(files.iter().all(|file| file.mapping().error().is_none() && file.mapping().is_clean()));
}

/// A truncate that reserved before it dropped blocks could wait for the finisher of a writeback that had
/// begun in between, and that finisher for room in the journal. While writeback is held off none begins, in
/// the background or by an fsync.
#[test]
fn held_blocks_are_not_written_until_the_hold_ends() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 64 * BS as usize)).unwrap();
    let hold = file.mapping().hold_writeback(40, BLOCKS_END);
    world.cache.background_step();
    std::thread::scope(|scope| {
        let fsync = scope.spawn(|| file.mapping().write_back(0, BLOCKS_END));
        hold.discard(40, BLOCKS_END);
        drop(hold);
        fsync.join().unwrap().unwrap();
    });
    assert!(file.mapping().is_clean());
    assert_eq!(file.reserved(), 0);
    assert_eq!(world.cache.metrics().writeback_blocks.get(), 40, "what was dropped was never written");
}

/// Background writeback had no bound in bytes: a flush waited behind hundreds of MiB at the device. It still
/// writes everything when only a little of it may be there at a time, and what is forced is not held up.
#[test]
fn background_writeback_keeps_little_at_the_device() {
    let mut config = CacheConfig::new(16 << 20);
    (config.inflight_max, config.inflight_blocks_max) = (2, 8);
    config.dirty_background_bytes = 0;
    let world = World::new(config);
    world.cache.start().unwrap();
    let file = world.file();
    for piece in 0..40 {
        file.write(piece * 20 * BS, &pattern(piece, 20 * BS as usize)).unwrap();
    }
    while !file.mapping().is_clean() {
        world.cache.background_step();
    }
    file.write(0, &pattern(7, 100 * BS as usize)).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    assert!(file.read(0, 100 * BS as usize).unwrap() == pattern(7, 100 * BS as usize));
    world.cache.stop();
}

/// A syncer that began the fsync of a large file submitted all of it before it looked at anything else, and
/// every flush waited behind that. A caller that asks for no wait gets everything started at once, as
/// `POSIX_FADV_DONTNEED` does.
#[test]
fn an_fsync_starts_a_part_of_a_large_file_at_a_time() {
    const PIECES: u64 = 24;
    let large = |world: &World| {
        let file = world.file();
        (0..PIECES).for_each(|n| file.write(n << 20, &pattern(n, 1 << 20)).unwrap());
        file
    };
    // Nothing of it is written by itself.
    let world = World::new(CacheConfig::new(512 << 20));
    let started = || world.cache.metrics().writeback_blocks.get();
    let file = large(&world);
    let mut snapshot = file.mapping().snapshot(0, BLOCKS_END);
    world.cache.start_snapshots(std::iter::once(&mut snapshot));
    // A folio more than asked for.
    assert!((4096..=4096 + 512).contains(&started()), "{} blocks", started());
    snapshot.wait().unwrap();
    assert_eq!(started(), PIECES << 8);
    assert!(file.mapping().is_clean());
    let file = large(&world);
    file.mapping().start_write_back(0, BLOCKS_END);
    assert_eq!(started(), (2 * PIECES) << 8);
}

/// The device failed while the journal was full. Each fsync of what had no room gathered it, heard that there
/// is no more room to come, gave it back, and gathered it again, for ever.
#[test]
fn a_sync_ends_where_there_will_be_no_room() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 64 << 10)).unwrap();
    file.refuse.store(u32::MAX, Ordering::SeqCst);
    file.fail_room.store(true, Ordering::SeqCst);
    let mapping = file.mapping().clone();
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut snapshot = mapping.snapshot(0, BLOCKS_END);
        snapshot.start();
        let _ = end.send(snapshot.wait().unwrap_err().kind());
    });
    assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(20)), Ok(ErrorKind::Io));
    // Nothing is lost.
    file.refuse.store(0, Ordering::SeqCst);
    file.fail_room.store(false, Ordering::SeqCst);
    file.mapping().write_back(0, BLOCKS_END).unwrap();
}

/// Where space was short, a write waited for freed blocks that the device was still writing, with all of its
/// segments locked: readers of what is cached waited with it.
#[test]
fn space_is_not_waited_for_with_segments_locked() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &[1; 4096]).unwrap();
    file.mapping().write_back(0, 1).unwrap();
    let set = |space, freed| {
        let mut state = file.state.lock().unwrap();
        (state.space, state.freed, state.freed_waits) = (space, freed, 0);
    };
    set(0, 9);
    let in_group = || {
        let part = GroupPart { mapping: file.mapping(), ranges: vec![(BS, &[2; 4096])], unit: 1, blocks: 1 };
        write_group(&[part], &mut |_| Ok(()), &mut || {})
    };
    for refused in [file.write(BS, &[2; 4096]), in_group()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(file.state.lock().unwrap().freed_waits, 0);
    }
    // With nothing locked it may be.
    file.share_all();
    world.cache.forget_homes();
    file.mapping().zero(10, 20).unwrap();
    assert_eq!(file.state.lock().unwrap().freed_waits, 1);
    file.write(BS, &[2; 4096]).unwrap();
    in_group().unwrap();
}

/// A punch of an untorn file zeroes whole blocks in memory. It did not wait for read-ahead of them that had
/// begun before: the old bytes came behind the zeros, and were written home.
#[test]
fn read_ahead_does_not_come_behind_zeros() {
    let world = World::new(roomy());
    let file = world.file();
    file.write(0, &pattern(1, 8 * BS as usize)).unwrap();
    world.cache.write_back_all().unwrap();
    file.mapping().evict_all();
    world.faulty.hold.store(true, Ordering::SeqCst);
    file.mapping().read_ahead(0, 8 * BS).unwrap();
    world.faulty.hold.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let zeroing = scope.spawn(|| file.mapping().zero(5 * BS, 8 * BS));
        // What does not wait has ended by then.
        std::thread::sleep(std::time::Duration::from_millis(50));
        world.faulty.release_held();
        zeroing.join().unwrap().unwrap();
    });
    let mut expected = pattern(1, 8 * BS as usize);
    expected[5 * BS as usize..].fill(0);
    assert!(file.read(0, 8 * BS as usize).unwrap() == expected);
}

/// Random writes had left a dirty block in each folio of a full cache. Nothing could be dropped, and the
/// background threads wrote nothing, since little was dirty: misses waited until it was due, or failed.
#[test]
fn little_that_is_dirty_keeps_no_memory() {
    let world = World::new(CacheConfig::new(128 << 20));
    world.cache.start().unwrap();
    let (large, scattered) = (world.file(), world.file());
    (0..120).for_each(|n| large.write(n << 20, &pattern(n, 1 << 20)).unwrap());
    world.cache.write_back_all().unwrap();
    (0..120 << 2).for_each(|n| large.write(n << 18, &[1]).unwrap());
    (0..2500).for_each(|n| scattered.write(n << 20, &pattern(n, BS as usize)).unwrap());
    assert!(scattered.read(2499 << 20, BS as usize).unwrap() == pattern(2499, BS as usize));
    world.cache.stop();
}
