//! An fsync returned while another's writeback of the same blocks was still in flight.
//!
//! A thread that wrote a file back waited for the tickets that were open when it came. A gathering that
//! another thread had begun had its ticket then, but not yet the tickets of its runs; when it had handed its
//! runs over and closed its own, the waiter went on, with the blocks neither on the device nor in the
//! journal. (Found by `sim`, seed 15 with four threads: a write that was durable when it returned, together
//! with an fsync of the same file.)

use crate::common::{World, tiny};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn who_waits_for_a_gathering_waits_for_its_runs() {
    for _ in 0..20 {
        let world = World::new(tiny());
        world.cache.start().unwrap();
        let file = world.file();
        file.write(0, &[7; 4096]).unwrap();
        world.faulty.slow.store(true, Ordering::SeqCst);
        // The first one takes the block, and waits for a home.
        let homes = file.state.lock().unwrap();
        let first = std::thread::spawn({
            let file = file.clone();
            move || file.mapping().write_back(0, 1)
        });
        while file.mapping().first_dirty(0).is_some() {
            std::thread::yield_now();
        }
        // The second one finds nothing to take.
        let second = std::thread::spawn({
            let file = file.clone();
            move || {
                file.mapping().write_back(0, 1).unwrap();
                file.state.lock().unwrap().extents.get(&0).copied()
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        drop(homes);
        assert!(
            matches!(second.join().unwrap(), Some((_, true))),
            "it returned before the block was applied"
        );
        first.join().unwrap().unwrap();
        world.cache.stop();
    }
}
