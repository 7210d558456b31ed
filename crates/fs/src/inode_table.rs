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

use crate::dirty_inodes::{DirtyInodes, Owes};
use crate::engine::{Engine, EngineHandle};
use crate::inode::{Inode, InodeRef, OrphanState};
use quire_base::broken::{Broken, is_broken};
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Mutex};
use quire_base::{Error, ErrorKind, InodeNo, Result, shard};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use std::collections::BTreeMap;

const SHARDS: usize = 64;

/// Inodes without users that a shard keeps before it looks for some to throw out.
const UNUSED_PER_SHARD: usize = 512;

type Inodes = BTreeMap<u64, Arc<Inode>>;

#[derive(Default)]
struct Held {
    inodes: Inodes,
    /// Counts what has left: a record read before something left may be older than the tree.
    departures: u64,
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Held>);

/// See the module's documentation.
pub(crate) struct InodeTable {
    shards: Box<[Shard]>,
    /// Those that owe something to the journal.
    pub(crate) dirty: DirtyInodes,
    /// What the inodes of each shard's making hold of the engine.
    handles: [Handle; shard::SHARDS],
}

#[repr(align(128))]
#[derive(Default)]
struct Handle(Mutex<Option<Arc<EngineHandle>>>);

impl InodeTable {
    pub(crate) fn new() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            dirty: DirtyInodes::default(),
            handles: std::array::from_fn(|_| Handle::default()),
        }
    }

    /// The engine, for an inode that the current thread makes.
    pub(crate) fn engine_handle(&self, engine: &Arc<Engine>) -> Arc<EngineHandle> {
        let mut handle = self.handles[shard::current() % shard::SHARDS].0.lock();
        handle.get_or_insert_with(|| EngineHandle::new(engine)).clone()
    }

    fn shard(&self, number: InodeNo) -> &Mutex<Held> {
        &self.shards[(number.0 as usize) % SHARDS].0
    }

    /// An inode already in memory, with a user added.
    fn find(&self, number: InodeNo) -> Option<InodeRef> {
        let shard = self.shard(number).lock();
        let inode = shard.inodes.get(&number.0)?;
        inode.users.fetch_add(1, Ordering::Relaxed);
        inode.referenced.store(true, Ordering::Relaxed);
        Some(InodeRef::counted(inode.clone()))
    }

    /// An inode in memory, no user added.
    pub(crate) fn peek(&self, number: InodeNo) -> Option<Arc<Inode>> {
        self.shard(number).lock().inodes.get(&number.0).cloned()
    }

    /// Adds a new inode, or gives the one that is there.
    pub(crate) fn insert(&self, inode: Inode) -> InodeRef {
        let mut shard = self.shard(inode.number).lock();
        insert_locked(&mut shard, inode)
    }

    /// As [`InodeTable::insert`], if nothing has left the inode's shard since `departures` was read.
    fn insert_loaded(&self, inode: Inode, departures: u64) -> Option<InodeRef> {
        let mut shard = self.shard(inode.number).lock();
        (shard.departures == departures).then(|| insert_locked(&mut shard, inode))
    }

    fn departures(&self, number: InodeNo) -> u64 {
        self.shard(number).lock().departures
    }

    /// Takes an inode out for good, once it is freed on disk.
    pub(crate) fn remove(&self, number: InodeNo) {
        let mut shard = self.shard(number).lock();
        shard.departures += 1;
        let gone = shard.inodes.remove(&number.0);
        drop(shard);
        if let Some(inode) = &gone {
            self.dirty.settle(number, &inode.dirty, || Owes::Nothing);
        }
        drop(gone);
    }

    /// For [`Broken::EvictedSeqForgotten`]: throws an inode out that has just lost its last user.
    fn forget(&self, inode: &Inode) {
        inode.referenced.store(false, Ordering::Relaxed);
        let mut shard = self.shard(inode.number).lock();
        if !may_leave(inode) {
            return;
        }
        shard.departures += 1;
        let gone = shard.inodes.remove(&inode.number.0);
        drop(shard);
        if let Some(mapping) = inode.mapping.get() {
            mapping.evict_all();
        }
        drop(gone);
    }

    /// An inode in memory, with a user added that counts as no use of it.
    pub(crate) fn enter(&self, number: InodeNo) -> Option<InodeRef> {
        let shard = self.shard(number).lock();
        let inode = shard.inodes.get(&number.0)?;
        inode.users.fetch_add(1, Ordering::Relaxed);
        Some(InodeRef::counted(inode.clone()))
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().inodes.len()).sum()
    }

    /// Throws everything out, when the volume closes: ends the cycle between engine and inodes.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let inodes = std::mem::take(&mut shard.0.lock().inodes);
            drop(inodes);
        }
        for handle in &self.handles {
            let handle = handle.0.lock().take();
            drop(handle);
        }
    }
}

fn insert_locked(shard: &mut Held, inode: Inode) -> InodeRef {
    if shard.inodes.len() >= UNUSED_PER_SHARD && shard.inodes.len().is_multiple_of(64) {
        shrink(shard);
    }
    let inode = shard.inodes.entry(inode.number.0).or_insert_with(|| Arc::new(inode));
    inode.users.fetch_add(1, Ordering::Relaxed);
    InodeRef::counted(inode.clone())
}

/// Throws out what nobody uses and nothing is owed for.
fn shrink(shard: &mut Held) {
    shard.departures += 1;
    let mut excess = shard.inodes.len().saturating_sub(UNUSED_PER_SHARD / 2);
    let mut mappings = Vec::new();
    shard.inodes.retain(|_, inode| {
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
    // Without a user only writeback changes an inode, or a thread that journals and has added itself under the table's
    // lock: once the data is clean, nobody marks the inode any more.
    let clean = inode.mapping.get().is_none_or(|mapping| mapping.is_clean() && mapping.error().is_none());
    let meta = inode.meta();
    clean
        && (!inode.dirty.is_set() || is_broken(Broken::EvictedSeqForgotten))
        && !meta.dirty
        && !inode.has_times()
        && meta.record.nlink > 0
        // It may lag behind runs that finished side by side, until attributes are journaled.
        && (inode.kind != FileType::Regular || meta.record.size >= inode.size())
        && (is_broken(Broken::EvictedSeqForgotten)
            || (inode.commit_seq.load(Ordering::Acquire) <= durable
                && inode.data_mark.load(Ordering::Acquire) <= inode.engine.device.flushed_mark()))
}

impl Engine {
    /// The inode of a number, from memory or from the tree.
    pub(crate) fn inode(self: &Arc<Engine>, number: InodeNo) -> Result<InodeRef> {
        loop {
            if let Some(inode) = self.inodes.find(number) {
                return self.not_freed(inode);
            }
            let departures = self.inodes.departures(number);
            let record =
                self.tree.get_with(Key::inode(number), InodeRecord::decode)?.ok_or_else(|| {
                    Error::new(ErrorKind::Stale, format!("inode {number} does not exist (any more)"))
                })??;
            if record.nlink == 0 {
                return Err(Error::new(ErrorKind::Stale, format!("inode {number} has no name (any more)")));
            }
            // Had the inode come, changed and gone meanwhile, the record would be an old one.
            let inode = Inode::new(self, number, record, OrphanState::Named);
            if let Some(inode) = self.inodes.insert_loaded(inode, departures) {
                return self.not_freed(inode);
            }
        }
    }

    /// An orphan that a crash left, tracked as `orphan` says; `None` if the tree does not have it.
    pub(crate) fn orphan_inode(
        self: &Arc<Engine>,
        number: InodeNo,
        orphan: OrphanState,
    ) -> Result<Option<InodeRef>> {
        let Some(record) = self.tree.get_with(Key::inode(number), InodeRecord::decode)? else {
            return Ok(None);
        };
        Ok(Some(self.inodes.insert(Inode::new(self, number, record?, orphan))))
    }

    fn not_freed(&self, inode: InodeRef) -> Result<InodeRef> {
        if inode.meta().freed {
            return Err(Error::new(ErrorKind::Stale, format!("inode {} has been freed", inode.number())));
        }
        Ok(inode)
    }

    /// The last user of an inode has left: if it has no name, it can go.
    pub(crate) fn last_user_left(&self, inode: &Arc<Inode>) {
        // Nearly no file has a claim, and the claims are everybody's.
        if inode.claims_zeroed.load(Ordering::Relaxed) {
            // Somebody may have found the inode again since, and claim at this moment. He sets the flag behind the claim: it
            // is cleared together with that, or stays.
            inode.claims_zeroed.swap(false, Ordering::AcqRel);
            self.alloc.unclaim_zeroed(inode.number);
        }
        let orphan = {
            let meta = inode.meta();
            meta.orphan != OrphanState::Named && !meta.freed
        };
        if orphan && !self.read_only {
            self.reap_later(inode.number);
        }
        if is_broken(Broken::EvictedSeqForgotten) {
            self.inodes.forget(inode);
        }
    }
}
