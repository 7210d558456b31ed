//! Tests of mounts, in one program.

mod callers;
mod groups;
mod properties;
mod semantics;
mod snapshots;
