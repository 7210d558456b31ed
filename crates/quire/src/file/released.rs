//! References to inodes that a syncer drops.
//!
//! A completion on a thread of the device must not wait, as dropping the last reference of an inode may. It
//! leaves the reference here, and wakes a syncer.
//!
//! Invariants: once closed it takes nothing more, so that no reference keeps the engine alive.
//!
//! Neighbours: [`super::direct_async`] leaves references, [`super::fsync`] has the syncers.

use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Mutex;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Released(Mutex<List>);

#[derive(Default)]
struct List {
    is_closed: bool,
    references: Vec<InodeRef>,
}

impl Released {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().references.is_empty()
    }

    /// Drops what is there.
    pub(crate) fn drop_all(&self) {
        // Without the lock: the last drop of one may do a lot.
        let references = std::mem::take(&mut self.0.lock().references);
        drop(references);
    }

    /// Takes nothing more: a reference that is left here from now on is dropped at once.
    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
    }
}

impl Engine {
    /// Drops a reference on a syncer's thread, for callers that must not wait as the last drop of one may. Of
    /// a volume that is read-only it waits for nothing, and there are no syncers.
    pub(crate) fn release_later(&self, inode: InodeRef) {
        if self.store.read_only {
            return;
        }
        let mut list = self.released.0.lock();
        if !list.is_closed {
            list.references.push(inode);
            drop(list);
            self.syncs.wake();
        }
    }
}
