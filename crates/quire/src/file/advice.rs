//! posix_fadvise for users of the library: what they are going to do with a file.
//!
//! Advice changes speed, never contents. Advice holds for the file, not for one handle.
//!
//! Neighbours: the cache does it; per-call hints are [`super::IoFlags`].

use crate::engine::Engine;
use crate::gate::GateState;
use crate::inode::InodeRef;
use quire_base::{BLOCK_SIZE, Result};
use quire_cache::Pattern;

/// What is going to happen to a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special; takes back `Sequential` and `Random`.
    Normal,
    /// The file will be read from front to back.
    Sequential,
    /// The file will be read here and there.
    Random,
    /// The range will be needed: it is read in, without being waited for.
    WillNeed,
    /// The range will not be needed: its dirty blocks are written, not waited for where the volume has
    /// threads, and whole folios in it leave.
    DontNeed,
}

impl Engine {
    /// Takes advice for `[offset, offset + len)`; a length of 0 means to the end of the file.
    pub(crate) fn advise(&self, inode: &InodeRef, offset: u64, len: u64, advice: Advice) -> Result<()> {
        inode.check_regular()?;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let mapping = inode.mapping();
        match advice {
            Advice::Normal => mapping.expect(Pattern::Normal),
            Advice::Sequential => mapping.expect(Pattern::Sequential),
            Advice::Random => mapping.expect(Pattern::Random),
            Advice::WillNeed => {
                let _permit = inode.gate.enter(GateState::Buffered);
                mapping.read_ahead(offset, end)?;
            }
            Advice::DontNeed => {
                let (first, end) = (offset.div_ceil(BLOCK_SIZE as u64), end / BLOCK_SIZE as u64);
                mapping.drop_behind(first, end);
                if !self.store.read_only {
                    mapping.start_write_back(first, end);
                }
            }
        }
        Ok(())
    }
}
