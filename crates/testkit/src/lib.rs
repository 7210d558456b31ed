//! What the tests of several crates share.
//!
//! * [`RingSwitch`]: the kernel's switch for FUSE over io_uring.
//!
//! Neighbours: the tests of `quire-fuse` and `quire-cli`; nothing else depends on this crate.

mod ring_switch;

pub use ring_switch::RingSwitch;
