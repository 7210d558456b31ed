//! Nodes in memory.
//!
//! A leaf is a [`NodePage`] under its latch. An inner node has its keys and children in arrays under the structure
//! lock; its page exists only on disk. A node keeps its identity as long as it is resident; its address changes when
//! a checkpoint writes it.
//!
//! Dirtiness is per epoch: `dirty[e % 2] == e` says that the node, or one below it, was changed in epoch e. Only the
//! live epoch and the one before it (frozen, perhaps still being written) matter. The first change in the live epoch
//! to the contents of a node that is dirty in the frozen one and not yet taken by the writer copies them aside into
//! `image`; `captured` tells which epoch's contents were taken last, by either side.
//!
//! Invariants: a node that is dirty in an epoch has only ancestors that are, too (at the freeze). `captured` and
//! `image` of a leaf change under its latch, of an inner node under the structure lock: by the writer shared (there
//! is one writer), by changers whole.

use crate::heat::Heat;
use crate::structure::{Guarded, Held, Whole};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex, RwLock};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef, REF_BYTES, SLOT_BYTES};

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
}

/// Keys and children of an inner node; entry i covers keys from `keys[i]` on, entry 0 also all below.
#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) keys: Vec<Key>,
    pub(crate) children: Vec<Child>,
}

impl Inner {
    /// The entry that a descent follows.
    #[inline]
    pub(crate) fn find(&self, probe: &Probe) -> usize {
        self.keys[1..].partition_point(|key| probe.reaches(key))
    }

    /// Bytes on disk.
    pub(crate) fn used_bytes(&self) -> usize {
        self.keys.len() * (SLOT_BYTES + REF_BYTES)
    }
}

pub(crate) enum Body {
    Leaf(RwLock<NodePage>),
    Inner(Guarded<Inner>),
}

/// Contents of a node as of the freeze.
pub(crate) enum Image {
    Leaf(NodePage),
    Inner(Vec<(Key, FrozenChild)>),
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
            touched: AtomicU64::new(clock),
            disk: Mutex::new(disk),
            image: Mutex::new(None),
            heat: Heat::new(),
            body,
        })
    }

    pub(crate) fn leaf(page: NodePage, clock: u64) -> Arc<Node> {
        Node::new(0, Body::Leaf(RwLock::new(page)), None, clock)
    }

    pub(crate) fn inner(level: u8, inner: Inner, clock: u64) -> Arc<Node> {
        Node::new(level, Body::Inner(Guarded::new(inner)), None, clock)
    }

    /// A node as read from disk; all children are there, too.
    pub(crate) fn loaded(page: NodePage, from: NodeRef, clock: u64) -> Arc<Node> {
        let level = page.level();
        let body = if level == 0 {
            Body::Leaf(RwLock::new(page))
        } else {
            let count = page.count();
            Body::Inner(Guarded::new(Inner {
                keys: (0..count).map(|at| page.key(at)).collect(),
                children: (0..count).map(|at| Child::OnDisk(page.child(at))).collect(),
            }))
        };
        Node::new(level, body, Some(from), clock)
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
    pub(crate) fn save_leaf(&self, page: &NodePage, epoch: u64) {
        if self.must_capture(epoch - 1) {
            *self.image.lock() = Some(Image::Leaf(page.clone()));
            self.captured.store(epoch - 1, Ordering::Release);
        }
    }

    /// Before an inner node changes in `epoch`: saves what the writer still needs.
    pub(crate) fn save_inner(&self, whole: &Whole<'_>, epoch: u64) {
        if self.must_capture(epoch - 1) {
            *self.image.lock() = Some(self.inner_image(whole, epoch - 1));
            self.captured.store(epoch - 1, Ordering::Release);
        }
    }

    /// The writer's side: the node's contents as of the end of epoch `frozen`.
    pub(crate) fn take_image(&self, held: &impl Held, frozen: u64) -> Image {
        let latch = match &self.body {
            Body::Leaf(page) => Some(page.read()),
            Body::Inner(_) => None,
        };
        if self.captured.swap(frozen, Ordering::AcqRel) == frozen
            && let Some(image) = self.image.lock().take()
        {
            return image;
        }
        match latch {
            Some(page) => Image::Leaf(page.clone()),
            None => self.inner_image(held, frozen),
        }
    }

    fn inner_image(&self, held: &impl Held, frozen: u64) -> Image {
        let Body::Inner(inner) = &self.body else { unreachable!("a leaf has no inner image") };
        let inner = inner.get(held);
        let child = |child: &Child| match child {
            Child::Resident(node) if node.is_dirty_in(frozen) => FrozenChild::Dirty(node.clone()),
            Child::Resident(node) => match node.disk() {
                Some(at) => FrozenChild::Written(at),
                None => FrozenChild::Dirty(node.clone()),
            },
            Child::OnDisk(at) => FrozenChild::Written(*at),
        };
        Image::Inner(inner.keys.iter().copied().zip(inner.children.iter().map(child)).collect())
    }
}
