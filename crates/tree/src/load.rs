//! Bringing nodes into memory.
//!
//! Protocol: a descent stops at a child that is on disk and reports it. The node is read without any lock,
//! checked against the reference, and attached under its parent's lock if the parent still names the same
//! reference, and if its keys lie within the range that the parent gives it. If the reference has changed
//! meanwhile, what was read (or the failure to read it: its block may already hold something else) means
//! nothing and the descent starts again.
//!
//! Invariants: a block that the live tree names holds that node until the tree names another, so a failure
//! under an unchanged reference is damage. An attached node is stamped with the clock: a thread that loads
//! under a ticket keeps it.

use crate::copies::{Look, read_copies};
use crate::inner::{Child, Locked, Range};
use crate::node::{Body, Node, Probe};
use crate::pin::pin;
use crate::ticket::Ticket;
use crate::tree::Tree;
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Context, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};
use quire_format::place::NO_TWIN;

/// A child that a descent needs and that is not resident.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) at: NodeRef,
    /// What the descent looks for.
    pub(crate) probe: Probe,
}

/// Reads and checks one node; says as well whether a copy is bad.
pub(crate) fn read_node(device: &Device, volume: u64, at: &NodeRef, look: Look) -> Result<(NodePage, bool)> {
    read_copies(device, at.place(), look, &mut |bytes| NodePage::decode(bytes, volume, at))
        .context(format_args!("tree node at block {}", at.block))
}

/// Nodes read at once by [`Tree::prepare`].
const BATCH_NODES: usize = 64;

impl Tree {
    /// Loads every leaf that these keys live in or would go to, level by level in batches. They stay in
    /// memory while the ticket lives.
    ///
    /// Errors: of reading (`Corrupt`, `Io`).
    pub fn prepare(&self, _ticket: &Ticket<'_>, keys: &[Key]) -> Result<()> {
        let mut waiting: Vec<Key> = Vec::new();
        let mut missing: Vec<Missing> = Vec::new();
        let mut look = |keys: &mut dyn Iterator<Item = Key>, waiting: &mut Vec<Key>| {
            missing.clear();
            for key in keys {
                if let Err(found) = self.hold(&key) {
                    waiting.push(key);
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
        let mut buffer = AlignedBuf::try_zeroed(batch.len() * BLOCK_SIZE)?;
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
            let page = match page {
                Err(_) if missing.at.twin != NO_TWIN => {
                    read_node(&self.device, self.volume, &missing.at, Look::UntilGood)
                }
                page => page.map(|page| (page, false)),
            };
            match page {
                Ok((page, damaged)) => {
                    self.attach(missing, page).map_err(|error| self.unreadable(error))?;
                    if damaged {
                        self.note_damaged(*missing);
                    }
                }
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
    ///
    /// Errors: `Corrupt` if its keys do not belong there.
    fn attach(&self, missing: &Missing, page: NodePage) -> Result<()> {
        let pin = pin();
        let mut node: &Node = self.root(&missing.probe).node.read(&pin);
        // Down to the parent as far as can be seen; its lock shows whether it is.
        let parent = loop {
            let Body::Inner(inner) = &node.body else { return Ok(()) };
            let entries = inner.entries(&pin);
            match &entries.children[entries.find(&missing.probe)] {
                Child::Resident(child) => node = child,
                Child::OnDisk(named) if *named == missing.at => break node,
                Child::OnDisk(_) => return Ok(()),
            }
        };
        let Some(parent) = Locked::new(parent, &pin) else { return Ok(()) };
        let entries = parent.entries();
        let at = entries.find(&missing.probe);
        if !matches!(&entries.children[at], Child::OnDisk(named) if *named == missing.at) {
            return Ok(());
        }
        let range = entries.range_of(at);
        check_bounds(&page, &range, missing)?;
        let mut entries = entries.clone();
        // The clock as it is now: eviction may have gone round since.
        let node = Node::loaded(page, range, missing.at, self.tickets.clock());
        entries.children[at] = Child::Resident(node);
        parent.publish(entries);
        self.resident.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a descent still ends at this reference.
    fn still_named(&self, missing: &Missing) -> bool {
        self.descend(&pin(), &missing.probe).is_err_and(|now| now.at == missing.at)
    }
}

/// A node's keys lie within its range (entry 0 of an inner node covers what is below it, its own key does not
/// count).
pub(crate) fn check_bounds(page: &NodePage, range: &Range, missing: &Missing) -> Result<()> {
    let count = page.count();
    let first = usize::from(page.level() > 0);
    if count > first {
        let low =
            range.low.is_some_and(|low| page.key(first) < low || (first == 1 && page.key(first) == low));
        let high = range.high.is_some_and(|high| page.key(count - 1) >= high);
        if low || high {
            return Err(Error::corrupt(format!(
                "tree node at block {}: it has keys outside of its parent's bounds",
                missing.at.block
            )));
        }
    }
    Ok(())
}
