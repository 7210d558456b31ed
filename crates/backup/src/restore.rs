//! `quire backup restore`.

use std::io::ErrorKind::NotFound;
use std::path::Path;

use futures::TryStreamExt;
use tokio::io::AsyncWriteExt;

use crate::arguments::Restore;
use crate::failure::{BUSY, DAMAGED, FAILED, Failure, MISSING, NO_VOLUME, Outcome};
use crate::manifest::{Manifest, Snapshot, by_name, chain};
use crate::output::say;
use crate::program::{Quire, finish};
use crate::store::Store;
use quire_base::size;

/// Makes a volume what a backup says.
pub async fn run(arguments: &Restore) -> Outcome {
    let quire = Quire::find();
    let store = Store::open(&arguments.url, None)?;
    let contents = store.contents().await?;
    let backups = chain(&by_name(&contents.backups), &arguments.name).map_err(|why| {
        let damaged = contents.damaged.iter().map(|(name, why)| format!("; the manifest of {name}: {why}"));
        Failure::new(MISSING, format!("{}: {why}{}", store.url(), damaged.collect::<String>()))
    })?;
    let target = &arguments.target;
    if target.is_dir() {
        return Err(Failure::new(
            MISSING,
            format!(
                "{} is a directory: a restore is to an image file, block device or nbd:// address that is not mounted",
                target.display()
            ),
        ));
    }
    let was_missing = matches!(std::fs::symlink_metadata(target), Err(error) if error.kind() == NotFound);
    let is_new = match quire.volume(target).await {
        Ok(volume) if arguments.size.is_some_and(|size| size / 4096 != volume.bytes() / 4096) => {
            return Err(Failure::new(
                crate::USAGE,
                format!(
                    "--size is for a new volume, and {} is one of {} (`quire grow` makes a volume larger)",
                    target.display(),
                    size::show(volume.bytes())
                ),
            ));
        }
        Ok(_) => false,
        // Missing, or blank: also what a restore left that was killed while it made the volume.
        Err(failure) if matches!(failure.code, MISSING | NO_VOLUME) => true,
        Err(failure) => return Err(failure),
    };
    if is_new {
        let newest = backups.last().expect("a chain has its last backup");
        let made = quire.make_volume(target, arguments.size.unwrap_or(newest.volume_bytes)).await;
        made.map_err(|failure| match was_missing {
            true => failure,
            false => Failure {
                message: format!(
                    "{failure}\nA restore overwrites nothing; it takes what `quire mkfs` has made at {}",
                    target.display()
                ),
                ..failure
            },
        })?;
    } else {
        give_up_unfinished(&quire, target, &backups).await?;
    }
    let there = if is_new { Vec::new() } else { quire.snapshots(target).await? };
    let received = backups.iter().rposition(|backup| there.contains(&backup.snapshot)).map_or(0, |at| at + 1);
    if received == backups.len() {
        return Err(Failure::new(
            FAILED,
            format!(
                "{0} already has {1}: nothing was restored, and what was done to the volume since stays. \
                 `quire snapshot rollback {0} {2}` takes it back to that, if it is its newest snapshot",
                target.display(),
                arguments.name,
                backups[received - 1].snapshot.name
            ),
        ));
    }
    // A restore that was killed before its last deletion has left one of these.
    let passed = backups[..received].iter().rev().skip(1).filter(|it| there.contains(&it.snapshot));
    for backup in passed {
        give_back(&quire, target, backup).await;
    }
    for backup in &backups[..received] {
        say!("{}: was there", backup.name);
    }
    let of_a_backup = |snapshot: &&Snapshot| contents.backups.iter().any(|it| it.snapshot == **snapshot);
    if received == 0
        && let Some(other) = there.iter().rfind(of_a_backup)
    {
        return Err(Failure::new(
            FAILED,
            format!(
                "{} holds {}, and {} does not go on from it, but from the full backup {}: restore to a new volume",
                target.display(),
                other.name,
                arguments.name,
                backups[0].name
            ),
        ));
    }
    for (at, backup) in backups.iter().enumerate().skip(received) {
        if let Err(failure) = receive(&quire, &store, backup, target).await {
            if is_new && was_missing && at == 0 && failure.code != BUSY {
                // It may be too small, and the next restore would find it there.
                let _ = std::fs::remove_file(target);
            }
            return Err(failure);
        }
        say!("{}: received {}", backup.name, size::show(backup.bytes));
        if let Some(before) = at.checked_sub(1) {
            give_back(&quire, target, backups[before]).await;
        }
    }
    Ok(())
}

/// Deletes the snapshot of a backup from which the target has gone on: with those of a long chain it would
/// need many times the original's space.
async fn give_back(quire: &Quire, target: &Path, passed: &Manifest) {
    if let Err(failure) = quire.delete_snapshot(target, &passed.snapshot.name).await {
        eprintln!("quire backup: warning: the older snapshot {} stays: {failure}", passed.snapshot.name);
    }
}

/// Gives up what an interrupted restore of these backups has left of a stream.
async fn give_up_unfinished(quire: &Quire, target: &Path, backups: &[&Manifest]) -> Outcome {
    let Some(unfinished) = quire.unfinished(target).await? else { return Ok(()) };
    let ours = |backup: &&Manifest| unfinished.contains(&format!("{:?}:", backup.snapshot.name));
    if !backups.iter().any(ours) {
        return Err(Failure::new(
            FAILED,
            format!(
                "{0} has an unfinished receive of something else: {unfinished}; `quire receive --abort {0}` gives it up",
                target.display()
            ),
        ));
    }
    quire.abort_receive(target).await
}

async fn receive(quire: &Quire, store: &Store, backup: &Manifest, target: &Path) -> Outcome {
    let mut child = quire.receive(target)?;
    let fed = feed(&mut child, store, backup).await;
    match fed {
        Ok(()) => finish(child, &format!("quire receive {}", target.display())).await,
        Err(failure) => {
            // Killed or not, the child ends without the end of its stream.
            let _ = child.kill().await;
            // If this fails, the next restore does it.
            if quire.unfinished(target).await.is_ok_and(|unfinished| unfinished.is_some()) {
                let _ = quire.abort_receive(target).await;
            }
            Err(failure)
        }
    }
}

/// Writes the parts of a backup, each after its checksum was verified, to `quire receive`. A child that ends
/// early is no error here: its exit code says more.
async fn feed(child: &mut tokio::process::Child, store: &Store, backup: &Manifest) -> Outcome {
    let mut input = child.stdin.take().expect("the input is a pipe");
    let mut parts = std::pin::pin!(store.read(backup));
    while let Some(read) = parts.try_next().await? {
        let bytes = read.map_err(|why| {
            Failure::new(DAMAGED, format!("{}: {why}: nothing of it was used", store.url()))
        })?;
        if input.write_all(&bytes).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
