//! Tests of mounts, in one program.

mod callers;
mod properties;
mod semantics;
