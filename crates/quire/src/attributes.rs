//! The attributes that `stat` shows and that chmod, chown and utimens change.
//!
//! Protocol: everything but the size changes in one transaction under the inode's `meta`; a mode takes the
//! access list with it ([`crate::acl`]). A size is a truncate of its own, before the rest, so that times
//! which are set with it are those asked for. A new owner or group ends a program's capabilities, as a write
//! does ([`crate::xattr`]): they go before it.
//!
//! Neighbours: `file::truncate`, [`crate::namespace::records`]. The front end decides who may change
//! what.

use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::metadata::{FileTimes, Metadata};
use crate::namespace::directory::hold_creates;
use crate::namespace::records::Records;
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Context, Error, ErrorKind, Result, Timestamp, patience};
use quire_format::inode::{FileType, INODE_BYTES, InodeRecord, MODE_PERMISSION_MASK, MODE_TYPE_MASK};
use quire_format::key::Key;
use quire_format::xattr::{self as xattr_format, PIECE_BYTES_MAX, PIECES_MAX};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// The setuid bit of a mode.
pub(crate) const SETUID: u32 = 0o4000;
/// The setgid bit of a mode.
pub(crate) const SETGID: u32 = 0o2000;
/// The group's right to execute.
const GROUP_EXECUTE: u32 = 0o010;

/// Bytes that a directory is said to have; its entries are in the tree.
const DIRECTORY_BYTES: u64 = BLOCK_SIZE as u64;

/// Sectors of 512 bytes in a block.
const SECTORS_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 512;

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The volume's clock.
    Now,
    /// This one.
    At(Timestamp),
}

/// What to change; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission, setuid, setgid and sticky bits; others are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, for a front end that keeps times itself; `None` is the volume's clock. Alone
    /// it changes nothing.
    pub ctime: Option<Timestamp>,
    /// Take the setuid bit away, and the setgid bit where the group may execute, as a write by somebody else
    /// than the owner does.
    pub kill_suid_sgid: bool,
}

impl From<&Permissions> for SetAttributes {
    fn from(permissions: &Permissions) -> SetAttributes {
        SetAttributes { mode: Some(permissions.mode()), ..SetAttributes::default() }
    }
}

impl From<FileTimes> for SetAttributes {
    fn from(times: FileTimes) -> SetAttributes {
        let at = |time: std::time::SystemTime| SetTime::At(time.into());
        SetAttributes {
            atime: times.accessed.map(at),
            mtime: times.modified.map(at),
            ..SetAttributes::default()
        }
    }
}

impl SetAttributes {
    fn changes_record(&self) -> bool {
        let SetAttributes { mode, uid, gid, size: _, atime, mtime, ctime: _, kill_suid_sgid } = self;
        mode.is_some()
            || uid.is_some()
            || gid.is_some()
            || atime.is_some()
            || mtime.is_some()
            || *kill_suid_sgid
    }

    /// The permission bits after the change. A new owner or group ends what setuid and setgid promised, on
    /// anything but a directory, unless a mode is given with it.
    fn mode_of(&self, record: &InodeRecord) -> u32 {
        let before = record.mode & MODE_PERMISSION_MASK;
        let owned = self.uid.is_some() || self.gid.is_some();
        let kill = self.kill_suid_sgid || (owned && self.mode.is_none());
        let mode = self.mode.map_or(before, |mode| mode & MODE_PERMISSION_MASK);
        if kill && record.file_type() != FileType::Directory { without_privileges(mode) } else { mode }
    }
}

/// A mode without setuid, and without setgid where that lets the group's members run it as the group.
pub fn without_privileges(mode: u32) -> u32 {
    let setgid = if mode & GROUP_EXECUTE != 0 { SETGID } else { 0 };
    mode & !(SETUID | setgid)
}

impl Engine {
    /// What `stat` shows of an inode now.
    pub(crate) fn metadata(&self, inode: &InodeRef) -> Metadata {
        let meta = inode.meta();
        let record = inode.record_now(&meta);
        // Under the lock: blocks go from there to the record when they get their homes.
        let delayed_blocks = inode.delayed.blocks();
        drop(meta);
        Metadata {
            ino: inode.number(),
            generation: inode.generation(),
            file_type: inode.kind(),
            mode: record.mode,
            nlink: record.nlink,
            uid: record.uid,
            gid: record.gid,
            rdev: record.rdev,
            size: match inode.kind() {
                FileType::Regular => inode.size(),
                FileType::Directory => DIRECTORY_BYTES,
                _ => record.size,
            },
            blocks: (record.blocks + delayed_blocks) * SECTORS_PER_BLOCK,
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
            btime: record.btime,
        }
    }

    /// Changes attributes; gives what they are then. A size only where there is file data. Kinds: those of
    /// truncate, `Unsupported` for a symbolic link's mode.
    pub(crate) fn set_attributes(
        self: &Arc<Engine>,
        inode: &InodeRef,
        set: &SetAttributes,
    ) -> Result<Metadata> {
        self.store.check_writable()?;
        if set.mode.is_some() && inode.kind() == FileType::Symlink {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("inode {} is a symbolic link: it has no mode of its own", inode.number()),
            ));
        }
        if let Some(size) = set.size {
            // Set-id bits go before what is cut, so that no crash leaves them with what another has made.
            if set.kill_suid_sgid { self.truncate(inode, size) } else { self.resize(inode, size) }?;
        }
        let mode = inode.mode.load(Ordering::Acquire);
        if set.kill_suid_sgid && without_privileges(mode) != mode {
            patience::check("the set-id bits to be gone for good")?;
        }
        if set.changes_record() {
            let _change = self.begin_change()?;
            if (set.uid.is_some() || set.gid.is_some()) && inode.kind() != FileType::Directory {
                self.clear_capabilities(inode)?;
            }
            let handed_down = set.mode.is_some() || set.gid.is_some();
            self.retry_without_space(|| {
                let _alone = if handed_down { hold_creates(inode)? } else { None };
                self.change_record(inode, set)
            })?;
        }
        Ok(self.metadata(inode))
    }

    fn change_record(self: &Arc<Engine>, inode: &InodeRef, set: &SetAttributes) -> Result<()> {
        let mut list_pieces = match set.mode {
            Some(_) => self.search_xattr_loosely(inode, acl::ACCESS)?,
            None => 0,
        };
        loop {
            let cost = Cost::new(1 + list_pieces, INODE_BYTES + list_pieces * PIECE_BYTES_MAX);
            let mut transaction = self.store.begin(cost)?;
            match set.mode {
                // Somebody may give it its first attribute at this moment.
                Some(_) => self.warm_xattr(&transaction, inode, acl::ACCESS)?,
                None => transaction.warm(&[Key::inode(inode.number())])?,
            }
            let mut records = Records::lock(self, &[inode.arc()]);
            let before = records.record(inode);
            let mode = set.mode_of(before);
            let had = before.mode & MODE_PERMISSION_MASK;
            let kills = set.kill_suid_sgid && mode != had && without_privileges(had) != had;
            let only_kill =
                *set == SetAttributes { size: set.size, kill_suid_sgid: true, ..SetAttributes::default() };
            if only_kill && !kills {
                return Ok(());
            }
            let has_attributes = before.xattr_bytes > 0;
            if set.mode.is_some()
                && has_attributes
                && !self.change_list_mode(&mut transaction, inode, mode, list_pieces)?
            {
                // It has grown since it was looked at: reserve for the largest there can be.
                list_pieces = PIECES_MAX;
                continue;
            }
            let now = self.store.options.clock.now();
            let time = |set: SetTime| match set {
                SetTime::Now => now,
                SetTime::At(time) => time,
            };
            let record = records.edit(inode);
            record.mode = record.mode & MODE_TYPE_MASK | mode;
            record.uid = set.uid.unwrap_or(record.uid);
            record.gid = set.gid.unwrap_or(record.gid);
            record.atime = set.atime.map_or(record.atime, time);
            record.mtime = set.mtime.map_or(record.mtime, time);
            record.ctime = set.ctime.unwrap_or(now);
            let seq = records.commit(transaction, Depends::Nothing)?;
            // As in `clear_privileges`.
            return if kills { self.store.force(seq) } else { Ok(()) };
        }
    }

    /// Puts a new mode into the access list, if there is one. False if it has more pieces than were reserved.
    fn change_list_mode(
        &self,
        transaction: &mut Transaction<'_>,
        inode: &InodeRef,
        mode: u32,
        pieces_max: usize,
    ) -> Result<bool> {
        let search = self.search_xattr(inode.number(), acl::ACCESS)?;
        let Some(stored) = &search.found else { return Ok(true) };
        if stored.pieces > pieces_max {
            return Ok(false);
        }
        let damaged = || format!("the access list of inode {}", inode.number());
        let list = Acl::decode(&stored.value)
            .map_err(|error| error.with_kind(ErrorKind::Corrupt))
            .context(damaged())?;
        let Some(mut list) = list else { return Ok(true) };
        list.set_mode(mode);
        let pieces = xattr_format::encode(acl::ACCESS, &list.encode())?;
        self.put_xattr(transaction, inode.number(), acl::ACCESS, &search, &pieces)?;
        Ok(true)
    }
}
