//! Reads and writes through the cache.
//!
//! A write inside the end of file holds the gate (buffered) and no more: the cache's batch makes it one piece
//! for every reader. A write that can extend the file also takes the size lock; it zeroes what it exposes
//! between the old end and its offset, and publishes the new size before its first segment is unlocked.
//! Appends take their offset under the size lock, so none is lost or interleaved.
//!
//! Above [`BATCH_BYTES`] a write holds the gate exclusively with the exclusive sequence odd and goes
//! piecewise: still untorn, since readers wait; one that fails midway returns its short count. An oversize
//! read holds the gate's *none* state: other readers pass, writers wait.
//!
//! On ENOSPC the write releases everything, freed blocks that only wait for durability are made so, and the
//! write is tried once more (J2).
//!
//! Neighbours: [`super::direct`] for O_DIRECT; [`super::fsync`] for O_SYNC and O_DSYNC; `quire_cache` below.

use super::{BATCH_BYTES, IoFlags, range_end};
use crate::attributes::without_privileges;
use crate::engine::Engine;
use crate::gate::{GateState, Permit};
use crate::inode::{Inode, InodeRef};
use crate::store::transaction::{Cost, Depends};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, MutexGuard};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_cache::Room;
use quire_format::inode::FileType;
use quire_format::key::Key;

impl Engine {
    /// Reads up to `out.len()` bytes; fewer at the end of the file, none beyond it.
    pub(crate) fn read(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        out: &mut [u8],
        flags: IoFlags,
    ) -> Result<usize> {
        inode.check_regular()?;
        if out.is_empty() || offset >= inode.size() {
            return Ok(0);
        }
        let read = if flags.contains(IoFlags::DIRECT) {
            self.read_direct(inode, offset, out)?
        } else {
            self.read_buffered(inode, offset, out)?
        };
        if flags.contains(IoFlags::UNCACHED) && read > 0 {
            inode
                .mapping()
                .drop_behind_used(offset / BLOCK_SIZE as u64, (offset + read as u64) / BLOCK_SIZE as u64);
        }
        if read > 0 && inode.drops_cache() {
            inode.drop_behind_read(offset, read);
        }
        if !flags.contains(IoFlags::KEEP_ACCESS_TIME) {
            inode.touch_read();
        }
        Ok(read)
    }

    pub(crate) fn read_buffered(&self, inode: &InodeRef, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mapping = inode.mapping();
        if out.len() <= BATCH_BYTES
            && let Some(read) = mapping.try_read(offset, out, || inode.size_sequence.view())
        {
            return Ok(read);
        }
        let state = if out.len() > BATCH_BYTES { GateState::None } else { GateState::Buffered };
        let _permit = inode.gate.enter(state);
        let mut done = 0;
        // One round for all but oversize reads, which no writer can interrupt.
        for piece in out.chunks_mut(BATCH_BYTES) {
            let read = mapping.read(offset + done as u64, piece, &|| inode.size())?;
            done += read;
            if read < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `data`, or as much as could be written before an error; an error alone means nothing
    /// was. Gives where it was written and how much.
    pub(crate) fn write(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: IoFlags,
    ) -> Result<(u64, usize)> {
        let marks = inode.marks.now();
        // Before anything is held.
        let _bars = match marks.is_leased() && inode.kind == FileType::Regular {
            true => {
                let at = (!flags.contains(IoFlags::APPEND)).then_some(offset);
                self.recall_for_write(inode, at, data.len())?
            }
            false => Vec::new(),
        };
        let _change = self.begin_change()?;
        inode.check_regular()?;
        if data.is_empty() {
            return Ok((if flags.contains(IoFlags::APPEND) { inode.size() } else { offset }, 0));
        }
        if !flags.contains(IoFlags::APPEND) {
            range_end(offset, data.len() as u64)?;
        }
        if !flags.contains(IoFlags::KEEP_PRIVILEGES) {
            self.clear_privileges(inode)?;
        }
        let drops = marks.drops_cache() && !flags.contains(IoFlags::DIRECT);
        if drops {
            self.check_may_pass(offset, data.len())?;
        }
        let (at, written) = self.retry_without_space(|| {
            if flags.contains(IoFlags::DIRECT) {
                self.write_direct(inode, offset, data, flags)
            } else {
                self.write_buffered(inode, offset, data, flags)
            }
        })?;
        if flags.intersects(IoFlags::UNCACHED | IoFlags::THROUGH) && !flags.contains(IoFlags::DIRECT) {
            let (first, end) = (at / BLOCK_SIZE as u64, blocks_for(at + written as u64));
            if flags.contains(IoFlags::UNCACHED) {
                inode.mapping().drop_behind_used(first, end);
            }
            write_through(inode, first, end, flags.contains(IoFlags::THROUGH));
        }
        if drops && patience::may_wait() {
            self.write_what_was_passed(inode, at, written);
        }
        if flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC) {
            self.sync_range(inode, at, written as u64, !flags.contains(IoFlags::SYNC))?;
        }
        Ok((at, written))
    }

    /// A buffered read of cached data that nobody is changing; `None` where anything else would have to be
    /// done, and `out` then holds anything. Waits for nothing.
    pub(crate) fn try_read(
        &self,
        inode: &InodeRef,
        offset: u64,
        out: &mut [u8],
        flags: IoFlags,
    ) -> Option<usize> {
        let is_direct = flags.contains(IoFlags::DIRECT);
        if inode.kind != FileType::Regular || out.len() > BATCH_BYTES || is_direct {
            return None;
        }
        let read = inode.mapping().try_read(offset, out, || inode.size_sequence.view())?;
        if inode.drops_cache() {
            inode.drop_behind_read(offset, read);
        }
        if !flags.contains(IoFlags::KEEP_ACCESS_TIME) {
            inode.touch_read();
        }
        Some(read)
    }

    /// A buffered write inside the end of file, over cached data that has its place on the device already;
    /// false where anything else would have to be done, and nothing has changed. Waits for nothing. The
    /// caller sees to set-id bits.
    pub(crate) fn try_write(&self, inode: &InodeRef, offset: u64, data: &[u8], flags: IoFlags) -> bool {
        // A write to a leased file may have to wait for the lease.
        if inode.kind != FileType::Regular || data.len() > BATCH_BYTES || inode.marks.now().is_leased() {
            return false;
        }
        let Some(_change) = self.try_begin_change() else { return false };
        let Some(_permit) = inode.gate.try_enter(GateState::Buffered) else { return false };
        // The size cannot shrink while the permit is held.
        let inside = offset.checked_add(data.len() as u64).is_some_and(|end| end <= inode.size());
        let done = inside && inode.mapping().try_write(offset, data);
        if done && !flags.contains(IoFlags::KEEP_WRITE_TIMES) {
            inode.touch_written();
        }
        done
    }

    pub(crate) fn write_buffered(
        &self,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: IoFlags,
    ) -> Result<(u64, usize)> {
        let append = flags.contains(IoFlags::APPEND);
        let result = if data.len() > BATCH_BYTES {
            patience::check("readers and writers of the file to leave it")?;
            self.exclusively(inode, || {
                let at = if append { inode.size() } else { offset };
                range_end(at, data.len() as u64)?;
                self.expose(inode, at)?;
                self.write_pieces(inode, at, data).map(|written| (at, written))
            })
        } else {
            // Memory and throttling before the gate: nobody waits for either while holding it.
            let near = if append { inode.size() } else { offset };
            range_end(near, data.len() as u64)?;
            let room = inode.mapping().prepare_write(near, data.len())?;
            let _permit = enter_buffered(inode)?;
            // The size cannot shrink while the permit is held: inside it once is inside it for good.
            if append || offset + data.len() as u64 > inode.size() {
                let _size = hold_size(inode)?;
                let at = match append {
                    true => inode.size(),
                    false => offset,
                };
                range_end(at, data.len() as u64)?;
                if at > inode.size() {
                    patience::check("a gap to be zeroed")?;
                }
                self.expose(inode, at)?;
                write_batch(inode, room, at, data).map(|written| (at, written))
            } else {
                write_batch(inode, room, offset, data).map(|written| (offset, written))
            }
        };
        if result.is_ok() && !flags.contains(IoFlags::KEEP_WRITE_TIMES) {
            inode.touch_written();
        }
        result
    }

    /// Zeroes what a write at `offset` exposes between the end of file and itself: the rest of the last
    /// block, and whole blocks if a crash left something written there.
    pub(crate) fn expose(&self, inode: &InodeRef, offset: u64) -> Result<()> {
        let size = inode.size();
        let block_end = size.next_multiple_of(BLOCK_SIZE as u64);
        if offset > size && size < block_end {
            inode.mapping().zero(size, block_end.min(offset))?;
        }
        self.settle_beyond(inode, block_end / BLOCK_SIZE as u64, blocks_for(offset))
    }

    fn write_pieces(&self, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            // A piece ends where a unit of any size does, so that none is ever there in part.
            let len = (BATCH_BYTES - (at % BATCH_BYTES as u64) as usize).min(data.len() - done);
            let piece = &data[done..done + len];
            let end = at + piece.len() as u64;
            match inode.mapping().write(at, piece, &mut || inode.raise_size(end)) {
                Ok(()) => done += piece.len(),
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, done, "a large write ends short");
                    break;
                }
            }
        }
        Ok(done)
    }

    /// A write takes a program's capabilities, the setuid bit, and the setgid bit of an executable for its
    /// group away: for good before its data is anywhere. An overwrite in place waits for no record, and a
    /// crash must not leave them to what it has written.
    pub(crate) fn clear_privileges(self: &Arc<Engine>, inode: &InodeRef) -> Result<()> {
        self.clear_capabilities(inode)?;
        let mode = inode.mode.load(Ordering::Acquire);
        if without_privileges(mode) == mode || inode.kind != FileType::Regular {
            return Ok(());
        }
        patience::check("the set-id bits to be gone for good")?;
        let mut transaction = self.store.begin(Cost::new(1, 128))?;
        transaction.warm(&[Key::inode(inode.number)])?;
        let mut meta = inode.meta();
        let mut record = meta.record.clone();
        record.mode = without_privileges(record.mode);
        record.ctime = self.store.options.clock.now();
        transaction.put_inode(inode.number, &record);
        let seq = transaction.commit(Depends::Nothing)?;
        inode.committed(seq);
        inode.publish(&record);
        meta.record = record;
        drop(meta);
        self.store.force(seq)
    }
}

/// The gate, which may be held by one who waits for the device.
fn enter_buffered(inode: &Inode) -> Result<Permit<'_>> {
    if patience::may_wait() {
        return Ok(inode.gate.enter(GateState::Buffered));
    }
    let closed = || Error::new(ErrorKind::WouldBlock, "the file's gate is closed");
    inode.gate.try_enter(GateState::Buffered).ok_or_else(closed)
}

/// The size lock, likewise.
fn hold_size(inode: &Inode) -> Result<MutexGuard<'_, ()>> {
    if patience::may_wait() {
        return Ok(inode.size_lock.lock());
    }
    inode
        .size_lock
        .try_lock()
        .ok_or_else(|| Error::new(ErrorKind::WouldBlock, "another write extends the file"))
}

/// Sends what a write has left in the cache to the device, and waits for it if the caller is to. Whatever
/// comes of this, the write has taken effect: its error would make the caller write again. The data stays
/// dirty, and the next fsync has the error.
pub(crate) fn write_through(inode: &InodeRef, first: u64, end: u64, waits: bool) {
    let mapping = inode.mapping();
    if !waits {
        mapping.start_write_back(first, end);
    } else if let Err(error) = mapping.write_back(first, end) {
        tracing::debug!(%error, inode = %inode.number(), "a write has not reached the device yet");
    }
}

fn write_batch(inode: &InodeRef, room: Room<'_>, offset: u64, data: &[u8]) -> Result<usize> {
    let end = offset + data.len() as u64;
    inode.mapping().write_with(room, offset, data, &mut || inode.raise_size(end))?;
    Ok(data.len())
}
