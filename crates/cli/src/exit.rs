//! Exit codes, and failures that carry one.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | wrong usage: unknown option, missing argument |
//! | 2 | system error: no memory, no `/dev/fuse`, cannot start the server |
//! | 32 | failed: the operation on the volume did not succeed (I/O error and all else) |
//! | 33 | there is no Quire volume |
//! | 34 | the volume's format is newer than this program |
//! | 35 | the volume is damaged: run `quire fsck` |
//! | 36 | the volume is open elsewhere, or the mount point is in use |
//! | 37 | something is missing, is there already, or is not what it should be: a volume, a mount point, a snapshot |
//! | 38 | not permitted |
//! | 39 | no space |
//!
//! All of 32 to 39 have the bit of mount(8)'s "mount failure" set. Under the names `mount.quire` and
//! `mount.fuse.quire` they become plain 32. `quire fsck` has the codes of fsck(8).

use std::fmt;
use std::process::ExitCode;

use quire_base::{Error, ErrorKind};

/// Wrong usage.
pub const USAGE: u8 = 1;
/// System error.
pub const SYSTEM: u8 = 2;
/// The operation failed.
pub const FAILED: u8 = 32;
/// There is no volume.
pub const NO_VOLUME: u8 = 33;
/// The volume's format is newer than this program.
pub const NEWER_FORMAT: u8 = 34;
/// What is stored is damaged.
pub const DAMAGED: u8 = 35;
/// Somebody else has what is asked for.
pub const BUSY: u8 = 36;
/// Something is missing, is there already, or is not what it should be.
pub const MISSING: u8 = 37;
/// Not permitted.
pub const NOT_PERMITTED: u8 = 38;
/// No space.
pub const NO_SPACE: u8 = 39;
/// The largest exit code.
pub const MAX: u8 = NO_SPACE;
/// Shown at the end of `--help`.
pub const HELP: &str = "\
Exit codes: 0 done; 1 wrong usage; 2 system error; 32 failed; 33 no Quire volume there; 34 volume of a newer \
format; 35 volume damaged; 36 volume open elsewhere or mount point in use; 37 something missing, there \
already or of the wrong type; 38 not permitted; 39 no space. `quire fsck`: 0 clean; 1 errors corrected; 4 errors left; \
8 could not check; 16 wrong usage.";

/// A message for a person and the code to exit with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the process exits with.
    pub code: u8,
    /// What, where, what to do.
    pub message: String,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// With a code of this module.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, message)
    }
    /// An operating-system error met while `doing` something.
    pub fn system(doing: impl fmt::Display, error: &std::io::Error) -> Failure {
        Failure::new(SYSTEM, format!("{doing}: {error}"))
    }
    /// The exit code as the standard library's type.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (code, advice) = match error.kind() {
            ErrorKind::NotAVolume => (NO_VOLUME, "make one with `quire mkfs`"),
            ErrorKind::UnknownFormat => (NEWER_FORMAT, "use a newer version of quire"),
            ErrorKind::Corrupt => (
                DAMAGED,
                "`quire fsck` says what is damaged, `quire fsck --repair` mends what it can, `quire salvage` copies files out",
            ),
            ErrorKind::Busy => (BUSY, ""),
            ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::IsDirectory | ErrorKind::Exists => {
                (MISSING, "")
            }
            ErrorKind::AccessDenied | ErrorKind::NotPermitted => (NOT_PERMITTED, ""),
            ErrorKind::NoSpace => (NO_SPACE, ""),
            ErrorKind::NoMemory => (SYSTEM, ""),
            ErrorKind::Invalid => (USAGE, ""),
            _ => (FAILED, ""),
        };
        let message = error.to_string();
        // Many messages already say what to do.
        let advised = message.contains("quire ") || message.contains("restore it");
        let message = if advice.is_empty() || advised { message } else { format!("{message}; {advice}") };
        Failure { code, message }
    }
}

/// The code that mount(8) expects of a helper.
pub fn for_mount_helper(code: u8) -> u8 {
    if code & FAILED != 0 { FAILED } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_input_has_a_code_of_its_own() {
        let kinds = [
            ErrorKind::Io,
            ErrorKind::NotAVolume,
            ErrorKind::UnknownFormat,
            ErrorKind::Corrupt,
            ErrorKind::Busy,
            ErrorKind::NotFound,
            ErrorKind::NotPermitted,
            ErrorKind::NoSpace,
        ];
        let mut codes: Vec<u8> =
            kinds.iter().map(|&kind| Failure::from(Error::new(kind, "x")).code).collect();
        assert!(codes.iter().all(|&code| for_mount_helper(code) == FAILED));
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), kinds.len());
    }

    #[test]
    fn advice_is_given_once() {
        let bare = Failure::from(Error::new(ErrorKind::NotAVolume, "a.img holds no volume"));
        assert_eq!(bare.message, "a.img holds no volume; make one with `quire mkfs`");
        let full = Failure::from(Error::new(ErrorKind::NotAVolume, "a.img is empty: run `quire mkfs a.img`"));
        assert_eq!(full.message, "a.img is empty: run `quire mkfs a.img`");
    }

    #[test]
    fn helper_codes() {
        assert_eq!(for_mount_helper(36), 32);
        assert_eq!(for_mount_helper(USAGE), 1);
        assert_eq!(for_mount_helper(SYSTEM), 2);
    }
}
