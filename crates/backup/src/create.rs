//! `quire backup create`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use chrono::Utc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinSet;

use crate::arguments::Create;
use crate::failure::{FAILED, Failure, MISSING, Outcome};
use crate::manifest::{Manifest, PARTS_MAX, Part, Snapshot, by_name, chain, check_name, snapshot_name};
use crate::output::say;
use crate::program::{Quire, Volume, finish};
use crate::store::{Contents, Store, StoredPart};
use quire_base::size;

/// Parts that are uploaded at a time. One more is being read.
const UPLOADS: usize = 3;

/// Makes a backup, or goes on with one.
pub async fn run(arguments: &Create) -> Outcome {
    let quire = Quire::find();
    if let Some(name) = &arguments.name {
        check_name(name).map_err(|why| Failure::new(crate::USAGE, why))?;
    }
    let path = &arguments.volume;
    let volume = quire.volume(path).await?;
    // Two volumes may be backed up to one store in the same second: their uuids tell them apart.
    let of_now =
        || format!("{}-{}", Utc::now().format("%Y%m%dT%H%M%SZ"), &volume.uuid.simple().to_string()[..4]);
    let name = arguments.name.clone().unwrap_or_else(of_now);
    check_volume(arguments, &volume)?;
    let store = Store::open(&arguments.url, Some(arguments.part_size))?;
    let contents = store.contents().await?;
    for (name, why) in &contents.damaged {
        eprintln!("quire backup: warning: the manifest of {name} cannot be used: {why}");
    }
    let is_there = contents.damaged.iter().any(|(other, _)| *other == name)
        || contents.backups.iter().any(|other| other.name == name);
    if is_there {
        return Err(taken(&store, &name));
    }

    let own = snapshot_name(&name);
    let mut snapshots = quire.snapshots(path).await?;
    let taken_now = !snapshots.iter().any(|snapshot| snapshot.name == own);
    if taken_now {
        snapshots = match take(&quire, path, &own).await {
            Ok(snapshots) => snapshots,
            // With a name, the next run goes on with the snapshot. Where something is missing, it is the
            // volume.
            Err(failure) if arguments.name.is_some() || failure.code == MISSING => return Err(failure),
            Err(failure) => return Err(give_up(&quire, path, &own, failure).await),
        };
    }
    let snapshot = snapshots.iter().find(|snapshot| snapshot.name == own).cloned();
    let snapshot =
        snapshot.ok_or_else(|| Failure::new(MISSING, format!("the snapshot {own} has disappeared")))?;
    if !taken_now {
        let taken = snapshot.taken().format("%Y-%m-%d %H:%M:%S");
        eprintln!("quire backup: {name} goes on with the snapshot {} of {taken} UTC", snapshot.name);
    }
    // Not by their times: the clock may have been wrong.
    let place = |snapshot: &Snapshot| snapshots.iter().position(|other| other == snapshot);
    let is_older = |backup: &&Manifest| {
        backup.volume == volume.uuid
            && place(&backup.snapshot).is_some_and(|older| Some(older) < place(&snapshot))
    };
    let mut older: Vec<&Manifest> = contents.backups.iter().filter(is_older).collect();
    older.sort_by_key(|backup| place(&backup.snapshot));
    let stored = async {
        let parent = match arguments.full {
            true => None,
            false => parent(&store, &contents, &older).await?,
        };
        store_backup(&quire, arguments, &store, &volume, (&name, snapshot.clone()), parent).await
    }
    .await;
    if let Err(failure) = stored {
        // A run under another name would not go on with them.
        let is_of_use = arguments.name.is_some()
            || !taken_now
            || store.parts(&name).await.map_or(true, |parts| !parts.is_empty());
        // Another program may have made a backup of this name: then no run can go on with ours.
        let other = store.manifest(&name).await.ok().flatten();
        return Err(match other {
            None if is_of_use => Failure {
                message: format!(
                    "{failure}\nThe snapshot and the parts that are stored stay; go on with --name {name}"
                ),
                ..failure
            },
            Some(other) if !taken_now || other.as_ref().is_ok_and(|it| it.snapshot == snapshot) => failure,
            _ => give_up(&quire, path, &own, failure).await,
        });
    }
    for backup in older {
        if let Err(failure) = quire.delete_snapshot(path, &backup.snapshot.name).await {
            eprintln!("quire backup: warning: the older snapshot {} stays: {failure}", backup.snapshot.name);
        }
    }
    Ok(())
}

/// The newest of these backups that the next one can go on from: what goes on from a backup that cannot be
/// restored cannot be restored either.
async fn parent<'m>(
    store: &Store,
    contents: &'m Contents,
    older: &[&'m Manifest],
) -> Outcome<Option<&'m Manifest>> {
    let backups = by_name(&contents.backups);
    // The one with the oldest snapshot comes first.
    for backup in older.iter().rev() {
        let Ok(chain) = chain(&backups, &backup.name) else { continue };
        let Some(lost) = store.lacks(chain).await? else { return Ok(Some(backup)) };
        eprintln!("quire backup: warning: {} cannot be restored: {lost}", backup.name);
    }
    Ok(None)
}

/// Stores the stream of a snapshot in parts, and then the manifest.
async fn store_backup(
    quire: &Quire,
    arguments: &Create,
    store: &Store,
    volume: &Volume,
    (name, snapshot): (&str, Snapshot),
    parent: Option<&Manifest>,
) -> Outcome {
    let path = &arguments.volume;
    let from = parent.map(|parent| parent.snapshot.name.as_str());
    let mut child = quire.send(path, from, &snapshot.name)?;
    let stream = child.stdout.take().expect("the output is a pipe");
    let upload = Upload {
        there: Arc::new(store.parts(name).await?),
        store: store.clone(),
        name: name.to_owned(),
        part_bytes: usize::try_from(arguments.part_size).expect("a part fits in memory"),
    };
    let (parts, found) = upload.run(stream).await?;
    finish(child, &format!("quire send {}", path.display())).await?;

    let created = Utc::now();
    let parent = parent.map(|parent| parent.name.clone());
    let manifest =
        Manifest::new(name.to_owned(), (volume.uuid, volume.bytes()), snapshot, parent, parts, created);
    check_stored(store, &manifest).await?;
    if !store.put_manifest(&manifest).await? {
        return Err(taken(store, &manifest.name));
    }
    let kind = match &manifest.parent {
        Some(parent) => format!("what has changed since {parent}"),
        None => "full".into(),
    };
    let found = if found > 0 { format!(", {found} were there") } else { String::new() };
    say!(
        "{}: {kind}, {} in {} parts{found}",
        manifest.name,
        size::show(manifest.bytes),
        manifest.parts.len()
    );
    Ok(())
}

fn check_volume(arguments: &Create, volume: &Volume) -> Outcome {
    if volume.bytes() / arguments.part_size >= PARTS_MAX as u64 {
        return Err(Failure::new(
            crate::USAGE,
            format!("the volume may need more than {PARTS_MAX} parts: give a greater --part-size"),
        ));
    }
    Ok(())
}

fn taken(store: &Store, name: &str) -> Failure {
    Failure::new(FAILED, format!("{} already has a backup {name}: choose another name", store.url()))
}

/// Takes a snapshot; gives all of the volume.
async fn take(quire: &Quire, volume: &Path, snapshot: &str) -> Outcome<Vec<Snapshot>> {
    quire.take_snapshot(volume, snapshot).await?;
    quire.snapshots(volume).await
}

/// Deletes the snapshot of a backup that failed, and with which no other run goes on.
async fn give_up(quire: &Quire, volume: &Path, snapshot: &str, failure: Failure) -> Failure {
    let message = match quire.delete_snapshot(volume, snapshot).await {
        Ok(()) => format!("{failure}\nThe backup was given up, and the snapshot was deleted again"),
        Err(none) if none.code == MISSING => return failure,
        Err(why) => format!("{failure}\nThe snapshot {snapshot} may be there, and cannot be deleted: {why}"),
    };
    Failure { message, ..failure }
}

/// All that the manifest promises is there: another program may have pruned meanwhile.
async fn check_stored(store: &Store, manifest: &Manifest) -> Outcome {
    if let Some(lost) = store.lacks([manifest]).await? {
        return Err(Failure::new(
            MISSING,
            format!("{lost}: run the same command with --name {}", manifest.name),
        ));
    }
    if let Some(parent) = &manifest.parent
        && !matches!(store.manifest(parent).await?, Some(Ok(_)))
    {
        return Err(Failure::new(
            MISSING,
            format!(
                "{parent}, from which this goes on, was deleted or is damaged: run the same with --name {}",
                manifest.name
            ),
        ));
    }
    Ok(())
}

/// A stream on its way into a store.
struct Upload {
    store: Store,
    name: String,
    part_bytes: usize,
    /// What an earlier try has left.
    there: Arc<BTreeMap<String, StoredPart>>,
}

impl Upload {
    /// Returns the parts, and how many of them were there already.
    async fn run(&self, mut stream: impl AsyncRead + Unpin) -> Outcome<(Vec<Part>, usize)> {
        let (mut parts, mut found) = (Vec::new(), 0);
        let mut uploads: JoinSet<Outcome<bool>> = JoinSet::new();
        loop {
            let mut bytes = Vec::new();
            let limit = self.part_bytes as u64;
            let read = (&mut stream).take(limit).read_to_end(&mut bytes).await;
            if read.map_err(|error| Failure::system("reading from quire send", &error))? == 0 {
                break;
            }
            let (number, part) = (parts.len(), Part::of(&bytes));
            if number == PARTS_MAX {
                return Err(Failure::new(
                    FAILED,
                    format!("more than {PARTS_MAX} parts: give a greater --part-size"),
                ));
            }
            parts.push(part.clone());
            if uploads.len() == UPLOADS
                && let Some(done) = uploads.join_next().await
            {
                found += usize::from(joined(done)?);
            }
            let (store, name, there) = (self.store.clone(), self.name.clone(), Arc::clone(&self.there));
            uploads.spawn(async move {
                // An old one may be deleted before the manifest is written.
                let stored = there.get(&part.object(number));
                let is_of_use =
                    stored.is_some_and(|stored| stored.size == part.size && stored.stays_for_now());
                if is_of_use && store.part(&name, number, &part).await?.is_ok() {
                    return Ok(true);
                }
                store.put_part(&name, number, &part, bytes.into()).await.map(|()| false)
            });
        }
        while let Some(done) = uploads.join_next().await {
            found += usize::from(joined(done)?);
        }
        Ok((parts, found))
    }
}

fn joined(done: Result<Outcome<bool>, tokio::task::JoinError>) -> Outcome<bool> {
    done.map_err(|error| Failure::new(FAILED, format!("an upload: {error}")))?
}
