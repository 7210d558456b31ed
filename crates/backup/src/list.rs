//! `quire backup list`.

use serde_json::json;

use crate::arguments::List;
use crate::failure::{DAMAGED, Failure, Outcome};
use crate::output::say;
use crate::store::Store;
use quire_base::size;

/// Shows the finished backups with the times of their snapshots, the oldest first.
pub async fn run(arguments: &List) -> Outcome {
    let store = Store::open(&arguments.url, None)?;
    let contents = store.contents().await?;
    if arguments.json {
        let backup = |backup: &crate::manifest::Manifest| {
            json!({
                "name": backup.name,
                "volume": backup.volume,
                "parent": backup.parent,
                "created": backup.created,
                "snapshot_created": backup.snapshot.taken(),
                "bytes": backup.bytes,
                "parts": backup.parts.len(),
            })
        };
        let backups: Vec<_> = contents.backups.iter().map(backup).collect();
        say!("{:#}", json!({ "backups": backups }));
    } else {
        if contents.backups.is_empty() {
            eprintln!("quire backup: {} has no backups", store.url());
        }
        for backup in &contents.backups {
            let taken = backup.snapshot.taken().format("%Y-%m-%d %H:%M:%S");
            let since = backup.parent.as_ref().map_or("full".into(), |parent| format!("since {parent}"));
            say!("{taken}  {:>9}  {}  {since}", size::show(backup.bytes), backup.name);
        }
    }
    if contents.damaged.is_empty() {
        return Ok(());
    }
    let damaged = contents.damaged.iter().map(|(name, why)| format!("the manifest of {name}: {why}"));
    Err(Failure::new(DAMAGED, damaged.collect::<Vec<_>>().join("\n")))
}
