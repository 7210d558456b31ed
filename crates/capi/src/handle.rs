//! Handles: what a pointer that C holds stands for.
//!
//! A handle is an `Arc` that C keeps one count of. A call borrows it; its closing function gives the count
//! back. Requests under way hold counts of their own, so what they need outlives the handle.
//!
//! Neighbours: every module that has a type of handle.

use quire::{Error, Result};
use std::sync::Arc;

/// Gives C a new handle.
pub(crate) fn give<T>(value: T) -> *mut T {
    Arc::into_raw(Arc::new(value)).cast_mut()
}

/// The value of a handle that C keeps.
///
/// # Safety
/// `handle` is NULL, or comes from [`give`] and has not been taken back; it is not while the borrow lasts.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| Error::invalid(format!("the {what} is NULL")))
}

/// A count of its own of a handle that C keeps.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share<T>(handle: *const T, what: &str) -> Result<Arc<T>> {
    if handle.is_null() {
        return Err(Error::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise: the pointer is that of an `Arc`, of which C holds a count.
    unsafe {
        Arc::increment_strong_count(handle);
        Ok(Arc::from_raw(handle))
    }
}

/// Takes C's count back; `None` for NULL.
///
/// # Safety
/// `handle` is NULL, or comes from [`give`] and has not been taken back. C does not use it again.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Arc<T>> {
    // SAFETY: the caller's promise.
    (!handle.is_null()).then(|| unsafe { Arc::from_raw(handle) })
}
