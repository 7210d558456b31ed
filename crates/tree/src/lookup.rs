//! Reading the tree.
//!
//! A descent follows child pointers under a shared entry of the structure lock, without a lock in inner nodes, and
//! latches the leaf. Where it meets a node that is not resident it stops, lets go of everything, loads the node and
//! starts again.
//!
//! Invariants: a scan copies a leaf's entries under its latch and goes on at the key where that leaf's range ended;
//! so it sees each leaf at one moment, and a key that exists throughout exactly once. Callbacks of scans run without
//! any lock held.

use crate::load::Missing;
use crate::node::{Body, Node, Probe};
use crate::structure::{Held, Shared};
use crate::tree::Tree;
use quire_base::Result;
use quire_base::sync::RwLock;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::node::NodePage;
use quire_format::superblock::TREE_LEVEL_MAX;
use std::ops::ControlFlow;

/// The nodes on the way to a leaf, root first.
pub(crate) struct Path<'g> {
    nodes: [Option<(&'g Node, usize)>; TREE_LEVEL_MAX as usize + 1],
    len: usize,
}

impl<'g> Path<'g> {
    fn new() -> Path<'g> {
        Path { nodes: [None; TREE_LEVEL_MAX as usize + 1], len: 0 }
    }

    fn push(&mut self, node: &'g Node, entry: usize) {
        self.nodes[self.len] = Some((node, entry));
        self.len += 1;
    }

    /// Inner nodes with the entries taken in them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'g Node, usize)> + '_ {
        self.nodes[..self.len].iter().flatten().copied()
    }

    /// The leaf's parent.
    pub(crate) fn parent(&self) -> Option<(&'g Node, usize)> {
        self.len.checked_sub(1).and_then(|at| self.nodes[at])
    }
}

/// A leaf and the keys it is responsible for.
pub(crate) struct Found<'g> {
    pub(crate) node: &'g Node,
    pub(crate) page: &'g RwLock<NodePage>,
    /// Keys from here on; None: from the lowest.
    pub(crate) low: Option<Key>,
    /// Keys below this; None: up to the highest.
    pub(crate) high: Option<Key>,
}

impl Tree {
    /// The leaf's latch and node; no bounds, no path: the fast way of reading.
    #[inline]
    fn find<'g>(&'g self, shared: &'g Shared<'_>, key: &Key) -> Option<&'g RwLock<NodePage>> {
        let clock = self.tickets.clock();
        let probe = Probe::At(*key);
        let mut node: &Node = self.root.get(shared);
        loop {
            node.touch(clock);
            match &node.body {
                Body::Leaf(page) => return Some(page),
                Body::Inner(inner) => {
                    let inner = inner.get(shared);
                    node = inner.children[inner.find(&probe)].resident()?;
                }
            }
        }
    }

    /// The leaf of a probe, its bounds, and the path to it where one is wanted.
    pub(crate) fn descend<'g>(
        &'g self,
        held: &'g impl Held,
        probe: &Probe,
        mut path: Option<&mut Path<'g>>,
    ) -> Result<Found<'g>, Missing> {
        let clock = self.tickets.clock();
        let (mut low, mut high) = (None, None);
        let mut node: &Node = self.root.get(held);
        loop {
            node.touch(clock);
            match &node.body {
                Body::Leaf(page) => return Ok(Found { node, page, low, high }),
                Body::Inner(inner) => {
                    let inner = inner.get(held);
                    let at = inner.find(probe);
                    if at > 0 {
                        low = Some(inner.keys[at]);
                    }
                    if let Some(key) = inner.keys.get(at + 1) {
                        high = Some(*key);
                    }
                    if let Some(path) = path.as_deref_mut() {
                        path.push(node, at);
                    }
                    match &inner.children[at] {
                        crate::node::Child::Resident(child) => node = child,
                        crate::node::Child::OnDisk(at) => {
                            return Err(Missing { at: *at, probe: *probe, low, high });
                        }
                    }
                }
            }
        }
    }

    /// An empty path for [`Tree::descend`].
    pub(crate) fn path<'g>() -> Path<'g> {
        Path::new()
    }

    /// Gives `read` the value of a key, if there is one. `read` runs under the leaf's latch: it must not use the
    /// tree.
    ///
    /// Errors: of reading a node (`Corrupt`, `Io`); the same for all functions here.
    pub fn get_with<R>(&self, key: Key, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        {
            let shared = self.structure.shared();
            if let Some(page) = self.find(&shared, &key) {
                let page = page.read();
                return Ok(page.search(&key).ok().map(|at| read(page.value(at))));
            }
        }
        let ticket = self.ticket();
        loop {
            self.prepare(&ticket, &[key])?;
            let shared = self.structure.shared();
            if let Some(page) = self.find(&shared, &key) {
                let page = page.read();
                return Ok(page.search(&key).ok().map(|at| read(page.value(at))));
            }
        }
    }

    /// A copy of a key's value.
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `visit` with each key from `from` to `to`, both inclusive, ascending, until it breaks. It runs without
    /// a lock held and may use the tree.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut items = Items::default();
        let mut next = from;
        while next <= to {
            let behind = self.with_leaf(&Probe::At(next), |found| {
                items.clear();
                let page = found.page.read();
                let first = page.search(&next).unwrap_or_else(|at| at);
                for at in first..page.count() {
                    let key = page.key(at);
                    if key > to {
                        break;
                    }
                    items.push(key, page.value(at));
                }
                found.high
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

    /// The highest key that is at most `key` and at least `floor`, with its value.
    pub fn last_at_or_before(&self, key: Key, floor: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut probe = Probe::At(key);
        if key < floor {
            return Ok(None);
        }
        loop {
            let (found, low) = self.with_leaf(&probe, |found| {
                let page = found.page.read();
                // All entries of a leaf that `Before` leads to are below the bound, unless one was just put there.
                let end = match &probe {
                    Probe::At(key) => page.search(key).map_or_else(|at| at, |at| at + 1),
                    Probe::Before(bound) => page.search(bound).unwrap_or_else(|at| at),
                };
                let last = end.checked_sub(1).map(|at| (page.key(at), page.value(at).to_vec()));
                (last, found.low)
            })?;
            match (found, low) {
                (Some(found), _) => return Ok((found.0 >= floor).then_some(found)),
                (None, Some(low)) if low > floor => probe = Probe::Before(low),
                _ => return Ok(None),
            }
        }
    }

    /// Runs `read` on the leaf of a probe, loading what is missing on the way.
    fn with_leaf<R>(&self, probe: &Probe, mut read: impl FnMut(&Found<'_>) -> R) -> Result<R> {
        let mut ticket = None;
        loop {
            let missing = {
                let shared = self.structure.shared();
                match self.descend(&shared, probe, None) {
                    Ok(found) => return Ok(read(&found)),
                    Err(missing) => missing,
                }
            };
            ticket.get_or_insert_with(|| self.ticket());
            self.load(missing)?;
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
