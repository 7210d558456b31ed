//! Where a metadata block lies: in one block, or in two that hold the same bytes.
//!
//! A reference to a tree node, a manifest page or an orphan block names a place. Both copies are written
//! before the superblock that leads to them, and one checksum holds for both. So either serves, and a copy
//! that does not check is mended by writing the other one's bytes over it.
//!
//! Neighbours: [`crate::node`], [`crate::pool`]; the tree crate's pool hands places out.

use quire_base::BlockNo;

/// What a `twin` says where there is no second copy: block 0 is the first superblock's.
pub const NO_TWIN: BlockNo = BlockNo(0);

/// One or two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The first copy.
    pub block: BlockNo,
    /// The second copy; [`NO_TWIN`] if there is none.
    pub twin: BlockNo,
}

impl Place {
    /// A place of one block.
    pub const fn single(block: BlockNo) -> Place {
        Place { block, twin: NO_TWIN }
    }

    /// The blocks, the first copy first.
    pub fn copies(self) -> impl DoubleEndedIterator<Item = BlockNo> + Clone {
        [Some(self.block), Some(self.twin).filter(|twin| *twin != NO_TWIN)].into_iter().flatten()
    }

    /// Whether one of the copies lies at `block`.
    pub fn contains(self, block: BlockNo) -> bool {
        self.copies().any(|copy| copy == block)
    }
}
