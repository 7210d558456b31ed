//! Counters of the tree, and a reading of them with its state.

use crate::tree::Tree;
use quire_base::metrics::Counter;
use quire_base::sync::atomic::Ordering;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) loads: Counter,
    pub(crate) damaged: Counter,
    pub(crate) healed: Counter,
    pub(crate) evictions: Counter,
    pub(crate) splits: Counter,
    pub(crate) halvings: Counter,
    pub(crate) merges: Counter,
    pub(crate) restarts: Counter,
    pub(crate) nodes_written: Counter,
    pub(crate) blocks_written: Counter,
    pub(crate) short_of_dirty: Counter,
    pub(crate) short_of_pool: Counter,
}

/// A reading of a tree's state and counters. Blocks and nodes are of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Levels of the higher tree; 1 is a lone leaf.
    pub levels: u64,
    /// Nodes of both trees.
    pub nodes: u64,
    /// Nodes in memory.
    pub resident_nodes: u64,
    /// Nodes in memory beyond which clean ones go.
    pub cache_nodes: u64,
    /// Nodes changed or removed since the last freeze.
    pub dirty_nodes: u64,
    /// Nodes that transactions have reserved.
    pub reserved_nodes: u64,
    /// Dirty nodes that the limits permit now.
    pub dirty_nodes_max: u64,
    /// Blocks of the metadata pool.
    pub pool_blocks: u64,
    /// Blocks of the pool that the newest checkpoint needs.
    pub pool_used_blocks: u64,
    /// Blocks of the pool that nothing needs.
    pub pool_free_blocks: u64,
    /// Nodes read.
    pub loads: u64,
    /// Nodes found of which one copy was bad.
    pub damaged: u64,
    /// Of these, nodes that were given to a checkpoint to be written anew.
    pub healed: u64,
    /// Nodes let go.
    pub evictions: u64,
    /// Nodes split.
    pub splits: u64,
    /// Of these, leaves that threads fought over.
    pub halvings: u64,
    /// Nodes merged.
    pub merges: u64,
    /// Descents that started again, since the tree had changed on their way.
    pub restarts: u64,
    /// Nodes written by checkpoints.
    pub nodes_written: u64,
    /// All blocks written by checkpoints.
    pub blocks_written: u64,
    /// Reservations refused until a checkpoint.
    pub short_of_dirty: u64,
    /// Reservations refused until the pool grows.
    pub short_of_pool: u64,
}

impl Tree {
    /// A reading of the counters.
    pub fn stats(&self) -> TreeStats {
        let levels = self.levels() as u64;
        let (pool_blocks, pool_used_blocks, pool_free_blocks) = {
            let pool = self.pool.lock();
            (pool.blocks(), pool.used_blocks(), pool.free_blocks())
        };
        let counters = &self.counters;
        TreeStats {
            levels,
            nodes: self.accounting.live(),
            resident_nodes: self.resident.load(Ordering::Relaxed),
            cache_nodes: self.limits.cache_nodes,
            dirty_nodes: self.accounting.dirty(),
            reserved_nodes: self.accounting.held(),
            dirty_nodes_max: self.accounting.dirty_max(),
            pool_blocks,
            pool_used_blocks,
            pool_free_blocks,
            loads: counters.loads.get(),
            damaged: counters.damaged.get(),
            healed: counters.healed.get(),
            evictions: counters.evictions.get(),
            splits: counters.splits.get(),
            halvings: counters.halvings.get(),
            merges: counters.merges.get(),
            restarts: counters.restarts.get(),
            nodes_written: counters.nodes_written.get(),
            blocks_written: counters.blocks_written.get(),
            short_of_dirty: counters.short_of_dirty.get(),
            short_of_pool: counters.short_of_pool.get(),
        }
    }
}
