//! `quire backup prune`.

use std::collections::{BTreeSet, HashMap, HashSet};

use chrono::Utc;

use crate::arguments::Prune;
use crate::failure::{DAMAGED, Failure, Outcome};
use crate::manifest::{ByName, Manifest, by_name, chain};
use crate::output::say;
use crate::retention::{Entry, kept};
use crate::store::{Store, UNFINISHED_KEPT};

/// Deletes the backups that are not to be kept, and what unfinished ones have left.
///
/// Manifests go before parts, and a backup goes before the one that it goes on from. An interrupted prune
/// leaves whole chains, and parts that the next prune finds.
pub async fn run(arguments: &Prune) -> Outcome {
    let store = Store::open(&arguments.url, None)?;
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
    for entry in entries.iter().filter(|entry| entry.taken > now) {
        eprintln!(
            "quire backup: warning: {} was taken at {} UTC, which is in the future: it is kept, and does not count for \
             --keep-last",
            entry.name,
            entry.taken.format("%Y-%m-%d %H:%M:%S")
        );
    }
    let since = arguments.keep_within.map(|within| now - within);
    let kept = kept(&entries, arguments.keep_last, since, now);
    let (kept, mut gone): (Vec<&Manifest>, Vec<&Manifest>) =
        contents.backups.iter().partition(|backup| kept.contains(backup.name.as_str()));
    let backups = by_name(&contents.backups);
    // A backup that cannot be restored may be kept in the place of one that can.
    let (mut broken, mut needed) = (Vec::new(), HashSet::new());
    for backup in &kept {
        match chain(&backups, &backup.name) {
            Ok(chain) => needed.extend(chain.into_iter().map(|backup| backup.name.as_str())),
            Err(why) => broken.push(format!("{}: {why}", backup.name)),
        }
    }
    let needed = contents.backups.iter().filter(|backup| needed.contains(backup.name.as_str()));
    if let Some(lost) = store.lacks(needed).await? {
        broken.push(lost);
    }
    if !broken.is_empty() {
        return Err(Failure::new(
            DAMAGED,
            format!(
                "{}: what was to be kept cannot be restored, so nothing was deleted ({}); to prune nevertheless, delete \
                 the directories of these backups first",
                store.url(),
                broken.join("; ")
            ),
        ));
    }
    if contents.backups.is_empty() {
        eprintln!("quire backup: {} has no backups", store.url());
    }
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
        let mut found = 0;
        for (object, part) in store.parts(&name).await? {
            if needed.contains(&object) || !deleted && now - part.modified < UNFINISHED_KEPT {
                continue;
            }
            // A backup that was finished since the manifests were read has recent parts; it may have older
            // ones, too.
            if !deleted && manifest.is_none() && store.manifest(&name).await?.is_some() {
                break;
            }
            found += 1;
            if !arguments.dry_run {
                store.delete_part(&name, &object).await?;
            }
        }
        let staged = store.remove_staged(&name, now - UNFINISHED_KEPT, arguments.dry_run)?;
        leftovers += staged + if deleted { 0 } else { found };
        // A directory in which nothing was found is not known to be a backup's.
        if !arguments.dry_run && (deleted || found + staged > 0) {
            store.remove_empty(&name);
        }
    }
    if leftovers > 0 {
        say!("{verb} {leftovers} parts of unfinished backups");
    }
    Ok(())
}

/// Backups in an order in which each comes before the one that it goes on from.
fn children_first(backups: Vec<&Manifest>) -> Vec<&Manifest> {
    let by_name: ByName<'_> = backups.iter().map(|backup| (backup.name.as_str(), *backup)).collect();
    let mut children: HashMap<&str, usize> = HashMap::new();
    for parent in backups.iter().filter_map(|backup| backup.parent.as_deref()) {
        *children.entry(parent).or_default() += 1;
    }
    let is_leaf = |backup: &&Manifest| !children.contains_key(backup.name.as_str());
    let leaves: Vec<&Manifest> = backups.iter().copied().filter(is_leaf).collect();
    let mut sorted: Vec<&Manifest> = Vec::new();
    for leaf in leaves {
        sorted.push(leaf);
        let mut next = leaf.parent.as_deref();
        while let Some(parent) = next {
            let waits_for = children.get_mut(parent).expect("each parent was counted");
            *waits_for -= 1;
            let Some(parent) = by_name.get(parent).filter(|_| *waits_for == 0) else { break };
            sorted.push(parent);
            next = parent.parent.as_deref();
        }
    }
    // Circles, which nobody can restore, and what they go on from.
    let in_order: HashSet<&str> = sorted.iter().map(|backup| backup.name.as_str()).collect();
    let others = backups.iter().filter(|backup| !in_order.contains(backup.name.as_str()));
    [sorted, others.copied().collect()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Part, Snapshot, snapshot_name};

    fn chain_of(length: usize) -> Vec<Manifest> {
        let backup = |n: usize| {
            let name = format!("b{n:05}");
            let snapshot = Snapshot { name: snapshot_name(&name), created: n as i64 };
            let parent = n.checked_sub(1).map(|n| format!("b{n:05}"));
            let part = vec![Part::of(b"one")];
            Manifest::new(
                name,
                (uuid::Uuid::nil(), 1 << 30),
                snapshot,
                parent,
                part,
                chrono::DateTime::UNIX_EPOCH,
            )
        };
        (0..length).map(backup).collect()
    }

    /// The order of one long chain took a time that grew with the third power of its length: hours for what
    /// years of backups every hour make.
    #[test]
    fn a_long_chain_is_sorted_at_once() {
        let backups = chain_of(10_000);
        let began = std::time::Instant::now();
        let sorted = children_first(backups.iter().collect());
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
        assert!(sorted.iter().map(|backup| &backup.name).eq(backups.iter().rev().map(|backup| &backup.name)));
    }

    #[test]
    fn children_come_first_and_circles_stay() {
        let mut backups = chain_of(4);
        backups[3].parent = Some("b00001".into());
        let names: Vec<_> =
            children_first(backups.iter().collect()).into_iter().map(|backup| backup.name.clone()).collect();
        assert_eq!(names, ["b00002", "b00003", "b00001", "b00000"]);
        backups[0].parent = Some("b00001".into());
        let names: Vec<_> =
            children_first(backups.iter().collect()).into_iter().map(|backup| backup.name.clone()).collect();
        assert_eq!(names, ["b00002", "b00003", "b00000", "b00001"]);
    }
}
