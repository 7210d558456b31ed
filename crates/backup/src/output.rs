//! Lines on the standard output. A reader that has seen enough (`| head`) is no failure, and no panic.

use std::fmt;
use std::io::Write;

/// Prints a line.
pub fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// As `println!`, through [`line`].
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;
