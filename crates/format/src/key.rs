//! The tree's keys: one ordered space for everything a volume knows.
//!
//! Ordered by (object, kind, offset). Object 0 is the volume itself; any other object is an inode number, so
//! all that belongs to one inode lies together.
//!
//! A volume has two trees, which share the key space: the *space tree* has the keys below [`Key::NAMES`], the
//! *tree of names* all others. What the space tree holds belongs to the volume and to no state of its files.
//!
//! Neighbours: [`crate::node`] stores keys, [`crate::record`] journals them.

use quire_base::{Error, InodeNo, Result};

/// What a key's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum KeyKind {
    /// Used blocks of one region; object 0, offset = region number.
    FreeSpace = 1,
    /// Blocks of one region that are used, but only by snapshots; object 0, offset = region number.
    Dead = 2,
    /// A snapshot; object 0, offset = its number.
    Snapshot = 3,
    /// What a receive left; object 0, offset = the number of the snapshot that it made, or 0 while it is
    /// unfinished.
    Receive = 4,
    /// A logged operation in progress; object 0, offset = its id.
    LoggedOp = 8,
    /// An orphan that found no slot; object 0, offset = inode number.
    OrphanKey = 9,
    /// The inode record; offset 0.
    Inode = 16,
    /// A piece of a symbolic link's target; offset = piece number.
    Symlink = 17,
    /// A piece of an extended attribute; offset = name hash (32 bits), disambiguator (16), piece (16).
    Xattr = 18,
    /// A directory entry; offset = cookie.
    Entry = 19,
    /// An extent; offset = first file block.
    Extent = 20,
}

impl KeyKind {
    /// From its byte on disk.
    pub fn from_byte(byte: u8) -> Result<KeyKind> {
        Ok(match byte {
            1 => KeyKind::FreeSpace,
            2 => KeyKind::Dead,
            3 => KeyKind::Snapshot,
            4 => KeyKind::Receive,
            8 => KeyKind::LoggedOp,
            9 => KeyKind::OrphanKey,
            16 => KeyKind::Inode,
            17 => KeyKind::Symlink,
            18 => KeyKind::Xattr,
            19 => KeyKind::Entry,
            20 => KeyKind::Extent,
            other => return Err(Error::corrupt(format!("unknown key kind {other}"))),
        })
    }
}

/// A key; see the module's documentation for the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The volume (0) or an inode number.
    pub object: u64,
    /// What the value is.
    pub kind: KeyKind,
    /// Position within the object; its meaning depends on the kind.
    pub offset: u64,
}

impl Key {
    /// Before every key.
    pub const MIN: Key = Key { object: 0, kind: KeyKind::FreeSpace, offset: 0 };
    /// The lowest key of the tree of names: those below are the space tree's.
    pub const NAMES: Key = Key { object: 0, kind: KeyKind::LoggedOp, offset: 0 };
    /// Behind every key.
    pub const MAX: Key = Key { object: u64::MAX, kind: KeyKind::Extent, offset: u64::MAX };

    /// Any key.
    pub const fn new(object: u64, kind: KeyKind, offset: u64) -> Key {
        Key { object, kind, offset }
    }
    /// The used blocks of a region.
    pub const fn region(number: u64) -> Key {
        Key::new(0, KeyKind::FreeSpace, number)
    }
    /// The blocks of a region that only snapshots use.
    pub const fn dead(region: u64) -> Key {
        Key::new(0, KeyKind::Dead, region)
    }
    /// A snapshot.
    pub const fn snapshot(number: u32) -> Key {
        Key::new(0, KeyKind::Snapshot, number as u64)
    }
    /// Which snapshot, of any volume, the snapshot of this number was received from.
    pub const fn received(number: u32) -> Key {
        Key::new(0, KeyKind::Receive, number as u64)
    }
    /// The unfinished receive.
    pub const RECEIVING: Key = Key::new(0, KeyKind::Receive, 0);
    /// A logged operation.
    pub const fn logged(id: u64) -> Key {
        Key::new(0, KeyKind::LoggedOp, id)
    }
    /// An orphan without a slot.
    pub const fn orphan(inode: InodeNo) -> Key {
        Key::new(0, KeyKind::OrphanKey, inode.0)
    }
    /// An inode's record.
    pub const fn inode(inode: InodeNo) -> Key {
        Key::new(inode.0, KeyKind::Inode, 0)
    }
    /// A piece of a link target.
    pub const fn symlink(inode: InodeNo, piece: u64) -> Key {
        Key::new(inode.0, KeyKind::Symlink, piece)
    }
    /// A piece of an extended attribute.
    pub const fn xattr(inode: InodeNo, hash: u32, disambiguator: u16, piece: u16) -> Key {
        Key::new(inode.0, KeyKind::Xattr, (hash as u64) << 32 | (disambiguator as u64) << 16 | piece as u64)
    }
    /// A directory entry.
    pub const fn entry(directory: InodeNo, cookie: u64) -> Key {
        Key::new(directory.0, KeyKind::Entry, cookie)
    }
    /// The extent that starts at a file block.
    pub const fn extent(inode: InodeNo, file_block: u64) -> Key {
        Key::new(inode.0, KeyKind::Extent, file_block)
    }
}

/// The largest value a key may have, in bytes: three of them with their slots fit a node.
pub const VALUE_MAX: usize = 1088;
