//! The simulator: seeded runs of the whole engine on a simulated device, and the proof that every crash
//! leaves what the durability contract allows.
//!
//! ```text
//! generate ── run ── (volume on a SimulatedBackend) ── history of operations and of device events
//!                                                           │
//!     model ── configurations ── oracle ── data ── judges ──┤ levels: crash images, recovered, some worked on
//!                                                           │
//!                                                 coverage, shrink
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`model`], [`contents`] | the reference file system |
//! | [`operation`] | the operations, their outcomes and records |
//! | [`generate`] | what a run does, from a seed |
//! | [`run`] | doing it |
//! | [`configurations`] | which orders explain the answers |
//! | [`oracle`], [`data`] | the contract |
//! | [`reads`] | what was read beside others |
//! | [`damage`] | metadata with one bad copy |
//! | [`image`] | recovering an image and looking at it |
//! | [`levels`] | whole runs, several crashes deep |
//! | [`coverage`] | what was reached |
//! | [`campaign`] | many runs |
//! | [`shrink`] | making a failing run small |
//! | [`live`] | what is seen is what a crash leaves, after every operation |
//! | [`exhaustive`] | every crash of a short workload |
//!
//! Invariants: the settings of a run decide everything in it; two runs of the same settings give the same
//! history.
//!
//! Neighbours: nothing depends on this crate. `quire_device::simulated` has the device.

pub mod campaign;
pub mod configurations;
pub mod contents;
pub mod coverage;
pub mod damage;
pub mod data;
pub mod exhaustive;
pub mod generate;
pub mod image;
pub mod levels;
pub mod live;
pub mod model;
pub mod operation;
pub mod oracle;
pub mod reads;
pub mod run;
pub mod shrink;
pub mod units;
