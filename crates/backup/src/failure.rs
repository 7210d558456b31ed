//! Failures: a message for a person and an exit code of the program `quire`.

use std::fmt;

/// The operation failed.
pub const FAILED: u8 = 32;
/// There is no volume.
pub const NO_VOLUME: u8 = 33;
/// What is stored is damaged.
pub const DAMAGED: u8 = 35;
/// Somebody else has the volume open.
pub const BUSY: u8 = 36;
/// Something is missing, or is not what it should be.
pub const MISSING: u8 = 37;

/// What went wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the process exits with.
    pub code: u8,
    /// For a person.
    pub message: String,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// With a code of this module.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
    /// An operating-system error met while `doing` something.
    pub fn system(doing: impl fmt::Display, error: &std::io::Error) -> Failure {
        Failure::new(FAILED, format!("{doing}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
