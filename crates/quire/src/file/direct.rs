//! Reads and writes past the cache.
//!
//! A direct write holds the gate's *direct* state, and its byte range exclusively; the range is written back
//! and dropped from the cache, then the data goes to the device and, for blocks without written extents, a
//! record follows it. A direct read holds its range shared and writes back what is dirty there, but keeps it
//! cached. Size grows under the size lock, in offset order, and is published when the last record is applied.
//!
//! Transfers use the caller's memory. Only where that is not aligned it is copied, through a
//! [`Bounce`] buffer that counts against the cache's limit.
//!
//! Requests that are not whole blocks go through the cache and are written through.
//!
//! Neighbours: [`super::direct_async`]; [`super::buffered`]; [`super::backing`] places blocks and journals
//! them.

use super::{BATCH_BYTES, IoFlags, range_end};
use crate::engine::Engine;
use crate::gate::GateState;
use crate::inode::{Inode, InodeRef};
use quire_base::sync::{Arc, SIMULATED};
use quire_base::{BLOCK_SIZE, Result, patience};
use quire_cache::{Backing, Placement, Room};
use quire_device::{AlignedBuf, IoClass, is_aligned};

/// Bytes that one step of a direct request covers.
const STEP_BYTES: usize = 4 * BATCH_BYTES;

pub(super) fn aligned(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(BLOCK_SIZE as u64) && len.is_multiple_of(BLOCK_SIZE)
}

/// Bytes of memory in which unaligned requests travel, at most.
const BOUNCE_BYTES: usize = BATCH_BYTES / 4;

/// Aligned memory in place of a caller's that is not. It is made before any lock is taken, as it may wait for
/// memory.
struct Bounce<'a> {
    buffer: AlignedBuf,
    _room: Room<'a>,
}

impl Engine {
    /// What a request of `len` bytes at `memory` needs: nothing, if that is aligned. (In a simulation chance
    /// would decide where memory lies, so there it is always copied.)
    fn bounce(&self, memory: *const u8, len: usize) -> Result<Option<Bounce<'_>>> {
        if len == 0 || is_aligned(memory) && !SIMULATED {
            return Ok(None);
        }
        let room = self.cache.room_for_buffer(BOUNCE_BYTES.min(len) as u64)?;
        Ok(Some(Bounce { buffer: AlignedBuf::try_zeroed(room.bytes() as usize)?, _room: room }))
    }

    pub(crate) fn read_direct(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize> {
        if !aligned(offset, out.len()) {
            return self.read_buffered(inode, offset, out);
        }
        // A whole block is read where a file of the largest size ends in it.
        let end = range_end(offset, 0)? + out.len() as u64;
        let mut bounce = self.bounce(out.as_ptr(), out.len())?;
        let _permit = inode.gate.enter(GateState::Direct);
        let _range = inode.ranges.lock(offset, end, false);
        let size = inode.size();
        if offset >= size {
            return Ok(0);
        }
        let len = (size - offset).min(out.len() as u64) as usize;
        let (first, last) = (offset / BLOCK_SIZE as u64, (offset + len as u64).div_ceil(BLOCK_SIZE as u64));
        if let Some(mapping) = inode.mapping.get() {
            mapping.write_back(first, last)?;
        }
        let whole = (last - first) as usize * BLOCK_SIZE;
        let step = bounce.as_ref().map_or(STEP_BYTES, |bounce| bounce.buffer.len());
        for (n, piece) in out[..whole].chunks_mut(step).enumerate() {
            let block = first + (n * step / BLOCK_SIZE) as u64;
            match &mut bounce {
                Some(bounce) => {
                    let buffer = &mut bounce.buffer[..piece.len()];
                    self.read_blocks(inode, block, buffer)?;
                    piece.copy_from_slice(buffer);
                }
                None => self.read_blocks(inode, block, piece)?,
            }
        }
        // The rest of the last block is nobody's.
        out[len..whole].fill(0);
        Ok(len)
    }

    /// Fills `out`, whole blocks, from `block` on.
    fn read_blocks(&self, inode: &Inode, block: u64, mut out: &mut [u8]) -> Result<()> {
        let mut block = block;
        let mut reads = Vec::new();
        while !out.is_empty() {
            for run in inode.map(block, (out.len() / BLOCK_SIZE) as u64)? {
                let (piece, rest) = out.split_at_mut(run.count as usize * BLOCK_SIZE);
                match run.home.data() {
                    Some(at) => reads.push((at, piece)),
                    None => piece.fill(0),
                }
                out = rest;
                block += run.count;
            }
        }
        match &mut reads[..] {
            [(at, piece)] => self.store.device.read(IoClass::Data, *at, piece),
            reads => self.store.device.read_batch(IoClass::Data, reads),
        }
    }

    pub(crate) fn write_direct(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: IoFlags,
    ) -> Result<(u64, usize)> {
        let append = flags.contains(IoFlags::APPEND);
        // Where an append goes is known for certain only under the size lock; if that is no block boundary
        // the cache takes it.
        if aligned(if append { 0 } else { offset }, data.len())
            && let Some(written) = self.write_past_cache(inode, offset, data, flags)?
        {
            return Ok(written);
        }
        let (at, written) = self.write_buffered(inode, offset, data, flags)?;
        let (first, last) = (at / BLOCK_SIZE as u64, (at + written as u64).div_ceil(BLOCK_SIZE as u64));
        super::buffered::write_through(inode, first, last, true);
        Ok((at, written))
    }

    /// `None` if the cache takes it: an append would start inside a block, or the data goes through the
    /// journal.
    fn write_past_cache(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: IoFlags,
    ) -> Result<Option<(u64, usize)>> {
        let append = flags.contains(IoFlags::APPEND);
        let mut bounce = self.bounce(data.as_ptr(), data.len())?;
        let _permit = inode.gate.enter(GateState::Direct);
        let extends = append || range_end(offset, data.len() as u64)? > inode.size();
        let _size = extends.then(|| inode.size_lock.lock());
        let at = if append { inode.size() } else { offset };
        if !aligned(at, 0) {
            return Ok(None);
        }
        let end = range_end(at, data.len() as u64)?;
        let (first, last) = (at / BLOCK_SIZE as u64, end / BLOCK_SIZE as u64);
        if inode.unit_blocks().is_some() {
            return Ok(None);
        }
        if extends {
            self.expose(inode, at)?;
        }
        let _range = inode.ranges.lock(at, end, true);
        if !self.clear_for_direct_write(inode, first, last)? {
            return Ok(None);
        }
        let mut done = 0;
        let step = bounce.as_ref().map_or(STEP_BYTES, |bounce| bounce.buffer.len());
        for piece in data.chunks(step) {
            let piece = match &mut bounce {
                Some(bounce) => {
                    bounce.buffer[..piece.len()].copy_from_slice(piece);
                    &bounce.buffer[..piece.len()]
                }
                None => piece,
            };
            let (written, outcome) = self.write_step(inode, at + done as u64, piece);
            done += written;
            match outcome {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, done, "a direct write ends short");
                    break;
                }
            }
        }
        // Only now: a reader that sees the size sees all of it.
        inode.raise_size(at + done as u64);
        if !flags.contains(IoFlags::KEEP_WRITE_TIMES) {
            inode.touch_written();
        }
        Ok(Some((at, done)))
    }

    /// Puts what the cache has of blocks on disk, and out of the cache. False: the blocks are written through
    /// the journal only. That is asked behind the writeback, which may have journaled them itself, beside a
    /// block that has a record: a replay would put that content back over what is written in place.
    pub(super) fn clear_for_direct_write(&self, inode: &Inode, first: u64, last: u64) -> Result<bool> {
        if let Some(mapping) = inode.mapping.get() {
            if !mapping.is_free(first, last) {
                patience::check("cached blocks to be written back and dropped")?;
            }
            mapping.write_back(first, last)?;
        }
        if self.has_recorded(inode, first, last - first)? {
            return Ok(false);
        }
        if let Some(mapping) = inode.mapping.get() {
            mapping.drop_written(first, last);
        }
        Ok(true)
    }

    /// Writes one piece to its homes and journals them; gives the bytes written, and the error that stopped
    /// it.
    fn write_step(&self, inode: &Inode, offset: u64, data: &[u8]) -> (usize, Result<()>) {
        let mut written = 0;
        let outcome = self.write_blocks(inode, offset, data, &mut written);
        (written, outcome)
    }

    fn write_blocks(&self, inode: &Inode, offset: u64, data: &[u8], written: &mut usize) -> Result<()> {
        let (first, count) = (offset / BLOCK_SIZE as u64, (data.len() / BLOCK_SIZE) as u64);
        let holes = holes_in(inode, first, count)?;
        inode.reserve(holes)?;
        let mut promised = holes;
        let mut block = first;
        while block < first + count {
            let step = self.place_and_write(inode, block, first + count - block, first, data, &mut promised);
            match step {
                Ok(next) => {
                    block = next;
                    *written = (block - first) as usize * BLOCK_SIZE;
                }
                Err(error) => {
                    inode.unreserve(promised);
                    return Err(error);
                }
            }
        }
        debug_assert_eq!(promised, 0);
        Ok(())
    }

    fn place_and_write(
        &self,
        inode: &Inode,
        block: u64,
        count: u64,
        first: u64,
        data: &[u8],
        promised: &mut u64,
    ) -> Result<u64> {
        let before = hole_runs(inode, block, count)?;
        let placement = inode.place(block, count)?;
        let next = placement.runs.last().map_or(block, |run| run.file_block + run.count);
        let taken: u64 =
            before.iter().map(|&(start, count)| (start + count).min(next).saturating_sub(start)).sum();
        *promised -= taken;
        let written = self
            .write_runs(&placement, first, data)
            .and_then(|()| self.apply_written(inode, &placement, next * BLOCK_SIZE as u64));
        if written.is_err() {
            self.take_back(inode, &placement);
            *promised += taken;
        }
        written.map(|()| next)
    }

    fn write_runs(&self, placement: &Placement, first: u64, data: &[u8]) -> Result<()> {
        let writes = placement.runs.iter().map(|run| {
            let from = (run.file_block - first) as usize * BLOCK_SIZE;
            (run.home, &data[from..from + run.count as usize * BLOCK_SIZE])
        });
        match &writes.collect::<Vec<_>>()[..] {
            [(at, piece)] => self.store.device.write(IoClass::Data, *at, piece),
            writes => self.store.device.write_batch(IoClass::Data, writes),
        }
    }
}

fn holes_in(inode: &Inode, first: u64, count: u64) -> Result<u64> {
    Ok(hole_runs(inode, first, count)?.iter().map(|(_, count)| count).sum())
}

/// The parts of a range that need blocks to be written, as (first block, count).
fn hole_runs(inode: &Inode, first: u64, count: u64) -> Result<Vec<(u64, u64)>> {
    let mut holes = Vec::new();
    let mut block = first;
    while block < first + count {
        for run in inode.map(block, first + count - block)? {
            if run.home.needs_blocks() {
                holes.push((run.file_block, run.count));
            }
            block = run.file_block + run.count;
        }
    }
    Ok(holes)
}
