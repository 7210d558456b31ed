//! Every lock, atomic and thread of the engine, switched by one build flag.
//!
//! | build | what stands behind the names |
//! | --- | --- |
//! | ordinary | `parking_lot`, `std::sync::atomic`, `std::thread` |
//! | `--cfg loom` | loom's, which explores every interleaving of a small model |
//! | `--cfg shuttle` | shuttle's, which runs large models under seeded schedules |
//!
//! The interface is parking_lot's: `lock()` gives a guard, there is no poisoning, a condition variable takes
//! `&mut` the guard. [`ShardedRwLock`] is our own: shared entries of different threads touch different lines.
//!
//! Neighbours: everything above uses these names and no others for shared state.

#[cfg(any(loom, shuttle))]
mod model;
mod sharded;

#[cfg(any(loom, shuttle))]
pub use model::*;
#[cfg(not(any(loom, shuttle)))]
pub use real::*;
pub use sharded::{ShardedRwLock, SharedGuard, WholeGuard};

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub use parking_lot::{
        Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    };
    pub use std::hint::spin_loop;
    pub use std::sync::{Arc, Weak};
    pub use std::thread;

    /// Atomic types and fences.
    pub mod atomic {
        pub use std::sync::atomic::*;
    }
}
