//! Random schedules of a whole mapping: write against read against writeback against truncate against
//! reclaim, with a file of a few blocks. The gate is a reader-writer lock here.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p quire-cache --test it shuttle_mapping --release`

use crate::common::{BS, World, tiny};
use quire_base::sync::{Arc, RwLock, thread};
use quire_cache::{BLOCKS_END, ReadView};
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCKS: usize = 3;

fn run() {
    let world = Arc::new(World::new(tiny()));
    let file = world.file();
    let gate = Arc::new(RwLock::new(()));
    let exclusive = Arc::new(AtomicU64::new(0));
    let whole = BLOCKS * BS as usize;
    file.write(0, &vec![1; whole]).unwrap();
    let mut threads = Vec::new();
    for id in 2..4u8 {
        let (file, gate) = (file.clone(), gate.clone());
        threads.push(thread::spawn(move || {
            for round in 0..2 {
                let _gate = gate.read();
                file.write(0, &vec![id * 10 + round; whole]).unwrap();
            }
        }));
    }
    {
        let (file, gate, exclusive) = (file.clone(), gate.clone(), exclusive.clone());
        threads.push(thread::spawn(move || {
            let mut buf = vec![0; whole];
            for _ in 0..3 {
                let view = || ReadView {
                    exclusive_sequence: exclusive.load(Ordering::SeqCst),
                    size: file.size.load(Ordering::SeqCst),
                };
                let count = file.mapping().try_read(0, &mut buf, view).unwrap_or_else(|| {
                    let _gate = gate.read();
                    file.mapping().read(0, &mut buf, &|| file.size.load(Ordering::SeqCst)).unwrap()
                });
                assert!(count == whole || count == BS as usize + 5, "{count}");
                assert!(buf[..count].iter().all(|byte| *byte == buf[0] && *byte != 0), "torn");
            }
        }));
    }
    {
        let (file, gate, exclusive) = (file.clone(), gate.clone(), exclusive.clone());
        threads.push(thread::spawn(move || {
            let _gate = gate.write();
            exclusive.fetch_add(1, Ordering::SeqCst);
            file.truncate(BS + 5).unwrap();
            exclusive.fetch_add(1, Ordering::SeqCst);
        }));
    }
    {
        let (world, file) = (world.clone(), file.clone());
        threads.push(thread::spawn(move || {
            file.mapping().write_back(0, BLOCKS_END).unwrap();
            world.cache.reclaim(1 << 20);
            world.cache.background_step();
        }));
    }
    {
        let (world, file) = (world.clone(), file.clone());
        threads.push(thread::spawn(move || {
            world.cache.reclaim(1 << 20);
            file.mapping().write_back(1, 2).unwrap();
            world.cache.reclaim(1 << 20);
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    world.cache.write_back_all().unwrap();
    assert!(file.mapping().is_clean());
    assert_eq!((file.reserved(), world.cache.usage().dirty_bytes), (0, 0));
    let cached = file.read(0, whole).unwrap();
    file.mapping().evict_all();
    assert!(file.read(0, whole).unwrap() == cached, "the device has something else");
    assert!(cached.iter().all(|byte| *byte == cached[0]));
    assert_eq!(world.faulty.overlaps.load(Ordering::SeqCst), 0);
}

/// A history of direct reads and synchronous writes had reads of old data: the end of a run took its blocks
/// out of all waits after it had given the segments back. A writer had changed the blocks meanwhile, and the
/// wait for that change ended before anything of it had been written. An fsync could return so.
fn write_again() {
    let world = Arc::new(World::new(tiny()));
    let file = world.file();
    file.write(0, &vec![1; BLOCKS * BS as usize]).unwrap();
    let earlier = {
        let file = file.clone();
        thread::spawn(move || file.mapping().write_back(0, BLOCKS_END).unwrap())
    };
    file.write(0, &vec![2; BS as usize]).unwrap();
    let mut snapshot = file.mapping().snapshot(0, 1);
    snapshot.start();
    snapshot.wait().unwrap();
    assert!(file.mapping().first_unfinished(0).is_none_or(|block| block > 0), "not written");
    earlier.join().unwrap();
}

/// A snapshot is taken while a reader reads blocks in, and between writes. Whatever a thread has learnt of
/// the homes before, no write of afterwards goes to them, and each has reserved a block for its new home.
fn share(writers: u8) {
    let world = Arc::new(World::new(tiny()));
    let file = world.file();
    let gate = Arc::new(RwLock::new(()));
    let whole = BLOCKS * BS as usize;
    file.write(0, &vec![1; whole]).unwrap();
    file.mapping().write_back(0, BLOCKS_END).unwrap();
    world.cache.reclaim(1 << 20);
    let mut threads = Vec::new();
    for id in 2..2 + writers {
        let (file, gate) = (file.clone(), gate.clone());
        threads.push(thread::spawn(move || {
            for round in 0..2 {
                let _gate = gate.read();
                let data = vec![id * 10 + round; 2 * BS as usize];
                let at = u64::from(round) * BS;
                if !file.mapping().try_write(at, &data) {
                    file.write(at, &data).unwrap();
                }
            }
        }));
    }
    {
        let (world, file) = (world.clone(), file.clone());
        threads.push(thread::spawn(move || {
            for _ in 0..2 {
                file.read(0, whole).unwrap();
                world.cache.reclaim(1 << 20);
            }
            file.read(0, whole).unwrap();
        }));
    }
    let kept = {
        let _gate = gate.write();
        world.cache.write_back_all().unwrap();
        file.share_all();
        world.cache.forget_homes();
        file.on_device(&world)
    };
    file.write(0, &vec![7; whole]).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    world.cache.write_back_all().unwrap();
    assert_eq!((file.reserved(), world.cache.usage().dirty_bytes), (0, 0));
    for (home, bytes) in kept {
        assert!(world.block(home) == bytes, "the snapshot's block {home} was overwritten");
    }
}

#[test]
fn homes_that_become_shared_are_asked_for_again() {
    shuttle::check_random(|| share(2), 3000);
    shuttle::check_pct(|| share(2), 3000, 3);
    // A reader that has asked before, and notes the answer afterwards.
    shuttle::check_pct(|| share(0), 5000, 2);
}

#[test]
fn a_wait_covers_what_was_written_before_it() {
    shuttle::check_random(write_again, 3000);
}

#[test]
fn random_schedules() {
    shuttle::check_random(run, 3000);
}

#[test]
fn few_preemptions() {
    shuttle::check_pct(run, 3000, 3);
}
