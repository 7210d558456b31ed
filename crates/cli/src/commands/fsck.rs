//! `quire fsck`, with the exit codes of fsck(8).

use std::process::ExitCode;

use super::check::{self, Checked, Repair};
use crate::arguments::Fsck;
use crate::{image, output};

/// fsck(8): the check could not run.
const FAILED: u8 = 8;

/// How far a check or a salvage is.
pub(super) const BAR: &str = "{msg:<24} {bar:40} {percent:>3}% {elapsed}";

/// Checks, and repairs if asked to.
pub fn run(arguments: &Fsck) -> ExitCode {
    let volume = match image::find_to_open(&arguments.volume, arguments.take_over) {
        Ok(volume) => volume,
        Err(failure) => {
            eprintln!("quire fsck: {failure}");
            return ExitCode::from(FAILED);
        }
    };
    let bar = output::bar(!arguments.json, BAR);
    let progress = |phase: &str, done: u64, total: u64| {
        bar.set_message(phase.to_owned());
        bar.set_length(total);
        bar.set_position(done);
    };
    let how = Repair { repair: arguments.repair, lossy: arguments.lossy, dry_run: arguments.dry_run };
    let checked = check::check(&volume, how, &progress);
    bar.finish_and_clear();
    let checked = match checked {
        Ok(checked) => checked,
        Err(error) => {
            eprintln!("quire fsck: {error}");
            return ExitCode::from(FAILED);
        }
    };
    if arguments.json {
        output::line(format_args!("{:#}", checked.json));
    } else {
        for issue in &checked.issues {
            output::line(issue);
        }
        for loss in &checked.losses {
            output::line(format_args!("lost {loss}"));
        }
        output::line(format_args!("{}: {}", volume.display(), verdict(&checked, how)));
    }
    if let Err(failure) = output::verdict() {
        eprintln!("quire fsck: {failure}");
        return ExitCode::from(checked.exit_code | FAILED);
    }
    ExitCode::from(checked.exit_code)
}

fn verdict(checked: &Checked, how: Repair) -> String {
    let (mends, lossy) = match checked.truncated {
        true => ("", ""),
        false => (
            "; `quire fsck --repair` mends what it can",
            "; `quire fsck --repair --lossy --dry-run` tells what giving up the rest would lose",
        ),
    };
    match (checked.repaired, checked.left, checked.losses.len()) {
        (0, 0, _) => format!("clean, {}", checked.summary),
        (_, left, lost) if how.dry_run && how.lossy => {
            format!("{left} errors, and {lost} losses if they are repaired; nothing was changed")
        }
        (_, left, _) if how.dry_run => {
            format!("{} of {left} errors would be repaired; nothing was changed", checked.would_be_repaired)
        }
        (repaired, 0, 0) => format!("{repaired} errors repaired, {}", checked.summary),
        (repaired, 0, lost) => format!("{repaired} errors repaired, {lost} losses, {}", checked.summary),
        (0, left, _) if !how.repair => format!("{left} errors{mends}"),
        (repaired, left, _) if !how.lossy => format!("{repaired} errors repaired, {left} left{lossy}"),
        (repaired, left, _) => format!("{repaired} errors repaired, {left} left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(repaired: usize, left: usize) -> Checked {
        Checked {
            json: serde_json::Value::Null,
            issues: Vec::new(),
            losses: Vec::new(),
            repaired,
            left,
            would_be_repaired: 0,
            summary: "1 files".into(),
            truncated: false,
            exit_code: 0,
        }
    }

    #[test]
    fn the_last_line_says_what_to_do() {
        let no = Repair::default();
        let plain = Repair { repair: true, ..no };
        let lossy = Repair { lossy: true, ..plain };
        assert!(verdict(&checked(0, 0), no).starts_with("clean"));
        assert!(verdict(&checked(0, 2), no).contains("--repair"));
        assert!(verdict(&checked(1, 2), plain).starts_with("1 errors repaired, 2 left; "));
        assert!(verdict(&checked(1, 2), plain).contains("--lossy --dry-run"));
        // No repair mends that, and each command named the next one.
        let cut = Checked { truncated: true, ..checked(0, 2) };
        assert_eq!(verdict(&cut, no), "2 errors");
        assert_eq!(verdict(&checked(1, 2), lossy), "1 errors repaired, 2 left");
        assert!(verdict(&checked(3, 0), plain).starts_with("3 errors repaired"));
        let lost = Checked { losses: vec!["/a: it is lost".into()], ..checked(3, 0) };
        assert!(verdict(&lost, lossy).starts_with("3 errors repaired, 1 losses"));
        let some = Checked { would_be_repaired: 1, ..checked(0, 2) };
        let dry = Repair { dry_run: true, ..plain };
        assert_eq!(verdict(&some, dry), "1 of 2 errors would be repaired; nothing was changed");
        let dry = Repair { dry_run: true, ..lossy };
        let left = Checked { losses: vec!["/a: it is lost".into()], ..checked(0, 3) };
        assert_eq!(verdict(&left, dry), "3 errors, and 1 losses if they are repaired; nothing was changed");
    }
}
