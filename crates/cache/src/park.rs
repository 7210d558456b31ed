//! Where threads sleep for a condition on a word that has no room for a queue.
//!
//! A table of (mutex, condition variable) shards by address. A sleeper counts itself, then tests its
//! condition under the shard's mutex and sleeps while it holds. A waker changes the word first. If it then
//! finds nobody counted, a thread that comes later sees the change (both fence in between). Else it passes
//! through the mutex, so either the sleeper saw the change or the waker's notification reaches it. Addresses
//! that share a shard only cost each other a needless look.
//!
//! Shared line: the count, written only when a thread has to wait.
//!
//! Neighbours: segment locks, fill bits and pins wait here; everything below is `quire_base::sync`.

use quire_base::shard;
use quire_base::sync::atomic::{AtomicUsize, Ordering, fence};
use quire_base::sync::{Condvar, Mutex};

/// The parking table of one cache.
pub struct Parking {
    shards: Box<[Shard]>,
}

#[repr(align(64))]
struct Shard {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Default for Parking {
    fn default() -> Parking {
        Parking::new(64)
    }
}

impl Parking {
    /// A table of `shards` shards (at least one).
    pub fn new(shards: usize) -> Parking {
        Parking {
            shards: (0..shards.max(1))
                .map(|_| Shard { sleepers: AtomicUsize::new(0), lock: Mutex::new(()), wake: Condvar::new() })
                .collect(),
        }
    }

    fn shard(&self, address: usize) -> &Shard {
        &self.shards[shard::by_address(address, self.shards.len())]
    }

    /// Sleeps until `blocked` is false. It is called under the shard's mutex, first at once and then after
    /// every wake-up: it must be short and may not lock anything.
    pub fn wait_while(&self, address: usize, mut blocked: impl FnMut() -> bool) {
        let shard = self.shard(address);
        shard.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        let mut guard = shard.lock.lock();
        while blocked() {
            shard.wake.wait(&mut guard);
        }
        drop(guard);
        shard.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets everyone who sleeps at `address` look again. Call it after the change.
    pub fn wake(&self, address: usize) {
        let shard = self.shard(address);
        fence(Ordering::SeqCst);
        if shard.sleepers.load(Ordering::Relaxed) > 0 {
            drop(shard.lock.lock());
            shard.wake.notify_all();
        }
    }
}
