//! Keeping writeback off a range of a file, for operations that drop or zero cached blocks and must not fail on the way.
//!
//! Such an operation reserves what its transaction needs before it drops anything. Dropping a block waits for the block's
//! writeback, and finishing that writeback takes a reservation of its own; so a holder of a reservation that waited for
//! writeback could wait for ever. A [`WritebackHold`] makes the order possible: while it lives no writeback of its
//! range begins, and it is handed out once all writeback that had begun has ended. Then the operation reserves, and
//! then it drops the blocks, which waits for nothing that takes a reservation.
//!
//! Protocol. The range is stored under the lock of the tickets. Each gathering opens its ticket under that lock, and only
//! if the range is clear of holds; so it either has a ticket that the holder waits for, or waits for the holder. A
//! gathering in the background passes the file over instead. The range is rounded outwards to whole segments, since a
//! lock on a segment waits for the writeback of all of its blocks.
//!
//! Invariants: a file has one hold at a time (its owner holds the gate exclusively, or the size lock); the owner waits
//! for no other writeback, for no memory and for no dirty limit while it has it.
//!
//! Neighbours: [`crate::mapping`] has the tickets, [`crate::writeback`] opens them, [`crate::discard`] drops.

use crate::folio::{ORDER_MAX, SEGMENTS_MAX};
use crate::mapping::{BLOCKS_END, Mapping};
use crate::outbox::Outbox;
use quire_base::{Result, patience};

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
    /// Keeps writeback off blocks `[first, end)` and waits for what is under way there. The caller holds no reservation,
    /// and keeps others from doing the same.
    pub fn hold_writeback(&self, first: u64, end: u64) -> WritebackHold<'_> {
        let first = first / SEGMENT_BLOCKS_MAX * SEGMENT_BLOCKS_MAX;
        let end = end.min(BLOCKS_END).next_multiple_of(SEGMENT_BLOCKS_MAX);
        let mut tickets = self.tickets.lock();
        debug_assert!(tickets.held.is_none(), "inode {} has a hold already", self.inode);
        tickets.held = Some((first, end));
        drop(tickets);
        let hold = WritebackHold { mapping: self, first, end };
        self.wait_tickets(first, end);
        hold
    }

    /// Opens the ticket of a gathering of `[first, end)`, once nobody keeps writeback off any of it. `None`: somebody
    /// does, and the caller does not want to wait.
    pub(crate) fn open_gathering(
        &self,
        outbox: &mut Outbox,
        first: u64,
        end: u64,
        wait: bool,
    ) -> Result<Option<u64>> {
        let mut tickets = self.tickets.lock();
        while tickets.is_held(first, end) {
            if !wait {
                return Ok(None);
            }
            patience::check("blocks that are about to be dropped")?;
            if !outbox.is_empty() {
                // Whoever waits for what is in it must not wait for the hold as well.
                drop(tickets);
                outbox.hand_over();
                tickets = self.tickets.lock();
                continue;
            }
            self.hold_ended.wait(&mut tickets);
        }
        Ok(Some(tickets.open(first, end, None)))
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
        self.mapping.tickets.lock().held = None;
        self.mapping.hold_ended.notify_all();
    }
}
