//! Bringing nodes into memory.
//!
//! Protocol: a descent stops at a child that is on disk and reports it with the keys it must lie between. The node is
//! read without any lock, checked against the reference and those bounds, and attached under the whole lock if the
//! parent still names the same reference. If the reference has changed meanwhile, what was read (or the failure to
//! read it: its block may already hold something else) means nothing and the descent starts again.
//!
//! Invariants: a block that the live tree names holds that node until the tree names another, so a failure under an
//! unchanged reference is damage. An attached node is stamped with the clock: whoever loads under a ticket keeps it.

use crate::node::{Body, Child, Node, Probe};
use crate::ticket::Ticket;
use crate::tree::Tree;
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Context, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};

/// A child that a descent needs and that is not resident.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) at: NodeRef,
    /// What the descent looks for.
    pub(crate) probe: Probe,
    /// The child's keys are at or above this.
    pub(crate) low: Option<Key>,
    /// The child's keys are below this.
    pub(crate) high: Option<Key>,
}

/// Reads and checks one node.
pub(crate) fn read_node(device: &Device, volume: u64, at: &NodeRef) -> Result<NodePage> {
    let mut buffer = AlignedBuf::blocks(1);
    device
        .read(IoClass::Metadata, at.block, &mut buffer)
        .context(format!("tree node at block {}", at.block))?;
    NodePage::decode(&buffer, volume, at)
}

/// Nodes read at once by [`Tree::prepare`].
const BATCH_NODES: usize = 64;

impl Tree {
    /// Loads every leaf that these keys live in or would go to, level by level in batches. They stay in memory
    /// while the ticket lives.
    ///
    /// Errors: of reading (`Corrupt`, `Io`).
    pub fn prepare(&self, _ticket: &Ticket<'_>, keys: &[Key]) -> Result<()> {
        let mut waiting: Vec<Key> = Vec::new();
        let mut missing: Vec<Missing> = Vec::new();
        let mut look = |keys: &mut dyn Iterator<Item = Key>, waiting: &mut Vec<Key>| {
            missing.clear();
            for chunk in keys {
                let shared = self.structure.shared();
                if let Err(found) = self.descend(&shared, &Probe::At(chunk), None) {
                    waiting.push(chunk);
                    if !missing.iter().any(|other| other.at == found.at) {
                        missing.push(found);
                    }
                }
            }
            std::mem::take(&mut missing)
        };
        let mut needed = look(&mut keys.iter().copied(), &mut waiting);
        while !needed.is_empty() {
            for batch in needed.chunks(BATCH_NODES) {
                self.load_batch(batch)?;
            }
            let again = std::mem::take(&mut waiting);
            needed = look(&mut again.into_iter(), &mut waiting);
        }
        Ok(())
    }

    /// Reads one node and attaches it. Ok also when the tree has moved on: descend again.
    pub(crate) fn load(&self, missing: Missing) -> Result<()> {
        self.load_batch(&[missing])
    }

    fn load_batch(&self, batch: &[Missing]) -> Result<()> {
        patience::check("tree nodes from the device")?;
        let mut buffer = AlignedBuf::blocks(batch.len());
        let read = {
            let mut items: Vec<_> = batch
                .iter()
                .zip(buffer.chunks_exact_mut(BLOCK_SIZE))
                .map(|(m, bytes)| (m.at.block, bytes))
                .collect();
            items.sort_by_key(|(at, _)| *at);
            self.device.read_batch(IoClass::Metadata, &mut items).context("tree nodes")
        };
        if read.is_err() && batch.len() > 1 {
            // One bad node does not take the others down.
            return batch.iter().try_for_each(|missing| self.load(*missing));
        }
        self.counters.loads.add(batch.len() as u64);
        for (missing, bytes) in batch.iter().zip(buffer.chunks_exact(BLOCK_SIZE)) {
            let page = read.clone().and_then(|()| NodePage::decode(bytes, self.volume, &missing.at));
            match page.and_then(|page| check_bounds(page, missing)) {
                Ok(page) => self.attach(missing, page),
                Err(error) if self.still_named(missing) => return Err(self.unreadable(error)),
                Err(_) => {}
            }
        }
        if self.resident.load(Ordering::Relaxed) > self.limits.cache_nodes {
            self.evict();
        }
        Ok(())
    }

    fn unreadable(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt {
            tracing::error!(%error, "a tree node is damaged");
        }
        error
    }

    /// Puts a node where its parent names it, unless the tree has moved on.
    fn attach(&self, missing: &Missing, page: NodePage) {
        let mut node = Some(Node::loaded(page, missing.at, self.tickets.clock()));
        let mut whole = self.structure.whole();
        let mut parent = self.root.get(&whole).clone();
        loop {
            let next = {
                let Body::Inner(inner) = &parent.body else { return };
                let at = inner.get(&whole).find(&missing.probe);
                match &mut inner.get_mut(&mut whole).children[at] {
                    Child::Resident(child) => child.clone(),
                    slot @ Child::OnDisk(_) => {
                        if matches!(slot, Child::OnDisk(named) if *named == missing.at)
                            && let Some(node) = node.take()
                        {
                            // The clock as it is now: eviction may have gone round since.
                            node.touch(self.tickets.clock());
                            *slot = Child::Resident(node);
                            self.resident.fetch_add(1, Ordering::Relaxed);
                        }
                        return;
                    }
                }
            };
            parent = next;
        }
    }

    /// Whether a descent still ends at this reference.
    fn still_named(&self, missing: &Missing) -> bool {
        let shared = self.structure.shared();
        self.descend(&shared, &missing.probe, None).is_err_and(|now| now.at == missing.at)
    }
}

/// A node's keys lie between its parent's separators (entry 0 of an inner node covers what is below it, its own key
/// does not count).
fn check_bounds(page: NodePage, missing: &Missing) -> Result<NodePage> {
    let count = page.count();
    let first = usize::from(page.level() > 0);
    if count > first {
        let low =
            missing.low.is_some_and(|low| page.key(first) < low || (first == 1 && page.key(first) == low));
        let high = missing.high.is_some_and(|high| page.key(count - 1) >= high);
        if low || high {
            return Err(Error::corrupt(format!(
                "tree node at block {}: it has keys outside of its parent's bounds",
                missing.at.block
            )));
        }
    }
    Ok(page)
}
