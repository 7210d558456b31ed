//! Tests of the library for C, in one program.
//!
//! Under `--cfg loom` only the model is in it.

#[cfg(not(any(loom, shuttle)))]
mod examples;
#[cfg(not(any(loom, shuttle)))]
mod fio;
#[cfg(not(any(loom, shuttle)))]
mod fork;
#[cfg(not(any(loom, shuttle)))]
mod header;
#[cfg(loom)]
mod loom_completions;
#[cfg(not(any(loom, shuttle)))]
mod rocksdb;
#[cfg(not(any(loom, shuttle)))]
mod support;
#[cfg(not(any(loom, shuttle)))]
mod vectored;
