//! Changing the tree's shape: splits, merges, a root that grows and shrinks.
//!
//! A split halves a node; where the new entry is behind all others it goes to a node of its own, so that
//! ascending keys leave full nodes behind. A node under a quarter is merged with a neighbour under the same
//! parent if that is resident and both fill at most four fifths of one; so a deletion never does I/O. What
//! cannot be merged stays, down to an empty leaf. Leaves that were halved since threads fought over them
//! ([`crate::heat`]) are not merged soon.
//!
//! Protocol: a thread locks the inner nodes that it may have to replace, from the highest down: for a split
//! the lowest one that has room for one more child and the full ones below it, for a merge the parent. Under
//! each lock it looks whether what its descent saw holds still; if not, it starts again. Then it latches the
//! leaves, changes them, publishes the inner nodes, those above first, and unlatches. So a descent that
//! arrives at a leaf and is told to start again finds the change above.
//!
//! Invariants: every node that changes is marked in the live epoch, and what a frozen epoch still needs is
//! saved first. A removed node keeps its contents: the writer may still need them. A node that takes over
//! keys is stamped as used after that is published, so that what a ticket holds in memory stays reachable
//! without I/O.

use crate::change::{Edit, Editor, MERGED_BYTES_MAX, SPARSE_BYTES, apply, has_room};
use crate::inner::{Child, Entries, Locked, Range};
use crate::load::Missing;
use crate::lookup::{Found, Path};
use crate::node::{Body, Leaf, Node, Probe};
use crate::pin::{Pin, pin};
use crate::tree::{Root, Tree};
use quire_base::Result;
use quire_base::sync::atomic::{Ordering, fence};
use quire_base::sync::{Arc, MutexGuard};
use quire_format::key::Key;
use quire_format::node::{BODY_BYTES, CHILDREN_MAX, NodePage, SLOT_BYTES, TREE_BOUNDS};

/// What a split may replace, locked.
struct Chain<'p> {
    /// Held if all inner nodes are full, so that the root may get a parent.
    _root: Option<MutexGuard<'p, ()>>,
    /// Inner nodes, the highest first, with the entry that leads to the next or to the leaf.
    inner: Vec<(Locked<'p>, usize)>,
}

impl Tree {
    /// An edit that did not fit its leaf: done again under the locks that a split needs, with one if it still
    /// does not.
    pub(crate) fn split_and_edit<'v>(
        &self,
        key: Key,
        editor: &mut Editor<'_, 'v>,
    ) -> Result<std::result::Result<bool, Missing>> {
        let pin = pin();
        let (path, found, chain) = match self.lock_for_split(&pin, key) {
            Ok(locked) => locked,
            Err(missing) => return Ok(Err(missing)),
        };
        let epoch = self.live_epoch();
        let mut leaf = found.latch.write();
        let page = &leaf.page;
        let at = page.search(&key);
        let edit = editor(at.ok().map(|at| page.value(at)))?;
        if matches!((&edit, at), (Edit::Keep, _) | (Edit::Remove, Err(_))) {
            return Ok(Ok(at.is_ok()));
        }
        self.mark_path(&path, &found, &leaf, epoch);
        let page = &mut leaf.page;
        match &edit {
            Edit::Set(value) if !has_room(page, at, value.len()) => {
                let (separator, right) = split_leaf(page, key, at, value);
                let range = leaf.range.split_off(separator);
                let right = Node::leaf(right, range, self.tickets.clock());
                self.insert_child(&pin, chain, separator, right, epoch);
            }
            _ => apply(page, key, at, &edit),
        }
        Ok(Ok(at.is_ok()))
    }

    /// Halves the leaf of a key, if it is hot still.
    pub(crate) fn halve(&self, key: Key) {
        let pin = pin();
        let Ok((path, found, chain)) = self.lock_for_split(&pin, key) else { return };
        let epoch = self.live_epoch();
        let mut leaf = found.latch.write();
        let heat = &found.node.heat;
        if leaf.page.count() < 2 {
            // The others have gone. Halving a leaf does not help threads that fight over a single entry.
            heat.cool();
        }
        if !heat.is_hot() {
            return;
        }
        self.mark_path(&path, &found, &leaf, epoch);
        let half = leaf.page.count() / 2;
        let right = leaf.page.split_off(half);
        let separator = right.key(0);
        let range = leaf.range.split_off(separator);
        let right = Node::leaf(right, range, self.tickets.clock());
        heat.halve(epoch);
        right.heat.halve(epoch);
        self.counters.halvings.add(1);
        self.insert_child(&pin, chain, separator, right, epoch);
    }

    /// Before a leaf changes: marks it and the nodes above, and saves what a frozen epoch still needs of it.
    fn mark_path(&self, path: &Path<'_>, found: &Found<'_>, leaf: &Leaf, epoch: u64) {
        for step in path.iter() {
            self.mark(step.node, epoch);
        }
        found.node.save_leaf(leaf, epoch);
        self.mark(found.node, epoch);
    }

    /// Finds the leaf of a key, and locks what its split may replace. While that is held the leaf stays where
    /// it is.
    fn lock_for_split<'p>(
        &'p self,
        pin: &'p Pin,
        key: Key,
    ) -> Result<(Path<'p>, Found<'p>, Chain<'p>), Missing> {
        let probe = Probe::At(key);
        loop {
            let (path, found) = self.descend(pin, &probe)?;
            if let Some(chain) = self.lock_chain(pin, &path, &found, &probe) {
                return Ok((path, found, chain));
            }
            self.overtaken();
        }
    }

    /// Locks the lowest inner node of a path that has room and what is below it; None if the tree has
    /// changed.
    fn lock_chain<'p>(
        &'p self,
        pin: &'p Pin,
        path: &Path<'p>,
        found: &Found<'p>,
        probe: &Probe,
    ) -> Option<Chain<'p>> {
        let roomy = path.iter().rposition(|step| step.entries.has_room());
        let node_at = |at: usize| path.get(at).map_or(found.node, |step| step.node);
        let root = match roomy {
            Some(_) => None,
            None => {
                let root = self.root(probe);
                let guard = root.lock.lock();
                if !std::ptr::eq(&raw const **root.node.read(pin), node_at(0)) {
                    return None;
                }
                Some(guard)
            }
        };
        let from = roomy.unwrap_or(0);
        let mut inner = Vec::with_capacity(path.len() - from);
        for at in from..path.len() {
            let locked = Locked::new(node_at(at), pin)?;
            let entries = locked.entries();
            let entry = entries.find(probe);
            let holds = entries.range.covers(probe) && entries.children[entry].is(node_at(at + 1));
            if !holds || (roomy == Some(at) && !entries.has_room()) {
                return None;
            }
            inner.push((locked, entry));
        }
        Some(Chain { _root: root, inner })
    }

    /// Adds `right` behind the child that the chain leads to, whose latch the caller holds, splitting upwards
    /// as far as needed; publishes all that.
    fn insert_child(&self, pin: &Pin, mut chain: Chain<'_>, separator: Key, right: Arc<Node>, epoch: u64) {
        let mut created = Vec::new();
        let mut replaced: Vec<(Locked<'_>, Entries)> = Vec::new();
        let mut rest = Some((separator, right));
        while let Some((separator, right)) = rest.take() {
            self.node_created(&right, epoch);
            self.counters.splits.add(1);
            created.push(right.clone());
            let Some((parent, at)) = chain.inner.pop() else {
                self.grow_root(pin, separator, right, epoch);
                break;
            };
            parent.node.save_inner(parent.entries(), epoch);
            let mut entries = parent.entries().clone();
            entries.insert(at + 1, separator, Child::Resident(right));
            let count = entries.keys.len();
            if count > CHILDREN_MAX {
                let from = if at + 2 == count { count - 2 } else { count / 2 };
                let upper = entries.split_off(from);
                let separator = upper.keys[0];
                rest = Some((separator, Node::inner(parent.node.level, upper, self.tickets.clock())));
            }
            replaced.push((parent, entries));
        }
        let mut locked = Vec::with_capacity(replaced.len());
        while let Some((parent, entries)) = replaced.pop() {
            parent.publish(entries);
            locked.push(parent);
        }
        self.stamp(&created);
    }

    /// Nodes have taken over keys, and that is published: what a ticket holds of these keys must stay. See
    /// [`Tree::hold`].
    fn stamp<'n>(&self, nodes: impl IntoIterator<Item = &'n Arc<Node>>) {
        fence(Ordering::SeqCst);
        let clock = self.tickets.clock();
        nodes.into_iter().for_each(|node| node.touch(clock));
    }

    /// Puts a root above the old one and its new neighbour. The root's lock is held.
    fn grow_root(&self, pin: &Pin, separator: Key, right: Arc<Node>, epoch: u64) {
        let top = self.root(&Probe::At(separator));
        let old = top.node.read(pin).clone();
        let level = old.level + 1;
        let entries = Entries {
            range: range_of_tree(separator),
            keys: vec![Key::MIN, separator],
            children: vec![Child::Resident(old), Child::Resident(right)],
        };
        let root = Node::inner(level, entries, self.tickets.clock());
        self.node_created(&root, epoch);
        top.set(root, pin);
    }

    /// Merges the leaf of a key, and what becomes sparse above it, as far as neighbours are resident.
    pub(crate) fn merge(&self, key: Key) {
        let pin = pin();
        let epoch = self.live_epoch();
        let mut level = 1;
        while self.merge_below(&pin, key, level, epoch) {
            self.counters.merges.add(1);
            level += 1;
        }
        self.shrink_root(&pin, key, epoch);
    }

    /// Merges the child that leads to a key, of the inner node at `level` that does, with a neighbour, if it
    /// is sparse and they fit.
    fn merge_below(&self, pin: &Pin, key: Key, level: u8, epoch: u64) -> bool {
        let probe = Probe::At(key);
        let (path, parent) = loop {
            let Ok((path, _)) = self.descend(pin, &probe) else { return false };
            let Some(step) = path.iter().find(|step| step.node.level == level) else { return false };
            match Locked::new(step.node, pin) {
                Some(parent) if parent.entries().range.covers(&probe) => break (path, parent),
                _ => self.overtaken(),
            }
        };
        let entries = parent.entries();
        let Some((left_at, left, right)) = sparse_pair(entries, entries.find(&probe), pin, epoch) else {
            return false;
        };
        let separator = entries.keys[left_at + 1];
        let mut without = entries.clone();
        without.keys.remove(left_at + 1);
        without.children.remove(left_at + 1);
        let begin = || {
            for step in path.iter().filter(|step| step.node.level >= level) {
                self.mark(step.node, epoch);
            }
            self.mark(left, epoch);
            parent.node.save_inner(entries, epoch);
        };
        match (&left.body, &right.body) {
            (Body::Leaf(left_latch), Body::Leaf(right_latch)) => {
                let (mut left_leaf, right_leaf) = (left_latch.write(), right_latch.write());
                if left_leaf.page.used_bytes() + right_leaf.page.used_bytes() > MERGED_BYTES_MAX {
                    return false;
                }
                begin();
                left.save_leaf(&left_leaf, epoch);
                left_leaf.page.append(&right_leaf.page, 0);
                left_leaf.range.high = right_leaf.range.high;
                right.set_gone(true);
                parent.publish(without);
                self.stamp([left]);
            }
            (Body::Inner(_), Body::Inner(_)) => {
                let (Some(left_locked), Some(right_locked)) =
                    (Locked::new(left, pin), Locked::new(right, pin))
                else {
                    unreachable!("children of a node that is locked do not leave the tree")
                };
                let mut merged = left_locked.entries().clone();
                if merged.used_bytes() + right_locked.entries().used_bytes() > MERGED_BYTES_MAX {
                    return false;
                }
                begin();
                left.save_inner(left_locked.entries(), epoch);
                merged.append(separator, right_locked.entries());
                right.set_gone(true);
                left_locked.publish(merged);
                parent.publish(without);
                self.stamp([left]);
            }
            _ => unreachable!("neighbours are of one level"),
        }
        self.node_removed(right.clone(), epoch);
        true
    }

    /// Lets an only child take the place of the root above a key.
    fn shrink_root(&self, pin: &Pin, key: Key, epoch: u64) {
        let top = self.root(&Probe::At(key));
        let only = |entries: &Entries| match &entries.children[..] {
            [Child::Resident(only)] => Some(only.clone()),
            _ => None,
        };
        loop {
            let Body::Inner(inner) = &top.node.read(pin).body else { return };
            if only(inner.entries(pin)).is_none() {
                return;
            }
            let _guard = top.lock.lock();
            let root = top.node.read(pin);
            let Some(locked) = Locked::new(root, pin) else { return };
            let Some(child) = only(locked.entries()) else { return };
            child.touch(self.tickets.clock());
            root.set_gone(true);
            top.set(child, pin);
            self.node_removed(root.clone(), epoch);
        }
    }

    fn node_created(&self, node: &Node, epoch: u64) {
        self.accounting.node_created();
        self.resident.fetch_add(1, Ordering::Relaxed);
        self.mark(node, epoch);
    }

    fn node_removed(&self, node: Arc<Node>, epoch: u64) {
        self.accounting.node_removed();
        self.resident.fetch_sub(1, Ordering::Relaxed);
        let created_in_this_epoch = node.disk().is_none() && !node.is_dirty_in(epoch - 1);
        if created_in_this_epoch {
            self.accounting.node_unmarked();
        } else {
            // Its block is freed by this epoch's checkpoint: it counts like a node that is written.
            self.mark(&node, epoch);
            self.removed.lock().push(node);
        }
    }
}

impl Root {
    fn set(&self, root: Arc<Node>, pin: &Pin) {
        self.level.store(u64::from(root.level), Ordering::Release);
        self.node.replace(root, pin);
    }
}

/// The keys of the tree that has a key.
fn range_of_tree(key: Key) -> Range {
    TREE_BOUNDS[usize::from(key >= Key::NAMES)].into()
}

/// The child at `at` and the neighbour that it can merge with, left one first with its entry; None if it is
/// not sparse, or no neighbour is resident and has room.
fn sparse_pair<'e>(
    entries: &'e Entries,
    at: usize,
    pin: &Pin,
    epoch: u64,
) -> Option<(usize, &'e Arc<Node>, &'e Arc<Node>)> {
    let resident = |at: usize| entries.children.get(at).and_then(Child::resident);
    let node = resident(at)?;
    let used = used_bytes(node, pin);
    if used >= SPARSE_BYTES || node.heat.stays_apart(epoch) {
        return None;
    }
    let fits = |neighbour: &Arc<Node>| {
        !neighbour.heat.stays_apart(epoch) && used + used_bytes(neighbour, pin) <= MERGED_BYTES_MAX
    };
    if let Some(left_at) = at.checked_sub(1)
        && let Some(left) = resident(left_at).filter(|left| fits(left))
    {
        return Some((left_at, left, node));
    }
    resident(at + 1).filter(|right| fits(right)).map(|right| (at, node, right))
}

fn used_bytes(node: &Node, pin: &Pin) -> usize {
    match &node.body {
        Body::Leaf(latch) => latch.read().page.used_bytes(),
        Body::Inner(inner) => inner.entries(pin).used_bytes(),
    }
}

/// Splits a full leaf so that the key with its value fits; gives the right half and its first key.
fn split_leaf(page: &mut NodePage, key: Key, at: Result<usize, usize>, value: &[u8]) -> (Key, NodePage) {
    let at = match at {
        Ok(at) => {
            page.remove(at);
            at
        }
        Err(at) => at,
    };
    let count = page.count();
    let mut right;
    if at == count {
        right = NodePage::new(0);
        right.insert(0, key, value);
    } else {
        // The first entry, of all with the new one in its place, at which the left half is at least half
        // full.
        let new_bytes = SLOT_BYTES + value.len();
        let half = (page.used_bytes() + new_bytes) / 2;
        let mut left_bytes = 0;
        let mut from = 0;
        let mut new_is_left = false;
        while left_bytes < half && from < count {
            if from == at && !new_is_left {
                left_bytes += new_bytes;
                new_is_left = true;
            } else {
                left_bytes += SLOT_BYTES + page.value(from).len();
                from += 1;
            }
        }
        right = page.split_off(from);
        if new_is_left {
            page.insert(at, key, value);
        } else {
            right.insert(at - from, key, value);
        }
    }
    debug_assert!(page.count() > 0 && right.count() > 0);
    debug_assert!(page.used_bytes() <= BODY_BYTES && right.used_bytes() <= BODY_BYTES);
    (right.key(0), right)
}
