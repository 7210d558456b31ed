//! Blocks kept back so that the metadata pool can grow when accepted data is written back.
//!
//! Delayed allocation accepts data before it has homes. Writing it back makes extent keys, at worst one a block, and
//! the tree nodes for them need pool blocks; on a volume that is full by then only blocks kept back can provide them.
//!
//! Protocol. Every inode with `d` delayed blocks keeps `d / 32` blocks (rounded up) beside them: a leaf that splits
//! at worst into halves holds more than 40 extent keys. A standing reserve, kept from mount on, covers the nodes that
//! one transaction may dirty. A critical transaction that finds the pool full, and no free space, takes a chunk from
//! what is kept ([`Engine::promised_chunk`]). What is taken is a *debt*: promises that fall due pay it before
//! anything goes back to the allocator, and each checkpoint tries to pay the rest from free space.
//!
//! Invariant: the allocator's credits behind this are always `kept - debt`. Shared line: one word, written once in 32
//! blocks of a file that become dirty without a home.
//!
//! Neighbours: `file/backing` promises and redeems; [`crate::transaction`] takes chunks; [`crate::checkpoint`] pays.

use crate::engine::Engine;
use crate::inode::Inode;
use quire_alloc::SpaceReservation;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{ErrorKind, Result};
use quire_format::extent::Run;

/// Delayed blocks for which one block is kept back.
const BLOCKS_PER_PROMISE: u64 = 32;
/// The standing reserve, in blocks and as a part of the volume.
const STANDING_MAX: u64 = 1024;
const STANDING_PART: u64 = 32;

/// Chunks that are added to make checkpoints rarer, in blocks, and the part of the volume up to which they are.
const CHUNK_BLOCKS: u64 = 1024;
const WIDENED_PART: u64 = 64;

const DEBT_BITS: u32 = 24;
const DEBT_MASK: u64 = (1 << DEBT_BITS) - 1;

/// See the module's documentation. One word: blocks kept above, debt below.
#[derive(Default)]
pub(crate) struct PoolPromise(AtomicU64);

fn promise(delayed: u64) -> u64 {
    delayed.div_ceil(BLOCKS_PER_PROMISE)
}

impl PoolPromise {
    fn keep(&self, blocks: u64) {
        self.0.fetch_add(blocks << DEBT_BITS, Ordering::AcqRel);
    }

    /// A promise of `blocks` ends: gives how many of them go back to the allocator.
    fn end(&self, blocks: u64) -> u64 {
        let mut back = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let paid = (word & DEBT_MASK).min(blocks);
            back = blocks - paid;
            Some(word - (blocks << DEBT_BITS) - paid)
        });
        back
    }

    /// Takes up to `blocks` of what is kept; gives how many.
    fn take(&self, blocks: u64) -> u64 {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (kept, debt) = (word >> DEBT_BITS, word & DEBT_MASK);
            taken = kept.saturating_sub(debt).min(DEBT_MASK - debt).min(blocks);
            Some(word + taken)
        });
        taken
    }

    /// Pays up to `blocks` of the debt; gives how many.
    fn pay(&self, blocks: u64) -> u64 {
        let mut paid = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            paid = (word & DEBT_MASK).min(blocks);
            Some(word - paid)
        });
        paid
    }

    fn debt(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & DEBT_MASK
    }
}

impl Engine {
    /// Keeps the standing reserve back, as far as there is space.
    pub(crate) fn keep_standing_reserve(&self) {
        let wanted = (self.superblock.block_count / STANDING_PART).min(STANDING_MAX);
        let got = self.alloc.reserve_between(0, wanted).map_or(0, SpaceReservation::into_count);
        // What could not be had is owed, and paid when there is space.
        self.pool_promise.keep(wanted);
        self.pool_promise.take(wanted - got);
    }

    /// Pays back what chunks were taken for, as far as there is space.
    pub(crate) fn pay_pool_debt(&self) {
        let debt = self.pool_promise.debt();
        if debt > 0
            && let Ok(got) = self.alloc.reserve_between(1, debt)
        {
            let mut got = got;
            got.split(self.pool_promise.pay(got.blocks())).into_count();
        }
    }

    /// Adds chunks to the pool while it, and not the node cache, bounds how much metadata may be dirty: at most as many
    /// as there are already, at most to a 64th of the volume, and only while an eighth of the volume is free.
    pub(crate) fn widen_pool(&self) -> Result<()> {
        let volume = self.superblock.block_count;
        let pool_blocks = || self.tree.stats().pool_blocks;
        let pool_max = (2 * pool_blocks()).min(volume / WIDENED_PART);
        while self.tree.pool_lacks() >= CHUNK_BLOCKS
            && pool_blocks() + CHUNK_BLOCKS <= pool_max
            && self.alloc.free_blocks() > volume / 8
        {
            let Ok(run) = self.alloc.contiguous(CHUNK_BLOCKS, 1) else { break };
            match self.grow_pool_by(run) {
                Ok(true) => {}
                Ok(false) => return self.alloc.cancel(&[run]).map(drop),
                Err(error) => {
                    drop(self.alloc.cancel(&[run])?);
                    // The pool that there is will do.
                    return if error.kind() == ErrorKind::NoSpace { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Promises `blocks` to data of `inode` that has no home yet, with what the pool may come to need for them.
    pub(crate) fn delay(&self, inode: &Inode, blocks: u64) -> Result<()> {
        let expected = growth(inode.delayed_blocks.load(Ordering::Relaxed), blocks);
        let mut reservation = self.alloc.reserve(blocks + expected)?;
        let kept = growth(inode.delayed_blocks.fetch_add(blocks, Ordering::AcqRel), blocks);
        if kept > expected {
            match self.alloc.reserve(kept - expected) {
                Ok(more) => reservation.merge(more),
                Err(error) => {
                    let before = inode.delayed_blocks.fetch_sub(blocks, Ordering::AcqRel);
                    // Others came in between: what they and we count together must stay right.
                    let returned = growth(before - blocks, blocks);
                    if kept > returned {
                        reservation.split(kept - returned).into_count();
                        self.pool_promise.keep(kept - returned);
                    } else {
                        self.alloc.release(self.pool_promise.end(returned - kept));
                    }
                    return Err(error);
                }
            }
        } else {
            drop(reservation.split(expected - kept));
        }
        reservation.into_count();
        self.pool_promise.keep(kept);
        Ok(())
    }

    /// `blocks` that were promised to `inode` have homes, or are not needed any more. The blocks themselves are the
    /// caller's business, what was kept beside them goes back.
    pub(crate) fn redeem(&self, inode: &Inode, blocks: u64) {
        let before = inode.delayed_blocks.fetch_sub(blocks, Ordering::AcqRel);
        self.alloc.release(self.pool_promise.end(growth(before - blocks, blocks)));
    }

    /// A run of at most `blocks` blocks for the metadata pool, from what is kept back.
    pub(crate) fn promised_chunk(&self, blocks: u64) -> Option<Run> {
        let taken = self.pool_promise.take(blocks);
        let mut reservation = self.alloc.adopt(taken);
        let mut size = taken;
        while size > 0 {
            if let Ok(run) = self.alloc.contiguous_from(&mut reservation, size, 1) {
                reservation.split(self.pool_promise.pay(taken - size)).into_count();
                return Some(run);
            }
            size /= 2;
        }
        let kept = self.pool_promise.pay(taken);
        reservation.split(kept).into_count();
        None
    }

    /// Takes back a chunk that was not used after all.
    pub(crate) fn return_chunk(&self, run: Run) -> Result<()> {
        let mut returned = self.alloc.cancel(&[run])?;
        let owed = self.pool_promise.pay(returned.blocks());
        returned.split(owed).into_count();
        Ok(())
    }
}

/// What `more` delayed blocks add to the promise beside `delayed` ones.
fn growth(delayed: u64, more: u64) -> u64 {
    promise(delayed + more) - promise(delayed)
}
