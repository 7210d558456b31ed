//! The adapter to `quire-fsck`: everything this program knows of its interface.

use std::path::Path;

use quire_fsck::{Options, Progress, Report};

/// What a check found, as the command needs it.
pub struct Checked {
    /// The report as JSON, for `--json`.
    pub json: serde_json::Value,
    /// For people: one line each, with what became of it.
    pub issues: Vec<String>,
    /// Issues that were repaired.
    pub repaired: usize,
    /// Issues that were not.
    pub left: usize,
}

/// Checks `volume`. `progress` gets the phase, what is done, and of how much (0: unknown).
pub fn check(
    volume: &Path,
    repair: bool,
    progress: Option<&dyn Fn(&str, u64, u64)>,
) -> quire_base::Result<Checked> {
    let forward = |now: Progress| {
        if let Some(progress) = progress {
            progress(now.phase, now.done, now.total);
        }
    };
    let report: Report = quire_fsck::check(volume, &Options { repair, progress: Some(&forward) })?;
    let repaired = report.issues.iter().filter(|issue| issue.repaired).count();
    let issues = report
        .issues
        .iter()
        .map(|issue| {
            let mark = if issue.repaired { " (repaired)" } else { "" };
            format!("{:?} {:?}: {}{mark}", issue.severity, issue.code, issue.message)
        })
        .collect();
    Ok(Checked {
        json: serde_json::to_value(&report).unwrap_or_default(),
        issues,
        repaired,
        left: report.issues.len() - repaired,
    })
}
