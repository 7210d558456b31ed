//! Nodes of the folio indexes: made once, recycled for ever.
//!
//! Type-stable, as headers are: a look-up that was overtaken may stand in a node that has been recycled, and what it
//! finds there is a valid word all the same (see [`crate::index`]). The byte limit is charged for a node when it is
//! made, not when it is used.
//!
//! Neighbours: [`crate::index`] is the only user.

use crate::budget::Budget;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::ptr::{NonNull, null_mut};

/// log2 of [`FANOUT`].
pub const SHIFT: u32 = 6;
/// Slots of a node.
pub const FANOUT: usize = 1 << SHIFT;

/// A node; its slots are on lines of their own.
#[repr(C, align(64))]
pub struct Node {
    /// Slots that are not empty; kept under the index's mutex.
    pub used: AtomicU32,
    _line: [u8; 60],
    /// Words as [`crate::index`] describes them.
    pub slots: [AtomicPtr<()>; FANOUT],
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
    free: Vec<NonNull<Node>>,
}

// SAFETY: nodes consist of atomics; the lists of pointers to them are under the mutex.
unsafe impl Send for NodeSlab {}
// SAFETY: as above.
unsafe impl Sync for NodeSlab {}

impl NodeSlab {
    /// An empty node.
    pub fn take(&self, budget: &Budget) -> &Node {
        let mut lists = self.lists.lock();
        let node = lists.free.pop().unwrap_or_else(|| {
            budget.charge_over(size_of::<Node>() as u64);
            let node = NonNull::from(Box::leak(Box::new(Node {
                used: AtomicU32::new(0),
                _line: [0; 60],
                slots: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
            })));
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
    pub fn give_back(&self, node: &Node) {
        self.lists.lock().free.push(NonNull::from(node));
    }
}

impl Drop for NodeSlab {
    fn drop(&mut self) {
        for node in self.lists.get_mut().all.drain(..) {
            // SAFETY: made by `Box::leak` above, listed once; with the cache goes everyone who could look at it.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }
}
