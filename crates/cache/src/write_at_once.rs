//! An overwrite that waits for nothing: done at once, or refused without a trace.
//!
//! For threads that must not be held up, such as those that take requests from the kernel, and short: the
//! batch of [`crate::write`] with every wait replaced by a refusal, where nothing has to be made or looked up
//! either. All blocks have a folio and a home already, partial edges are valid, nobody fills or writes back
//! there, no segment is held, and dirty data is below the level from which writers are slowed down. On a
//! refusal the caller's request takes the way of [`Mapping::write`], on a thread that may wait.

use crate::index::Pins;
use crate::mapping::Mapping;
use crate::throttle;
use crate::write::{Source, homeless};
use quire_base::BLOCK_SIZE;
use quire_base::units::blocks_for;

impl Mapping {
    /// Writes `data`, at most a batch, at `offset`, if that needs no waiting; else changes nothing and
    /// returns false. The caller holds the gate buffered, and the write lies inside the file.
    pub fn try_write(&self, offset: u64, data: &[u8]) -> bool {
        if data.is_empty()
            || data.len() > self.core.config.batch_bytes
            || !throttle::passes(&self.core, data.len() as u64)
        {
            return false;
        }
        if !self.knows_homes() {
            return false;
        }
        let Some(bytes_end) = offset.checked_add(data.len() as u64) else { return false };
        let (first, end) = (offset / BLOCK_SIZE as u64, blocks_for(bytes_end));
        let head = (!offset.is_multiple_of(BLOCK_SIZE as u64)).then_some(first);
        let tail = (!bytes_end.is_multiple_of(BLOCK_SIZE as u64)).then_some(end - 1);
        let mut pins = Pins::new();
        if self.index.pin(self.number, first, end, &mut pins) > 0 {
            return false;
        }
        if !self.try_lock(&pins, first, end) {
            return false;
        }
        if !self.may_copy(&pins, first, end, head, tail) || homeless(&pins, first, end) > 0 {
            self.unlock_unchanged(&pins, first, end);
            return false;
        }
        self.change(&pins, offset, Source::Bytes(data), &mut || {});
        self.core.metrics.writes.add(1);
        true
    }
}
