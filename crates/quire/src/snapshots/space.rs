//! The space that snapshots take.
//!
//! A block of a file is in use without a break from the first snapshot that has it to the last one. So a
//! snapshot has a block alone if the volume itself has it no longer (it is *dead*, see
//! [`crate::store::snapshot_table`]) and neither the snapshot before nor the one behind has it. Deleting the
//! snapshot frees just these. A block of the metadata pool is a snapshot's alone if no other checkpoint that
//! is kept names it, nor the newest one.
//!
//! Snapshots that are being deleted do not count: what they have is on its way to be free.
//!
//! Neighbours: [`super::sweep`] deletes by the same rule.

use super::table::{SnapshotInfo, Space, pool_of, table};
use crate::inspect::Image;
use crate::volume::Volume;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Context, Result};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::region::{RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
use quire_tree::{PoolState, Tree};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// What a snapshot takes, in blocks of 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotSpace {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
    /// Blocks of files that nothing else has: deleting the snapshot frees them.
    pub file_blocks_alone: u64,
    /// Blocks of files that another snapshot, or the volume itself, has too.
    pub file_blocks_shared: u64,
    /// Blocks of metadata that nothing else has. They become free for other metadata: the pool keeps its
    /// size.
    pub pool_blocks_alone: u64,
    /// Blocks of metadata that another snapshot, or the volume itself, has too.
    pub pool_blocks_shared: u64,
}

impl SnapshotSpace {
    /// All blocks that nothing else has.
    pub fn alone(&self) -> u64 {
        self.file_blocks_alone + self.pool_blocks_alone
    }

    /// All blocks that something else has, too.
    pub fn shared(&self) -> u64 {
        self.file_blocks_shared + self.pool_blocks_shared
    }
}

/// What the snapshots of a volume take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotsSpace {
    /// For each snapshot, the oldest first.
    pub each: Vec<SnapshotSpace>,
    /// Blocks that the volume itself does not need: deleting all snapshots frees them.
    pub held_blocks: u64,
}

impl Volume {
    /// What the snapshots of the volume take. Reads the maps of space of all of them.
    ///
    /// Errors: `Unsupported` if this is itself a snapshot.
    pub fn snapshot_space(&self) -> Result<SnapshotsSpace> {
        let engine = self.engine();
        engine.may_have_snapshots()?;
        let tree = &engine.store.tree;
        loop {
            let listed = table(tree)?;
            let pool = {
                // The map of the pool is that of one checkpoint.
                let _state = engine.store.checkpoint.lock();
                tree.pool_state()
            };
            let space = space(&engine.store.device, tree, &pool);
            // What was read of one that has been deleted meanwhile means nothing.
            if engine.store.read_only || listed.iter().all(|(number, _)| tree.keeps(*number)) {
                return space;
            }
        }
    }
}

impl Image {
    /// As [`Volume::snapshot_space`], of a volume as of the end of its journal.
    pub fn snapshot_space(&self) -> Result<SnapshotsSpace> {
        space(&self.device, &self.tree, &self.tree.pool_state())
    }
}

fn space(device: &Arc<Device>, tree: &Tree, pool: &PoolState) -> Result<SnapshotsSpace> {
    let mut all = table(tree)?;
    all.retain(|(_, snapshot)| snapshot.deleting.is_none());
    let newest = pool.newest_entries();
    let mut kept = Vec::with_capacity(all.len());
    let mut fixed = Vec::with_capacity(all.len());
    for (_, snapshot) in &all {
        let pool = pool_of(device, snapshot)
            .context(format_args!("metadata of the snapshot {:?}", snapshot.name))?;
        kept.push(pool.newest_entries());
        fixed.push(beside_files(snapshot, &pool));
    }
    let (metadata, held_metadata) = quire_tree::alone(&newest, &kept);
    let mut each = Vec::with_capacity(all.len());
    let open = |at: Option<usize>| -> Result<Option<Space>> {
        let found = at.and_then(|at| all.get(at));
        found.map(|(_, snapshot): &(u32, Snapshot)| Space::open(device, snapshot)).transpose()
    };
    let (mut before, mut own) = (None, open(Some(0))?);
    for (at, (number, snapshot)) in all.iter().enumerate() {
        let behind = open(at.checked_add(1))?;
        let mut space = SnapshotSpace {
            snapshot: SnapshotInfo::of(*number, snapshot),
            file_blocks_alone: 0,
            file_blocks_shared: 0,
            pool_blocks_alone: metadata[at].0,
            pool_blocks_shared: metadata[at].1 - metadata[at].0,
        };
        let mut outcome = Ok(());
        let own_space = own.as_ref().expect("each snapshot has one");
        own_space.each(&mut |region, used| {
            let used = fixed[at].get(&region).map_or_else(|| used.clone(), |fixed| used.without(fixed));
            let alone = alone_in(tree, region, &used, [&before, &behind]);
            match alone {
                Ok(alone) => {
                    space.file_blocks_alone += alone;
                    space.file_blocks_shared += u64::from(used.used_count()) - alone;
                }
                Err(error) => outcome = Err(error),
            }
        })?;
        outcome?;
        each.push(space);
        (before, own) = (own, behind);
    }
    let held_blocks = held_metadata + if all.is_empty() { 0 } else { dead_blocks(tree)? };
    Ok(SnapshotsSpace { each, held_blocks })
}

/// By region, what a map of space marks used that no file has: fixed areas, and the metadata pool.
fn beside_files(snapshot: &Snapshot, pool: &PoolState) -> BTreeMap<u64, RegionMap> {
    let superblock = &snapshot.superblock;
    let mut fixed: BTreeMap<u64, RegionMap> = BTreeMap::new();
    let front = Run::new(BlockNo(0), superblock.data_start.0);
    let areas = std::iter::once(front).chain(superblock.kept_from_files()).chain(pool.chunks());
    for (region, start, blocks) in areas.flat_map(split_by_region) {
        fixed.entry(region).or_default().add(start, blocks);
    }
    fixed
}

/// How many blocks of `used` are a snapshot's alone, between its neighbours.
fn alone_in(tree: &Tree, region: u64, used: &RegionMap, around: [&Option<Space>; 2]) -> Result<u64> {
    let Some(dead) = tree.get_with(Key::dead(region), RegionMap::decode)?.transpose()? else { return Ok(0) };
    let mut alone = dead.both(used);
    for neighbour in around.into_iter().flatten() {
        alone = alone.without(&neighbour.used(region)?);
    }
    Ok(u64::from(alone.used_count()))
}

fn dead_blocks(tree: &Tree) -> Result<u64> {
    let (mut blocks, mut outcome) = (0, Ok(()));
    tree.scan(Key::dead(0), Key::dead(u64::MAX), &mut |_, value| match RegionMap::decode(value) {
        Ok(dead) => {
            blocks += u64::from(dead.used_count());
            ControlFlow::Continue(())
        }
        Err(error) => {
            outcome = Err(error);
            ControlFlow::Break(())
        }
    })?;
    outcome.map(|()| blocks)
}
