//! How much a leaf's latch is fought over, and what is done about it.
//!
//! Names of one directory are spread by their hashes, but those of a small directory lie in one leaf all the
//! same, and threads that create and unlink there meet on its latch. So a leaf counts: a change that finds
//! the latch taken heats it, one that does not cools it a little. A leaf that gets *hot*, since one change in
//! [`WARMTH`] or more has to wait, is halved ([`crate::shape`]), and its halves again, until threads seldom
//! meet. What was halved so is not merged again for some epochs, else the next deletion would undo it.
//!
//! Only changes of directory entries heat: numbers that ascend meet at the same end of whatever leaf is the
//! last, and halves of it would help nobody.
//!
//! Invariants: changed only under the leaf's latch, or before others can find the leaf. A leaf is halved by a
//! change of an entry in it, within the nodes that this change has reserved: it does not split the leaf for
//! want of room as well.
//!
//! Neighbours: [`crate::change`] counts, [`crate::shape`] halves and merges.

use quire_base::sync::SIMULATED;
use quire_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What one wait adds; each change without one takes one off.
const WARMTH: u32 = 16;
/// Sixteen waits that follow one another. Fewer where schedules are explored, whose runs are short.
const HOT: u32 = if EXPLORED { WARMTH } else { 16 * WARMTH };
/// Epochs for which a leaf that was halved is left alone.
const EPOCHS_APART: u64 = if EXPLORED { 2 } else { 16 };

const EXPLORED: bool = SIMULATED || cfg!(any(loom, shuttle));

/// See the module's documentation.
pub(crate) struct Heat {
    heat: AtomicU32,
    /// The epoch in which the leaf was last halved, or made by that; zero if never.
    halved: AtomicU64,
}

impl Heat {
    pub(crate) fn new() -> Heat {
        Heat { heat: AtomicU32::new(0), halved: AtomicU64::new(0) }
    }

    /// Counts a change, which had to wait or not; true if the leaf is hot.
    #[inline]
    pub(crate) fn count(&self, waited: bool) -> bool {
        let heat = self.heat.load(Ordering::Relaxed);
        // A leaf that nobody fights over is not written to for this.
        let now = if waited { (heat + WARMTH).min(2 * HOT) } else { heat.saturating_sub(1) };
        if now != heat {
            self.heat.store(now, Ordering::Relaxed);
        }
        now >= HOT
    }

    pub(crate) fn is_hot(&self) -> bool {
        self.heat.load(Ordering::Relaxed) >= HOT
    }

    pub(crate) fn cool(&self) {
        self.heat.store(0, Ordering::Relaxed);
    }

    /// Notes that the leaf was halved, or made by that.
    pub(crate) fn halve(&self, epoch: u64) {
        self.cool();
        self.halved.store(epoch, Ordering::Relaxed);
    }

    /// Whether the leaf stays apart from its neighbours in `epoch`.
    pub(crate) fn stays_apart(&self, epoch: u64) -> bool {
        let halved = self.halved.load(Ordering::Relaxed);
        halved != 0 && epoch < halved + EPOCHS_APART
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::node::Probe;
    use crate::pin::pin;
    use crate::{PoolState, Tree, TreeLimits};
    use quire_base::{BlockNo, InodeNo};
    use quire_device::Device;
    use quire_format::extent::Run;
    use quire_format::key::Key;
    use std::ops::ControlFlow;

    fn entry(n: u64) -> Key {
        Key::entry(InodeNo(7), n)
    }

    /// As if so many changes of a key's leaf had waited one after the other.
    fn fight(tree: &Tree, key: Key, waits: u32) {
        let pin = pin();
        let Ok((_, leaf)) = tree.descend(&pin, &Probe::At(key)) else { panic!("the leaf is in memory") };
        for _ in 0..waits {
            leaf.node.heat.count(true);
        }
    }

    fn keys(tree: &Tree) -> Vec<u64> {
        let mut found = Vec::new();
        tree.scan(Key::MIN, Key::MAX, &mut |key, _| {
            found.push(key.offset);
            ControlFlow::Continue(())
        })
        .unwrap();
        found
    }

    #[test]
    fn a_leaf_that_is_fought_over_is_halved_and_stays_so_for_a_while() {
        let limits = TreeLimits { cache_nodes: 100, dirty_nodes: 100 };
        let pool = PoolState::new(&[Run::new(BlockNo(16), 900)], 1);
        let tree = Tree::create(Device::in_memory(1024), 1, pool, limits);
        (0..8).for_each(|n| tree.put(entry(n), &[7; 300]).unwrap());
        fight(&tree, entry(3), HOT / WARMTH - 1);
        tree.put(Key::extent(InodeNo(7), 1), b"no name").unwrap();
        tree.put(entry(3), b"another").unwrap();
        assert_eq!((tree.stats().halvings, tree.stats().nodes), (0, 2), "not often enough");

        for (halvings, nodes) in [(1, 4), (2, 5), (3, 6)] {
            fight(&tree, entry(0), HOT / WARMTH + 1);
            tree.put(entry(0), &[halvings as u8]).unwrap();
            assert_eq!((tree.stats().halvings, tree.stats().nodes), (halvings, nodes));
        }
        fight(&tree, entry(0), HOT / WARMTH + 1);
        tree.put(entry(0), b"alone").unwrap();
        assert_eq!(tree.stats().halvings, 3, "one entry has no halves");

        let image = |checkpoint| {
            let stamp = crate::CheckpointStamp { checkpoint, incarnation: 1 };
            tree.write_frozen(tree.freeze(Vec::new()), stamp).unwrap()
        };
        image(1);
        (1..5).for_each(|n| assert!(tree.delete(entry(n)).unwrap()));
        assert_eq!((tree.stats().merges, keys(&tree)), (0, vec![0, 5, 6, 7, 1]));
        for number in 2..2 + EPOCHS_APART {
            image(number);
        }
        (5..8).for_each(|n| assert!(tree.delete(entry(n)).unwrap()));
        assert_eq!(keys(&tree), [0, 1]);
        assert!(tree.stats().merges > 0 && tree.stats().nodes < 6, "{:?}", tree.stats());
    }
}
