//! Tests of the measurements, in one program.

mod probe;
mod workloads;
