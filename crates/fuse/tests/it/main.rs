//! Tests of mounts, in one program.

mod callers;
mod semantics;
