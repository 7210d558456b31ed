//! What stands behind the names of `quire_base::sync` in a simulation.
//!
//! Neighbours: [`crate::scheduler`] decides who goes on.

mod atomics;
mod locks;
mod times;

pub use crate::thread::{self, spin_loop};
pub use atomics::{copy_piece, copy_point};
pub use locks::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::{Arc, Weak};

/// A monotonic clock, virtual on simulated threads.
pub mod time {
    pub use super::times::{Duration, Instant};
}

/// Atomic types and fences.
pub mod atomic {
    pub use super::atomics::*;
}
