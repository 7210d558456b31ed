//! A volume: the public face of the engine.
//!
//! `paths` has what it does with paths, [`crate::inodes`] what it does with inode numbers. Every function may
//! be called from any thread at any time. Errors carry a kind (front ends map it to errno) and a text.
//!
//! Neighbours: `fuse` and the program `quire` above; [`crate::engine`] below.

use crate::engine::Engine;
use crate::file::fsync::Target;
use crate::file::syncing::{SyncOptions, Syncing};
use crate::file_handle::File;
use crate::inodes::Inodes;
use crate::metrics::Metrics;
use crate::open_volume::OpenVolume;
use crate::options::VolumeOptions;
use crate::recovery::RecoveryReport;
use crate::snapshots::readers::Reading;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Error, Result, Timestamp};
use quire_device::Backend;
use quire_format::superblock::Superblock;
use std::borrow::Borrow;

/// An open volume. Cloning shares it; [`Volume::close`], or dropping the last handle of any kind, closes it.
///
/// ```
/// # use quire::{FormatOptions, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// volume.create_dir_all("mail/new")?;
/// volume.write("mail/new/1", "hello")?;
/// volume.rename("mail/new/1", "mail/1")?;
/// volume.sync()?; // everything is durable
/// assert_eq!(volume.read("mail/1")?, b"hello");
/// let space = volume.statfs();
/// println!("{} of {} MiB are free", space.available >> 8, space.blocks >> 8);
/// volume.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Volume {
    inodes: Inodes,
}

/// What a volume is.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// Copies of each piece of metadata.
    pub metadata_copies: u32,
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
            uuid: superblock.shown_uuid(),
            label: superblock.label().to_owned(),
            version: superblock.version,
            block_size: BLOCK_SIZE as u32,
            blocks: superblock.block_count,
            journal_blocks: superblock.journal_blocks,
            orphan_blocks: superblock.orphan_blocks,
            metadata_copies: superblock.metadata_copies,
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

/// Space and inodes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

impl Volume {
    /// Opens the volume in an image file or on a block device, for reading and writing; see
    /// [`VolumeOptions::open`], which takes options.
    #[cfg(not(any(loom, shuttle)))]
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Volume> {
        VolumeOptions::new().open(path)
    }

    pub(crate) fn open_with(backend: Arc<dyn Backend>, options: &VolumeOptions) -> Result<Volume> {
        OpenVolume::open(backend, options).map(Volume::of)
    }

    /// The volume of an engine that reads a snapshot beside its volume.
    pub(crate) fn reader(engine: Arc<Engine>, reading: Reading) -> Result<Volume> {
        OpenVolume::reader(engine, reading).map(Volume::of)
    }

    fn of(volume: OpenVolume) -> Volume {
        Volume { inodes: Inodes { volume: Arc::new(volume) } }
    }

    /// Writes everything back, checkpoints, marks the volume clean. Changes that other clones make afterwards
    /// fail; reads go on. Of several calls, by clones, the first does the work; the others wait for it and
    /// give its outcome. The image stays locked until the last clone, [`File`] and lease is dropped.
    ///
    /// Errors: those of the device; the volume's [`Volume::failure`]. Not everything is durable then.
    pub fn close(self) -> Result<()> {
        self.inodes.volume.close()
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
        &self.inodes.volume.recovery
    }

    /// What the volume is.
    pub fn info(&self) -> VolumeInfo {
        let mut info = VolumeInfo::of(&self.engine().store.superblock_now());
        info.checkpoint = self.engine().store.checkpoint_number.load(Ordering::Acquire);
        info.free_blocks = self.engine().store.applied_free_blocks.get();
        info.inodes = self.engine().store.applied_inodes.get();
        info
    }

    /// A group of writes to files of this volume that become visible at once, and durable as a whole or not
    /// at all.
    pub fn atomic(&self) -> crate::group_handle::Group {
        crate::group_handle::Group::new(self.inodes().volume.clone())
    }

    /// The most bytes, in whole blocks, that a group may write as the volume is now: its free space.
    pub fn group_bytes_max(&self) -> u64 {
        self.inodes().group_bytes_max()
    }

    /// True if no changes are taken.
    pub fn is_read_only(&self) -> bool {
        self.engine().store.read_only
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Statfs {
        let engine = self.engine();
        let available = engine.store.alloc.free_blocks();
        let free = available + engine.store.alloc.deferred_blocks();
        let inodes = engine.store.applied_inodes.get();
        // An inode and its name take some 150 bytes of a leaf; leaves may take all free space.
        let free_inodes = available.saturating_mul(16);
        Statfs {
            blocks: engine.store.superblock_now().data_blocks(),
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
        self.engine().store.failure()
    }

    /// One round of background work, for volumes opened without threads.
    pub fn background_step(&self) -> Result<()> {
        self.engine().background_step()
    }

    /// Writes a checkpoint now. While the volume is frozen, it waits.
    ///
    /// Errors: `ReadOnly`; the volume's [`Volume::failure`]; those of the device, which shut the volume down.
    pub fn checkpoint(&self) -> Result<()> {
        let store = &self.engine().store;
        store.check_writable()?;
        store.checkpoint_now()
    }

    /// Waits until every unlinked inode without a user has been freed.
    pub fn drain_orphans(&self) {
        self.engine().drain_reaper();
    }

    /// The numbers of the running volume, for programs that show or record them.
    pub fn metrics(&self) -> Metrics {
        crate::metrics::of(self.engine())
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

    /// Whether reads leave access times alone from now on, whatever the options say: a mount that became
    /// read-only while it was in use changes nothing on its device.
    pub fn keep_access_times(&self, keep: bool) {
        self.engine().store.keeps_access_times.store(keep, Ordering::Relaxed);
    }

    /// As [`Volume::sync`], as a future.
    pub fn sync_async(&self) -> Syncing {
        self.engine().start_syncing(vec![Target::Volume])
    }

    /// Makes many files of this volume durable, as the options say, as one future: together they cost a few
    /// writes of the journal. The first error is its outcome.
    pub fn sync_files_async<F: Borrow<File>>(
        &self,
        files: impl IntoIterator<Item = F>,
        options: &SyncOptions,
    ) -> Syncing {
        let target = |file: F| Target::File(file.borrow().inode().clone(), options.clone());
        self.engine().start_syncing(files.into_iter().map(target).collect())
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume on {}", self.engine().store.device.name())
    }
}
