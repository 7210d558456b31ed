//! Data space: who gets which block, and when a freed block may be given out again.
//!
//! ```text
//!  reserve ──► credits (how many)          allocate ──► group bitmap (which)
//!                 ▲                                        │
//!                 │ durable(seq)                           ▼ extent record appended and applied
//!  freed(seq) ──► deferred, per group  ◄──────────── blocks in use
//! ```
//!
//! The volume is cut into *allocation groups* of 64 regions (1 GiB). A group's bitmap of busy blocks comes
//! from the tree's free-space regions when the group is first needed, and stays. The bitmap runs ahead of the
//! tree: a block is busy from [`Allocator::allocate`] on, before any record says so, and until its freeing is
//! durable, when the tree has long called it free. Nothing here is ever written: the tree's regions follow
//! from extent records.
//!
//! | module | holds |
//! | --- | --- |
//! | [`allocator`] | the [`Allocator`]: configuration, loading, search across groups |
//! | [`reservation`] | promises of space without blocks: delayed allocation |
//! | [`account`] | promises that outlive the call that got them |
//! | `deferred` | frees waiting for the journal |
//! | [`discarding`] | free ranges waiting for their discard |
//! | `credits` | the count of unpromised free blocks, sharded |
//! | `groups` | the table of groups |
//! | `group`, `region` | the bitmaps and the search within a group |
//! | [`stats`] | numbers and dumps for people |
//!
//! Invariants:
//! * **Credit.** Free bits in all groups, loaded or not, are at least unpromised credits + reservations.
//!   Credits are taken before bits are set and returned after bits are cleared, so the holder of a
//!   reservation finds blocks.
//! * **Deferral (J2).** A freed block stays busy until its transaction is durable. Only then it is discarded,
//!   if it is free, and it is busy while its discard is under way.
//! * **Growth.** Blocks behind the end of the data space are busy. The end moves before they are free, and
//!   they are free before their credits are given out.
//! * **Once.** A block is allocated only if free, and freed only if busy and not being freed already. The
//!   contrary is an error, and such a block is never given out.
//! * **Leaf locks.** Under a group's lock nothing else is locked, and no I/O is done.
//!
//! Neighbours: `format` gives the regions; `fs` provides them from its tree ([`RegionSource`]), reserves and
//! allocates, and reports frees at apply and the durable position after each force; `device` discards
//! ([`Discard`]).

pub mod account;
pub mod allocator;
mod credits;
mod deferred;
pub mod discarding;
mod group;
mod groups;
mod region;
pub mod reservation;
pub mod stats;

pub use account::SpaceAccount;
pub use allocator::{AllocConfig, Allocator, Discard, Funding, RegionSource};
pub use quire_format::extent::Run;
pub use reservation::SpaceReservation;
pub use stats::AllocStats;
