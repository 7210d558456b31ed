//! Snapshots: their metadata, and the blocks that they need.
//!
//! A snapshot is a checkpoint that is kept, so its metadata is walked like that of a superblock slot
//! ([`crate::checkpoint`]). The blocks that its files need are in its own space tree, as those of the volume
//! are in the volume's. Whether a snapshot's own map of space fits its files was checked when the volume was
//! in that state, and nothing has changed since but by damage, which checksums show.
//!
//! Neighbours: [`crate::space`] compares the blocks needed with what the volume says.

use crate::checkpoint::{self, Checkpoint, Role, Seen};
use crate::issue::IssueKind;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::view::Held;
use quire::internals::snapshots;
use quire_base::Result;
use quire_base::sync::Arc;
use quire_device::Device;
use quire_format::key::Key;
use quire_format::region::RegionMap;
use quire_tree::Tree;
use std::ops::ControlFlow;

/// Looks at the metadata of every snapshot.
pub(crate) fn check(
    device: &Device,
    tree: &Tree,
    seen: &mut Seen,
    findings: &mut Findings,
    meter: &mut Meter<'_>,
) -> Vec<Checkpoint> {
    let table = match snapshots::table(tree) {
        Ok(table) => table,
        Err(error) => {
            findings.add(IssueKind::SnapshotDamaged, Place::NONE, error.to_string());
            return Vec::new();
        }
    };
    table
        .iter()
        .map(|(_, snapshot)| {
            let (slot, role) = (snapshot.superblock.slot as usize, Role::Snapshot(&snapshot.name));
            checkpoint::check(device, (slot, &snapshot.superblock), role, seen, findings, meter)
        })
        .collect()
}

/// The blocks that snapshots need. Where a snapshot cannot tell, what the volume says is believed.
///
/// Errors: the volume's tree cannot be read.
pub(crate) fn held(device: &Arc<Device>, tree: &Tree, findings: &mut Findings) -> Result<Held> {
    let error = match snapshots::held(device, tree) {
        Ok(held) => return Ok(held),
        Err(error) => error,
    };
    findings.add(
        IssueKind::SnapshotDamaged,
        Place::NONE,
        format!("the blocks that snapshots need are not known: {error}; delete the snapshot"),
    );
    let mut held = Held::new();
    tree.scan(Key::dead(0), Key::dead(u64::MAX), &mut |key, value| {
        if let Ok(dead) = RegionMap::decode(value) {
            held.insert(key.offset, dead);
        }
        ControlFlow::Continue(())
    })?;
    Ok(held)
}
