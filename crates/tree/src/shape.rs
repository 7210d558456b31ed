//! Changing the tree's shape: splits, merges, a root that grows and shrinks. All under the whole structure lock.
//!
//! A split halves a node; where the new entry is behind all others it goes to a node of its own, so that ascending
//! keys leave full nodes behind. A node under a quarter is merged with a neighbour under the same parent if that is
//! resident and both fill at most four fifths of one; so a deletion never does I/O. What cannot be merged stays,
//! down to an empty leaf. Leaves that were halved since threads fought over them ([`crate::heat`]) are not merged soon.
//!
//! Invariants: every node that changes is marked in the live epoch, and what a frozen epoch still needs is saved
//! first. A removed node keeps its contents: the writer may still need them. Whoever takes over keys is stamped as
//! used, so that what a ticket holds in memory stays reachable without I/O.

use crate::change::{Edit, Editor, MERGED_BYTES_MAX, SPARSE_BYTES, apply, has_room};
use crate::load::Missing;
use crate::node::{Body, Child, Inner, Node, Probe};
use crate::structure::Whole;
use crate::tree::Tree;
use quire_base::Result;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_format::key::Key;
use quire_format::node::{BODY_BYTES, CHILDREN_MAX, NodePage, SLOT_BYTES};

/// Inner nodes from the root down, with the entry taken in each.
type Steps = Vec<(Arc<Node>, usize)>;

impl Tree {
    /// An edit that did not fit its leaf: done again under the whole lock, with a split if it still does not.
    pub(crate) fn split_and_edit<'v>(
        &self,
        key: Key,
        editor: &mut Editor<'_, 'v>,
    ) -> Result<std::result::Result<bool, Missing>> {
        let mut whole = self.structure.whole();
        let (steps, leaf) = match self.steps(&whole, &Probe::At(key)) {
            Ok(found) => found,
            Err(missing) => return Ok(Err(missing)),
        };
        let epoch = self.live_epoch();
        let Body::Leaf(latch) = &leaf.body else { unreachable!("a descent ends at a leaf") };
        let mut page = latch.write();
        let at = page.search(&key);
        let edit = editor(at.ok().map(|at| page.value(at)))?;
        if matches!((&edit, at), (Edit::Keep, _) | (Edit::Remove, Err(_))) {
            return Ok(Ok(at.is_ok()));
        }
        for (node, _) in &steps {
            self.mark(node, epoch);
        }
        leaf.save_leaf(&page, epoch);
        self.mark(&leaf, epoch);
        match &edit {
            Edit::Set(value) if !has_room(&page, at, value.len()) => {
                let (separator, right) = split_leaf(&mut page, key, at, value);
                drop(page);
                let right = Node::leaf(right, self.tickets.clock());
                self.node_created(&right, epoch);
                self.counters.splits.add(1);
                self.insert_child(&mut whole, steps, separator, right, epoch);
            }
            _ => apply(&mut page, key, at, &edit),
        }
        Ok(Ok(at.is_ok()))
    }

    /// Halves the leaf of a key, if it is hot still.
    pub(crate) fn halve(&self, key: Key) {
        let mut whole = self.structure.whole();
        let Ok((steps, leaf)) = self.steps(&whole, &Probe::At(key)) else { return };
        let Body::Leaf(latch) = &leaf.body else { unreachable!("a descent ends at a leaf") };
        let epoch = self.live_epoch();
        let mut page = latch.write();
        if page.count() < 2 {
            // The others have gone. Whoever fights over a single one is not helped.
            leaf.heat.cool();
        }
        if !leaf.heat.is_hot() {
            return;
        }
        for (node, _) in &steps {
            self.mark(node, epoch);
        }
        leaf.save_leaf(&page, epoch);
        self.mark(&leaf, epoch);
        let half = page.count() / 2;
        let right = page.split_off(half);
        drop(page);
        let separator = right.key(0);
        let right = Node::leaf(right, self.tickets.clock());
        leaf.heat.halve(epoch);
        right.heat.halve(epoch);
        self.node_created(&right, epoch);
        self.counters.splits.add(1);
        self.counters.halvings.add(1);
        self.insert_child(&mut whole, steps, separator, right, epoch);
    }

    /// Adds `right` behind the child that was taken in the last of `steps`, splitting upwards as far as needed.
    fn insert_child(
        &self,
        whole: &mut Whole<'_>,
        mut steps: Steps,
        mut separator: Key,
        mut right: Arc<Node>,
        epoch: u64,
    ) {
        while let Some((parent, at)) = steps.pop() {
            parent.save_inner(whole, epoch);
            let Body::Inner(inner) = &parent.body else { unreachable!("a path consists of inner nodes") };
            let inner = inner.get_mut(whole);
            inner.keys.insert(at + 1, separator);
            inner.children.insert(at + 1, Child::Resident(right));
            if inner.keys[0] >= separator {
                // What a node's first key says is never looked at, so one that was read may be above what it covers.
                inner.keys[0] = Key::MIN;
            }
            let count = inner.keys.len();
            if count <= CHILDREN_MAX {
                return;
            }
            let from = if at + 2 == count { count - 2 } else { count / 2 };
            let upper = Inner { keys: inner.keys.split_off(from), children: inner.children.split_off(from) };
            separator = upper.keys[0];
            right = Node::inner(parent.level, upper, self.tickets.clock());
            self.node_created(&right, epoch);
            self.counters.splits.add(1);
        }
        let old = self.root.get(whole).clone();
        let root = Node::inner(
            old.level + 1,
            Inner {
                keys: vec![Key::MIN, separator],
                children: vec![Child::Resident(old), Child::Resident(right)],
            },
            self.tickets.clock(),
        );
        self.node_created(&root, epoch);
        self.set_root(whole, root);
    }

    fn set_root(&self, whole: &mut Whole<'_>, root: Arc<Node>) {
        self.root_level.store(u64::from(root.level), Ordering::Release);
        *self.root.get_mut(whole) = root;
    }

    /// Merges the leaf of a key, and what becomes sparse above it, as far as neighbours are resident.
    pub(crate) fn merge(&self, key: Key) {
        let mut whole = self.structure.whole();
        let Ok((mut steps, _leaf)) = self.steps(&whole, &Probe::At(key)) else { return };
        let epoch = self.live_epoch();
        while let Some((parent, at)) = steps.pop() {
            if !self.merge_child(&mut whole, &steps, &parent, at, epoch) {
                break;
            }
            self.counters.merges.add(1);
        }
        self.shrink_root(&mut whole, epoch);
    }

    /// Merges child `at` of `parent` with a neighbour, if it is sparse and they fit.
    fn merge_child(
        &self,
        whole: &mut Whole<'_>,
        above: &[(Arc<Node>, usize)],
        parent: &Arc<Node>,
        at: usize,
        epoch: u64,
    ) -> bool {
        let Body::Inner(inner) = &parent.body else { return false };
        let children = &inner.get(whole).children;
        let Some(node) = children[at].resident() else { return false };
        let used = used_bytes(node, whole);
        if used >= SPARSE_BYTES || node.heat.stays_apart(epoch) {
            return false;
        }
        let apart = |node: &Node| node.heat.stays_apart(epoch);
        let fits = |neighbour: &usize| {
            let neighbour = children.get(*neighbour).and_then(Child::resident);
            neighbour.is_some_and(|neighbour| {
                !apart(neighbour) && used + used_bytes(neighbour, whole) <= MERGED_BYTES_MAX
            })
        };
        let Some(left_at) = at.checked_sub(1).filter(fits).or_else(|| fits(&(at + 1)).then_some(at)) else {
            return false;
        };
        let pair = (children[left_at].resident().cloned(), children[left_at + 1].resident().cloned());
        let (Some(left), Some(right)) = pair else { return false };

        for (node, _) in above {
            self.mark(node, epoch);
        }
        self.mark(parent, epoch);
        self.mark(&left, epoch);
        left.touch(self.tickets.clock());
        parent.save_inner(whole, epoch);
        let inner = inner.get_mut(whole);
        let separator = inner.keys.remove(left_at + 1);
        inner.children.remove(left_at + 1);
        match (&left.body, &right.body) {
            (Body::Leaf(left_page), Body::Leaf(right_page)) => {
                let mut left_page = left_page.write();
                left.save_leaf(&left_page, epoch);
                left_page.append(&right_page.read(), 0);
            }
            (Body::Inner(left_inner), Body::Inner(right_inner)) => {
                left.save_inner(whole, epoch);
                let right_inner = right_inner.get(whole);
                let (keys, children) = (right_inner.keys.clone(), right_inner.children.clone());
                let left_inner = left_inner.get_mut(whole);
                left_inner.keys.push(separator);
                left_inner.keys.extend_from_slice(&keys[1..]);
                left_inner.children.extend(children);
            }
            _ => unreachable!("neighbours are of one level"),
        }
        self.node_removed(right, epoch);
        true
    }

    /// Lets an only child take the root's place.
    fn shrink_root(&self, whole: &mut Whole<'_>, epoch: u64) {
        loop {
            let root = self.root.get(whole).clone();
            let Body::Inner(inner) = &root.body else { return };
            let children = &inner.get(whole).children;
            let only = if children.len() == 1 { children[0].resident().cloned() } else { None };
            let Some(only) = only else { return };
            only.touch(self.tickets.clock());
            self.set_root(whole, only);
            self.node_removed(root, epoch);
        }
    }

    /// As `descend`, under the whole lock, with nodes that outlive borrows of it.
    pub(crate) fn steps(&self, whole: &Whole<'_>, probe: &Probe) -> Result<(Steps, Arc<Node>), Missing> {
        let clock = self.tickets.clock();
        let (mut low, mut high) = (None, None);
        let mut steps = Steps::new();
        let mut node = self.root.get(whole).clone();
        loop {
            node.touch(clock);
            let Body::Inner(inner) = &node.body else { return Ok((steps, node)) };
            let inner = inner.get(whole);
            let at = inner.find(probe);
            if at > 0 {
                low = Some(inner.keys[at]);
            }
            if let Some(key) = inner.keys.get(at + 1) {
                high = Some(*key);
            }
            let child = match &inner.children[at] {
                Child::Resident(child) => child.clone(),
                Child::OnDisk(at) => return Err(Missing { at: *at, probe: *probe, low, high }),
            };
            steps.push((node, at));
            node = child;
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

fn used_bytes(node: &Node, whole: &Whole<'_>) -> usize {
    match &node.body {
        Body::Leaf(page) => page.read().used_bytes(),
        Body::Inner(inner) => inner.get(whole).used_bytes(),
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
        // The first entry, of all with the new one in its place, at which the left half is at least half full.
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
