//! Every node of both trees, for fsck, dumps and space accounting.
//!
//! Nodes that are resident are shown as they are; others are read and not kept. Without changes meanwhile
//! each node of the live tree is shown once, parents first; a walk beside changes may miss some or meet moved
//! ones.

use crate::copies::Look;
use crate::inner::Child;
use crate::load::read_node;
use crate::node::{Body, Node};
use crate::pin::pin;
use crate::tree::Tree;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Result};
use quire_format::node::{NodePage, NodeRef};
use quire_format::place::NO_TWIN;

/// What a walk calls with each node's reference and its page, or why it cannot be read.
pub type Visit<'f> = dyn FnMut(NodeRef, Result<&NodePage>) -> Result<()> + 'f;

impl Tree {
    /// Calls `visit` with each node. A node that no checkpoint has written yet has a reference to block 0; a
    /// changed one has that of its last checkpoint.
    ///
    /// Errors: those of `visit`, and the first node that cannot be read.
    pub fn walk(&self, visit: &mut dyn FnMut(NodeRef, &NodePage) -> Result<()>) -> Result<()> {
        self.walk_all(&mut |at, page| visit(at, page?))
    }

    /// As [`Tree::walk`], but shows what cannot be read, too, and goes on with its neighbours.
    pub fn walk_all(&self, visit: &mut Visit<'_>) -> Result<()> {
        for root in &self.roots {
            let root = root.node.read(&pin()).clone();
            self.walk_child(&Child::Resident(root), visit)?;
        }
        Ok(())
    }

    fn walk_child(&self, child: &Child, visit: &mut Visit<'_>) -> Result<()> {
        match self.look_at(child) {
            (at, Ok((page, children))) => {
                visit(at, Ok(&page))?;
                children.iter().try_for_each(|child| self.walk_child(child, visit))
            }
            (at, Err(error)) => visit(at, Err(error)),
        }
    }

    /// A node's reference, as [`Tree::walk`] gives it, its page, and its children.
    pub(crate) fn look_at(&self, child: &Child) -> (NodeRef, Result<(NodePage, Vec<Child>)>) {
        match child {
            Child::Resident(node) => (reference(node), Ok(self.snapshot(node))),
            Child::OnDisk(at) => {
                let read = read_node(&self.device, self.volume, at, Look::UntilGood);
                let children = |page: &NodePage| match page.level() {
                    0 => Vec::new(),
                    _ => (0..page.count()).map(|at| Child::OnDisk(page.child(at))).collect(),
                };
                let found = read.map(|(page, _)| {
                    let children = children(&page);
                    (page, children)
                });
                (*at, found)
            }
        }
    }

    /// A resident node's page and children at one moment.
    fn snapshot(&self, node: &Node) -> (NodePage, Vec<Child>) {
        match &node.body {
            Body::Leaf(latch) => (latch.read().page.clone(), Vec::new()),
            Body::Inner(inner) => {
                let pin = pin();
                let entries = inner.entries(&pin);
                let mut page = NodePage::new(node.level);
                for (key, child) in entries.keys.iter().zip(&entries.children) {
                    let at = match child {
                        Child::Resident(child) => reference(child),
                        Child::OnDisk(at) => *at,
                    };
                    page.push_child(*key, &at);
                }
                (page, entries.children.clone())
            }
        }
    }
}

fn reference(node: &Arc<Node>) -> NodeRef {
    node.disk().unwrap_or(NodeRef {
        block: BlockNo(0),
        twin: NO_TWIN,
        generation: 0,
        crc: 0,
        level: node.level,
    })
}
