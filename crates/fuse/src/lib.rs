//! Quire on a mount point: the kernel's FUSE requests answered by a [`quire::Volume`].
//!
//! ```text
//!   kernel  <->  transport (fuser_server: /dev/fuse, threads)  ->  operations  ->  quire::Volume
//!                      |                                              |
//!                      +--> background: threads for what may wait     +--> inode and file tables
//! ```
//!
//! * [`operations`]: what each request means, free of any transport's types: another transport
//!   stands on the same functions.
//! * [`errno`]: the only map from error kinds to error numbers.
//! * [`background`]: keeps the threads that receive requests from being held by requests that wait.
//! * [`mount`]: attaching to and detaching from a mount point, as root without any helper and as a
//!   user through `fusermount3`.
//! * [`session`]: the life of a mount: negotiation, serving, signals, an ordered stop.
//! * [`null`]: a bare server that answers from memory, the upper bound for what a mount can do.
//!
//! What the `fuser` crate (0.18) cannot carry, and the mount therefore does not have: `O_TMPFILE`
//! (programs get `EOPNOTSUPP` and fall back to a named file), birth times in `statx`, `syncfs`
//! (the kernel does not send it to ordinary FUSE servers; the commit interval bounds what `sync` alone
//! leaves in memory, and the ioctl [`operations::control::SYNC`] makes everything durable), interrupts.

pub mod background;
pub mod errno;
mod fuser_server;
pub mod mount;
pub mod null;
pub mod operations;
pub mod session;
pub mod signals;

pub use mount::{MountEntry, MountFlags, mounted_at};
pub use operations::CacheMode;
pub use session::{ServeOptions, Session};
