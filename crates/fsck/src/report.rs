//! The outcome of a check, and the place where issues gather while it runs.
//!
//! Invariants: however much is wrong, no more than [`ISSUES_MAX`] issues are kept; the rest are counted.
//!
//! Neighbours: every phase of the check reports to [`Findings`]; [`crate::fix`] is what a repair is made of.

use crate::fix::Fixes;
use crate::issue::{Issue, IssueKind, Severity};
use crate::restore::TRIES_MAX;
use serde::Serialize;
use std::fmt;

/// Something that is lost, or that may be wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Loss {
    /// Where it was, from the root directory; under `/lost+found` what has lost its name. `None` if no file
    /// or directory in particular is meant.
    pub path: Option<String>,
    /// Its number, if that is known.
    pub inode: Option<u64>,
    /// What of it is lost.
    pub what: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Issues that a report keeps.
pub const ISSUES_MAX: usize = 20_000;

/// What a volume holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Inodes of all types.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Pipes, sockets and devices.
    pub others: u64,
    /// Extents of all files.
    pub extents: u64,
    /// Used blocks of the data space, those of the metadata pool's chunks in it included.
    pub used_blocks: u64,
    /// Free blocks of the data space.
    pub free_blocks: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Nodes of the newest checkpoint's tree.
    pub nodes: u64,
    /// Blocks of the metadata pool.
    pub pool_blocks: u64,
    /// Journal records behind the checkpoint.
    pub journal_records: u64,
    /// Changes that a crash cut off and the next mount will finish.
    pub logged_operations: u64,
    /// Issues that the report leaves out, since there are too many.
    pub issues_omitted: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is wrong, in the order in which it was found.
    pub issues: Vec<Issue>,
    /// What a repair that may lose data gave up or could not vouch for, by path.
    pub losses: Vec<Loss>,
    /// Issues that a repair would mend; a dry run counts them.
    pub would_be_repaired: u64,
    /// What the volume holds; zeros for what could not be read.
    pub summary: Summary,
}

impl Report {
    /// As fsck(8): 0 nothing is wrong, 1 all that was is repaired, 4 errors are left. (8, could not run,
    /// belongs to an error of [`crate::check`]: there is no report then.)
    pub fn exit_code(&self) -> u8 {
        let real = || self.issues.iter().filter(|issue| issue.severity > Severity::Info);
        if real().any(|issue| !issue.repaired) {
            4
        } else if real().next().is_some() {
            1
        } else {
            0
        }
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.exit_code() == 0
    }

    /// Whether an issue of this kind was found.
    pub fn has(&self, kind: IssueKind) -> bool {
        self.issues.iter().any(|issue| issue.code == kind)
    }

    /// The worst severity of what is left.
    pub fn worst(&self) -> Option<Severity> {
        self.issues.iter().filter(|issue| !issue.repaired).map(|issue| issue.severity).max()
    }
}

/// Where an issue is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) inode: Option<u64>,
    pub(crate) block: Option<u64>,
}

impl Place {
    /// Nowhere in particular.
    pub(crate) const NONE: Place = Place { inode: None, block: None };

    /// An inode.
    pub(crate) const fn inode(number: u64) -> Place {
        Place { inode: Some(number), block: None }
    }

    /// A disk block.
    pub(crate) const fn block(number: u64) -> Place {
        Place { inode: None, block: Some(number) }
    }
}

/// Issues found so far, what would mend them, and what was seen on the way.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) issues: Vec<Issue>,
    pub(crate) fixes: Fixes,
    pub(crate) summary: Summary,
    /// Names that were tried to be restored.
    restore_tries: u32,
    /// Something is damaged beyond what the further phases can look at.
    pub(crate) fatal: bool,
}

impl Findings {
    /// Adds an issue of its kind's usual severity.
    pub(crate) fn add(&mut self, kind: IssueKind, place: Place, message: impl Into<String>) {
        self.add_as(kind.severity(), kind, place, message);
    }

    /// Adds an issue of a severity of its own.
    pub(crate) fn add_as(
        &mut self,
        severity: Severity,
        code: IssueKind,
        place: Place,
        message: impl Into<String>,
    ) {
        self.fatal |= severity == Severity::Fatal;
        // That a repair has failed comes last, and is never left out.
        if self.issues.len() >= ISSUES_MAX && code != IssueKind::RepairFailed {
            self.summary.issues_omitted += 1;
            return;
        }
        let Place { inode, block } = place;
        self.issues.push(Issue { severity, code, message: message.into(), inode, block, repaired: false });
    }

    /// Whether one more damaged name may be tried to be restored; counts it.
    pub(crate) fn may_try_to_restore(&mut self) -> bool {
        self.restore_tries += 1;
        self.restore_tries <= TRIES_MAX
    }

    pub(crate) fn into_report(self) -> Report {
        Report { issues: self.issues, summary: self.summary, ..Report::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_the_limit() {
        let mut findings = Findings::default();
        for block in 0..ISSUES_MAX as u64 + 5 {
            findings.add(IssueKind::BlockLeaked, Place::block(block), "lost");
        }
        findings.add(IssueKind::RepairFailed, Place::NONE, "no room");
        assert_eq!(findings.issues.pop().unwrap().code, IssueKind::RepairFailed);
        let mut report = findings.into_report();
        assert_eq!((report.issues.len(), report.summary.issues_omitted), (ISSUES_MAX, 5));
        assert_eq!((report.exit_code(), report.worst()), (4, Some(Severity::Warning)));
        report.issues.iter_mut().for_each(|issue| issue.repaired = true);
        assert_eq!((report.exit_code(), report.worst()), (1, None));
        report.issues.clear();
        assert!(report.is_clean());
    }
}
