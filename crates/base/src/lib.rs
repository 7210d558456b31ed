//! What every other crate of Quire stands on.
//!
//! * [`units`]: the numbers that must not be mixed up (`BlockNo`, `InodeNo`, `Seq`).
//! * [`size`]: sizes in bytes as people write them.
//! * [`error`]: the one error type; errno values exist only in the front ends.
//! * [`sync`]: every lock, atomic and thread goes through here, so that one build flag
//!   (`--cfg loom`, `--cfg shuttle`) puts the engine under a model checker.
//! * [`clock`], [`random`]: time and chance as handles, so that a run can be replayed from a seed.
//! * [`admission`]: operations counted, kept back, refused.
//! * [`memory`]: how much of it this process may use.
//! * [`metrics`]: counters that do not share cache lines.
//! * `simulation` (feature of that name): the crate `quire-simulation`, threads under a scheduler that a seed
//!   decides.
//! * [`process`]: what a child that was forked off may not use.
//! * [`shard`]: the shard a thread prefers, the common answer to "which of the copies is mine".
//!
//! Neighbours: nothing below but `quire-simulation`, in test builds; everything above depends on this crate.

pub mod admission;
pub mod clock;
pub mod error;
pub mod memory;
pub mod metrics;
pub mod patience;
pub mod process;
pub mod random;
pub mod shard;
pub mod size;
pub mod sync;
pub mod units;

pub use clock::{Clock, Timestamp, Uptime};
pub use error::{Context, Error, ErrorKind, Result};
#[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
pub use quire_simulation as simulation;
pub use units::{BLOCK_SHIFT, BLOCK_SIZE, BlockNo, InodeNo, Seq};
