//! The one place where Quire's error kinds become error numbers of the kernel's interface.
//!
//! Neighbours: the transports call [`errno`] when they answer a request; nothing else in this crate
//! knows error numbers, except for answers that are about the protocol itself ([`NOT_IMPLEMENTED`]).

use quire_base::{Error, ErrorKind};

/// "This server does not have that request": the kernel then stops sending it.
pub const NOT_IMPLEMENTED: i32 = libc::ENOSYS;
/// "The server is going away": what requests get after an ordered stop has begun.
pub const NOT_CONNECTED: i32 = libc::ENOTCONN;

/// The error number a program sees for a failure.
///
/// Damage found on disk is `EUCLEAN`, as in ext4 and XFS; a volume that shut itself down after an I/O
/// error answers `EIO`.
pub fn errno(error: &Error) -> i32 {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Shutdown => libc::EIO,
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
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_programs_branch_on() {
        for (kind, number) in [
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::Exists, libc::EEXIST),
            (ErrorKind::NotEmpty, libc::ENOTEMPTY),
            (ErrorKind::NoSpace, libc::ENOSPC),
            (ErrorKind::NoAttribute, libc::ENODATA),
            (ErrorKind::Range, libc::ERANGE),
            (ErrorKind::NoData, libc::ENXIO),
            (ErrorKind::ReadOnly, libc::EROFS),
            (ErrorKind::Stale, libc::ESTALE),
            (ErrorKind::Shutdown, libc::EIO),
            (ErrorKind::Corrupt, libc::EUCLEAN),
        ] {
            assert_eq!(errno(&Error::new(kind, "test")), number, "{kind:?}");
        }
    }

    #[test]
    fn every_number_is_one_the_kernel_takes_from_a_server() {
        // The kernel drops a reply whose error is not in 1..512.
        for kind in [ErrorKind::Io, ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::NotAVolume] {
            let number = errno(&Error::new(kind, "test"));
            assert!((1..512).contains(&number));
        }
    }
}
