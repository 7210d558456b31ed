//! Direct I/O that holds no thread.
//!
//! Protocol. A read, or an overwrite of blocks that have homes, that lies inside the end of file and on block
//! boundaries is sent to the device and the call returns. The gate's permit and the byte range belong to the
//! request: they are given back when its last transfer has ended, for O_SYNC and O_DSYNC when it is durable
//! as well. The caller's `done` runs then, on a thread of the device or a syncer. Any other request (growing,
//! into holes, unaligned) is done before the call returns, as Linux does with asynchronous I/O that has to
//! allocate; or it is given back, as is one that would have to wait before it can be sent off, to a caller
//! who asks for that ([`Engine::send_read`], [`Engine::send_write`]).
//!
//! Invariants: what a transfer reads into or writes from is the request's own buffer; completion waits for
//! nothing: the reference to the inode, whose last drop may wait, goes to a syncer
//! ([`Engine::release_later`]).
//!
//! Neighbours: [`super::direct`] has the synchronous forms and the rules for both; [`crate::gate`] and
//! [`super::range_lock`] let a holder be named by a value.

use super::fsync::Completion;
use super::range_lock::RangeTicket;
use super::{IoFlags, direct, range_end};
use crate::engine::Engine;
use crate::gate::{Counted, GateState};
use crate::inode::InodeRef;
use quire_base::sync::atomic::{AtomicUsize, Ordering};
use quire_base::sync::{Arc, Mutex};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, patience};
use quire_cache::{Backing, Home};
use quire_device::{AlignedBuf, Io, IoClass, IoOp, Segment};

/// Called once with the buffer of an asynchronous request, and how many bytes were read or written.
pub type BufferDone = Box<dyn FnOnce(AlignedBuf, Result<usize>) + Send>;

/// A request that was not sent off: its buffer, and what was to be called.
pub type Unsent = (AlignedBuf, BufferDone);

/// Most bytes of one transfer.
const TRANSFER_BYTES: usize = 1 << 20;

/// The gate and the byte range of a request under way.
struct Held {
    inode: Option<InodeRef>,
    permit: Option<Counted>,
    range: RangeTicket,
    /// Of a write: the number of its [`quire_base::admission::Admitted`].
    change: Option<usize>,
    engine: Arc<Engine>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        drop(inode.ranges.resume(self.range));
        drop(self.permit.take().map(|permit| inode.gate.resume(permit)));
        self.engine.release_later(inode);
        drop(self.change.map(|number| self.engine.changes.resume(number)));
    }
}

/// A transfer of a request: bytes of its buffer, and the block where they live.
struct Transfer {
    at: BlockNo,
    from: usize,
    bytes: usize,
}

/// Runs `end` with the first error when every transfer has ended.
struct Flight {
    pending: AtomicUsize,
    error: Mutex<Option<Error>>,
    end: Mutex<Option<Completion>>,
}

impl Flight {
    fn complete(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.error.lock().get_or_insert(error);
        }
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let outcome = self.error.lock().take().map_or(Ok(()), Err);
            let end = self.end.lock().take().expect("a request ends once");
            end(outcome);
        }
    }
}

impl Engine {
    /// Reads into `buffer` past the cache; see the module's documentation.
    pub(crate) fn read_direct_async(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        buffer: AlignedBuf,
        done: BufferDone,
    ) {
        if let Some((mut buffer, done)) = self.send_read(inode, offset, buffer, done, true) {
            let read = self.read(inode, offset, &mut buffer, IoFlags::DIRECT);
            done(buffer, read);
        }
    }

    /// Writes `buffer` past the cache; see the module's documentation.
    pub(crate) fn write_direct_async(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        buffer: AlignedBuf,
        flags: IoFlags,
        done: BufferDone,
    ) {
        if let Some((buffer, done)) = self.send_write(inode, offset, buffer, flags, done, true) {
            let written = self.write(inode, offset, &buffer, flags | IoFlags::DIRECT);
            done(buffer, written.map(|(_, written)| written));
        }
    }

    /// Sends a read off, or gives back what it was given. Waits only if it `may_wait`.
    pub(crate) fn send_read(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        mut buffer: AlignedBuf,
        done: BufferDone,
        may_wait: bool,
    ) -> Option<Unsent> {
        let plan = || inode.check_regular().and_then(|()| self.plan_read(inode, offset, &mut buffer));
        let (held, transfers, len) = match planned(may_wait, plan) {
            Ok(Some(plan)) => plan,
            Ok(None) => return Some((buffer, done)),
            Err(error) => {
                done(buffer, Err(error));
                return None;
            }
        };
        inode.touch_read();
        self.start(IoOp::Read, buffer, transfers, move |mut buffer, outcome| {
            drop(held);
            // The rest of the last block is nobody's.
            let tail = len.next_multiple_of(BLOCK_SIZE).min(buffer.len());
            buffer[len..tail].fill(0);
            done(buffer, outcome.map(|()| len));
        });
        None
    }

    /// Sends a write off, or gives back what it was given. Waits only if it `may_wait`.
    pub(crate) fn send_write(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        buffer: AlignedBuf,
        flags: IoFlags,
        done: BufferDone,
        may_wait: bool,
    ) -> Option<Unsent> {
        let plan = || {
            let change = self.begin_change()?;
            inode.check_regular()?;
            if !flags.contains(IoFlags::KEEP_PRIVILEGES) {
                self.clear_privileges(inode)?;
            }
            let plan = self.plan_overwrite(inode, offset, &buffer, flags)?;
            Ok(plan.map(|(mut held, transfers)| {
                held.change = Some(change.into_number());
                (held, transfers)
            }))
        };
        let (held, transfers) = match planned(may_wait, plan) {
            Ok(Some(plan)) => plan,
            Ok(None) => return Some((buffer, done)),
            Err(error) => {
                done(buffer, Err(error));
                return None;
            }
        };
        let engine = self.clone();
        self.start(IoOp::Write, buffer, transfers, move |buffer, outcome| {
            let len = buffer.len();
            if let (Ok(()), Some(inode)) = (&outcome, &held.inode) {
                inode.data_mark.fetch_max(engine.store.device.mark(), Ordering::AcqRel);
                inode.touch_written();
                if flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC) {
                    let inode = inode.clone();
                    let durable = move |outcome: Result<()>| {
                        drop(held);
                        done(buffer, outcome.map(|()| len));
                    };
                    return engine.fsync_after_io(inode, !flags.contains(IoFlags::SYNC), Box::new(durable));
                }
            }
            drop(held);
            done(buffer, outcome.map(|()| len));
        });
        None
    }

    /// What a read needs to be sent off, and the bytes that it will give; `None`: it is done by the
    /// synchronous form.
    fn plan_read(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        buffer: &mut AlignedBuf,
    ) -> Result<Option<(Held, Vec<Transfer>, usize)>> {
        if buffer.is_empty() || !direct::aligned(offset, buffer.len()) {
            return Ok(None);
        }
        let end = range_end(offset, 0)? + buffer.len() as u64;
        let held = self.hold(inode, offset, end, false)?;
        let size = inode.size();
        if offset >= size {
            return Ok(None);
        }
        let len = (size - offset).min(buffer.len() as u64) as usize;
        let (first, last) = (offset / BLOCK_SIZE as u64, (offset + len as u64).div_ceil(BLOCK_SIZE as u64));
        if let Some(mapping) = inode.mapping.get() {
            if !mapping.is_clean() && !mapping.is_free(first, last) {
                patience::check("cached blocks to be written back")?;
            }
            mapping.write_back(first, last)?;
        }
        let mut transfers = Vec::new();
        let mut block = first;
        while block < last {
            for run in inode.map(block, last - block)? {
                let from = (run.file_block - first) as usize * BLOCK_SIZE;
                let bytes = run.count as usize * BLOCK_SIZE;
                match run.home.data() {
                    Some(at) => cut(&mut transfers, at, from, bytes),
                    None => buffer[from..from + bytes].fill(0),
                }
                block = run.file_block + run.count;
            }
        }
        Ok(Some((held, transfers, len)))
    }

    /// What an overwrite needs to be sent off; `None`: it grows the file, fills holes, is not aligned, or
    /// goes through the journal.
    fn plan_overwrite(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        buffer: &AlignedBuf,
        flags: IoFlags,
    ) -> Result<Option<(Held, Vec<Transfer>)>> {
        if buffer.is_empty()
            || flags.contains(IoFlags::APPEND)
            || !direct::aligned(offset, buffer.len())
            || range_end(offset, buffer.len() as u64)? > inode.size()
        {
            return Ok(None);
        }
        let end = offset + buffer.len() as u64;
        let held = self.hold(inode, offset, end, true)?;
        // A truncate may have come before the gate opened.
        if end > inode.size() {
            return Ok(None);
        }
        let (first, last) = (offset / BLOCK_SIZE as u64, end / BLOCK_SIZE as u64);
        if inode.unit_blocks().is_some() || !self.clear_for_direct_write(inode, first, last)? {
            return Ok(None);
        }
        // The size on disk follows data in the order of the file: growth that is not there yet takes the long
        // way.
        if inode.meta().record.size < end {
            return Ok(None);
        }
        let mut transfers = Vec::new();
        let mut block = first;
        while block < last {
            for run in inode.map(block, last - block)? {
                let Home::Written(at) = run.home else { return Ok(None) };
                let from = (run.file_block - first) as usize * BLOCK_SIZE;
                cut(&mut transfers, at, from, run.count as usize * BLOCK_SIZE);
                block = run.file_block + run.count;
            }
        }
        Ok(Some((held, transfers)))
    }

    /// Enters the gate and locks the range; an error where one of them is taken and the thread may not wait.
    fn hold(self: &Arc<Engine>, inode: &InodeRef, start: u64, end: u64, exclusive: bool) -> Result<Held> {
        let (permit, range) = if patience::may_wait() {
            (inode.gate.enter(GateState::Direct), inode.ranges.lock(start, end, exclusive))
        } else {
            let taken = || Error::new(ErrorKind::WouldBlock, "others use the file");
            let permit = inode.gate.try_enter(GateState::Direct).ok_or_else(taken)?;
            (permit, inode.ranges.try_lock(start, end, exclusive).ok_or_else(taken)?)
        };
        let (permit, range) = (Some(permit.into_counted()), range.into_ticket());
        Ok(Held { inode: Some(inode.clone()), permit, range, change: None, engine: self.clone() })
    }

    /// Sends the transfers off; `end` gets the buffer back when all have ended.
    fn start(
        &self,
        op: IoOp,
        mut buffer: AlignedBuf,
        transfers: Vec<Transfer>,
        end: impl FnOnce(AlignedBuf, Result<()>) + Send + 'static,
    ) {
        if transfers.is_empty() {
            return end(buffer, Ok(()));
        }
        let memory = buffer.as_mut_ptr();
        let flight = Arc::new(Flight {
            pending: AtomicUsize::new(transfers.len()),
            error: Mutex::new(None),
            end: Mutex::new(Some(Box::new(move |outcome| end(buffer, outcome)))),
        });
        let ios = transfers
            .into_iter()
            .map(|transfer| {
                let flight = flight.clone();
                // SAFETY: within the buffer, which the flight keeps, untouched, until its last transfer has
                // ended.
                let segment = unsafe { Segment::new(memory.wrapping_add(transfer.from), transfer.bytes) };
                let done = Box::new(move |outcome| flight.complete(outcome));
                Io { op, at: transfer.at, segments: vec![segment], done }
            })
            .collect();
        self.store.device.submit(IoClass::Data, ios);
    }
}

/// The outcome of planning a request; `None` as well where that would have to wait and may not.
fn planned<T>(may_wait: bool, plan: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    if may_wait {
        return plan();
    }
    match patience::at_once(plan) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        outcome => outcome,
    }
}

/// Adds a run as transfers of bounded length.
fn cut(transfers: &mut Vec<Transfer>, at: BlockNo, from: usize, bytes: usize) {
    for skip in (0..bytes).step_by(TRANSFER_BYTES) {
        let at = at.offset((skip / BLOCK_SIZE) as u64);
        transfers.push(Transfer { at, from: from + skip, bytes: TRANSFER_BYTES.min(bytes - skip) });
    }
}
