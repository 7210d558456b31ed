//! The device as the engine sees it: a backend, with flushes combined, the first fatal error kept, and
//! everything counted.
//!
//! Marks. Every write that completes raises [`Device::mark`] before its caller hears of it. To make a set of
//! completed writes durable, read the mark after they completed and pass it to [`Device::flush_to`]. That
//! returns without I/O when a flush submitted after the mark was reached has already succeeded.
//!
//! Errors. The first failed flush, and the first failed write of class Journal or Metadata, is kept:
//! [`Device::failure`] reports it, and later writes of these classes and flushes fail with it. Reads, and
//! writes of class Data, go on. A request refused before any I/O (a range past the end) is not kept, nor is a
//! failed [`Device::mend`]. A flush that is not needed (its mark is durable) still succeeds: that is the
//! truth.
//!
//! Hold. Between [`Device::hold_writes`] and [`Device::release_writes`] nothing changes what is on the
//! device: writes and discards wait before they begin. Reads and flushes go on.
//!
//! Neighbours: [`crate::backend`] below; journal, tree, cache and volume above.

use crate::backend::{self, Backend, Io, IoClass, IoOp, Segment};
use crate::flush::{FlushCombiner, Served};
use crate::latch::ErrorLatch;
use crate::memory::MemoryBackend;
use crate::recorded::{Overlay, RecordedBlocks, part_of};
use crate::stats::{Counters, DeviceStats, Tally};
use quire_base::admission::Admission;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use std::fmt;
// Not by way of `sync`: every transfer looks, and a model need not interleave that.
use std::sync::atomic::{AtomicU64, Ordering};

/// A volume's device; shared in an `Arc`.
pub struct Device {
    backend: Arc<dyn Backend>,
    name: String,
    /// As of the opening, or of the last [`Device::grow`].
    blocks: AtomicU64,
    recorded: RecordedBlocks,
    shared: Arc<Shared>,
}

/// What completions need; apart from the backend, so that a request in flight does not keep that alive.
struct Shared {
    flushes: FlushCombiner,
    latch: ErrorLatch,
    counters: Counters,
    /// Writes and discards under way. Never refuses.
    writes: Admission,
}

impl Shared {
    /// Refuses a change of a class that may not go on after a fatal error.
    fn admit(&self, class: IoClass, op: IoOp) -> Result<()> {
        match (class, op) {
            (IoClass::Data, _) | (_, IoOp::Read) => Ok(()),
            _ => self.latch.get().map_or(Ok(()), Err),
        }
    }

    /// Accounts for a transfer that has ended, before anybody hears of it.
    fn ended(&self, class: IoClass, op: IoOp, bytes: u64, outcome: &Result<()>) {
        self.counters.transferred(class, op, bytes, outcome.is_ok());
        match outcome {
            Ok(()) if op == IoOp::Write => self.flushes.write_completed(),
            Err(error) if op == IoOp::Write && class != IoClass::Data => self.fail(error),
            _ => {}
        }
    }

    fn fail(&self, error: &Error) {
        if self.latch.set(error) {
            tracing::error!(%error, "the device failed; the volume takes no more changes");
        }
    }
}

impl Device {
    /// Takes over `backend`.
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Device> {
        Arc::new(Device {
            name: backend.name(),
            blocks: AtomicU64::new(backend.blocks()),
            backend,
            recorded: RecordedBlocks::default(),
            shared: Arc::new(Shared {
                flushes: FlushCombiner::new(),
                latch: ErrorLatch::new(),
                counters: Counters::new(),
                writes: Admission::default(),
            }),
        })
    }

    /// A device in memory, for tests and temporary volumes.
    pub fn in_memory(blocks: u64) -> Arc<Device> {
        Device::new(Arc::new(MemoryBackend::new(blocks)))
    }

    /// Size in blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Looks at the size again, and enlarges what can be enlarged from here to at least `blocks`; gives the
    /// size, which is what it was or larger.
    pub fn grow(&self, blocks: u64) -> Result<u64> {
        quire_base::patience::assert_may_wait("the device");
        self.backend.grow(blocks)?;
        self.blocks.fetch_max(self.backend.blocks(), Ordering::AcqRel);
        Ok(self.blocks())
    }

    /// What to call it in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether every change is refused.
    pub fn is_read_only(&self) -> bool {
        self.backend.is_read_only()
    }

    /// Blocks whose newest content is a record of the journal; reads of class Data see it.
    pub fn recorded(&self) -> &RecordedBlocks {
        &self.recorded
    }

    /// Fills `buf` (whole blocks) from `at`.
    pub fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        // SAFETY: `buf` is borrowed exclusively until the read returns.
        let segment = unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) };
        self.read_scattered(class, at, &[segment])
    }

    /// Fills scattered memory (each piece whole blocks) from `at`, on this thread.
    pub fn read_scattered(&self, class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<()> {
        quire_base::patience::assert_may_wait("the device");
        let bytes = segments.iter().map(|segment| segment.len() as u64).sum();
        backend::check_range(&self.name, self.blocks(), "reading", at, bytes)?;
        let overlay = match class {
            IoClass::Data => self.recorded.overlay(at, bytes / BLOCK_SIZE as u64),
            _ => Overlay::default(),
        };
        let read = |at, bytes, segments: &[Segment]| {
            let outcome = self.backend.read_scattered(class, at, segments);
            self.shared.ended(class, IoOp::Read, bytes, &outcome);
            outcome
        };
        if overlay.is_empty() {
            return read(at, bytes, segments);
        }
        overlay.apply(segments);
        overlay.gaps(bytes).into_iter().try_for_each(|gap| {
            let part = part_of(segments, &gap);
            read(at.offset((gap.start / BLOCK_SIZE) as u64), gap.len() as u64, &part)
        })
    }

    /// Writes `buf` (whole blocks) to `at` and returns when it has completed; durable after a flush.
    pub fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.write_and_keep(true, class, at, buf)
    }

    /// As [`Device::write`], over what is bad already and nothing depends on: a failure changes nothing, and
    /// is the caller's alone.
    pub fn mend(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.write_and_keep(false, class, at, buf)
    }

    /// Keeps the error of a write that ends changes, if `keeps`.
    fn write_and_keep(&self, keeps: bool, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        quire_base::patience::assert_may_wait("the device");
        self.shared.admit(class, IoOp::Write)?;
        let bytes = buf.len() as u64;
        backend::check_range(&self.name, self.blocks(), "writing", at, bytes)?;
        let _admitted = self.shared.writes.enter();
        let outcome = self.backend.write(class, at, buf);
        match outcome {
            Err(_) if !keeps => self.shared.counters.transferred(class, IoOp::Write, bytes, false),
            _ => self.shared.ended(class, IoOp::Write, bytes, &outcome),
        }
        outcome
    }

    /// Starts requests; each `done` runs once, on another thread or on this one before `submit` returns. It
    /// must not wait for I/O, and the caller must hold no lock that it takes. May wait for room in the queue,
    /// and with writes while these are held.
    pub fn submit(&self, class: IoClass, ios: Vec<Io>) {
        let mut accepted = Vec::with_capacity(ios.len());
        // One admission for all, before the first of them counts as under way.
        let writes = ios.iter().any(|io| io.op == IoOp::Write).then(|| self.shared.writes.enter()).flatten();
        let mut accept = |mut io: Io| {
            let (op, bytes, done, shared) = (io.op, io.bytes(), io.done, self.shared.clone());
            let admitted = writes.as_ref().filter(|_| op == IoOp::Write);
            let admitted = admitted.map(|writes| writes.another().into_number());
            io.done = Box::new(move |outcome| {
                shared.ended(class, op, bytes, &outcome);
                drop(admitted.map(|number| shared.writes.resume(number)));
                done(outcome);
            });
            accepted.push(io);
        };
        for io in ios {
            let checked = self
                .shared
                .admit(class, io.op)
                .and_then(|()| backend::check_io(&self.name, self.blocks(), &io));
            if let Err(error) = checked {
                (io.done)(Err(error));
                continue;
            }
            let overlay = match (class, io.op) {
                (IoClass::Data, IoOp::Read) => self.recorded.overlay(io.at, io.blocks()),
                _ => Overlay::default(),
            };
            if overlay.is_empty() {
                accept(io);
            } else {
                overlay.read_the_rest(io).into_iter().for_each(&mut accept);
            }
        }
        if !accepted.is_empty() {
            self.backend.submit(class, accepted);
        }
    }

    /// Counts completed writes: a write that has completed is at or below the mark read afterwards.
    pub fn mark(&self) -> u64 {
        self.shared.flushes.mark()
    }

    /// Everything up to this mark is known durable.
    pub fn flushed_mark(&self) -> u64 {
        self.shared.flushes.flushed_mark()
    }

    /// Makes everything up to `mark` (a value that [`Device::mark`] returned) durable: at once if it is known
    /// to be, else by a flush that is submitted after this call began or, shared with others, after the mark
    /// was reached. Fails with the latched error.
    pub fn flush_to(&self, mark: u64) -> Result<()> {
        quire_base::patience::assert_may_wait("the device");
        let counters = &self.shared.counters;
        counters.add(Tally::FlushRequests, 1);
        let served = self.shared.flushes.flush_to(mark, &self.shared.latch, || {
            counters.add(Tally::Flushes, 1);
            self.backend.flush().inspect_err(|error| {
                counters.add(Tally::FlushErrors, 1);
                self.shared.fail(error);
            })
        })?;
        match served {
            Served::AlreadyDurable => counters.add(Tally::FlushNeedless, 1),
            Served::Joined => counters.add(Tally::FlushJoined, 1),
            Served::Led => {}
        }
        Ok(())
    }

    /// Makes everything that has completed durable.
    pub fn flush(&self) -> Result<()> {
        self.flush_to(self.mark())
    }

    /// The error that ended changes, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.shared.latch.get()
    }

    /// Tells the medium that the blocks hold nothing of value. They may read as anything afterwards.
    /// `Unsupported` where the medium does not discard.
    pub fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let bytes = count.saturating_mul(quire_base::BLOCK_SIZE as u64);
        backend::check_range(&self.name, self.blocks(), "discarding", at, bytes)?;
        let _admitted = self.shared.writes.enter();
        self.shared.counters.add(Tally::Discards, 1);
        self.backend.discard(at, count)?;
        self.shared.counters.add(Tally::DiscardedBlocks, count);
        Ok(())
    }

    /// As [`Device::discard`], where a failure loses nothing: it is only logged.
    pub fn try_discard(&self, at: BlockNo, count: u64) {
        match self.discard(at, count) {
            Err(error) if error.kind() != ErrorKind::Unsupported => {
                tracing::warn!(%error, start = at.0, blocks = count, "discard failed");
            }
            _ => {}
        }
    }

    /// Keeps writes and discards back from now on, and waits for those under way. False if they are kept
    /// back already.
    pub fn hold_writes(&self) -> bool {
        self.shared.writes.hold()
    }

    /// Lets writes and discards go on that [`Device::hold_writes`] keeps back.
    pub fn release_writes(&self) {
        self.shared.writes.release();
    }

    /// A reading of the counters.
    pub fn stats(&self) -> DeviceStats {
        self.shared.counters.read()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Device {} ({} blocks, mark {}, flushed {}, failure {:?})",
            self.name,
            self.blocks(),
            self.mark(),
            self.flushed_mark(),
            self.failure()
        )
    }
}
