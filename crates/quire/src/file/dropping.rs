//! Files with `cache=drop`: what passes through the cache leaves it.
//!
//! A block that was read leaves behind the read, once the read has come to the end of its folio, so that
//! readahead works as usual. A block that was written leaves when it has been written back: the cache asks
//! [`Inode::drops_cache`] then. So small writes gather as usual. A stream of writes starts the write-back of
//! each [`PIECE_BYTES`] that it has passed; otherwise dirty blocks would wait for the background threads, and
//! push out what others keep.
//!
//! Neighbours: [`super::buffered`] calls this; `cache/src/finish.rs` drops; [`super::IoFlags::UNCACHED`] is
//! the same for one call, which spares what others use often.

use crate::engine::Engine;
use crate::inode::Inode;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Result, patience};

/// A stream's blocks are written in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 20;

impl Inode {
    /// Whether what is clean leaves the cache.
    pub(crate) fn drops_cache(&self) -> bool {
        self.marks.now().drops_cache()
    }

    /// To be called after a read of `len` bytes of a file that drops.
    pub(crate) fn drop_behind_read(&self, offset: u64, len: usize) {
        let Some(mapping) = self.mapping.get() else { return };
        let end = offset + len as u64;
        // The last block of a file has no more to come.
        let end_block = if end >= self.size() { blocks_for(end) } else { end / BLOCK_SIZE as u64 };
        mapping.drop_behind(offset / BLOCK_SIZE as u64, end_block);
    }
}

impl Engine {
    /// To be called before a write to a file that drops: an error where the thread may not wait, and the
    /// write would start write-back.
    pub(crate) fn check_may_pass(&self, offset: u64, len: usize) -> Result<()> {
        match passed(offset, len) {
            Some(_) => patience::check("what was written before to be on its way"),
            None => Ok(()),
        }
    }

    /// To be called after that write.
    pub(crate) fn write_what_was_passed(&self, inode: &Inode, offset: u64, len: usize) {
        if let (Some((start, end)), Some(mapping)) = (passed(offset, len), inode.mapping.get()) {
            mapping.start_write_back(start / BLOCK_SIZE as u64, end / BLOCK_SIZE as u64);
        }
    }
}

/// The pieces that end inside a write.
fn passed(offset: u64, len: usize) -> Option<(u64, u64)> {
    let start = offset - offset % PIECE_BYTES;
    let end = offset.saturating_add(len as u64) / PIECE_BYTES * PIECE_BYTES;
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_a_write_ends() {
        assert_eq!(passed(0, 4096), None);
        assert_eq!(passed(PIECE_BYTES - 1, 1), Some((0, PIECE_BYTES)));
        assert_eq!(passed(PIECE_BYTES, 1), None);
        assert_eq!(passed(PIECE_BYTES / 2, 2 * PIECE_BYTES as usize), Some((0, 2 * PIECE_BYTES)));
    }
}
