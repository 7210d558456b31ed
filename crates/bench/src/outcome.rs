//! What may come of setting up an engine or running a workload, besides success.

use quire_base::{Error, ErrorKind};
use std::fmt;

/// Why there are no figures.
#[derive(Debug)]
pub enum Trouble {
    /// It cannot be had here, and the reason is not a fault: no root, no tool, not for this engine.
    Skipped(String),
    /// It should have worked.
    Failed(Error),
    /// Ctrl-C.
    Interrupted,
    /// The command line asks for something that is not there.
    Usage(String),
}

/// Result of a part of a run.
pub type Outcome<T = ()> = Result<T, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Failed(error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Skipped(why) | Trouble::Usage(why) => f.write_str(why),
            Trouble::Failed(error) => write!(f, "{error}"),
            Trouble::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Failed, with a text of our own.
pub fn failed(message: impl Into<String>) -> Trouble {
    Trouble::Failed(Error::new(ErrorKind::Io, message))
}

/// An operating-system error met while `doing` something.
pub fn os(doing: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::os(doing, &error)
}
