//! Inner nodes: replaced, not changed.
//!
//! An inner node has a lock and one pointer to its *entries*: keys, children, and the range of keys that it
//! is responsible for. Entries never change once they are published. A descent reads them without a lock. A
//! thread that splits, merges, attaches or evicts children takes the node's lock, builds new entries and
//! publishes them.
//!
//! A descent may therefore follow entries that are being replaced, and arrive at a node that no longer has
//! the key. Each node knows its own range. A leaf says so under its latch, and also whether it is still part
//! of the tree. An inner node's entries say so where the descent would stop: at a child that is not resident
//! (and [`crate::heal`] looks at each). A descent that took that child for its own would do I/O for another
//! key's node.
//!
//! Invariants: entries are replaced under the node's lock only, and not after the node has left the tree. The
//! ranges of a node's children divide its own. The low end of a node's range never changes: merges move the
//! right neighbour's entries to the left. Locks are taken from the root down, and from left to right.
//!
//! Neighbours: [`crate::pin`] frees what was replaced; `shape`, `load` and `evict` replace.

use crate::node::{Body, Node, Probe};
use crate::pin::{Pin, Published};
use quire_base::sync::{Arc, Mutex, MutexGuard};
use quire_format::key::Key;
use quire_format::node::{Bounds, CHILDREN_MAX, NodePage, NodeRef, REF_BYTES, SLOT_BYTES};

/// The keys that a node is responsible for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Keys from here on; None: from the lowest.
    pub(crate) low: Option<Key>,
    /// Keys below this; None: up to the highest.
    pub(crate) high: Option<Key>,
}

impl Range {
    #[cfg(all(test, loom))]
    pub(crate) const ALL: Range = Range { low: None, high: None };

    /// Whether what is looked for lies here, if it is anywhere.
    #[inline]
    pub(crate) fn covers(&self, probe: &Probe) -> bool {
        match probe {
            Probe::At(key) => {
                self.low.is_none_or(|low| low <= *key) && self.high.is_none_or(|high| *key < high)
            }
            Probe::Before(bound) => {
                self.low.is_none_or(|low| low < *bound) && self.high.is_none_or(|high| *bound <= high)
            }
        }
    }

    /// Cuts the range: keeps what is below `at` and gives the rest.
    pub(crate) fn split_off(&mut self, at: Key) -> Range {
        let rest = Range { low: Some(at), high: self.high };
        self.high = Some(at);
        rest
    }
}

impl From<Bounds> for Range {
    fn from(bounds: Bounds) -> Range {
        Range { low: bounds.low, high: bounds.high }
    }
}

impl From<Range> for Bounds {
    fn from(range: Range) -> Bounds {
        Bounds { low: range.low, high: range.high }
    }
}

/// A child pointer.
#[derive(Clone)]
pub(crate) enum Child {
    Resident(Arc<Node>),
    OnDisk(NodeRef),
}

impl Child {
    pub(crate) fn resident(&self) -> Option<&Arc<Node>> {
        match self {
            Child::Resident(node) => Some(node),
            Child::OnDisk(_) => None,
        }
    }

    pub(crate) fn is(&self, node: &Node) -> bool {
        self.resident().is_some_and(|child| std::ptr::eq(&raw const **child, node))
    }
}

/// Keys and children of an inner node; entry i covers keys from `keys[i]` on, entry 0 also all below.
#[derive(Clone)]
pub(crate) struct Entries {
    pub(crate) range: Range,
    pub(crate) keys: Vec<Key>,
    pub(crate) children: Vec<Child>,
}

impl Entries {
    /// As read from disk; all children are there, too.
    pub(crate) fn of_page(page: &NodePage, range: Range) -> Entries {
        let count = page.count();
        Entries {
            range,
            keys: (0..count).map(|at| page.key(at)).collect(),
            children: (0..count).map(|at| Child::OnDisk(page.child(at))).collect(),
        }
    }

    /// The entry that a descent follows.
    #[inline]
    pub(crate) fn find(&self, probe: &Probe) -> usize {
        self.keys[1..].partition_point(|key| probe.reaches(key))
    }

    /// The range of a child.
    pub(crate) fn range_of(&self, at: usize) -> Range {
        let low = if at == 0 { self.range.low } else { Some(self.keys[at]) };
        Range { low, high: self.keys.get(at + 1).copied().or(self.range.high) }
    }

    /// Bytes on disk.
    pub(crate) fn used_bytes(&self) -> usize {
        self.keys.len() * (SLOT_BYTES + REF_BYTES)
    }

    /// Whether one more child fits.
    pub(crate) fn has_room(&self) -> bool {
        self.keys.len() < CHILDREN_MAX
    }

    /// With a child more, at `at`, whose range begins at `separator`.
    pub(crate) fn insert(&mut self, at: usize, separator: Key, child: Child) {
        self.keys.insert(at, separator);
        self.children.insert(at, child);
        if self.keys[0] >= separator {
            // What a node's first key says is never looked at, so one that was read may be above what it
            // covers.
            self.keys[0] = Key::MIN;
        }
    }

    /// Cuts the entries at `from`: keeps those before and gives the others.
    pub(crate) fn split_off(&mut self, from: usize) -> Entries {
        let (keys, children) = (self.keys.split_off(from), self.children.split_off(from));
        Entries { range: self.range.split_off(keys[0]), keys, children }
    }

    /// With the entries of the right neighbour, whose range begins at `separator`, behind its own.
    pub(crate) fn append(&mut self, separator: Key, right: &Entries) {
        self.keys.push(separator);
        self.keys.extend_from_slice(&right.keys[1..]);
        self.children.extend_from_slice(&right.children);
        self.range.high = right.range.high;
    }
}

/// The body of an inner node.
pub(crate) struct Inner {
    lock: Mutex<()>,
    entries: Published<Entries>,
}

impl Inner {
    pub(crate) fn new(entries: Entries) -> Inner {
        Inner { lock: Mutex::new(()), entries: Published::new(entries) }
    }

    /// The entries as they are now.
    #[inline]
    pub(crate) fn entries<'p>(&'p self, pin: &'p Pin) -> &'p Entries {
        self.entries.read(pin)
    }

    /// Whether these are the node's entries still.
    pub(crate) fn is_current(&self, entries: &Entries) -> bool {
        self.entries.is_current(entries)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }
}

/// An inner node that is part of the tree and whose lock this thread holds: the right to replace its entries.
pub(crate) struct Locked<'p> {
    pub(crate) node: &'p Node,
    inner: &'p Inner,
    pin: &'p Pin,
    _guard: MutexGuard<'p, ()>,
}

impl<'p> Locked<'p> {
    /// Locks an inner node; None if it has left the tree, or is a leaf.
    pub(crate) fn new(node: &'p Node, pin: &'p Pin) -> Option<Locked<'p>> {
        let Body::Inner(inner) = &node.body else { return None };
        let guard = inner.lock();
        (!node.is_gone()).then_some(Locked { node, inner, pin, _guard: guard })
    }

    /// The entries, which nobody else replaces.
    pub(crate) fn entries(&self) -> &'p Entries {
        self.inner.entries(self.pin)
    }

    /// Replaces the entries.
    pub(crate) fn publish(&self, entries: Entries) {
        self.inner.entries.replace(entries, self.pin);
    }
}
