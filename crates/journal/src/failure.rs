//! The first failure of a journal. It sticks: nothing clears it, and no later one replaces it.
//!
//! Neighbours: everything in this crate that waits looks here before and after.

use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::{Error, Result};

/// Holds the first error, once there is one.
pub struct Failure {
    failed: AtomicBool,
    first: Mutex<Option<Error>>,
}

impl Default for Failure {
    fn default() -> Failure {
        Failure::new()
    }
}

impl Failure {
    /// No failure.
    pub fn new() -> Failure {
        Failure { failed: AtomicBool::new(false), first: Mutex::new(None) }
    }

    /// Records `error` unless another came first; true if it is the first.
    pub fn set(&self, error: Error) -> bool {
        let mut first = self.first.lock();
        if first.is_some() {
            return false;
        }
        *first = Some(error);
        self.failed.store(true, Ordering::Release);
        true
    }

    /// Whether something failed; one load.
    pub fn is_set(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first error.
    pub fn get(&self) -> Option<Error> {
        if self.is_set() { self.first.lock().clone() } else { None }
    }

    /// The first error as an error.
    pub fn check(&self) -> Result<()> {
        self.get().map_or(Ok(()), Err)
    }
}
