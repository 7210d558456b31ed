//! Opening a volume: choosing a superblock, replaying the journal, starting a new incarnation.
//!
//! Protocol:
//! 1. Read both superblock slots; try the newer checkpoint first. Its tree, manifest and orphan blocks must
//!    check.
//! 2. Replay the journal from its S in memory. If the newer slot's tree or superblock is damaged, the older
//!    slot serves if its tree checks and the journal from its S is whole (at least up to the newer one's S,
//!    where that is readable); else the volume is refused, with both reasons.
//! 3. Flush, before anything read counts as durable: what a killed process left in the drive's cache could
//!    still vanish after we build on it.
//! 4. Copy the chosen superblock into the other slot, so that no slot needs pool blocks which the chosen
//!    one's map shows as free.
//! 5. Write what replay changed as a checkpoint of a new incarnation, publish it in one slot, then in the
//!    other. Only now may the journal be appended to: records of an earlier incarnation can never again be
//!    taken for live.
//! 6. Finish logged operations; list orphans for the reaper ([`crate::recovered_orphans`]).
//!
//! [`crate::reshape`] takes part in step 5 if the volume is to get another shape.
//!
//! A read-only mount does 1 and 2, in memory, and writes nothing.
//!
//! Neighbours: [`crate::store::checkpoint`], [`crate::store::apply`], [`crate::reaper`]; `journal::replay`
//! tells torn from damaged.

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::store::Parts;
use crate::store::apply::Target;
use crate::store::checkpoint::{CheckpointState, name_image};
use crate::store::inode_numbers::InodeNumbers;
use crate::store::orphan_slots::OrphanSlots;
use crate::store::snapshot_table::SnapshotTable;
use crate::store::superblocks::{self, publish};
use quire_alloc::{AllocConfig, Allocator, RegionSource};
use quire_base::metrics::Counter;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Context, Error, ErrorKind, InodeNo, Result, Seq};
use quire_cache::Cache;
use quire_device::{AlignedBuf, Backend, Device, IoClass};
use quire_format::extent::Run;
use quire_format::key::{Key, KeyKind};
use quire_format::record::{self, Change};
use quire_format::region::RegionMap;
use quire_format::superblock::{FLAG_CLEAN, Superblock};
use quire_journal::{Journal, JournalConfig, ReplayConfig, replay, replay_readable};
use quire_tree::{CheckpointStamp, PoolState, Tree, TreeLimits};

/// What recovery found, for `info` and the log.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Records replayed.
    pub records: u64,
    /// True if the newest superblock was passed over for the older one, and why.
    pub fallback: Option<String>,
    /// A superblock whose first copy is not good, though its second one serves, and why.
    pub second_copy: Option<String>,
    /// Why the volume could only be opened read-only, if that is the volume's own reason.
    pub read_only_because: Option<String>,
    /// Orphans found after replay.
    pub orphans: usize,
    /// Orphan blocks that did not check.
    pub damaged_orphan_blocks: usize,
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
            "the volume has {} blocks of 4 KiB but {} has only {}: the image is truncated; restore it from a copy",
            newest.block_count,
            device.name(),
            device.blocks()
        )));
    }
    let newest_sequence = newest.sequence;
    for (slot, superblock) in candidates {
        // A fallback must reach at least the state that the newer checkpoint had.
        match load_from(device, options, superblock, slot, Replay::Whole { at_least: newest_sequence }) {
            Ok((mut loaded, _)) => {
                loaded.report.fallback = reasons.first().map(Error::to_string);
                loaded.report.second_copy = second_copy;
                if let Some(why) = &loaded.report.fallback {
                    tracing::warn!(%why, "a superblock or its tree is damaged; the other one serves");
                }
                return Ok(loaded);
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                reasons.push(error.context(format!("checkpoint of superblock {}", ["A", "B"][slot])));
            }
            Err(error) => return Err(error),
        }
    }
    Err(none_usable(device, &reasons))
}

fn none_usable(device: &Device, reasons: &[Error]) -> Error {
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
        ErrorKind::NotAVolume => "is not a Quire volume (make one with: quire mkfs)",
        ErrorKind::UnknownFormat => "needs a newer quire",
        _ => "cannot be opened (see: quire fsck)",
    };
    Error::new(kind, format!("{} {advice}: {detail}", device.name()))
}

/// What a replay makes of a damaged journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replay {
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
        for change in record::decode(payload).into_iter().flatten() {
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

fn load_from(
    device: &Arc<Device>,
    options: &VolumeOptions,
    superblock: Superblock,
    slot: usize,
    how: Replay,
) -> Result<(Loaded, JournalCut)> {
    let volume = superblock.volume_id();
    let mut pool = PoolState::load(device, volume, superblock.manifest, superblock.block_count)
        .context("metadata pool")?;
    let orphan_blocks = pool.load_orphan_blocks(device, superblock.orphan_blocks);
    let mends_pool = pool.is_damaged();
    let tree =
        Tree::open(device.clone(), volume, superblock.roots(), pool, tree_limits(options)).context("tree")?;

    let orphans = OrphanSlots::new(superblock.orphan_blocks);
    let mut report = RecoveryReport::default();
    for (index, block) in orphan_blocks.into_iter().enumerate() {
        match block.and_then(|bytes| quire_format::orphan::decode(index as u64, &bytes[..])) {
            Ok(slots) => orphans.load(index, &slots),
            Err(error) => {
                report.damaged_orphan_blocks += 1;
                tracing::warn!(%error, index, "a damaged orphan block is skipped; fsck finds what it named");
            }
        }
    }

    if how != Replay::Nothing {
        // What the replay from the other slot found, if there was one.
        device.recorded().clear();
    }
    let mut superblock = superblock;
    let (free_blocks, inodes, next_inode) = (
        Counter::starting_at(superblock.free_blocks),
        Counter::starting_at(superblock.inode_count),
        InodeNumbers::from(superblock.next_inode),
    );
    let snapshots = Arc::new(SnapshotTable::load(&tree, superblock.epoch).context("snapshots")?);
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
                for change in record::decode(payload)? {
                    target.apply(&change, seq).map_err(|error| {
                        error
                            .with_kind(ErrorKind::Corrupt)
                            .context(format!("replaying the journal record that ends at {seq}"))
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
                for change in record::decode(payload)? {
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

/// Opens a volume on a backend.
pub(crate) fn open(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
) -> Result<(Arc<Engine>, RecoveryReport)> {
    let (engine, report) = open_unfinished(backend, options)?;
    if !engine.store.read_only {
        engine.store.keep_standing_reserve()?;
        engine.finish_logged_operations()?;
        match engine.store.options.threads {
            true if engine.store.snapshots.any_deleted() => engine.reaper.want_sweep(),
            true => {}
            false => engine.finish_snapshot_deletions()?,
        }
        engine.list_orphans()?;
    }
    Ok((engine, report))
}

/// As [`open`], with orphans and logged operations left as they are.
pub(crate) fn open_unfinished(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
) -> Result<(Arc<Engine>, RecoveryReport)> {
    let device = Device::new(backend.clone());
    let mut loaded = load(&device, &options)?;
    let before = crate::receive::shown_instead(&device, &loaded.tree, &options)?;
    if let Some(name) = options.snapshot.as_ref().or(before.as_ref()) {
        if !options.read_only && !device.is_read_only() {
            return Err(Error::invalid("a snapshot is opened read-only"));
        }
        let (_, snapshot) = crate::snapshots::find(&loaded.tree, name)?;
        device.recorded().clear();
        loaded = load_from(&device, &options, snapshot.superblock, loaded.slot, Replay::Nothing)?.0;
    }
    let superblock = &loaded.superblock;
    let mut read_only = options.read_only || device.is_read_only();
    if let Some(because) = superblock.read_only_because() {
        tracing::warn!(%because, "the volume is opened read-only");
        read_only = true;
    }
    let records = loaded.report.records;
    let mut report = loaded.report.clone();
    report.read_only_because = superblock.read_only_because().map(|error| error.to_string());
    if records > 0 {
        tracing::info!(records, "journal replayed");
    }
    let parts = if read_only {
        if options.reshape.is_some() {
            let why = superblock.read_only_because();
            return Err(why.unwrap_or_else(|| {
                Error::new(ErrorKind::ReadOnly, format!("{} is read-only", device.name()))
            }));
        }
        in_memory(device, loaded, options)?
    } else {
        new_incarnation(&*backend, device, loaded, options)?
    };
    Ok((with_own_cache(parts)?, report))
}

/// Opens the checkpoint that a snapshot of an open volume keeps, on the volume's device and in its cache.
pub(crate) fn open_beside(
    volume: &Engine,
    superblock: Superblock,
    options: VolumeOptions,
) -> Result<Arc<Engine>> {
    let device = volume.store.device.clone();
    let (loaded, _) = load_from(&device, &options, superblock, 0, Replay::Nothing)?;
    let parts = in_memory(device, loaded, options)?;
    Ok(Engine::new(parts, volume.cache.clone(), true))
}

/// Opens a volume whose newest checkpoint is whole, for a repair that may lose data: its journal is replayed
/// as far as it can be read.
pub(crate) fn open_remains(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
) -> Result<(Arc<Engine>, JournalCut)> {
    let device = Device::new(backend.clone());
    let slots = superblocks::newest(&device).0.into_iter().enumerate();
    let newest =
        slots.filter_map(|(slot, read)| Some((slot, read.ok()?))).max_by_key(|(_, read)| read.checkpoint);
    let Some((slot, superblock)) = newest else { return Err(none_usable(&device, &[])) };
    let (mut loaded, mut cut) = load_from(&device, &options, superblock, slot, Replay::Readable)?;
    // What they keep may be overwritten by now.
    cut.snapshots = crate::snapshots::give_up(&loaded.tree)?;
    loaded.snapshots = Arc::new(SnapshotTable::load(&loaded.tree, loaded.superblock.epoch)?);
    // Some were needed. Until the cut is published, they say that something is missing.
    let unreadable = std::mem::take(&mut loaded.unreadable);
    let engine = with_own_cache(new_incarnation(&*backend, device, loaded, options)?)?;
    renew_unreadable(&*backend, &unreadable);
    Ok((engine, cut))
}

fn in_memory(device: Arc<Device>, loaded: Loaded, options: VolumeOptions) -> Result<Parts> {
    let Superblock { checkpoint, sequence, .. } = loaded.superblock;
    let state = CheckpointState::published(checkpoint, loaded.slot, sequence);
    parts(device, loaded, options, None, state)
}

/// Steps 3 to 5 of the protocol.
fn new_incarnation(
    backend: &dyn Backend,
    device: Arc<Device>,
    mut loaded: Loaded,
    options: VolumeOptions,
) -> Result<Parts> {
    if let Some(name) = &options.roll_back {
        crate::rollback::check(&loaded.tree, name)?;
    }
    let plan = options.reshape.as_ref().map(|reshape| reshape.plan(&device, &loaded)).transpose()?;
    crate::snapshots::keep_all(&device, &loaded.tree)?;
    // Also where nothing of ours was written since the start: what the reads saw may sit in a cache.
    backend.flush()?;
    renew_unreadable(backend, &loaded.unreadable);
    device.recorded().write_home(&device, loaded.end, &mut |_| Ok(())).map_err(|error| {
        let advice =
            "the journal has data that the device refuses; make room for it, or open the volume read-only";
        error.into_inner().context(advice)
    })?;

    let as_found = superblocks::newest(&device).0[loaded.slot].clone()?;
    let (first, second) = (1 - loaded.slot, loaded.slot);
    publish(&device, &as_found, first)?;
    if let Some(plan) = &plan {
        plan.apply(&device, &mut loaded)?;
    }
    let number = loaded.superblock.checkpoint + 1;
    if let Some(name) = &options.roll_back {
        crate::rollback::apply(&device, &mut loaded, name, number)?;
    }

    let frozen = loaded.tree.freeze(loaded.orphans.take_changed(loaded.mends_pool)?);
    let stamp = CheckpointStamp { checkpoint: number, incarnation: loaded.superblock.incarnation + 1 };
    let image = loaded.tree.write_frozen(frozen, stamp)?;
    device.flush_to(device.mark())?;

    let superblock = &mut loaded.superblock;
    superblock.checkpoint = number;
    superblock.incarnation += 1;
    superblock.sequence = loaded.end;
    superblock.flags &= !FLAG_CLEAN;
    superblock.mount_count = superblock.mount_count.saturating_add(1);
    superblock.mounted = options.clock.now();
    superblock.checkpointed = superblock.mounted;
    name_image(superblock, &image);
    publish(&device, superblock, first)?;
    publish(&device, superblock, second)?;
    if let Some(plan) = &plan {
        plan.published(&device)?;
    }
    loaded.tree.both_slots(number);
    device.recorded().passed(loaded.end);

    let journal = Journal::open(
        device.clone(),
        JournalConfig {
            start: superblock.journal_start,
            blocks: superblock.journal_blocks,
            volume: superblock.volume_id(),
            incarnation: superblock.incarnation,
            head: loaded.end,
            tail: loaded.end,
            buffer_bytes: 4 << 20,
        },
    );
    let state = CheckpointState::published(number, second, loaded.end);
    parts(device, loaded, options, Some(journal), state)
}

/// Writes zeros over blocks of the journal that cannot be read, so that no later recovery finds one where its
/// stream ends. Before anything is published: after a clean close it may be the very next one. A block that
/// cannot be written either is left to the journal.
fn renew_unreadable(backend: &dyn Backend, unreadable: &[BlockNo]) {
    for at in unreadable {
        match backend.write(IoClass::Journal, *at, &AlignedBuf::zeroed(BLOCK_SIZE)) {
            Ok(()) => {
                tracing::warn!(%at, "an unused block of the journal could not be read; it is written anew")
            }
            Err(error) => {
                tracing::warn!(%at, %error, "an unused block of the journal can neither be read nor written");
            }
        }
    }
}

fn parts(
    device: Arc<Device>,
    loaded: Loaded,
    options: VolumeOptions,
    journal: Option<Arc<Journal>>,
    checkpoint: CheckpointState,
) -> Result<Parts> {
    let superblock = loaded.superblock;
    let alloc = Allocator::new(
        AllocConfig {
            data_start: superblock.data_start,
            data_end: superblock.data_end,
            free_blocks: superblock.free_blocks,
            discard: options.discard,
            used_elsewhere: Vec::new(),
        },
        Arc::new(TreeRegions(loaded.tree.clone())),
        device.clone(),
    )?;
    let mut next_logged = 0;
    loaded.tree.scan(Key::logged(0), Key::logged(u64::MAX), &mut |key, _| {
        debug_assert_eq!(key.kind, KeyKind::LoggedOp);
        next_logged = next_logged.max(key.offset.saturating_add(1));
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(Parts {
        device,
        read_only: journal.is_none(),
        journal,
        tree: loaded.tree,
        alloc,
        orphans: loaded.orphans,
        snapshots: loaded.snapshots,
        options,
        superblock,
        checkpoint,
        next_logged,
    })
}

fn with_own_cache(parts: Parts) -> Result<Arc<Engine>> {
    let config = parts.options.cache_config(default_cache_bytes)?;
    let cache = Cache::new(config, parts.device.clone(), parts.options.clock.clone())?;
    Ok(Engine::new(parts, cache, false))
}

/// A quarter of the machine's memory.
pub(crate) fn default_cache_bytes() -> u64 {
    let pages = rustix::system::sysinfo();
    (pages.totalram as u64 * u64::from(pages.mem_unit) / 4).max(32 << 20)
}

/// The allocator's view of the tree: used blocks by region.
struct TreeRegions(Arc<Tree>);

impl RegionSource for TreeRegions {
    fn load(&self, region: u64) -> Result<RegionMap> {
        self.0.get_with(Key::region(region), RegionMap::decode)?.unwrap_or_else(|| Ok(RegionMap::new()))
    }

    fn load_range(&self, regions: std::ops::Range<u64>, each: &mut dyn FnMut(u64, RegionMap)) -> Result<()> {
        let Some(last) = regions.end.checked_sub(1) else { return Ok(()) };
        let mut broken = Ok(());
        self.0.scan(
            Key::region(regions.start),
            Key::region(last),
            &mut |key, value| match RegionMap::decode(value) {
                Ok(map) => {
                    each(key.offset, map);
                    std::ops::ControlFlow::Continue(())
                }
                Err(error) => {
                    broken = Err(error.context(format!("region {}", key.offset)));
                    std::ops::ControlFlow::Break(())
                }
            },
        )?;
        broken
    }
}
