//! Nodes of the folio indexes: made once, recycled for ever.
//!
//! Type-stable, as headers are: a look-up that was overtaken may stand in a node that has been recycled, and
//! what it finds there is a valid word all the same (see [`crate::index`]). The byte limit is charged for a
//! node when it is made, not when it is used.
//!
//! Neighbours: [`crate::index`] is the only user.

use crate::budget::Budget;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::ptr::{NonNull, null_mut};

/// Slots of the nodes of a level: those of the second are few, so that a folio of 512 blocks has one slot.
pub const fn slots_of(level: usize) -> usize {
    if level == 1 { SLOTS_FEW } else { SLOTS_MANY }
}

const SLOTS_FEW: usize = 8;
const SLOTS_MANY: usize = 64;
/// From this level on a node keeps, behind the slots, where the data of each slot's folio is.
const HINTS_FROM: usize = 2;

/// Words of a node.
const fn words_of(level: usize) -> usize {
    if level < HINTS_FROM { slots_of(level) } else { 2 * slots_of(level) }
}

/// A node; its slots are on lines of their own.
#[repr(C, align(64))]
pub struct NodeOf<S: ?Sized> {
    /// Slots that are not empty; kept under the index's mutex.
    pub used: AtomicU32,
    _line: [u8; 60],
    /// Slots as [`crate::index`] describes them, then hints.
    pub words: S,
}

/// A node of any level.
pub type Node = NodeOf<[AtomicPtr<()>]>;

impl Node {
    fn boxed<const N: usize>() -> Box<Node> {
        Box::new(NodeOf {
            used: AtomicU32::new(0),
            _line: [0; 60],
            words: std::array::from_fn::<AtomicPtr<()>, N, _>(|_| AtomicPtr::new(null_mut())),
        })
    }

    fn of_level(level: usize) -> Box<Node> {
        match level {
            0 => Node::boxed::<{ words_of(0) }>(),
            1 => Node::boxed::<{ words_of(1) }>(),
            _ => Node::boxed::<{ words_of(HINTS_FROM) }>(),
        }
    }

    /// Where the data of a slot's folio is, if the level keeps that: good for asking for it early, for
    /// nothing else.
    pub fn hint(&self, slot: usize) -> Option<&AtomicPtr<()>> {
        self.words.get(SLOTS_MANY + slot)
    }

    /// The node at an address.
    ///
    /// # Safety
    /// A node of this level is there, of a slab that lives as long as `'a`.
    pub unsafe fn at<'a>(address: NonNull<()>, level: usize) -> &'a Node {
        let slots = address.as_ptr().cast::<AtomicPtr<()>>();
        let node = std::ptr::slice_from_raw_parts(slots, words_of(level)) as *const Node;
        // SAFETY: the caller vouches for the address; nodes are changed through atomics only.
        unsafe { &*node }
    }
}

/// All nodes of a cache.
#[derive(Default)]
pub struct NodeSlab {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// Owns every node.
    all: Vec<NonNull<Node>>,
    /// By level, the last for all above.
    free: [Vec<NonNull<Node>>; HINTS_FROM + 1],
}

// SAFETY: nodes consist of atomics; the lists of pointers to them are under the mutex.
unsafe impl Send for NodeSlab {}
// SAFETY: as above.
unsafe impl Sync for NodeSlab {}

impl NodeSlab {
    /// An empty node of a level.
    pub fn take(&self, level: usize, budget: &Budget) -> &Node {
        let mut lists = self.lists.lock();
        let node = lists.free[level.min(HINTS_FROM)].pop().unwrap_or_else(|| {
            let node = Node::of_level(level);
            budget.charge_fixed(size_of_val(&*node) as u64);
            let node = NonNull::from(Box::leak(node));
            lists.all.push(node);
            node
        });
        drop(lists);
        // SAFETY: nodes are freed only with the slab, which the caller borrows.
        let node = unsafe { node.as_ref() };
        debug_assert!(node.used.load(Ordering::Relaxed) == 0);
        node
    }

    /// Takes back a node that is linked nowhere and empty.
    pub fn give_back(&self, node: &Node, level: usize) {
        self.lists.lock().free[level.min(HINTS_FROM)].push(NonNull::from(node));
    }
}

impl Drop for NodeSlab {
    fn drop(&mut self) {
        for node in self.lists.get_mut().all.drain(..) {
            // SAFETY: made by `Box::leak` above, listed once; with the cache goes everyone who could look at
            // it.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }
}
