//! A write that completed after its cache had stopped was never finished.
//!
//! A volume that has failed is closed without a sync, so the device may still have writes of its cache then.
//! The finishers ended as soon as their queue was empty. A completion that came later put its run in the
//! queue all the same, and nobody took it out: the run held the file, the file its volume, and the volume the
//! queue. The image stayed locked for as long as the process lived.

use crate::common::{World, tiny};
use quire_base::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn a_cache_that_stops_finishes_what_the_device_still_has() {
    let world = World::new(tiny());
    world.cache.start().unwrap();
    let file = world.file();
    file.write(0, &[7; 4096]).unwrap();
    world.faulty.hold.store(true, Ordering::SeqCst);
    file.mapping().start_write_back(0, 1);
    let stopping = std::thread::spawn({
        let cache = world.cache.clone();
        move || cache.stop()
    });
    // It may end its threads now, and must not return before the write has completed.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        assert!(!stopping.is_finished(), "the device still has a write");
    }
    world.faulty.release_held();
    stopping.join().unwrap();
    assert_eq!(file.state.lock().unwrap().extents.len(), 1, "the write has completed");
    let file_stays = Arc::downgrade(&file);
    drop(file);
    assert!(file_stays.upgrade().is_none(), "a run that nobody finishes holds its file");
}
