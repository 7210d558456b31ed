//! Volumes on the host: image files and block devices, opened, locked, measured, and read and written.
//!
//! * [`open`]: [`open_image`] and [`create_image`], which pick a backend.
//! * `target`: the open descriptor with its lock, its size, its flush and its discard.
//! * `transfer`: progress of one vectored transfer through short counts and interruptions.
//! * [`mod@file`]: ordinary I/O through the host's page cache: the fallback, and read-only volumes.
//! * [`uring`]: direct I/O, asynchronous through an io_uring: the default.
//! * `owner`: what stands for a lock where nothing locks: whether the owner that a mark names lives.
//! * [`nbd`]: exports of NBD servers, which have addresses where others have paths.
//!
//! Invariants: while a backend is open, its descriptor holds the volume's lock (exclusive to write, shared to
//! read only), so one process at a time changes a volume. An export has no lock, but the mark of its owner.
//!
//! Neighbours: the only part of the crate that talks to the operating system; absent under model checkers.

pub mod file;
mod mode;
pub mod nbd;
pub mod open;
mod owner;
mod target;
mod transfer;
pub mod uring;

pub use file::FileBackend;
pub use mode::OpenMode;
pub use nbd::NbdAddress;
pub use open::{create_image, open_image};
pub use uring::UringBackend;
