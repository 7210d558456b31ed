//! The one error type. A kind says what class of failure it is; the message says what was being done, to
//! what, and what to do about it. The kernel's and C's error numbers and the standard library's kinds follow
//! from the kind, here only.

use std::fmt;
use std::sync::Arc;

/// Result with Quire's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Classes of failure. Each has one error number ([`ErrorKind::errno`]) and one kind of [`std::io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device or the host file failed to read, write or flush.
    Io,
    /// Bytes on disk do not check, or contradict one another.
    Corrupt,
    /// The volume takes no more changes since an earlier journal, tree or flush error.
    Shutdown,
    /// No data space, metadata space or orphan slot is left.
    NoSpace,
    /// Out of memory for a folio or a buffer.
    NoMemory,
    /// No such name, inode or attribute's owner.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed.
    NotDirectory,
    /// A directory was met where none may be.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// A name is longer than 255 bytes, or a link target longer than 4095.
    NameTooLong,
    /// Too many symbolic links.
    Loop,
    /// Too many hard links.
    TooManyLinks,
    /// An argument does not fit: negative, overflowing, misaligned, unknown flag.
    Invalid,
    /// Past the largest file size.
    FileTooBig,
    /// A number does not fit the caller's type.
    Overflow,
    /// The volume, the handle or the medium is read-only.
    ReadOnly,
    /// The caller's credentials do not permit it.
    AccessDenied,
    /// Not permitted at all, whatever the mode bits (immutable, sticky, privileged attributes).
    NotPermitted,
    /// The extended attribute does not exist.
    NoAttribute,
    /// The attribute does not fit the caller's buffer, or its name has more than 255 bytes, or none.
    Range,
    /// An attribute value is larger than the format holds.
    TooLarge,
    /// The operation is not supported on this object.
    Unsupported,
    /// Someone else has it: volume open elsewhere, mount busy.
    Busy,
    /// A *try* operation would have had to wait.
    WouldBlock,
    /// The handle is closed, or its descriptor was opened without this access.
    BadHandle,
    /// The handle's inode is gone, or its generation has changed.
    Stale,
    /// Source and target are on different volumes.
    CrossDevice,
    /// No data (or hole) at or after the offset.
    NoData,
    /// The file ends before the bytes that were to be read.
    UnexpectedEof,
    /// The wait was interrupted.
    Interrupted,
    /// The format is of a newer version, or has features this build does not know.
    UnknownFormat,
    /// No Quire volume here.
    NotAVolume,
}

impl ErrorKind {
    /// The error number that a program sees for this kind of failure, at a mount or through C.
    ///
    /// Damage found on disk is `EUCLEAN`, as in ext4 and XFS; a volume that shut itself down after an I/O
    /// error answers `EIO`.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::Io | ErrorKind::Shutdown | ErrorKind::UnexpectedEof => libc::EIO,
            ErrorKind::Corrupt => libc::EUCLEAN,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::NoMemory => libc::ENOMEM,
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::Loop => libc::ELOOP,
            ErrorKind::TooManyLinks => libc::EMLINK,
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::FileTooBig => libc::EFBIG,
            ErrorKind::Overflow => libc::EOVERFLOW,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::AccessDenied => libc::EACCES,
            ErrorKind::NotPermitted => libc::EPERM,
            ErrorKind::NoAttribute => libc::ENODATA,
            ErrorKind::Range => libc::ERANGE,
            ErrorKind::TooLarge => libc::E2BIG,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::WouldBlock => libc::EAGAIN,
            ErrorKind::BadHandle => libc::EBADF,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::CrossDevice => libc::EXDEV,
            ErrorKind::NoData => libc::ENXIO,
            ErrorKind::Interrupted => libc::EINTR,
            ErrorKind::UnknownFormat | ErrorKind::NotAVolume => libc::EINVAL,
        }
    }

    /// The standard library's kind: its own for the error number, where it has one.
    fn io(self) -> std::io::ErrorKind {
        use std::io::ErrorKind as Io;
        match self {
            ErrorKind::Io | ErrorKind::Shutdown => Io::Other,
            ErrorKind::Corrupt | ErrorKind::UnknownFormat | ErrorKind::NotAVolume => Io::InvalidData,
            ErrorKind::NoAttribute | ErrorKind::NoData => Io::NotFound,
            ErrorKind::UnexpectedEof => Io::UnexpectedEof,
            ErrorKind::Overflow | ErrorKind::Range | ErrorKind::BadHandle => Io::InvalidInput,
            kind => std::io::Error::from_raw_os_error(kind.errno()).kind(),
        }
    }
}

/// What failed, while doing what. Cheap to clone, since errors stick to files and volumes.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Arc<str>,
    os_error: Option<i32>,
}

impl Error {
    /// An error of a kind with a message that says what, where and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into().into(), os_error: None }
    }

    /// An operating-system error met while `doing` something (for example "reading block 12 of x.img").
    pub fn os(doing: impl fmt::Display, error: &std::io::Error) -> Error {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
            std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            std::io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            std::io::ErrorKind::NotADirectory => ErrorKind::NotDirectory,
            _ => ErrorKind::Io,
        };
        Error { kind, message: format!("{doing}: {error}").into(), os_error: error.raw_os_error() }
    }

    /// Bytes on disk that do not check.
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupt, message)
    }

    /// An argument that does not fit.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// The class of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error number for programs: that of the kind, or the host's where the process has too many
    /// descriptors open, or the host has.
    pub fn errno(&self) -> i32 {
        match self.os_error {
            Some(number @ (libc::EMFILE | libc::ENFILE)) if self.kind == ErrorKind::Io => number,
            _ => self.kind.errno(),
        }
    }

    /// The host's error number, where the host reported one: of the image file or the device.
    pub fn os_error(&self) -> Option<i32> {
        self.os_error
    }

    /// The same failure with the outer operation named in front.
    pub fn context(&self, doing: impl fmt::Display) -> Error {
        Error {
            kind: self.kind,
            message: format!("{doing}: {}", self.message).into(),
            os_error: self.os_error,
        }
    }

    /// The same message under another kind (for example an I/O error that becomes `Shutdown`).
    pub fn with_kind(&self, kind: ErrorKind) -> Error {
        Error { kind, message: self.message.clone(), os_error: self.os_error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The error is inside: `io_error.get_ref()` and a downcast give it back, with its kind and error number.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        std::io::Error::new(error.kind.io(), error)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// Adds the outer operation to an error in passing.
pub trait Context<T> {
    /// Names what was being done.
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.context(doing))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::io;

    /// A program that had too many descriptors open was told of an I/O error.
    #[test]
    fn too_many_descriptors_keep_their_number() {
        for number in [libc::EMFILE, libc::ENFILE] {
            let error = Error::os("opening x.img", &io::Error::from_raw_os_error(number));
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, number));
            assert_eq!(error.with_kind(ErrorKind::Shutdown).errno(), libc::EIO);
        }
        assert_eq!(Error::os("reading", &io::Error::from_raw_os_error(libc::EFBIG)).errno(), libc::EIO);
    }

    #[test]
    fn kinds_that_programs_branch_on_have_their_numbers() {
        for (kind, number, io) in [
            (ErrorKind::NotFound, libc::ENOENT, io::ErrorKind::NotFound),
            (ErrorKind::Exists, libc::EEXIST, io::ErrorKind::AlreadyExists),
            (ErrorKind::NotEmpty, libc::ENOTEMPTY, io::ErrorKind::DirectoryNotEmpty),
            (ErrorKind::NotDirectory, libc::ENOTDIR, io::ErrorKind::NotADirectory),
            (ErrorKind::IsDirectory, libc::EISDIR, io::ErrorKind::IsADirectory),
            (ErrorKind::NoSpace, libc::ENOSPC, io::ErrorKind::StorageFull),
            (ErrorKind::NoMemory, libc::ENOMEM, io::ErrorKind::OutOfMemory),
            (ErrorKind::NoAttribute, libc::ENODATA, io::ErrorKind::NotFound),
            (ErrorKind::Range, libc::ERANGE, io::ErrorKind::InvalidInput),
            (ErrorKind::NoData, libc::ENXIO, io::ErrorKind::NotFound),
            (ErrorKind::ReadOnly, libc::EROFS, io::ErrorKind::ReadOnlyFilesystem),
            (ErrorKind::AccessDenied, libc::EACCES, io::ErrorKind::PermissionDenied),
            (ErrorKind::Invalid, libc::EINVAL, io::ErrorKind::InvalidInput),
            (ErrorKind::Unsupported, libc::EOPNOTSUPP, io::ErrorKind::Unsupported),
            (ErrorKind::WouldBlock, libc::EAGAIN, io::ErrorKind::WouldBlock),
            (ErrorKind::CrossDevice, libc::EXDEV, io::ErrorKind::CrossesDevices),
            (ErrorKind::TooManyLinks, libc::EMLINK, io::ErrorKind::TooManyLinks),
            (ErrorKind::NameTooLong, libc::ENAMETOOLONG, io::ErrorKind::InvalidFilename),
            (ErrorKind::FileTooBig, libc::EFBIG, io::ErrorKind::FileTooLarge),
            (ErrorKind::Busy, libc::EBUSY, io::ErrorKind::ResourceBusy),
            (ErrorKind::Stale, libc::ESTALE, io::ErrorKind::StaleNetworkFileHandle),
            (ErrorKind::UnexpectedEof, libc::EIO, io::ErrorKind::UnexpectedEof),
            (ErrorKind::Shutdown, libc::EIO, io::ErrorKind::Other),
            (ErrorKind::Corrupt, libc::EUCLEAN, io::ErrorKind::InvalidData),
        ] {
            let error = Error::new(kind, "opening a/b: it rains");
            assert_eq!(error.errno(), number, "{kind:?}");
            let error = io::Error::from(error);
            assert_eq!((error.kind(), error.to_string().as_str()), (io, "opening a/b: it rains"), "{kind:?}");
            let inside = error.get_ref().and_then(|inside| inside.downcast_ref::<Error>());
            assert_eq!(inside.map(Error::errno), Some(number));
        }
    }
}
