//! Blocks on their way to the device.
//!
//! Neighbours: [`crate::writeback`] and [`crate::journaled`] gather spans, [`crate::finish`] ends them; the
//! backing sees their content.

use crate::folio::FolioPin;
use crate::park::Parking;
use quire_base::BLOCK_SIZE;

/// Blocks in writeback, of one segment; a share of it is ours.
pub(crate) struct Span {
    pub pin: FolioPin,
    /// First block within the folio.
    pub first: u32,
    pub count: u32,
}

impl Span {
    pub fn file_block(&self) -> u64 {
        self.pin.start() + u64::from(self.first)
    }

    pub fn end_block(&self) -> u64 {
        self.file_block() + u64::from(self.count)
    }

    /// Gives the segment's share back.
    pub fn unshare(&self, parking: &Parking) {
        self.pin.segment(self.pin.segment_number(self.first)).unshare(parking);
    }

    /// Makes its blocks dirty again, and no longer in writeback.
    pub fn set_dirty(&self) {
        self.pin.dirty().set(self.first, self.first + self.count);
        self.pin.writeback().clear(self.first, self.first + self.count);
    }

    /// Cuts it after `count` blocks; the rest has a share of its own.
    pub fn split_off(&mut self, count: u32) -> Span {
        self.pin.segment(self.pin.segment_number(self.first)).share_again();
        let rest = Span { pin: self.pin.clone(), first: self.first + count, count: self.count - count };
        self.count = count;
        rest
    }
}

/// Content of blocks in writeback, for a record.
pub struct Contents<'a> {
    spans: &'a [Span],
}

impl Contents<'_> {
    pub(crate) fn of(spans: &[Span]) -> Contents<'_> {
        Contents { spans }
    }

    /// Runs of blocks that follow one another in the file: first block and count, ascending.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for span in self.spans {
            let (first, count) = (span.file_block(), u64::from(span.count));
            match runs.last_mut() {
                Some((start, blocks)) if *start + *blocks == first => *blocks += count,
                _ => runs.push((first, count)),
            }
        }
        runs
    }

    /// Copies the blocks from `first` on, which are among the runs, into `out`.
    pub fn copy(&self, first: u64, out: &mut [u8]) {
        let end = first + (out.len() / BLOCK_SIZE) as u64;
        let from = self.spans.partition_point(|span| span.end_block() <= first);
        for span in self.spans[from..].iter().take_while(|span| span.file_block() < end) {
            let (low, high) = (span.file_block().max(first), span.end_block().min(end));
            let memory = span.pin.memory((low - span.pin.start()) as u32);
            let to = (low - first) as usize * BLOCK_SIZE;
            let bytes = (high - low) as usize * BLOCK_SIZE;
            // SAFETY: arena memory of a pinned folio, whose segments are shared: nobody writes to it.
            let source = unsafe { std::slice::from_raw_parts(memory.cast_const(), bytes) };
            out[to..to + bytes].copy_from_slice(source);
        }
    }
}
