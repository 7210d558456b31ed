//! Why a run stopped.

use std::fmt;

/// What a check says, or what kept it from checking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A promise was broken: something acknowledged is lost, or something is damaged.
    Broken(String),
    /// The harness could not do its work: a program is missing, the host is full, a bug of its own.
    Trouble(String),
    /// The user asked to stop.
    Stopped,
}

impl Failure {
    /// A [`Failure::Trouble`] with the error of something on the host.
    pub fn trouble(doing: impl fmt::Display, error: impl fmt::Display) -> Failure {
        Failure::Trouble(format!("{doing}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(text) => write!(f, "BROKEN PROMISE: {text}"),
            Failure::Trouble(text) => write!(f, "the harness could not go on: {text}"),
            Failure::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Failure {}

/// Result with [`Failure`].
pub type Outcome<T = ()> = Result<T, Failure>;
