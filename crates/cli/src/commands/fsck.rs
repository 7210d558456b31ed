//! `quire fsck`, with the exit codes of fsck(8).

use std::io::IsTerminal;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::check;
use crate::arguments::Fsck;
use crate::image;

const CLEAN: u8 = 0;
const CORRECTED: u8 = 1;
const LEFT: u8 = 4;
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
    let checked = check::check(&volume, arguments.repair, Some(&progress));
    bar.finish_and_clear();
    let checked = match checked {
        Ok(checked) => checked,
        Err(error) => {
            eprintln!("quire fsck: {error}");
            return ExitCode::from(FAILED);
        }
    };
    if arguments.json {
        println!("{:#}", checked.json);
    } else {
        for issue in &checked.issues {
            println!("{issue}");
        }
        println!("{}: {}", volume.display(), summary(checked.repaired, checked.left, arguments.repair));
    }
    ExitCode::from(code(checked.repaired, checked.left))
}

fn bar(visible: bool) -> ProgressBar {
    if !visible {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:<24} {bar:40} {percent:>3}% {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn summary(repaired: usize, left: usize, repair: bool) -> String {
    match (repaired, left) {
        (0, 0) => "clean".into(),
        (_, 0) => format!("{repaired} errors repaired"),
        (0, _) if !repair => format!("{left} errors; `quire fsck --repair` mends what it can"),
        _ => format!("{repaired} errors repaired, {left} left"),
    }
}

fn code(repaired: usize, left: usize) -> u8 {
    match (repaired, left) {
        (0, 0) => CLEAN,
        (_, 0) => CORRECTED,
        _ => LEFT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_fsck() {
        assert_eq!(code(0, 0), 0);
        assert_eq!(code(3, 0), 1);
        assert_eq!(code(3, 1), 4);
        assert_eq!(code(0, 1), 4);
        assert!(summary(0, 2, false).contains("--repair"));
    }
}
