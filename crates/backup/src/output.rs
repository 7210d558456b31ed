//! Lines on the standard output. A reader that has seen enough (`| head`) is no failure, and no panic; any
//! other error is kept for the end of the program.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use crate::failure::{Failure, Outcome};

/// The first error.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// As `quire` has it for the system's errors.
const SYSTEM: u8 = 2;

/// Prints a line.
pub fn line(text: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error);
    }
}

/// Whether everything could be printed.
pub fn verdict() -> Outcome {
    let failed = |error| Failure::new(SYSTEM, format!("writing to the standard output: {error}"));
    FAILED.get().map_or(Ok(()), |error| Err(failed(error)))
}

/// As `println!`, through [`line`].
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;
