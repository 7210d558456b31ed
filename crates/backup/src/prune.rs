//! `quire backup prune`.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};

use crate::arguments::Prune;
use crate::failure::{DAMAGED, Failure, Outcome};
use crate::manifest::Manifest;
use crate::output::say;
use crate::retention::{Entry, kept};
use crate::store::Store;

/// Parts of no finished backup stay this long: they may be of one that is being made.
const UNFINISHED_KEPT: TimeDelta = TimeDelta::days(1);

/// Deletes the backups that are not to be kept, and what unfinished ones have left.
///
/// Manifests go before parts, and a backup goes before the one that it goes on from. An interrupted prune
/// leaves whole chains, and parts that the next prune finds.
pub async fn run(arguments: &Prune) -> Outcome {
    let store = Store::open(&arguments.url, false)?;
    let contents = store.contents().await?;
    if let Some((name, why)) = contents.damaged.first() {
        return Err(Failure::new(
            DAMAGED,
            format!(
                "{}: the manifest of {name} cannot be used ({why}): what it needs is not known, so nothing was deleted",
                store.url()
            ),
        ));
    }
    let now = Utc::now();
    let entries: Vec<Entry<'_>> = contents.backups.iter().map(Entry::from).collect();
    let kept = kept(&entries, arguments.keep_last, arguments.keep_within.map(|within| now - within));
    let (kept, mut gone): (Vec<&Manifest>, Vec<&Manifest>) =
        contents.backups.iter().partition(|backup| kept.contains(backup.name.as_str()));
    gone.reverse();
    let verb = if arguments.dry_run { "would delete" } else { "deleted" };
    for backup in children_first(gone.clone()) {
        if !arguments.dry_run {
            store.delete_manifest(&backup.name).await?;
        }
        say!("{verb} {}", backup.name);
    }
    let mut leftovers = 0_usize;
    for name in store.names().await? {
        let manifest = kept.iter().find(|backup| backup.name == name);
        let needed: BTreeSet<String> = manifest
            .map(|backup| backup.parts.iter().enumerate().map(|(number, part)| part.object(number)).collect())
            .unwrap_or_default();
        let deleted = gone.iter().any(|backup| backup.name == name);
        for (object, part) in store.parts(&name).await? {
            if needed.contains(&object) || !deleted && now - part.modified < UNFINISHED_KEPT {
                continue;
            }
            // A backup that was finished since the manifests were read has recent parts; it may have older
            // ones, too.
            if !deleted && manifest.is_none() && store.manifest(&name).await?.is_some() {
                break;
            }
            leftovers += usize::from(!deleted);
            if !arguments.dry_run {
                store.delete_part(&name, &object).await?;
            }
        }
    }
    if leftovers > 0 {
        say!("{verb} {leftovers} parts of unfinished backups");
    }
    Ok(())
}

/// Backups in an order in which each comes before the one that it goes on from.
fn children_first(mut backups: Vec<&Manifest>) -> Vec<&Manifest> {
    let mut sorted = Vec::new();
    while !backups.is_empty() {
        let is_parent =
            |backup: &&Manifest| backups.iter().any(|it| it.parent.as_ref() == Some(&backup.name));
        let (parents, mut leaves): (Vec<_>, Vec<_>) = backups.iter().copied().partition(is_parent);
        if leaves.is_empty() {
            // A circle, which nobody can restore.
            return [sorted, parents].concat();
        }
        sorted.append(&mut leaves);
        backups = parents;
    }
    sorted
}
