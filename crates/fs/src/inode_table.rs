//! The inodes in memory, by number.
//!
//! Protocol: the table is cut into shards by inode number, a lock each. Finding one adds a user under the shard's
//! lock; throwing one out needs the same lock and zero users, so the two cannot cross. Loading from the tree
//! happens outside the lock; who inserts second takes the first one's.
//!
//! Invariants: at most one inode in memory for a number. An inode leaves only without users, clean, and with
//! nothing that its fsync would still have to do (J5: what it must remember outlives it, by not evicting it).
//!
//! Neighbours: [`crate::inode`]; [`crate::reaper`] frees what has neither name nor user.

use crate::engine::Engine;
use crate::inode::{Inode, InodeRef, OrphanState};
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Mutex};
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use std::collections::BTreeMap;

const SHARDS: usize = 64;

/// Inodes without users that a shard keeps before it looks for some to throw out.
const UNUSED_PER_SHARD: usize = 512;

#[repr(align(128))]
struct Shard(Mutex<BTreeMap<u64, Arc<Inode>>>);

/// See the module's documentation.
pub(crate) struct InodeTable {
    shards: Box<[Shard]>,
}

impl InodeTable {
    pub(crate) fn new() -> InodeTable {
        InodeTable { shards: (0..SHARDS).map(|_| Shard(Mutex::new(BTreeMap::new()))).collect() }
    }

    fn shard(&self, number: InodeNo) -> &Mutex<BTreeMap<u64, Arc<Inode>>> {
        &self.shards[(number.0 as usize) % SHARDS].0
    }

    /// An inode already in memory, with a user added.
    fn find(&self, number: InodeNo) -> Option<InodeRef> {
        let shard = self.shard(number).lock();
        let inode = shard.get(&number.0)?;
        inode.users.fetch_add(1, Ordering::Relaxed);
        inode.referenced.store(true, Ordering::Relaxed);
        Some(InodeRef::counted(inode.clone()))
    }

    /// An inode in memory, no user added.
    pub(crate) fn peek(&self, number: InodeNo) -> Option<Arc<Inode>> {
        self.shard(number).lock().get(&number.0).cloned()
    }

    /// Adds a new inode, or gives the one that is there.
    pub(crate) fn insert(&self, inode: Inode) -> InodeRef {
        let mut shard = self.shard(inode.number).lock();
        if shard.len() >= UNUSED_PER_SHARD && shard.len().is_multiple_of(64) {
            shrink(&mut shard);
        }
        let inode = shard.entry(inode.number.0).or_insert_with(|| Arc::new(inode));
        inode.users.fetch_add(1, Ordering::Relaxed);
        InodeRef::counted(inode.clone())
    }

    /// Takes an inode out for good, once it is freed on disk.
    pub(crate) fn remove(&self, number: InodeNo) {
        self.shard(number).lock().remove(&number.0);
    }

    /// Adds a user to every inode in memory, in order of number.
    pub(crate) fn all(&self) -> Vec<InodeRef> {
        let mut all: Vec<InodeRef> = Vec::new();
        for shard in &self.shards {
            for inode in shard.0.lock().values() {
                inode.users.fetch_add(1, Ordering::Relaxed);
                all.push(InodeRef::counted(inode.clone()));
            }
        }
        all.sort_by_key(|inode| inode.number());
        all
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }

    /// Throws everything out, when the volume closes: ends the cycle between engine and inodes.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let inodes = std::mem::take(&mut *shard.0.lock());
            drop(inodes);
        }
    }
}

/// Throws out what nobody uses and nothing is owed for.
fn shrink(shard: &mut BTreeMap<u64, Arc<Inode>>) {
    let mut excess = shard.len().saturating_sub(UNUSED_PER_SHARD / 2);
    let mut mappings = Vec::new();
    shard.retain(|_, inode| {
        if excess == 0 || !may_leave(inode) {
            return true;
        }
        excess -= 1;
        mappings.extend(inode.mapping.get().cloned());
        false
    });
    for mapping in mappings {
        mapping.evict_all();
    }
}

fn may_leave(inode: &Inode) -> bool {
    if inode.users.load(Ordering::Acquire) != 0 || inode.referenced.swap(false, Ordering::Relaxed) {
        return false;
    }
    let durable = inode.engine.journal.as_ref().map_or(u64::MAX, |journal| journal.durable().0);
    let clean = inode.mapping.get().is_none_or(|mapping| mapping.is_clean() && mapping.error().is_none());
    let meta = inode.meta();
    clean
        && !meta.dirty
        && !inode.has_times()
        && meta.record.nlink > 0
        && inode.commit_seq.load(Ordering::Acquire) <= durable
        && inode.data_mark.load(Ordering::Acquire) <= inode.engine.device.flushed_mark()
}

impl Engine {
    /// The inode of a number, from memory or from the tree.
    pub(crate) fn inode(self: &Arc<Engine>, number: InodeNo) -> Result<InodeRef> {
        if let Some(inode) = self.inodes.find(number) {
            return self.not_freed(inode);
        }
        let record = self.tree.get_with(Key::inode(number), InodeRecord::decode)?.ok_or_else(|| {
            Error::new(ErrorKind::Stale, format!("inode {number} does not exist (any more)"))
        })??;
        if record.nlink == 0 {
            return Err(Error::new(ErrorKind::Stale, format!("inode {number} has no name (any more)")));
        }
        let inode = self.inodes.insert(Inode::new(self.clone(), number, record, OrphanState::Named));
        self.not_freed(inode)
    }

    /// An orphan that a crash left, tracked as `orphan` says; `None` if the tree does not have it.
    pub(crate) fn orphan_inode(self: &Arc<Engine>, number: InodeNo, orphan: OrphanState) -> Result<Option<InodeRef>> {
        let Some(record) = self.tree.get_with(Key::inode(number), InodeRecord::decode)? else { return Ok(None) };
        Ok(Some(self.inodes.insert(Inode::new(self.clone(), number, record?, orphan))))
    }

    fn not_freed(&self, inode: InodeRef) -> Result<InodeRef> {
        if inode.meta().freed {
            return Err(Error::new(ErrorKind::Stale, format!("inode {} has been freed", inode.number())));
        }
        Ok(inode)
    }

    /// The last user of an inode has left: if it has no name, it can go.
    pub(crate) fn last_user_left(&self, inode: &Arc<Inode>) {
        let orphan = {
            let meta = inode.meta();
            meta.orphan != OrphanState::Named && !meta.freed
        };
        if orphan && !self.read_only {
            self.reap_later(inode.number);
        }
    }
}
