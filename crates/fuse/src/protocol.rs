//! The language that the kernel's FUSE client speaks (`linux/fuse.h`, version 7), free of any transport.
//!
//! ```text
//!   request                                       reply
//!   InHeader  arguments  names or data            OutHeader  body
//!   \_ /dev/fuse: one message _________/          \_ one message, or ____/
//!   \_ ring: three buffers, see [`request::Message`]    header and payload buffers
//! ```
//!
//! * [`abi`]: the structures and numbers, as the kernel lays them out.
//! * [`request`]: bytes into a [`request::Request`] that borrows from them; every length is checked.
//! * [`reply`]: values into the bytes of a reply's body.
//! * [`convert`]: the engine's values in the structures of [`abi`], and back.
//! * [`negotiate`]: what is used of what the kernel offers, and its limits.
//!
//! Invariants: nothing here trusts a byte that it reads, allocates by a length that it reads, or panics;
//! names that come out hold no zero byte and are not empty. Neighbours: [`crate::transport`] moves the
//! bytes, [`crate::server`] gives them meaning.

pub mod abi;
pub mod convert;
pub mod negotiate;
pub mod reply;
pub mod request;
