//! How much room a mounted volume has: larger, discarded, and told.
//!
//! ```text
//!   grow BYTES   grow max   grow   trim BYTE BYTES   info
//! ```
//!
//! The first two start a task and are answered with it ([`super::tasks`]); `grow` alone is answered with the
//! size of the volume in bytes. A trim goes on from a byte for a moment and so many bytes at most, and is
//! answered with where it is, what it discarded and where the volume ends: the command that asks sets the
//! pace. It is answered on a thread of its own, since a device may take long for a discard.
//!
//! Neighbours: [`super::listener`] hears the requests; [`crate::commands::grow`], [`crate::commands::trim`]
//! and [`crate::commands::info`] make them.

use std::ops::Range;
use std::time::{Duration, Instant};

use quire::Volume;

use super::tasks::ServerTasks;
use crate::exit::{Failure, Outcome};

/// Bytes of the volume that are worked through at once.
const PIECE: u64 = 32 << 20;
/// How long the server works for one request.
const STEP: Duration = Duration::from_millis(200);

/// Answers what follows `grow` in a request.
pub fn grow(wanted: &str, volume: &Volume, tasks: &ServerTasks) -> Outcome<String> {
    let bytes = match wanted {
        "" => {
            let info = volume.info();
            return Ok(format!("{}\n", info.blocks * u64::from(info.block_size)));
        }
        "max" => None,
        bytes => {
            Some(bytes.parse().map_err(|_| Failure::usage(format!("'{bytes}' is not a number of bytes")))?)
        }
    };
    let volume = volume.clone();
    let number = tasks.start(move || {
        match bytes {
            Some(bytes) => volume.grow(bytes)?,
            None => volume.grow_whole()?,
        };
        Ok(())
    })?;
    tasks.answer(number)
}

/// Goes on with a trim from a byte for a moment, and for so many bytes at most.
pub fn trim(part: &str, volume: &Volume) -> Outcome<String> {
    let parsed = part.split_once(' ').and_then(|(from, most)| Some((from.parse().ok()?, most.parse().ok()?)));
    let (mut at, most): (u64, u64) =
        parsed.ok_or_else(|| Failure::usage(format!("'{part}' is not a part of the volume")))?;
    let info = volume.info();
    let end = info.blocks * u64::from(info.block_size);
    let stop = at.saturating_add(most).min(end);
    let (mut discarded, started) = (0, Instant::now());
    while at < stop && started.elapsed() < STEP {
        let piece: Range<u64> = at..at.saturating_add(PIECE).min(stop);
        discarded += volume.trim(piece.clone())?;
        at = piece.end;
    }
    Ok(format!("{at} {discarded} {end}\n"))
}

/// Free blocks, inodes, the number of the last checkpoint, uuid, bytes of a block, blocks, and whether
/// changes are taken: `rw` or `ro`.
pub fn info(volume: &Volume) -> Outcome<String> {
    let info = volume.info();
    let changes = if volume.is_read_only() { "ro" } else { "rw" };
    let uuid = uuid::Uuid::from_bytes(info.uuid);
    let [free, size] = [info.free_blocks, info.blocks];
    Ok(format!("{free} {} {} {uuid} {} {size} {changes}\n", info.inodes, info.checkpoint, info.block_size))
}
