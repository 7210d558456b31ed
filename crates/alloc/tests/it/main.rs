//! Tests of the allocator, in one program.
//!
//! Under `--cfg loom` and `--cfg shuttle` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod behaviour;
mod common;
#[cfg(loom)]
mod loom_alloc;
#[cfg(not(any(loom, shuttle)))]
mod model;
#[cfg(shuttle)]
mod shuttle_alloc;
#[cfg(not(any(loom, shuttle)))]
mod stress;
