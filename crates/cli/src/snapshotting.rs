//! Snapshots of a mounted volume, taken, listed and deleted by its server over the control socket.
//!
//! ```text
//!   snapshot create NAME   snapshot delete NAME   snapshot list
//! ```
//!
//! The first two start a task and are answered with it ([`crate::server_task`]); the last is answered with
//! JSON. A name goes to the end of the line.
//!
//! Neighbours: [`crate::control`] hears the requests, [`crate::commands::snapshot`] makes them.

use quire::{SnapshotInfo, Volume};
use serde_json::{Value, json};

use crate::exit::{Failure, Outcome};
use crate::server_task::ServerTasks;

/// Answers what follows `snapshot` in a request.
pub fn answer(request: &str, volume: &Volume, tasks: &ServerTasks) -> Outcome<String> {
    let (what, name) = request.split_once(' ').unwrap_or((request, ""));
    let (name, volume) = (name.to_owned(), volume.clone());
    let number = match what {
        "list" => return Ok(format!("{}\n", list(&volume.snapshots()?))),
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

/// Snapshots as the commands show them.
pub fn list(snapshots: &[SnapshotInfo]) -> Value {
    let all: Vec<Value> = snapshots
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
        .collect();
    json!({ "snapshots": all })
}
