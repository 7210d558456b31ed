//! Data and holes (lseek's SEEK_DATA and SEEK_HOLE).
//!
//! Data is what has written extents, or dirty blocks in the cache that wait for theirs; the rest, unwritten
//! extents included, is hole. There is a virtual hole at the end of the file.

use crate::engine::Engine;
use crate::gate::GateState;
use crate::inode::InodeRef;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};

const LOOK_EXTENTS: usize = 64;

impl Engine {
    /// The first byte of data at or behind `offset`; `NoData` if none follows.
    pub(crate) fn seek_data(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let size = seekable(inode, offset)?;
        let _permit = inode.gate.enter(GateState::Buffered);
        match self.next_data(inode, offset / BLOCK_SIZE as u64, blocks_for(size))? {
            Some((start, _)) => Ok((start * BLOCK_SIZE as u64).max(offset)),
            None => Err(Error::new(ErrorKind::NoData, format!("no data at or behind offset {offset}"))),
        }
    }

    /// The first byte of a hole at or behind `offset`; the end of the file at the latest.
    pub(crate) fn seek_hole(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let size = seekable(inode, offset)?;
        let _permit = inode.gate.enter(GateState::Buffered);
        let (mut block, last) = (offset / BLOCK_SIZE as u64, blocks_for(size));
        while block < last {
            match self.next_data(inode, block, last)? {
                Some((start, end)) if start <= block => block = end,
                _ => return Ok((block * BLOCK_SIZE as u64).max(offset)),
            }
        }
        Ok(size)
    }

    /// The next run of data blocks that reaches beyond `from`, below `last`, or the front of it.
    fn next_data(&self, inode: &InodeRef, from: u64, last: u64) -> Result<Option<(u64, u64)>> {
        // The cache first: a block that is written back meanwhile is in both. Behind what it has, the extents
        // need no look.
        let cached = inode.mapping.get().and_then(|mapping| mapping.next_cached_data(from, last));
        let before = cached.map_or(last, |(start, _)| start);
        let mut at = from;
        while at < before {
            let found = inode.read_extents(at, before - at, LOOK_EXTENTS)?;
            if let Some(extent) = found.iter().find(|extent| !extent.unwritten) {
                return Ok(Some((extent.file_block.max(from), extent.file_end().min(last))));
            }
            if found.len() < LOOK_EXTENTS {
                break;
            }
            at = found.last().map_or(before, |extent| extent.file_end());
        }
        Ok(cached)
    }
}

fn seekable(inode: &InodeRef, offset: u64) -> Result<u64> {
    inode.check_regular()?;
    let size = inode.size();
    if offset >= size {
        return Err(Error::new(
            ErrorKind::NoData,
            format!("offset {offset} is at or beyond the end of the file ({size} bytes)"),
        ));
    }
    Ok(size)
}
