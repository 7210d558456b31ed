//! Rolling a volume back to its newest snapshot.
//!
//! A rollback is a recovery ([`super`]) whose checkpoint has the snapshot's tree of names.
//! Protocol:
//! 1. Replay, and recover as always up to the point where both slots lead to the state that was found.
//! 2. In memory: put the snapshot's tree of names and its orphans in the place of the volume's, and make the
//!    map of space anew. Used are what snapshots need, the fixed areas, and the chunks of the metadata pool;
//!    dead are those blocks that snapshots other than this one need.
//! 3. Write the checkpoint, and publish it in one slot and then in the other.
//!
//! Invariants: before the first slot is written the volume is as it was, then it is rolled back. The snapshot
//! stays. Inode numbers are not given out twice, nor does the epoch go back. Only the newest snapshot can be
//! rolled back to: a block that a file has belongs to all snapshots behind its birth
//! ([`crate::store::snapshot_table`]).
//!
//! Neighbours: [`crate::rollback`] is the public face; [`crate::snapshots`];
//! `quire_tree::Tree::replace_names`.

use super::load::Loaded;
use crate::snapshots::table::{self, Space, pool_of};
use crate::store::orphan_slots::OrphanSlots;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Error, Result};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::region::{RegionMap, split_by_region};
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;
use quire_tree::{CheckpointStamp, Tree};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The key of a region's map.
type KeyOf = fn(u64) -> Key;

/// The snapshot, if the volume can be rolled back to it.
pub(crate) fn check(tree: &Tree, superblock: &Superblock, name: &str) -> Result<Snapshot> {
    let (number, snapshot) = table::find(tree, name)?;
    let old = &snapshot.superblock;
    // A volume may have grown since.
    let fits = old.uuid == superblock.uuid
        && old.metadata_copies == superblock.metadata_copies
        && old.block_count <= superblock.block_count
        && old.orphan_blocks <= superblock.orphan_blocks;
    if !fits {
        return Err(Error::corrupt(format!(
            "the snapshot {name:?} is not one of this volume (see: quire fsck)"
        )));
    }
    let all = table::table(tree)?;
    if let Some((_, newer)) = all.iter().find(|(other, _)| *other > number) {
        let advice = match newer.deleting {
            Some(_) => {
                "this one is being deleted: mount the volume until `quire snapshot list` does not show it any more"
            }
            None => "delete those that are newer first",
        };
        return Err(Error::invalid(format!(
            "the snapshot {:?} is newer than {name:?}: a volume is rolled back to its newest snapshot; {advice}",
            newer.name
        )));
    }
    Ok(snapshot)
}

/// Step 2 of the protocol: the next checkpoint, of this number, is that of the rolled back volume.
pub(crate) fn apply(device: &Arc<Device>, loaded: &mut Loaded, name: &str, number: u64) -> Result<()> {
    let snapshot = check(&loaded.tree, &loaded.superblock, name)?;
    let old = &snapshot.superblock;
    let maps = maps(device, loaded, &snapshot)?;
    let stamp = CheckpointStamp { checkpoint: number, incarnation: loaded.superblock.incarnation + 1 };
    loaded.tree.replace_names(old.root, stamp)?;

    let tree = &loaded.tree;
    let keys: [(KeyOf, usize); 2] = [(Key::region, 0), (Key::dead, 1)];
    for (key, kind) in keys {
        let mut known = Vec::new();
        tree.scan(key(0), key(u64::MAX), &mut |key, _| {
            known.push(key.offset);
            ControlFlow::Continue(())
        })?;
        known.into_iter().try_for_each(|region| tree.delete(key(region)).map(drop))?;
        for (region, both) in &maps {
            if let Some(value) = both[kind].encode() {
                tree.put(key(*region), &value)?;
            }
        }
    }

    // An unfinished receive had built the tree that is given up.
    tree.delete(Key::RECEIVING)?;

    let mut pool = pool_of(device, &snapshot)?;
    loaded.orphans = OrphanSlots::new(loaded.superblock.orphan_blocks);
    for (index, block) in pool.load_orphan_blocks(device, old.orphan_blocks).into_iter().enumerate() {
        let slots = quire_format::orphan::decode(index as u64, &block?[..])?;
        loaded.orphans.load(index, &slots);
    }
    loaded.mends_pool = true;

    let superblock = &mut loaded.superblock;
    let fixed: u64 = superblock.kept_from_files().map(|run| run.blocks).sum();
    let used: u64 = maps.values().map(|[used, _]| u64::from(used.used_count())).sum();
    let (data, before) = (superblock.data_end.0 - superblock.data_start.0, superblock.data_start.0);
    debug_assert!(used >= before + fixed);
    superblock.free_blocks = data.saturating_sub(used - before);
    superblock.inode_count = old.inode_count;
    Ok(())
}

/// By region, the blocks that are used once the volume is rolled back, and those of them that are dead.
fn maps(device: &Arc<Device>, loaded: &Loaded, snapshot: &Snapshot) -> Result<BTreeMap<u64, [RegionMap; 2]>> {
    let (tree, superblock) = (&loaded.tree, &loaded.superblock);
    let mut fixed: BTreeMap<u64, RegionMap> = BTreeMap::new();
    let areas = [Run::new(BlockNo(0), superblock.data_start.0), superblock.journal()];
    for run in areas.into_iter().chain(tree.pool_chunks()) {
        for (region, start, blocks) in split_by_region(run) {
            fixed.entry(region).or_default().add(start, blocks);
        }
    }
    let mut maps: BTreeMap<u64, [RegionMap; 2]> = BTreeMap::new();
    for (region, used) in &fixed {
        maps.entry(*region).or_default()[0] = used.clone();
    }
    let space = Space::open(device, snapshot)?;
    for (region, held) in table::held(device, tree)? {
        let [used, dead] = maps.entry(region).or_default();
        *used = used.either(&held);
        *dead = held.without(&space.used(region)?);
        if let Some(fixed) = fixed.get(&region) {
            *dead = dead.without(fixed);
        }
    }
    Ok(maps)
}
