//! Real databases on a Quire mount whose device loses its power, again and again.
//!
//! ```text
//!   campaign ── machine ──(pipe)── serve ── quire_fuse::Session ── quire::Volume ── backend ── volume.img
//!      │                                                                              │
//!      └── sqlite, postgres, mariadb: on the mount, ledgers on the host             cache
//! ```
//!
//! * [`cache`], [`backend`]: a device with a volatile write cache over an image file, and its cut.
//! * [`serve`]: the process that serves the volume; [`machine`]: that process, its mount, its image, from
//!   outside.
//! * [`campaign`]: rounds of work, cut, fsck, recovery, check; [`failure`]: why one stopped.
//! * [`sqlite`], [`postgres`], [`mariadb`]: what works and what is checked; [`pages`]: what keeps pages
//!   whole;
//!   [`processes`]: servers and their children.
//!
//! The question asked after each cut: is every transaction there whose commit returned while the power was
//! on, is at most one more of each client there, and does the program's own checker find nothing wrong?
//!
//! Neighbours: nothing in the product depends on this crate. `sim` asks the same of the engine alone,
//! exhaustively and repeatably; here kernel, FUSE and the databases' own habits take part, and only the
//! seed's share of a run repeats.

pub mod backend;
pub mod cache;
pub mod campaign;
pub mod failure;
pub mod ledger;
pub mod machine;
pub mod mariadb;
pub mod pages;
pub mod postgres;
pub mod processes;
pub mod serve;
pub mod sqlite;
