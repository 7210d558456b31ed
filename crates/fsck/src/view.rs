//! What the cross-checks look at: a volume's tree and slots as of the end of its journal, in memory or under
//! repair.
//!
//! Neighbours: made from a `quire::internals::inspect::Image`, or from a repair session.

use quire::internals::snapshots::Held;
use quire_format::extent::Run;
use quire_format::region::split_by_region;
use quire_format::superblock::Superblock;
use quire_tree::Tree;

/// A volume, as the cross-checks see it.
pub(crate) struct View<'a> {
    pub(crate) superblock: &'a Superblock,
    pub(crate) tree: &'a Tree,
    /// Orphan slots in use: slot, inode.
    pub(crate) orphans: Vec<(u32, u64)>,
    /// Chunks of the metadata pool, ascending.
    pub(crate) chunks: &'a [Run],
    /// What snapshots need.
    pub(crate) held: &'a Held,
    /// The blocks of chunks that the pool has something in, ascending; without them, it may have in any.
    pub(crate) pool_holds: Option<&'a [u64]>,
    /// Whether the superblock's counters are to be looked at.
    pub(crate) counters: bool,
}

impl View<'_> {
    /// Whether a snapshot needs one of these blocks.
    pub(crate) fn is_held(&self, run: Run) -> bool {
        split_by_region(run).any(|(region, start, blocks)| {
            let used = self.held.blocks.get(&region).and_then(|held| held.next_used(start));
            used.is_some_and(|at| at < start + blocks)
        })
    }
}
