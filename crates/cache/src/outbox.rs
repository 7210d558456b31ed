//! Write requests on their way to the device.
//!
//! A request that begins where the last one ends on the device joins it, whatever files the two belong to:
//! small files that are written together, and so have their homes next to each other, are few large writes. A
//! joined request that fails has failed for every run in it.
//!
//! Invariant: a thread that fills an outbox waits for nothing while it holds requests; it hands over first.
//! So what is in writeback always ends by itself (C2).
//!
//! Neighbours: [`crate::writeback`] fills it, [`crate::finish`] takes the runs when they are done.

use crate::core::Core;
use crate::finish::WriteRun;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::{Io, IoClass, IoOp, Segment};

/// Requests that are kept for joining, or handed to the device at a time.
const REQUESTS_AT_ONCE: usize = 16;
/// Pieces of memory in a joined request.
const SEGMENTS_MAX: usize = 256;
/// Pieces of memory that the calling thread writes, one after the other.
const PIECES_HERE_MAX: usize = 2;

/// Which requests an outbox takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Those that nobody waits for: only so many are with the device at a time, as a later flush waits for
    /// them all.
    Background,
    /// Those of an fsync. Nothing holds them up.
    Forced,
}

/// See the module's documentation.
pub(crate) struct Outbox {
    core: Arc<Core>,
    queue: Queue,
    open: Vec<Joined>,
    /// Some of what was in it is with the device, or was.
    handed_over: bool,
}

struct Joined {
    at: BlockNo,
    blocks: u64,
    segments: Vec<Segment>,
    /// Each once for each of its requests in here.
    runs: Vec<Arc<WriteRun>>,
}

impl Joined {
    fn takes(&self, at: BlockNo, blocks: u64, segments: usize, blocks_max: u64) -> bool {
        self.at.offset(self.blocks) == at
            && self.blocks + blocks <= blocks_max
            && self.segments.len() + segments <= SEGMENTS_MAX
    }
}

impl Outbox {
    /// Nothing in it.
    pub fn new(core: Arc<Core>, queue: Queue) -> Outbox {
        Outbox { core, queue, open: Vec::new(), handed_over: false }
    }

    /// Adds a request of a run. In the background it may wait for the device, with everything handed over.
    pub fn push(&mut self, at: BlockNo, blocks: u64, segments: Vec<Segment>, run: Arc<WriteRun>) {
        let blocks_max = u64::from(self.core.config.io_blocks_max);
        let mut joins =
            self.open.last().is_some_and(|last| last.takes(at, blocks, segments.len(), blocks_max));
        if self.queue == Queue::Background && !self.core.try_enter_inflight(u32::from(!joins), blocks) {
            self.hand_over();
            self.core.enter_inflight(blocks);
            joins = false;
        }
        if joins && let Some(last) = self.open.last_mut() {
            last.blocks += blocks;
            last.segments.extend(segments);
            last.runs.push(run);
            self.core.metrics.writeback_joined.add(1);
            return;
        }
        if self.open.len() >= REQUESTS_AT_ONCE {
            self.hand_over();
        }
        self.open.push(Joined { at, blocks, segments, runs: vec![run] });
    }

    /// Writes its content on this thread if that is few pieces of memory, and nothing was handed over before;
    /// else hands it over: a write of this thread takes less time than one with a completion thread and a
    /// finisher behind it.
    /// The caller holds nothing that the end of a run waits for.
    pub fn write_here(mut self) {
        let pieces: usize = self.open.iter().map(|joined| joined.segments.len()).sum();
        if self.handed_over || pieces > PIECES_HERE_MAX {
            return;
        }
        debug_assert!(self.queue == Queue::Forced);
        for Joined { at, segments, runs, .. } in std::mem::take(&mut self.open) {
            self.core.metrics.writeback_ios.add(1);
            let (mut at, mut outcome) = (at, Ok(()));
            for segment in &segments {
                // SAFETY: arena memory of pinned folios, whose segments are shared until the run is finished.
                let bytes = unsafe { std::slice::from_raw_parts(segment.ptr(), segment.len()) };
                outcome = outcome.and_then(|()| self.core.device.write(IoClass::Data, at, bytes));
                at = at.offset((segment.len() / BLOCK_SIZE) as u64);
            }
            for run in runs {
                if run.request_done(outcome.clone()) {
                    run.finish();
                }
            }
        }
    }

    /// Hands what is in it to the device.
    pub fn hand_over(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.handed_over = true;
        self.core.metrics.writeback_ios.add(self.open.len() as u64);
        let (core, queue) = (&self.core, self.queue);
        let ios = self.open.drain(..).map(|joined| request(core, queue, joined)).collect();
        self.core.device.submit(IoClass::Data, ios);
    }
}

fn request(core: &Arc<Core>, queue: Queue, joined: Joined) -> Io {
    let (core, blocks, runs) = (core.clone(), joined.blocks, joined.runs);
    Io {
        op: IoOp::Write,
        at: joined.at,
        segments: joined.segments,
        done: Box::new(move |outcome| {
            if queue == Queue::Background {
                core.leave_inflight(blocks);
            }
            for run in runs {
                if run.request_done(outcome.clone()) {
                    core.finisher.push(run);
                }
            }
        }),
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.hand_over();
    }
}
