//! Handles: what a pointer that C holds stands for.
//!
//! A handle is an `Arc` that C keeps one count of. A call borrows it; its closing function gives the count
//! back. Requests under way hold counts of their own, so what they need outlives the handle.
//!
//! Every handle belongs to the process that made it ([`OfProcess`]). A child that was forked off is refused,
//! whatever it asks for, and ends nothing: not even by accident, as when C++ closes its handles.
//!
//! Neighbours: every module that has a type of handle.

use quire::{Error, Result};
use quire_base::process::OfProcess;
use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

/// A count of a handle, in the process that made the handle.
#[derive(Debug)]
pub(crate) struct Shared<T>(Arc<OfProcess<T>>);

impl<T> Shared<T> {
    /// The value, if this is the last count.
    pub(crate) fn into_inner(self) -> Option<T> {
        Arc::into_inner(self.0).and_then(OfProcess::into_inner)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// A count that only keeps the value.
    pub(crate) fn kept(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.0.get() {
            Ok(value) => value,
            // The thread that has the count stayed in the process that made the handle.
            Err(_) => unreachable!("a count of a handle in another process"),
        }
    }
}

/// Gives C a new handle.
pub(crate) fn give<T>(value: T) -> *mut T {
    // The value lies where the whole lies.
    Arc::into_raw(Arc::new(OfProcess::new(value))).cast_mut().cast()
}

fn null(what: &str) -> Error {
    Error::invalid(format!("the {what} is NULL"))
}

/// The value of a handle that C keeps.
///
/// # Safety
/// `handle` is NULL, or comes from [`give`] and has not been taken back; it is not while the borrow lasts.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.cast::<OfProcess<T>>().as_ref() }.ok_or_else(|| null(what))?.get()
}

/// A count of its own of a handle that C keeps.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share<T>(handle: *const T, what: &str) -> Result<Shared<T>> {
    // SAFETY: the caller's promise.
    unsafe { borrow(handle, what) }?;
    let handle = handle.cast::<OfProcess<T>>();
    // SAFETY: the caller's promise: the pointer is that of an `Arc`, of which C holds a count.
    unsafe {
        Arc::increment_strong_count(handle);
        Ok(Shared(Arc::from_raw(handle)))
    }
}

/// Takes C's count back; `None` for NULL. In a child that was forked off it takes nothing, and says so.
///
/// # Safety
/// `handle` is NULL, or comes from [`give`] and has not been taken back. C does not use it again.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Result<Option<Shared<T>>> {
    let handle = handle.cast_const().cast::<OfProcess<T>>();
    // SAFETY: the caller's promise.
    let Some(of_process) = (unsafe { handle.as_ref() }) else { return Ok(None) };
    of_process.get()?;
    // SAFETY: the caller's promise.
    Ok(Some(Shared(unsafe { Arc::from_raw(handle) })))
}
