//! Letting clean nodes go when the node cache is over its limit.
//!
//! A hand goes round the keys. Under each stop, one inner node whose children include resident ones, it
//! replaces clean children that were not used since the hand's last round by their references; a node left
//! without resident children may go itself. Each stop takes the lock of that one node, and replaces its
//! entries once.
//!
//! Protocol: a leaf goes under its latch, and only if the latch is free: a leaf whose latch is taken is in
//! use. It is
//! *gone* first, then its stamp is looked at; a thread that wants to keep it stamps it first, then looks
//! whether it is gone ([`Tree::hold`]). So one of the two sees the other.
//!
//! Invariants: what is dirty in an epoch that is not yet written stays; what was used since the oldest live
//! ticket stays; an inner node with resident children stays, and so does the root. One thread evicts at a
//! time.

use crate::inner::{Child, Locked};
use crate::node::{Body, Node, Probe};
use crate::pin::{Pin, pin};
use crate::tree::Tree;
use quire_base::sync::atomic::{Ordering, fence};
use quire_format::key::Key;
use quire_format::node::NodeRef;

/// Where the hand is.
pub(crate) struct Hand {
    key: Key,
    /// The clock when the hand last passed the lowest key: what was used since stays for another round.
    round: u64,
    /// Do not try again below so many resident nodes: the last try found nothing to let go.
    futile_below: u64,
}

impl Default for Hand {
    fn default() -> Hand {
        Hand { key: Key::MIN, round: 1, futile_below: 0 }
    }
}

/// What may go.
pub(crate) struct Rule {
    /// Nodes that are clean in all epochs behind this one.
    pub(crate) written: u64,
    /// Nodes with a stamp below this.
    pub(crate) before: u64,
}

impl Rule {
    /// Whether a node, whose latch or lock is held, may go.
    fn allows(&self, node: &Node) -> bool {
        node.touched() < self.before && node.is_clean(self.written) && node.disk().is_some()
    }

    /// Takes a leaf, whose latch and parent's lock are held, out of the tree and says where it is on disk, if
    /// it may go. It is gone before its stamp is looked at.
    pub(crate) fn take_out(&self, leaf: &Node) -> Option<NodeRef> {
        leaf.set_gone(true);
        fence(Ordering::SeqCst);
        let disk = leaf.disk().filter(|_| self.allows(leaf));
        if disk.is_none() {
            leaf.set_gone(false);
        }
        disk
    }
}

impl Tree {
    /// Brings the cache below its limit, as far as nodes may go.
    pub(crate) fn evict(&self) {
        let Some(mut hand) = self.hand.try_lock() else { return };
        let resident = || self.resident.load(Ordering::Relaxed);
        if resident() <= self.limits.cache_nodes.max(hand.futile_below) {
            return;
        }
        let target = self.limits.cache_nodes - self.limits.cache_nodes / 32;
        let (clock, oldest) = self.tickets.tick();
        let mut rounds = 0;
        while resident() > target && rounds < 3 {
            let pin = pin();
            let rule = Rule { written: self.written.load(Ordering::Acquire), before: hand.round.min(oldest) };
            match self.evict_at(&pin, &rule, hand.key) {
                Some(next) => hand.key = next,
                None => {
                    rounds += 1;
                    hand.key = Key::MIN;
                    hand.round = clock;
                }
            }
        }
        // All that is left is dirty or in use: wait until there is an eighth more, or a checkpoint has
        // cleaned some.
        hand.futile_below =
            if resident() > self.limits.cache_nodes { resident() + resident() / 8 } else { 0 };
    }

    /// A checkpoint has cleaned nodes: the next try may succeed.
    pub(crate) fn evict_after_checkpoint(&self) {
        if let Some(mut hand) = self.hand.try_lock() {
            hand.futile_below = 0;
        }
        if self.resident.load(Ordering::Relaxed) > self.limits.cache_nodes {
            self.evict();
        }
    }

    /// One stop of the hand; the key of the next, or None at the end.
    fn evict_at(&self, pin: &Pin, rule: &Rule, key: Key) -> Option<Key> {
        let mut above: Vec<&Node> = Vec::new();
        let mut node: &Node = self.root(&Probe::At(key)).node.read(pin);
        let mut next = (key < Key::NAMES).then_some(Key::NAMES);
        // Down to the lowest resident inner node around the key.
        loop {
            let Body::Inner(inner) = &node.body else { return next };
            let entries = inner.entries(pin);
            let at = entries.find(&Probe::At(key));
            let is_inner = |child: &Child| child.resident().is_some_and(|child| child.level > 0);
            match &entries.children[at] {
                Child::Resident(child) if child.level > 0 => {
                    if let Some(later) = entries.keys.get(at + 1) {
                        next = Some(*later);
                    }
                    above.push(node);
                    node = child;
                }
                _ => {
                    let later = (at + 1..entries.children.len()).find(|&at| is_inner(&entries.children[at]));
                    if let Some(later) = later {
                        next = Some(entries.keys[later]);
                    }
                    break;
                }
            }
        }
        self.evict_leaves(pin, rule, node);
        // What has lost its last child may go, too.
        while let Some(parent) = above.pop() {
            if !self.evict_inner(pin, rule, parent, node) {
                break;
            }
            node = parent;
        }
        next
    }

    /// Evicts leaves of one parent.
    fn evict_leaves(&self, pin: &Pin, rule: &Rule, parent: &Node) {
        let Some(parent) = Locked::new(parent, pin) else { return };
        // Their latches are kept until their parent is replaced, so that a descent does not meet them gone
        // before.
        let mut taken = Vec::new();
        for (at, child) in parent.entries().children.iter().enumerate() {
            let Child::Resident(node) = child else { continue };
            let Body::Leaf(latch) = &node.body else { continue };
            if rule.allows(node)
                && let Some(leaf) = latch.try_write()
                && let Some(disk) = rule.take_out(node)
            {
                taken.push((at, disk, leaf));
            }
        }
        if taken.is_empty() {
            return;
        }
        let mut entries = parent.entries().clone();
        for (at, disk, _) in &taken {
            entries.children[*at] = Child::OnDisk(*disk);
        }
        parent.publish(entries);
        self.resident.fetch_sub(taken.len() as u64, Ordering::Relaxed);
        self.counters.evictions.add(taken.len() as u64);
    }

    /// Evicts an inner node that has no resident children; false if it stays.
    fn evict_inner(&self, pin: &Pin, rule: &Rule, parent: &Node, node: &Node) -> bool {
        let Some(parent) = Locked::new(parent, pin) else { return false };
        let Some(at) = parent.entries().children.iter().position(|child| child.is(node)) else {
            return false;
        };
        let Some(locked) = Locked::new(node, pin) else { return false };
        let alone = locked.entries().children.iter().all(|child| child.resident().is_none());
        let Some(disk) = node.disk().filter(|_| alone && rule.allows(node)) else { return false };
        let mut entries = parent.entries().clone();
        entries.children[at] = Child::OnDisk(disk);
        node.set_gone(true);
        parent.publish(entries);
        self.resident.fetch_sub(1, Ordering::Relaxed);
        self.counters.evictions.add(1);
        true
    }
}
