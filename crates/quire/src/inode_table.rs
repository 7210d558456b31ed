//! The inodes in memory, by number.
//!
//! Protocol: the table is cut into shards by inode number, a lock each. Finding one adds a user under the
//! shard's lock; throwing one out needs the same lock and zero users, so the two cannot cross. Loading from
//! the tree happens outside the lock; who inserts second takes the first one's.
//!
//! Invariants: at most one inode in memory for a number. An inode leaves only without users, clean, and with
//! nothing that its fsync would still have to do (J5: what it must remember outlives it, by not evicting it).
//!
//! Memory. Inodes count against the cache's limit, up to the share that they may take of it. A
//! hand goes round over each shard, by a bounded number of inodes for each that comes in (a clock with a
//! second chance: one that was looked up since the hand last passed stays). Over a sixteenth of the limit,
//! inodes without cached data leave; over a quarter, all that may. One that would leave, but owes something
//! to the journal, becomes due; where the quarter is exceeded, the periodic commit comes early. Inodes that
//! are in use stay, however many.
//!
//! Neighbours: [`crate::inode`]; [`crate::reaper`] frees what has neither name nor user.

use crate::dirty_inodes::{DirtyInodes, Owes};
use crate::engine::{Engine, EngineHandle};
use crate::inode::{Inode, InodeRef, Names};
use crate::store::orphan_slots::OrphanState;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex};
use quire_base::{Context, Error, ErrorKind, InodeNo, Result, patience, shard};
use quire_cache::{Cache, Mapping};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use quire_format::properties::Properties;
use std::collections::BTreeMap;

const SHARDS: usize = 64;

/// Inodes that the hand looks at when one more comes in, and that it throws out at most.
const LOOKS: usize = 16;
const GONE_MAX: usize = 4;

/// The part of the cache's limit that inodes may take: without cached data, and with it.
const PLAIN_SHARE: u64 = 16;
const ALL_SHARE: u64 = 4;
/// Inodes of a snapshot that is read beside its volume may take this part of what the volume's may.
const BESIDE_SHARE: u64 = 8;
/// What they may take in the smallest cache, in bytes: some hundred inodes.
const PLAIN_LEAST: u64 = 1 << 20;
const ALL_LEAST: u64 = 2 << 20;
/// What a shard has charged to the cache's limit is a multiple of this, so that threads that make inodes
/// seldom meet there.
const CHARGE_STEP: u64 = 16 << 10;
/// Bytes of an inode's place in the table and of the counts of its reference.
const ENTRY_BYTES: usize = 64;

#[derive(Default)]
struct Held {
    inodes: BTreeMap<u64, Arc<Inode>>,
    /// What they take, in bytes, and what of it is charged to the cache's limit.
    bytes: u64,
    charged: u64,
    /// The number that the hand comes to next.
    hand: u64,
    /// Counts what has left: a record read before something left may be older than the tree.
    departures: u64,
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Held>);

/// Bytes of inodes that a shard may hold.
#[derive(Default)]
struct Limits {
    /// Beyond this, inodes without cached data leave.
    plain: u64,
    /// Beyond this, all that may.
    all: u64,
    /// What is charged to the cache's limit at most.
    charged: u64,
}

#[derive(Default)]
struct SharedLimits {
    plain: AtomicU64,
    all: AtomicU64,
    charged: AtomicU64,
}

impl SharedLimits {
    fn get(&self) -> Limits {
        Limits {
            plain: self.plain.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
            charged: self.charged.load(Ordering::Relaxed),
        }
    }

    /// Takes them from the cache's limit. What is charged leaves the cache what its operations need.
    fn set(&self, cache: &Cache, beside: bool) {
        let share = if beside { BESIDE_SHARE } else { 1 };
        let limit = cache.usage().limit_bytes;
        let all = (limit / ALL_SHARE).max(ALL_LEAST) / share;
        let shards = SHARDS as u64;
        let plain = (limit / PLAIN_SHARE).max(PLAIN_LEAST) / share;
        self.plain.store(plain / shards, Ordering::Relaxed);
        self.all.store(all / shards, Ordering::Relaxed);
        self.charged.store(all.min(cache.spare_bytes() / share) / shards, Ordering::Relaxed);
    }
}

/// See the module's documentation.
pub(crate) struct InodeTable {
    shards: Box<[Shard]>,
    limits: SharedLimits,
    cache: Arc<Cache>,
    /// The cache is that of another volume.
    beside: bool,
    /// Those that owe something to the journal.
    pub(crate) dirty: DirtyInodes,
    /// What the inodes of each shard's making hold of the engine.
    handles: [Handle; shard::SHARDS],
}

#[repr(align(128))]
#[derive(Default)]
struct Handle(Mutex<Option<Arc<EngineHandle>>>);

impl InodeTable {
    /// With a share of a cache's limit: the small one, if it is the cache of a volume that this is `beside`.
    pub(crate) fn new(cache: Arc<Cache>, beside: bool) -> InodeTable {
        let limits = SharedLimits::default();
        limits.set(&cache, beside);
        InodeTable {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            limits,
            cache,
            beside,
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
        self.insert_if(inode, |_| true).expect("nothing was asked for")
    }

    /// As [`InodeTable::insert`], if nothing has left the inode's shard since `departures` was read.
    fn insert_loaded(&self, inode: Inode, departures: u64) -> Option<InodeRef> {
        self.insert_if(inode, |held| held.departures == departures)
    }

    fn insert_if(&self, inode: Inode, condition: impl Fn(&Held) -> bool) -> Option<InodeRef> {
        let limits = self.limits.get();
        let mut held = self.shard(inode.number).lock();
        if !condition(&held) {
            return None;
        }
        let inode = held.insert(inode);
        let thrown = held.throw_out(&limits);
        self.charge(&mut held, &limits);
        drop(held);
        inode.engine.counters.inode_looks.add(thrown.looks as u64);
        if thrown.wants_commit {
            inode.engine.store.committer.want_commit();
        }
        thrown.gone.into_iter().for_each(let_go);
        Some(inode)
    }

    /// Charges what a shard's inodes take to the cache's limit, in steps.
    fn charge(&self, held: &mut Held, limits: &Limits) {
        let due = held.bytes.min(limits.charged) / CHARGE_STEP * CHARGE_STEP;
        match due.cmp(&held.charged) {
            std::cmp::Ordering::Greater => self.cache.charge(due - held.charged),
            std::cmp::Ordering::Less => self.cache.uncharge(held.charged - due),
            std::cmp::Ordering::Equal => {}
        }
        held.charged = due;
    }

    /// Follows the cache's limit. Inodes beyond the new one leave as others come.
    pub(crate) fn limit_changed(&self) {
        self.limits.set(&self.cache, self.beside);
        let limits = self.limits.get();
        for shard in &self.shards {
            self.charge(&mut shard.0.lock(), &limits);
        }
    }

    fn departures(&self, number: InodeNo) -> u64 {
        self.shard(number).lock().departures
    }

    /// Takes an inode out for good, once it is freed on disk.
    pub(crate) fn remove(&self, number: InodeNo) {
        let limits = self.limits.get();
        let mut held = self.shard(number).lock();
        let gone = held.remove(number.0);
        self.charge(&mut held, &limits);
        drop(held);
        if let Some(inode) = &gone {
            self.dirty.settle(number, &inode.dirty, || Owes::Nothing);
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
            let mut held = shard.0.lock();
            let inodes = std::mem::take(&mut held.inodes);
            held.bytes = 0;
            self.charge(&mut held, &self.limits.get());
            drop(held);
            drop(inodes);
        }
        for handle in &self.handles {
            let handle = handle.0.lock().take();
            drop(handle);
        }
    }
}

/// Ends an inode in memory that has left the table, and what is cached of it.
fn let_go(inode: Arc<Inode>) {
    if let Some(mapping) = inode.mapping.get() {
        mapping.evict_all();
    }
}

/// What an inode takes of memory, in bytes, with what its kind brings along.
fn inode_bytes(inode: &Inode) -> u64 {
    let more = match inode.kind {
        FileType::Directory => size_of::<Names>(),
        FileType::Regular => size_of::<Mapping>(),
        _ => 0,
    };
    (size_of::<Inode>() + more + ENTRY_BYTES) as u64
}

impl Held {
    fn insert(&mut self, inode: Inode) -> InodeRef {
        let number = inode.number.0;
        if !self.inodes.contains_key(&number) {
            self.bytes += inode_bytes(&inode);
            self.inodes.insert(number, Arc::new(inode));
        }
        let inode = &self.inodes[&number];
        inode.users.fetch_add(1, Ordering::Relaxed);
        InodeRef::counted(inode.clone())
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Inode>> {
        self.departures += 1;
        let gone = self.inodes.remove(&number)?;
        self.bytes -= inode_bytes(&gone);
        Some(gone)
    }

    /// Moves the hand on, by a bounded number of inodes, and throws out what may leave.
    fn throw_out(&mut self, limits: &Limits) -> ThrownOut {
        let mut thrown = ThrownOut::default();
        while thrown.looks < LOOKS && thrown.gone.len() < GONE_MAX && self.bytes > limits.plain {
            let next = self.inodes.range(self.hand..).next().or_else(|| self.inodes.iter().next());
            let Some((number, inode)) = next else { break };
            let number = *number;
            self.hand = number + 1;
            thrown.looks += 1;
            let is_crowded = self.bytes > limits.all;
            if has_pages(inode) && (!is_crowded || !patience::may_wait() && is_filling(inode)) {
                continue;
            }
            match may_leave(inode) {
                Stays::No => thrown.gone.extend(self.remove(number)),
                Stays::UntilJournaled => {
                    inode.mark_dirty(Owes::Due);
                    thrown.wants_commit |= is_crowded;
                }
                Stays::Used => {}
            }
        }
        thrown
    }
}

/// What a move of a shard's hand came to.
#[derive(Default)]
struct ThrownOut {
    looks: usize,
    gone: Vec<Arc<Inode>>,
    /// Inodes would leave if the journal had what they owe.
    wants_commit: bool,
}

fn has_pages(inode: &Inode) -> bool {
    inode.mapping.get().is_some_and(|mapping| mapping.folios() > 0)
}

/// Whether pages are being read in: they would be waited for when the inode goes.
fn is_filling(inode: &Inode) -> bool {
    inode.mapping.get().is_some_and(|mapping| mapping.is_filling())
}

/// Whether an inode stays in memory, and why.
#[derive(PartialEq, Eq)]
enum Stays {
    No,
    /// Somebody uses it, or has used it since the hand last passed.
    Used,
    /// It owes something to the journal, or the journal to the disk.
    UntilJournaled,
}

/// Asked under the lock of the inode's shard.
fn may_leave(inode: &Inode) -> Stays {
    if inode.users.load(Ordering::Acquire) != 0 || inode.referenced.swap(false, Ordering::Relaxed) {
        return Stays::Used;
    }
    // Without a user only writeback changes an inode, or a thread that journals and has added itself under
    // the table's lock: once the data is clean, nobody marks the inode any more.
    let clean = inode.mapping.get().is_none_or(|mapping| mapping.is_clean() && mapping.error().is_none());
    if !clean {
        return Stays::Used;
    }
    let meta = inode.meta();
    if meta.record.nlink == 0 {
        return Stays::Used;
    }
    let durable = inode.engine.store.journal.as_ref().map_or(u64::MAX, |journal| journal.durable().0);
    let owes = meta.dirty
        || inode.has_times()
        || inode.dirty.is_set()
        // The size on disk may lag behind runs that finished side by side, until attributes are journaled.
        || (inode.kind == FileType::Regular && meta.record.size < inode.size());
    let is_durable = inode.commit_seq.load(Ordering::Acquire) <= durable
        && inode.data_mark.load(Ordering::Acquire) <= inode.engine.store.device.flushed_mark();
    if owes || !is_durable { Stays::UntilJournaled } else { Stays::No }
}

impl Engine {
    /// The inode of a number, from memory or from the tree.
    pub(crate) fn inode(self: &Arc<Engine>, number: InodeNo) -> Result<InodeRef> {
        loop {
            if let Some(inode) = self.inodes.find(number) {
                return self.not_freed(inode);
            }
            self.check_finished(number)?;
            let departures = self.inodes.departures(number);
            let record =
                self.store.tree.get_with(Key::inode(number), InodeRecord::decode)?.ok_or_else(|| {
                    Error::new(ErrorKind::Stale, format!("inode {number} does not exist (any more)"))
                })??;
            if record.nlink == 0 {
                return Err(Error::new(ErrorKind::Stale, format!("inode {number} has no name (any more)")));
            }
            Properties::of_flags(record.flags).context(format_args!("inode {number}"))?;
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
        let Some(record) = self.store.tree.get_with(Key::inode(number), InodeRecord::decode)? else {
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
        let orphan = {
            let meta = inode.meta();
            meta.orphan != OrphanState::Named && !meta.freed
        };
        if orphan && !self.store.read_only {
            self.reap_later(inode.number);
        }
    }
}
