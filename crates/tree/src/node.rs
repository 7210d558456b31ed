//! Nodes in memory.
//!
//! A leaf is a [`NodePage`] with the range of keys that it is responsible for, under its latch. An inner node
//! has its keys and children in arrays that are replaced whole ([`crate::inner`]); its page exists only on
//! disk. A node keeps its identity as long as it is resident; its address changes when a checkpoint writes
//! it.
//!
//! Dirtiness is per epoch: `dirty[e % 2] == e` says that the node, or one below it, was changed in epoch e.
//! Only the live epoch and the one before it (frozen, perhaps still being written) matter. The first change
//! in the live epoch to the contents of a node that is dirty in the frozen one and not yet taken by the
//! writer copies them aside into
//! `image`; `captured` tells which epoch's contents were taken last, by either side.
//!
//! Invariants: a node that is dirty in an epoch has only ancestors that are, too (at the freeze). `captured`
//! and
//! `image` of a leaf change under its latch, of an inner node under its lock. A node that is *gone* has left
//! the tree, merged or evicted, and does not come back; it goes under its latch or lock, and that of its
//! parent, and the parent's entries are replaced before the latch is released.

use crate::heat::Heat;
use crate::inner::{Child, Entries, Inner, Range};
use crate::pin::Pin;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex, RwLock};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};

/// Which leaf a descent looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    /// The leaf that holds a key, or would.
    At(Key),
    /// The leaf of the highest possible key below this one.
    Before(Key),
}

impl Probe {
    /// Whether an entry with this key lies at or before what is looked for.
    #[inline]
    pub(crate) fn reaches(&self, key: &Key) -> bool {
        match self {
            Probe::At(wanted) => key <= wanted,
            Probe::Before(bound) => key < bound,
        }
    }
}

/// What a leaf's latch protects.
pub(crate) struct Leaf {
    pub(crate) page: NodePage,
    pub(crate) range: Range,
}

pub(crate) enum Body {
    Leaf(RwLock<Leaf>),
    Inner(Inner),
}

/// Contents of a node as of the freeze.
pub(crate) enum Image {
    Leaf(NodePage, Range),
    Inner(Vec<(Key, FrozenChild)>, Range),
}

/// A child as of the freeze: one to write first, or where it already is.
pub(crate) enum FrozenChild {
    Dirty(Arc<Node>),
    Written(NodeRef),
}

pub(crate) struct Node {
    pub(crate) level: u8,
    dirty: [AtomicU64; 2],
    captured: AtomicU64,
    /// Whether the node has left the tree.
    gone: AtomicBool,
    /// The cache's clock when the node was last used.
    touched: AtomicU64,
    /// Where the last checkpoint that wrote the node put it.
    disk: Mutex<Option<NodeRef>>,
    image: Mutex<Option<Image>>,
    pub(crate) heat: Heat,
    pub(crate) body: Body,
}

impl Node {
    fn new(level: u8, body: Body, disk: Option<NodeRef>, clock: u64) -> Arc<Node> {
        Arc::new(Node {
            level,
            dirty: [AtomicU64::new(0), AtomicU64::new(0)],
            captured: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            touched: AtomicU64::new(clock),
            disk: Mutex::new(disk),
            image: Mutex::new(None),
            heat: Heat::new(),
            body,
        })
    }

    pub(crate) fn leaf(page: NodePage, range: Range, clock: u64) -> Arc<Node> {
        Node::new(0, Body::Leaf(RwLock::new(Leaf { page, range })), None, clock)
    }

    pub(crate) fn inner(level: u8, entries: Entries, clock: u64) -> Arc<Node> {
        Node::new(level, Body::Inner(Inner::new(entries)), None, clock)
    }

    /// A node as read from disk.
    pub(crate) fn loaded(page: NodePage, range: Range, from: NodeRef, clock: u64) -> Arc<Node> {
        let level = page.level();
        let body = if level == 0 {
            Body::Leaf(RwLock::new(Leaf { page, range }))
        } else {
            Body::Inner(Inner::new(Entries::of_page(&page, range)))
        };
        Node::new(level, body, Some(from), clock)
    }

    /// Whether the node has left the tree.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Says whether the node has left the tree. The caller holds its latch or lock, and its parent's.
    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::SeqCst);
    }

    pub(crate) fn disk(&self) -> Option<NodeRef> {
        *self.disk.lock()
    }

    /// Notes the new address; gives the one before.
    pub(crate) fn set_disk(&self, to: NodeRef) -> Option<NodeRef> {
        self.disk.lock().replace(to)
    }

    pub(crate) fn is_dirty_in(&self, epoch: u64) -> bool {
        self.dirty[(epoch & 1) as usize].load(Ordering::Acquire) == epoch
    }

    /// True if no epoch behind `written` changed the node.
    pub(crate) fn is_clean(&self, written: u64) -> bool {
        self.dirty.iter().all(|dirty| dirty.load(Ordering::Acquire) <= written)
    }

    /// Marks the node dirty; true if it was not.
    #[inline]
    pub(crate) fn mark(&self, epoch: u64) -> bool {
        let dirty = &self.dirty[(epoch & 1) as usize];
        dirty.load(Ordering::Relaxed) != epoch && dirty.swap(epoch, Ordering::AcqRel) != epoch
    }

    /// Notes that the node is in use, for the eviction.
    #[inline]
    pub(crate) fn touch(&self, clock: u64) {
        if self.touched.load(Ordering::Relaxed) < clock {
            self.touched.fetch_max(clock, Ordering::Relaxed);
        }
    }

    pub(crate) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    fn must_capture(&self, frozen: u64) -> bool {
        self.is_dirty_in(frozen) && self.captured.load(Ordering::Acquire) != frozen
    }

    /// Before a leaf changes in `epoch`, its latch held: saves what the writer still needs.
    #[inline]
    pub(crate) fn save_leaf(&self, leaf: &Leaf, epoch: u64) {
        if self.must_capture(epoch - 1) {
            *self.image.lock() = Some(Image::Leaf(leaf.page.clone(), leaf.range));
            self.captured.store(epoch - 1, Ordering::Release);
        }
    }

    /// Before an inner node changes in `epoch`, its lock held: saves what the writer still needs.
    pub(crate) fn save_inner(&self, entries: &Entries, epoch: u64) {
        if self.must_capture(epoch - 1) {
            *self.image.lock() = Some(inner_image(entries, epoch - 1));
            self.captured.store(epoch - 1, Ordering::Release);
        }
    }

    /// The writer's side: the node's contents as of the end of epoch `frozen`.
    pub(crate) fn take_image(&self, pin: &Pin, frozen: u64) -> Image {
        let taken = || {
            (self.captured.swap(frozen, Ordering::AcqRel) == frozen)
                .then(|| self.image.lock().take())
                .flatten()
        };
        match &self.body {
            Body::Leaf(latch) => {
                let leaf = latch.read();
                taken().unwrap_or_else(|| Image::Leaf(leaf.page.clone(), leaf.range))
            }
            Body::Inner(inner) => {
                let _lock = inner.lock();
                taken().unwrap_or_else(|| inner_image(inner.entries(pin), frozen))
            }
        }
    }
}

/// Entries as of the freeze of epoch `frozen`, before the live epoch has changed them.
fn inner_image(entries: &Entries, frozen: u64) -> Image {
    let child = |child: &Child| match child {
        Child::Resident(node) if node.is_dirty_in(frozen) => FrozenChild::Dirty(node.clone()),
        Child::Resident(node) => match node.disk() {
            Some(at) => FrozenChild::Written(at),
            None => FrozenChild::Dirty(node.clone()),
        },
        Child::OnDisk(at) => FrozenChild::Written(*at),
    };
    let children = entries.keys.iter().copied().zip(entries.children.iter().map(child)).collect();
    Image::Inner(children, entries.range)
}
