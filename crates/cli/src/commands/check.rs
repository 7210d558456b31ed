//! The adapter to `quire-fsck`: everything this program knows of its interface.

use std::path::Path;

use quire_fsck::{IssueKind, Options, Progress, Report, Severity};

/// What a check found, as the command needs it.
pub struct Checked {
    /// The report as JSON, for `--json`.
    pub json: serde_json::Value,
    /// For people: one line each, with what became of it.
    pub issues: Vec<String>,
    /// What a repair gave up, one line each.
    pub losses: Vec<String>,
    /// Errors that were repaired.
    pub repaired: usize,
    /// Errors that were not.
    pub left: usize,
    /// Those of them that a repair would mend, as a dry run tells.
    pub would_be_repaired: u64,
    /// What the volume holds, in a line.
    pub summary: String,
    /// The device is shorter than the volume. The line of this error says what to do first.
    pub truncated: bool,
    /// As fsck(8).
    pub exit_code: u8,
}

/// Whether to repair, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repair {
    /// Repair at all.
    pub repair: bool,
    /// Give up what cannot be read.
    pub lossy: bool,
    /// In memory only.
    pub dry_run: bool,
}

/// Checks `volume`. `progress` gets the phase, what is done, and of how much (an estimate).
pub fn check(volume: &Path, how: Repair, progress: &dyn Fn(&str, u64, u64)) -> quire_base::Result<Checked> {
    let forward = |now: Progress| progress(now.phase, now.done, now.total);
    let Repair { repair, lossy, dry_run } = how;
    let options = Options { repair, lossy, dry_run, progress: Some(&forward) };
    let report: Report = quire_fsck::check(volume, &options)?;
    let errors = report.issues.iter().filter(|issue| issue.severity > Severity::Info);
    let repaired = errors.clone().filter(|issue| issue.repaired).count();
    let mut issues: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    if report.summary.issues_omitted > 0 {
        issues.push(format!("... and {} more", report.summary.issues_omitted));
    }
    let held = &report.summary;
    let summary = if report.has(IssueKind::ReceiveUnfinished) {
        "names and space were not checked".to_owned()
    } else {
        format!(
            "{} files, {} directories, {} of {} blocks used",
            held.inodes - held.directories.min(held.inodes),
            held.directories,
            held.used_blocks,
            held.used_blocks + held.free_blocks
        )
    };
    Ok(Checked {
        json: serde_json::to_value(&report).unwrap_or_default(),
        issues,
        losses: report.losses.iter().map(ToString::to_string).collect(),
        repaired,
        left: errors.count() - repaired,
        would_be_repaired: report.would_be_repaired,
        summary,
        truncated: report.has(IssueKind::VolumeTruncated),
        exit_code: report.exit_code(),
    })
}
