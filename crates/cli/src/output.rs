//! Lines on the standard output. A reader that has seen enough (`| head`) is no failure, and no panic; any
//! other error is kept for the end of the program.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::exit::{Failure, Outcome};

/// The first error.
static FAILED: OnceLock<io::Error> = OnceLock::new();

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
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error);
    }
}

/// Whether everything could be printed.
pub fn verdict() -> Outcome {
    match FAILED.get() {
        None => Ok(()),
        Some(error) => Err(Failure::system("writing to the standard output", error)),
    }
}
