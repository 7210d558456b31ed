//! Promises of space: delayed allocation counts blocks now and chooses them when the data is written.
//!
//! A [`SpaceReservation`] gives its blocks back when dropped. Promises that outlive the call that got them
//! are kept in an account ([`crate::account`]).
//!
//! Reserved blocks can always be allocated: frees that wait for the journal are not promised to anyone.

use crate::allocator::Allocator;
use quire_base::{Error, ErrorKind, Result, patience};

/// A promise of blocks.
#[must_use = "dropping a reservation gives its blocks back"]
pub struct SpaceReservation<'a> {
    allocator: &'a Allocator,
    blocks: u64,
}

impl std::fmt::Debug for SpaceReservation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SpaceReservation({} blocks)", self.blocks)
    }
}

impl<'a> SpaceReservation<'a> {
    /// A promise of blocks that count as reserved already, and are in no other one.
    pub(crate) fn of(allocator: &'a Allocator, blocks: u64) -> SpaceReservation<'a> {
        SpaceReservation { allocator, blocks }
    }
}

impl SpaceReservation<'_> {
    /// Blocks promised.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Moves `blocks` (at most what is there) into a reservation of their own.
    pub fn split(&mut self, blocks: u64) -> Self {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        SpaceReservation { allocator: self.allocator, blocks }
    }

    /// Joins another reservation to this one.
    pub fn merge(&mut self, mut other: Self) {
        self.blocks += other.hand_over();
    }

    /// Takes the promise out, as a number that another reservation or an account of this crate adds to its
    /// own.
    pub(crate) fn hand_over(&mut self) -> u64 {
        std::mem::take(&mut self.blocks)
    }

    /// Blocks of the promise were allocated.
    pub(crate) fn spend(&mut self, blocks: u64) {
        self.blocks -= blocks;
        self.allocator.reserved.sub(blocks);
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.allocator.reserved.sub(self.blocks);
            self.allocator.credits.put(self.blocks);
        }
    }
}

impl Allocator {
    /// Promises `blocks`. Does no I/O, but may wait for that of others where the thread may wait. Errors with
    /// kind `NoSpace`, saying how much is free, promised, and waiting for the journal; in the last case a
    /// force and another try may succeed.
    pub fn reserve(&self, blocks: u64) -> Result<SpaceReservation<'_>> {
        self.reserve_between(blocks, blocks)
    }

    /// Promises `want` blocks, or what there is if that is at least `min`.
    pub fn reserve_between(&self, min: u64, want: u64) -> Result<SpaceReservation<'_>> {
        let mut taken = self.credits.take(min, want);
        // Waits for a batch of homes that is being written.
        if taken.is_err() && patience::may_wait() && self.settle() {
            taken = self.credits.take(min, want);
        }
        match taken {
            Ok(blocks) => {
                self.reserved.add(blocks);
                Ok(SpaceReservation { allocator: self, blocks })
            }
            Err(_) => {
                self.counts.refusals.add(1);
                Err(self.no_space(format!("{min} blocks are needed")))
            }
        }
    }

    pub(crate) fn no_space(&self, what: impl std::fmt::Display) -> Error {
        let waiting = self.deferred_blocks();
        let hint = if waiting > 0 { "; those waiting are free after a force" } else { "" };
        Error::new(
            ErrorKind::NoSpace,
            format!(
                "no data space: {what}; {} are free, {} reserved for data that is to be written and for its metadata, \
                 {waiting} freed but waiting for the journal{hint}",
                self.free_blocks(),
                self.reserved_blocks(),
            ),
        )
    }
}
