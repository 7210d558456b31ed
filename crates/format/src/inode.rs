//! The inode record: everything a `stat` says, and little else.
//!
//! Layout (96 bytes, little-endian):
//!
//! ```text
//!  0 mode u32     4 flags u32   8 uid u32    12 gid u32    16 nlink u32   20 xattr_bytes u32
//! 24 size u64    32 blocks u64
//! 40 atime i64   48 mtime i64  56 ctime i64  64 btime i64  (nanoseconds since 1970)
//! 72 generation u64            80 rdev u64   88 parent u64
//! ```
//!
//! Neighbours: the value of [`crate::key::KeyKind::Inode`]; `fs` gives the fields their meaning.

use crate::record::cursor::Cursor;
use quire_base::{Error, Result, Timestamp};

/// Bytes of an encoded record.
pub const INODE_BYTES: usize = 96;
/// The largest file size in bytes: 8 EiB - 1.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_TARGET_MAX: usize = 4095;
/// Largest piece of a symbolic link's target under one key, in bytes; every piece but the last is full.
pub const SYMLINK_PIECE_MAX: usize = 1024;

/// The file type's bits of a mode.
pub const MODE_TYPE_MASK: u32 = 0o170000;
/// The permission, setuid, setgid and sticky bits of a mode.
pub const MODE_PERMISSION_MASK: u32 = 0o7777;

/// What an inode is. The numbers are those of `d_type`, and of the mode's type bits shifted right by 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A Unix-domain socket.
    Socket = 12,
}

impl FileType {
    /// Every type.
    pub const ALL: [FileType; 7] = [
        FileType::Fifo,
        FileType::CharDevice,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::Regular,
        FileType::Symlink,
        FileType::Socket,
    ];

    /// From the byte of a directory entry (`d_type`).
    pub fn from_byte(byte: u8) -> Result<FileType> {
        FileType::ALL
            .into_iter()
            .find(|kind| kind.to_byte() == byte)
            .ok_or_else(|| Error::corrupt(format!("unknown file type {byte}")))
    }

    /// From a mode (`st_mode`); permission bits do not matter.
    pub fn from_mode(mode: u32) -> Result<FileType> {
        FileType::from_byte(((mode & MODE_TYPE_MASK) >> 12) as u8)
    }

    /// The byte of a directory entry (`d_type`).
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// The type bits of a mode.
    pub const fn to_mode(self) -> u32 {
        (self as u32) << 12
    }

    /// Whether it is a directory.
    pub const fn is_dir(self) -> bool {
        matches!(self, FileType::Directory)
    }

    /// Whether it is a regular file.
    pub const fn is_file(self) -> bool {
        matches!(self, FileType::Regular)
    }

    /// Whether it is a symbolic link.
    pub const fn is_symlink(self) -> bool {
        matches!(self, FileType::Symlink)
    }

    /// True for character and block devices, which have a device number.
    pub const fn is_device(self) -> bool {
        matches!(self, FileType::CharDevice | FileType::BlockDevice)
    }
}

/// An inode's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Inode flags; `fs` defines them.
    pub flags: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of the inode; 0 while it is an orphan.
    pub nlink: u32,
    /// Bytes of all extended attributes, names and values.
    pub xattr_bytes: u32,
    /// Bytes; of a symbolic link, of its target.
    pub size: u64,
    /// Allocated blocks of 4096 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Tells lives of the inode number apart.
    pub generation: u64,
    /// Device number of a device, else 0.
    pub rdev: u64,
    /// A directory's parent; 0 for anything else.
    pub parent: u64,
}

impl InodeRecord {
    /// The type in the mode, which decoding has checked.
    ///
    /// # Panics
    /// If `mode` was set to an unknown type after decoding.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).expect("an inode record's type is checked when it is decoded")
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; INODE_BYTES] {
        let mut out = [0; INODE_BYTES];
        let words = [self.mode, self.flags, self.uid, self.gid, self.nlink, self.xattr_bytes];
        for (place, word) in out[..24].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let longs = [
            self.size,
            self.blocks,
            self.atime.0 as u64,
            self.mtime.0 as u64,
            self.ctime.0 as u64,
            self.btime.0 as u64,
            self.generation,
            self.rdev,
            self.parent,
        ];
        for (place, long) in out[24..].chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        out
    }

    /// Reads and checks a record: exact length, known type, no unknown mode bits, sizes within their limits.
    pub fn decode(bytes: &[u8]) -> Result<InodeRecord> {
        let mut cursor = Cursor::new(bytes, "inode record");
        let record = InodeRecord {
            mode: cursor.u32()?,
            flags: cursor.u32()?,
            uid: cursor.u32()?,
            gid: cursor.u32()?,
            nlink: cursor.u32()?,
            xattr_bytes: cursor.u32()?,
            size: cursor.u64()?,
            blocks: cursor.u64()?,
            atime: Timestamp(cursor.i64()?),
            mtime: Timestamp(cursor.i64()?),
            ctime: Timestamp(cursor.i64()?),
            btime: Timestamp(cursor.i64()?),
            generation: cursor.u64()?,
            rdev: cursor.u64()?,
            parent: cursor.u64()?,
        };
        cursor.end()?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<()> {
        let kind = FileType::from_mode(self.mode)?;
        if self.mode & !(MODE_TYPE_MASK | MODE_PERMISSION_MASK) != 0 {
            return Err(Error::corrupt(format!("inode mode {:#o} has unknown bits", self.mode)));
        }
        if self.size > FILE_SIZE_MAX {
            return Err(Error::corrupt(format!("inode size {} is over the largest file size", self.size)));
        }
        if kind == FileType::Symlink && self.size > SYMLINK_TARGET_MAX as u64 {
            return Err(Error::corrupt(format!("symbolic link of {} bytes", self.size)));
        }
        if self.blocks > crate::extent::FILE_BLOCKS_MAX {
            return Err(Error::corrupt(format!("inode with {} blocks", self.blocks)));
        }
        if kind != FileType::Directory && self.parent != 0 {
            return Err(Error::corrupt(format!("{kind:?} with a parent directory {}", self.parent)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> InodeRecord {
        InodeRecord {
            mode: FileType::Regular.to_mode() | 0o644,
            flags: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            xattr_bytes: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp(-1),
            mtime: Timestamp(i64::MIN),
            ctime: Timestamp(i64::MAX),
            btime: Timestamp(0),
            generation: 7,
            rdev: 0,
            parent: 0,
        }
    }

    #[test]
    fn types_agree_with_modes() {
        for kind in FileType::ALL {
            assert_eq!(FileType::from_mode(kind.to_mode() | 0o7777).unwrap(), kind);
            assert_eq!(FileType::from_byte(kind.to_byte()).unwrap(), kind);
        }
        assert!(FileType::from_mode(0o644).is_err());
        assert!(FileType::from_byte(3).is_err());
    }

    #[test]
    fn round_trip() {
        let record = record();
        assert_eq!(InodeRecord::decode(&record.encode()).unwrap(), record);
    }

    #[test]
    fn refuses_what_cannot_be() {
        let bad: [fn(&mut InodeRecord); 6] = [
            |r| r.mode = 0o644,
            |r| r.mode |= 1 << 20,
            |r| r.size = FILE_SIZE_MAX + 1,
            |r| (r.mode, r.size) = (FileType::Symlink.to_mode() | 0o777, 4096),
            |r| r.blocks = u64::MAX,
            |r| r.parent = 1,
        ];
        for change in bad {
            let mut record = record();
            change(&mut record);
            assert!(InodeRecord::decode(&record.encode()).is_err(), "{record:?}");
        }
        assert!(InodeRecord::decode(&record().encode()[..95]).is_err());
        assert!(InodeRecord::decode(&[0; 97]).is_err());
    }
}
