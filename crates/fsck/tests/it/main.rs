//! Tests of the check and the repair, in one program.

mod bounded;
mod clean;
mod common;
mod damage;
mod documentation;
mod extents;
mod generated;
mod heal;
mod kept;
mod long_ago;
mod lossy;
mod mixed;
mod moved_journal;
mod orphan_region;
mod repair;
mod salvage;
mod scale;
mod shared_nodes;
mod snapshots;
mod types;
