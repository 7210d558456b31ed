//! The numbers of a volume, as types: a block number is not a sequence number.

use std::fmt;

/// Bytes in a block, the unit of allocation and of state.
pub const BLOCK_SIZE: usize = 4096;
/// log2 of [`BLOCK_SIZE`].
pub const BLOCK_SHIFT: u32 = 12;

/// A block of the device, counted from its start in units of [`BLOCK_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The device offset of the block's first byte.
    pub const fn byte_offset(self) -> u64 {
        self.0 << BLOCK_SHIFT
    }
    /// The block `count` further on.
    pub const fn offset(self, count: u64) -> BlockNo {
        BlockNo(self.0 + count)
    }
}

/// An inode's number; never reused within a volume's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeNo(pub u64);

impl InodeNo {
    /// The root directory.
    pub const ROOT: InodeNo = InodeNo(1);
}

/// A place in the journal's order: the stream position, in bytes, just behind a transaction's record.
///
/// A transaction is durable when the journal is durable up to its `Seq`. `Seq(0)` is "before everything".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

macro_rules! show {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}
show!(BlockNo);
show!(InodeNo);
show!(Seq);

/// Blocks needed to hold `bytes`.
pub const fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE as u64)
}
