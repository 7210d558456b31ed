//! Keeping writeback off a range of a file, for operations that drop or zero cached blocks and must not fail
//! on the way.
//!
//! Such an operation reserves what its transaction needs before it drops anything. Dropping a block waits for
//! the block's writeback, and finishing that writeback takes a reservation of its own; so a holder of a
//! reservation that waited for writeback could wait for ever. A [`WritebackHold`] makes the order possible:
//! while it lives no writeback of its range begins, and it is handed out once all writeback that had begun
//! has ended. Then the operation reserves, and then it drops the blocks, which waits for nothing that takes a
//! reservation.
//!
//! Protocol. The range is stored under the lock of the waits ([`crate::snapshot`]). Each gathering enters
//! itself in a list under that lock, and only if its range is clear of holds. The holder first waits for the
//! gatherings in that list, and then for what is in writeback: no other begins. A gathering in the background
//! passes the file over instead. A snapshot that finds its range held waits for the end of the hold, and
//! gathers then. The range is rounded outwards to whole segments, since a lock on a segment waits for the
//! writeback of all of its blocks.
//!
//! Invariants: a file has one hold at a time (its owner holds the gate exclusively, or the size lock); the
//! owner waits for no other writeback, for no memory and for no dirty limit while it has it.
//!
//! Neighbours: [`crate::snapshot`] has the waits, [`crate::writeback`] gathers, [`crate::discard`] drops.

use crate::folio::{ORDER_MAX, SEGMENTS_MAX};
use crate::index::BLOCKS_END;
use crate::mapping::Mapping;

/// Blocks of the largest segment.
const SEGMENT_BLOCKS_MAX: u64 = (1 << ORDER_MAX) / SEGMENTS_MAX as u64;

/// While it lives nothing of its range is in writeback. See the module's documentation.
#[must_use = "writeback begins again when the hold is dropped"]
pub struct WritebackHold<'a> {
    mapping: &'a Mapping,
    first: u64,
    end: u64,
}

impl Mapping {
    /// Keeps writeback off blocks `[first, end)` and waits for what is under way there. The caller holds no
    /// reservation, and keeps others from doing the same.
    pub fn hold_writeback(&self, first: u64, end: u64) -> WritebackHold<'_> {
        let first = first / SEGMENT_BLOCKS_MAX * SEGMENT_BLOCKS_MAX;
        let end = end.min(BLOCKS_END).next_multiple_of(SEGMENT_BLOCKS_MAX);
        let hold = WritebackHold { mapping: self, first, end };
        let mut waits = self.waits.lock();
        debug_assert!(waits.held.is_none(), "inode {} has a hold already", self.inode);
        waits.held = Some((first, end));
        while waits.is_gathered(first, end) {
            self.gathering_ended.wait(&mut waits);
        }
        drop(waits);
        self.take_snapshot(first, end, false).wait_in_flight();
        hold
    }

    /// Enters a gathering of `[first, end)` in the list; `None` if somebody keeps writeback off a part of it.
    pub(crate) fn begin_gathering(&self, first: u64, end: u64) -> Option<OpenGathering<'_>> {
        let mut waits = self.waits.lock();
        if waits.is_held(first, end) {
            return None;
        }
        let number = waits.open_gathering(first, end);
        Some(OpenGathering { mapping: self, number })
    }
}

/// A gathering that is under way.
pub(crate) struct OpenGathering<'a> {
    mapping: &'a Mapping,
    number: u64,
}

impl Drop for OpenGathering<'_> {
    fn drop(&mut self) {
        let mut waits = self.mapping.waits.lock();
        waits.close_gathering(self.number);
        if waits.held.is_some() {
            drop(waits);
            self.mapping.gathering_ended.notify_all();
        }
    }
}

impl WritebackHold<'_> {
    /// Drops blocks `[first, end)` of the range from the cache, dirty or not: what was not written is lost.
    pub fn discard(&self, first: u64, end: u64) {
        let end = end.min(BLOCKS_END);
        assert!(self.first <= first && end <= self.end, "only what is held may be dropped");
        self.mapping.drop_range(first, end);
    }
}

impl Drop for WritebackHold<'_> {
    fn drop(&mut self) {
        self.mapping.end_hold();
    }
}
