//! Snapshots: their metadata, and the blocks that they need.
//!
//! A snapshot is a checkpoint that is kept, so its metadata is walked like that of a superblock slot
//! ([`crate::checkpoint`]), and the walk looks at its extents. What mkfs fixed, the snapshot's superblock has
//! as the volume's has it. The blocks that its files need are in its own space tree, as those of the volume
//! are in the volume's. Whether a snapshot's own map of space fits its files, and its names its inodes, was
//! checked when the volume was in that state, and nothing has changed since but by damage, which checksums
//! show. A forged snapshot can be wrong there.
//!
//! Neighbours: [`crate::space`] compares the blocks needed with what the volume says.

use crate::checkpoint::{self, Checkpoint, Role, Seen};
use crate::issue::IssueKind;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::superblocks;
use quire::internals::snapshots::{self, Held};
use quire_base::Result;
use quire_base::sync::Arc;
use quire_device::Device;
use quire_format::extent::Extent;
use quire_format::key::{Key, KeyKind};
use quire_format::node::NodePage;
use quire_format::region::RegionMap;
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;
use quire_tree::Tree;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Snapshots by number, with what is wrong with their values.
pub(crate) type Table = BTreeMap<u32, Result<Snapshot>>;

/// The snapshots that a tree has.
pub(crate) fn table(tree: &Tree) -> Result<Table> {
    let mut table = Table::new();
    tree.scan(Key::snapshot(0), Key::snapshot(u32::MAX), &mut |key, value| {
        table.insert(key.offset as u32, Snapshot::decode(value));
        ControlFlow::Continue(())
    })?;
    Ok(table)
}

/// Adds the snapshots that a leaf has.
pub(crate) fn note(leaf: &NodePage, table: &mut Table) {
    let snapshots = (0..leaf.count()).filter(|at| leaf.key(*at).kind == KeyKind::Snapshot);
    table.extend(snapshots.map(|at| (leaf.key(at).offset as u32, Snapshot::decode(leaf.value(at)))));
}

/// What was found of snapshots.
#[derive(Default)]
pub(crate) struct Kept {
    /// What they name.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Those that are damaged, and what they are called.
    pub(crate) damaged: BTreeMap<u32, String>,
}

/// Looks at the metadata of every snapshot of the volume that `now` is the superblock of.
pub(crate) fn check(
    device: &Device,
    table: &Table,
    now: &Superblock,
    findings: &mut Findings,
    meter: &mut Meter<'_>,
) -> Kept {
    // Leaves that an earlier snapshot has are not read again, unless their extents are judged otherwise.
    let (mut seen, mut areas) = (Seen::new(), None);
    let mut kept = Kept::default();
    for (number, snapshot) in table {
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let message = format!(
                    "number {number}: {error}: the volume opens only for reading, until `quire fsck --repair --lossy` \
                     gives it up"
                );
                findings.add(IssueKind::SnapshotDamaged, Place::NONE, message);
                kept.damaged.insert(*number, format!("number {number}"));
                continue;
            }
        };
        let superblock = &snapshot.superblock;
        let fits = compare(*number, snapshot, now, findings);
        let its_areas = Some((superblock.journal(), superblock.data_space()));
        if areas != its_areas {
            (seen, areas) = (Seen::new(), its_areas);
        }
        let (slot, role) = (superblock.slot as usize, Role::Snapshot(&snapshot.name));
        let checkpoint = checkpoint::check(device, (slot, superblock), role, &mut seen, findings, meter);
        // The findings do not tell: they are limited.
        if !(checkpoint.whole && fits) {
            kept.damaged.insert(*number, snapshot.name.clone());
        }
        kept.checkpoints.push(checkpoint);
    }
    kept
}

/// Reports where a snapshot's superblock contradicts the volume's; gives whether it fits. A volume may have
/// grown since, and its journal may have become larger, which moves it.
fn compare(number: u32, snapshot: &Snapshot, now: &Superblock, findings: &mut Findings) -> bool {
    let old = &snapshot.superblock;
    let same_journal = (old.journal(), old.journal_has_moved()) == (now.journal(), now.journal_has_moved());
    let smaller_journal = now.journal_has_moved() && old.journal_blocks < now.journal_blocks;
    let checks = [
        ("uuid", old.uuid == now.uuid),
        ("time of making", old.created == now.created),
        ("size", old.block_count <= now.block_count),
        ("journal", same_journal || smaller_journal),
        ("metadata pool", old.pool_areas() == now.pool_areas()),
        ("areas", superblocks::areas_join(old)),
        ("copies of metadata", old.metadata_copies == now.metadata_copies),
        ("orphan blocks", old.orphan_blocks == now.orphan_blocks),
        // A receive begins with the seed of the stream, where nothing has been hashed yet.
        ("hash seed", old.hash_seed == now.hash_seed || old.inode_count <= 1),
        ("incarnation", old.incarnation <= now.incarnation),
        ("next inode", old.next_inode <= now.next_inode),
        ("epoch", old.epoch < number),
    ];
    let different: Vec<&str> = checks.iter().filter(|(_, fits)| !fits).map(|(name, _)| *name).collect();
    if !different.is_empty() {
        let (name, different) = (&snapshot.name, different.join(", "));
        findings.add(
            IssueKind::SnapshotDamaged,
            Place::NONE,
            format!("snapshot {name:?}: its superblock contradicts the volume's ({different}): delete it"),
        );
    }
    different.is_empty()
}

/// What is wrong with values of a snapshot's leaf: extents that no file may have, and parts of its map of
/// space that cannot be read. The volume's own are looked at later, as of the end of its journal
/// ([`crate::contents`], [`crate::space`]).
pub(crate) fn wrong_values(superblock: &Superblock, page: &NodePage) -> Vec<String> {
    let wrong = |at: usize| {
        let (key, value) = (page.key(at), page.value(at));
        match key.kind {
            KeyKind::Extent => {
                let wrong = match Extent::decode(key.offset, value) {
                    Ok(extent) if superblock.may_hold_data(extent.run()) => return None,
                    Ok(extent) => format!("{}, which no file may have", crate::fix::blocks(extent.run())),
                    Err(error) => error.to_string(),
                };
                Some(format!("inode {}: the extent at file block {} has {wrong}", key.object, key.offset))
            }
            KeyKind::FreeSpace | KeyKind::Dead => {
                let error = RegionMap::decode(value).err()?;
                Some(format!("which blocks of region {} it uses cannot be read: {error}", key.offset))
            }
            _ => None,
        }
    };
    (0..page.count()).filter_map(wrong).collect()
}

/// The blocks that snapshots need. Where a snapshot cannot tell, what the volume says is believed.
///
/// Errors: the volume's tree cannot be read.
pub(crate) fn held(device: &Arc<Device>, tree: &Tree, findings: &mut Findings) -> Result<Held> {
    let mut held = snapshots::known_held(device, tree);
    if held.unknown.is_empty() {
        return Ok(held);
    }
    for error in &held.unknown {
        let message = format!(
            "the blocks that snapshots need are not all known: {error}; repair frees none until the snapshot is deleted, or \
             `quire fsck --repair --lossy` has given it up"
        );
        findings.add(IssueKind::SnapshotDamaged, Place::NONE, message);
    }
    tree.scan(Key::dead(0), Key::dead(u64::MAX), &mut |key, value| {
        if let Ok(dead) = RegionMap::decode(value) {
            let all = held.blocks.entry(key.offset).or_default();
            *all = all.either(&dead);
        }
        ControlFlow::Continue(())
    })?;
    Ok(held)
}
