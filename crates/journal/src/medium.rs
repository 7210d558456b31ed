//! What a journal writes to. On a volume it is the device; tests and model checkers put their own in its
//! place.
//!
//! Neighbours: [`crate::commit`] calls these, in the order before, write, after.

use quire_base::{BlockNo, Result};
use quire_device::{Device, IoClass};
use std::sync::Arc;

/// The three steps of a journal write.
pub trait Medium: Send + Sync {
    /// Counts completed writes: one that has completed is at or below the mark read afterwards.
    fn mark(&self) -> u64;
    /// Makes durable what had completed at `mark`. Costs nothing if all of it is durable already.
    fn flush_before(&self, mark: u64) -> Result<()>;
    /// Writes runs of whole blocks; they may reach the medium in any order.
    fn write(&self, runs: &[(BlockNo, &[u8])]) -> Result<()>;
    /// Makes durable what [`Medium::write`] wrote.
    fn flush_after(&self) -> Result<()>;
}

impl Medium for Arc<Device> {
    fn mark(&self) -> u64 {
        Device::mark(self)
    }
    fn flush_before(&self, mark: u64) -> Result<()> {
        self.flush_to(mark)
    }
    fn write(&self, runs: &[(BlockNo, &[u8])]) -> Result<()> {
        match runs {
            [(at, blocks)] => Device::write(self, IoClass::Journal, *at, blocks),
            _ => self.write_batch(IoClass::Journal, runs),
        }
    }
    fn flush_after(&self) -> Result<()> {
        self.flush_to(Device::mark(self))
    }
}
