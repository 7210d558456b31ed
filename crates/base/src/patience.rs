//! Whether the calling thread may wait, for threads that must stay free for others (those that take a mount's
//! requests).
//!
//! [`at_once`] runs a piece of work on a thread that may not wait. Where the engine would wait for the
//! device, for a checkpoint, or for a lock that may be held meanwhile, it asks [`check`] first and fails with
//! the kind `WouldBlock`. It does so only where it can fail for other reasons, too (a node that cannot be
//! read, a full journal): so what fails has changed nothing, and the work can be done again by a thread that
//! may wait. Locks that are never held across waiting are taken as always.
//!
//! This is state of a thread, and not an argument, on purpose. Whether a thread may wait is a property of the
//! thread for as long as it takes requests, like its stack size. It decides nothing but where the thread
//! stops: with it and without it the same code does the same things in the same order. As an argument it
//! would go through every call from a front end's request down to the device and the tree, some hundred
//! signatures, and each of them could pass on the wrong answer. Here one place sets it ([`at_once`], which
//! restores it on every way out), [`may_wait`] and [`check`] read it, and what reads it says so: it returns
//! `WouldBlock`. The device asserts it where it waits, so a place that forgot to ask panics in debug builds.
//!
//! A thread of a pool that may wait for a program, and not for the device, says so ([`for_a_program`]):
//! programs take their time, and other work of the pool must not stand still meanwhile. The pool has told the
//! thread whom to tell ([`relieved_by`]).
//!
//! A guard of such a lock owns a [`Forbidden`]. In debug builds it counts itself in its thread, and [`check`]
//! and the device panic where the thread would wait. Release builds count nothing. Nor do model checkers,
//! which run many threads of a model on one of the system's.

use crate::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
    static RELIEF: RefCell<Option<Arc<dyn Relief>>> = const { RefCell::new(None) };
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    static FORBIDDEN: Cell<u32> = const { Cell::new(0) };
}

/// While one lives, its thread holds a lock that is never held across waiting: see the module's
/// documentation.
#[must_use]
#[derive(Debug)]
pub struct Forbidden(PhantomData<*const ()>);

/// The calling thread takes a lock that is never held across waiting.
#[inline(always)]
pub fn forbid() -> Forbidden {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    FORBIDDEN.set(FORBIDDEN.get() + 1);
    Forbidden(PhantomData)
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
impl Drop for Forbidden {
    fn drop(&mut self) {
        FORBIDDEN.set(FORBIDDEN.get() - 1);
    }
}

/// Panics in debug builds if the calling thread holds a lock that is never held across waiting, or was told
/// not to wait.
#[inline(always)]
pub fn assert_may_wait(what: &str) {
    debug_assert!(may_wait(), "this thread may not wait for {what}");
    assert_holds_nothing(what);
}

/// Panics in debug builds if the calling thread holds a lock that is never held across waiting.
#[inline(always)]
pub fn assert_holds_nothing(what: &str) {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    assert!(
        FORBIDDEN.get() == 0 || std::thread::panicking(),
        "this would wait for {what} under a lock that is never held across waiting"
    );
    let _ = what;
}

/// Whether the calling thread may wait.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Fails if the calling thread may not wait; `what` says for what it would.
pub fn check(what: &'static str) -> Result<()> {
    if !may_wait() {
        return Err(Error::new(ErrorKind::WouldBlock, format!("this waits for {what}")));
    }
    assert_holds_nothing(what);
    Ok(())
}

/// Hears of a thread that waits for a program.
pub trait Relief: Send + Sync {
    /// The calling thread begins to wait.
    fn begin(&self);
    /// It has ended.
    fn end(&self);
}

/// The calling thread tells `relief` of its waits for programs.
pub fn relieved_by(relief: Arc<dyn Relief>) {
    RELIEF.with_borrow_mut(|mine| *mine = Some(relief));
}

/// While it lives, its thread waits for a program.
#[must_use]
pub struct WaitForProgram(Option<Arc<dyn Relief>>);

/// The calling thread is about to wait for a program.
pub fn for_a_program() -> WaitForProgram {
    let relief = RELIEF.with_borrow(Clone::clone);
    relief.iter().for_each(|relief| relief.begin());
    WaitForProgram(relief)
}

impl Drop for WaitForProgram {
    fn drop(&mut self) {
        self.0.iter().for_each(|relief| relief.end());
    }
}

/// Runs `work`, which fails with `WouldBlock`, and then has done nothing, where it would have to wait.
pub fn at_once<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            MAY_WAIT.set(self.0);
        }
    }
    let _before = Before(MAY_WAIT.replace(false));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inside() {
        assert!(check("x").is_ok());
        let inner = at_once(|| check("a lock"));
        assert_eq!(inner.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(may_wait());
        assert!(std::panic::catch_unwind(|| at_once(|| -> Result<()> { panic!() })).is_err());
        assert!(may_wait());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn not_under_a_lock_that_is_never_held_across_waiting() {
        let held = forbid();
        assert!(std::panic::catch_unwind(|| check("x")).is_err());
        assert!(std::panic::catch_unwind(|| assert_may_wait("x")).is_err());
        assert!(at_once(|| check("x")).is_err(), "it fails, and has not waited");
        drop(held);
        assert_may_wait("x");
        assert!(check("x").is_ok());
    }
}
