//! Snapshots: taking, listing, opening and deleting them.
//!
//! A snapshot is a checkpoint that is kept: its superblock lies under a key of the space tree. Taking one
//! writes a checkpoint and then journals the key, while nothing else changes the volume. From the key's
//! record on, what the checkpoint's trees name is not freed ([`quire_tree::Tree::keep`]), and blocks of files
//! that it has are shared ([`crate::snapshot_table`]).
//!
//! Deleting snapshot n:
//! 1. Journal that it is being deleted. From then on it shares nothing.
//! 2. Region by region, free what is dead, was in use in n, and neither in the snapshot before it nor in the
//!    one behind it. A block is used without a break from its first to its last snapshot, so these two tell
//!    of all others. Which blocks a snapshot used, its own space tree says. Each transaction moves the cursor
//!    in the snapshot's value past its region: a block that was freed, used and shared again is not looked at
//!    twice.
//! 3. Delete the key. Two checkpoints later the snapshot's nodes are free.
//!
//! Invariants: one deletion at a time, in the order in which they began, so the snapshots before and behind
//! do not go while one is under way. Recovery goes on from the cursor.
//!
//! Neighbours: [`crate::apply`] has the rules of single changes; [`crate::recovery`] opens a snapshot as a
//! volume.

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::transaction::{Cost, Depends, Transaction};
use crate::volume::Volume;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Context, Error, ErrorKind, Result, Timestamp};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::record::SMALL_CHANGE_MAX;
use quire_format::region::{REGION_BLOCKS, RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
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
}

impl SnapshotInfo {
    fn of(number: u32, snapshot: &Snapshot) -> SnapshotInfo {
        SnapshotInfo {
            name: snapshot.name.clone(),
            number,
            created: snapshot.created,
            deleting: snapshot.deleting.is_some(),
        }
    }
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
    fn each(&self, visit: &mut dyn FnMut(u64, RegionMap)) -> Result<()> {
        let mut outcome = Ok(());
        self.tree.scan(Key::region(0), Key::region(u64::MAX), &mut |key, _| {
            outcome = self.used(key.offset).map(|used| visit(key.offset, used));
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome
    }
}

/// By region, the blocks that snapshots need: for checks. What a snapshot that is being deleted has given
/// back is not among them.
pub fn held(device: &Arc<Device>, tree: &Tree) -> Result<BTreeMap<u64, RegionMap>> {
    let mut held: BTreeMap<u64, RegionMap> = BTreeMap::new();
    for (_, snapshot) in table(tree)? {
        let done = snapshot.deleting.unwrap_or(0);
        Space::open(device, &snapshot)?.each(&mut |region, used| {
            if region >= done {
                let all = held.entry(region).or_default();
                *all = all.either(&used);
            }
        })?;
    }
    Ok(held)
}

impl Engine {
    /// Takes a snapshot. The caller sees to it that nobody else changes the volume meanwhile, and that
    /// nothing is dirty.
    fn take_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        if name == crate::receive::BASE_NAME {
            return Err(Error::invalid(format!("the name {name:?} is for quire receive")));
        }
        self.take_snapshot_and(name, self.options.clock.now(), Cost::new(0, 0), &mut |_, _| ())
    }

    /// As [`Engine::take_snapshot`]: with the snapshot, `change` makes changes of its own, which cost `more`.
    pub(crate) fn take_snapshot_and(
        &self,
        name: &str,
        created: Timestamp,
        more: Cost,
        change: &mut dyn FnMut(u32, &mut Transaction<'_>),
    ) -> Result<SnapshotInfo> {
        Snapshot::check_name(name)?;
        if let Some((_, taken)) = table(&self.tree)?.into_iter().find(|(_, other)| other.name == name) {
            let state = if taken.deleting.is_some() { "is still being deleted" } else { "exists" };
            return Err(Error::new(ErrorKind::Exists, format!("a snapshot {name:?} {state}")));
        }
        let number = self.snapshots.epoch().checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "no volume takes more than 2^32 - 1 snapshots")
        })?;
        let mut transaction = self.begin(Cost::new(1 + more.keys, VALUE_MAX + more.bytes))?;
        let mut state = self.checkpoint.lock();
        let mut superblock = self.write_checkpoint(&mut state, 0).map_err(|error| self.shut_down(&error))?;
        superblock.scrub = None;
        let snapshot = Snapshot { name: name.into(), created, deleting: None, superblock };
        self.tree.keep(number, self.tree.pool_state().newest_entries())?;
        transaction.put(Key::snapshot(number), &snapshot.encode());
        change(number, &mut transaction);
        match transaction.commit_alone(Depends::Nothing) {
            Ok(seq) => {
                drop(state);
                self.force(seq)?;
                Ok(SnapshotInfo::of(number, &snapshot))
            }
            Err(error) => {
                self.tree.let_go(number, state.number + 1);
                Err(error)
            }
        }
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        let (number, mut snapshot) = find(&self.tree, name)?;
        self.finish_snapshot_deletions()?;
        snapshot.deleting = Some(0);
        let mut transaction = self.begin(Cost::new(1, VALUE_MAX).critical())?;
        transaction.put(Key::snapshot(number), &snapshot.encode());
        transaction.commit_alone(Depends::Nothing)?;
        self.finish_snapshot_deletions()
    }

    /// Goes on with deletions that have begun, to their ends.
    pub(crate) fn finish_snapshot_deletions(&self) -> Result<()> {
        loop {
            let all = table(&self.tree)?;
            let Some(at) = all.iter().position(|(_, snapshot)| snapshot.deleting.is_some()) else {
                return Ok(());
            };
            let neighbour = |at: Option<usize>| -> Result<Option<Space>> {
                let found = at.and_then(|at| all.get(at));
                found.map(|(_, snapshot)| Space::open(&self.device, snapshot)).transpose()
            };
            let around = [neighbour(at.checked_sub(1))?, neighbour(Some(at + 1))?];
            let (number, snapshot) = all[at].clone();
            self.sweep(number, snapshot, &around)?;
        }
    }

    /// Steps 2 and 3 of a deletion.
    fn sweep(&self, number: u32, mut snapshot: Snapshot, around: &[Option<Space>; 2]) -> Result<()> {
        let own = Space::open(&self.device, &snapshot)?;
        let mut next = snapshot.deleting.unwrap_or(0);
        while let Some(region) = self.next_dead_region(next)? {
            next = region + 1;
            let dead = self.tree.get_with(Key::dead(region), RegionMap::decode)?;
            let Some(dead) = dead.transpose()? else { continue };
            let mut free = dead.both(&own.used(region)?);
            for neighbour in around.iter().flatten() {
                free = free.without(&neighbour.used(region)?);
            }
            let runs: Vec<Run> = free
                .runs()
                .map(|(start, blocks)| {
                    Run::new(BlockNo(region * REGION_BLOCKS + u64::from(start)), blocks.into())
                })
                .collect();
            if runs.is_empty() {
                continue;
            }
            let mut transaction =
                self.begin(Cost::new(3, VALUE_MAX + runs.len() * SMALL_CHANGE_MAX).critical())?;
            runs.iter().for_each(|run| transaction.reclaim(*run));
            snapshot.deleting = Some(next);
            transaction.put(Key::snapshot(number), &snapshot.encode());
            transaction.commit(Depends::Nothing)?;
        }
        let mut transaction = self.begin(Cost::new(2, 0).critical())?;
        transaction.delete(Key::snapshot(number));
        transaction.delete(Key::received(number));
        transaction.commit_alone(Depends::Nothing)?;
        let state = self.checkpoint.lock();
        self.tree.let_go(number, state.number + 1);
        Ok(())
    }

    /// The first region from `from` on that has dead blocks.
    fn next_dead_region(&self, from: u64) -> Result<Option<u64>> {
        let mut found = None;
        self.tree.scan(Key::dead(from), Key::dead(u64::MAX), &mut |key, _| {
            found = Some(key.offset);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

impl Volume {
    /// The volume's snapshots, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(table(&self.engine().tree)?
            .iter()
            .map(|(number, snapshot)| SnapshotInfo::of(*number, snapshot))
            .collect())
    }

    /// Deletes a snapshot. Others that use the volume go on meanwhile.
    ///
    /// Errors: `NotFound`. After a crash the next opening goes on with the deletion.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        let engine = self.engine();
        let _change = engine.begin_change()?;
        engine.delete_snapshot(name)
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
    let taken = volume.engine().take_snapshot(name);
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
