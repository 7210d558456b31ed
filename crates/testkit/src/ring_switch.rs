//! The kernel's switch for FUSE over io_uring, turned on while a test mounts.
//!
//! A mount keeps what it had when it was made, so the switch is on for that moment only, under a lock that
//! all tests of the machine share, and goes back to what it was.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// While it lives, the switch is on.
pub struct RingSwitch {
    was: Vec<u8>,
    _lock: File,
}

impl RingSwitch {
    /// `None` where there is no such switch, or it may not be turned.
    pub fn on() -> Option<RingSwitch> {
        if !Path::new(SWITCH).exists() {
            return None;
        }
        let lock = File::open(SWITCH).ok()?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).ok()?;
        let was = std::fs::read(SWITCH).ok()?;
        std::fs::write(SWITCH, "1").ok()?;
        Some(RingSwitch { was, _lock: lock })
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, &self.was);
    }
}
