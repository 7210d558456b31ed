//! Tests of the devices, in one program.
//!
//! Under `--cfg loom` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod backends;
#[cfg(not(any(loom, shuttle)))]
mod device;
#[cfg(not(any(loom, shuttle)))]
mod host;
#[cfg(loom)]
mod loom_flush;
#[cfg(loom)]
mod loom_recorded;
#[cfg(not(any(loom, shuttle)))]
mod losing;
#[cfg(not(any(loom, shuttle)))]
mod nbd;
#[cfg(not(any(loom, shuttle)))]
mod reconnecting;
#[cfg(not(any(loom, shuttle)))]
mod simulated;
