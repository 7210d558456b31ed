//! Requests about the whole volume: statfs, access.

use quire::{FileType, Statfs};
use quire_base::{Error, ErrorKind, Result};

use super::{Caller, Operations};

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
}
