//! The journal: one stream of logical redo records in a ring of blocks, made durable by group commit.
//!
//! A transaction *reserves* room, *appends* its record, which gives it its [`Seq`](quire_base::Seq), and
//! a thread that needs it durable *forces* that `Seq`.
//!
//! ```text
//!   stream position   tail          durable        head        claimed            tail + ring
//!   ------------------|=============|--------------|...........|..................|
//!                      needed by a   in the buffer, promised to reservations       free
//!                      superblock    not yet written
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`journal`] | [`Journal`], the interface; reservations |
//! | [`stream`] | the position word, the count of promised room, the buffer and the marks of what is filled |
//! | [`commit`] | group commit: one leader writes for all who wait |
//! | [`failure`] | the first error, which ends every change |
//! | [`medium`] | what a journal writes to: a device, or a model of one |
//! | [`replay`](mod@replay) | reading the stream back; torn or damaged |
//! | [`usage`] | fill levels and counters |
//! | [`fuzz`] | a ring image from arbitrary bytes, replayed |
//!
//! Invariants:
//! * No position is in the ring twice: `claimed <= tail + ring`. No buffer slot is refilled before what it
//!   held is durable: `claimed <= durable + buffer`.
//! * `append` neither waits nor fails: all it needs was reserved, the padding that a force may add included.
//! * A block is written once. A force closes the open block first, with padding.
//! * Up to [`commit::FLIGHTS`] journal writes are in flight, over neighbouring ranges. One counts as durable
//!   only when all before it do, in whatever order they end, so every `Seq` below a durable one is durable.
//! * The write that carries a record is preceded by a device flush that covers the mark which the record was
//!   appended after: all that had completed on the device then, unless the appender said that it needs less.
//! * After the first failure nothing becomes durable any more, and everyone who waits or asks gets that
//!   failure.
//!
//! Neighbours: `format::journal` for the bytes, `device` below; the volume above, which checkpoints and tells
//! the journal what the superblocks no longer need.

pub mod commit;
pub mod failure;
pub mod fuzz;
pub mod journal;
pub mod medium;
pub mod replay;
pub mod stream;
pub mod usage;

pub use journal::{Journal, JournalConfig, JournalReservation, Short};
pub use medium::Medium;
pub use replay::{Readable, ReplayConfig, ReplayEnd, replay, replay_readable};
pub use usage::{JournalCounts, JournalUsage};
