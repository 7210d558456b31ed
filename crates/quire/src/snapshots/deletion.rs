//! The deletion of a snapshot that is under way ([`super::sweep`]).

use super::table::Space;
use quire_format::snapshot::Snapshot;

/// The deletion that is under way.
pub(crate) struct Sweep {
    pub(super) number: u32,
    pub(super) snapshot: Snapshot,
    /// `None`: it cannot be read.
    pub(super) own: Option<Space>,
    /// Those that tell what others need: the snapshot before it, and the one behind it, or all behind it, or
    /// all others. `None`: one that cannot be read.
    pub(super) around: Vec<Option<Space>>,
    /// The epoch in which these were its neighbours.
    pub(super) epoch: u32,
    /// Regions before this one are done.
    pub(super) next: u64,
    /// Flushes of the device when the last step ended.
    pub(super) flushes: u64,
}
