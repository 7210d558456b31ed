//! Snapshots: checkpoints that are kept.
//!
//! From the record of a snapshot's key on, what the checkpoint's trees name is not freed
//! ([`quire_tree::Tree::keep`]), and blocks of files that it has are shared
//! ([`crate::store::snapshot_table`]).
//!
//! | module | what |
//! | --- | --- |
//! | [`table`] | which there are, and what they need |
//! | [`taking`] | taking one |
//! | [`sweep`], [`deletion`] | deleting them |
//! | [`readers`] | who reads one |
//! | [`space`] | how much they take |
//! | [`volumes`] | all of it, as callers see it |
//!
//! Neighbours: [`crate::store::apply`] has the rules of single changes; [`crate::rollback`] goes back to one.

pub(crate) mod deletion;
pub(crate) mod readers;
pub(crate) mod space;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod taking;
pub(crate) mod volumes;
