//! `quire snapshot`: snapshots of volumes that nobody has open.

use std::path::Path;

use quire::internals::inspect::Image;
use quire::internals::snapshots;
use quire_device::{OpenMode, open_image};
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
    let table = snapshots::table(&image.tree)?;
    if as_json {
        let all: Vec<_> = table
            .iter()
            .map(|(number, snapshot)| {
                json!({
                    "name": snapshot.name,
                    "number": number,
                    "created": snapshot.created.0,
                    "deleting": snapshot.deleting.is_some(),
                })
            })
            .collect();
        output::line(format!("{:#}", json!({ "snapshots": all })));
        return Ok(());
    }
    for (_, snapshot) in &table {
        let state = if snapshot.deleting.is_some() { "  (being deleted)" } else { "" };
        output::line(format!(
            "{}  {}{state}",
            crate::commands::inspect::time(snapshot.created),
            snapshot.name
        ));
    }
    Ok(())
}
