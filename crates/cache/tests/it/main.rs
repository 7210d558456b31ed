//! Tests of the cache, in one program.
//!
//! Under `--cfg loom` and `--cfg shuttle` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod behaviour;
#[cfg(not(loom))]
mod common;
#[cfg(loom)]
mod loom_park;
#[cfg(loom)]
mod loom_segment;
#[cfg(loom)]
mod loom_size;
#[cfg(not(any(loom, shuttle)))]
mod scan;
#[cfg(shuttle)]
mod shuttle_journaled;
#[cfg(shuttle)]
mod shuttle_mapping;
#[cfg(shuttle)]
mod shuttle_stop;
#[cfg(not(any(loom, shuttle)))]
mod state_machine;
#[cfg(not(any(loom, shuttle)))]
mod stopped_runs;
#[cfg(not(any(loom, shuttle)))]
mod untorn;
#[cfg(not(any(loom, shuttle)))]
mod waits_for_runs;
