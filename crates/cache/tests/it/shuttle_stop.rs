//! Random schedules of a cache that stops while writes complete.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p quire-cache --test it shuttle_stop --release`

use crate::common::{BS, World, tiny};
use quire_base::sync::{Arc, thread};
use std::sync::atomic::Ordering;

/// Whatever completes before, while, or after the finishers end has been finished when the cache has stopped.
fn stop() {
    let world = Arc::new(World::new(tiny()));
    world.cache.start().unwrap();
    let files = [world.file(), world.file()];
    world.faulty.hold.store(true, Ordering::SeqCst);
    for file in &files {
        file.write(0, &vec![7; BS as usize]).unwrap();
        file.mapping().start_write_back(0, 1);
    }
    let device = {
        let world = world.clone();
        thread::spawn(move || world.faulty.release_held())
    };
    world.cache.stop();
    for file in &files {
        assert_eq!(file.state.lock().unwrap().extents.len(), 1, "a write was not finished");
    }
    device.join().unwrap();
    for file in files {
        let stays = Arc::downgrade(&file);
        drop(file);
        assert!(stays.upgrade().is_none(), "a run holds its file");
    }
}

#[test]
fn random_schedules() {
    shuttle::check_random(stop, 1000);
}
