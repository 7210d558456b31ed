//! The engine of an open volume: what every operation shares.
//!
//! It puts what is in memory for files (inodes, the cache of their data, leases, open snapshots) on top of
//! the [`Store`], and says which operations may change the volume, and which exclude each other.
//!
//! Neighbours: [`crate::store`] makes changes durable; [`crate::recovery`] makes an engine from a device;
//! [`crate::volume`] is its public face.

use crate::file::fsync::SyncQueue;
use crate::file::released::Released;
use crate::freeze::Freezes;
use crate::inode_table::InodeTable;
use crate::lease::table::LeaseTable;
use crate::reaper::waiting::Reaper;
use crate::snapshots::deletion::Sweep;
use crate::snapshots::readers::SnapshotReaders;
use crate::store::{Parts, Store};
use quire_base::InodeNo;
use quire_base::admission::Admission;
use quire_base::metrics::Counter;
use quire_base::sync::atomic::AtomicU64;
use quire_base::sync::{Arc, Mutex, OnceLock};
use quire_cache::Cache;

/// Events worth counting, beside those of the parts below.
#[derive(Default, Debug)]
pub struct EngineCounters {
    /// Inodes that were looked at for something in memory that the journal does not know.
    pub attribute_looks: Counter,
    /// Inodes that were looked at for some to throw out of memory.
    pub inode_looks: Counter,
    /// Inodes that lost their last name (or never had one) and were tracked for it.
    pub orphan_claims: Counter,
    /// Inodes freed by the reaper.
    pub orphans_freed: Counter,
    /// Lazy fsyncs that ended before their time was up: others forced.
    pub lazy_syncs_served: Counter,
    /// Lazy fsyncs whose time was up: a force was made for them.
    pub lazy_syncs_due: Counter,
    /// Times that changes were kept back for a snapshot.
    pub snapshot_holds: Counter,
    /// How long that was, together, in microseconds.
    pub snapshot_hold_us: Counter,
}

/// See the module's documentation.
pub struct Engine {
    pub(crate) store: Store,
    pub(crate) cache: Arc<Cache>,
    pub(crate) inodes: InodeTable,
    /// Bytes that large groups have collected ([`crate::group`]).
    pub(crate) group_memory: AtomicU64,
    /// The leases of files' layouts.
    pub(crate) leases: LeaseTable,
    /// Which snapshots are open beside the volume.
    pub(crate) readers: Arc<SnapshotReaders>,
    /// It reads a snapshot, in the cache of a volume that is open ([`crate::snapshots::volumes`]).
    pub(crate) beside: bool,

    /// Operations that change the volume.
    pub(crate) changes: Admission,
    /// Whether [`crate::Volume::freeze`] is in force, or at work.
    pub(crate) frozen: Mutex<Freezes>,
    /// The deletion of a snapshot that is under way; held for each of its steps.
    pub(crate) sweep: Mutex<Option<Sweep>>,
    pub(crate) rename: Mutex<()>,
    /// What waits to be freed.
    pub(crate) reaper: Reaper,
    /// Inodes with a logged operation that the opening could not finish. Programs are refused them
    /// ([`crate::reaper`]).
    pub(crate) unfinished: OnceLock<Vec<InodeNo>>,
    /// Fsyncs that syncers work at.
    pub(crate) syncs: Arc<SyncQueue>,
    /// What syncers drop.
    pub(crate) released: Released,
    pub(crate) counters: EngineCounters,
}

/// A shard's reference to the engine. Inodes hold one of their maker's shard, so that making and dropping
/// them changes no count that all threads change.
#[repr(align(128))]
pub(crate) struct EngineHandle(Arc<Engine>);

impl std::ops::Deref for EngineHandle {
    type Target = Arc<Engine>;
    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl EngineHandle {
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<EngineHandle> {
        Arc::new(EngineHandle(engine.clone()))
    }
}

impl Engine {
    /// An engine over what `parts` make; `beside` is [`Engine::beside`].
    pub(crate) fn new(parts: Parts, cache: Arc<Cache>, beside: bool) -> Arc<Engine> {
        let syncs: Arc<SyncQueue> = Arc::default();
        Arc::new(Engine {
            store: Store::new(parts, syncs.clone()),
            inodes: InodeTable::new(cache.clone(), beside),
            cache,
            group_memory: AtomicU64::new(0),
            leases: LeaseTable::default(),
            readers: Arc::default(),
            beside,
            changes: Admission::default(),
            frozen: Mutex::default(),
            sweep: Mutex::new(None),
            rename: Mutex::new(()),
            reaper: Reaper::default(),
            unfinished: OnceLock::new(),
            syncs,
            released: Released::default(),
            counters: EngineCounters::default(),
        })
    }
}
