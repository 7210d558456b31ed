//! Lines on the standard output, and progress on a terminal. A reader that has seen enough (`| head`) is no
//! failure, and no panic; any other error is kept for the end of the program.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Failure, Outcome};

/// The first error.
static FAILED: OnceLock<io::Error> = OnceLock::new();
/// The reader has gone.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints a line.
pub fn line(text: impl fmt::Display) {
    keep(writeln!(io::stdout().lock(), "{text}"));
}

/// Prints bytes.
pub fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    keep(out.write_all(bytes).and_then(|()| out.flush()));
}

fn keep(written: io::Result<()>) {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => CLOSED.store(true, Ordering::Relaxed),
        Err(error) => drop(FAILED.set(error)),
        Ok(()) => {}
    }
}

/// A progress bar of this form where the standard error is a terminal; else, and where none is wanted, one
/// that is not shown.
pub fn bar(is_wanted: bool, form: &str) -> ProgressBar {
    if !is_wanted || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// Whether nobody reads any more: for a command that would else print for ever.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Whether everything could be printed.
pub fn verdict() -> Outcome {
    match FAILED.get() {
        None => Ok(()),
        Some(error) => Err(Failure::system("writing to the standard output", error)),
    }
}
