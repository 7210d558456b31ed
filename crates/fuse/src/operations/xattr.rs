//! Extended attributes and ACLs.
//!
//! The kernel checks who may use which name space (`trusted.` is root's, `security.` its own) and, from the
//! attributes `system.posix_acl_*`, the ACLs; the volume keeps them and applies default ACLs to what is made
//! in a folder.

use quire::inodes::XattrFlags;
use quire_base::{Error, ErrorKind, Result};

use super::Operations;

/// An answer to a request that may ask for the size only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sized {
    /// The size of the whole answer in bytes.
    Size(u32),
    /// The whole answer.
    Data(Vec<u8>),
}

fn sized(data: Vec<u8>, room: u32) -> Result<Sized> {
    match room {
        0 => Ok(Sized::Size(u32::try_from(data.len()).unwrap_or(u32::MAX))),
        room if data.len() <= room as usize => Ok(Sized::Data(data)),
        room => Err(Error::new(
            ErrorKind::Range,
            format!("an answer of {} bytes does not fit the caller's {room}", data.len()),
        )),
    }
}

impl Operations {
    /// Sets an attribute; `flags` as in `setxattr`. With `kill_set_gid` an access ACL takes the set-group-id
    /// bit away.
    pub fn set_xattr(
        &self,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
        kill_set_gid: bool,
    ) -> Result<()> {
        let mut how = XattrFlags::empty();
        how.set(XattrFlags::CREATE, flags & libc::XATTR_CREATE != 0);
        how.set(XattrFlags::ACL_KILL_SGID, kill_set_gid);
        how.set(XattrFlags::REPLACE, flags & libc::XATTR_REPLACE != 0);
        self.volume.inodes().set_xattr(&self.inode(node)?, name, value, how)
    }

    /// An attribute's value, or its size if `room` is zero.
    pub fn get_xattr(&self, node: u64, name: &[u8], room: u32) -> Result<Sized> {
        sized(self.volume.inodes().get_xattr(&self.inode(node)?, name)?, room)
    }

    /// All names, each ended by a zero byte, or their total size if `room` is zero.
    pub fn list_xattr(&self, node: u64, room: u32) -> Result<Sized> {
        let mut list = Vec::new();
        for name in self.volume.inodes().list_xattrs(&self.inode(node)?)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        sized(list, room)
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, node: u64, name: &[u8]) -> Result<()> {
        self.volume.inodes().remove_xattr(&self.inode(node)?, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_first_then_data() {
        assert_eq!(sized(vec![1, 2, 3], 0).unwrap(), Sized::Size(3));
        assert_eq!(sized(vec![1, 2, 3], 3).unwrap(), Sized::Data(vec![1, 2, 3]));
        assert_eq!(sized(vec![1, 2, 3], 2).unwrap_err().kind(), ErrorKind::Range);
        assert_eq!(sized(vec![], 5).unwrap(), Sized::Data(vec![]));
    }
}
