//! `quire snapshot`: snapshots of volumes, mounted or not. Of a mounted volume its server takes, lists and
//! deletes them ([`crate::server::snapshots`]).

use std::path::Path;
use std::time::Duration;

use quire::internals::inspect::Image;
use quire::internals::snapshots;
use quire_base::{Timestamp, size};
use quire_device::{OpenMode, open_image};
use serde_json::{Value, json};

use crate::arguments::{Snapshot, SnapshotAction};
use crate::exit::{self, Failure, Outcome};
use crate::places::{mount_of, unmounted};
use crate::server::snapshots::with_space;
use crate::{control, image, output, task};

/// Does what the arguments say.
pub fn run(arguments: &Snapshot) -> Outcome {
    match &arguments.action {
        SnapshotAction::Create { volume, name } => match mount_of(volume)? {
            Some(dir) => ask(&dir, "create", name),
            None => Ok(quire::take_snapshot(unmounted(volume)?, name).map(drop)?),
        },
        SnapshotAction::List { volume, no_space, json } => {
            let list = match mount_of(volume)? {
                Some(dir) if *no_space => parse(&dir, &control::ask_patiently(&dir, "snapshot progress")?)?,
                Some(dir) => parse(&dir, &control::ask_patiently(&dir, "snapshot list")?)?,
                None => of_image(volume, *no_space)?,
            };
            show(&list, *json);
            Ok(())
        }
        SnapshotAction::Delete { volume, name } => match mount_of(volume)? {
            Some(dir) => ask(&dir, "delete", name),
            None => Ok(quire::delete_snapshot(unmounted(volume)?, name)?),
        },
        SnapshotAction::Rollback { volume, name } => match mount_of(volume)? {
            Some(dir) => Err(Failure::new(
                exit::BUSY,
                format!(
                    "the volume is mounted at {}: a volume is rolled back while it is not mounted",
                    dir.display()
                ),
            )),
            None => Ok(quire::roll_back(unmounted(volume)?, name).map(drop)?),
        },
    }
}

/// Has a server take or delete a snapshot.
fn ask(dir: &Path, what: &str, name: &str) -> Outcome {
    if name.contains('\n') || name.trim() != name {
        return Err(Failure::usage(format!(
            "{name:?} cannot be the name of a snapshot of a mounted volume: no space at its ends, no line breaks"
        )));
    }
    let bar = output::bar(what == "delete", "{bar:40} {percent:>3}% {elapsed}");
    bar.set_length(100);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    let outcome = task::wait(dir, &format!("snapshot {what} {name}"), &mut || {
        if !bar.is_hidden() {
            let list = snapshots_of(&parse(dir, &control::ask_patiently(dir, "snapshot progress")?)?);
            let found = list.iter().find(|snapshot| snapshot["name"] == name);
            bar.set_position(found.and_then(|found| found["deleted_percent"].as_u64()).unwrap_or_default());
        }
        Ok(())
    });
    bar.finish_and_clear();
    outcome
}

/// The snapshots of a mounted volume, as its server lists them.
fn parse(dir: &Path, answer: &str) -> Outcome<Value> {
    serde_json::from_str(answer).map_err(|error| {
        Failure::new(exit::FAILED, format!("the answer of the server of {}: {error}", dir.display()))
    })
}

fn snapshots_of(list: &Value) -> Vec<Value> {
    list["snapshots"].as_array().cloned().unwrap_or_default()
}

/// As of the volume's journal.
fn of_image(volume: &Path, no_space: bool) -> Outcome<Value> {
    let image = Image::load(open_image(&image::find(volume)?, OpenMode::ReadOnly)?)?;
    let table = snapshots::table(&image.tree)?;
    let one = |(number, snapshot): &(u32, quire_format::snapshot::Snapshot)| {
        json!({
            "name": snapshot.name,
            "number": number,
            "created": snapshot.created.0,
            "deleting": snapshot.deleting.is_some(),
        })
    };
    let list = table.iter().map(one).collect();
    match no_space {
        true => Ok(json!({ "snapshots": Value::Array(list) })),
        false => Ok(with_space(list, &image.snapshot_space()?)),
    }
}

fn show(list: &Value, as_json: bool) {
    if as_json {
        output::line(format!("{list:#}"));
        return;
    }
    let bytes = |value: &Value| value.as_u64().map_or("-".into(), size::show);
    let snapshots = snapshots_of(list);
    for snapshot in &snapshots {
        let state = if snapshot["deleting"] == true { "  (being deleted)" } else { "" };
        let created = Timestamp(snapshot["created"].as_i64().unwrap_or_default());
        let created = crate::commands::inspect::time(created);
        let name = snapshot["name"].as_str().unwrap_or_default();
        let space = match snapshot.get("bytes_alone") {
            Some(alone) => {
                format!("{:>9} alone  {:>9} shared  ", bytes(alone), bytes(&snapshot["bytes_shared"]))
            }
            None => String::new(),
        };
        output::line(format!("{created}  {space}{name}{state}"));
    }
    if snapshots.len() > 1 && !list["bytes_held"].is_null() {
        output::line(format!("{} are held by snapshots only", bytes(&list["bytes_held"])));
    }
}
