//! `quire fsck`, with the exit codes of fsck(8).

use std::io::IsTerminal;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::check::{self, Checked};
use crate::arguments::Fsck;
use crate::{image, output};

/// fsck(8): the check could not run.
const FAILED: u8 = 8;

/// Checks, and repairs if asked to.
pub fn run(arguments: &Fsck) -> ExitCode {
    let volume = match image::find(&arguments.volume) {
        Ok(volume) => volume,
        Err(failure) => {
            eprintln!("quire fsck: {failure}");
            return ExitCode::from(FAILED);
        }
    };
    let bar = bar(!arguments.json && std::io::stderr().is_terminal());
    let progress = |phase: &str, done: u64, total: u64| {
        bar.set_message(phase.to_owned());
        bar.set_length(total);
        bar.set_position(done);
    };
    let checked = check::check(&volume, arguments.repair, &progress);
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
        output::line(format_args!("{}: {}", volume.display(), verdict(&checked, arguments.repair)));
    }
    ExitCode::from(checked.exit_code)
}

fn bar(visible: bool) -> ProgressBar {
    if !visible {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:<24} {bar:40} {percent:>3}% {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn verdict(checked: &Checked, repair: bool) -> String {
    match (checked.repaired, checked.left) {
        (0, 0) => format!("clean, {}", checked.summary),
        (repaired, 0) => format!("{repaired} errors repaired, {}", checked.summary),
        (0, left) if !repair => format!("{left} errors; `quire fsck --repair` mends what it can"),
        (repaired, left) => format!("{repaired} errors repaired, {left} left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(repaired: usize, left: usize) -> Checked {
        Checked {
            json: serde_json::Value::Null,
            issues: Vec::new(),
            repaired,
            left,
            summary: "1 files".into(),
            exit_code: 0,
        }
    }

    #[test]
    fn the_last_line_says_what_to_do() {
        assert!(verdict(&checked(0, 0), false).starts_with("clean"));
        assert!(verdict(&checked(0, 2), false).contains("--repair"));
        assert_eq!(verdict(&checked(1, 2), true), "1 errors repaired, 2 left");
        assert!(verdict(&checked(3, 0), true).starts_with("3 errors repaired"));
    }
}
