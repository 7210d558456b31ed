//! Homes that blocks are known to have, and when they are to be asked for again.
//!
//! The bit `mapped` of a block says that a write may go to the block's home as it is. Taking a snapshot of
//! the volume ends that for all blocks of all files at once, since their homes belong to the snapshot from
//! then on. So the cache has a count, [`Cache::forget_homes`] raises it, and each mapping notes the count at
//! which it has last cleared its bits. A mapping whose count is an older one clears all of them before it
//! uses any.
//!
//! Protocol. A thread that asks for homes takes the count first ([`Mapping::forget_old_homes`]), then asks,
//! then sets the bits under the mapping's lock, if the count is still the same ([`Mapping::note_homes`]). The
//! caller of `forget_homes` sees to it that no answer that is given afterwards is an old one, and that no
//! write of any kind is under way and nothing is dirty meanwhile: only reads go on.
//!
//! Invariants: no bit that was set for an answer of before is seen by a write that begins behind
//! `forget_homes`. Bits are cleared only of blocks that are clean, so a dirty block's reservation stays
//! known.
//!
//! Shared lines: the count, read by all and written when a snapshot is taken.
//!
//! Neighbours: `write` and `fill` ask; [`crate::write_at_once`] refuses where bits would have to be cleared.

use crate::cache::Cache;
use crate::index::{BLOCKS_END, Pins};
use crate::mapping::Mapping;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Mutex, MutexGuard};

/// Folios pinned at a time.
const FOLIOS_AT_ONCE: usize = 64;

/// The count at which a mapping has last cleared its bits.
pub(crate) struct HomesKnown {
    /// Changes under the lock.
    count: AtomicU64,
    lock: Mutex<()>,
}

impl HomesKnown {
    pub(crate) fn since(count: u64) -> HomesKnown {
        HomesKnown { count: AtomicU64::new(count), lock: Mutex::new(()) }
    }
}

impl Cache {
    /// Has every file ask for the homes of its blocks again before it writes to them. Nothing is dirty, and
    /// no write is under way; reads may be.
    pub fn forget_homes(&self) {
        self.core().homes.fetch_add(1, Ordering::SeqCst);
    }
}

impl Mapping {
    /// Whether homes that are known may be used as they are.
    pub(crate) fn knows_homes(&self) -> bool {
        self.homes.count.load(Ordering::Acquire) == self.core.homes.load(Ordering::SeqCst)
    }

    /// Clears what was learnt before homes were last to be forgotten; gives the count for
    /// [`Mapping::note_homes`].
    pub(crate) fn forget_old_homes(&self) -> u64 {
        let now = self.core.homes.load(Ordering::SeqCst);
        if self.homes.count.load(Ordering::Acquire) != now {
            let lock = self.homes.lock.lock();
            if self.homes.count.load(Ordering::Acquire) < now {
                self.clear_homes(&lock);
                self.homes.count.store(now, Ordering::Release);
            }
        }
        now
    }

    /// Runs `note`, which sets bits for what was asked at this count, unless the answer may be an old one.
    pub(crate) fn note_homes(&self, count: u64, note: impl FnOnce()) {
        let _lock = self.homes.lock.lock();
        let own = self.homes.count.load(Ordering::Acquire);
        if own == count && self.core.homes.load(Ordering::SeqCst) == count {
            note();
        }
    }

    fn clear_homes(&self, _lock: &MutexGuard<'_, ()>) {
        let mut from = 0;
        while from < BLOCKS_END {
            let mut pins = Pins::new();
            self.index.pin_some(self.number, from, BLOCKS_END, FOLIOS_AT_ONCE, &mut pins);
            let Some(last) = pins.last() else { return };
            from = last.end_block();
            for pin in &pins {
                debug_assert!(!pin.unfinished(), "homes are forgotten of unfinished blocks: {:?}", &**pin);
                pin.mapped().clear(0, pin.blocks());
            }
        }
    }
}
