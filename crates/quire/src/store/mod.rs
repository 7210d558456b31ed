//! The store of an open volume: the tree, the journal, the allocator, and the commit protocol over them.
//!
//! It knows keys, extents and blocks. It knows nothing of what is in memory for files: inodes, names, pages
//! and leases are the [`crate::engine`]'s, which changes the store by transactions alone.
//!
//! Protocols: [`transaction`] commits, [`checkpoint`] publishes; what both rest on:
//! * [`reservation`], [`room_queue`] and [`pool_promise`] have the room ready that a transaction may need;
//! * [`apply`] is what a record means, here and in replay;
//! * [`pool_shrink`] and [`heal`] move metadata while others change it;
//! * [`discarder`] tells the device what is free.
//!
//! Invariants: J1 (a record names the data that it shows), J2 (what is freed, and journal space, wait for
//! what still needs them), J9 (a checkpoint, which makes room, waits for no writeback). An error that leaves
//! memory ahead of the disk shuts the volume down: every later change gets the first error (J7).
//!
//! Shared lines: `barrier` and `frees` have a word for each shard; the counters too. The rest of the struct
//! is read by all, and written by checkpoints.

pub(crate) mod apply;
pub(crate) mod checkpoint;
mod committer;
mod discarder;
pub(crate) mod heal;
pub(crate) mod inode_numbers;
pub mod orphan_slots;
pub(crate) mod pool_promise;
pub(crate) mod pool_shrink;
pub(crate) mod reservation;
pub mod room_queue;
pub(crate) mod snapshot_table;
pub(crate) mod superblocks;
pub(crate) mod transaction;

pub(crate) use committer::{Committer, Due};
pub(crate) use discarder::Discarder;

use crate::options::VolumeOptions;
use checkpoint::{CheckpointLock, CheckpointState};
use inode_numbers::InodeNumbers;
use orphan_slots::OrphanSlots;
use quire_alloc::{Allocator, SpaceAccount};
use quire_base::metrics::Counter;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex, ShardedRwLock};
use quire_base::{BlockNo, Error, ErrorKind, Result, Seq};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::scrub::LastScrub;
use quire_format::superblock::Superblock;
use quire_journal::Journal;
use quire_tree::Tree;
use room_queue::RoomQueue;
use snapshot_table::SnapshotTable;

/// Events worth counting, beside those of the parts below.
#[derive(Default, Debug)]
pub struct StoreCounters {
    /// Transactions committed.
    pub transactions: Counter,
    /// Times a transaction had to wait for a checkpoint before it could reserve.
    pub checkpoint_waits: Counter,
    /// Times a transaction had to wait for room of any kind.
    pub room_waits: Counter,
    /// Checkpoints written.
    pub checkpoints: Counter,
    /// Metadata pool chunks taken from data space.
    pub pool_growths: Counter,
}

/// How far journal and device are, or must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The journal is durable up to here.
    pub seq: u64,
    /// Everything that had completed at this mark of the device has been flushed.
    pub mark: u64,
}

impl Reached {
    /// Whether nothing that `need` asks for is missing.
    pub fn covers(self, need: Reached) -> bool {
        self.seq >= need.seq && self.mark >= need.mark
    }

    /// What covers both.
    #[must_use]
    pub fn max(self, other: Reached) -> Reached {
        Reached { seq: self.seq.max(other.seq), mark: self.mark.max(other.mark) }
    }
}

/// Those that wait until others have made something durable.
pub(crate) trait ForceWaiters: Send + Sync {
    /// Journal and device have come as far as `reached` says.
    fn forced(&self, reached: &dyn Fn() -> Reached);
    /// The volume has been shut down: nothing will serve them.
    fn shut_down(&self);
}

/// See the module's documentation.
pub(crate) struct Store {
    pub(crate) device: Arc<Device>,
    /// None on a read-only volume.
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) alloc: Arc<Allocator>,
    /// What is kept back for the metadata pool ([`pool_promise`]).
    pool_promise: SpaceAccount,
    /// The standing reserve that is kept in it.
    standing: Mutex<u64>,
    /// Threads that wait for journal bytes or tree nodes.
    pub(crate) room: RoomQueue,
    pub(crate) orphans: OrphanSlots,
    /// Which blocks belong to snapshots.
    pub(crate) snapshots: Arc<SnapshotTable>,
    /// The next checkpoint writes all orphan blocks and the pool's manifest anew.
    pub(crate) rewrite_pool: AtomicBool,
    /// Held by the thread that makes the metadata pool smaller.
    shrinking: Mutex<()>,
    pub(crate) options: VolumeOptions,
    /// As of the opening. What changes is elsewhere: the size in `grown`, the rest in the checkpoint state
    /// and in the counters below. [`Store::superblock_now`] has it all.
    pub(crate) superblock: Superblock,
    /// Blocks by which the volume has grown since it was opened. Changed under `checkpoint`.
    pub(crate) grown: AtomicU64,
    pub(crate) read_only: bool,
    /// Reads leave access times alone, whatever the options say.
    pub(crate) keeps_access_times: AtomicBool,

    /// Shared from a record's `Seq` to its last apply; whole while a checkpoint chooses S.
    pub(crate) barrier: ShardedRwLock,
    pub(crate) checkpoint: CheckpointLock,
    /// Number of the newest durable checkpoint, to see progress without the lock.
    pub(crate) checkpoint_number: AtomicU64,
    /// Shared while the engine frees what nobody's file has: by the reaper, by deletions of snapshots, from
    /// the pool. Whole while a snapshot is taken, and while a freeze writes its checkpoint.
    pub(crate) frees: ShardedRwLock,

    /// Free blocks and inodes as the applied records say; what a checkpoint writes.
    pub(crate) applied_free_blocks: Counter,
    pub(crate) applied_inodes: Counter,
    /// Inode numbers to hand out.
    pub(crate) inode_numbers: InodeNumbers,
    /// The next logged operation's id.
    pub(crate) next_logged: AtomicU64,
    /// What checkpoints say of the last scrub ([`crate::scrub`]).
    pub(crate) last_scrub: Mutex<Option<LastScrub>>,

    /// What the committer is to do.
    pub(crate) committer: Committer,
    /// Tells the device what is free.
    pub(crate) discarder: Discarder,
    waiters: Arc<dyn ForceWaiters>,
    pub(crate) counters: StoreCounters,

    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// What a [`Store`] is made of by mkfs and recovery.
pub(crate) struct Parts {
    pub(crate) device: Arc<Device>,
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) orphans: OrphanSlots,
    pub(crate) snapshots: Arc<SnapshotTable>,
    pub(crate) options: VolumeOptions,
    pub(crate) superblock: Superblock,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) read_only: bool,
    pub(crate) next_logged: u64,
}

impl Store {
    pub(crate) fn new(parts: Parts, waiters: Arc<dyn ForceWaiters>) -> Store {
        Store {
            barrier: ShardedRwLock::new(),
            checkpoint_number: AtomicU64::new(parts.checkpoint.number),
            checkpoint: CheckpointLock::new(parts.checkpoint),
            frees: ShardedRwLock::new(),
            applied_free_blocks: Counter::starting_at(parts.superblock.free_blocks),
            applied_inodes: Counter::starting_at(parts.superblock.inode_count),
            inode_numbers: InodeNumbers::from(parts.superblock.next_inode),
            next_logged: AtomicU64::new(parts.next_logged),
            last_scrub: Mutex::new(parts.superblock.scrub.clone()),
            device: parts.device,
            journal: parts.journal,
            tree: parts.tree,
            alloc: parts.alloc,
            pool_promise: SpaceAccount::default(),
            standing: Mutex::new(0),
            room: RoomQueue::default(),
            orphans: parts.orphans,
            snapshots: parts.snapshots,
            rewrite_pool: AtomicBool::new(false),
            shrinking: Mutex::default(),
            options: parts.options,
            superblock: parts.superblock,
            grown: AtomicU64::new(0),
            read_only: parts.read_only,
            keeps_access_times: AtomicBool::new(false),
            committer: Committer::default(),
            discarder: Discarder::default(),
            waiters,
            counters: StoreCounters::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
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
        let is_first = failure.is_none();
        let first = failure.get_or_insert_with(|| {
            error.with_kind(ErrorKind::Shutdown).context("the volume was shut down by an earlier error")
        });
        let first = first.clone();
        drop(failure);
        self.failed.store(true, Ordering::Release);
        if let Some(journal) = &self.journal {
            journal.shut_down(first.clone());
        }
        self.waiters.shut_down();
        self.room.notify();
        if is_first {
            tracing::error!(%error, "the volume takes no more changes");
        }
        first
    }

    /// As [`Store::shut_down`], when the volume is closed in order.
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

    /// How far journal and device are.
    pub(crate) fn reached(&self) -> Result<Reached> {
        Ok(Reached { seq: self.journal()?.durable().0, mark: self.device.flushed_mark() })
    }

    /// To be called when something may have become durable: others may be waiting for it.
    pub(crate) fn forced(&self) {
        self.waiters.forced(&|| self.reached().unwrap_or_default());
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
}

/// Its size.
impl Store {
    /// Blocks of the volume.
    pub(crate) fn block_count(&self) -> u64 {
        self.superblock.block_count + self.grown.load(Ordering::Acquire)
    }

    /// One behind the last block of the data space.
    pub(crate) fn data_end(&self) -> BlockNo {
        self.superblock.data_end.offset(self.grown.load(Ordering::Acquire))
    }

    /// The blocks of the data space.
    pub(crate) fn data_space(&self) -> std::ops::Range<u64> {
        self.superblock.data_start.0..self.data_end().0
    }

    /// Whether a file may have the blocks of a run.
    pub(crate) fn may_hold_data(&self, run: Run) -> bool {
        self.superblock.may_hold_data_up_to(run, self.data_end())
    }

    /// The superblock of the opening, with the size of now.
    pub(crate) fn superblock_now(&self) -> Superblock {
        let mut superblock = self.superblock.clone();
        let grown = self.grown.load(Ordering::Acquire);
        superblock.block_count += grown;
        superblock.data_end = superblock.data_end.offset(grown);
        superblock
    }
}
