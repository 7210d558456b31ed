//! Snapshots of a mounted volume, taken, listed and deleted by its server over the control socket.
//!
//! ```text
//!   snapshot create NAME   snapshot delete NAME   snapshot list   snapshot progress
//! ```
//!
//! The first two start a task and are answered with it ([`super::tasks`]); the others are answered with
//! JSON: `list` with the space that snapshots take, `progress` without. Both have threads of their own: the
//! one walks through all space, and the other may wait for the device. A name goes to the end of the line.
//!
//! Neighbours: [`super::listener`] hears the requests, [`crate::commands::snapshot`] makes them.

use quire::{SnapshotInfo, SnapshotsSpace, Volume};
use quire_base::BLOCK_SIZE;
use serde_json::{Value, json};

use super::tasks::ServerTasks;
use crate::exit::{Failure, Outcome};

/// Answers what follows `snapshot` in a request, the lists excepted.
pub fn answer(request: &str, volume: &Volume, tasks: &ServerTasks) -> Outcome<String> {
    let (what, name) = request.split_once(' ').unwrap_or((request, ""));
    let (name, volume) = (name.to_owned(), volume.clone());
    let number = match what {
        "create" => tasks.start(move || {
            let taken = volume.take_snapshot(&name)?;
            tracing::info!(name, number = taken.number, "a snapshot was taken");
            Ok(())
        })?,
        "delete" => tasks.start(move || {
            volume.delete_snapshot(&name)?;
            tracing::info!(name, "a snapshot was deleted");
            Ok(())
        })?,
        _ => return Err(Failure::usage("the server does not know this request about snapshots")),
    };
    tasks.answer(number)
}

/// Answers `snapshot progress`.
pub fn list_without_space(volume: &Volume) -> Outcome<String> {
    Ok(format!("{}\n", json!({ "snapshots": list(&volume.snapshots()?) })))
}

/// Answers `snapshot list`.
pub fn list_with_space(volume: &Volume) -> Outcome<String> {
    Ok(format!("{}\n", with_space(list(&volume.snapshots()?), &volume.snapshot_space()?)))
}

/// Snapshots as the commands show them.
pub fn list(snapshots: &[SnapshotInfo]) -> Vec<Value> {
    snapshots
        .iter()
        .map(|snapshot| {
            json!({
                "name": snapshot.name,
                "number": snapshot.number,
                "created": snapshot.created.0,
                "deleting": snapshot.deleting,
                "deleted_percent": snapshot.deleted_percent,
            })
        })
        .collect()
}

/// With the bytes that each has alone, and shares.
pub fn with_space(mut snapshots: Vec<Value>, space: &SnapshotsSpace) -> Value {
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    for snapshot in &mut snapshots {
        let number = snapshot["number"].as_u64();
        let found = space.each.iter().find(|one| Some(u64::from(one.snapshot.number)) == number);
        snapshot["bytes_alone"] = json!(found.map(|one| bytes(one.alone())));
        snapshot["bytes_shared"] = json!(found.map(|one| bytes(one.shared())));
    }
    json!({ "snapshots": snapshots, "bytes_held": bytes(space.held_blocks) })
}
