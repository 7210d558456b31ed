//! Healing: what is bad in one of its two places is written anew.
//!
//! Protocol. A load that had to take the second copy notes the node ([`Tree::note_damaged`]). Later, with a
//! reservation and while nobody freezes, [`Tree::rewrite`] marks the node and the path to it dirty, though
//! nothing in them changes. So the next checkpoint writes it to a fresh place, both copies of it, and frees
//! the old one. Nothing of the live tree is overwritten in place: a crash leaves the old tree, whose good
//! copy still serves. Where a kept checkpoint has the node, too, its bad copy is left to the next scrub
//! ([`crate::kept`]).
//!
//! Invariants: a node is rewritten only while the live tree names it in the place where it was bad. What is
//! noted is bounded; what is dropped is found again by its next load.
//!
//! What lies in a chunk that the pool is to give up moves in the same way ([`Tree::nodes_in`]).
//!
//! Neighbours: `load` and `walk` find what is bad, `checkpoint` writes; the volume's background work calls
//! this.

use crate::inner::Child;
use crate::load::Missing;
use crate::node::{Body, Node};
use crate::pin::{Pin, pin};
use crate::ticket::Ticket;
use crate::tree::Tree;
use quire_base::Result;
use quire_base::sync::Mutex;
use quire_format::node::NodeRef;
use smallvec::SmallVec;

/// Damaged nodes that are remembered at most.
const DAMAGED_MAX: usize = 1024;

/// A node, in the place in which the tree named it.
#[derive(Clone, Copy, Debug)]
pub struct Placed(pub(crate) Missing);

impl Placed {
    /// The reference that names it.
    pub fn at(&self) -> NodeRef {
        self.0.at
    }
}

/// The nodes above a node, root first, and the node.
pub(crate) type Place<'p> = (SmallVec<[&'p Node; 4]>, &'p Node);

#[derive(Default)]
pub(crate) struct DamagedNodes(Mutex<Vec<Placed>>);

impl Tree {
    /// Notes a node of which one copy is bad.
    pub(crate) fn note_damaged(&self, missing: Missing) {
        let mut list = self.damaged.0.lock();
        if list.len() < DAMAGED_MAX && list.iter().all(|known| known.0.at != missing.at) {
            self.counters.damaged.add(1);
            list.push(Placed(missing));
        }
    }

    /// Takes the list of nodes that are to be rewritten.
    pub fn take_damaged(&self) -> Vec<Placed> {
        std::mem::take(&mut *self.damaged.0.lock())
    }

    /// Puts back what could not be rewritten.
    pub fn put_back_damaged(&self, damaged: impl IntoIterator<Item = Placed>) {
        self.damaged.0.lock().extend(damaged);
    }

    /// Loads the node and what is above it. They stay in memory while the ticket lives, unless an eviction
    /// was about to take them.
    pub fn prepare_rewrite(&self, _ticket: &Ticket<'_>, node: &Placed) -> Result<()> {
        while let Err(missing) = self.find_named(&pin(), &node.0) {
            self.load(missing)?;
        }
        Ok(())
    }

    /// Has the next checkpoint write the node anew; false if the tree does not name it there any more, None
    /// if an eviction has taken it and it must be prepared again. The caller has reserved for the change of
    /// one key, and keeps freezes out.
    pub fn rewrite(&self, node: &Placed) -> Option<bool> {
        let pin = pin();
        let epoch = self.live_epoch();
        loop {
            let Some((above, node)) = self.find_named(&pin, &node.0).ok()? else { return Some(false) };
            // Neither merged nor evicted while this is held.
            let (_latch, _lock) = match &node.body {
                Body::Leaf(latch) => (Some(latch.write()), None),
                Body::Inner(inner) => (None, Some(inner.lock())),
            };
            if !node.is_gone() {
                above.iter().for_each(|node| self.mark(node, epoch));
                self.mark(node, epoch);
                return Some(true);
            }
        }
    }

    /// Counts nodes that are rewritten since one of their copies was bad.
    pub fn count_healed(&self, nodes: u64) {
        self.counters.healed.add(nodes);
    }

    /// Where the tree names the node; None if it does not. An error is what must be loaded first.
    pub(crate) fn find_named<'p>(
        &'p self,
        pin: &'p Pin,
        node: &Missing,
    ) -> std::result::Result<Option<Place<'p>>, Missing> {
        let Missing { at: wanted, probe } = *node;
        let clock = self.tickets.clock();
        let root = || -> &'p Node { self.root(&probe).node.read(pin) };
        let mut above = SmallVec::new();
        let mut node = root();
        while node.level > wanted.level {
            node.touch(clock);
            let Body::Inner(inner) = &node.body else { return Ok(None) };
            let entries = inner.entries(pin);
            if !entries.range.covers(&probe) {
                // A split has cut the node since its parent was read.
                self.overtaken();
                above.clear();
                node = root();
                continue;
            }
            above.push(node);
            match &entries.children[entries.find(&probe)] {
                Child::Resident(child) => node = child,
                Child::OnDisk(at) if at.level > wanted.level || *at == wanted => {
                    return Err(Missing { at: *at, probe });
                }
                Child::OnDisk(_) => return Ok(None),
            }
        }
        node.touch(clock);
        Ok((node.disk() == Some(wanted)).then_some((above, node)))
    }
}
