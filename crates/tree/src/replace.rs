//! Putting a kept tree of names in the place of the one that a volume has.
//!
//! Nothing is written: the next checkpoint names the kept root, and lists its nodes among those in use. What
//! the old tree alone needed is free once that checkpoint is in both slots.
//!
//! Both trees are walked in the order of keys, as [`crate::compare`] does it. Where both have the same node
//! next, and nothing below it has changed since it was written, both walks pass it. So about as many nodes
//! are read, and remembered, as differ.
//!
//! Invariants: no other thread uses the tree. Every node of the kept tree is kept ([`Tree::keep`]).

use crate::checkpoint::CheckpointStamp;
use crate::copies::Look;
use crate::inner::Child;
use crate::load::{Missing, check_bounds, read_node};
use crate::node::{Body, Node, Probe};
use crate::pin::pin;
use crate::tree::Tree;
use quire_base::sync::atomic::Ordering::{Acquire, Relaxed};
use quire_base::{BlockNo, Error, Result};
use quire_format::key::Key;
use quire_format::node::{NodeRef, TREE_BOUNDS};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The tree of names among the roots.
const NAMES: usize = 1;

impl Tree {
    /// Replaces the tree of names. `stamp` is that of the next checkpoint.
    ///
    /// Errors: a node that only one of them has cannot be read; nothing has changed then.
    pub fn replace_names(&self, root: NodeRef, stamp: CheckpointStamp) -> Result<()> {
        let (page, _) = read_node(&self.device, self.volume, &root, Look::UntilGood)?;
        let bounds = TREE_BOUNDS[NAMES].into();
        let at = Missing { at: root, probe: Probe::At(Key::NAMES) };
        check_bounds(&page, &bounds, &at)?;
        let top = &self.roots[NAMES];
        let old_root = top.node.read(&pin()).clone();
        let leaves_memory = resident_nodes(&old_root);
        let (old, new) = self.differences(Child::Resident(old_root), Child::OnDisk(root))?;
        let mut pool = self.pool.lock();
        if let Some(block) = new.blocks.iter().find(|block| !pool.is_kept(**block)) {
            return Err(Error::corrupt(format!("block {block} of a kept tree is not kept")));
        }
        let left: Vec<BlockNo> = old.blocks.difference(&new.blocks).copied().collect();
        pool.free(left, stamp.checkpoint)?;
        pool.use_kept(new.blocks.difference(&old.blocks).copied());
        // A replay may have taken nodes out of the old tree that the kept one has: they stay.
        let stays = |node: &Node| {
            node.disk().is_some_and(|at| at.place().copies().any(|block| new.blocks.contains(&block)))
        };
        self.removed.lock().retain(|node| !stays(node));
        self.accounting.set_pool(pool.room(), pool.overhead());
        drop(pool);
        self.accounting.nodes_replaced(old.nodes, new.nodes);
        top.set(Node::loaded(page, bounds, root, self.tickets.clock()), &pin());
        self.resident.fetch_add(1, Relaxed);
        self.resident.fetch_sub(leaves_memory, Relaxed);
        Ok(())
    }

    /// Walks two trees; gives what each has gone through without passing it beside the other.
    fn differences(&self, old: Child, new: Child) -> Result<(Walk<'_>, Walk<'_>)> {
        let (mut old, mut new) = (Walk::new(self, old), Walk::new(self, new));
        loop {
            let order = match (old.ahead.last(), new.ahead.last()) {
                (None, None) => return Ok((old, new)),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((_, one)), Some((_, other))) if self.is_same(one, other) => {
                    old.ahead.pop();
                    new.ahead.pop();
                    continue;
                }
                // The lower keys first; of two nodes that begin alike, the one that may lead to the other.
                (Some((from, one)), Some((to, other))) => from.cmp(to).then(level(other).cmp(&level(one))),
            };
            if order.is_le() {
                old.enter()?;
            }
            if order.is_ge() {
                new.enter()?;
            }
        }
    }

    /// Whether two nodes, and all that is below them, are the same as written.
    fn is_same(&self, one: &Child, other: &Child) -> bool {
        let written = |child: &Child| match child {
            Child::Resident(node) if !node.is_clean(self.written.load(Acquire)) => None,
            Child::Resident(node) => node.disk(),
            Child::OnDisk(at) => Some(*at),
        };
        written(one).is_some_and(|one| written(other) == Some(one))
    }
}

fn level(child: &Child) -> u8 {
    match child {
        Child::Resident(node) => node.level,
        Child::OnDisk(at) => at.level,
    }
}

/// Nodes in memory from this one down.
fn resident_nodes(node: &Node) -> u64 {
    let below = match &node.body {
        Body::Leaf(_) => 0,
        Body::Inner(inner) => inner
            .entries(&pin())
            .children
            .iter()
            .filter_map(Child::resident)
            .map(|node| resident_nodes(node))
            .sum(),
    };
    1 + below
}

/// A way through a tree.
struct Walk<'t> {
    tree: &'t Tree,
    /// What is ahead, the next one last, each with a key that none below it is less than.
    ahead: Vec<(Key, Child)>,
    /// Nodes that it has gone into, and their blocks on the device.
    nodes: u64,
    blocks: BTreeSet<BlockNo>,
}

impl<'t> Walk<'t> {
    fn new(tree: &'t Tree, root: Child) -> Walk<'t> {
        Walk { tree, ahead: vec![(Key::NAMES, root)], nodes: 0, blocks: BTreeSet::new() }
    }

    /// Goes into the node that is next.
    fn enter(&mut self) -> Result<()> {
        let Some((low, child)) = self.ahead.pop() else { return Ok(()) };
        let (at, found) = self.tree.look_at(&child);
        let (page, children) = found?;
        self.nodes += 1;
        if at.block.0 != 0 {
            self.blocks.extend(at.place().copies());
        }
        // The key of the first entry says nothing.
        let low_of = |at| if at == 0 { low } else { page.key(at) };
        self.ahead.extend(children.into_iter().enumerate().rev().map(|(at, child)| (low_of(at), child)));
        Ok(())
    }
}
