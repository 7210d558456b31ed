//! Ghosts: which folios left a while ago without having been used again. One that is wanted back soon belongs
//! to a set that is used more often than the cache's first look could tell.
//!
//! A table of as many entries as the cache has blocks at most, in buckets of a cache line. An entry is a
//! fingerprint of (inode, first block) and when it left, by a count that the caller keeps, of blocks made: in
//! a full cache as many leave; a bucket forgets its oldest. Two folios with one fingerprint are taken for
//! each other, which costs a wrong guess and nothing else.
//!
//! Invariant: bounded, whatever is cached; its memory is charged to the cache's limit. It is written by
//! evictions and misses only.
//!
//! Neighbours: [`crate::reclaim`] adds and asks.

use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{BLOCK_SIZE, InodeNo};

/// Entries of a bucket.
const WAYS: usize = 8;
/// Entries at most, whatever the limit: for 64 GiB in blocks of their own.
const ENTRIES_MAX: u64 = 1 << 24;

/// Fingerprint above, time of leaving below; 0 is empty.
#[derive(Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// See the module's documentation.
pub(crate) struct Ghosts(Box<[Bucket]>);

impl Ghosts {
    /// For a cache of so many bytes.
    pub fn new(limit_bytes: u64) -> Ghosts {
        let entries = (limit_bytes / BLOCK_SIZE as u64).clamp(WAYS as u64, ENTRIES_MAX);
        let buckets = (entries / WAYS as u64).next_power_of_two();
        Ghosts((0..buckets).map(|_| Bucket::default()).collect())
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }

    fn place(&self, inode: InodeNo, start: u64) -> (&Bucket, u64) {
        // SplitMix64's finisher over both.
        let mut mixed = inode.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ start;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        (&self.0[mixed as usize & (self.0.len() - 1)], (mixed >> 32).max(1) << 32)
    }

    /// Notes that a folio leaves now.
    pub fn add(&self, inode: InodeNo, start: u64, now: u32) {
        let (bucket, fingerprint) = self.place(inode, start);
        let age = |entry: &&AtomicU64| {
            let word = entry.load(Ordering::Relaxed);
            if word == 0 { u32::MAX } else { now.wrapping_sub(word as u32) }
        };
        let oldest = bucket.0.iter().max_by_key(age).expect("a bucket has entries");
        oldest.store(fingerprint | u64::from(now), Ordering::Relaxed);
    }

    /// Whether a folio that begins there left within the last `blocks` before now; it is forgotten then.
    pub fn take(&self, inode: InodeNo, start: u64, now: u32, blocks: u64) -> bool {
        let (bucket, fingerprint) = self.place(inode, start);
        for entry in &bucket.0 {
            let word = entry.load(Ordering::Relaxed);
            if word >> 32 == fingerprint >> 32 {
                entry.store(0, Ordering::Relaxed);
                return u64::from(now.wrapping_sub(word as u32)) <= blocks;
            }
        }
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_left_of_late_and_no_more() {
        let ghosts = Ghosts::new(4 << 20);
        (0..10_000).for_each(|now| ghosts.add(InodeNo(7), u64::from(now), now));
        let take = |inode, start| ghosts.take(InodeNo(inode), start, 10_000, 1024);
        assert!(!take(7, 100), "too long ago");
        assert!(!take(8, 9_999), "another file");
        let known = (9_500..10_000).filter(|start| take(7, *start)).count();
        assert!(known > 450, "{known} of 500");
        assert!(!take(7, 9_999), "taken once");
        assert_eq!(ghosts.bytes(), 1024 * 8);
    }
}
