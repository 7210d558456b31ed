//! `quire backup verify`.

use futures::StreamExt;

use crate::arguments::Verify;
use crate::failure::{DAMAGED, Failure, MISSING, Outcome};
use crate::manifest::{Manifest, by_name, chain};
use crate::output::say;
use crate::store::Store;
use quire_base::size;

/// Parts that are read at a time.
const DOWNLOADS: usize = 2;

/// Reads backups, and says what is wrong with them.
pub async fn run(arguments: &Verify) -> Outcome {
    let store = Store::open(&arguments.url, None)?;
    let contents = store.contents().await?;
    let backups = by_name(&contents.backups);
    let mut wrong = 0;
    let mut selected: Vec<&Manifest> = Vec::new();
    match &arguments.name {
        Some(name) => match chain(&backups, name) {
            Ok(chain) => selected = chain,
            Err(why) if contents.damaged.is_empty() => {
                return Err(Failure::new(MISSING, format!("{}: {why}", store.url())));
            }
            Err(why) => {
                say!("{name}: {why}");
                wrong += 1;
            }
        },
        None => selected.extend(&contents.backups),
    }
    if arguments.name.is_none() || wrong > 0 {
        for (name, why) in &contents.damaged {
            say!("{name}: the manifest cannot be used: {why}");
            wrong += 1;
        }
    }
    for backup in selected {
        let mut problems: Vec<String> = chain(&backups, &backup.name).err().into_iter().collect();
        problems.extend(damaged_parts(&store, backup).await?);
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
    let parts = backup.parts.iter().enumerate();
    let mut parts = futures::stream::iter(parts)
        .map(|(number, part)| store.part(&backup.name, number, part))
        .buffer_unordered(DOWNLOADS);
    let mut problems = Vec::new();
    while let Some(read) = parts.next().await {
        problems.extend(read?.err());
    }
    Ok(problems)
}
