//! Snapshots: taking and listing them.
//!
//! A snapshot is a checkpoint that is kept: its superblock lies under a key of the space tree. From the
//! record of that key on, what the checkpoint's trees name is not freed ([`quire_tree::Tree::keep`]), and
//! blocks of files that it has are shared ([`crate::store::snapshot_table`]).
//!
//! Protocol of taking one, while others use the volume:
//! 1. Sync, checkpoint, both again, while changes go on: so little is left for steps 3 and 5.
//! 2. Keep changes back where they begin ([`crate::changes`]), and wait for those under way.
//! 3. Write back. Nothing is dirty then, nothing is written, and no reservation for data stands.
//! 4. Keep the engine itself from freeing blocks ([`frees`](crate::store::Store::frees)): what is freed
//!    between the checkpoint and the key's record would be given to others, though the snapshot has it.
//! 5. Write a checkpoint with its homes, but for its superblock, and append the key's record. The record
//!    depends on all that was written so far, so nothing is flushed while changes are kept back. A reader of
//!    the snapshot replays no journal: homes must not come later than the key.
//! 6. Have the cache ask for homes again ([`quire_cache::Cache::forget_homes`]), and let changes go on.
//! 7. Publish the checkpoint, and force the record. What goes on meanwhile spares the snapshot's blocks, and
//!    its records lie behind the key's: a crash that loses the key loses them. A crash may also leave the key
//!    and lose the superblock: then a replay from an older checkpoint finds the key, and with it all that the
//!    snapshot needs.
//!
//! So a snapshot holds what all changes that had returned before step 2 have made, and no part of a later
//! one. A failure of steps 1 to 4 leaves no trace, and one of step 5 no key, or the volume is shut down.
//!
//! Invariants: one snapshot at a time is taken, and none of a frozen volume (`Engine::frozen` is held
//! throughout).
//!
//! Neighbours: [`crate::snapshot_sweep`] deletes; [`crate::store::apply`] has the rules of single changes;
//! [`crate::recovery`] opens a snapshot as a volume.

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::store::transaction::{Cost, Depends, Transaction};
use crate::volume::Volume;
use quire_base::sync::time::Instant;
use quire_base::sync::{Arc, MutexGuard};
use quire_base::{Context, Error, ErrorKind, Result, Seq, Timestamp};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::region::{REGION_BLOCKS, RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;
use quire_tree::{PoolState, Tree, TreeLimits};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Memory for the nodes of a snapshot's space tree.
const SPACE_CACHE_BYTES: u64 = 4 << 20;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// How many snapshots had ever been taken of the volume, with this one.
    pub number: u32,
    /// When it was taken.
    pub created: Timestamp,
    /// It is being deleted, and cannot be opened any more.
    pub deleting: bool,
    /// How much of the volume has been searched for its space then.
    pub deleted_percent: u8,
}

impl SnapshotInfo {
    pub(crate) fn of(number: u32, snapshot: &Snapshot) -> SnapshotInfo {
        SnapshotInfo {
            name: snapshot.name.clone(),
            number,
            created: snapshot.created,
            deleting: snapshot.deleting.is_some(),
            deleted_percent: deleted_percent(snapshot),
        }
    }
}

/// By the cursor, which stands where blocks were last freed.
fn deleted_percent(snapshot: &Snapshot) -> u8 {
    let regions = snapshot.superblock.block_count.div_ceil(REGION_BLOCKS).max(1);
    (snapshot.deleting.unwrap_or(0).min(regions) * 100 / regions) as u8
}

/// The snapshots of a volume, the oldest first.
pub fn table(tree: &Tree) -> Result<Vec<(u32, Snapshot)>> {
    let mut all = Vec::new();
    let mut outcome = Ok(());
    tree.scan(Key::snapshot(0), Key::snapshot(u32::MAX), &mut |key, value| match Snapshot::decode(value) {
        Ok(snapshot) => {
            all.push((key.offset as u32, snapshot));
            ControlFlow::Continue(())
        }
        Err(error) => {
            outcome = Err(error.context(format!("snapshot {}", key.offset)));
            ControlFlow::Break(())
        }
    })?;
    outcome.map(|()| all)
}

/// A snapshot by its name, and its number. `NotFound` if there is none or if it is being deleted.
pub(crate) fn find(tree: &Tree, name: &str) -> Result<(u32, Snapshot)> {
    let found = table(tree)?.into_iter().find(|(_, snapshot)| snapshot.name == name);
    found
        .filter(|(_, snapshot)| snapshot.deleting.is_none())
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the volume has no snapshot {name:?}")))
}

/// Has the pool keep what snapshots need.
pub(crate) fn keep_all(device: &Arc<Device>, tree: &Tree) -> Result<()> {
    for (number, snapshot) in table(tree)? {
        let pool = pool_of(device, &snapshot)
            .context(format_args!("snapshot {:?} (see: quire fsck)", snapshot.name))?;
        tree.keep(number, pool.newest_entries())?;
    }
    Ok(())
}

/// Takes all snapshots out of the tree of a volume that is being repaired; gives their names. What they had
/// stays marked used until the repair counts anew.
pub(crate) fn give_up(tree: &Tree) -> Result<Vec<String>> {
    let (mut names, mut keys) = (Vec::new(), Vec::new());
    tree.scan(Key::snapshot(0), Key::snapshot(u32::MAX), &mut |key, value| {
        keys.push(key);
        names.push(Snapshot::decode(value).map_or_else(|_| format!("number {}", key.offset), |s| s.name));
        ControlFlow::Continue(())
    })?;
    tree.scan(Key::RECEIVING, Key::received(u32::MAX), &mut |key, _| {
        keys.push(key);
        ControlFlow::Continue(())
    })?;
    keys.into_iter().try_for_each(|key| tree.delete(key).map(drop))?;
    Ok(names)
}

pub(crate) fn pool_of(device: &Arc<Device>, snapshot: &Snapshot) -> Result<PoolState> {
    let superblock = &snapshot.superblock;
    PoolState::load(device, superblock.volume_id(), superblock.manifest, superblock.block_count)
}

/// The space that files used when a snapshot was taken.
pub(crate) struct Space {
    tree: Arc<Tree>,
    journal: Run,
}

impl Space {
    pub(crate) fn open(device: &Arc<Device>, snapshot: &Snapshot) -> Result<Space> {
        let superblock = &snapshot.superblock;
        let limits = TreeLimits::with_cache_bytes(SPACE_CACHE_BYTES);
        let pool = pool_of(device, snapshot)?;
        Tree::open_space(device.clone(), superblock.volume_id(), superblock.roots(), pool, limits)
            .map(|tree| Space { tree, journal: superblock.journal() })
            .context(format_args!("snapshot {:?}", snapshot.name))
    }

    /// The blocks of a region that the snapshot needs: those that were in use, and not only by older
    /// snapshots. The journal is none of them, and may have moved since.
    pub(crate) fn used(&self, region: u64) -> Result<RegionMap> {
        let map = |key| self.tree.get_with(key, RegionMap::decode)?.unwrap_or_else(|| Ok(RegionMap::new()));
        let (used, mut other) = (map(Key::region(region))?, map(Key::dead(region))?);
        for (_, start, blocks) in split_by_region(self.journal).filter(|part| part.0 == region) {
            other.add(start, blocks);
        }
        Ok(used.without(&other))
    }

    /// Calls `visit` with each region in which the snapshot needs blocks.
    pub(crate) fn each(&self, visit: &mut dyn FnMut(u64, RegionMap)) -> Result<()> {
        let mut outcome = Ok(());
        self.tree.scan(Key::region(0), Key::region(u64::MAX), &mut |key, _| {
            outcome = self.used(key.offset).map(|used| visit(key.offset, used));
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome
    }
}

/// The dead blocks of a region, as a tree has them.
pub(crate) fn dead(tree: &Tree, region: u64) -> Result<RegionMap> {
    Ok(tree.get_with(Key::dead(region), RegionMap::decode)?.transpose()?.unwrap_or_default())
}

/// By region, the blocks that snapshots need: for checks. What a snapshot that is being deleted has given
/// back is not among them: regions before its cursor, and behind it what is not dead, since such a snapshot
/// shares nothing, and blocks that leave files are free at once.
pub fn held(device: &Arc<Device>, tree: &Tree) -> Result<BTreeMap<u64, RegionMap>> {
    let mut held: BTreeMap<u64, RegionMap> = BTreeMap::new();
    for (_, snapshot) in table(tree)? {
        let mut outcome = Ok(());
        Space::open(device, &snapshot)?.each(&mut |region, used| {
            let needed = match snapshot.deleting {
                None => used,
                Some(done) if region < done => return,
                Some(_) => match dead(tree, region) {
                    Ok(dead) => used.both(&dead),
                    Err(error) => return outcome = Err(error),
                },
            };
            let all = held.entry(region).or_default();
            *all = all.either(&needed);
        })?;
        outcome?;
    }
    Ok(held)
}

/// Changes are kept back while it lives.
pub(crate) struct Held<'a> {
    engine: &'a Engine,
    since: Instant,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.engine.changes.release();
        let counters = &self.engine.counters;
        counters.snapshot_holds.add(1);
        counters.snapshot_hold_us.add(self.since.elapsed().as_micros() as u64);
    }
}

impl Engine {
    /// The protocol's steps.
    fn take_snapshot(self: &Arc<Engine>, name: &str) -> Result<SnapshotInfo> {
        self.store.check_writable()?;
        if name == crate::receive::BASE_NAME {
            return Err(Error::invalid(format!("the name {name:?} is for quire receive")));
        }
        self.check_new_name(name)?;
        drop(self.not_frozen("a snapshot can be taken")?);
        self.sync()?;
        self.store.checkpoint_now()?;
        self.sync()?;
        self.store.checkpoint_now()?;
        let _not_frozen = self.not_frozen("a snapshot can be taken")?;
        let since = Instant::now();
        if !self.changes.hold() {
            return Err(Error::new(ErrorKind::Shutdown, "the volume is being closed"));
        }
        let held = Held { engine: self, since };
        self.write_back()?;
        let now = self.store.options.clock.now();
        self.take_snapshot_and(name, now, Cost::new(0, 0), &mut |_, _| (), Some(held))
    }

    /// Steps 4 to 7. Nobody else changes the volume, as long as `held` lives, and nothing is dirty. With the
    /// snapshot, `change` makes changes of its own, which cost `more`.
    pub(crate) fn take_snapshot_and(
        &self,
        name: &str,
        created: Timestamp,
        more: Cost,
        change: &mut dyn FnMut(u32, &mut Transaction<'_>),
        held: Option<Held<'_>>,
    ) -> Result<SnapshotInfo> {
        self.check_new_name(name)?;
        let frees = self.store.frees.whole();
        let transaction = self.store.begin(Cost::new(1 + more.keys, VALUE_MAX + more.bytes))?;
        let mut state = self.store.checkpoint.lock();
        self.store.write_image(&mut state, 0)?;
        let superblock = state.unpublished.clone().expect("it was just written");
        self.store.write_homes_up_to(superblock.sequence)?;
        let kept = self.keep_checkpoint(name, created, superblock, transaction, change);
        self.cache.forget_homes();
        drop((frees, held));
        self.store.publish_image(&mut state)?;
        let (taken, seq) = kept?;
        drop(state);
        self.store.force(seq)?;
        Ok(taken)
    }

    /// While the guard lives nobody freezes the volume, takes a snapshot, or makes the volume larger. Errors:
    /// `Busy` while it is frozen, with what has to wait.
    pub(crate) fn not_frozen(&self, what: &str) -> Result<MutexGuard<'_, bool>> {
        let is_frozen = self.frozen.lock();
        match *is_frozen {
            true => Err(Error::new(ErrorKind::Busy, format!("the volume is frozen: {what} after the thaw"))),
            false => Ok(is_frozen),
        }
    }

    fn check_new_name(&self, name: &str) -> Result<()> {
        Snapshot::check_name(name)?;
        match table(&self.store.tree)?.into_iter().find(|(_, other)| other.name == name) {
            Some((_, taken)) => {
                let state = if taken.deleting.is_some() { "is still being deleted" } else { "exists" };
                Err(Error::new(ErrorKind::Exists, format!("a snapshot {name:?} {state}")))
            }
            None => Ok(()),
        }
    }

    /// Appends the key of a snapshot: the checkpoint that was written last, which may have to be published
    /// yet.
    fn keep_checkpoint(
        &self,
        name: &str,
        created: Timestamp,
        mut superblock: Superblock,
        mut transaction: Transaction<'_>,
        change: &mut dyn FnMut(u32, &mut Transaction<'_>),
    ) -> Result<(SnapshotInfo, Seq)> {
        let number = self.store.snapshots.epoch().checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "no volume takes more than 2^32 - 1 snapshots")
        })?;
        let next_checkpoint = superblock.checkpoint + 1;
        // The volume's, not the snapshot's.
        (superblock.scrub, superblock.changed_uuid) = (None, [0; 16]);
        let snapshot = Snapshot { name: name.into(), created, deleting: None, superblock };
        self.store.tree.keep_newest(number)?;
        transaction.put(Key::snapshot(number), &snapshot.encode());
        change(number, &mut transaction);
        match transaction.commit_alone(Depends::Written(self.store.device.mark())) {
            Ok(seq) => Ok((SnapshotInfo::of(number, &snapshot), seq)),
            Err(error) => {
                self.store.tree.let_go(number, next_checkpoint);
                Err(error)
            }
        }
    }
}

impl Volume {
    /// The volume's snapshots, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(table(&self.engine().store.tree)?
            .iter()
            .map(|(number, snapshot)| SnapshotInfo::of(*number, snapshot))
            .collect())
    }

    /// Takes a snapshot. Others may use the volume: changes that begin meanwhile wait for a moment, reads go
    /// on. The snapshot has what all changes made that had returned before, and is durable.
    ///
    /// Errors: `Exists` if there is one of that name; `Invalid` if none can have it; `Busy` if the volume is
    /// frozen; `NoSpace`; `ReadOnly` and `Shutdown` as for changes; those of the device. There is no snapshot
    /// then.
    ///
    /// ```
    /// # use quire::{FormatOptions, VolumeOptions, backend::MemoryBackend};
    /// # fn main() -> quire::Result<()> {
    /// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
    /// # FormatOptions::new().format_backend(device.clone())?;
    /// # let volume = VolumeOptions::new().open_backend(device.clone())?;
    /// volume.write("note", "first")?;
    /// volume.take_snapshot("monday")?;
    /// volume.write("note", "second")?;
    /// volume.close()?;
    /// let monday = VolumeOptions::new().read_only(true).snapshot("monday").open_backend(device)?;
    /// assert_eq!(monday.read("note")?, b"first");
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.engine().take_snapshot(name)
    }
}

/// Takes a snapshot of the volume in an image file or on a block device. Nobody may have it open.
///
/// Errors: `Exists` if there is one of that name; `Invalid` if none can have it; `Busy` if the volume is
/// mounted or open elsewhere.
#[cfg(not(any(loom, shuttle)))]
pub fn take_snapshot(path: impl AsRef<std::path::Path>, name: &str) -> Result<SnapshotInfo> {
    take_snapshot_backend(quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?, name)
}

/// As [`take_snapshot`], of a volume on any backend.
pub fn take_snapshot_backend(backend: Arc<dyn quire_device::Backend>, name: &str) -> Result<SnapshotInfo> {
    let volume = Volume::open_with(backend, &VolumeOptions { threads: false, ..VolumeOptions::new() })?;
    let taken = volume.take_snapshot(name);
    volume.close()?;
    taken
}

/// Deletes a snapshot of the volume in an image file or on a block device. Nobody may have it open.
///
/// Errors: `NotFound`; `Busy`.
#[cfg(not(any(loom, shuttle)))]
pub fn delete_snapshot(path: impl AsRef<std::path::Path>, name: &str) -> Result<()> {
    let backend = quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?;
    let volume = Volume::open_with(backend, &VolumeOptions { threads: false, ..VolumeOptions::new() })?;
    let deleted = volume.delete_snapshot(name);
    volume.close()?;
    deleted
}
