//! The adapter to `quire::internals::inspect`: turns keys, records and inodes into lines and JSON.

use std::ops::ControlFlow;
use std::path::Path;

use quire::internals::inspect::{self, Image};
use quire_base::{Error, ErrorKind, InodeNo, Result, Timestamp};
use quire_device::{OpenMode, open_image};
use quire_format::dirent::Entry;
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_format::logged::LoggedOp;
use quire_format::receive::{SnapshotId, Unfinished};
use quire_format::region::RegionMap;
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;
use quire_format::xattr;
use serde_json::{Value, json};

use crate::image;

/// Takes a line; false: no more wanted.
pub type Line<'a> = dyn FnMut(String) -> bool + 'a;

/// Both slots; an error if neither has a superblock.
pub fn superblock(volume: &Path, json: bool, line: &mut Line<'_>) -> Result<()> {
    let slots = image::superblocks(volume)?;
    if json {
        let slots: Vec<Value> = slots
            .iter()
            .map(|slot| match slot {
                Ok(superblock) => superblock_json(superblock),
                Err(error) => json!({ "error": error.to_string() }),
            })
            .collect();
        line(format!("{:#}", json!({ "slots": slots })));
    } else {
        for (index, slot) in slots.iter().enumerate() {
            match slot {
                Ok(superblock) => line(format!("slot {index}: {superblock:#?}")),
                Err(error) => line(format!("slot {index}: {error}")),
            };
        }
    }
    match slots.iter().any(Result::is_ok) {
        true => Ok(()),
        false => image::newest_superblock(volume).map(drop),
    }
}

/// What a mount would replay.
pub fn journal(volume: &Path, json: bool, line: &mut Line<'_>) -> Result<()> {
    let (superblock, _) = image::newest_superblock(volume)?;
    let backend = open_image(volume, OpenMode::ReadOnly)?;
    let mut go_on = true;
    let end = inspect::journal(backend, &superblock, &mut |seq, changes| {
        if !go_on {
            return;
        }
        let changes: Vec<String> = changes.map(|change| change.describe()).collect();
        go_on = line(if json {
            json!({ "seq": seq.0, "changes": changes }).to_string()
        } else {
            format!("{:>12}  {}", seq.0, changes.join("; "))
        });
    })?;
    if !json {
        line(format!(
            "{} records from {} to {}, {} blocks",
            end.records, superblock.sequence, end.end, end.blocks
        ));
    }
    Ok(())
}

/// Every key and value after replay.
pub fn tree(volume: &Path, json: bool, line: &mut Line<'_>) -> Result<()> {
    let image = Image::load(open_image(volume, OpenMode::ReadOnly)?)?;
    image.keys(&mut |key, value| {
        let go_on = line(if json {
            json!({ "object": key.object, "kind": format!("{:?}", key.kind), "offset": key.offset,
                    "value": describe(key, value) })
            .to_string()
        } else {
            show(key, value)
        });
        if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// One inode with all that belongs to it.
pub fn inode(volume: &Path, number: u64, json: bool, line: &mut Line<'_>) -> Result<()> {
    let image = Image::load(open_image(volume, OpenMode::ReadOnly)?)?;
    let Some(record) = image.inode(InodeNo(number))? else {
        return Err(Error::new(ErrorKind::NotFound, format!("{} has no inode {number}", volume.display())));
    };
    if json {
        let mut parts = Vec::new();
        image.object(number, &mut |key, value| {
            parts.push(json!({ "kind": format!("{:?}", key.kind), "offset": key.offset,
                               "value": describe(key, value) }));
        })?;
        line(format!("{:#}", json!({ "inode": number, "record": record_json(&record), "keys": parts })));
        return Ok(());
    }
    line(format!("inode {number}: {record:#?}"));
    image.object(number, &mut |key, value| {
        if key.kind != KeyKind::Inode {
            line(show(key, value));
        }
    })
}

fn show(key: Key, value: &[u8]) -> String {
    format!(
        "{:>10} {:<9} {:>20}  {}",
        key.object,
        format!("{:?}", key.kind),
        key.offset,
        describe(key, value)
    )
}

/// A value for people; bytes that do not decode are shown as such.
fn describe(key: Key, value: &[u8]) -> String {
    let decoded = match key.kind {
        KeyKind::Inode => InodeRecord::decode(value).map(|record| format!("{record:?}")),
        KeyKind::Entry => Entry::decode(value)
            .map(|entry| format!("{} -> {} {:?}", entry.name.escape_ascii(), entry.inode, entry.file_type)),
        KeyKind::Extent => Extent::decode(key.offset, value).map(|extent| {
            let state = if extent.unwritten { " unwritten" } else { "" };
            format!("block {} + {}{state}", extent.disk_block, extent.len)
        }),
        KeyKind::FreeSpace => {
            RegionMap::decode(value).map(|region| format!("{} blocks used", region.used_count()))
        }
        KeyKind::Dead => {
            RegionMap::decode(value).map(|region| format!("{} blocks of snapshots only", region.used_count()))
        }
        KeyKind::Snapshot => Snapshot::decode(value).map(|snapshot| {
            let state = if snapshot.deleting.is_some() { ", being deleted" } else { "" };
            format!("{:?} of checkpoint {}{state}", snapshot.name, snapshot.superblock.checkpoint)
        }),
        KeyKind::Receive if key.offset == 0 => Unfinished::decode(value).map(|unfinished| {
            format!("of {:?}, {} items are there", unfinished.name, unfinished.position.items)
        }),
        KeyKind::Receive => SnapshotId::decode(value).map(|id| id.to_string()),
        KeyKind::LoggedOp => LoggedOp::decode(value).map(|operation| format!("{operation:?}")),
        KeyKind::Xattr => {
            let (_, _, piece) = xattr::split_offset(key.offset);
            if piece == 0 {
                xattr::Head::decode(value).map(|head| format!("{}", head.name.escape_ascii()))
            } else {
                Ok(format!("piece {piece}, {} bytes", value.len()))
            }
        }
        KeyKind::Symlink => Ok(value.escape_ascii().to_string()),
        KeyKind::OrphanKey => Ok("orphan".into()),
    };
    decoded.unwrap_or_else(|error| format!("does not decode ({error}): {} bytes", value.len()))
}

fn record_json(record: &InodeRecord) -> Value {
    json!({
        "mode": format!("{:o}", record.mode), "uid": record.uid, "gid": record.gid, "links": record.nlink,
        "size": record.size, "blocks": record.blocks, "generation": record.generation,
        "atime": record.atime.0, "mtime": record.mtime.0, "ctime": record.ctime.0, "btime": record.btime.0,
    })
}

/// The fields of a superblock.
pub fn superblock_json(superblock: &Superblock) -> Value {
    json!({
        "version": [superblock.version.0, superblock.version.1],
        "uuid": uuid(&superblock.shown_uuid()),
        "label": superblock.label(),
        "clean": superblock.flags & quire_format::superblock::FLAG_CLEAN != 0,
        "flags": superblock.flags,
        "features": {
            "compatible": superblock.feature_compat,
            "read_only_compatible": superblock.feature_ro_compat,
            "incompatible": superblock.feature_incompat,
        },
        "block_size": 4096,
        "blocks": superblock.block_count,
        "free_blocks": superblock.free_blocks,
        "inodes": superblock.inode_count,
        "next_inode": superblock.next_inode,
        "slot": superblock.slot,
        "checkpoint": superblock.checkpoint,
        "incarnation": superblock.incarnation,
        "mount_count": superblock.mount_count,
        "sequence": superblock.sequence.0,
        "journal": { "start": superblock.journal_start.0, "blocks": superblock.journal_blocks },
        "pool": { "start": superblock.pool_start.0, "blocks": superblock.pool_blocks },
        "mirror": { "start": superblock.mirror_start.0, "blocks": superblock.mirror_blocks },
        "data_start": superblock.data_start.0,
        "data_end": superblock.data_end.0,
        "metadata_copies": superblock.metadata_copies,
        "orphan_blocks": superblock.orphan_blocks,
        "created": superblock.created.0,
        "mounted": superblock.mounted.0,
        "checkpointed": superblock.checkpointed.0,
    })
}

/// An identifier in its usual form.
pub fn uuid(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes_ref(bytes).to_string()
}

/// A time as `2026-01-31 12:00:00 UTC`.
pub fn time(at: Timestamp) -> String {
    if at.0 == 0 {
        return "never".into();
    }
    let (days, seconds) = (at.seconds().div_euclid(86_400), at.seconds().rem_euclid(86_400));
    // Days since 1 March of year 0 of the proleptic Gregorian calendar, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_identifiers() {
        assert_eq!(time(Timestamp(0)), "never");
        assert_eq!(time(Timestamp(951_782_400_000_000_000)), "2000-02-29 00:00:00 UTC");
        assert_eq!(time(Timestamp(1_767_225_599_000_000_000)), "2025-12-31 23:59:59 UTC");
        assert_eq!(time(Timestamp(-1_000_000_000)), "1969-12-31 23:59:59 UTC");
        assert_eq!(uuid(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
