//! Stat and its setters.

use quire::Metadata;
use quire::inodes::{SetAttributes, SetTime};
use quire_base::{Result, Timestamp};

use super::data::LONG_CHANGE;
use super::{CacheMode, Operations, snapshots};

/// Changes asked for by chmod, chown, truncate and utimes, in one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// New permission bits (07777).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last modification.
    pub mtime: Option<SetTime>,
    /// Time of last change, where the kernel keeps it.
    pub ctime: Option<Timestamp>,
    /// The caller may not keep set-user-id and set-group-id bits of a file whose size it changes.
    pub kill_set_id: bool,
}

impl Operations {
    /// A node's attributes.
    pub fn attributes(&self, node: u64) -> Result<Metadata> {
        if snapshots::is_node(node) {
            return Ok(self.snapshots.entry(node)?.attributes);
        }
        Ok(self.volume.inodes().metadata(&self.inode(node)?))
    }

    /// Applies a change and returns what holds then. `handle` names the open file that a size change came
    /// through, if one did: if it has a group, the size stays for now.
    ///
    /// A change of owner always clears set-id bits.
    pub fn set_attributes(&self, node: u64, handle: Option<u64>, change: &Change) -> Result<Metadata> {
        let inode = self.inode(node)?;
        let owner = change.uid.is_some() || change.gid.is_some();
        let mut size = change.size;
        if let Some(wanted) = size
            && let Some(file) = handle.and_then(|handle| self.files.get(handle).ok())
        {
            file.note_change();
            if let Some(resized) = self.resize_group(&file, wanted) {
                resized?;
                size = None;
            }
        }
        let mut change = *change;
        if self.cache == CacheMode::Writeback && size.is_some() && change.mtime.is_none() {
            // The kernel shows the old times, and so a file that is cut to the size that it has keeps them.
            let now = self.volume.inodes().metadata(&inode);
            change.mtime = Some(SetTime::At(now.modified().into()));
            change.ctime = Some(now.changed().into());
        }
        let set = SetAttributes {
            mode: change.mode.map(|mode| mode & 0o7777),
            uid: change.uid,
            gid: change.gid,
            size,
            atime: change.atime,
            mtime: change.mtime,
            ctime: change.ctime,
            kill_suid_sgid: owner || change.kill_set_id,
        };
        self.volume.inodes().set_attributes(&inode, &set)
    }

    /// Whether a change of a node to `size` bytes may take long.
    pub fn is_long_resize(&self, node: u64, size: u64) -> bool {
        self.attributes(node).is_ok_and(|now| now.size().abs_diff(size) > LONG_CHANGE)
    }
}
