//! The kernel's switch for FUSE over io_uring. A mount of root's switches it on, so tests turn it off only to
//! see that.
//!
//! A lock that all tests of the machine share keeps the switch on while a test mounts.

use std::fs::File;

use rustix::fs::FlockOperation;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// While it lives, no test turns the switch off.
pub struct RingSwitch(#[allow(dead_code, reason = "the lock goes with it")] File);

impl RingSwitch {
    /// For a mount, which switches it on itself; `None` where the kernel has no ring.
    pub fn on() -> Option<RingSwitch> {
        RingSwitch::lock(FlockOperation::LockShared)
    }

    fn lock(how: FlockOperation) -> Option<RingSwitch> {
        let file = File::open(SWITCH).ok()?;
        rustix::fs::flock(&file, how).ok()?;
        Some(RingSwitch(file))
    }

    /// Off, for a test that sees it go on; it stays as the test leaves it. `None` where it cannot be turned.
    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn off() -> Option<RingSwitch> {
        let lock = RingSwitch::lock(FlockOperation::LockExclusive)?;
        std::fs::write(SWITCH, "N").ok()?;
        Some(lock)
    }

    /// Whether it is on.
    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn is_on() -> bool {
        std::fs::read(SWITCH).is_ok_and(|now| now.starts_with(b"Y"))
    }
}
