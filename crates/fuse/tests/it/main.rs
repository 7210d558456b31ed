//! Tests of mounts, in one program.

mod callers;
mod groups;
mod kept;
mod leases;
mod properties;
mod semantics;
mod snapshots;
