//! How many nodes may be dirty: reservations against memory and against the room in the pool.
//!
//! A *dirty set* is what one epoch changes: nodes that its checkpoint writes, and nodes it removes, whose blocks the
//! checkpoint before still needs. Let L be the nodes of a tree, D a bound on every dirty set, O the blocks of maps
//! and orphan blocks that three checkpoints can need. The pool must have `L + 2 D + O` blocks:
//! while checkpoint n + 1 is written, slots n and n - 1 need L(n) and what n freed (at most D), and the writing takes
//! D; after a crash in mid-write, replay changes two epochs' dirty sets in one, over L(n) alone.
//!
//! D is therefore not a constant but what the room leaves, at most the limit by memory. L is the largest of the
//! trees that count (durable, frozen, live) plus whatever reservations may still add. Since live + 2 D never exceeds
//! the pool in any epoch, two neighbouring epochs' sets fit together, whichever of them has grown the tree.
//!
//! Reservations are worst cases; a node counts once per epoch when it is first marked, and the whole reservation
//! returns when it is dropped. Ordinary transactions leave an emergency reserve to critical ones (that free space),
//! so a full volume can still delete.
//!
//! Neighbours: [`crate::Tree::try_reserve`]; the pool reports its size here.

use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicU64, Ordering};

/// How much memory a tree's nodes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Resident nodes beyond which clean ones are evicted.
    pub cache_nodes: u64,
    /// Dirty nodes beyond which a checkpoint is needed first.
    pub dirty_nodes: u64,
}

/// Memory of a resident node with its share of pointers, in bytes.
pub const NODE_MEMORY_BYTES: u64 = 4096 + 320;

impl TreeLimits {
    /// Limits for a node cache of about `bytes`. Dirty nodes may take half of it: the frozen ones take as much again
    /// only where they change while they are written.
    pub fn with_cache_bytes(bytes: u64) -> TreeLimits {
        let cache_nodes = (bytes / NODE_MEMORY_BYTES).max(64);
        TreeLimits { cache_nodes, dirty_nodes: (cache_nodes / 2).max(256) }
    }
}

/// Who asks for nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An ordinary change.
    Normal,
    /// A change that frees space or finishes what was promised: may use the emergency reserve.
    Critical,
}

/// Why a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// A checkpoint makes room.
    Checkpoint,
    /// Only a larger pool makes room.
    PoolFull,
}

/// Nodes that the holder may dirty. Returns what is not used when dropped.
#[must_use]
pub struct NodeReservation {
    accounting: Arc<Accounting>,
    nodes: u64,
}

impl NodeReservation {
    /// Nodes reserved.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }
}

impl Drop for NodeReservation {
    fn drop(&mut self) {
        // What was used is counted as dirty since it was marked.
        self.accounting.reserved.fetch_sub(self.nodes, Ordering::AcqRel);
    }
}

/// Room below which an ordinary transaction asks for a larger pool rather than for ever more checkpoints.
const COMFORTABLE_NODES: u64 = 64;

/// The numbers; see the module's documentation.
#[derive(Default)]
pub(crate) struct Accounting {
    limit: u64,
    /// Nodes in the dirty set of the live epoch.
    dirty: AtomicU64,
    reserved: AtomicU64,
    /// Nodes of the tree: now, as of the newest freeze, as of the newest durable checkpoint.
    live: AtomicU64,
    frozen: AtomicU64,
    durable: AtomicU64,
    pool_blocks: AtomicU64,
    overhead: AtomicU64,
}

impl Accounting {
    pub(crate) fn new(limits: &TreeLimits, live: u64) -> Arc<Accounting> {
        Arc::new(Accounting {
            limit: limits.dirty_nodes,
            live: AtomicU64::new(live),
            frozen: AtomicU64::new(live),
            durable: AtomicU64::new(live),
            ..Accounting::default()
        })
    }

    /// The pool's size, and the blocks beside nodes that three checkpoints may need.
    pub(crate) fn set_pool(&self, blocks: u64, overhead: u64) {
        self.pool_blocks.store(blocks, Ordering::Release);
        self.overhead.store(overhead, Ordering::Release);
    }

    pub(crate) fn node_created(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn node_removed(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn node_marked(&self) {
        self.dirty.fetch_add(1, Ordering::AcqRel);
    }

    /// A node of this epoch vanished before any checkpoint saw it.
    pub(crate) fn node_unmarked(&self) {
        self.dirty.fetch_sub(1, Ordering::AcqRel);
    }

    /// A new epoch begins; no change runs. Gives the nodes of the frozen tree.
    pub(crate) fn freeze(&self) -> u64 {
        self.dirty.store(0, Ordering::Release);
        let live = self.live();
        self.frozen.store(live, Ordering::Release);
        live
    }

    /// The frozen tree of `live` nodes is named by a superblock.
    pub(crate) fn published(&self, live: u64) {
        self.durable.store(live, Ordering::Release);
    }

    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// The emergency reserve, in nodes.
    pub(crate) fn emergency(&self) -> u64 {
        (self.pool_blocks.load(Ordering::Acquire) / 8).clamp(16, 512)
    }

    /// D if the tree may still grow by `growth` nodes, by the pool alone.
    fn dirty_by_pool(&self, growth: u64) -> u64 {
        let live =
            self.live().max(self.frozen.load(Ordering::Acquire)).max(self.durable.load(Ordering::Acquire));
        let needed = live + growth + self.overhead.load(Ordering::Acquire);
        self.pool_blocks.load(Ordering::Acquire).saturating_sub(needed) / 2
    }

    /// D for ordinary changes as things are.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.limit.min(self.dirty_by_pool(self.reserved()).saturating_sub(self.emergency()))
    }

    pub(crate) fn try_reserve(
        self: &Arc<Accounting>,
        nodes: u64,
        class: Class,
    ) -> Result<NodeReservation, Short> {
        // First reserved, then dirty: who drops a reservation in between has counted its dirty nodes before.
        let reserved = self.reserved.fetch_add(nodes, Ordering::AcqRel) + nodes;
        let reservation = NodeReservation { accounting: self.clone(), nodes };
        let dirty = self.dirty();
        let kept = if class == Class::Normal { self.emergency() } else { 0 };
        let by_pool = |growth: u64| self.dirty_by_pool(growth).saturating_sub(kept);
        // One large transaction alone may exceed the limit by memory, never the room in the pool.
        let limit = self.limit.max(nodes);
        if dirty + reserved <= by_pool(reserved).min(limit) {
            return Ok(reservation);
        }
        drop(reservation);
        let wanted = if class == Class::Normal { nodes.max(COMFORTABLE_NODES.min(limit)) } else { nodes };
        Err(if wanted > by_pool(nodes) { Short::PoolFull } else { Short::Checkpoint })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn accounting(pool: u64, live: u64) -> Arc<Accounting> {
        let accounting = Accounting::new(&TreeLimits { cache_nodes: 1000, dirty_nodes: 200 }, live);
        accounting.set_pool(pool, 10);
        accounting
    }

    #[test]
    fn reservations_and_dirty_nodes_share_the_limit() {
        let accounting = accounting(10_000, 5);
        let first = accounting.try_reserve(150, Class::Normal).unwrap();
        assert!(matches!(accounting.try_reserve(60, Class::Normal), Err(Short::Checkpoint)));
        for _ in 0..100 {
            accounting.node_marked();
        }
        drop(first);
        assert_eq!((accounting.dirty(), accounting.reserved()), (100, 0));
        let second = accounting.try_reserve(100, Class::Normal).unwrap();
        assert!(accounting.try_reserve(1, Class::Critical).is_err());
        accounting.freeze();
        assert!(accounting.try_reserve(100, Class::Normal).is_ok());
        drop(second);
    }

    #[test]
    fn a_full_pool_says_so_and_keeps_an_emergency_reserve() {
        let accounting = accounting(512, 300);
        // (512 - 300 - 10 - 20) / 2 = 91, of which 64 are kept.
        assert!(accounting.try_reserve(20, Class::Normal).is_ok());
        assert!(matches!(accounting.try_reserve(40, Class::Normal), Err(Short::PoolFull)));
        assert!(accounting.try_reserve(60, Class::Critical).is_ok());
        assert!(matches!(accounting.try_reserve(90, Class::Critical), Err(Short::PoolFull)));
        accounting.set_pool(512 + 1024, 10);
        assert!(accounting.try_reserve(90, Class::Normal).is_ok());
    }
}
