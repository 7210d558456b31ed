//! Requests about the whole volume: statfs, access, ioctl.

use quire::{FileType, Statfs};
use quire_base::{Error, ErrorKind, Result};

use super::{Caller, Operations};

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
/// folder of the mount; answered by the server itself.
pub const TRANSPORT: u32 = 0x8040_5102;

/// `_IOR('Q', 3, char[256])`: whether `syncfs` and `sync` reach the server, as text that zero bytes end. On
/// any file or directory of the mount; answered by the server itself.
pub const SYNCFS: u32 = 0x8100_5103;

impl Operations {
    /// Sizes and counts of the volume.
    pub fn statfs(&self) -> Statfs {
        self.volume.statfs()
    }

    /// Whether `caller` may use a node for `mask` (`R_OK`, `W_OK`, `X_OK`). The kernel asks only if it does
    /// not check permissions itself; it does on all mounts made here. Groups other than the primary are not
    /// known.
    pub fn access(&self, node: u64, mask: u32, caller: Caller) -> Result<()> {
        let attributes = self.attributes(node)?;
        let bits = if caller.uid == attributes.uid() {
            attributes.permission_bits() >> 6
        } else if caller.gid == attributes.gid() {
            attributes.permission_bits() >> 3
        } else {
            attributes.permission_bits()
        };
        let allowed = if caller.uid == 0 {
            let executable =
                attributes.file_type() == FileType::Directory || attributes.permission_bits() & 0o111 != 0;
            if executable { 7 } else { 6 }
        } else {
            bits & 7
        };
        if mask & 7 & !allowed != 0 {
            return Err(Error::new(ErrorKind::AccessDenied, format!("access {mask:#o} to inode {node}")));
        }
        Ok(())
    }

    /// A control request on a node: the result and the bytes for the caller, at most `room`.
    pub fn ioctl(&self, node: u64, command: u32, room: usize) -> Result<(i32, Vec<u8>)> {
        let mut answer = vec![0; room.min(64)];
        match command {
            GET_FLAGS | GET_FSXATTR => {
                self.inode(node)?;
            }
            GET_VERSION => {
                let generation = self.inode(node)?.generation().to_le_bytes();
                let length = answer.len().min(4);
                answer[..length].copy_from_slice(&generation[..length]);
            }
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
