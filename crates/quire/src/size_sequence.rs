//! The size of a file, and the sequence of its exclusive operations: what every cached read looks at, twice.
//!
//! Protocol
//! * Writes raise the size before they unlock their first segment. A reader that the end clipped looks at the
//!   size again.
//! * An exclusive holder of the gate keeps the sequence odd for the whole of its operation ([`OddSequence`]);
//!   contents and size move in steps meanwhile. A reader that finds the sequence odd takes the slow path, one
//!   that finds it changed after its copy throws the copy away.
//! * Callers that ask for the size without the gate get [`SizeSequence::settled_size`]: while an exclusive
//!   operation is under way, the size before it, and the size after it from the moment on that its record is
//!   in the journal ([`SizeSequence::settle`]; attributes take the inode's lock, under which both happen).
//!   Else a stat, after a later operation had returned, could still see the old size, and a crash show the
//!   new size without that later operation.
//!
//! Why the settled size is one that the file had as a whole. Even: the size was loaded between two equal
//! looks at the sequence; had it been stored by an operation, that one's odd sequence happened before the
//! store, which the load acquired, and the second look would differ. Odd: what callers are told was stored
//! before the sequence went odd, or is the size that the operation ends with; it is stored again only by the
//! next operation, after which the second look differs.
//!
//! An fsync has something to do after the exclusive operation under way, and does not keep later ones away.
//! It waits for the sequence to move on ([`SizeSequence::await_end`], [`SizeSequence::call_at_end`]), not in
//! the gate: the holder of the gate may then wait for that fsync.
//!
//! Invariants: one [`OddSequence`] of a file at a time. Shared line: all of it, read by every operation,
//! written only when the size or the whole file changes, or a thread waits for that.
//!
//! Neighbours: [`crate::inode`] has one; `file/*` write it; `quire_cache` reads it as a `ReadView`.

use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::{Condvar, Mutex, spin_loop};
use quire_cache::ReadView;

/// See the module's documentation.
#[repr(align(64))]
pub struct SizeSequence {
    /// End of file in bytes, this moment.
    size: AtomicU64,
    /// Counts exclusive operations; odd while one is under way.
    exclusive_sequence: AtomicU64,
    /// What callers are told while an exclusive operation is under way.
    settled: AtomicU64,
    /// Held while the sequence becomes even; what is to be called then.
    ending: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    ended: Condvar,
}

impl SizeSequence {
    /// Of a file of `size` bytes.
    pub fn new(size: u64) -> SizeSequence {
        SizeSequence {
            size: AtomicU64::new(size),
            exclusive_sequence: AtomicU64::new(0),
            settled: AtomicU64::new(size),
            ending: Mutex::new(Vec::new()),
            ended: Condvar::new(),
        }
    }

    /// The size this moment, in bytes: what a holder of the gate goes by.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size, in an exclusive operation whose record is in the journal.
    pub fn set_size(&self, size: u64) {
        self.settle(size);
        self.size.store(size, Ordering::Release);
    }

    /// Tells callers the size with which the exclusive operation under way will end, whatever happens.
    /// Without such an operation it changes nothing; the caller keeps new ones away.
    pub fn settle(&self, size: u64) {
        self.settled.store(size, Ordering::Release);
    }

    /// Raises the size to `end`; called before the first segment of what grew is unlocked. A write inside the
    /// end of file leaves the line alone that every reader loads.
    pub fn raise_size(&self, end: u64) {
        if end > self.size() {
            self.size.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// The exclusive operation that is under way, if one is, by a number of its own.
    pub fn under_way(&self) -> Option<u64> {
        let sequence = self.exclusive_sequence.load(Ordering::Acquire);
        (!sequence.is_multiple_of(2)).then_some(sequence)
    }

    /// Whether that operation is under way still. If not, what it did happened before this returns.
    pub fn is_under_way(&self, number: u64) -> bool {
        self.exclusive_sequence.load(Ordering::Acquire) == number
    }

    /// Waits for the end of that operation, but not for one that begins after it.
    pub fn await_end(&self, number: u64) {
        if !self.is_under_way(number) {
            return;
        }
        let mut ending = self.ending.lock();
        while self.is_under_way(number) {
            self.ended.wait(&mut ending);
        }
    }

    /// Has `call` called at the end of that operation, on its thread, before it opens the gate; gives it back
    /// if that was already.
    pub fn call_at_end(
        &self,
        number: u64,
        call: Box<dyn FnOnce() + Send>,
    ) -> Option<Box<dyn FnOnce() + Send>> {
        let mut ending = self.ending.lock();
        if !self.is_under_way(number) {
            return Some(call);
        }
        ending.push(call);
        None
    }

    /// The exclusive sequence, if no exclusive operation is under way.
    pub fn shared_view(&self) -> Option<u64> {
        let sequence = self.exclusive_sequence.load(Ordering::Acquire);
        sequence.is_multiple_of(2).then_some(sequence)
    }

    /// Whether no exclusive operation has begun since [`SizeSequence::shared_view`] gave `view`. True means:
    /// what was read in between, with `Acquire` at least, has nothing that such an operation did.
    pub fn is_still(&self, view: u64) -> bool {
        fence(Ordering::Acquire);
        self.exclusive_sequence.load(Ordering::Relaxed) == view
    }

    /// What an optimistic read looks at before and after its copy.
    pub fn view(&self) -> ReadView {
        ReadView { exclusive_sequence: self.exclusive_sequence.load(Ordering::Acquire), size: self.size() }
    }

    /// The size as callers may see it: no step of an exclusive operation which is under way.
    pub fn settled_size(&self) -> u64 {
        loop {
            let sequence = self.exclusive_sequence.load(Ordering::Acquire);
            let size = if sequence % 2 == 1 { &self.settled } else { &self.size };
            let size = size.load(Ordering::Acquire);
            fence(Ordering::Acquire);
            if self.exclusive_sequence.load(Ordering::Relaxed) == sequence {
                return size;
            }
            spin_loop();
        }
    }
}

/// Keeps a file's exclusive sequence odd. Its maker holds the gate exclusively.
pub struct OddSequence<'a>(&'a SizeSequence);

impl<'a> OddSequence<'a> {
    /// Makes it odd.
    pub fn new(sequence: &'a SizeSequence) -> OddSequence<'a> {
        sequence.settled.store(sequence.size(), Ordering::Release);
        sequence.exclusive_sequence.fetch_add(1, Ordering::AcqRel);
        OddSequence(sequence)
    }
}

impl Drop for OddSequence<'_> {
    fn drop(&mut self) {
        let mut ending = self.0.ending.lock();
        self.0.exclusive_sequence.fetch_add(1, Ordering::AcqRel);
        let called = std::mem::take(&mut *ending);
        drop(ending);
        self.0.ended.notify_all();
        called.into_iter().for_each(|call| call());
    }
}
