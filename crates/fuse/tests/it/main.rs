//! Tests of mounts, in one program.

mod as_on_ext4;
mod callers;
mod groups;
mod kept;
mod leases;
mod mounted;
mod promises;
mod properties;
mod semantics;
mod snapshots;
mod writeback;
