//! The end of a device write: apply its extents, clear `writeback`, release the blocks.
//!
//! Completions of the device only count; the last one of a run puts it in a queue, and finisher threads take
//! it from there, as applying may wait for a transaction. Without background threads a thread that waits for
//! writeback does it, and a thread that starts writeback waits for it: else the next writer of such a block
//! would wait for a share that nobody gives back. A thread that wrote a run itself always does. The thread
//! that stops the finishers finishes what is left, and waits for what is still at the device
//! ([`finish_all`]).
//!
//! Order for a run that succeeded: applied, `mapped` set, `writeback` cleared, shares given back, unlisted,
//! waits ended. For one that failed: `dirty` set (so no look at the file finds the blocks neither dirty nor
//! in flight), the backing takes its space back, the error recorded, `writeback` cleared, shares given back,
//! waits ended. Writers may change a block as soon as its share is given back; waits that begin then are
//! another run's to end.
//!
//! Neighbours: [`crate::writeback`] makes runs, [`crate::backing::Backing::written`] applies them.

use crate::backing::{Backing, Placement};
use crate::core::Core;
use crate::mapping::Mapping;
use crate::snapshot::WaitsBefore;
use crate::span::Span;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, Result};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// A placed run with its requests at the device.
pub(crate) struct WriteRun {
    /// First, so that its pins go before the references below: either may be the last to the mapping, whose
    /// end waits until nobody has one of its folios pinned.
    spans: Vec<Span>,
    mapping: Arc<Mapping>,
    backing: Arc<dyn Backing>,
    state: Mutex<RunState>,
}

struct RunState {
    placement: Option<Placement>,
    pending: usize,
    error: Option<Error>,
}

impl WriteRun {
    pub fn new(
        mapping: Arc<Mapping>,
        backing: Arc<dyn Backing>,
        placement: Placement,
        spans: Vec<Span>,
        pending: usize,
    ) -> WriteRun {
        let state = Mutex::new(RunState { placement: Some(placement), pending, error: None });
        mapping.core.runs.fetch_add(1, Ordering::AcqRel);
        WriteRun { mapping, backing, spans, state }
    }

    /// A request has completed; true for the last one.
    pub fn request_done(&self, outcome: Result<()>) -> bool {
        let mut state = self.state.lock();
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        state.pending -= 1;
        state.pending == 0
    }

    /// What follows the last request.
    pub fn finish(&self) {
        let (placement, error) = {
            let mut state = self.state.lock();
            (state.placement.take(), state.error.take())
        };
        let Some(placement) = placement else { return };
        if error.is_some() {
            // So no look at the file finds the blocks neither dirty nor in flight.
            set_dirty(&self.spans);
        }
        let written = self.backing.written(placement, error.clone().map_or(Ok(()), Err));
        end_run(&self.mapping, &self.spans, error.map_or(written, Err));
    }
}

impl Drop for WriteRun {
    fn drop(&mut self) {
        self.mapping.core.runs.fetch_sub(1, Ordering::AcqRel);
    }
}

fn set_dirty(spans: &[Span]) {
    for span in spans {
        span.pin.dirty().set(span.first, span.first + span.count);
    }
}

/// Ends the writeback of blocks that have been written, or journaled, and applied; or that have failed, and
/// are dirty again.
pub(crate) fn end_run(mapping: &Arc<Mapping>, spans: &[Span], outcome: Result<()>) {
    let core = &mapping.core;
    if let Err(error) = &outcome {
        set_dirty(spans);
        core.metrics.writeback_errors.add(1);
        tracing::warn!(inode = %mapping.inode, %error, "writeback failed; the blocks stay dirty");
    }
    let now = core.clock.now();
    let mut cleaned = 0;
    for span in spans {
        match &outcome {
            Ok(()) => {
                span.pin.mapped().set(span.first, span.first + span.count);
                mapping.errors.clear(span.file_block(), span.end_block());
                cleaned += u64::from(span.count);
            }
            Err(error) => mapping.errors.record(span.file_block(), span.end_block(), error, now),
        }
    }
    let waits = mapping.clear_writeback(spans);
    if outcome.is_err() {
        mapping.relist(spans);
    }
    settle(mapping, spans, cleaned, waits, |span| span.unshare(&mapping.core.parking));
}

/// What follows when blocks have left writeback, `cleaned` of them clean: `let_go` is called for each span,
/// folios that are clean leave the list, and waits end.
pub(crate) fn settle(
    mapping: &Arc<Mapping>,
    spans: &[Span],
    cleaned: u64,
    waits: WaitsBefore,
    let_go: impl Fn(&Span),
) {
    // Read before the folios may leave: one that has left may hold other blocks when the waits are ended.
    let blocks: SmallVec<[(u64, u64); 16]> =
        spans.iter().map(|span| (span.file_block(), span.end_block())).collect();
    // Of the folio at hand, held by this run.
    let mut pins = 0;
    let drops = mapping.backing().is_ok_and(|backing| backing.drops());
    for (i, span) in spans.iter().enumerate() {
        let_go(span);
        pins += 1;
        // Once a folio, after its last span.
        if spans.get(i + 1).is_none_or(|next| next.pin.folio() != span.pin.folio()) {
            mapping.settle(&span.pin);
            let fleeting = drops || span.pin.fleeting.load(Ordering::SeqCst);
            if fleeting && !span.pin.listed.load(Ordering::SeqCst) {
                // Removed or not: if it is gone, the run's pins were the last and count for nothing any more.
                mapping.remove(span.pin.start(), span.pin.folio(), pins);
            }
            pins = 0;
        }
    }
    mapping.core.cleaned(cleaned);
    mapping.ended(&blocks, waits);
}

/// The queue of completed runs.
#[derive(Default)]
pub(crate) struct Finisher {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    runs: VecDeque<Arc<WriteRun>>,
    stop: bool,
}

impl Finisher {
    /// Adds a run; called on the device's completion thread.
    pub fn push(&self, run: Arc<WriteRun>) {
        self.queue.lock().runs.push_back(run);
        self.ready.notify_one();
    }

    fn take(&self) -> Option<Arc<WriteRun>> {
        self.queue.lock().runs.pop_front()
    }

    /// Lets those look again who wait in [`help`].
    pub fn wake_helpers(&self, core: &Core) {
        if !core.running.load(Ordering::Acquire) {
            drop(self.queue.lock());
            self.ready.notify_all();
        }
    }

    /// Whether [`Finisher::work`] ends when the queue is empty.
    pub fn set_stop(&self, stop: bool) {
        self.queue.lock().stop = stop;
        self.ready.notify_all();
    }

    /// The body of a finisher thread.
    pub fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let run = loop {
                if let Some(run) = queue.runs.pop_front() {
                    break run;
                }
                if queue.stop {
                    return;
                }
                self.ready.wait(&mut queue);
            };
            drop(queue);
            run.finish();
        }
    }
}

/// Without background threads, finishes what has completed: those who started it may wait for nothing of it
/// any more.
pub(crate) fn finish_queued(core: &Core) {
    while !core.running.load(Ordering::Acquire)
        && let Some(run) = core.finisher.take()
    {
        run.finish();
    }
}

/// Finishes every run that there is, those included that are still at the device: the finisher threads have
/// ended. A run that nobody took from the queue would keep its file, the volume and this queue for ever.
pub(crate) fn finish_all(core: &Core) {
    let any = || core.runs.load(Ordering::Acquire) > 0;
    while any() {
        help(core, any);
    }
}

/// Finishes one run, or waits for one while `waits` holds: what a waiter does when there are no finisher
/// threads. `waits` is asked under the queue's lock, which the thread that ends the wait passes through
/// afterwards.
pub(crate) fn help(core: &Core, waits: impl Fn() -> bool) {
    let mut queue = core.finisher.queue.lock();
    if queue.runs.is_empty() && waits() {
        // A limit, as the threads may have been stopped with a run in hand.
        core.finisher.ready.wait_for(&mut queue, Duration::from_millis(10));
    }
    drop(queue);
    if let Some(run) = core.finisher.take() {
        run.finish();
    }
}
