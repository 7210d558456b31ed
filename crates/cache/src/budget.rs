//! The byte limit: what is charged against it, and rooms, which are bytes charged before they are used.
//!
//! Invariant: `used` never exceeds `limit` by charging (a limit that is lowered is reached by reclaim). Every
//! folio's data, header and index entry is charged before it is made, from a [`Room`] that the operation
//! filled before it locked anything. Index nodes, which nobody can wait for, are charged without asking; a
//! sliver of the limit is kept for them. Memory that is allocated once and recycled for ever (headers, nodes,
//! the ghosts' table) is *fixed*: no limit may be so low that it leaves too little beside it.
//!
//! Neighbours: [`crate::reclaim`] makes room, [`crate::mapping`] uses it.

use quire_base::sync::atomic::{AtomicU64, Ordering};

/// The part of the limit, and the most bytes, that are kept for index nodes.
const SLIVER: u64 = 32;
const SLIVER_MAX: u64 = 1 << 20;

/// Bytes used against bytes allowed.
pub struct Budget {
    used: AtomicU64,
    limit: AtomicU64,
    fixed: AtomicU64,
}

impl Budget {
    /// Nothing used.
    pub fn new(limit: u64) -> Budget {
        Budget { used: AtomicU64::new(0), limit: AtomicU64::new(limit), fixed: AtomicU64::new(0) }
    }

    /// Bytes charged.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes allowed.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Charges `bytes` whether they fit or not: what comes next has to wait for it.
    pub fn charge_over(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes charged that are never given back.
    pub fn fixed(&self) -> u64 {
        self.fixed.load(Ordering::Relaxed)
    }

    /// As [`Budget::charge_over`], for ever.
    pub fn charge_fixed(&self, bytes: u64) {
        self.charge_over(bytes);
        self.fix(bytes);
    }

    /// Notes that `bytes`, charged already, are for ever.
    pub fn fix(&self, bytes: u64) {
        self.fixed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Allows another number of bytes.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Charges `bytes` if they fit.
    pub fn try_charge(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let limit = limit - (limit / SLIVER).min(SLIVER_MAX);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    /// Gives `bytes` back.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes);
    }
}

/// Bytes charged and not yet used; what is left goes back when it is dropped.
pub struct Room<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl<'a> Room<'a> {
    /// No bytes.
    pub(crate) fn empty(budget: &'a Budget) -> Room<'a> {
        Room { budget, bytes: 0 }
    }

    /// Bytes left.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `bytes` that the caller has charged.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Uses `bytes`, charging what is lacking if it fits at once.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        if self.bytes < bytes {
            let lacking = bytes - self.bytes;
            if !self.budget.try_charge(lacking) {
                return false;
            }
            self.bytes += lacking;
        }
        self.bytes -= bytes;
        true
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.uncharge(self.bytes);
        }
    }
}
