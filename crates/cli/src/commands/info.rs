//! `quire info`: the superblock for people.

use quire::internals::inspect::Image;
use quire_device::{OpenMode, open_image};
use quire_format::superblock::Superblock;
use serde_json::{Value, json};

use std::path::{Path, PathBuf};

use quire_fuse::mount;

use crate::arguments::Info;
use crate::commands::inspect::{superblock_json, time, uuid};
use crate::exit::{Failure, Outcome};
use crate::{control, image, output, places};
use quire_base::size;

/// Prints what a volume is.
pub fn run(arguments: &Info) -> Outcome {
    // A mount point may be given for the volume.
    let is_mount = |dir: &&PathBuf| places::mounted(dir).is_ok();
    let dir = arguments.mount.as_ref().or_else(|| arguments.volume.as_ref().filter(is_mount));
    let asked = match dir {
        Some(dir) => Some(ask(dir)?),
        None => None,
    };
    let path = match (&asked, &arguments.volume) {
        (Some(asked), _) => asked.volume.clone(),
        (None, Some(volume)) => image::find(volume)?,
        (None, None) => return Err(Failure::usage("info needs a volume, or --mount DIR")),
    };
    let mut found = match (image::newest_superblock(&path), &asked) {
        (Ok(found), _) => Some(found),
        // The name of a mount (fsname=) need not be that of the volume.
        (Err(_), Some(_)) => None,
        (Err(error), None) => return Err(error.into()),
    };
    let mounted = match &asked {
        Some(asked) => Some(asked.dir.clone()),
        None => mount::mounts()
            .map_err(Failure::from)?
            .into_iter()
            .find(|entry| entry.is_quire() && entry.source == path)
            .map(|entry| entry.dir),
    };
    let superblock = found.as_ref().map(|(superblock, _)| superblock).filter(|_| mounted.is_none());
    let held = superblock.and_then(|superblock| held_by_snapshots(&path, superblock));
    let told = mounted.as_deref().and_then(told_by_server);
    if let (Some((superblock, _)), Some(told)) = (&mut found, &told) {
        // The superblock is as old as the last checkpoint.
        superblock.free_blocks = told.free_blocks;
        superblock.inode_count = told.inodes;
        superblock.checkpoint = told.checkpoint;
    }
    let damaged = found.as_ref().and_then(|(_, damaged)| damaged.as_ref());
    let whole = found.as_ref().map_or(0, |(superblock, _)| superblock.block_count.saturating_mul(4096));
    let truncated = std::fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() < whole);
    if arguments.json {
        let mut value = match (&found, &told) {
            (Some((superblock, _)), _) => superblock_json(superblock),
            (None, Some(told)) => json!(told),
            (None, None) => json!({}),
        };
        value["mounted_at"] = mounted.map_or(Value::Null, |dir| json!(dir.to_string_lossy()));
        if let Some(asked) = &asked {
            value["transport"] = json!(asked.transport);
            value["syncfs"] = json!(asked.syncfs);
        }
        value["held_by_snapshots"] = held.map_or(Value::Null, |blocks| json!(blocks));
        value["truncated"] = json!(truncated);
        value["damaged_slot"] = damaged.map_or(Value::Null, |error| json!(error.to_string()));
        output::line(format_args!("{value:#}"));
        return Ok(());
    }
    match (&found, &told) {
        (Some((superblock, _)), _) => output::line(text(superblock).trim_end()),
        (None, Some(told)) => {
            let bytes = |blocks: u64| size::show(blocks * told.block_size);
            output::line(format_args!("uuid             {}", told.uuid));
            output::line(format_args!("size             {}", bytes(told.blocks)));
            output::line(format_args!("free             {}", bytes(told.free_blocks)));
        }
        (None, None) => {}
    }
    if let Some(blocks) = held {
        output::line(format_args!("snapshots only   {}", size::show(blocks * 4096)));
    }
    if let Some(dir) = mounted {
        output::line(format_args!("mounted at       {}", dir.display()));
    }
    if let Some(asked) = &asked {
        output::line(format_args!("transport        {}", asked.transport));
        output::line(format_args!("syncfs           {}", asked.syncfs));
    }
    if truncated {
        output::line(format_args!("truncated        `quire fsck` says what to do"));
    }
    if let Some(error) = damaged {
        output::line(format_args!("damaged          one of two superblocks: {error}"));
    }
    Ok(())
}

/// The blocks that only snapshots of a volume hold; `None` if it never had one, or if that cannot be read.
/// Takes no lock, so that nobody is kept from opening the volume: what was read while somebody wrote a
/// checkpoint, so that blocks may have been used again, does not count.
fn held_by_snapshots(path: &Path, superblock: &Superblock) -> Option<u64> {
    if superblock.epoch == 0 {
        return None;
    }
    let image = open_image(path, OpenMode::Look).and_then(Image::load);
    let held = image.and_then(|image| image.snapshot_space()).map(|space| space.held_blocks).ok()?;
    let (now, _) = image::newest_superblock(path).ok()?;
    (now == *superblock).then_some(held)
}

/// What a mount's server says.
struct Asked {
    dir: PathBuf,
    volume: PathBuf,
    transport: String,
    syncfs: String,
}

/// Asks the server behind a mount point.
fn ask(dir: &Path) -> Outcome<Asked> {
    let entry = places::mounted(dir)?;
    let (transport, syncfs) = (mount::transport_of(&entry.dir)?, mount::syncfs_of(&entry.dir)?);
    Ok(Asked { dir: entry.dir, volume: entry.source, transport, syncfs })
}

/// What the server of a mount says of its volume ([`crate::server::room::info`]).
#[derive(serde::Serialize)]
struct Told {
    free_blocks: u64,
    inodes: u64,
    checkpoint: u64,
    uuid: String,
    block_size: u64,
    blocks: u64,
}

/// Nothing of a server that does not answer, or that belongs to another user.
fn told_by_server(dir: &Path) -> Option<Told> {
    let answer = control::ask(dir, "info").ok()?;
    let words: Vec<&str> = answer.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse().ok();
    Some(Told {
        free_blocks: number(0)?,
        inodes: number(1)?,
        checkpoint: number(2)?,
        uuid: (*words.get(3)?).to_owned(),
        block_size: number(4)?,
        blocks: number(5)?,
    })
}

fn text(superblock: &Superblock) -> String {
    let bytes = |blocks: u64| size::show(blocks * 4096);
    let state = if superblock.flags & quire_format::superblock::FLAG_CLEAN != 0 {
        "clean"
    } else {
        "in use or not closed"
    };
    let mut lines = vec![
        ("format", format!("{}.{}", superblock.version.0, superblock.version.1)),
        ("uuid", uuid(&superblock.shown_uuid())),
        ("label", superblock.label().to_owned()),
        ("state", state.to_owned()),
        ("size", bytes(superblock.block_count)),
        ("free", bytes(superblock.free_blocks)),
        ("journal", bytes(superblock.journal_blocks)),
        ("metadata copies", superblock.metadata_copies.to_string()),
        ("inodes", superblock.inode_count.to_string()),
        ("checkpoint", superblock.checkpoint.to_string()),
        ("mounts", superblock.mount_count.to_string()),
        ("created", time(superblock.created)),
        ("last mounted", time(superblock.mounted)),
    ];
    if superblock.label().is_empty() {
        lines.remove(2);
    }
    lines.into_iter().map(|(name, value)| format!("{name:<17}{value}\n")).collect()
}
