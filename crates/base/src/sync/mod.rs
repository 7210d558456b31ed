//! Every lock, atomic and thread of the engine, switched by one build flag.
//!
//! | build | what stands behind the names |
//! | --- | --- |
//! | ordinary | `parking_lot`, `std::sync::atomic`, `std::thread` |
//! | `--cfg loom` | loom's, which explores every interleaving of a small model |
//! | `--cfg shuttle` | shuttle's, which runs large models under seeded schedules |
//! | feature `simulation` | `parking_lot` under a seeded scheduler, for whole volumes; see the crate `quire-simulation` |
//!
//! The interface is parking_lot's: `lock()` gives a guard, there is no poisoning, a condition variable takes
//! `&mut` the guard. [`ShardedRwLock`] is our own: shared entries of different threads touch different lines.
//!
//! Threads of a [`thread::Builder`] take no signals: those are the program's.
//!
//! Neighbours: everything above uses these names and no others for shared state.

#[cfg(any(loom, shuttle))]
mod model;
mod sharded;
#[cfg(not(any(feature = "simulation", loom, shuttle)))]
pub mod thread;

#[cfg(any(loom, shuttle))]
pub use model::*;
#[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
pub use quire_simulation::sync::*;
#[cfg(not(any(feature = "simulation", loom, shuttle)))]
pub use real::*;
pub use sharded::{ShardedRwLock, SharedGuard, WholeGuard};

/// Whether every lock and atomic asks the simulated scheduler first. Cargo gives all crates that are built in
/// one go the features of all of them: `cargo build -p quire-cli -p sim` makes a slow `quire`.
pub const SIMULATED: bool = cfg!(all(feature = "simulation", not(any(loom, shuttle))));

/// A monotonic clock.
#[cfg(any(not(feature = "simulation"), loom, shuttle))]
pub mod time {
    pub use std::time::{Duration, Instant};
}

#[cfg(any(not(feature = "simulation"), loom, shuttle))]
pub use std::sync::OnceLock;

/// Bytes, of so many, that a copy which races with others moves before it comes to a [`copy_point`]: all of
/// them, but under the simulated scheduler.
#[cfg(any(not(feature = "simulation"), loom, shuttle))]
#[inline(always)]
pub fn copy_piece(bytes: usize) -> usize {
    bytes
}

/// Between two pieces of a copy that races with others: lets another simulated thread run, if the seed says
/// so.
#[cfg(any(not(feature = "simulation"), loom, shuttle))]
#[inline(always)]
pub fn copy_point() {}

#[cfg(not(any(feature = "simulation", loom, shuttle)))]
mod real {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::hint::spin_loop;
    pub use std::sync::{Arc, Weak};

    /// Atomic types and fences.
    pub mod atomic {
        pub use std::sync::atomic::*;
    }
}
