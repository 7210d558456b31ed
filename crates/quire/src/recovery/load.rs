//! Steps 1 and 2 of an opening: chooses a superblock and replays the journal behind it, in memory.
//!
//! Neighbours: [`crate::store::superblocks`] reads the slots, [`crate::store::apply`] applies records;
//! `journal::replay` tells torn from damaged.

use crate::options::VolumeOptions;
use crate::store::apply::Target;
use crate::store::inode_numbers::InodeNumbers;
use crate::store::orphan_slots::OrphanSlots;
use crate::store::snapshot_table::SnapshotTable;
use crate::store::superblocks;
use quire_base::metrics::Counter;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Context, Error, ErrorKind, InodeNo, Result, Seq};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::record::{self, Change};
use quire_format::superblock::Superblock;
use quire_journal::{ReplayConfig, replay, replay_readable};
use quire_tree::{PoolState, Tree, TreeLimits};

/// What recovery found, for `info` and the log.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Records replayed.
    pub records: u64,
    /// The superblock, A or B, that does not serve, and why: it is damaged, or what it names is. The other
    /// one serves; this one may be the newer or the older.
    pub fallback: Option<String>,
    /// A superblock whose first copy is not good, though its second one serves, and why.
    pub second_copy: Option<String>,
    /// Why the volume could only be opened read-only, if nobody asked for that.
    pub read_only_because: Option<String>,
    /// Orphans found after replay.
    pub orphans: usize,
    /// Orphan blocks that did not check.
    pub damaged_orphan_blocks: usize,
    /// Where the journal was cut, if only what can be read of the volume was asked for.
    pub(crate) cut: JournalCut,
}

/// A tree as of the end of the journal, in memory only.
pub(crate) struct Loaded {
    pub(crate) superblock: Superblock,
    pub(crate) slot: usize,
    pub(crate) tree: Arc<Tree>,
    pub(crate) orphans: OrphanSlots,
    pub(crate) snapshots: Arc<SnapshotTable>,
    /// Whether the first checkpoint writes all orphan blocks and the pool's manifest anew.
    pub(crate) mends_pool: bool,
    /// Where the journal ends.
    pub(crate) end: Seq,
    /// Blocks of the journal that cannot be read; unless it is cut, nothing that counts is in them.
    pub(crate) unreadable: Vec<BlockNo>,
    pub(crate) report: RecoveryReport,
}

/// Chooses a superblock and replays the journal after it, in memory. Writes nothing.
pub(crate) fn load(device: &Arc<Device>, options: &VolumeOptions) -> Result<Loaded> {
    let (slots, second_copy) = superblocks::newest(device);
    let mut candidates: Vec<(usize, Superblock)> = Vec::new();
    let mut reasons: Vec<Error> = Vec::new();
    for (slot, read) in slots.into_iter().enumerate() {
        match read {
            Ok(superblock) => candidates.push((slot, superblock)),
            // A newer quire has written here; its other slot may be one that we could read, but must not act
            // on.
            Err(error) if error.kind() == ErrorKind::UnknownFormat => {
                return Err(none_usable(
                    device,
                    &[error.context(format!("superblock {}", ["A", "B"][slot]))],
                ));
            }
            Err(error) => reasons.push(error.context(format!("superblock {}", ["A", "B"][slot]))),
        }
    }
    candidates.sort_by_key(|(_, superblock)| std::cmp::Reverse(superblock.checkpoint));
    let Some((_, newest)) = candidates.first() else {
        return Err(none_usable(device, &reasons));
    };
    if newest.block_count > device.blocks() {
        return Err(Error::corrupt(format!(
            "the volume has {} blocks of 4 KiB but {} has only {}: the image is truncated; restore it from a backup, \
             or make a copy of it as long as the volume (truncate -s {}) and let quire salvage copy out what is left",
            newest.block_count,
            device.name(),
            device.blocks(),
            newest.block_count.saturating_mul(quire_base::BLOCK_SIZE as u64)
        )));
    }
    let newest_sequence = newest.sequence;
    for (slot, superblock) in candidates {
        let of_slot = |error: Error| error.context(format!("checkpoint of superblock {}", ["A", "B"][slot]));
        let checkpoint = match read_checkpoint(device, options, superblock) {
            Ok(checkpoint) => checkpoint,
            // What cannot be read is no better than what is damaged.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                reasons.push(of_slot(error));
                continue;
            }
            Err(error) => return Err(error),
        };
        // A fallback must reach at least the state that the newer checkpoint had.
        match replay_behind(checkpoint, device, slot, Replay::Whole { at_least: newest_sequence }) {
            Ok((mut loaded, _)) => {
                // At most one: of two superblocks this one serves.
                loaded.report.fallback = reasons.first().map(Error::to_string);
                loaded.report.second_copy = second_copy;
                if let Some(why) = &loaded.report.fallback {
                    tracing::warn!(%why, "a superblock or its checkpoint does not serve; the other one does");
                }
                return Ok(loaded);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                reasons.push(of_slot(error));
            }
            Err(error) => return Err(error),
        }
    }
    Err(none_usable(device, &reasons))
}

pub(super) fn none_usable(device: &Device, reasons: &[Error]) -> Error {
    let kind = if reasons.iter().all(|error| error.kind() == ErrorKind::NotAVolume) {
        ErrorKind::NotAVolume
    } else if let Some(error) = reasons.iter().find(|error| error.kind() == ErrorKind::UnknownFormat) {
        error.kind()
    } else if let Some(error) = reasons.iter().find(|error| error.kind() == ErrorKind::Io) {
        error.kind()
    } else {
        ErrorKind::Corrupt
    };
    let detail = reasons.iter().map(Error::to_string).collect::<Vec<_>>().join("; ");
    let advice = match kind {
        ErrorKind::NotAVolume if detail.contains("quire fsck") => "is not a Quire volume",
        ErrorKind::NotAVolume => "is not a Quire volume (make one with: quire mkfs)",
        ErrorKind::UnknownFormat => "needs a newer quire",
        _ => "cannot be opened (see: quire fsck)",
    };
    Error::new(kind, format!("{} {advice}: {detail}", device.name()))
}

/// What a replay makes of a damaged journal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    /// Refuses it, and one that ends before this position.
    Whole { at_least: Seq },
    /// Cuts it there: for repairs that may lose data.
    Readable,
    /// Reads none: the checkpoint is a snapshot's.
    Nothing,
}

/// Where a damaged journal was cut, and what is known of what came after.
#[derive(Clone, Debug, Default)]
pub struct JournalCut {
    /// Why; `None` if the journal is whole.
    pub damage: Option<String>,
    /// Blocks that records behind the cut gave away: to an inode, or to the metadata pool.
    pub later: Vec<(Option<InodeNo>, Run)>,
    /// Names of the snapshots that are given up.
    pub snapshots: Vec<String>,
}

impl JournalCut {
    fn note(&mut self, payload: &[u8]) {
        for change in record::changes(payload).into_iter().flatten() {
            match change {
                Change::Extents { inode, inserted, .. } => {
                    self.later.extend(inserted.iter().map(|extent| (Some(inode), extent.run())));
                }
                Change::PoolGrow { start, blocks } => {
                    self.later.push((None, Run::new(start, blocks.into())));
                }
                _ => {}
            }
        }
    }
}

pub(super) fn load_from(
    device: &Arc<Device>,
    options: &VolumeOptions,
    superblock: Superblock,
    slot: usize,
    how: Replay,
) -> Result<(Loaded, JournalCut)> {
    replay_behind(read_checkpoint(device, options, superblock)?, device, slot, how)
}

/// What a superblock names, as far as it must be read to go on from there.
struct Checkpoint {
    superblock: Superblock,
    tree: Arc<Tree>,
    orphans: OrphanSlots,
    damaged_orphan_blocks: usize,
    snapshots: Arc<SnapshotTable>,
    mends_pool: bool,
}

/// What a superblock names. Replays nothing.
fn read_checkpoint(
    device: &Arc<Device>,
    options: &VolumeOptions,
    superblock: Superblock,
) -> Result<Checkpoint> {
    let volume = superblock.volume_id();
    let mut pool = PoolState::load(device, volume, superblock.manifest, superblock.block_count)
        .context("metadata pool")?;
    let orphan_blocks = pool.load_orphan_blocks(device, superblock.orphan_blocks);
    let mends_pool = pool.is_damaged();
    let tree =
        Tree::open(device.clone(), volume, superblock.roots(), pool, tree_limits(options)).context("tree")?;

    let orphans = OrphanSlots::new(superblock.orphan_blocks);
    let mut damaged_orphan_blocks = 0;
    for (index, block) in orphan_blocks.into_iter().enumerate() {
        match block.and_then(|bytes| quire_format::orphan::decode(index as u64, &bytes[..])) {
            Ok(slots) => orphans.load(index, &slots),
            Err(error) => {
                damaged_orphan_blocks += 1;
                tracing::warn!(%error, index, "a damaged orphan block is skipped; fsck finds what it named");
            }
        }
    }

    let snapshots = Arc::new(SnapshotTable::load(&tree, superblock.epoch).context("snapshots")?);
    Ok(Checkpoint { superblock, tree, orphans, damaged_orphan_blocks, snapshots, mends_pool })
}

/// Replays the journal behind a checkpoint, in memory.
fn replay_behind(
    checkpoint: Checkpoint,
    device: &Arc<Device>,
    slot: usize,
    how: Replay,
) -> Result<(Loaded, JournalCut)> {
    let Checkpoint { mut superblock, tree, orphans, damaged_orphan_blocks, snapshots, mends_pool } =
        checkpoint;
    let mut report = RecoveryReport { damaged_orphan_blocks, ..RecoveryReport::default() };
    if how != Replay::Nothing {
        // What the replay from the other slot found, if there was one.
        device.recorded().clear();
    }
    let (free_blocks, inodes, next_inode) = (
        Counter::starting_at(superblock.free_blocks),
        Counter::starting_at(superblock.inode_count),
        InodeNumbers::from(superblock.next_inode),
    );
    let target = Target {
        tree: &tree,
        snapshots: &snapshots,
        orphans: &orphans,
        free_blocks: &free_blocks,
        inodes: &inodes,
        inode_numbers: &next_inode,
        recorded: device.recorded(),
        data_space: superblock.data_space(),
        alloc: None,
    };
    let config = ReplayConfig::of(&superblock);
    let mut cut = JournalCut::default();
    // Blocks of which no record may have content.
    let kept = |tree: &Tree| -> Vec<_> {
        tree.pool_chunks().into_iter().chain(superblock.kept_from_files()).collect()
    };
    let (end, unreadable) = match how {
        Replay::Whole { at_least } => {
            let end = replay(device, &config, &mut |seq, payload| {
                for change in record::changes(payload)? {
                    target.apply(&change, seq).map_err(|error| {
                        let of_reading = matches!(error.kind(), ErrorKind::Io | ErrorKind::NoMemory);
                        let error = if of_reading { error } else { error.with_kind(ErrorKind::Corrupt) };
                        error.context(format!("replaying the journal record that ends at {seq}"))
                    })?;
                }
                report.records += 1;
                Ok(())
            })
            .context("journal")?;
            if end.end < at_least {
                return Err(Error::corrupt(format!(
                    "the journal ends at {} but the newer checkpoint was taken at {at_least}",
                    end.end
                )));
            }
            (end.end, end.unreadable)
        }
        Replay::Nothing => (superblock.sequence, Vec::new()),
        Replay::Readable => {
            let mut apply = |seq, payload: &[u8]| {
                for change in record::changes(payload)? {
                    target.apply_to_remains(&change, seq)?;
                }
                report.records += 1;
                Ok(())
            };
            let readable = replay_readable(device, &config, &mut apply, &mut |payload| cut.note(payload))
                .context("journal")?;
            cut.damage = readable.damage.map(|error| error.to_string());
            kept(&tree)
                .iter()
                .for_each(|run| device.recorded().forget(readable.end.end, run.start, run.blocks));
            (readable.end.end, readable.end.unreadable)
        }
    };
    // What was the pool's when a snapshot was taken may be a file's by now.
    let chunks = if how == Replay::Nothing { Vec::new() } else { kept(&tree) };
    if let Some(chunk) = chunks.iter().find(|run| device.recorded().covers(run.start, run.blocks)) {
        return Err(Error::corrupt(format!(
            "the journal has data for blocks of metadata at {}+{}",
            chunk.start, chunk.blocks
        )));
    }
    superblock.free_blocks = free_blocks.get();
    superblock.inode_count = inodes.get();
    superblock.next_inode = next_inode.end();
    superblock.epoch = snapshots.epoch();
    report.orphans = orphans.applied().len();
    Ok((Loaded { superblock, slot, tree, orphans, snapshots, mends_pool, end, unreadable, report }, cut))
}

pub(crate) fn tree_limits(options: &VolumeOptions) -> TreeLimits {
    TreeLimits::with_cache_bytes(options.node_cache_limit(default_cache_bytes))
}

/// A quarter of the memory that this process may use.
pub(crate) fn default_cache_bytes() -> u64 {
    (quire_base::memory::usable_bytes() / 4).max(32 << 20)
}
