//! Changes in memory over a device that stays as it is.
//!
//! Reads of blocks that were never written here come from the device below; writes stay in memory and go with
//! the process. For looking at a volume as it will be without touching it: a read-only mount of a volume
//! whose last operation a crash cut in two finishes that operation here.
//!
//! Memory grows with the blocks written; a lock protects them, and a block is written entirely or not at all.
//!
//! Neighbours: any [`Backend`] below; the volume's recovery is the user.

use crate::aligned::AlignedBuf;
use crate::backend::{self, Backend, Io, IoClass, IoOp, Segment};
use quire_base::sync::{Arc, RwLock};
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use std::collections::BTreeMap;

/// See the module's documentation.
pub struct OverlayBackend {
    below: Arc<dyn Backend>,
    blocks: u64,
    written: RwLock<BTreeMap<u64, AlignedBuf>>,
}

impl OverlayBackend {
    /// No changes yet, over `below`.
    pub fn new(below: Arc<dyn Backend>) -> OverlayBackend {
        let blocks = below.blocks();
        OverlayBackend { below, blocks, written: RwLock::new(BTreeMap::new()) }
    }

    /// As [`OverlayBackend::new`], with so many blocks more behind the end of `below`: zeros.
    pub fn with_more_blocks(below: Arc<dyn Backend>, blocks: u64) -> OverlayBackend {
        let blocks = below.blocks() + blocks;
        OverlayBackend { below, blocks, written: RwLock::new(BTreeMap::new()) }
    }

    /// What lies below, without what was written here.
    fn read_below(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let left = self.below.blocks().saturating_sub(at.0);
        let inside = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX).saturating_mul(BLOCK_SIZE));
        let (inside, beyond) = buf.split_at_mut(inside);
        beyond.fill(0);
        if inside.is_empty() { Ok(()) } else { self.below.read(class, at, inside) }
    }

    /// Blocks in memory.
    pub fn changed_blocks(&self) -> usize {
        self.written.read().len()
    }

    fn check(&self, doing: &str, at: BlockNo, bytes: usize) -> Result<()> {
        backend::check_range(&self.name(), self.blocks(), doing, at, bytes as u64)
    }
}

impl Backend for OverlayBackend {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> String {
        format!("{}, with changes in memory", self.below.name())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.check("reading", at, buf.len())?;
        let end = at.0 + (buf.len() / BLOCK_SIZE) as u64;
        let written = self.written.read();
        if let Err(error) = self.read_below(class, at, buf) {
            // What was written here needs nothing from below.
            for (number, block) in (at.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
                if !written.contains_key(&number) {
                    self.read_below(class, BlockNo(number), block).map_err(|_| error.clone())?;
                }
            }
        }
        for (number, block) in written.range(at.0..end) {
            let from = (number - at.0) as usize * BLOCK_SIZE;
            buf[from..from + BLOCK_SIZE].copy_from_slice(block);
        }
        Ok(())
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check("writing", at, buf.len())?;
        let mut written = self.written.write();
        for (number, bytes) in (at.0..).zip(buf.chunks_exact(BLOCK_SIZE)) {
            written.entry(number).or_insert_with(|| AlignedBuf::zeroed(BLOCK_SIZE)).copy_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Does nothing, as a device may that does not discard.
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.check("discarding", at, usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(BLOCK_SIZE))
    }

    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios {
            let mut at = io.at;
            let mut one = |segment: &Segment| {
                let start = at;
                at = at.offset((segment.len() / BLOCK_SIZE) as u64);
                match io.op {
                    IoOp::Read => {
                        // SAFETY: the maker of the segment keeps it valid, and its bytes to us, until `done`
                        // runs.
                        let buf = unsafe { std::slice::from_raw_parts_mut(segment.ptr(), segment.len()) };
                        self.read(class, start, buf)
                    }
                    IoOp::Write => {
                        // The bytes may be folio memory that others read: they are copied out, never
                        // borrowed.
                        let mut copy = AlignedBuf::zeroed(segment.len());
                        // SAFETY: both have `len` bytes; nobody changes the segment until `done` runs.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                segment.ptr().cast_const(),
                                copy.as_mut_ptr(),
                                segment.len(),
                            );
                        }
                        self.write(class, start, &copy)
                    }
                }
            };
            let outcome = backend::check_io(&self.name(), self.blocks(), &io)
                .and_then(|()| io.segments.iter().try_for_each(&mut one));
            (io.done)(outcome);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::MemoryBackend;

    #[test]
    fn more_blocks_lie_behind_the_end() {
        let below = Arc::new(MemoryBackend::new(4));
        below.write(IoClass::Data, BlockNo(3), &[1; BLOCK_SIZE]).unwrap();
        let over = OverlayBackend::with_more_blocks(below, 3);
        assert_eq!(over.blocks(), 7);
        over.write(IoClass::Data, BlockNo(5), &[2; BLOCK_SIZE]).unwrap();
        let mut seen = vec![9; 4 * BLOCK_SIZE];
        over.read(IoClass::Data, BlockNo(3), &mut seen).unwrap();
        assert_eq!([0, 1, 2, 3].map(|block| seen[block * BLOCK_SIZE]), [1, 0, 2, 0]);
        assert!(over.read(IoClass::Data, BlockNo(6), &mut seen).is_err());
    }

    #[test]
    fn changes_stay_above() {
        let below = Arc::new(MemoryBackend::new(8));
        below.write(IoClass::Data, BlockNo(1), &[1; 3 * BLOCK_SIZE]).unwrap();
        let over = OverlayBackend::new(below.clone());
        over.write(IoClass::Data, BlockNo(2), &[2; BLOCK_SIZE]).unwrap();
        let mut seen = vec![9; 8 * BLOCK_SIZE];
        over.read(IoClass::Data, BlockNo(0), &mut seen).unwrap();
        let firsts: Vec<u8> = seen.chunks(BLOCK_SIZE).map(|block| block[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 1, 0, 0, 0, 0]);
        below.read(IoClass::Data, BlockNo(0), &mut seen).unwrap();
        assert_eq!(seen[2 * BLOCK_SIZE], 1);
        assert_eq!(over.changed_blocks(), 1);
        assert!(over.write(IoClass::Data, BlockNo(7), &[0; 2 * BLOCK_SIZE]).is_err());
    }
}
