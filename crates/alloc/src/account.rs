//! Accounts: promises that outlive the call that got them, kept by somebody who counts for others.
//!
//! A [`SpaceReservation`] belongs to one call. Delayed allocation needs promises that lie between two calls:
//! a write reserves, and writeback takes from it much later, on another thread. A [`SpaceAccount`] keeps such
//! promises. A reservation goes in ([`SpaceAccount::put`]) and comes out ([`SpaceAccount::take`]); there is
//! no other way to make one from a number, so what is promised is always in a reservation or in an account.
//!
//! An account may also *owe*: somebody borrowed from what it keeps for others ([`SpaceAccount::borrow`]).
//! What is taken pays the debt first. One word holds what is due to others and what is owed: the promises
//! behind an account are always `due - owed`.
//!
//! An account has no allocator of its own, for there is one for each inode: its owner empties it before it
//! goes.
//!
//! Neighbours: [`crate::reservation`]; the volume has an account for each inode with delayed blocks, and one
//! for its metadata pool.

use crate::allocator::Allocator;
use crate::reservation::SpaceReservation;
use quire_base::sync::atomic::{AtomicU64, Ordering};

const OWED_BITS: u32 = 24;
const OWED_MASK: u64 = (1 << OWED_BITS) - 1;

/// See the module's documentation. What is due above, what is owed below.
#[derive(Debug, Default)]
pub struct SpaceAccount(AtomicU64);

fn parts(word: u64) -> (u64, u64) {
    (word >> OWED_BITS, word & OWED_MASK)
}

impl SpaceAccount {
    /// Keeps a promise.
    pub fn put(&self, mut reservation: SpaceReservation<'_>) {
        self.0.fetch_add(reservation.hand_over() << OWED_BITS, Ordering::AcqRel);
    }

    /// Promises `blocks` to others, and owes what `reservation` lacks of that; at most `1 << 24` blocks.
    pub fn put_on_credit(&self, mut reservation: SpaceReservation<'_>, blocks: u64) {
        let got = reservation.split(blocks).hand_over();
        debug_assert!(blocks - got <= OWED_MASK, "a debt of {} blocks", blocks - got);
        self.0.fetch_add((blocks << OWED_BITS) + (blocks - got), Ordering::AcqRel);
    }

    /// What is due of `blocks`: less than that by what it pays of the debt.
    ///
    /// To take more than is due is a mistake of the caller's. Debug builds panic; others log it and give what
    /// there is.
    pub fn take<'a>(&self, allocator: &'a Allocator, blocks: u64) -> SpaceReservation<'a> {
        let (mut taken, mut lacking) = (0, 0);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (due, owed) = parts(word);
            let ended = due.min(blocks);
            let paid = owed.min(ended);
            (taken, lacking) = (ended - paid, blocks - ended);
            Some(word - (ended << OWED_BITS) - paid)
        });
        if lacking > 0 {
            tracing::error!(blocks, lacking, "more space is taken from an account than was promised");
            debug_assert!(std::thread::panicking(), "{lacking} of {blocks} blocks were never promised");
        }
        SpaceReservation::of(allocator, taken)
    }

    /// Takes up to `blocks` of what is kept for others, and owes it.
    pub fn borrow<'a>(&self, allocator: &'a Allocator, blocks: u64) -> SpaceReservation<'a> {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (due, owed) = parts(word);
            taken = due.saturating_sub(owed).min(OWED_MASK - owed).min(blocks);
            Some(word + taken)
        });
        SpaceReservation::of(allocator, taken)
    }

    /// Pays the debt, as far as `reservation` goes; what is left stays in it.
    pub fn repay(&self, reservation: &mut SpaceReservation<'_>) {
        let mut paid = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            paid = parts(word).1.min(reservation.blocks());
            Some(word - paid)
        });
        reservation.split(paid).hand_over();
    }

    /// Blocks promised to others.
    pub fn due(&self) -> u64 {
        parts(self.0.load(Ordering::Relaxed)).0
    }

    /// Blocks owed.
    pub fn owed(&self) -> u64 {
        parts(self.0.load(Ordering::Relaxed)).1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::allocator::{AllocConfig, Discard, RegionSource};
    use quire_base::sync::Arc;
    use quire_base::{BlockNo, Result};
    use quire_format::region::RegionMap;

    struct Nothing;

    impl RegionSource for Nothing {
        fn load(&self, _: u64) -> Result<RegionMap> {
            Ok(RegionMap::new())
        }
    }

    impl Discard for Nothing {
        fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
            Ok(())
        }
    }

    fn allocator(blocks: u64) -> Arc<Allocator> {
        let config = AllocConfig {
            data_start: BlockNo(16),
            data_end: BlockNo(16 + blocks),
            free_blocks: blocks,
            discard: false,
        };
        Allocator::new(config, Arc::new(Nothing), Arc::new(Nothing)).unwrap()
    }

    #[test]
    fn promises_go_in_and_come_out() {
        let allocator = allocator(100);
        let account = SpaceAccount::default();
        account.put(allocator.reserve(30).unwrap());
        account.put(allocator.reserve(5).unwrap());
        assert_eq!((account.due(), allocator.reserved_blocks(), allocator.free_blocks()), (35, 35, 65));
        let mut part = account.take(&allocator, 20);
        account.put(part.split(7));
        drop(part);
        assert_eq!((account.due(), allocator.free_blocks()), (22, 78));
        drop(account.take(&allocator, 22));
        assert_eq!((allocator.reserved_blocks(), allocator.free_blocks()), (0, 100));
    }

    #[test]
    fn a_debt_is_paid_first() {
        let allocator = allocator(100);
        let account = SpaceAccount::default();
        account.put_on_credit(allocator.reserve(10).unwrap(), 12);
        assert_eq!((account.due(), account.owed()), (12, 2));
        let borrowed = account.borrow(&allocator, 50);
        assert_eq!((borrowed.blocks(), account.owed()), (10, 12));
        assert_eq!(account.borrow(&allocator, 1).blocks(), 0, "nothing is left to borrow");
        account.put(allocator.reserve(8).unwrap());
        assert_eq!(account.take(&allocator, 5).blocks(), 0, "they pay the debt");
        let mut back = borrowed;
        account.repay(&mut back);
        assert_eq!((back.blocks(), account.due(), account.owed()), (3, 15, 0));
        drop(back);
        drop(account.take(&allocator, 15));
        assert_eq!((allocator.reserved_blocks(), allocator.free_blocks()), (0, 100));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn what_was_never_promised_cannot_be_taken() {
        let allocator = allocator(10);
        let account = SpaceAccount::default();
        account.put(allocator.reserve(3).unwrap());
        let taken =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(account.take(&allocator, 4))));
        assert!(taken.is_err());
        assert_eq!(account.due(), 0);
    }
}
