//! `quire snapshot`: snapshots of volumes, mounted or not. Of a mounted volume its server takes, lists and
//! deletes them ([`crate::snapshotting`]).

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quire::internals::inspect::Image;
use quire::internals::snapshots;
use quire_base::Timestamp;
use quire_device::{OpenMode, open_image};
use serde_json::{Value, json};

use crate::arguments::{Snapshot, SnapshotAction};
use crate::commands::mount::mounted_on;
use crate::commands::resize::unmounted;
use crate::exit::{Failure, Outcome};
use crate::{control, image, output, server_task};

/// Does what the arguments say.
pub fn run(arguments: &Snapshot) -> Outcome {
    match &arguments.action {
        SnapshotAction::Create { volume, name } => match mount_of(volume)? {
            Some(dir) => ask(&dir, "create", name),
            None => Ok(quire::take_snapshot(unmounted(volume)?, name).map(drop)?),
        },
        SnapshotAction::List { volume, json } => {
            let list = match mount_of(volume)? {
                Some(dir) => of_mount(&dir)?,
                None => of_image(volume)?,
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
                36,
                format!(
                    "the volume is mounted at {}: a volume is rolled back while it is not mounted",
                    dir.display()
                ),
            )),
            None => Ok(quire::roll_back(unmounted(volume)?, name).map(drop)?),
        },
    }
}

/// Where a volume is mounted that was named by its mount point or by its image or device.
fn mount_of(volume: &Path) -> Outcome<Option<PathBuf>> {
    if let Ok(entry) = super::mounted(volume) {
        return Ok(Some(entry.dir));
    }
    Ok(mounted_on(&image::find(volume)?)?)
}

/// Has a server take or delete a snapshot.
fn ask(dir: &Path, what: &str, name: &str) -> Outcome {
    if name.contains('\n') || name.trim() != name {
        return Err(Failure::usage(format!(
            "{name:?} cannot be the name of a snapshot of a mounted volume: no space at its ends, no line breaks"
        )));
    }
    let bar = bar(what == "delete" && std::io::stderr().is_terminal());
    let outcome = server_task::wait(dir, &format!("snapshot {what} {name}"), &mut || {
        if !bar.is_hidden() {
            let list = of_mount(dir)?;
            let found = list.iter().find(|snapshot| snapshot["name"] == name);
            bar.set_position(found.and_then(|found| found["deleted_percent"].as_u64()).unwrap_or_default());
        }
        Ok(())
    });
    bar.finish_and_clear();
    outcome
}

fn bar(visible: bool) -> ProgressBar {
    if !visible {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent:>3}% {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(100).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn of_mount(dir: &Path) -> Outcome<Vec<Value>> {
    let answer = control::ask(dir, "snapshot list")?;
    let list: Value = serde_json::from_str(&answer).map_err(|error| {
        Failure::new(32, format!("the answer of the server of {}: {error}", dir.display()))
    })?;
    Ok(list["snapshots"].as_array().cloned().unwrap_or_default())
}

/// As of the volume's journal.
fn of_image(volume: &Path) -> Outcome<Vec<Value>> {
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
    Ok(table.iter().map(one).collect())
}

fn show(list: &[Value], as_json: bool) {
    if as_json {
        output::line(format!("{:#}", json!({ "snapshots": list })));
        return;
    }
    for snapshot in list {
        let state = if snapshot["deleting"] == true { "  (being deleted)" } else { "" };
        let created = Timestamp(snapshot["created"].as_i64().unwrap_or_default());
        let name = snapshot["name"].as_str().unwrap_or_default();
        output::line(format!("{}  {name}{state}", crate::commands::inspect::time(created)));
    }
}
