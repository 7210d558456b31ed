//! Extended attributes and ACLs.
//!
//! The kernel checks who may use which name space (`trusted.` is root's, `security.` its own) and, from the
//! attributes `system.posix_acl_*`, the ACLs; the volume keeps them and applies default ACLs to what is made
//! in a directory. Names that begin with `user.quire.` are properties ([`super::properties`]).

use quire::inodes::{InodeRef, XattrFlags};
use quire_base::{Error, ErrorKind, Result};

use super::data::UNTORN_UNWRITTEN;
use super::properties::{self, Asker};
use super::snapshots::DIRECTORY;
use super::{CacheMode, Operations};

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
        (flags, kill_set_gid): (i32, bool),
        asker: Asker,
    ) -> Result<()> {
        let mut how = XattrFlags::empty();
        how.set(XattrFlags::CREATE, flags & libc::XATTR_CREATE != 0);
        how.set(XattrFlags::ACL_KILL_SGID, kill_set_gid);
        how.set(XattrFlags::REPLACE, flags & libc::XATTR_REPLACE != 0);
        let inode = self.inode(node)?;
        match properties::is_property(name) {
            true => self.set_property(&inode, name, value, how, asker),
            false => self.volume.inodes().set_xattr(&inode, name, value, how),
        }
    }

    fn set_property(
        &self,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        mut how: XattrFlags,
        asker: Asker,
    ) -> Result<()> {
        let owner = self.volume.inodes().metadata(inode).uid();
        how.set(XattrFlags::KEEP_UNTORN, !properties::is_owner_or_root(inode, owner, asker));
        let writes_on = self.cache == CacheMode::Writeback && inode.kind().is_file();
        let done = match name {
            // A program that has it open would go on writing.
            b"user.quire.untorn" if writes_on && value != b"off" => {
                Err(Error::new(ErrorKind::Unsupported, UNTORN_UNWRITTEN))
            }
            _ => self.volume.inodes().set_xattr(inode, name, value, how),
        };
        done.map_err(|error| properties::refused(inode, name, value, error))
    }

    /// An attribute's value, or its size if `room` is zero.
    pub fn get_xattr(&self, node: u64, name: &[u8], room: u32) -> Result<Sized> {
        if node == DIRECTORY {
            return Err(Error::new(ErrorKind::NoAttribute, ".snapshots has no attributes"));
        }
        let (inodes, inode) = self.readable(node)?;
        sized(inodes.get_xattr(&inode, name)?, room)
    }

    /// All names, each ended by a zero byte, or their total size if `room` is zero.
    ///
    /// Every caller gets those of `trusted.`, too. Overlayfs asks with the rights of the user who mounted it,
    /// in a program's thread, where `/proc` shows only the program's rights. A name that is not listed would
    /// be missing in the copy that overlayfs makes.
    pub fn list_xattr(&self, node: u64, room: u32) -> Result<Sized> {
        let mut list = Vec::new();
        if node == DIRECTORY {
            return sized(list, room);
        }
        let (inodes, inode) = self.readable(node)?;
        for name in inodes.list_xattrs(&inode)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        sized(list, room)
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, node: u64, name: &[u8], asker: Asker) -> Result<()> {
        let inode = self.inode(node)?;
        match properties::unset(name) {
            Some(value) => self.set_property(&inode, name, value, XattrFlags::REPLACE, asker),
            None => self.volume.inodes().remove_xattr(&inode, name),
        }
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
