//! Measurements: the same driver code, threads, seeds and buffers against Quire and against what it is
//! compared with.
//!
//! ```text
//!   arguments ──> run: for each engine of the list, for each round
//!                  │     image      one file, written through once, formatted anew for each engine
//!                  │     engine     quire, mount, xfs, ext4, btrfs, dir, memcpy, raw, fuse-null
//!                  │     workload   mixed, dirty, fsync, append, orphan, creat, tail, scale
//!                  └──> report     table, JSON, plot
//! ```
//!
//! * [`arguments`]: the command line of `quire bench` and of `quire probe`; [`size`] for sizes.
//! * [`run`](mod@run): one whole run; [`outcome`] what may come of a part of it.
//! * [`target`]: what a driver needs of an engine. Everything under [`engine`] gives one.
//! * [`drive`]: threads that start together and stop together; [`sample`]: what they measured.
//! * [`image`], [`mod@warm`]: the same disk blocks and the same memory for all engines.
//! * [`interrupt`], [`progress`]: Ctrl-C, and what is seen meanwhile.
//! * [`probe`]: races the file system under a directory and says what it really promises.
//! * [`array`](mod@array): bytes that threads copy out of and into at once, for `memcpy` and for the lab.
//!
//! Invariants: no driver knows which engine it drives. Whatever an engine makes (image, loop device, mount,
//! process) is held by a guard that takes it away on success, error, panic and Ctrl-C alike.
//!
//! Neighbours: the program `quire` calls [`run::bench`] and [`probe::probe`]; nothing in the product depends
//! on this crate otherwise. The crate `lab`, experiments for developers of Quire, uses its driver and its
//! reports.

pub mod arguments;
pub mod array;
pub mod drive;
pub mod engine;
pub mod image;
pub mod interrupt;
pub mod outcome;
pub mod probe;
pub mod progress;
pub mod report;
pub mod run;
pub mod sample;
pub mod size;
pub mod target;
pub mod warm;
pub mod workload;
