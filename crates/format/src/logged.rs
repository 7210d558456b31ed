//! Logged operations: changes too large for one transaction, with a cursor that says how far they are.
//!
//! The record is put with the operation's first transaction, its cursor moved by each further one, and it is
//! deleted with the last. Recovery goes on from the cursor. While one is on disk, its inode takes no other
//! change of its extents.
//!
//! Layout (56 bytes, little-endian):
//!
//! ```text
//! 0 kind u64   8 inode u64   16 generation u64   24 start u64   32 end u64   40 cursor u64   48 size u64
//! ```
//!
//! Neighbours: the value of [`crate::key::KeyKind::LoggedOp`]; `fs` carries the operations out.

use crate::extent::FILE_BLOCKS_MAX;
use crate::inode::FILE_SIZE_MAX;
use crate::record::cursor::Cursor;
use quire_base::{Error, InodeNo, Result};

/// Bytes of an encoded operation.
pub const LOGGED_BYTES: usize = 56;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LoggedKind {
    /// Frees the blocks past a new size.
    Truncate = 1,
    /// Frees all blocks of an inode without names, then the inode.
    Free = 2,
    /// Frees a range and moves what follows down over it.
    Collapse = 3,
    /// Moves what follows up to open a hole.
    Insert = 4,
    /// Frees a range.
    Punch = 5,
    /// Makes a range read as zero, its blocks allocated.
    Zero = 6,
}

impl LoggedKind {
    const ALL: [LoggedKind; 6] = [
        LoggedKind::Truncate,
        LoggedKind::Free,
        LoggedKind::Collapse,
        LoggedKind::Insert,
        LoggedKind::Punch,
        LoggedKind::Zero,
    ];

    /// From its number on disk.
    pub fn from_number(number: u64) -> Result<LoggedKind> {
        LoggedKind::ALL
            .into_iter()
            .find(|kind| *kind as u64 == number)
            .ok_or_else(|| Error::corrupt(format!("unknown logged operation {number}")))
    }
}

/// A logged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedOp {
    /// What is being done.
    pub kind: LoggedKind,
    /// To which inode.
    pub inode: InodeNo,
    /// The inode's generation: recovery refuses an operation on a later life of the number.
    pub generation: u64,
    /// First file block of the range.
    pub start: u64,
    /// One behind the last file block of the range.
    pub end: u64,
    /// File block up to which (kinds that go backwards: down to which) the work is done.
    pub cursor: u64,
    /// The file's size in bytes once the operation is done.
    pub size: u64,
}

impl LoggedOp {
    /// The value's bytes.
    pub fn encode(&self) -> [u8; LOGGED_BYTES] {
        let mut out = [0; LOGGED_BYTES];
        let words =
            [self.kind as u64, self.inode.0, self.generation, self.start, self.end, self.cursor, self.size];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads and checks a value: known kind, inode not 0, an ordered range within any file, a size within
    /// limits, a cursor that the operation can have: extents are moved down from behind its range, or up from
    /// behind its start.
    pub fn decode(bytes: &[u8]) -> Result<LoggedOp> {
        let mut cursor = Cursor::new(bytes, "logged operation");
        let op = LoggedOp {
            kind: LoggedKind::from_number(cursor.u64()?)?,
            inode: InodeNo(cursor.u64()?),
            generation: cursor.u64()?,
            start: cursor.u64()?,
            end: cursor.u64()?,
            cursor: cursor.u64()?,
            size: cursor.u64()?,
        };
        cursor.end()?;
        if op.inode.0 == 0 {
            return Err(Error::corrupt("logged operation on inode 0"));
        }
        if op.start > op.end
            || op.end > FILE_BLOCKS_MAX
            || op.cursor > FILE_BLOCKS_MAX
            || op.size > FILE_SIZE_MAX
        {
            return Err(Error::corrupt(format!("logged operation out of range: {op:?}")));
        }
        let cursor_min = match op.kind {
            LoggedKind::Collapse => op.end,
            LoggedKind::Insert => op.start,
            _ => 0,
        };
        if op.cursor < cursor_min {
            return Err(Error::corrupt(format!("logged operation with its cursor out of range: {op:?}")));
        }
        Ok(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_be() {
        let good = LoggedOp {
            kind: LoggedKind::Collapse,
            inode: InodeNo(4),
            generation: 2,
            start: 10,
            end: 20,
            cursor: 4000,
            size: 1 << 40,
        };
        assert_eq!(LoggedOp::decode(&good.encode()).unwrap(), good);
        let bad = [
            LoggedOp { inode: InodeNo(0), ..good },
            LoggedOp { start: 21, ..good },
            LoggedOp { end: u64::MAX, ..good },
            LoggedOp { cursor: FILE_BLOCKS_MAX + 1, ..good },
            LoggedOp { size: u64::MAX, ..good },
            LoggedOp { cursor: 19, ..good },
            LoggedOp { kind: LoggedKind::Insert, cursor: 9, ..good },
        ];
        for op in bad {
            assert!(LoggedOp::decode(&op.encode()).is_err(), "{op:?}");
        }
        let mut kind = good.encode();
        kind[0] = 7;
        assert!(LoggedOp::decode(&kind).is_err());
        assert!(LoggedOp::decode(&good.encode()[..55]).is_err());
    }
}
