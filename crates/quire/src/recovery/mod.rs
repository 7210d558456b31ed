//! Opening a volume: choosing a superblock, replaying the journal, starting a new incarnation.
//!
//! Protocol:
//! 1. Read both superblock slots; try the newer checkpoint first. Its tree, manifest and orphan blocks must
//!    check.
//! 2. Replay the journal from its S in memory. If the newer slot's tree or superblock is damaged or cannot be
//!    read, the older slot serves if its tree checks and the journal from its S is whole (at least up to the
//!    newer one's S, where that is readable); else the volume is refused, with both reasons.
//! 3. Flush, before anything read counts as durable: what a killed process left in the drive's cache could
//!    still vanish after we build on it.
//! 4. Copy the chosen superblock into the other slot, so that no slot needs pool blocks which the chosen
//!    one's map shows as free.
//! 5. Write what replay changed as a checkpoint of a new incarnation, publish it in one slot, then in the
//!    other. Only now may the journal be appended to: records of an earlier incarnation can never again be
//!    taken for live.
//! 6. Finish logged operations, as far as there is room; list orphans for the reaper ([`crate::reaper`]).
//!
//! [`reshape`] takes part in step 5 if the volume is to get another shape, [`rolling_back`] if it is rolled
//! back. The module `load` does steps 1 and 2.
//!
//! A read-only mount does 1 and 2, in memory, and writes nothing.
//!
//! Neighbours: [`crate::store::checkpoint`], [`crate::reaper`]; [`unfinished`] says what a volume opens as
//! that has not received all of a stream.

mod load;
pub(crate) mod reshape;
pub(crate) mod rolling_back;
pub(crate) mod unfinished;

pub use load::{JournalCut, RecoveryReport};
pub(crate) use load::{Loaded, default_cache_bytes, load};

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::snapshots::table;
use crate::store::Parts;
use crate::store::checkpoint::{CheckpointState, name_image};
use crate::store::snapshot_table::SnapshotTable;
use crate::store::superblocks::{self, publish};
use load::{Replay, load_from, none_usable};
use quire_alloc::{AllocConfig, Allocator, RegionSource};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_cache::Cache;
use quire_device::{AlignedBuf, Backend, Device, IoClass};
use quire_format::key::{Key, KeyKind};
use quire_format::region::RegionMap;
use quire_format::superblock::{FLAG_CLEAN, FLAG_ERRORS, Superblock};
use quire_journal::{Journal, JournalConfig};
use quire_tree::{CheckpointStamp, Tree};

/// Opens a volume on a backend.
pub(crate) fn open(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
) -> Result<(Arc<Engine>, RecoveryReport)> {
    let (engine, report) = open_unfinished(backend, options)?;
    match finish(&engine) {
        Ok(()) => Ok((engine, report)),
        Err(error) => {
            // The inodes that it has loaded hold the engine, which holds them.
            engine.inodes.clear();
            Err(error)
        }
    }
}

/// Step 6 of the protocol.
fn finish(engine: &Arc<Engine>) -> Result<()> {
    if engine.store.read_only {
        return match engine.store.shows_half_an_operation() {
            true => engine.hide_half_moved(),
            false => Ok(()),
        };
    }
    engine.store.keep_standing_reserve()?;
    engine.finish_logged_operations()?;
    match engine.store.options.threads {
        true if engine.store.snapshots.any_deleted() => engine.reaper.want_sweep(),
        true => {}
        false => engine.finish_snapshot_deletions().or_else(|error| match engine.store.failure() {
            Some(failure) => Err(failure),
            None => {
                tracing::warn!(%error, "a snapshot could not be deleted yet; the next opening goes on");
                Ok(())
            }
        })?,
    }
    engine.list_orphans()
}

/// Finishes the logged operations of a volume, as far as there is room, and nothing else that a crash left.
pub(crate) fn settle(backend: Arc<dyn Backend>, options: VolumeOptions) -> Result<()> {
    let (engine, _) = open_unfinished(backend, options)?;
    let reserved = engine.store.keep_standing_reserve();
    let finished = reserved.and_then(|()| engine.finish_logged_operations());
    let settled = finished.and_then(|()| engine.store.checkpoint_clean());
    engine.inodes.clear();
    settled
}

/// As [`open`], with orphans and logged operations left as they are.
pub(crate) fn open_unfinished(
    backend: Arc<dyn Backend>,
    mut options: VolumeOptions,
) -> Result<(Arc<Engine>, RecoveryReport)> {
    let device = Device::new(backend.clone());
    let (mut loaded, cut) = match options.remains {
        true => load_remains(&device, &options)?,
        false => (load(&device, &options)?, JournalCut::default()),
    };
    if let Some(before) = unfinished::shown_instead(&device, &loaded.tree, &options)? {
        options.snapshot = Some(before);
    }
    if let Some(name) = &options.snapshot {
        if !options.read_only && !device.is_read_only() {
            return Err(Error::invalid("a snapshot is opened read-only"));
        }
        let (_, snapshot) = table::find(&loaded.tree, name)?;
        device.recorded().clear();
        loaded = load_from(&device, &options, snapshot.superblock, loaded.slot, Replay::Nothing)?.0;
    }
    let superblock = &loaded.superblock;
    let mut read_only = options.read_only || device.is_read_only();
    if let Some(because) = superblock.read_only_because() {
        tracing::warn!(%because, "the volume is opened read-only");
        read_only = true;
    }
    if superblock.flags & FLAG_ERRORS != 0 {
        tracing::warn!("the volume remembers an error: `quire fsck --repair` looks into it");
    }
    let records = loaded.report.records;
    let mut report = RecoveryReport { cut, ..loaded.report.clone() };
    report.read_only_because = superblock.read_only_because().map(|error| error.to_string());
    if device.is_read_only() && !options.read_only {
        report.read_only_because.get_or_insert_with(|| "it may not be written".into());
    }
    if records > 0 {
        tracing::info!(records, "journal replayed");
    }
    let parts = if read_only {
        if options.reshape.is_some() || options.roll_back.is_some() {
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

/// Loads a volume whose newest checkpoint is whole: its journal is replayed as far as it can be read.
fn load_remains(device: &Arc<Device>, options: &VolumeOptions) -> Result<(Loaded, JournalCut)> {
    let slots = superblocks::newest(device).0.into_iter().enumerate();
    let newest =
        slots.filter_map(|(slot, read)| Some((slot, read.ok()?))).max_by_key(|(_, read)| read.checkpoint);
    let Some((slot, superblock)) = newest else { return Err(none_usable(device, &[])) };
    load_from(device, options, superblock, slot, Replay::Readable)
}

/// Opens what [`load_remains`] loads, for a repair that may lose data.
///
/// Errors: `Busy` if the volume has an unfinished receive, and the snapshot that it began at. Without that
/// snapshot the volume would have neither its old state nor its new one.
pub(crate) fn open_remains(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
) -> Result<(Arc<Engine>, JournalCut)> {
    let device = Device::new(backend.clone());
    let (mut loaded, mut cut) = load_remains(&device, &options)?;
    unfinished::check_none_needed(&loaded.tree)?;
    // What they keep may be overwritten by now.
    cut.snapshots = table::give_up(&loaded.tree)?;
    loaded.snapshots = Arc::new(SnapshotTable::load(&loaded.tree, loaded.superblock.epoch)?);
    // Some were needed. Until the cut is published, they say that something is missing.
    let unreadable = std::mem::take(&mut loaded.unreadable);
    let engine = with_own_cache(new_incarnation(&*backend, device, loaded, options)?)?;
    renew_unreadable(&*backend, &unreadable);
    Ok((engine, cut))
}

/// Opens a volume for writing without some of its snapshots, for a repair that gives them up.
pub(crate) fn open_without(
    backend: Arc<dyn Backend>,
    options: VolumeOptions,
    snapshots: &[u32],
) -> Result<Arc<Engine>> {
    let device = Device::new(backend.clone());
    let mut loaded = load(&device, &options)?;
    table::give_up_some(&loaded.tree, snapshots)?;
    loaded.snapshots = Arc::new(SnapshotTable::load(&loaded.tree, loaded.superblock.epoch)?);
    with_own_cache(new_incarnation(&*backend, device, loaded, options)?)
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
        rolling_back::check(&loaded.tree, &loaded.superblock, name)?;
    }
    let plan = options.reshape.as_ref().map(|reshape| reshape.plan(&device, &loaded)).transpose()?;
    table::keep_all(&device, &loaded.tree)?;
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
        rolling_back::apply(&device, &mut loaded, name, number)?;
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
