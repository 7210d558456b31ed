//! Copying every file that can be read out of a volume, whether it can be opened or not.
//!
//! The volume is repaired in memory, over the device as it is ([`crate::lossy`]); the files are read from the
//! result. If the repair fails, they are read from the volume as it is, with its journal up to the damage; of
//! a volume with an unfinished receive, from the snapshot at which that began. Nothing is ever written to the
//! device. Copied are names, contents with their holes, hard links, symbolic links, pipes, sockets and
//! devices, and of all of them mode, owner, times and extended attributes. A block that cannot be read stays
//! a hole of the copy, and is told. A target that cannot be written ends the copy. The copy is durable when
//! it is whole.
//!
//! Neighbours: [`copy`] makes one file of the target from one inode.

#[cfg(not(any(loom, shuttle)))]
mod copy;

use crate::Progress;
use crate::issue::Severity;
use crate::lossy::{self, Loss};
use quire::VolumeOptions;
use quire::internals::repair::{JournalCut, open_for_reading};
use quire_base::sync::Arc;
use quire_base::{Context, Error, ErrorKind, Result};
use quire_device::{Backend, OverlayBackend};
use serde::Serialize;
use std::path::Path;

/// Problems that a report keeps.
const PROBLEMS_MAX: usize = 20_000;

/// Something that was not copied as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where it is in the volume.
    pub path: String,
    /// What is missing, and why.
    pub what: String,
}

/// What a salvage has copied, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Salvaged {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, pipes, sockets and devices.
    pub others: u64,
    /// Further names of files that were copied under another name.
    pub links: u64,
    /// Bytes of contents, holes not counted.
    pub bytes: u64,
    /// What could not be copied as it is.
    pub problems: Vec<Problem>,
    /// Problems that the report leaves out, since there are too many.
    pub problems_omitted: u64,
    /// What is lost in the volume or may be wrong.
    pub losses: Vec<Loss>,
}

impl Salvaged {
    /// Whether everything that the volume has was copied as it is.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty() && self.losses.is_empty()
    }

    fn problem(&mut self, path: &Path, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { path: path.to_string_lossy().into_owned(), what });
        } else {
            self.problems_omitted += 1;
        }
    }
}

/// Copies every readable file of the volume in an image file or on a block device into a directory, which is
/// made, or is empty.
///
/// Errors: those of [`crate::check`]; `Exists` if the directory has something in it; `Corrupt` if no node of
/// a tree can be found; `NoSpace`, `ReadOnly` or `Io` if the directory's file system cannot be written.
#[cfg(not(any(loom, shuttle)))]
pub fn salvage(path: &Path, into: &Path, progress: Option<&dyn Fn(Progress)>) -> Result<Salvaged> {
    salvage_backend(quire_device::open_image(path, quire_device::OpenMode::ReadOnly)?, into, progress)
}

/// As [`salvage`], from a backend.
#[cfg(not(any(loom, shuttle)))]
pub fn salvage_backend(
    backend: Arc<dyn Backend>,
    into: &Path,
    progress: Option<&dyn Fn(Progress)>,
) -> Result<Salvaged> {
    let target = copy::Target::open(into)?;
    let open = |above| VolumeOptions::new().read_only(true).threads(false).open_backend(above);
    let mut salvaged = Salvaged::default();
    let volume = match lossy::rehearse_headless(&backend, progress) {
        Ok((report, repaired)) => {
            let left = || report.issues.iter().filter(|issue| !issue.repaired);
            let volume = open(repaired).map_err(|error| {
                let first = left().next().map_or(error.to_string(), |issue| issue.message.clone());
                let message = format!("{}: nothing can be salvaged: {first}", backend.name());
                Error::new(ErrorKind::Corrupt, message)
            })?;
            let wrong = left().filter(|issue| issue.severity > Severity::Warning);
            let wrong =
                wrong.map(|issue| Loss { path: None, inode: issue.inode, what: issue.message.clone() });
            salvaged.losses = report.losses.iter().cloned().chain(wrong).collect();
            volume
        }
        // Much of it may be readable without a repair.
        Err(error) => {
            let above: Arc<dyn Backend> = Arc::new(OverlayBackend::new(backend.clone()));
            let whole = open(above.clone()).map(|volume| (volume, JournalCut::default()));
            let Ok((volume, cut)) = whole.or_else(|_| open_for_reading(above)) else {
                return Err(error).context(backend.name());
            };
            let what = format!("copied is what can be read without a repair, which failed: {error}");
            salvaged.problem(Path::new("/"), what);
            salvaged.losses.extend(lossy::of_cut(&cut));
            volume
        }
    };
    target.copy_all(&volume, &mut salvaged, progress).map(|()| salvaged)
}
