//! Batches that their caller waits for: many borrowed buffers, started together, neighbours gathered into one
//! transfer.
//!
//! Each transfer holds a `Ticket`; the batch is over when all tickets are dropped, whether their `done` ran
//! or was thrown away. Waiting happens even if submission panics (the waiter waits when dropped), so the
//! borrowed memory outlives every transfer. A batch that owns its memory can be waited for later.

use crate::aligned::AlignedBuf;
use crate::backend::{Io, IoClass, IoOp, Segment};
use crate::device::Device;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};

/// Longest transfer that gathering makes, in bytes.
const GATHERED_BYTES_MAX: usize = 1 << 20;

impl Device {
    /// Writes all items (whole blocks each), waits for all, and returns the first error met. Items that
    /// follow one another on the device and in the list travel as one transfer: sort by address.
    pub fn write_batch(&self, class: IoClass, items: &[(BlockNo, &[u8])]) -> Result<()> {
        quire_base::patience::assert_may_wait("the device");
        self.batch(
            class,
            IoOp::Write,
            items.iter().map(|(at, buf)| (*at, buf.as_ptr().cast_mut(), buf.len())),
        )
    }

    /// Reads all items (whole blocks each), waits for all, and returns the first error met.
    pub fn read_batch(&self, class: IoClass, items: &mut [(BlockNo, &mut [u8])]) -> Result<()> {
        quire_base::patience::assert_may_wait("the device");
        self.batch(class, IoOp::Read, items.iter_mut().map(|(at, buf)| (*at, buf.as_mut_ptr(), buf.len())))
    }

    /// Starts to write blocks of `buffer` and does not wait: each item names a place and the block of the
    /// buffer that goes there. A block may go to several places.
    pub fn start_write_batch(
        &self,
        class: IoClass,
        places: &[(BlockNo, usize)],
        mut buffer: AlignedBuf,
    ) -> StartedBatch {
        let blocks = buffer.len() / BLOCK_SIZE;
        let memory = buffer.as_mut_ptr();
        let mut items: Vec<_> = places
            .iter()
            .map(|&(at, block)| {
                assert!(block < blocks, "block {block} of a buffer of {blocks}");
                (at, memory.wrapping_add(block * BLOCK_SIZE), BLOCK_SIZE)
            })
            .collect();
        items.sort_by_key(|(at, ..)| *at);
        let waiter = Waiter::new();
        self.start(class, IoOp::Write, items.into_iter(), &waiter);
        StartedBatch { waiter, buffer }
    }

    /// The memory is borrowed by the callers until this returns.
    fn batch(
        &self,
        class: IoClass,
        op: IoOp,
        items: impl Iterator<Item = (BlockNo, *mut u8, usize)>,
    ) -> Result<()> {
        let waiter = Waiter::new();
        self.start(class, op, items, &waiter);
        waiter.wait()
    }

    /// Starts transfers that `waiter` waits for. It lives no longer than the memory of `items`.
    fn start(
        &self,
        class: IoClass,
        op: IoOp,
        items: impl Iterator<Item = (BlockNo, *mut u8, usize)>,
        waiter: &Waiter,
    ) {
        let mut ios: Vec<Io> = Vec::new();
        let mut end_of_last = (BlockNo(u64::MAX), 0);
        for (at, ptr, len) in items {
            // SAFETY: the memory outlives `waiter`: `batch` returns (or unwinds), and a `StartedBatch` frees
            // its buffer, only after `waiter` has seen every ticket dropped, that is after each `done` ran.
            let segment = unsafe { Segment::new(ptr, len) };
            let (expected, gathered) = end_of_last;
            match ios.last_mut() {
                Some(io) if expected == at && gathered + len <= GATHERED_BYTES_MAX => {
                    io.segments.push(segment);
                    end_of_last = (at.offset((len / BLOCK_SIZE) as u64), gathered + len);
                }
                _ => {
                    let ticket = waiter.ticket();
                    ios.push(Io {
                        op,
                        at,
                        segments: vec![segment],
                        done: Box::new(move |outcome| ticket.finish(outcome)),
                    });
                    end_of_last = (BlockNo(at.0.saturating_add((len / BLOCK_SIZE) as u64)), len);
                }
            }
        }
        self.submit(class, ios);
    }
}

/// Writes under way, with the memory that they take their bytes from. Waits for them at the latest when
/// dropped.
#[must_use]
pub struct StartedBatch {
    /// Before the buffer, which it must not outlive.
    waiter: Waiter,
    buffer: AlignedBuf,
}

impl StartedBatch {
    /// Waits for all writes; gives the memory back, or the first error met.
    pub fn wait(self) -> Result<AlignedBuf> {
        quire_base::patience::assert_may_wait("the device");
        let StartedBatch { waiter, buffer } = self;
        waiter.wait().map(|()| buffer)
    }
}

#[derive(Default)]
struct Progress {
    outstanding: usize,
    first_error: Option<Error>,
}

#[derive(Default)]
struct Gathering {
    progress: Mutex<Progress>,
    all_done: Condvar,
}

/// Waits for its tickets, at the latest when dropped.
struct Waiter(Arc<Gathering>);

impl Waiter {
    fn new() -> Waiter {
        Waiter(Arc::default())
    }

    fn ticket(&self) -> Ticket {
        self.0.progress.lock().outstanding += 1;
        Ticket { gathering: self.0.clone(), outcome: None }
    }

    fn wait(self) -> Result<()> {
        self.wait_for_all();
        self.0.progress.lock().first_error.take().map_or(Ok(()), Err)
    }

    fn wait_for_all(&self) {
        let mut progress = self.0.progress.lock();
        while progress.outstanding > 0 {
            self.0.all_done.wait(&mut progress);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

struct Ticket {
    gathering: Arc<Gathering>,
    outcome: Option<Result<()>>,
}

impl Ticket {
    fn finish(mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let outcome =
            self.outcome.take().unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "a transfer was abandoned")));
        let mut progress = self.gathering.progress.lock();
        progress.outstanding -= 1;
        if let Err(error) = outcome {
            progress.first_error.get_or_insert(error);
        }
        if progress.outstanding == 0 {
            self.gathering.all_done.notify_all();
        }
    }
}
