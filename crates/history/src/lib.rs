//! The history checker: threads read, write and reshape one file at the same time, every cell they write says
//! who wrote it, and afterwards it is decided whether one order of the operations explains every read: each
//! operation as a whole, whatever its length, the size included, and none before an operation that was over
//! when it began.
//!
//! ```text
//! generate ── plan ──┬── simulated   (threads scheduled from a seed)  ──┐
//!                    └── threads     (the system's)                   ──┤ perform: history of events
//!                                                                       │
//!            report ──┬── exact  (every order there may be)  ───────────┤
//!                     └── graph  (polynomial, for long histories)  ─────┘
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`cell`] | what is written, so that a read tells who wrote it |
//! | [`operation`] | operations, answers, events |
//! | [`content`] | the reference file |
//! | [`exact`] | the search for an order |
//! | [`graph`] | what must have come before what |
//! | [`report`] | a contradiction for people |
//! | [`generate`] | what the threads do, from a seed |
//! | [`perform`] | doing it |
//! | [`simulated`] | under the seeded scheduler |
//! | [`threads`] | with threads of the system |
//! | [`campaign`] | many seeds |
//!
//! Neighbours: nothing depends on this crate. `sim` does the same for crashes;
//! [`quire_base::simulation::mistakes`] has the mistakes that the checker must find.

pub mod campaign;
pub mod cell;
pub mod content;
pub mod exact;
pub mod generate;
pub mod graph;
pub mod operation;
pub mod perform;
pub mod report;
pub mod simulated;
pub mod threads;
