//! Letting clean nodes go when the node cache is over its limit.
//!
//! A hand goes round the keys. Under each stop, one inner node whose children include resident ones, it replaces
//! clean children that were not used since the hand's last round by their references; a node left without resident
//! children may go itself. Each stop takes the whole structure lock once.
//!
//! Invariants: what is dirty in an epoch that is not yet written stays; what was used since the oldest live ticket
//! stays; an inner node with resident children stays, and so does the root. One thread evicts at a time.

use crate::node::{Body, Child, Node, Probe};
use crate::structure::Whole;
use crate::tree::Tree;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_format::key::Key;

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
struct Rule {
    written: u64,
    /// Nodes with a stamp below this.
    before: u64,
}

impl Rule {
    fn allows(&self, node: &Node, whole: &Whole<'_>) -> bool {
        let alone = match &node.body {
            Body::Leaf(_) => true,
            Body::Inner(inner) => inner.get(whole).children.iter().all(|child| child.resident().is_none()),
        };
        alone && node.touched() < self.before && node.is_clean(self.written) && node.disk().is_some()
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
            let mut whole = self.structure.whole();
            let rule = Rule { written: self.written.load(Ordering::Acquire), before: hand.round.min(oldest) };
            match self.evict_at(&mut whole, &rule, hand.key) {
                Some(next) => hand.key = next,
                None => {
                    rounds += 1;
                    hand.key = Key::MIN;
                    hand.round = clock;
                }
            }
        }
        // All that is left is dirty or in use: wait until there is an eighth more, or a checkpoint has cleaned some.
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
    fn evict_at(&self, whole: &mut Whole<'_>, rule: &Rule, key: Key) -> Option<Key> {
        let mut above: Vec<(Arc<Node>, usize)> = Vec::new();
        let mut node = self.root.get(whole).clone();
        let mut next = None;
        // Down to the lowest resident inner node around the key.
        loop {
            let child = {
                let Body::Inner(inner) = &node.body else { return None };
                let inner = inner.get(whole);
                let at = inner.find(&Probe::At(key));
                let is_inner = |child: &Child| child.resident().is_some_and(|child| child.level > 0);
                let later = (at + 1..inner.children.len()).find(|&later| is_inner(&inner.children[later]));
                match &inner.children[at] {
                    Child::Resident(child) if child.level > 0 => {
                        if let Some(later) = inner.keys.get(at + 1) {
                            next = Some(*later);
                        }
                        Some((at, child.clone()))
                    }
                    _ => {
                        if let Some(later) = later {
                            next = Some(inner.keys[later]);
                        }
                        None
                    }
                }
            };
            let Some((at, child)) = child else { break };
            above.push((node, at));
            node = child;
        }
        self.evict_children(whole, rule, &node);
        // What has lost its last child may go, too.
        while let Some((parent, at)) = above.pop() {
            if !rule.allows(&node, whole) || !self.evict_child(whole, &parent, at) {
                break;
            }
            node = parent;
        }
        next
    }

    fn evict_children(&self, whole: &mut Whole<'_>, rule: &Rule, parent: &Node) {
        let Body::Inner(inner) = &parent.body else { return };
        for at in 0..inner.get(whole).children.len() {
            let allowed = match inner.get(whole).children[at].resident() {
                Some(child) => rule.allows(child, whole),
                None => false,
            };
            if allowed {
                self.evict_child(whole, parent, at);
            }
        }
    }

    fn evict_child(&self, whole: &mut Whole<'_>, parent: &Node, at: usize) -> bool {
        let Body::Inner(inner) = &parent.body else { return false };
        let slot = &mut inner.get_mut(whole).children[at];
        let Some(disk) = slot.resident().and_then(|child| child.disk()) else { return false };
        *slot = Child::OnDisk(disk);
        self.resident.fetch_sub(1, Ordering::Relaxed);
        self.counters.evictions.add(1);
        true
    }
}
