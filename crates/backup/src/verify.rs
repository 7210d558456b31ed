//! `quire backup verify`.

use std::collections::HashSet;

use futures::TryStreamExt;

use crate::arguments::Verify;
use crate::failure::{DAMAGED, Failure, MISSING, Outcome};
use crate::manifest::{Manifest, by_name, chain};
use crate::output::say;
use crate::store::Store;
use quire_base::size;

/// Reads backups, and says what is wrong with them.
pub async fn run(arguments: &Verify) -> Outcome {
    let store = Store::open(&arguments.url, None)?;
    let contents = store.contents().await?;
    let backups = by_name(&contents.backups);
    let is_there =
        |name: &str| backups.contains_key(name) || contents.damaged.iter().any(|(other, _)| other == name);
    let mut wrong = 0;
    let mut selected: Vec<&Manifest> = Vec::new();
    match &arguments.name {
        Some(name) => match chain(&backups, name) {
            Ok(chain) => selected = chain,
            Err(why) if contents.damaged.is_empty() || !is_there(name) => {
                return Err(Failure::new(MISSING, format!("{}: {why}", store.url())));
            }
            Err(why) => {
                say!("{name}: {why}");
                wrong += 1;
            }
        },
        // A disk that is not mounted, for example.
        None if contents.backups.is_empty() && contents.damaged.is_empty() => {
            return Err(Failure::new(MISSING, format!("{} has no backups", store.url())));
        }
        None => selected.extend(&contents.backups),
    }
    if arguments.name.is_none() || wrong > 0 {
        for (name, why) in &contents.damaged {
            say!("{name}: the manifest cannot be used: {why}");
            wrong += 1;
        }
    }
    // Backups come after those that they go on from.
    let mut bad = HashSet::new();
    for backup in selected {
        let mut problems = damaged_parts(&store, backup).await?;
        match chain(&backups, &backup.name) {
            Err(why) => problems.push(why),
            Ok(chain) => {
                let below = chain.iter().find(|below| bad.contains(below.name.as_str()));
                problems
                    .extend(below.map(|below| format!("{} is damaged, from which it goes on", below.name)));
            }
        }
        if !problems.is_empty() {
            bad.insert(backup.name.as_str());
        }
        if problems.is_empty() {
            say!("{}: good, {} in {} parts", backup.name, size::show(backup.bytes), backup.parts.len());
        }
        for problem in &problems {
            say!("{}: {problem}", backup.name);
        }
        wrong += problems.len();
    }
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(DAMAGED, format!("{}: {wrong} found wrong", store.url()))),
    }
}

async fn damaged_parts(store: &Store, backup: &Manifest) -> Outcome<Vec<String>> {
    store.read(backup).try_filter_map(|read| async move { Ok(read.err()) }).try_collect().await
}
