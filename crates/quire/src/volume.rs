//! A volume: the public face of the engine.
//!
//! [`crate::library`] has what it does with paths, [`crate::inodes`] what it does with inode numbers. Every function may be
//! called from any thread at any time. Errors carry a kind (front ends map it to errno) and a text.
//!
//! Neighbours: `fuse` and the program `quire` above; [`crate::engine`] below.

use crate::background::Threads;
use crate::engine::Engine;
use crate::file::fsync::Target;
use crate::file::syncing::Syncing;
use crate::inode::InodeRef;
use crate::inodes::Inodes;
use crate::measures::Measure;
use crate::mkfs;
use crate::options::{FormatOptions, VolumeOptions};
use crate::recovery::{self, RecoveryReport};
use quire_base::broken::{Broken, is_broken};
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::{Arc, Mutex};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, Timestamp};
use quire_device::Backend;
use quire_format::superblock::Superblock;

/// An open volume. Cloning shares it; [`Volume::close`], or dropping the last clone, closes it.
#[derive(Clone)]
pub struct Volume {
    inodes: Inodes,
}

/// What the clones of a volume share.
pub(crate) struct Inner {
    pub(crate) engine: Arc<Engine>,
    threads: Threads,
    recovery: RecoveryReport,
    closed: AtomicBool,
    /// Keeps the root directory in memory.
    root: Mutex<Option<InodeRef>>,
}

/// What a volume is.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// RFC 9562 identifier.
    pub uuid: [u8; 16],
    /// As given at mkfs.
    pub label: String,
    /// Format version (major, minor).
    pub version: (u32, u32),
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks of the journal.
    pub journal_blocks: u64,
    /// Orphan blocks.
    pub orphan_blocks: u32,
    /// Free data blocks at the last checkpoint.
    pub free_blocks: u64,
    /// Inodes at the last checkpoint.
    pub inodes: u64,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Times the volume was opened for writing, as a count that journal records carry.
    pub incarnation: u64,
    /// Mounts for writing.
    pub mount_count: u32,
    /// It was closed in order.
    pub clean: bool,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last mounted for writing.
    pub mounted: Timestamp,
    /// (compatible, read-only compatible, incompatible) feature bits.
    pub features: (u64, u64, u64),
}

impl VolumeInfo {
    pub(crate) fn of(superblock: &Superblock) -> VolumeInfo {
        VolumeInfo {
            uuid: superblock.uuid,
            label: superblock.label().to_owned(),
            version: superblock.version,
            block_size: BLOCK_SIZE as u32,
            blocks: superblock.block_count,
            journal_blocks: superblock.journal_blocks,
            orphan_blocks: superblock.orphan_blocks,
            free_blocks: superblock.free_blocks,
            inodes: superblock.inode_count,
            checkpoint: superblock.checkpoint,
            incarnation: superblock.incarnation,
            mount_count: superblock.mount_count,
            clean: superblock.flags & quire_format::superblock::FLAG_CLEAN != 0,
            created: superblock.created,
            mounted: superblock.mounted,
            features: (superblock.feature_compat, superblock.feature_ro_compat, superblock.feature_incompat),
        }
    }
}

/// Space and inodes, in blocks of [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    /// Data blocks of the volume.
    pub blocks: u64,
    /// Free blocks, those that still wait for their transaction's durability included.
    pub free: u64,
    /// Blocks that can be promised now.
    pub available: u64,
    /// Inodes in use and inodes that would fit.
    pub inodes: u64,
    /// Inodes that would still fit.
    pub free_inodes: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// Numbers of a running volume.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Transactions committed.
    pub transactions: u64,
    /// Transactions that waited for a checkpoint.
    pub checkpoint_waits: u64,
    /// Times a transaction had to wait for room of any kind: a checkpoint, a larger metadata pool, or what others have
    /// reserved.
    pub room_waits: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Inodes without a name that were given a slot or a key, so that a crash does not leak them.
    pub orphan_claims: u64,
    /// Inodes freed behind unlinks.
    pub orphans_freed: u64,
    /// Forced writes whose record went beside their data, into blocks zeroed ahead: one flush each.
    pub records_ahead: u64,
    /// Lazy fsyncs that ended before their time was up: others forced.
    pub lazy_syncs_served: u64,
    /// Lazy fsyncs whose time was up.
    pub lazy_syncs_due: u64,
    /// Asynchronous fsyncs under way.
    pub syncs_under_way: u64,
    /// Of these: lazy ones that wait for a force that others make.
    pub lazy_syncs_waiting: u64,
    /// Inodes in memory.
    pub inodes_cached: u64,
    /// Free blocks that wait for durability.
    pub deferred_blocks: u64,
    /// Journal records appended.
    pub journal_records: u64,
    /// Bytes of the journal that they took, headers and alignment included.
    pub journal_record_bytes: u64,
    /// Everything else, as `name value` lines for people.
    pub detail: String,
}

impl Volume {
    /// Makes a volume in an image file or on a block device. Refuses what already holds a file system, unless
    /// forced; creates the file, with mode 0600, if there is none and a size is given.
    #[cfg(not(any(loom, shuttle)))]
    pub fn format_image(path: &std::path::Path, options: &FormatOptions) -> Result<VolumeInfo> {
        let exists = path.exists();
        let backend = match (exists, options.size) {
            (false, None) => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{} does not exist; give a size to create it", path.display()),
                ));
            }
            (false, Some(size)) => {
                mkfs::check_size(size, options.journal_bytes)?;
                quire_device::create_image(path, size, false)?
            }
            (true, _) => mkfs::open_for_format(path, options)?,
        };
        let formatted = mkfs::format(backend, options);
        if formatted.is_err() && !exists {
            // Nothing of ours is left behind where there was nothing.
            let _ = std::fs::remove_file(path);
        }
        formatted.map(|superblock| VolumeInfo::of(&superblock))
    }

    /// Makes a volume on any backend.
    pub fn format_backend(backend: Arc<dyn Backend>, options: &FormatOptions) -> Result<VolumeInfo> {
        mkfs::format(backend, options).map(|superblock| VolumeInfo::of(&superblock))
    }

    /// Opens a volume in an image file or on a block device. One process at a time may have it open for writing.
    #[cfg(not(any(loom, shuttle)))]
    pub fn open(path: &std::path::Path, options: VolumeOptions) -> Result<Volume> {
        use quire_device::OpenMode;
        let backend = if options.read_only {
            quire_device::open_image(path, OpenMode::ReadOnly)?
        } else {
            mkfs::open_writable_or_read_only(path)?
        };
        Volume::open_backend(backend, options)
    }

    /// Opens a volume on any backend.
    pub fn open_backend(backend: Arc<dyn Backend>, options: VolumeOptions) -> Result<Volume> {
        let threads = options.threads;
        let (mut engine, recovery) = recovery::open(backend.clone(), options.clone())?;
        if engine.shows_half_an_operation() {
            drop(engine);
            let settled = settled_in_memory(backend, &options)?;
            (engine, _) = recovery::open(settled, options)?;
        }
        let root = engine.inode(InodeNo::ROOT).map_err(|error| match error.kind() {
            // A volume whose root directory is gone, unlinked or no inode is damaged, whatever the lookup calls it.
            ErrorKind::Stale | ErrorKind::NotFound => {
                error.with_kind(ErrorKind::Corrupt).context("root directory")
            }
            _ => error,
        })?;
        let inner = Inner {
            engine,
            threads: Threads::default(),
            recovery,
            closed: AtomicBool::new(false),
            root: Mutex::new(Some(root)),
        };
        let inner = Arc::new(inner);
        if threads {
            inner.engine.cache.start()?;
            if !inner.engine.read_only {
                inner.threads.start(&inner.engine)?;
            }
        }
        Ok(Volume { inodes: Inodes { inner } })
    }

    /// Writes everything back, checkpoints, marks the volume clean. Changes that other clones make afterwards fail.
    pub fn close(self) -> Result<()> {
        self.inodes.inner.close()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.inodes.engine()
    }

    /// The volume by inode number, for front ends.
    pub fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    /// What recovery found when the volume was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inodes.inner.recovery
    }

    /// What the volume is.
    pub fn info(&self) -> VolumeInfo {
        let mut info = VolumeInfo::of(&self.engine().superblock);
        info.checkpoint = self.engine().checkpoint_number.load(Ordering::Acquire);
        info.free_blocks = self.engine().applied_free_blocks.get();
        info.inodes = self.engine().applied_inodes.get();
        info
    }

    /// True if no changes are taken.
    pub fn is_read_only(&self) -> bool {
        self.engine().read_only
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Statfs {
        let engine = self.engine();
        let available = engine.alloc.free_blocks();
        let free = available + engine.alloc.deferred_blocks();
        let inodes = engine.applied_inodes.get();
        // An inode and its name take some 150 bytes of a leaf; leaves may take all free space.
        let free_inodes = available.saturating_mul(16);
        Statfs {
            blocks: engine.superblock.block_count - engine.superblock.data_start.0,
            free,
            available,
            inodes: inodes + free_inodes,
            free_inodes,
            block_size: BLOCK_SIZE as u32,
            name_max: 255,
        }
    }

    /// Makes everything durable (syncfs).
    pub fn sync(&self) -> Result<()> {
        self.engine().sync()
    }

    /// The error that shut the volume down, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.engine().failure()
    }

    /// One round of background work, for volumes opened without threads.
    pub fn background_step(&self) -> Result<()> {
        self.engine().background_step()
    }

    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        self.engine().checkpoint_now()
    }

    /// Waits until every unlinked inode without a user has been freed.
    pub fn drain_orphans(&self) {
        self.engine().drain_reaper();
    }

    /// Every number of the running volume, for programs that show or record them.
    pub fn measures(&self) -> Vec<Measure> {
        crate::measures::of(self.engine())
    }

    /// Changes the limit of the page cache, in bytes; dirty limits go with it. What is over it leaves soon.
    ///
    /// Errors: `Invalid` for a limit that the cache could not work in; it stays as it was.
    pub fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        let engine = self.engine();
        engine.cache.set_limit(bytes)?;
        engine.inodes.limit_changed();
        Ok(())
    }

    /// Numbers of the running volume.
    pub fn metrics(&self) -> Metrics {
        let engine = self.engine();
        let counters = &engine.counters;
        let syncs = engine.background.syncs.counts();
        let journal = engine.journal.as_ref().map(|journal| journal.counts()).unwrap_or_default();
        Metrics {
            journal_records: journal.records,
            journal_record_bytes: journal.record_bytes,
            transactions: counters.transactions.get(),
            checkpoint_waits: counters.checkpoint_waits.get(),
            room_waits: counters.room_waits.get(),
            checkpoints: counters.checkpoints.get(),
            orphan_claims: counters.orphan_claims.get(),
            orphans_freed: counters.orphans_freed.get(),
            records_ahead: counters.records_ahead.get(),
            lazy_syncs_served: counters.lazy_syncs_served.get(),
            lazy_syncs_due: counters.lazy_syncs_due.get(),
            syncs_under_way: syncs.under_way as u64,
            lazy_syncs_waiting: syncs.waiting as u64,
            inodes_cached: engine.inodes.len() as u64,
            deferred_blocks: engine.alloc.deferred_blocks(),
            detail: format!(
                "device {:?}\njournal {:?}\ntree {:?}\nallocator {:?}\ncache {:?} {:?}\n",
                engine.device.stats(),
                engine.journal.as_ref().map(|journal| journal.usage()),
                engine.tree.stats(),
                engine.alloc.stats(),
                engine.cache.usage(),
                engine.cache.metrics(),
            ),
        }
    }

    /// As [`Volume::sync`], as a future.
    pub fn sync_async(&self) -> Syncing {
        self.engine().start_syncing(vec![Target::Volume])
    }
}

impl Inner {
    pub(crate) fn root(&self) -> InodeRef {
        self.root.lock().clone().expect("an open volume has its root in memory")
    }

    fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let engine = &self.engine;
        drop(self.root.lock().take());
        let mut outcome = Ok(());
        if !engine.read_only && engine.failure().is_none() {
            if !is_broken(Broken::CloseWithoutDraining) {
                engine.changes.refuse();
            }
            engine.drain_reaper();
            outcome = engine.sync();
        }
        self.threads.stop(engine);
        engine.drop_released();
        engine.cache.stop();
        if !engine.read_only && engine.failure().is_none() {
            // What the threads have left, and what had been admitted to be made durable.
            outcome = outcome.and_then(|()| engine.sync()).and_then(|()| engine.checkpoint_clean());
            while outcome.is_ok() && engine.alloc.discard_next() {}
            if outcome.is_ok() && !is_broken(Broken::CloseWithoutDraining) {
                engine.check_nothing_reserved();
            }
            let error = Error::new(quire_base::ErrorKind::Shutdown, "the volume is closed");
            engine.shut_down_quietly(&error);
        }
        engine.inodes.clear();
        outcome
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume on {}", self.engine().device.name())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the volume");
        }
    }
}

/// The volume as it will be when the operation that a crash cut in two is finished; the device stays as it is.
fn settled_in_memory(backend: Arc<dyn Backend>, options: &VolumeOptions) -> Result<Arc<dyn Backend>> {
    tracing::info!("finishing in memory what a crash cut in two: the volume is opened read-only");
    let overlay: Arc<dyn Backend> = Arc::new(quire_device::OverlayBackend::new(backend));
    let options = VolumeOptions { read_only: false, threads: false, ..options.clone() };
    Volume::open_backend(overlay.clone(), options)?.close()?;
    Ok(overlay)
}
