//! Quire on a mount point: the kernel's FUSE requests answered by a [`quire::Volume`].
//!
//! ```text
//!   kernel <-> transport  <->  server: kinds of requests, replies   ->  operations  ->  quire::Volume
//!               |  \            |    \                                  |
//!               |   protocol: bytes <-> requests, replies             +--> inode and file tables
//!               |                |
//!               |                +--> background: threads for what may wait
//!               +--> /dev/fuse
//! ```
//!
//! * [`operations`]: what each request means, free of any transport's types.
//! * [`protocol`]: the kernel's structures; decoding that trusts nothing, encoding.
//! * [`transport`]: moves requests and replies; hands over a request with its memory and the duty to reply.
//! * `server`: puts the three together for a volume.
//! * [`errno`]: error numbers of the protocol itself.
//! * [`background`]: keeps the threads that receive requests from being held by requests that wait.
//! * [`mount`]: attaching to and detaching from a mount point, as root without any helper and as a
//!   user through `fusermount3`.
//! * `connection`, [`session`]: the life of a mount: negotiation, serving, signals, an ordered stop.
//! * [`null`]: a bare server that answers from memory, the upper bound for what a mount can do.
//!
//! The kernel sends `syncfs` to the server only where the mount's source is a block device, which [`mount`]
//! sees to where it can. Elsewhere the commit interval bounds what `sync` alone leaves in memory, and the
//! ioctl [`operations::ioctl::SYNC`] makes everything durable.

pub mod background;
mod connection;
pub mod errno;
pub mod lease;
pub mod mount;
pub mod null;
pub mod operations;
pub mod protocol;
mod server;
pub mod session;
pub mod signals;
pub mod transport;

pub use mount::{MountEntry, MountFlags, mounted_at};
pub use operations::CacheMode;
pub use operations::snapshots::ShowSnapshots;
pub use server::meters::{BusyFile, Meters, Served, Work, meters};
pub use session::{ServeOptions, Session};
pub use transport::Choice as TransportChoice;
