//! Spare folios: folios of one block between two lives, with their memory and what they are charged.
//!
//! A read that misses in a full cache drops a folio and makes one. The things that are given back and taken
//! at once - a piece of the arena, a header, bytes of the limit - are behind locks and words that all threads
//! share. So reclaim keeps single blocks that it drops as they are, for the threads of its shard, and the
//! next misses of that shard begin new lives with them.
//!
//! Invariants: a spare folio is nobody's and all its segments are locked, as between lives; its block and
//! entry stay charged, so spare folios are part of what the limit bounds. All together are at most a 64th of
//! the limit. A reclaim that finds too little to drop takes all of them back, whichever shard has them, so
//! nobody waits for memory that is spare.
//!
//! Neighbours: [`crate::core`] takes and retires, [`crate::reclaim`] keeps.

use crate::folio::FolioRef;
use crate::index::BLOCK_COST;
use quire_base::shard::SHARDS;
use quire_base::sync::Mutex;
use smallvec::SmallVec;

/// Spare folios of a shard at most.
const SPARES_MAX: usize = 16;
/// The part of the limit that is spare at most.
const SHARE: u64 = 64;

/// Spare folios of each shard at most, in a cache of `limit` bytes.
pub(crate) fn most(limit: u64) -> u64 {
    (limit / SHARE / SHARDS as u64 / BLOCK_COST).min(SPARES_MAX as u64)
}

/// The folios stand in the shard itself: a buffer of their own would share its cache line with whatever lies
/// beside it in memory.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<SmallVec<[FolioRef; SPARES_MAX]>>);

/// See the module's documentation. Shards are those of [`quire_base::shard`].
#[derive(Default)]
pub(crate) struct Spares(Box<[Shard; SHARDS]>);

impl Spares {
    /// Takes one of a shard's.
    pub fn take(&self, shard: usize) -> Option<FolioRef> {
        self.0[shard].0.lock().pop()
    }

    /// Whether a shard has one, this moment.
    pub fn has_one(&self, shard: usize) -> bool {
        !self.0[shard].0.lock().is_empty()
    }

    /// Keeps a folio for a shard, of a cache of `limit` bytes; gives it back if there are enough.
    pub fn keep(&self, shard: usize, folio: FolioRef, limit: u64) -> Option<FolioRef> {
        let mut spares = self.0[shard].0.lock();
        if spares.len() as u64 >= most(limit) {
            return Some(folio);
        }
        spares.push(folio);
        None
    }

    /// Takes all, shard by shard.
    pub fn drain(&self) -> impl Iterator<Item = FolioRef> + '_ {
        self.0.iter().flat_map(|shard| std::mem::take(&mut *shard.0.lock()))
    }
}

#[cfg(all(test, loom))]
mod loom_model;
