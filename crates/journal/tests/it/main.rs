//! Tests of the journal, in one program.
//!
//! Under `--cfg loom` and `--cfg shuttle` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod append_and_replay;
#[cfg(not(any(loom, shuttle)))]
mod common;
#[cfg(not(any(loom, shuttle)))]
mod crash;
#[cfg(loom)]
mod loom_force;
#[cfg(not(any(loom, shuttle)))]
mod threads;
#[cfg(not(any(loom, shuttle)))]
mod torn_or_damaged;
