//! The segment lock: version, exclusive lock and shared count in one word.
//!
//! ```text
//!   63                          16   15      14      13          0
//!  +------------------------------+--------+--------+-------------+
//!  | version, 48 bits, never reset| locked | parked | shared count|
//!  +------------------------------+--------+--------+-------------+
//! ```
//!
//! Protocol
//! * A writer locks exclusively, changes data, unlocks; unlocking adds one to the version.
//! * A reader that must not be disturbed (writeback, the slow path) holds it shared.
//! * An optimistic reader takes [`SegmentLock::version`] (none while locked), copies, and asks
//!   [`SegmentLock::unchanged`]. Shared holders do not disturb it.
//! * A thread that finds the lock taken sets `parked` and sleeps in the [`Parking`] table; the last to
//!   release it clears the bit and wakes all sleepers. While the bit is set and others share, newcomers to
//!   sharing sleep too, so that a stream of sharers cannot keep a writer out.
//!
//! Why an optimistic copy that validates is not torn (the seqlock argument). The writer's lock is a
//! read-modify-write followed by a release fence, then its data stores; the reader's data loads are followed
//! by an acquire fence, then its second look. If any data load saw a store of that writer, the two fences
//! synchronise, so the second look sees the locked word or a later one, and the version differs. The other
//! direction: the reader's first look is an acquire of the word that the previous writer's unlock released,
//! so it sees all of that writer's data. 48 bits do not come round within a reader's copy: that would take
//! 2^48 writes to one segment meanwhile.
//!
//! Several segments (a batch): all versions are taken before the first byte is copied, all are looked at
//! again after the last. Then at the moment between taking the last version and looking at the first one
//! again, every segment was unlocked at the version read: the copy is the contents at one moment. Batches
//! lock in ascending order, so they never deadlock.
//!
//! Neighbours: [`crate::park`] below; folios hold these words, `read`, `write` and `writeback` use them.

use crate::park::Parking;
use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::spin_loop;

const SHARED_MAX: u64 = (1 << 14) - 1;
const PARKED: u64 = 1 << 14;
const LOCKED: u64 = 1 << 15;
const VERSION_ONE: u64 = 1 << 16;

/// How often a taken lock is looked at before the thread sleeps.
#[cfg(not(any(loom, shuttle)))]
const SPINS: u32 = 64;
#[cfg(any(loom, shuttle))]
const SPINS: u32 = 0;

/// See the module's documentation.
#[repr(transparent)]
pub struct SegmentLock(AtomicU64);

/// The version of an unlocked segment, as an optimistic reader saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(u64);

impl Default for SegmentLock {
    fn default() -> SegmentLock {
        SegmentLock::new()
    }
}

impl SegmentLock {
    /// An unlocked segment at version zero.
    pub fn new() -> SegmentLock {
        SegmentLock(AtomicU64::new(0))
    }

    /// The lock whose word is `word`.
    pub fn from_word(word: &AtomicU64) -> &SegmentLock {
        // SAFETY: `SegmentLock` is a transparent wrapper of `AtomicU64`; the lifetime is the argument's.
        unsafe { &*std::ptr::from_ref(word).cast::<SegmentLock>() }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The version, unless someone holds the lock exclusively. Acquire: data up to this version is visible.
    pub fn version(&self) -> Option<Version> {
        let word = self.0.load(Ordering::Acquire);
        (word & LOCKED == 0).then_some(Version(word & !(VERSION_ONE - 1)))
    }

    /// Whether nobody has locked the segment exclusively since `version` was read. The caller has issued an
    /// acquire fence after its last look at the data.
    pub fn unchanged(&self, version: Version) -> bool {
        self.0.load(Ordering::Relaxed) & !(SHARED_MAX | PARKED) == version.0
    }

    /// Whether someone holds it exclusively; a hint.
    pub fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Holders of a share; a hint.
    pub fn shares(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & SHARED_MAX
    }

    /// Locks exclusively if nobody holds it.
    pub fn try_lock(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & (LOCKED | SHARED_MAX) == 0 {
            match self.0.compare_exchange_weak(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    fence(Ordering::Release);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Locks exclusively.
    pub fn lock(&self, parking: &Parking) {
        for _ in 0..SPINS {
            if self.try_lock() {
                return;
            }
            spin_loop();
        }
        while !self.try_lock() {
            self.sleep(parking, |word| word & (LOCKED | SHARED_MAX) != 0);
        }
    }

    /// Ends an exclusive hold under which data or state changed.
    pub fn unlock(&self, parking: &Parking) {
        let word = self.0.load(Ordering::Relaxed);
        self.release(parking, (word & !(VERSION_ONE - 1)).wrapping_add(VERSION_ONE));
    }

    /// Ends an exclusive hold under which nothing changed: the version stays.
    pub fn unlock_unchanged(&self, parking: &Parking) {
        let word = self.0.load(Ordering::Relaxed);
        self.release(parking, word & !(VERSION_ONE - 1));
    }

    fn release(&self, parking: &Parking, free: u64) {
        // Only `parked` can have changed since the caller read the word: it is ours.
        let before = self.0.swap(free, Ordering::Release);
        debug_assert!(before & LOCKED != 0 && before & SHARED_MAX == 0);
        if before & PARKED != 0 {
            parking.wake(self.address());
        }
    }

    /// Takes a share if nobody holds the lock exclusively and nobody waits for the present sharers to leave.
    pub fn try_share(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while !bars_sharing(word) {
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes a share.
    pub fn share(&self, parking: &Parking) {
        for _ in 0..SPINS {
            if self.try_share() {
                return;
            }
            spin_loop();
        }
        while !self.try_share() {
            self.sleep(parking, bars_sharing);
        }
    }

    /// Takes one more share for a caller that holds one: it neither waits nor fails.
    pub fn share_again(&self) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before & SHARED_MAX != 0 && before & SHARED_MAX < SHARED_MAX);
    }

    /// Gives a share back.
    pub fn unshare(&self, parking: &Parking) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(before & SHARED_MAX != 0);
        if before & SHARED_MAX == 1 && before & PARKED != 0 {
            // A thread that took the lock since keeps it; sleepers look, and set the bit again if they must.
            self.0.fetch_and(!PARKED, Ordering::Relaxed);
            parking.wake(self.address());
        }
    }

    fn sleep(&self, parking: &Parking, bars: impl Fn(u64) -> bool) {
        parking.wait_while(self.address(), || {
            let mut word = self.0.load(Ordering::Relaxed);
            while bars(word) {
                if word & PARKED != 0 {
                    return true;
                }
                match self.0.compare_exchange_weak(word, word | PARKED, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => return true,
                    Err(now) => word = now,
                }
            }
            false
        });
    }
}

fn bars_sharing(word: u64) -> bool {
    word & LOCKED != 0
        || (word & PARKED != 0 && word & SHARED_MAX != 0)
        || word & SHARED_MAX >= SHARED_MAX / 2
}

impl std::fmt::Debug for SegmentLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = self.0.load(Ordering::Relaxed);
        write!(f, "v{}", word >> 16)?;
        if word & LOCKED != 0 {
            f.write_str(" locked")?;
        }
        if word & SHARED_MAX != 0 {
            write!(f, " shared {}", word & SHARED_MAX)?;
        }
        if word & PARKED != 0 {
            f.write_str(" parked")?;
        }
        Ok(())
    }
}

/// Locks every segment of a batch exclusively; the iterator yields them in ascending order.
pub fn lock_all<'a>(segments: impl Iterator<Item = &'a SegmentLock>, parking: &Parking) {
    segments.for_each(|segment| segment.lock(parking));
}

/// Takes the versions of a batch into `versions`; false (some segment is locked) ends the attempt.
pub fn collect_versions<'a>(
    segments: impl Iterator<Item = &'a SegmentLock>,
    versions: &mut smallvec::SmallVec<[Version; 16]>,
) -> bool {
    for segment in segments {
        match segment.version() {
            Some(version) => versions.push(version),
            None => return false,
        }
    }
    true
}

/// The second look: orders everything read so far before it, then compares every version.
pub fn all_unchanged<'a>(segments: impl Iterator<Item = &'a SegmentLock>, versions: &[Version]) -> bool {
    fence(Ordering::Acquire);
    segments.zip(versions).all(|(segment, version)| segment.unchanged(*version))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn exclusive_moves_the_version_and_sharing_does_not() {
        let parking = Parking::new(1);
        let lock = SegmentLock::new();
        let first = lock.version().unwrap();
        assert!(lock.try_share());
        assert!(!lock.try_lock());
        fence(Ordering::Acquire);
        assert!(lock.unchanged(first));
        lock.share_again();
        lock.unshare(&parking);
        lock.unshare(&parking);
        assert!(lock.try_lock());
        assert!(lock.version().is_none() && !lock.unchanged(first) && !lock.try_share());
        lock.unlock_unchanged(&parking);
        assert!(lock.unchanged(first));
        lock.lock(&parking);
        lock.unlock(&parking);
        assert!(!lock.unchanged(first));
    }

    #[test]
    fn a_waiting_writer_keeps_new_sharers_out_and_gets_in() {
        let parking = std::sync::Arc::new(Parking::new(1));
        let lock = std::sync::Arc::new(SegmentLock::new());
        lock.share(&parking);
        let writer = {
            let (lock, parking) = (lock.clone(), parking.clone());
            std::thread::spawn(move || {
                lock.lock(&parking);
                lock.unlock(&parking);
            })
        };
        while lock.0.load(Ordering::Relaxed) & PARKED == 0 {
            std::thread::yield_now();
        }
        assert!(!lock.try_share());
        lock.unshare(&parking);
        writer.join().unwrap();
        assert!(lock.try_share());
        lock.unshare(&parking);
    }
}
