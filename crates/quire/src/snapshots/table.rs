//! The snapshots of a volume, as its trees have them.
//!
//! A snapshot lies under a key of the space tree: its name, its number, and the superblock of the checkpoint
//! that is kept. Its own space tree says which blocks were in use.
//!
//! Neighbours: [`super::taking`] and [`super::sweep`] change the table; [`crate::recovery`], [`crate::send`]
//! and fsck read it.

use quire_base::sync::Arc;
use quire_base::{Context, Error, ErrorKind, Result, Timestamp};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::receive::SnapshotId;
use quire_format::region::{REGION_BLOCKS, RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;
use quire_tree::{PoolState, Tree, TreeLimits};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The snapshot that an empty volume gets as a base for what it receives.
pub const BASE_NAME: &str = ".before-receive";

/// Memory for the nodes of the space trees of snapshots that are open at a time.
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

/// Has the pool keep what snapshots need. Errors: what one needs is not known, so nothing may be written.
pub(crate) fn keep_all(device: &Arc<Device>, tree: &Tree) -> Result<()> {
    for (number, snapshot) in table(tree).context("what a snapshot needs is not known (see: quire fsck)")? {
        let pool = pool_of(device, &snapshot)
            .context(format_args!("snapshot {:?} (see: quire fsck)", snapshot.name))?;
        tree.keep(number, snapshot.superblock.checkpoint, pool.newest_entries())?;
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

/// Takes some out, as [`give_up`] does, which no unfinished receive began at.
pub(crate) fn give_up_some(tree: &Tree, numbers: &[u32]) -> Result<()> {
    let keys = numbers.iter().flat_map(|number| [Key::snapshot(*number), Key::received(*number)]);
    keys.into_iter().try_for_each(|key| tree.delete(key).map(drop))
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
        Space::open_beside(device, snapshot, 0)
    }

    /// Opens one of several: beside `others` that are open at the same time.
    pub(crate) fn open_beside(device: &Arc<Device>, snapshot: &Snapshot, others: usize) -> Result<Space> {
        let superblock = &snapshot.superblock;
        let limits = TreeLimits::with_cache_bytes(SPACE_CACHE_BYTES / (1 + others as u64));
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

/// By region, the blocks that snapshots need. Errors: a snapshot cannot tell.
pub(crate) fn held(device: &Arc<Device>, tree: &Tree) -> Result<BTreeMap<u64, RegionMap>> {
    let Held { blocks, unknown, .. } = known_held(device, tree);
    unknown.into_iter().next().map_or(Ok(blocks), Err)
}

/// What snapshots need, as far as it is known.
#[derive(Debug, Default)]
pub struct Held {
    /// By region, the blocks.
    pub blocks: BTreeMap<u64, RegionMap>,
    /// The newest snapshot that is not being deleted, which shares what was born before it; 0: there is none.
    pub newest: u32,
    /// Why some of the blocks are not known.
    pub unknown: Vec<Error>,
}

/// The blocks that snapshots need, as far as their space trees can be read. What a snapshot that is being
/// deleted has given back is not among them: regions before its cursor, and behind it what is not dead, since
/// such a snapshot shares nothing, and blocks that leave files are free at once.
pub fn known_held(device: &Arc<Device>, tree: &Tree) -> Held {
    let mut held = Held::default();
    let snapshots = table(tree).unwrap_or_else(|error| {
        held.unknown.push(error);
        Vec::new()
    });
    for (number, snapshot) in snapshots {
        if snapshot.deleting.is_none() {
            held.newest = number;
        }
        let mut add = |region, used: RegionMap| {
            let needed = match snapshot.deleting {
                None => used,
                Some(done) if region < done => return,
                // Where it cannot be read what is dead, all of it may be.
                Some(_) => dead(tree, region).map_or_else(|_| used.clone(), |dead| used.both(&dead)),
            };
            let all = held.blocks.entry(region).or_default();
            *all = all.either(&needed);
        };
        let read = Space::open(device, &snapshot).and_then(|space| space.each(&mut add));
        held.unknown.extend(read.err());
    }
    held
}

/// Which snapshot, of any volume, a snapshot of this one is.
pub(crate) fn identity(
    tree: &Tree,
    superblock: &Superblock,
    number: u32,
    snapshot: &Snapshot,
) -> Result<SnapshotId> {
    let own = SnapshotId { volume: superblock.uuid, number, created: snapshot.created };
    tree.get_with(Key::received(number), SnapshotId::decode)?.unwrap_or(Ok(own))
}
