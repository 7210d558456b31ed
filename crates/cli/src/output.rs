//! Lines on the standard output. A reader that has seen enough (`| head`) is no failure, and no panic.

use std::fmt;
use std::io::Write;

/// Prints a line.
pub fn line(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
