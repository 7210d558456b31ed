//! `quire lease`: where a file on a mount lies in the image, held for a while.
//!
//! A lease has a bounded number of extents, so a file in many pieces takes several. All are held together,
//! and given back when the first of them is recalled.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_base::Error;
use quire_fuse::lease::{HeldLease, REVOKED, VALID, WRITTEN};
use quire_fuse::mount;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use crate::arguments::Lease;
use crate::exit::{self, FAILED, Failure, Outcome};
use crate::output;

/// How often the server is asked whether the leases are recalled.
const INTERVAL: Duration = Duration::from_millis(50);

/// A part of the file.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    offset: u64,
    len: u64,
    /// `None`: it is a hole, or unwritten.
    device: Option<u64>,
    kind: &'static str,
}

/// Leases the layout of a file, prints it, and holds it as long as asked to.
pub fn run(arguments: &Lease) -> Outcome {
    let path = &arguments.file;
    let failed = |error: Error| Failure::from(error.context(path.display()));
    // A pipe without a writer would keep the command waiting.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = file.map_err(|error| failed(Error::os("opening it", &error)))?;
    let metadata = file.metadata().map_err(|error| failed(Error::os("looking at it", &error)))?;
    if !metadata.is_file() {
        return Err(Failure::new(
            exit::MISSING,
            format!("{}: only regular files have a layout", path.display()),
        ));
    }
    let mut leases: Vec<HeldLease<'_>> = Vec::new();
    let Range { start, end } = arguments.range.clone().unwrap_or(0..u64::MAX);
    let mut at = start;
    while at < end {
        let lease = HeldLease::take(&file, at..end).map_err(failed)?;
        let range = lease.range();
        let is_last = range.end <= at || range.end >= lease.file_size();
        at = range.end;
        leases.push(lease);
        if is_last {
            break;
        }
    }
    show(path, &file, &leases, arguments.json)?;
    let until = Instant::now() + Duration::from_secs(arguments.hold);
    while Instant::now() < until {
        for lease in &leases {
            match lease.state().map_err(failed)? {
                VALID => {}
                REVOKED => {
                    return Err(Failure::new(FAILED, format!("{}: the lease was revoked", path.display())));
                }
                _ => {
                    eprintln!("{}: recalled, and returned", path.display());
                    return Ok(());
                }
            }
        }
        std::thread::sleep(INTERVAL.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

fn parts(leases: &[HeldLease<'_>]) -> Vec<Part> {
    let mut parts = Vec::new();
    for lease in leases {
        let Range { start: mut at, end } = lease.range();
        let hole = |at: u64, to: u64| Part { offset: at, len: to - at, device: None, kind: "hole" };
        for extent in lease.extents() {
            if at < extent.offset {
                parts.push(hole(at, extent.offset));
            }
            let (device, kind) = match extent.kind {
                WRITTEN => (Some(extent.device), "written"),
                _ => (None, "unwritten"),
            };
            parts.push(Part { offset: extent.offset, len: extent.len, device, kind });
            at = extent.offset + extent.len;
        }
        if at < end {
            parts.push(hole(at, end));
        }
    }
    parts
}

/// The image or device of the mount that a file is on.
fn volume_of(file: &File) -> Outcome<Option<PathBuf>> {
    let device = file.metadata().map_err(|error| Failure::system("looking at the file", &error))?.dev();
    let named = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Ok(mount::mounts()?.into_iter().rev().find(|entry| entry.device == named).map(|entry| entry.source))
}

fn show(path: &Path, file: &File, leases: &[HeldLease<'_>], as_json: bool) -> Outcome {
    let volume = volume_of(file)?;
    let parts = parts(leases);
    if as_json {
        let extents: Vec<Value> = parts
            .iter()
            .map(|part| {
                json!({ "offset": part.offset, "len": part.len, "device": part.device, "kind": part.kind })
            })
            .collect();
        let size = leases.last().map(HeldLease::file_size);
        let (file, volume) = (path.to_string_lossy(), volume.as_ref().map(|volume| volume.to_string_lossy()));
        output::line(json!({ "file": file, "volume": volume, "size": size, "extents": extents }));
        return Ok(());
    }
    if let Some(volume) = volume {
        output::line(format_args!("{} in {}", path.display(), volume.display()));
    }
    output::line(format_args!("{:>16} {:>16} {:>16}  {}", "offset", "bytes", "in the image", "kind"));
    for Part { offset, len, device, kind } in &parts {
        let device = device.map_or_else(|| "-".to_owned(), |at| at.to_string());
        output::line(format_args!("{offset:>16} {len:>16} {device:>16}  {kind}"));
    }
    Ok(())
}
