//! Whether the calling thread may wait, for threads that must stay free for others (those that take a mount's
//! requests).
//!
//! [`at_once`] runs a piece of work on a thread that may not wait. Where the engine would wait for the
//! device, for a checkpoint, or for a lock that may be held meanwhile, it asks [`check`] first and fails with
//! the kind `WouldBlock`. It does so only where it can fail for other reasons, too (a node that cannot be
//! read, a full journal): so what fails has changed nothing, and the work can be done again by a thread that
//! may wait. Locks that are never held across waiting are taken as always.

use crate::{Error, ErrorKind, Result};
use std::cell::Cell;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Whether the calling thread may wait.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Fails if the calling thread may not wait; `what` says for what it would.
pub fn check(what: &'static str) -> Result<()> {
    if may_wait() { Ok(()) } else { Err(Error::new(ErrorKind::WouldBlock, format!("this waits for {what}"))) }
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
}
