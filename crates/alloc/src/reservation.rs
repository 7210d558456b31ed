//! Promises of space: delayed allocation counts blocks now and chooses them when the data is written.
//!
//! A [`SpaceReservation`] gives its blocks back when dropped. Who keeps counts of its own (a cache with a promise for
//! each dirty block) turns it into a count with [`SpaceReservation::into_count`], and back with
//! [`Allocator::adopt`]; every count so taken must come back through `adopt` or [`Allocator::release`].
//!
//! Reserved blocks can always be allocated: frees that wait for the journal are not promised to anyone.

use crate::allocator::Allocator;
use quire_base::{Error, ErrorKind, Result};

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
    pub fn merge(&mut self, other: Self) {
        self.blocks += other.into_count();
    }

    /// The promise as a number that the caller keeps; see the module's documentation.
    pub fn into_count(mut self) -> u64 {
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
        self.allocator.release(self.blocks);
    }
}

impl Allocator {
    /// Promises `blocks`. Does no I/O. Errors with kind `NoSpace`, saying how much is free, promised, and waiting for
    /// the journal; in the last case a force and another try may succeed.
    pub fn reserve(&self, blocks: u64) -> Result<SpaceReservation<'_>> {
        self.reserve_between(blocks, blocks)
    }

    /// Promises `want` blocks, or what there is if that is at least `min`.
    pub fn reserve_between(&self, min: u64, want: u64) -> Result<SpaceReservation<'_>> {
        let mut taken = self.credits.take(min, want);
        if taken.is_err() && self.settle_at_once() {
            taken = self.credits.take(min, want);
        }
        if taken.is_err() && self.ahead.was_used() {
            self.give_back_zeroed();
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

    /// Gives a counted promise back.
    pub fn release(&self, blocks: u64) {
        if blocks > 0 {
            self.reserved.sub(blocks);
            self.credits.put(blocks);
        }
    }

    /// A counted promise as a reservation again; the count must stem from [`SpaceReservation::into_count`].
    pub fn adopt(&self, blocks: u64) -> SpaceReservation<'_> {
        SpaceReservation { allocator: self, blocks }
    }

    pub(crate) fn no_space(&self, what: impl std::fmt::Display) -> Error {
        let waiting = self.deferred_blocks();
        let hint = if waiting > 0 { "; those waiting are free after a force" } else { "" };
        Error::new(
            ErrorKind::NoSpace,
            format!(
                "no data space: {what}; {} are free, {} reserved by data not written yet, {waiting} freed but waiting for \
                 the journal{hint}",
                self.free_blocks(),
                self.reserved_blocks(),
            ),
        )
    }
}
