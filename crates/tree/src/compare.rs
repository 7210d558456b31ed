//! Comparing two trees of names of one volume, as checkpoints wrote them.
//!
//! Both trees are walked in the order of keys. Where both have a reference to the same node next, that node
//! is not read: what is below it is in both. So a comparison reads about as many nodes as have changed. It
//! looks at references alone: when a node was written would not tell of keys that are no more.
//!
//! Invariants: only nodes on disk are read, one path of each tree at a time, and nothing is kept. Both
//! checkpoints must stay as they are meanwhile.
//!
//! Neighbours: the library's sending of snapshots; `walk` shows one tree.

use crate::copies::Look;
use crate::load::read_node;
use quire_base::{Error, Result};
use quire_device::Device;
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};
use std::cmp::Ordering;

/// What a comparison calls with a key that differs, and its value in the older and in the newer tree.
pub type Visit<'f> = dyn FnMut(Key, Option<&[u8]>, Option<&[u8]>) -> Result<()> + 'f;

/// Calls `visit` with each key whose values differ, ascending. Without an older tree that is each key of the
/// newer one.
///
/// Errors: those of `visit`; `Corrupt` or `Io` of a node that cannot be read.
pub fn compare(
    device: &Device,
    volume: u64,
    older: Option<NodeRef>,
    newer: NodeRef,
    visit: &mut Visit<'_>,
) -> Result<()> {
    let mut older = Walk::new(device, volume, older);
    let mut newer = Walk::new(device, volume, Some(newer));
    loop {
        match (older.next(), newer.next()) {
            (None, None) => return Ok(()),
            (Some(Next::Node(old, _)), Some(Next::Node(new, _))) if old == new => {
                older.skip();
                newer.skip();
            }
            (Some(Next::Node(old, from)), Some(Next::Node(new, to))) => {
                // The lower keys first; of two nodes that begin alike, the one that may lead to the other.
                match from.cmp(&to).then(new.level.cmp(&old.level)) {
                    Ordering::Less => older.enter(&old)?,
                    Ordering::Greater => newer.enter(&new)?,
                    Ordering::Equal => {
                        older.enter(&old)?;
                        newer.enter(&new)?;
                    }
                }
            }
            // An entry below a node's keys comes first; else the node may have it.
            (Some(Next::Node(old, from)), entry)
                if entry.as_ref().is_none_or(|entry| entry.low() >= from) =>
            {
                older.enter(&old)?;
            }
            (entry, Some(Next::Node(new, to))) if entry.as_ref().is_none_or(|entry| entry.low() >= to) => {
                newer.enter(&new)?;
            }
            (Some(Next::Entry(old)), Some(Next::Entry(new))) => match old.cmp(&new) {
                Ordering::Less => {
                    visit(old, Some(older.value()), None)?;
                    older.skip();
                }
                Ordering::Greater => {
                    visit(new, None, Some(newer.value()))?;
                    newer.skip();
                }
                Ordering::Equal => {
                    if older.value() != newer.value() {
                        visit(old, Some(older.value()), Some(newer.value()))?;
                    }
                    older.skip();
                    newer.skip();
                }
            },
            (Some(Next::Entry(old)), _) => {
                visit(old, Some(older.value()), None)?;
                older.skip();
            }
            (_, Some(Next::Entry(new))) => {
                visit(new, None, Some(newer.value()))?;
                newer.skip();
            }
            (Some(Next::Node(..)), _) | (_, Some(Next::Node(..))) => {
                unreachable!("a node is entered, or what is below its keys comes first")
            }
        }
    }
}

/// What a walk comes to next.
enum Next {
    /// A node, and a key that none below it is less than.
    Node(NodeRef, Key),
    Entry(Key),
}

impl Next {
    fn low(&self) -> Key {
        match self {
            Next::Node(_, low) => *low,
            Next::Entry(key) => *key,
        }
    }
}

/// A place in a tree.
struct Walk<'d> {
    device: &'d Device,
    volume: u64,
    /// The root, before it is entered.
    root: Option<NodeRef>,
    path: Vec<Frame>,
}

struct Frame {
    page: NodePage,
    at: usize,
    /// Where the node's keys begin.
    low: Key,
}

impl<'d> Walk<'d> {
    fn new(device: &'d Device, volume: u64, root: Option<NodeRef>) -> Walk<'d> {
        Walk { device, volume, root, path: Vec::new() }
    }

    fn next(&self) -> Option<Next> {
        if let Some(root) = self.root {
            return Some(Next::Node(root, Key::NAMES));
        }
        let Frame { page, at, low } = self.path.last()?;
        Some(match page.level() {
            0 => Next::Entry(page.key(*at)),
            // The key of the first entry says nothing: it covers all that is below the second one.
            _ => Next::Node(page.child(*at), if *at == 0 { *low } else { page.key(*at) }),
        })
    }

    /// The value of the entry that is next.
    fn value(&self) -> &[u8] {
        let Frame { page, at, .. } = self.path.last().expect("there is an entry");
        page.value(*at)
    }

    /// Goes past what is next.
    fn skip(&mut self) {
        if self.root.take().is_some() {
            return;
        }
        while let Some(frame) = self.path.last_mut() {
            frame.at += 1;
            if frame.at < frame.page.count() {
                return;
            }
            self.path.pop();
        }
    }

    /// Goes into the node that is next.
    fn enter(&mut self, node: &NodeRef) -> Result<()> {
        let low = self.next().expect("there is a node").low();
        let (page, _) = read_node(self.device, self.volume, node, Look::UntilGood)?;
        if page.count() == 0 {
            self.skip();
            return Ok(());
        }
        if let Some(Frame { page: parent, .. }) = self.path.last()
            && parent.level() != page.level() + 1
        {
            return Err(Error::corrupt(format!("tree node at block {}: it has another level", node.block)));
        }
        // The parent's frame stays at the entry: leaving the node goes on behind it.
        self.root = None;
        self.path.push(Frame { page, at: 0, low });
        Ok(())
    }
}
