//! Checking a volume, and mending what can be mended without guessing.
//!
//! ```no_run
//! # fn main() -> quire_base::Result<()> {
//! let report = quire_fsck::check(std::path::Path::new("quire.img"), &quire_fsck::Options::default())?;
//! for issue in &report.issues {
//!     println!("{issue}");
//! }
//! std::process::exit(report.exit_code().into());
//! # }
//! ```
//!
//! ```text
//! superblocks ─ checkpoint (both: manifest, orphan blocks, nodes) ─ replay in memory
//!                                                                        │
//!               space ─ orphans ─ names ─ inodes (values, contents) ─────┘  analysis
//!                                   │
//!                         issues + fixes ── repair: rounds of (analysis, fixes), then a second look
//! ```
//!
//! | module | what it compares |
//! | --- | --- |
//! | [`issue`], [`report`] | what can be wrong; the outcome |
//! | `superblocks` | the two slots, alone and with each other |
//! | `checkpoint` | every block that a superblock leads to, the pool's map |
//! | `inodes`, `contents`, `attributes` | every key and value; each inode with what it has |
//! | `names` | entries, link counts, parents, circles |
//! | `restore` | names of which one byte is wrong |
//! | `orphans` | inodes without links, slots, logged operations |
//! | `space` | extents with one another and with the used blocks |
//! | `fix`, `repair` | what to do about it, and doing it |
//! | `lossy` | a repair that gives up what cannot be read, and ends |
//! | [`salvage`] | copying what can be read, without writing to the volume |
//!
//! Invariants: without `repair` nothing is written, whatever state the volume is in. Nothing that is read is
//! trusted. A repair changes the volume only by whole checkpoints, so a crash in its midst leaves it no
//! worse. A volume that a crash left, of any kind and at any moment, has no issue.
//!
//! Neighbours: `quire::internals::inspect` shows a volume as of the end of its journal,
//! `quire::internals::repair` takes changes.

mod analysis;
mod attributes;
mod checkpoint;
mod contents;
mod examine;
mod fix;
mod inodes;
pub mod issue;
mod lossy;
mod masked;
mod names;
mod orphans;
mod progress;
mod repair;
pub mod report;
mod restore;
pub mod salvage;
mod snapshots;
mod space;
mod superblocks;
mod view;

pub use issue::{Issue, IssueKind, Severity};
pub use lossy::Loss;
pub use report::{Report, Summary};
pub use salvage::{Problem, Salvaged};
#[cfg(not(any(loom, shuttle)))]
pub use salvage::{salvage, salvage_backend};

use quire_base::sync::Arc;
use quire_base::{Context, Result};
use quire_device::Backend;
use std::path::Path;

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being looked at.
    pub phase: &'static str,
    /// Steps done in this phase.
    pub done: u64,
    /// Steps that the phase is expected to have; an estimate.
    pub total: u64,
}

/// How to check.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Mend what can be mended; without it nothing is written.
    pub repair: bool,
    /// With `repair`: give up what cannot be read, so that the repair ends with a volume that is clean and
    /// opens. [`Report::losses`] lists what is given up.
    pub lossy: bool,
    /// With `repair`: repair a copy in memory only; the report says what a repair would do, nothing is
    /// written.
    pub dry_run: bool,
    /// Is told now and then how far the check is.
    pub progress: Option<&'a dyn Fn(Progress)>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("repair", &self.repair)
            .field("lossy", &self.lossy)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

/// Checks the volume in an image file or on a block device, which nobody may have open for writing.
///
/// Errors mean that the check could not run (fsck's exit code 8): `NotFound`, `AccessDenied`, `Busy`,
/// `NotAVolume`, `UnknownFormat`, `Io`. A damaged volume is no error but a report.
#[cfg(not(any(loom, shuttle)))]
pub fn check(path: &Path, options: &Options<'_>) -> Result<Report> {
    use quire_device::OpenMode;
    let mode = if options.repair && !options.dry_run { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    check_backend(quire_device::open_image(path, mode)?, options)
}

/// Checks the volume on a backend; see [`check`].
pub fn check_backend(backend: Arc<dyn Backend>, options: &Options<'_>) -> Result<Report> {
    if options.repair && options.lossy {
        return lossy::run(&backend, options.dry_run, options.progress).context(backend.name());
    }
    let backend: Arc<dyn Backend> =
        if options.dry_run { Arc::new(quire_device::OverlayBackend::new(backend)) } else { backend };
    let examined = examine::run(&backend, options.progress).context(backend.name())?;
    if options.repair && !examined.findings.fixes.is_empty() {
        let report = repair::run(&backend, examined, &mut |_, _, _| Ok(()), options.progress)?;
        return Ok(if options.dry_run { lossy::undone(report) } else { report });
    }
    Ok(examined.findings.into_report())
}
