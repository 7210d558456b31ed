//! Properties, as the extended attributes `user.quire.*` of a mount.
//!
//! A user who may write to a file or directory may set its properties. Only its owner and root may take the
//! promise `untorn` back; the kernel's permission checks know no such rule, so it is kept here.
//!
//! The caller: kernels that know id-mapped mounts send no user with such a request, but always the thread
//! that waits for the answer. Its user is in `/proc`. Where neither is known (a caller in another process
//! namespace, or a thread of the kernel, such as a file server's), the promise stays.
//!
//! Neighbours: [`super::xattr`] asks here for names of properties.

use quire::inodes::InodeRef;
use quire_base::{Error, ErrorKind};

/// What the names begin with.
const FAMILY: &[u8] = b"user.quire.";
/// The user that kernels send in place of one they do not tell.
const UNKNOWN: u32 = u32::MAX;

/// The user that changes an attribute.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// User for access to files, or `u32::MAX`.
    pub uid: u32,
    /// The thread that waits; zero if it is not one that this process can see.
    pub thread: u32,
}

/// Whether an attribute is a property, or would like to be one.
pub fn is_property(name: &[u8]) -> bool {
    name.starts_with(FAMILY)
}

/// The value that takes a property away, if a name is that of one.
pub fn unset(name: &[u8]) -> Option<&'static [u8]> {
    match name {
        b"user.quire.untorn" => Some(b"off"),
        b"user.quire.cache" => Some(b"keep"),
        _ => None,
    }
}

/// Whether the asker is the owner of an inode, or root.
pub fn is_owner_or_root(inode: &InodeRef, owner: u32, asker: Asker) -> bool {
    let user = match asker.uid {
        UNKNOWN => user_of(asker.thread),
        user => Some(user),
    };
    let may = user.is_some_and(|user| user == 0 || user == owner);
    if user.is_none() {
        tracing::debug!("thread {} that asks about {inode:?} is of an unknown user", asker.thread);
    }
    may
}

/// The user with whose rights a thread uses files.
fn user_of(thread: u32) -> Option<u32> {
    if thread == 0 {
        return None;
    }
    file_user(&std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
}

/// The last of the four users in a `/proc/PID/status`. A thread of the kernel, which has no memory of its
/// own, is root there, whoever it acts for.
fn file_user(status: &str) -> Option<u32> {
    status.lines().find(|line| line.starts_with("VmSize:"))?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Notes a change that was refused, and gives it back.
pub fn refused(inode: &InodeRef, name: &[u8], value: &[u8], error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotPermitted | ErrorKind::Unsupported) {
        tracing::warn!(
            "{inode:?}: {}={} was refused: {error}",
            name.escape_ascii(),
            value[..value.len().min(64)].escape_ascii()
        );
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_for_files() {
        let status = "Name:\tx\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\nVmSize:\t 6412 kB\n";
        assert_eq!(file_user(status), Some(1003));
        assert_eq!(file_user("Uid:\t1\nVmSize:\t 6412 kB\n"), None);
        assert_eq!(user_of(0), None);
        assert_eq!(user_of(std::process::id()), Some(rustix::process::geteuid().as_raw()));
    }

    /// The kernel's file server was taken for root, whichever client it acted for, so that everybody took
    /// `untorn` back over NFS.
    #[test]
    fn a_thread_of_the_kernel_is_nobody() {
        let status = "Name:\tnfsd\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nKthread:\t1\nThreads:\t1\n";
        assert_eq!(file_user(status), None);
    }
}
