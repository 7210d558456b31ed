//! `quire snapshot`: snapshots of volumes that nobody has open.

use std::path::Path;

use quire::SnapshotsSpace;
use quire::internals::inspect::Image;
use quire::internals::snapshots;
use quire_base::{BLOCK_SIZE, size};
use quire_device::{OpenMode, open_image};
use quire_format::snapshot::Snapshot as Kept;
use serde_json::json;

use crate::arguments::{Snapshot, SnapshotAction};
use crate::commands::resize::unmounted;
use crate::exit::Outcome;
use crate::{image, output};

/// Does what the arguments say.
pub fn run(arguments: &Snapshot) -> Outcome {
    match &arguments.action {
        SnapshotAction::Create { volume, name } => {
            quire::take_snapshot(unmounted(volume)?, name).map(drop)?
        }
        SnapshotAction::List { volume, json } => list(volume, *json)?,
        SnapshotAction::Delete { volume, name } => quire::delete_snapshot(unmounted(volume)?, name)?,
        SnapshotAction::Rollback { volume, name } => quire::roll_back(unmounted(volume)?, name).map(drop)?,
    }
    Ok(())
}

/// As of the volume's journal, beside a mount too.
fn list(volume: &Path, as_json: bool) -> Outcome {
    let image = Image::load(open_image(&image::find(volume)?, OpenMode::ReadOnly)?)?;
    output::line(listing(&snapshots::table(&image.tree)?, &image.snapshot_space()?, as_json).trim_end());
    Ok(())
}

/// The snapshots of a volume with the space that they take, for people or as JSON.
pub fn listing(table: &[(u32, Kept)], space: &SnapshotsSpace, as_json: bool) -> String {
    let of = |number: u32| space.each.iter().find(|space| space.snapshot.number == number);
    if as_json {
        let all: Vec<_> = table
            .iter()
            .map(|(number, snapshot)| {
                let space = of(*number);
                json!({
                    "name": snapshot.name,
                    "number": number,
                    "created": snapshot.created.0,
                    "deleting": snapshot.deleting.is_some(),
                    "bytes_alone": space.map(|space| space.alone() * BLOCK_SIZE as u64),
                    "bytes_shared": space.map(|space| space.shared() * BLOCK_SIZE as u64),
                })
            })
            .collect();
        let held = space.held_blocks * BLOCK_SIZE as u64;
        return format!("{:#}\n", json!({ "snapshots": all, "bytes_held": held }));
    }
    let mut text = String::new();
    for (number, snapshot) in table {
        let [alone, shared] = match of(*number) {
            Some(space) => {
                [space.alone(), space.shared()].map(|blocks| size::show(blocks * BLOCK_SIZE as u64))
            }
            None => ["-", "-"].map(String::from),
        };
        let state = if snapshot.deleting.is_some() { "  (being deleted)" } else { "" };
        let created = crate::commands::inspect::time(snapshot.created);
        text += &format!("{created}  {alone:>9} alone  {shared:>9} shared  {}{state}\n", snapshot.name);
    }
    if space.each.len() > 1 {
        let held = size::show(space.held_blocks * BLOCK_SIZE as u64);
        text += &format!("{held} are held by snapshots only\n");
    }
    text
}
