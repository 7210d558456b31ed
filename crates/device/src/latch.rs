//! Keeps the first error of journal, tree or flush for good.
//!
//! After one of these fails, what is on the medium is no longer known, so nothing may build on it: everybody
//! who asks later gets that first error, whatever happened since.

use quire_base::Error;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicBool, Ordering};

/// Empty until set; then never changes.
pub(crate) struct ErrorLatch {
    /// True once `error` is there: the look that costs nothing.
    is_set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl ErrorLatch {
    pub(crate) fn new() -> ErrorLatch {
        ErrorLatch { is_set: AtomicBool::new(false), error: Mutex::new(None) }
    }

    /// Keeps `error` if it is the first; returns whether it was.
    pub(crate) fn set(&self, error: &Error) -> bool {
        let mut held = self.error.lock();
        if held.is_some() {
            return false;
        }
        *held = Some(error.clone());
        self.is_set.store(true, Ordering::Release);
        true
    }

    /// The first error, if there was one.
    pub(crate) fn get(&self) -> Option<Error> {
        if !self.is_set.load(Ordering::Acquire) {
            return None;
        }
        self.error.lock().clone()
    }
}
