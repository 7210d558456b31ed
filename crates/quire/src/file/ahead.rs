//! Small data that is forced at once: homes that hold durable zeros, whose record needs no flush before it.
//!
//! New data that is forced takes two flushes when its blocks held something before: one between data and
//! record (J1), one behind the record. In blocks zeroed ahead ([`quire_alloc::ahead`]) it takes one.
//! Whichever of data and record a crash keeps, the block shows zeros or the data. So the record does not wait
//! for the data: it is journaled when the blocks are chosen, the journal write needs no flush before it, and
//! one flush behind both makes them durable. Until then no caller has been told that the data is durable, and
//! growth that was not written reads as zeros.
//!
//! The calling thread writes data that is a single request itself, and then the journal, unless another
//! thread leads the group commit. Threads that come together write their data each for itself and share the
//! rest.
//!
//! Callers: an fsync, fdatasync or synchronous write, for what it writes back itself
//! ([`quire_cache::Purpose::Force`]); never
//! writeback in the background, which nobody waits for, and never more than a few blocks at a time.
//!
//! When a record may go ahead: every block of the placement is zeroed or is overwritten in place, and the
//! size grows over zeros alone: over zeroed blocks, and over the rest of a last block that is known to hold
//! zeros there ([`super::tail`]). So nothing that the record exposes is unknown: neither the rest of a block
//! that an earlier truncate cut, nor other blocks. Otherwise data, flush and record take their turns as
//! usual.
//!
//! If the data cannot be written the record stands: the blocks are the file's, hold zeros, and their data is
//! dirty still. The cache is told ([`quire_cache::Placement::is_recorded`]), or it would keep a promise of
//! space for them.
//!
//! Zeros are written by a thread of their own, as long as there is such data, and by nobody on an idle
//! volume.
//!
//! Neighbours: [`super::backing`] places; [`super::tail`] knows the last block; [`super::fsync`] forces;
//! `quire_alloc::ahead` keeps the blocks.

use super::backing::{disk_runs, written_cost};
use super::tail::Ahead;
use crate::engine::Engine;
use crate::inode::Inode;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, BlockNo, Result};
use quire_cache::Placement;
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::Run;

impl Engine {
    /// Blocks that hold durable zeros for a hole of `count` blocks from `block`, or for its front.
    pub(super) fn place_zeroed(&self, inode: &Inode, block: u64, count: u64, goal: BlockNo) -> Option<Run> {
        let flushed = self.device.flushed_mark();
        let grows = block > 0 && inode.meta().record.size <= block * BLOCK_SIZE as u64;
        let mut reservation = inode.delayed.take(&self.alloc, count);
        let run = self.alloc.take_zeroed(&mut reservation, (inode.number, grows), goal, count, flushed);
        inode.delayed.put(reservation);
        if grows && run.is_some() {
            // Not before there is a claim: who was the last user, and has not looked yet, would clear it and
            // find nothing to give back. The last user sees it: this one, whom the caller counts, leaves
            // later.
            inode.claims_zeroed.store(true, Ordering::Release);
        }
        if self.alloc.wants_zeroes() {
            self.want_zeroes();
        }
        if let Some(run) = run {
            *inode.placement_hint.lock() = (block + run.blocks, run.end().0);
        }
        run
    }

    /// Journals homes that hold durable zeros, before their data is written; false if the record has to wait
    /// for the data like any other. Waits for nothing but reads of the tree: the caller holds segments.
    pub(super) fn record_ahead(&self, inode: &Inode, placement: &Placement, ahead: Ahead) -> bool {
        // An error is met again, and told, where the data has been written.
        let recorded = self.try_record_ahead(inode, placement, ahead).unwrap_or(false);
        if recorded {
            self.counters.records_ahead.add(1);
        }
        recorded
    }

    fn try_record_ahead(&self, inode: &Inode, placement: &Placement, ahead: Ahead) -> Result<bool> {
        let runs = &placement.runs;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(false) };
        let blocks = first.file_block..last.file_block + last.count;
        let Some(transaction) = self.try_begin(written_cost(runs.len())) else { return Ok(false) };
        self.pin_homes(transaction.ticket(), inode, blocks, disk_runs(runs))?;
        self.journal_homes(inode, placement, 0, transaction, Some(ahead))
    }

    fn want_zeroes(&self) {
        if !self.background.zeroes_wanted.swap(true, Ordering::AcqRel) {
            let _state = self.background.state.lock();
            self.background.wake_zero.notify_one();
        }
    }

    /// Zeroes blocks ahead, as many as are wanted. Returns how many it was.
    pub(crate) fn zero_ahead(&self) -> u64 {
        let mut blocks = 0;
        self.background.zeroes_wanted.store(false, Ordering::Release);
        while self.check_writable().is_ok() {
            let _zeroing = self.background.zeroing.lock();
            let Some(run) = self.alloc.begin_zeroing() else { break };
            let written = AlignedBuf::try_zeroed(run.blocks as usize * BLOCK_SIZE)
                .and_then(|zeros| self.device.write(IoClass::Data, run.start, &zeros));
            let mark = written.is_ok().then(|| self.device.mark());
            let ended = self.alloc.end_zeroing(run, mark);
            if let Err(error) = written.and(ended) {
                tracing::warn!(%error, start = run.start.0, "zeroing blocks ahead failed");
                break;
            }
            blocks += run.blocks;
        }
        blocks
    }
}
