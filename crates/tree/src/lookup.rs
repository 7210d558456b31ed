//! Reading the tree.
//!
//! A descent follows child pointers without a lock, latches the leaf, and then looks whether the leaf has
//! what is looked for: whether it is part of the tree still, and responsible for the key. If not, the tree
//! has changed on the way, and the descent starts again; each new start means that somebody else has finished
//! a change. Where a descent meets a node that is not resident it looks whether the node above has what is
//! looked for. If so it lets go of everything, loads the node and starts again; if not it starts again at
//! once.
//!
//! Invariants: a scan copies a leaf's entries under its latch and goes on at the key where that leaf's range
//! ended; so it sees each leaf at one moment, and a key that exists throughout exactly once. Callbacks of
//! scans run without any lock held.

use crate::inner::{Child, Entries};
use crate::load::Missing;
use crate::node::{Body, Leaf, Node, Probe};
use crate::pin::{Pin, pin};
use crate::tree::Tree;
use quire_base::Result;
use quire_base::sync::atomic::{Ordering, fence};
use quire_base::sync::{RwLock, RwLockReadGuard, spin_loop};
use quire_format::key::{Key, VALUE_MAX};
use quire_format::node::NodeRef;
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// An inner node on the way to a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Step<'p> {
    pub(crate) node: &'p Node,
    /// The entries as the descent saw them.
    pub(crate) entries: &'p Entries,
    /// The entry that it took.
    pub(crate) at: usize,
}

impl Step<'_> {
    /// Whether the entry leads to a node still, and both are part of the tree. A node that was stamped before
    /// stays in memory, if so.
    pub(crate) fn leads_to(&self, child: &Node, probe: &Probe) -> bool {
        fence(Ordering::SeqCst);
        let Body::Inner(inner) = &self.node.body else { unreachable!("a path consists of inner nodes") };
        let current = inner.is_current(self.entries) && self.entries.range.covers(probe);
        current && !self.node.is_gone() && !child.is_gone()
    }
}

/// The inner nodes on the way to a leaf, root first.
pub(crate) type Path<'p> = SmallVec<[Step<'p>; 4]>;

/// A leaf, as far as the entries say that a descent went through.
#[derive(Clone, Copy)]
pub(crate) struct Found<'p> {
    pub(crate) node: &'p Node,
    pub(crate) latch: &'p RwLock<Leaf>,
}

impl Found<'_> {
    /// Whether the leaf, whose latch is held, has what is looked for.
    #[inline]
    pub(crate) fn has(&self, leaf: &Leaf, probe: &Probe) -> bool {
        leaf.range.covers(probe) && !self.node.is_gone()
    }
}

/// Where a descent ends.
pub(crate) enum End<'p> {
    Leaf(Found<'p>),
    /// Above a node that is not resident.
    OnDisk(NodeRef),
    /// At an inner node that a split has cut since its parent was read. What it would lead to is another
    /// key's node.
    Moved,
}

/// One descent, and the inner nodes that it went through.
#[inline]
pub(crate) fn descend_from<'p>(
    root: &'p Node,
    pin: &'p Pin,
    probe: &Probe,
    clock: u64,
) -> (Path<'p>, End<'p>) {
    let mut path = Path::new();
    let mut node = root;
    loop {
        node.touch(clock);
        match &node.body {
            Body::Leaf(latch) => return (path, End::Leaf(Found { node, latch })),
            Body::Inner(inner) => {
                let entries = inner.entries(pin);
                let at = entries.find(probe);
                path.push(Step { node, entries, at });
                match &entries.children[at] {
                    Child::Resident(child) => node = child,
                    Child::OnDisk(at) if entries.range.covers(probe) => {
                        return (path, End::OnDisk(*at));
                    }
                    Child::OnDisk(_) => return (path, End::Moved),
                }
            }
        }
    }
}

impl Tree {
    /// The leaf of a probe, without a path: the fast way of reading. None where a node on the way is not
    /// resident.
    #[inline]
    fn find<'p>(&'p self, pin: &'p Pin, probe: &Probe) -> Option<Found<'p>> {
        let clock = self.tickets.clock();
        let mut node: &Node = self.root(probe).node.read(pin);
        loop {
            node.touch(clock);
            match &node.body {
                Body::Leaf(latch) => return Some(Found { node, latch }),
                Body::Inner(inner) => {
                    let entries = inner.entries(pin);
                    node = entries.children[entries.find(probe)].resident()?;
                }
            }
        }
    }

    /// The leaf of a probe and the path to it.
    pub(crate) fn descend<'p>(
        &'p self,
        pin: &'p Pin,
        probe: &Probe,
    ) -> Result<(Path<'p>, Found<'p>), Missing> {
        let clock = self.tickets.clock();
        loop {
            match descend_from(self.root(probe).node.read(pin), pin, probe, clock) {
                (path, End::Leaf(found)) => return Ok((path, found)),
                (_, End::OnDisk(at)) => return Err(Missing { at, probe: *probe }),
                (_, End::Moved) => self.overtaken(),
            }
        }
    }

    /// A descent has ended at a node that lost what is looked for: before it starts again.
    #[cold]
    pub(crate) fn overtaken(&self) {
        self.counters.restarts.add(1);
        spin_loop();
    }

    /// The leaf of a key, latched. None where a node on the way is not resident.
    #[inline]
    fn read_leaf<'p>(&'p self, pin: &'p Pin, key: &Key) -> Option<RwLockReadGuard<'p, Leaf>> {
        let probe = Probe::At(*key);
        loop {
            let found = self.find(pin, &probe)?;
            let leaf = found.latch.read();
            if found.has(&leaf, &probe) {
                return Some(leaf);
            }
            drop(leaf);
            self.overtaken();
        }
    }

    /// Sees to it that the leaf of a key, which must be resident, stays so while the caller's ticket lives,
    /// whatever becomes of it.
    ///
    /// The descent stamps the leaf. What counts is the leaf that has the key behind the fence: an eviction
    /// that has not seen the stamp has taken the leaf out before that, and a split or merge that is published
    /// after it stamps the nodes that take keys over, with the clock as it is then.
    pub(crate) fn hold(&self, key: &Key) -> Result<(), Missing> {
        let pin = pin();
        let probe = Probe::At(*key);
        loop {
            let (path, found) = self.descend(&pin, &probe)?;
            let stays = match path.last() {
                Some(step) => step.leads_to(found.node, &probe),
                // The root is never evicted. It may have got a parent since.
                None => {
                    fence(Ordering::SeqCst);
                    std::ptr::eq(&raw const **self.root(&probe).node.read(&pin), found.node)
                }
            };
            if stays {
                return Ok(());
            }
            self.overtaken();
        }
    }

    /// Gives `read` the value of a key, if there is one. `read` runs under the leaf's latch: it must not use
    /// the tree.
    ///
    /// Errors: of reading a node (`Corrupt`, `Io`); the same for all functions here.
    pub fn get_with<R>(&self, key: Key, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut ticket = None;
        loop {
            {
                let pin = pin();
                if let Some(leaf) = self.read_leaf(&pin, &key) {
                    let page = &leaf.page;
                    return Ok(page.search(&key).ok().map(|at| read(page.value(at))));
                }
            }
            let ticket = ticket.get_or_insert_with(|| self.ticket());
            self.prepare(ticket, &[key])?;
        }
    }

    /// A copy of a key's value.
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `visit` with each key from `from` to `to`, both inclusive, ascending, until it breaks. It runs
    /// without a lock held and may use the tree.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut items = Items::default();
        let mut next = from;
        while next <= to {
            let behind = self.with_leaf(&Probe::At(next), |leaf| {
                items.clear();
                let page = &leaf.page;
                let first = page.search(&next).unwrap_or_else(|at| at);
                for at in first..page.count() {
                    let key = page.key(at);
                    if key > to {
                        break;
                    }
                    items.push(key, page.value(at));
                }
                leaf.range.high
            })?;
            for (key, value) in items.iter() {
                if visit(key, value).is_break() {
                    return Ok(());
                }
            }
            match behind {
                Some(behind) => next = behind,
                None => break,
            }
        }
        Ok(())
    }

    /// About how many nodes the keys from `from` to `to` lie in, both inclusive: leaves, and the nodes above
    /// them. Loads a leaf below each of the lowest inner nodes. Changes of others meanwhile may be missed.
    pub fn nodes_between(&self, from: Key, to: Key) -> Result<u64> {
        let mut nodes = self.levels() as u64;
        let mut next = Some(from);
        while let Some(key) = next.filter(|key| *key <= to) {
            let (leaves, behind) = self.leaves_beside(key, to)?;
            // With the nodes that lie higher there are at most twice as many inner ones.
            nodes += leaves + 2;
            next = behind;
        }
        Ok(nodes)
    }

    /// The leaves of one lowest inner node from that of a key on, as far as they begin at `to` or before; and
    /// where the next inner node begins.
    fn leaves_beside(&self, from: Key, to: Key) -> Result<(u64, Option<Key>)> {
        let probe = Probe::At(from);
        self.at_leaf(&probe, |path, found| {
            let Some(step) = path.last() else { return Some((1, None)) };
            let last = step.entries.find(&Probe::At(to));
            let beside = ((last + 1 - step.at) as u64, step.entries.range.high);
            step.leads_to(found.node, &probe).then_some(beside)
        })
    }

    /// The highest key that is at most `key` and at least `floor`, with its value.
    pub fn last_at_or_before(&self, key: Key, floor: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut probe = Probe::At(key);
        if key < floor {
            return Ok(None);
        }
        loop {
            let (found, low) = self.with_leaf(&probe, |leaf| {
                let page = &leaf.page;
                // All entries of a leaf that `Before` leads to are below the bound, unless one was just put
                // there.
                let end = match &probe {
                    Probe::At(key) => page.search(key).map_or_else(|at| at, |at| at + 1),
                    Probe::Before(bound) => page.search(bound).unwrap_or_else(|at| at),
                };
                let last = end.checked_sub(1).map(|at| (page.key(at), page.value(at).to_vec()));
                (last, leaf.range.low)
            })?;
            match (found, low) {
                (Some(found), _) => return Ok((found.0 >= floor).then_some(found)),
                (None, Some(low)) if low > floor => probe = Probe::Before(low),
                _ => return Ok(None),
            }
        }
    }

    /// Runs `read` on the leaf of a probe, loading what is missing on the way.
    fn with_leaf<R>(&self, probe: &Probe, mut read: impl FnMut(&Leaf) -> R) -> Result<R> {
        self.at_leaf(probe, |_, found| {
            let leaf = found.latch.read();
            found.has(&leaf, probe).then(|| read(&leaf))
        })
    }

    /// Runs `look` where a descent ends, loading what is missing on the way. `None`: the tree has moved on.
    fn at_leaf<R>(
        &self,
        probe: &Probe,
        mut look: impl FnMut(&Path<'_>, &Found<'_>) -> Option<R>,
    ) -> Result<R> {
        let mut ticket = None;
        loop {
            let missing = {
                let pin = pin();
                match self.descend(&pin, probe) {
                    Ok((path, found)) => match look(&path, &found) {
                        Some(seen) => return Ok(seen),
                        None => None,
                    },
                    Err(missing) => Some(missing),
                }
            };
            match missing {
                Some(missing) => {
                    ticket.get_or_insert_with(|| self.ticket());
                    self.load(missing)?;
                }
                None => self.overtaken(),
            }
        }
    }
}

/// Entries copied out of a leaf.
#[derive(Default)]
struct Items {
    entries: Vec<(Key, usize)>,
    bytes: Vec<u8>,
}

impl Items {
    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    fn push(&mut self, key: Key, value: &[u8]) {
        debug_assert!(value.len() <= VALUE_MAX);
        self.bytes.extend_from_slice(value);
        self.entries.push((key, self.bytes.len()));
    }

    fn iter(&self) -> impl Iterator<Item = (Key, &[u8])> {
        let mut start = 0;
        self.entries.iter().map(move |&(key, end)| {
            let value = &self.bytes[start..end];
            start = end;
            (key, value)
        })
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

    /// An operation that is to change many leaves reserves for as many as are counted here.
    #[test]
    fn no_node_is_left_out_of_the_count() {
        let device = Device::new(Arc::new(MemoryBackend::new(8192)));
        let pool = || PoolState::new(&[Run::new(BlockNo(16), 8000)], 1);
        let limits = TreeLimits { cache_nodes: 64, dirty_nodes: 8000 };
        let tree = Tree::create(device.clone(), 1, pool(), limits);
        let key = |n: u64| Key::extent(InodeNo(1 + n / 10_000), n % 10_000);
        let mut nodes = Vec::new();
        for n in (0..30_000).rev() {
            tree.put(key(n), &[1; 16]).unwrap();
            if n % 10_000 == 0 {
                nodes.push(tree.stats().nodes);
            }
        }
        assert!(tree.stats().levels > 2);
        let stamp = CheckpointStamp { checkpoint: 1, incarnation: 1 };
        tree.write_frozen(tree.freeze(Vec::new()), stamp).unwrap();
        assert!(tree.stats().resident_nodes < nodes[2] / 2, "most are on the device");

        let count = |from, to| tree.nodes_between(key(from), key(to)).unwrap();
        let all = tree.stats().nodes;
        assert!((all..all + all / 10).contains(&tree.nodes_between(Key::NAMES, Key::MAX).unwrap()));
        // Those of the file that was put in between.
        let own = nodes[1] - nodes[0];
        let counted = count(10_000, 19_999);
        assert!((own..own + own / 10 + 8).contains(&counted), "{counted} counted, {own} made");
        assert!(count(15_000, 19_999) > own / 2 && count(15_000, 15_000) < 10);
    }
}
