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
//!
//! [`TRANSPORT`], [`SYNCFS`] and [`SYNC`] are answered by the server itself. Any other number gets `ENOTTY`.

use quire::Commit;
use quire_base::{Error, ErrorKind, Result};

use super::Operations;

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

impl Operations {
    /// A control request on a node, through an open file (`handle`): the result and the bytes for the
    /// caller, at most `room`.
    pub fn ioctl(&self, node: u64, handle: u64, command: u32, room: usize) -> Result<(i32, Vec<u8>)> {
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
