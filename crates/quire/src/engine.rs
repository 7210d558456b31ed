//! The engine of an open volume: what every operation shares.
//!
//! It holds the parts (device, journal, tree, allocator, cache, orphan slots, inode table), the barrier
//! between transactions and checkpoints, and the volume's state: in use, read-only, or shut down by an error
//! (J7).
//!
//! Neighbours: [`crate::transaction`] and [`crate::checkpoint`] are its two protocols; [`crate::recovery`]
//! makes it from a device; [`crate::volume`] is its public face.

use crate::checkpoint::CheckpointState;
use crate::inode_numbers::InodeNumbers;
use crate::inode_table::InodeTable;
use crate::lease::table::LeaseTable;
use crate::options::VolumeOptions;
use crate::orphan::OrphanSlots;
use crate::room_queue::RoomQueue;
use crate::snapshot_readers::SnapshotReaders;
use crate::snapshot_sweep::Sweep;
use crate::snapshot_table::SnapshotTable;
use quire_alloc::{Allocator, SpaceAccount};
use quire_base::admission::Admission;
use quire_base::metrics::Counter;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, Condvar, Mutex, ShardedRwLock};
use quire_base::{Error, ErrorKind, Result, Seq};
use quire_cache::Cache;
use quire_device::Device;
use quire_format::scrub::LastScrub;
use quire_format::superblock::Superblock;
use quire_journal::Journal;
use quire_tree::Tree;

/// Events worth counting, beside those of the parts below.
#[derive(Default, Debug)]
pub struct EngineCounters {
    /// Transactions committed.
    pub transactions: Counter,
    /// Times a transaction had to wait for a checkpoint before it could reserve.
    pub checkpoint_waits: Counter,
    /// Times a transaction had to wait for room of any kind.
    pub room_waits: Counter,
    /// Checkpoints written.
    pub checkpoints: Counter,
    /// Inodes that were looked at for something in memory that the journal does not know.
    pub attribute_looks: Counter,
    /// Inodes that were looked at for some to throw out of memory.
    pub inode_looks: Counter,
    /// Metadata pool chunks taken from data space.
    pub pool_growths: Counter,
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
    pub(crate) device: Arc<Device>,
    /// None on a read-only volume.
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) cache: Arc<Cache>,
    /// What is kept back for the metadata pool ([`crate::pool_promise`]).
    pub(crate) pool_promise: SpaceAccount,
    /// The standing reserve that is kept in it.
    pub(crate) standing: AtomicU64,
    /// Bytes that large groups have collected ([`crate::group`]).
    pub(crate) group_memory: AtomicU64,
    /// Threads that wait for journal bytes or tree nodes.
    pub(crate) room: RoomQueue,
    pub(crate) orphans: OrphanSlots,
    /// The leases of files' layouts.
    pub(crate) leases: LeaseTable,
    /// Which blocks belong to snapshots.
    pub(crate) snapshots: Arc<SnapshotTable>,
    /// Which snapshots are open beside the volume.
    pub(crate) readers: Arc<SnapshotReaders>,
    /// The next checkpoint writes all orphan blocks and the pool's manifest anew.
    pub(crate) rewrite_pool: AtomicBool,
    pub(crate) inodes: InodeTable,
    pub(crate) options: VolumeOptions,
    /// As of the opening. What changes is elsewhere: the size in [`crate::grow`], the rest in the checkpoint
    /// state and in the counters below. [`Engine::superblock_now`] has it all.
    pub(crate) superblock: Superblock,
    /// Blocks by which the volume has grown since it was opened. Changed under `checkpoint`.
    pub(crate) grown: AtomicU64,
    pub(crate) read_only: bool,
    /// It reads a snapshot, in the cache of a volume that is open ([`crate::snapshot_readers`]).
    pub(crate) beside: bool,

    /// Shared from a record's `Seq` to its last apply; whole while a checkpoint chooses S.
    pub(crate) barrier: ShardedRwLock,
    pub(crate) checkpoint: Mutex<CheckpointState>,
    /// Number of the newest durable checkpoint, to see progress without the lock.
    pub(crate) checkpoint_number: AtomicU64,

    /// Free blocks and inodes as the applied records say; what a checkpoint writes.
    pub(crate) applied_free_blocks: Counter,
    pub(crate) applied_inodes: Counter,
    /// Inode numbers to hand out.
    pub(crate) inode_numbers: InodeNumbers,
    /// The next logged operation's id.
    pub(crate) next_logged: AtomicU64,

    /// What checkpoints say of the last scrub ([`crate::scrub`]).
    pub(crate) last_scrub: Mutex<Option<LastScrub>>,

    /// Operations that change the volume.
    pub(crate) changes: Admission,
    /// Whether [`crate::Volume::freeze`] is in force, or at work.
    pub(crate) frozen: Mutex<bool>,
    /// Shared while the engine itself frees blocks: the reaper, deletions of snapshots, the pool. Whole while
    /// a snapshot is taken.
    pub(crate) frees: ShardedRwLock,
    /// The deletion of a snapshot that is under way; held for each of its steps.
    pub(crate) sweep: Mutex<Option<Sweep>>,
    pub(crate) rename: Mutex<()>,
    pub(crate) background: Background,
    pub(crate) counters: EngineCounters,

    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// What operations leave to be done behind their backs.
#[derive(Default)]
pub(crate) struct Background {
    /// Orphans without a user, to be freed.
    pub(crate) reap: crate::reap_queue::ReapQueue,
    /// Orphans that a crash left, to be freed after those.
    pub(crate) recovered: crate::recovered_orphans::RecoveredOrphans,
    /// Snapshots are to be deleted.
    pub(crate) sweep_wanted: AtomicBool,
    pub(crate) state: Mutex<BackgroundState>,
    /// The committer: a checkpoint is wanted, or the end.
    pub(crate) wake_commit: Condvar,
    /// The reaper: an orphan is queued, a snapshot is to be deleted, or the end.
    pub(crate) wake_reap: Condvar,
    /// Asynchronous fsyncs; wakes the syncers, also for a reference to be dropped.
    pub(crate) syncs: Arc<crate::file::fsync::SyncQueue>,
    /// The discarder: freed ranges wait for their discard, or the end.
    pub(crate) wake_discard: Condvar,
    /// Threads that wait until nothing is left to be freed.
    pub(crate) drains: quire_base::sync::atomic::AtomicUsize,
    /// Signalled for them.
    pub(crate) idle: Condvar,
}

#[derive(Default)]
pub(crate) struct BackgroundState {
    pub(crate) stop: bool,
    pub(crate) checkpoint_wanted: bool,
    /// Recorded content is to be written home.
    pub(crate) homes_wanted: bool,
    /// The periodic commit is to come early.
    pub(crate) commit_wanted: bool,
    /// Orphans that could not be freed; tried again at the next periodic commit.
    pub(crate) reap_again: Vec<quire_base::InodeNo>,
    /// References that a completion, which must not wait, has left to be dropped.
    pub(crate) released: Vec<crate::inode::InodeRef>,
}

/// The parts that [`Engine::new`] takes over from mkfs and recovery.
pub(crate) struct Parts {
    pub(crate) device: Arc<Device>,
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) orphans: OrphanSlots,
    pub(crate) snapshots: Arc<SnapshotTable>,
    pub(crate) options: VolumeOptions,
    pub(crate) superblock: Superblock,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) read_only: bool,
    pub(crate) next_logged: u64,
    pub(crate) beside: bool,
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
    pub(crate) fn new(parts: Parts) -> Arc<Engine> {
        Arc::new(Engine {
            barrier: ShardedRwLock::new(),
            checkpoint_number: AtomicU64::new(parts.checkpoint.number),
            checkpoint: Mutex::new(parts.checkpoint),
            applied_free_blocks: Counter::starting_at(parts.superblock.free_blocks),
            applied_inodes: Counter::starting_at(parts.superblock.inode_count),
            inode_numbers: InodeNumbers::from(parts.superblock.next_inode),
            next_logged: AtomicU64::new(parts.next_logged),
            last_scrub: Mutex::new(parts.superblock.scrub.clone()),
            device: parts.device,
            journal: parts.journal,
            tree: parts.tree,
            alloc: parts.alloc,
            inodes: InodeTable::new(parts.cache.clone(), parts.beside),
            cache: parts.cache,
            pool_promise: SpaceAccount::default(),
            group_memory: AtomicU64::new(0),
            room: RoomQueue::default(),
            orphans: parts.orphans,
            leases: LeaseTable::default(),
            snapshots: parts.snapshots,
            readers: Arc::default(),
            rewrite_pool: AtomicBool::new(false),
            options: parts.options,
            superblock: parts.superblock,
            grown: AtomicU64::new(0),
            standing: AtomicU64::new(0),
            read_only: parts.read_only,
            beside: parts.beside,
            changes: Admission::default(),
            frozen: Mutex::new(false),
            frees: ShardedRwLock::new(),
            sweep: Mutex::new(None),
            rename: Mutex::new(()),
            background: Background::default(),
            counters: EngineCounters::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// An error if the volume takes no changes: read-only, or shut down.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(self.failure().expect("a failed volume keeps its first error"));
        }
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the volume is mounted read-only"));
        }
        Ok(())
    }

    /// Whether this is a read-only volume with an operation in it that a crash cut in two and a mount may
    /// finish.
    pub(crate) fn shows_half_an_operation(&self) -> bool {
        self.read_only
            && self.superblock.read_only_because().is_none()
            && self.next_logged.load(Ordering::Relaxed) > 0
    }

    /// The journal of a writable volume.
    pub(crate) fn journal(&self) -> Result<&Arc<Journal>> {
        self.check_writable()?;
        Ok(self.journal.as_ref().expect("a writable volume has a journal"))
    }

    /// The error that shut the volume down, if one did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Takes no more changes from now on; every later change gets the first error (J7).
    pub(crate) fn shut_down(&self, error: &Error) -> Error {
        let mut failure = self.failure.lock();
        let first = failure.get_or_insert_with(|| {
            tracing::error!(%error, "the volume takes no more changes");
            error.with_kind(ErrorKind::Shutdown).context("the volume was shut down by an earlier error")
        });
        let first = first.clone();
        drop(failure);
        self.failed.store(true, Ordering::Release);
        if let Some(journal) = &self.journal {
            journal.shut_down(first.clone());
        }
        // Nothing will serve those that wait for a force, nor for room.
        self.background.syncs.look_again();
        self.room.notify();
        first
    }

    /// As [`Engine::shut_down`], when the volume is closed in order.
    pub(crate) fn shut_down_quietly(&self, error: &Error) {
        self.failure.lock().get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::Release);
        self.room.notify();
    }

    /// Makes everything up to `seq` durable, and blocks freed by it reusable.
    pub(crate) fn force(&self, seq: Seq) -> Result<()> {
        let journal = self.journal()?;
        if journal.durable() < seq {
            journal.force(seq).map_err(|error| self.shut_down(&error))?;
        }
        self.settle_frees(journal);
        self.forced();
        Ok(())
    }

    /// Blocks whose freeing is durable become reusable. Without threads they are discarded at once.
    pub(crate) fn settle_frees(&self, journal: &Journal) {
        self.alloc.durable(journal.durable());
        if !self.options.threads {
            while self.alloc.discard_next() {}
        }
    }

    /// Makes every free durable and reusable, for a caller that has found no space and holds no reservation.
    pub(crate) fn force_frees(&self) -> Result<()> {
        // Frees that are in the journal and not yet applied are told of only then.
        drop(self.barrier.whole());
        self.force_all()?;
        self.alloc.await_frees();
        Ok(())
    }

    /// Makes every committed transaction durable.
    pub(crate) fn force_all(&self) -> Result<()> {
        let head = self.journal()?.head();
        self.force(head)
    }

    /// Makes data writes up to a device mark durable.
    pub(crate) fn flush_data(&self, mark: u64) -> Result<()> {
        self.device.flush_to(mark).map_err(|error| self.shut_down(&error))?;
        self.forced();
        Ok(())
    }

    /// An inode number nobody has had.
    pub(crate) fn new_inode_number(&self) -> quire_base::InodeNo {
        self.inode_numbers.take()
    }

    /// The generation of an inode made now: incarnation above, position in the journal below, so that no two
    /// inodes of one number share it even across crashes.
    pub(crate) fn new_generation(&self) -> u64 {
        let head = self.journal.as_ref().map_or(0, |journal| journal.head().0);
        self.checkpoint_incarnation() << 40 | (head & ((1 << 40) - 1))
    }

    fn checkpoint_incarnation(&self) -> u64 {
        self.superblock.incarnation & ((1 << 24) - 1)
    }

    /// Wakes the background thread for a commit: memory waits for what inodes owe to the journal.
    pub(crate) fn want_commit(&self) {
        let mut state = self.background.state.lock();
        if !state.commit_wanted {
            state.commit_wanted = true;
            self.background.wake_commit.notify_one();
        }
    }

    /// Wakes the background thread to write recorded content home.
    pub(crate) fn want_homes(&self) {
        let mut state = self.background.state.lock();
        if !state.homes_wanted {
            state.homes_wanted = true;
            self.background.wake_commit.notify_one();
        }
    }

    /// Wakes the background thread for a checkpoint.
    pub(crate) fn want_checkpoint(&self) {
        let mut state = self.background.state.lock();
        if !state.checkpoint_wanted {
            state.checkpoint_wanted = true;
            self.background.wake_commit.notify_one();
        }
    }
}
