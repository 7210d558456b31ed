//! Quire for C and C++: the library `libquire` and its header `quire.h`.
//!
//! The functions here are what C calls; Rust programs use the crate `quire-fs`. `include/quire.h` is made
//! from these sources by cbindgen, and a test keeps the two together. `scripts/c-library` builds and installs
//! the shared library, the archive, the header and the pkg-config file; `docs/c.md` is the manual.
//!
//! # The border
//!
//! * A handle is a pointer to a type that C does not see. It owns what is behind it until its closing
//!   function has it back ([`handle`]).
//! * A function that fails gives the negative error number of the failure's kind, and leaves a text for its
//!   thread ([`error`]).
//! * No panic leaves: each function runs inside [`error::status`] or [`error::count`], which turn a panic
//!   into an error.
//! * Structures that C fills begin with their size, so that later versions can append fields; structures that
//!   the library fills have spare words ([`arguments`]).
//! * What C hands over as memory is read or written as bytes, for the length that it gives, and not kept,
//!   except by requests of a queue, which keep it until they have been reaped ([`queue`]).
//!
//! | module | what C finds there |
//! | --- | --- |
//! | `volume` | making, opening and closing volumes; space; metrics |
//! | `file` | open files: reads, writes, durability, allocation |
//! | `group` | groups of writes that are there as a whole or not at all |
//! | `lease` | leases of the layout of files |
//! | `names` | directories, links, renames |
//! | `attributes` | `stat`, modes, owners, times, extended attributes |
//! | `properties` | what is asked of a file besides: untorn over a crash, not kept in the cache |
//! | `snapshots` | taking, listing, reading and deleting snapshots |
//! | `queue` | requests that hold no thread, and their completions |
//!
//! Neighbours: `quire-fs` below, through its public interface alone; programs in C and C++ above.
#![deny(missing_docs)]

pub mod completions;

#[cfg(not(any(loom, shuttle)))]
mod arguments;
#[cfg(not(any(loom, shuttle)))]
pub mod attributes;
#[cfg(not(any(loom, shuttle)))]
pub mod error;
#[cfg(not(any(loom, shuttle)))]
pub mod file;
#[cfg(not(any(loom, shuttle)))]
pub mod group;
#[cfg(not(any(loom, shuttle)))]
mod handle;
#[cfg(not(any(loom, shuttle)))]
pub mod lease;
#[cfg(not(any(loom, shuttle)))]
pub mod names;
#[cfg(not(any(loom, shuttle)))]
pub mod properties;
#[cfg(not(any(loom, shuttle)))]
pub mod queue;
#[cfg(not(any(loom, shuttle)))]
pub mod snapshots;
#[cfg(not(any(loom, shuttle)))]
pub mod volume;
#[cfg(not(any(loom, shuttle)))]
pub mod xattr;
