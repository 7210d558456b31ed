//! Putting a kept tree of names in the place of the one that a volume has.
//!
//! Nothing is written: the next checkpoint names the kept root, and lists its nodes among those in use. What
//! the old tree alone needed is free once that checkpoint is in both slots.
//!
//! Invariants: no other thread uses the tree. Every node of the kept tree is kept ([`Tree::keep`]).

use crate::checkpoint::CheckpointStamp;
use crate::copies::Look;
use crate::inner::Child;
use crate::load::{Missing, check_bounds, read_node};
use crate::node::{Node, Probe};
use crate::pin::pin;
use crate::tree::Tree;
use quire_base::{BlockNo, Error, Result};
use quire_format::key::Key;
use quire_format::node::{NodeRef, TREE_BOUNDS};
use std::collections::BTreeSet;

/// The tree of names among the roots.
const NAMES: usize = 1;

impl Tree {
    /// Replaces the tree of names. `stamp` is that of the next checkpoint.
    ///
    /// Errors: a node of either cannot be read; nothing has changed then.
    pub fn replace_names(&self, root: NodeRef, stamp: CheckpointStamp) -> Result<()> {
        let (page, _) = read_node(&self.device, self.volume, &root, Look::UntilGood)?;
        let bounds = TREE_BOUNDS[NAMES].into();
        let at = Missing { at: root, probe: Probe::At(Key::NAMES) };
        check_bounds(&page, &bounds, &at)?;
        let top = &self.roots[NAMES];
        let old_root = top.node.read(&pin()).clone();
        let (old, old_nodes) = self.blocks_of(&Child::Resident(old_root))?;
        let (new, new_nodes) = self.blocks_of(&Child::OnDisk(root))?;
        let mut pool = self.pool.lock();
        if let Some(block) = new.iter().find(|block| !pool.is_kept(**block)) {
            return Err(Error::corrupt(format!("block {block} of a kept tree is not kept")));
        }
        let left: Vec<BlockNo> = old.difference(&new).copied().collect();
        pool.free(left, stamp.checkpoint)?;
        pool.use_kept(new.difference(&old).copied());
        // A replay may have taken nodes out of the old tree that the kept one has: they stay.
        let stays = |node: &Node| node.disk().is_some_and(|at| at.place().copies().any(|b| new.contains(&b)));
        self.removed.lock().retain(|node| !stays(node));
        self.accounting.set_pool(pool.room(), pool.overhead());
        drop(pool);
        self.accounting.nodes_replaced(old_nodes, new_nodes);
        top.set(Node::loaded(page, bounds, root, self.tickets.clock()), &pin());
        Ok(())
    }

    /// The blocks of a tree's nodes on the device, and how many nodes there are.
    fn blocks_of(&self, root: &Child) -> Result<(BTreeSet<BlockNo>, u64)> {
        let (mut blocks, mut nodes) = (BTreeSet::new(), 0);
        self.walk_child(root, &mut |at, page| {
            page?;
            nodes += 1;
            if at.block.0 != 0 {
                blocks.extend(at.place().copies());
            }
            Ok(())
        })?;
        Ok((blocks, nodes))
    }
}
