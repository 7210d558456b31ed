//! Trimming: telling the device about all free space of a volume in use.
//!
//! Neighbours: `alloc::discarding` takes free blocks, discards them and gives them back; `quire trim` goes
//! through a volume piece by piece.

use crate::volume::Volume;
use quire_alloc::discarding::RUN_BLOCKS_MAX;
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use quire_format::extent::Run;
use std::ops::Range;

/// Where space is short, free blocks are discarded in pieces of so many, or not at all.
const PIECE_BLOCKS_MIN: u64 = 64;

impl Volume {
    /// Discards what is free within a range of the volume, in bytes; gives how many bytes that were. What is
    /// not a whole block, or past the end, does not count. The volume stays in use meanwhile; where space is
    /// short, some of it is passed over.
    ///
    /// Errors: `Busy` while the volume is frozen, those of changes otherwise. It waits while a snapshot is
    /// taken.
    ///
    /// Space is free when its freeing is durable: call [`Volume::sync`] before, to include all.
    ///
    /// ```
    /// # fn main() -> quire::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let image = directory.path().join("image");
    /// # quire::FormatOptions::new().size(64 << 20).format(&image)?;
    /// # let volume = quire::Volume::open(&image)?;
    /// println!("{} bytes are discarded", volume.trim(0..u64::MAX)?);
    /// # volume.close()
    /// # }
    /// ```
    pub fn trim(&self, range: Range<u64>) -> Result<u64> {
        let engine = self.engine();
        let space = engine.store.superblock.data_start.0..engine.store.alloc.data_end().0;
        let block = BLOCK_SIZE as u64;
        let (mut at, end) =
            (range.start.div_ceil(block).max(space.start), (range.end / block).min(space.end));
        let (mut blocks, mut most) = (0, RUN_BLOCKS_MAX);
        while at < end {
            // Closing the volume waits for one piece at most.
            let _change = engine.begin_change_unless_frozen("it can be trimmed")?;
            let piece = Run::new(BlockNo(at), most.min(end - at));
            match engine.store.alloc.discard_free(piece) {
                // Space is short: smaller pieces leave enough for others.
                None if piece.blocks > PIECE_BLOCKS_MIN => most = piece.blocks / 2,
                discarded => {
                    blocks += discarded.unwrap_or(0);
                    at = piece.end().0;
                }
            }
        }
        Ok(blocks * block)
    }
}
