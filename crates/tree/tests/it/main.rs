//! Tests of the tree, in one program.
//!
//! Under `--cfg loom` and `--cfg shuttle` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod common;
#[cfg(not(any(loom, shuttle)))]
mod compare;
#[cfg(not(any(loom, shuttle)))]
mod crash;
#[cfg(not(any(loom, shuttle)))]
mod damage;
#[cfg(not(any(loom, shuttle)))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod replace;
#[cfg(not(any(loom, shuttle)))]
mod room;
#[cfg(shuttle)]
mod shuttle_freeze;
#[cfg(shuttle)]
mod shuttle_shape;
#[cfg(not(any(loom, shuttle)))]
mod speed;
#[cfg(not(any(loom, shuttle)))]
mod threads;
