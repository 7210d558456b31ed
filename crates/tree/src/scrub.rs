//! Looking at every copy of every node, beside changes.
//!
//! Protocol. A scrub goes through the keys. Each step goes down to the lowest inner node around a key, and
//! looks at all copies of that node and of its leaves, and of the nodes above it that begin there. A copy
//! that does not check means something only if the tree names that place still: checkpoints free places, and
//! what is free holds anything.
//!
//! A node of which one copy is bad is noted to be written anew ([`crate::heal`]); so is one of which both are
//! bad, if it is in memory. What no checkpoint has written yet has nothing on the device to look at.
//!
//! Neighbours: `copies` reads, `heal` finds whether the tree names a node still.

use crate::copies::Look;
use crate::heal::Placed;
use crate::inner::Child;
use crate::load::{Missing, read_node};
use crate::node::{Body, Node, Probe};
use crate::pin::{Pin, pin};
use crate::tree::Tree;
use quire_base::{BlockNo, Error, Result};
use quire_format::extent::Run;
use quire_format::key::Key;

/// What a step of a scrub looked at.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Nodes whose copies were read.
    pub nodes: u64,
    /// Of these, nodes that will be written anew.
    pub damaged: u64,
    /// Why nodes are lost: no copy is good.
    pub lost: Vec<Error>,
    /// Where the next step begins; None at the end.
    pub next: Option<Key>,
}

impl Tree {
    /// Looks at the nodes from a key on, of one lowest inner node. Does I/O.
    pub fn scrub_from(&self, from: Key) -> Scrubbed {
        let _ticket = self.ticket();
        let mut scrubbed = Scrubbed::default();
        let nodes = loop {
            let (missing, end) = match self.nodes_from(&pin(), from, &mut scrubbed.next) {
                Ok(nodes) => break nodes,
                Err(found) => found,
            };
            if let Err(error) = self.load(missing) {
                scrubbed.lost.push(error);
                scrubbed.next = end;
                return scrubbed;
            }
        };
        for node in nodes {
            scrubbed.nodes += 1;
            let noted = match read_node(&self.device, self.volume, &node.at, Look::AtAll) {
                Ok((_, false)) => continue,
                Ok((_, true)) => self.note_if_named(node, true),
                Err(error) => {
                    let noted = self.note_if_named(node, false);
                    if noted == Some(false) {
                        scrubbed.lost.push(error);
                    }
                    noted
                }
            };
            scrubbed.damaged += u64::from(noted == Some(true));
        }
        scrubbed
    }

    /// The nodes from a key on, of one lowest inner node, that have a copy in one of these runs; and where
    /// the next call begins, None at the end. Does I/O.
    pub fn nodes_in(&self, runs: &[Run], from: Key) -> Result<(Vec<Placed>, Option<Key>)> {
        let _ticket = self.ticket();
        let mut next = None;
        let nodes = loop {
            match self.nodes_from(&pin(), from, &mut next) {
                Ok(nodes) => break nodes,
                Err((missing, _)) => self.load(missing)?,
            }
        };
        let lies_there = |node: &Missing| {
            let has = |block: BlockNo| runs.iter().any(|run| run.contains(block));
            node.at.place().copies().any(has)
        };
        Ok((nodes.into_iter().filter(lies_there).map(Placed).collect(), next))
    }

    /// Notes a node to be written anew, if it can be read or is in memory; says whether it was. None if the
    /// tree does not name it any more.
    fn note_if_named(&self, node: Missing, can_be_read: bool) -> Option<bool> {
        let resident = loop {
            match self.find_named(&pin(), &node) {
                Ok(None) => return None,
                Ok(Some(_)) => break true,
                Err(missing) if missing.at == node.at => break false,
                Err(missing) => self.load(missing).ok()?,
            }
        };
        if resident || can_be_read {
            self.note_damaged(node);
        }
        Some(resident || can_be_read)
    }

    /// The places of the lowest inner node around a key, of its leaves, and of those above that begin at the
    /// key; and where the next one begins. An error is what must be loaded first, and the end of its keys.
    fn nodes_from(
        &self,
        pin: &Pin,
        from: Key,
        next: &mut Option<Key>,
    ) -> std::result::Result<Vec<Missing>, (Missing, Option<Key>)> {
        let probe = Probe::At(from);
        let mut nodes = Vec::new();
        let place = |node: &Node, probe| node.disk().map(|at| Missing { at, probe });
        let mut node: &Node = self.root(&probe).node.read(pin);
        *next = (from < Key::NAMES).then_some(Key::NAMES);
        loop {
            let Body::Inner(inner) = &node.body else {
                nodes.extend(place(node, probe));
                return Ok(nodes);
            };
            let entries = inner.entries(pin);
            if node.level == 1 || entries.range.low.is_none_or(|low| low == from) {
                nodes.extend(place(node, probe));
            }
            if node.level == 1 {
                *next = entries.range.high;
                for (at, child) in entries.children.iter().enumerate() {
                    let probe = Probe::At(entries.range_of(at).low.unwrap_or(Key::MIN));
                    match child {
                        Child::Resident(leaf) => nodes.extend(place(leaf, probe)),
                        Child::OnDisk(at) => nodes.push(Missing { at: *at, probe }),
                    }
                }
                return Ok(nodes);
            }
            let at = entries.find(&probe);
            match &entries.children[at] {
                Child::Resident(child) => node = child,
                Child::OnDisk(named) => {
                    return Err((Missing { at: *named, probe }, entries.range_of(at).high));
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{CheckpointStamp, PoolState, TreeLimits};
    use quire_base::sync::Arc;
    use quire_base::{BlockNo, InodeNo};
    use quire_device::{Device, MemoryBackend};
    use quire_format::extent::Run;

    #[test]
    fn a_place_that_a_checkpoint_has_left_is_no_damage() {
        let device = Device::new(Arc::new(MemoryBackend::new(2048)));
        let pool = PoolState::new(&[Run::new(BlockNo(16), 2000)], 2);
        let limits = TreeLimits { cache_nodes: 64, dirty_nodes: 1000 };
        let tree = Tree::create(device, 1, pool, limits);
        let key = Key::inode(InodeNo(1));
        let mut places = Vec::new();
        for checkpoint in 1..3 {
            tree.put(key, &[checkpoint as u8]).unwrap();
            let stamp = CheckpointStamp { checkpoint, incarnation: 1 };
            places.push(tree.write_frozen(tree.freeze(Vec::new()), stamp).unwrap().roots[1]);
        }
        let [old, new] = [0, 1].map(|n| Missing { at: places[n], probe: Probe::At(key) });
        assert_eq!(tree.note_if_named(old, false), None);
        assert!(tree.take_damaged().is_empty());
        assert_eq!(tree.note_if_named(new, false), Some(true));
        assert_eq!(tree.take_damaged().len(), 1);
    }
}
