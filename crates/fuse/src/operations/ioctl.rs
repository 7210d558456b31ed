//! Control requests on a file or directory of the mount.
//!
//! The kernel decodes a request's number for the server (restricted ioctls): direction and size say what is
//! copied. The requests of groups are those of F2FS, which SQLite and Android know; what they do is in
//! [`super::group`].
//!
//! | request | number | what it does |
//! | --- | --- | --- |
//! | `F2FS_IOC_START_ATOMIC_WRITE` | `_IO(0xf5, 1)` | opens a group on the descriptor |
//! | `F2FS_IOC_COMMIT_ATOMIC_WRITE` | `_IO(0xf5, 2)` | applies it as a whole, durable when the call returns |
//! | `F2FS_IOC_ABORT_VOLATILE_WRITE` | `_IO(0xf5, 5)` | discards it |
//! | `F2FS_IOC_GET_FEATURES` | `_IOR(0xf5, 12, u32)` | bit 2: the descriptor can have groups |
//! | [`COMMIT_ORDERED`] | `_IO('Q', 4)` | as COMMIT, and does not wait for the device |
//! | [`TRIM`] | `_IOWR('X', 121, struct fstrim_range)` | discards free space: [`super::trim`] |
//! | [`LEASE`] | `_IOWR('Q', 16, ...)` | takes a lease of the file's layout: [`super::lease`] |
//! | [`LEASE_STATE`] | `_IOWR('Q', 17, ...)` | says whether it is valid, or recalled |
//! | [`LEASE_RETURN`] | `_IOW('Q', 18, ...)` | returns it |
//!
//! [`TRANSPORT`], [`SYNCFS`] and [`SYNC`] are answered by the server itself. Any other number gets `ENOTTY`.

use crate::lease::{LEASE, LEASE_RETURN, LEASE_STATE};
use quire::Commit;
use quire_base::{Error, ErrorKind, Result};

use super::Operations;
use super::properties::Asker;

/// `FS_IOC_GETFLAGS`: `lsattr` asks; there are none.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_FSGETXATTR`: what `xfs_io` and file managers ask; all zero.
const GET_FSXATTR: u32 = 0x801c_581f;
/// `FS_IOC_GETVERSION`: the inode's generation.
const GET_VERSION: u32 = 0x8008_7601;
/// `_IO('Q', 1)`: makes everything that was done on the volume durable, for mounts that `syncfs` does not
/// reach. On any file or directory of the mount.
pub const SYNC: u32 = 0x5101;
/// `_IOR('Q', 2, char[64])`: how the mount's requests travel, as text that zero bytes end. On any file or
/// directory of the mount; answered by the server itself.
pub const TRANSPORT: u32 = 0x8040_5102;
/// `_IOR('Q', 3, char[256])`: whether `syncfs` and `sync` reach the server, as text that zero bytes end. On
/// any file or directory of the mount; answered by the server itself.
pub const SYNCFS: u32 = 0x8100_5103;
/// `_IO('Q', 4)`: commits the descriptor's group as a whole, ordered with what is made durable later; a later
/// `fsync` waits for it.
pub const COMMIT_ORDERED: u32 = 0x5104;
/// `FITRIM`.
pub const TRIM: u32 = 0xc018_5879;
/// `F2FS_IOC_START_ATOMIC_WRITE`.
pub const START: u32 = 0xf501;
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
pub const COMMIT: u32 = 0xf502;
/// `F2FS_IOC_ABORT_VOLATILE_WRITE` (of later kernels, `F2FS_IOC_ABORT_ATOMIC_WRITE`).
pub const ABORT: u32 = 0xf505;
/// `F2FS_IOC_GET_FEATURES`.
pub const GET_FEATURES: u32 = 0x8004_f50c;
/// `F2FS_FEATURE_ATOMIC_WRITE`.
pub const FEATURE_ATOMIC_WRITE: u32 = 0x4;

/// Whether a request ends a group, so that the kernel's copy of the file may be wrong afterwards.
pub fn ends_group(command: u32) -> bool {
    matches!(command, COMMIT | COMMIT_ORDERED | ABORT)
}

/// Whether a request is answered without waiting, and has to be: others may wait for it.
pub fn is_quick(command: u32) -> bool {
    matches!(command, LEASE_STATE | LEASE_RETURN)
}

/// Whether a request may take long.
pub fn is_long(command: u32) -> bool {
    matches!(command, LEASE | TRIM)
}

/// A control request.
pub struct Control<'a> {
    /// The open file.
    pub handle: u64,
    /// Its number.
    pub command: u32,
    /// The user that asks.
    pub asker: Asker,
    /// What the caller passes.
    pub input: &'a [u8],
    /// Bytes that the caller takes at most.
    pub room: usize,
}

impl Operations {
    /// A control request on a node: the result and the bytes for the caller.
    pub fn ioctl(&self, node: u64, request: &Control<'_>) -> Result<(i32, Vec<u8>)> {
        let &Control { handle, command, asker, input, room } = request;
        let mut answer = vec![0; room.min(64)];
        match command {
            GET_FLAGS | GET_FSXATTR => {
                self.attributes(node)?;
            }
            GET_VERSION => {
                let generation = self.attributes(node)?.generation().to_le_bytes();
                put(&mut answer, &generation[..4]);
            }
            GET_FEATURES => {
                let features = if self.can_group(handle) { FEATURE_ATOMIC_WRITE } else { 0 };
                put(&mut answer, &features.to_ne_bytes());
            }
            START => self.start_group(handle)?,
            COMMIT => self.commit_group(handle, Commit::Now)?,
            COMMIT_ORDERED => self.commit_group(handle, Commit::Ordered)?,
            ABORT => self.abort_group(handle)?,
            TRIM => answer = self.trim(asker, input)?,
            LEASE => answer = self.take_lease(handle, asker, input)?,
            LEASE_STATE => answer = self.lease_state(handle, input)?,
            LEASE_RETURN => self.return_lease(handle, input)?,
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("control request {command:#x} is not known"),
                ));
            }
        }
        Ok((0, answer))
    }
}

fn put(answer: &mut [u8], value: &[u8]) {
    let length = answer.len().min(value.len());
    answer[..length].copy_from_slice(&value[..length]);
}
