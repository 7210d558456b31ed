//! Orphan slots: inodes without a name, tracked without a lock.
//!
//! Layout. A fixed array of 64-bit slots, [`SLOTS_PER_BLOCK`] to an orphan block. Each slot has two values in
//! memory: *claimed* (an inode number from the moment a thread reserves the slot) and *applied* (what the
//! journal's applied records say; this is what a checkpoint writes).
//!
//! Protocol. A claim decrements a block's free counter if it is positive, starting at a block chosen by the
//! thread's shard, then finds a zero slot of that block by compare-and-swap; the counter promises that one
//! exists, up to races with releases, so the search is bounded and gives up to the next block. A claim is
//! only a reservation: the record goes with the link count it belongs to, and apply fills *applied*. A
//! release is journaled too; only its apply clears both values and returns the count. When every block is
//! full the caller falls back to a tree key.
//!
//! Invariants: an applied slot is claimed; no slot is claimed twice; free counter + claimed slots never
//! exceed the block's slots; blocks are checkpointed copy-on-write from *applied*, never updated in place.
//!
//! Neighbours: `transaction` applies, `checkpoint` copies changed blocks, `reaper` frees what they name.

use quire_base::InodeNo;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use quire_base::{BLOCK_SIZE, Result};
use quire_format::orphan as format;

/// Slots in an orphan block.
#[cfg(not(any(loom, shuttle)))]
pub const SLOTS_PER_BLOCK: usize = format::SLOTS;
/// Few under a model checker, which explores each.
#[cfg(any(loom, shuttle))]
pub const SLOTS_PER_BLOCK: usize = 2;

#[repr(align(128))]
struct OrphanBlock {
    /// Decremented by a claim before it searches, incremented when a release is applied.
    free: AtomicI64,
    changed: AtomicBool,
    claimed: Box<[AtomicU64]>,
    applied: Box<[AtomicU64]>,
}

/// The orphan slots of a volume.
pub struct OrphanSlots {
    blocks: Box<[OrphanBlock]>,
}

/// A claimed slot, by its number in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// How an inode without a name is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanState {
    /// It has a name.
    Named,
    /// In a slot.
    Slot(Slot),
    /// Under a key in the tree, since no slot was free.
    Key,
}

impl OrphanSlots {
    /// As many empty blocks as the volume has.
    pub fn new(blocks: u32) -> OrphanSlots {
        let slots = || (0..SLOTS_PER_BLOCK).map(|_| AtomicU64::new(0)).collect();
        OrphanSlots {
            blocks: (0..blocks)
                .map(|_| OrphanBlock {
                    free: AtomicI64::new(SLOTS_PER_BLOCK as i64),
                    changed: AtomicBool::new(false),
                    claimed: slots(),
                    applied: slots(),
                })
                .collect(),
        }
    }

    /// Takes over a block's slots as read from disk, before anything is claimed.
    pub fn load(&self, index: usize, slots: &[u64]) {
        let block = &self.blocks[index];
        for (n, &inode) in slots.iter().enumerate().filter(|&(_, &inode)| inode != 0) {
            block.claimed[n].store(inode, Ordering::Relaxed);
            block.applied[n].store(inode, Ordering::Relaxed);
            block.free.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Number of slots.
    pub fn capacity(&self) -> u32 {
        (self.blocks.len() * SLOTS_PER_BLOCK) as u32
    }

    /// Whether the calling thread's next claim may find no slot. If not, its first block has so many that
    /// only as many claims of other threads as half a block has could take them all before.
    pub fn may_run_out(&self) -> bool {
        let count = self.blocks.len();
        count == 0 || {
            let first = &self.blocks[shard::current() * 13 % count];
            first.free.load(Ordering::Relaxed) <= SLOTS_PER_BLOCK as i64 / 2
        }
    }

    /// Reserves a slot for `inode`; `None` when all are taken.
    pub fn claim(&self, inode: InodeNo) -> Option<Slot> {
        let count = self.blocks.len();
        let start = if count == 0 { return None } else { shard::current() * 13 % count };
        for step in 0..count {
            let index = (start + step) % count;
            let block = &self.blocks[index];
            let mut free = block.free.load(Ordering::Relaxed);
            while free > 0 {
                match block.free.compare_exchange_weak(free, free - 1, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => free = now,
                }
            }
            if free <= 0 {
                continue;
            }
            // Threads of different shards begin on different lines of a block that they share.
            let from = shard::current() * SLOTS_PER_BLOCK / SHARDS;
            if let Some(n) = block.find(inode, from) {
                return Some(Slot((index * SLOTS_PER_BLOCK + n) as u32));
            }
            block.free.fetch_add(1, Ordering::AcqRel);
        }
        None
    }

    /// Gives back a claim whose record was never written.
    pub fn cancel(&self, slot: Slot) {
        let (block, n) = self.place(slot);
        block.claimed[n].store(0, Ordering::Release);
        block.free.fetch_add(1, Ordering::AcqRel);
    }

    /// Applies the record that names an orphan; in replay it also makes the claim.
    pub fn apply_set(&self, slot: Slot, inode: InodeNo) {
        let (block, n) = self.place(slot);
        if block.claimed[n].swap(inode.0, Ordering::AcqRel) == 0 {
            block.free.fetch_sub(1, Ordering::AcqRel);
        }
        block.applied[n].store(inode.0, Ordering::Release);
        block.changed.store(true, Ordering::Release);
    }

    /// Applies the record that releases an orphan's slot.
    pub fn apply_clear(&self, slot: Slot) {
        let (block, n) = self.place(slot);
        block.applied[n].store(0, Ordering::Release);
        block.changed.store(true, Ordering::Release);
        if block.claimed[n].swap(0, Ordering::AcqRel) != 0 {
            block.free.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// True if the slot number is one of the volume's.
    pub fn contains(&self, slot: Slot) -> bool {
        (slot.0 as usize) < self.blocks.len() * SLOTS_PER_BLOCK
    }

    /// Every applied orphan with its slot.
    pub fn applied(&self) -> Vec<(Slot, InodeNo)> {
        let mut all = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            for (n, inode) in block.applied.iter().enumerate() {
                let inode = inode.load(Ordering::Acquire);
                if inode != 0 {
                    all.push((Slot((index * SLOTS_PER_BLOCK + n) as u32), InodeNo(inode)));
                }
            }
        }
        all
    }

    /// The blocks that changed since the last call, as bytes for a checkpoint. Called under the whole
    /// barrier, so no apply runs meanwhile. `all` gives every block, changed or not.
    pub fn take_changed(&self, all: bool) -> Result<Vec<(u32, Box<[u8; BLOCK_SIZE]>)>> {
        let mut out = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            if block.changed.swap(false, Ordering::AcqRel) || all {
                let slots: Vec<u64> = block.applied.iter().map(|slot| slot.load(Ordering::Acquire)).collect();
                out.push((index as u32, encode(index as u64, &slots)));
            }
        }
        Ok(out)
    }

    fn place(&self, slot: Slot) -> (&OrphanBlock, usize) {
        (&self.blocks[slot.0 as usize / SLOTS_PER_BLOCK], slot.0 as usize % SLOTS_PER_BLOCK)
    }
}

fn encode(index: u64, slots: &[u64]) -> Box<[u8; BLOCK_SIZE]> {
    let mut array = [0u64; format::SLOTS];
    array[..slots.len()].copy_from_slice(slots);
    format::encode(index, &array)
}

impl OrphanBlock {
    /// A zero slot, made `inode`'s, searched for from slot `from` on. Bounded: three rounds, since releases
    /// and claims may race past the search.
    fn find(&self, inode: InodeNo, from: usize) -> Option<usize> {
        for _ in 0..3 {
            for n in (from..SLOTS_PER_BLOCK).chain(0..from) {
                let slot = &self.claimed[n];
                if slot.load(Ordering::Relaxed) == 0
                    && slot.compare_exchange(0, inode.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    return Some(n);
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_and_recovers() {
        let slots = OrphanSlots::new(1);
        let claims: Vec<_> = (1..=SLOTS_PER_BLOCK as u64).map(|n| slots.claim(InodeNo(n)).unwrap()).collect();
        assert!(slots.claim(InodeNo(9999)).is_none());
        slots.apply_set(claims[3], InodeNo(4));
        assert_eq!(slots.applied(), vec![(claims[3], InodeNo(4))]);
        slots.apply_clear(claims[3]);
        assert!(slots.applied().is_empty());
        assert_eq!(slots.claim(InodeNo(9999)), Some(claims[3]));
        slots.cancel(claims[3]);
        assert_eq!(slots.claim(InodeNo(10000)), Some(claims[3]));
    }
}
