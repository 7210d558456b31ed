//! The blocks of a file that are to be written, as of one moment, and the wait until they have been written.
//!
//! Protocol. [`Mapping::snapshot`] notes, block by block, what is dirty or in writeback. [`Snapshot::start`]
//! gathers those of them that are dirty still. The snapshot is over when each of its blocks has left
//! writeback since, has been dropped, or has failed. Blocks that become dirty later are not waited for, so a
//! writer that goes on cannot keep it waiting.
//!
//! Each snapshot under way is in the mapping's list of *waits*, with the blocks that it still waits for. The
//! end of a run clears the blocks' writeback bits under the list's lock ([`Mapping::clear_writeback`]), gives
//! the segments back, and then takes the blocks out of the waits ([`Mapping::ended`]), but only out of those
//! that were in the list when it cleared the bits. A snapshot reads the bits under the same lock. So either
//! it sees the bit, and the end of that writeback releases it; or it comes later, and a block that it finds
//! dirty has been written to again since. Blocks that a gathering gives back unwritten
//! ([`Mapping::put_back`]) change their bits under the same lock; waits that concern them gather once more.
//!
//! When its gathering has passed, a snapshot looks at the bits once more: what is not in writeback then was
//! written, dropped or given back since, and nobody would end it.
//!
//! A snapshot whose range is kept off writeback ([`crate::hold`]) gathers nothing. It is over when the hold
//! ends, and gathers then: nobody is blocked meanwhile.
//!
//! Neighbours: [`crate::writeback`] gathers, [`crate::finish`] ends, [`crate::mapping`] has the list of
//! waits.

use crate::backing::Purpose;
use crate::bits::runs;
use crate::blocks::Blocks;
use crate::finish;
use crate::folio::FolioPin;
use crate::index::BLOCKS_END;
use crate::mapping::Mapping;
use crate::outbox::{Outbox, Queue};
use crate::span::Span;
use crate::writeback::Effort;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Condvar, MutexGuard};
use quire_base::{Error, Result};
use smallvec::SmallVec;
use std::time::Duration;

/// Gatherings in a row that pass over busy segments and start nothing, before one queues for them.
const PASSING_ROUNDS: u32 = 8;

/// Blocks that a gathering starts to write at a time, about. What is left follows when these have been
/// written: so the fsync of a large file keeps the device, and the thread that starts it, from nobody for
/// long.
const WAVE_BLOCKS: u64 = 4096;

/// The bits of a word that stand for `block` and those behind it.
fn from_block(number: u64, block: u64) -> u64 {
    match block.saturating_sub(number * 64) {
        0 => u64::MAX,
        skipped @ 1..64 => u64::MAX << skipped,
        _ => 0,
    }
}

/// Called when a snapshot is over.
pub type AtEnd = Box<dyn FnOnce() + Send>;

/// What somebody still waits for.
pub(crate) struct Wait {
    number: u64,
    /// In writeback, or to be gathered.
    pending: Blocks,
    /// Given back unwritten, or passed over: to be gathered once more.
    again: Blocks,
    /// Its own gathering is under way.
    is_gathering: bool,
    /// Somebody keeps writeback off its range: its gathering did nothing.
    is_behind_hold: bool,
    at_end: Option<AtEnd>,
    sleeper: Option<Arc<Condvar>>,
}

impl Wait {
    /// What it waits for from block `first` on is gathered once more, unseen.
    fn put_off(&mut self, first: u64) {
        let Wait { pending, again, .. } = self;
        pending.remove(first, BLOCKS_END, |number, bits| again.insert_bits(number, bits));
    }

    /// Whether nothing has to happen any more before its owner goes on.
    fn is_over(&self) -> bool {
        self.pending.is_empty() && !self.is_gathering && !self.is_behind_hold
    }
}

/// The waits that were in the list when blocks left writeback: those with lower numbers.
#[must_use = "waits are to be ended"]
pub(crate) struct WaitsBefore(u64);

/// The waits of a mapping.
#[derive(Default)]
pub(crate) struct Waits {
    next: u64,
    waits: Vec<Wait>,
    /// Gatherings under way, of whatever purpose: number, first block, end.
    gatherings: SmallVec<[(u64, u64, u64); 2]>,
    /// The range that writeback is kept off ([`crate::hold`]).
    pub(crate) held: Option<(u64, u64)>,
}

impl Waits {
    fn add(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        let (pending, again) = (Blocks::default(), Blocks::default());
        let (is_gathering, is_behind_hold) = (true, false);
        self.waits.push(Wait {
            number,
            pending,
            again,
            is_gathering,
            is_behind_hold,
            at_end: None,
            sleeper: None,
        });
        number
    }

    /// Whether writeback is kept off a part of `[first, end)`.
    pub(crate) fn is_held(&self, first: u64, end: u64) -> bool {
        self.held.is_some_and(|held| held.0 < end && first < held.1)
    }

    /// Whether a gathering of a part of `[first, end)` is under way.
    pub(crate) fn is_gathered(&self, first: u64, end: u64) -> bool {
        self.gatherings.iter().any(|(_, from, to)| *from < end && first < *to)
    }

    pub(crate) fn open_gathering(&mut self, first: u64, end: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.gatherings.push((number, first, end));
        number
    }

    pub(crate) fn close_gathering(&mut self, number: u64) {
        self.gatherings.retain(|gathering| gathering.0 != number);
    }

    fn find(&mut self, number: u64) -> Option<&mut Wait> {
        self.waits.iter_mut().find(|wait| wait.number == number)
    }

    fn remove(&mut self, number: u64) -> Option<Wait> {
        let at = self.waits.iter().position(|wait| wait.number == number)?;
        Some(self.waits.swap_remove(at))
    }
}

/// See the module's documentation. Dropping it ends the wait, not the writeback.
pub struct Snapshot {
    mapping: Arc<Mapping>,
    first: u64,
    end: u64,
    blocks: Blocks,
    /// The number of its wait; none if there was nothing to wait for.
    wait: Option<u64>,
    /// Gatherings in a row that have started nothing.
    rounds: u32,
    /// What went wrong in one.
    failed: Option<Error>,
}

/// What is over when a snapshot is, for those who are to be called then.
pub struct SnapshotEnd {
    mapping: Arc<Mapping>,
    wait: u64,
}

impl SnapshotEnd {
    /// Has `at_end` called when the snapshot is over, on the thread that ends it; gives it back if it is over
    /// already.
    pub fn call(&self, at_end: AtEnd) -> Option<AtEnd> {
        let mut waits = self.mapping.waits.lock();
        match waits.find(self.wait) {
            Some(wait) if !wait.is_over() => {
                wait.at_end = Some(at_end);
                None
            }
            _ => Some(at_end),
        }
    }
}

impl Mapping {
    /// What is dirty or in writeback in blocks `[first, end)` now. [`Snapshot::start`] is to follow, or
    /// [`crate::Cache::start_snapshots`].
    pub fn snapshot(&self, first: u64, end: u64) -> Snapshot {
        self.take_snapshot(first, end, true)
    }

    /// What is in writeback in blocks `[first, end)` now, and with `dirty` what is dirty.
    pub(crate) fn take_snapshot(&self, first: u64, end: u64, dirty: bool) -> Snapshot {
        let end = end.min(BLOCKS_END);
        let mapping = self.this();
        let mut snapshot =
            Snapshot { mapping, first, end, blocks: Blocks::default(), wait: None, rounds: 0, failed: None };
        // Folios are added at the end while this looks; what lies beyond the last one now was written later.
        let stop = self.listed_end().min(end);
        let mut at = first;
        let mut found: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        while at < stop {
            let mut waits = self.waits.lock();
            at = self.for_listed_words(at, stop, |number, dirty_bits, writeback| {
                let bits = writeback | if dirty { dirty_bits } else { 0 };
                if bits != 0 {
                    found.push((number, bits));
                }
            });
            if found.is_empty() {
                continue;
            }
            let number = *snapshot.wait.get_or_insert_with(|| waits.add());
            let wait = waits.find(number).expect("it was put there");
            for (number, bits) in found.drain(..) {
                snapshot.blocks.insert_bits(number, bits);
                wait.pending.insert_bits(number, bits);
            }
        }
        if !dirty && let Some(number) = snapshot.wait {
            // There is nothing to gather.
            self.end_gathering(number, |_, _| {});
        }
        snapshot
    }

    /// Ends a snapshot's gathering. `change` hears whether writeback is kept off a range now.
    fn end_gathering(&self, number: u64, change: impl FnOnce(&mut Wait, bool)) {
        let mut waits = self.waits.lock();
        let is_hold_alive = waits.held.is_some();
        if let Some(wait) = waits.find(number) {
            change(wait, is_hold_alive);
            wait.is_gathering = false;
        }
        self.tell(waits);
    }

    /// Nobody keeps writeback off a range any more: snapshots that did not get at their blocks gather again.
    pub(crate) fn end_hold(&self) {
        let mut waits = self.waits.lock();
        waits.held = None;
        waits.waits.iter_mut().for_each(|wait| wait.is_behind_hold = false);
        self.tell(waits);
    }

    /// Wakes those whose wait is over, without the lock.
    fn tell(&self, mut waits: MutexGuard<'_, Waits>) {
        let mut called: SmallVec<[AtEnd; 1]> = SmallVec::new();
        for wait in waits.waits.iter_mut().filter(|wait| wait.is_over()) {
            if let Some(sleeper) = &wait.sleeper {
                sleeper.notify_all();
            }
            called.extend(wait.at_end.take());
        }
        drop(waits);
        self.core.finisher.wake_helpers(&self.core);
        called.into_iter().for_each(|at_end| at_end());
    }

    /// Clears the writeback bits of blocks that have been written and applied, or have failed.
    /// [`Mapping::ended`] is to follow, with what this returns.
    pub(crate) fn clear_writeback(&self, spans: &[Span]) -> WaitsBefore {
        let waits = self.waits.lock();
        for span in spans {
            span.pin.writeback().clear(span.first, span.first + span.count);
        }
        WaitsBefore(waits.next)
    }

    /// Ends the waits for blocks that have left writeback, as far as these waits began before the blocks left
    /// it.
    pub(crate) fn ended(&self, blocks: &[(u64, u64)], before: WaitsBefore) {
        let mut waits = self.waits.lock();
        let concerned = waits.waits.iter_mut().filter(|wait| wait.number < before.0);
        for Wait { pending, again, .. } in concerned {
            for (first, end) in blocks {
                pending.remove(*first, *end, |_, _| {});
                again.remove(*first, *end, |_, _| {});
            }
        }
        self.tell(waits);
    }

    /// Makes blocks in writeback dirty again, as if never taken. The caller gives the segments' shares back
    /// afterwards.
    pub(crate) fn put_back(&self, spans: &[Span]) {
        let mut waits = self.waits.lock();
        for span in spans {
            span.set_dirty();
            for Wait { pending, again, .. } in &mut waits.waits {
                pending
                    .remove(span.file_block(), span.end_block(), |word, bits| again.insert_bits(word, bits));
            }
        }
        self.relist(spans);
        self.tell(waits);
    }

    /// Lists the folios of blocks that have gone from writeback back to dirty. A look that had found them not
    /// dirty before, and then not in writeback, may have taken one off the list.
    pub(crate) fn relist(&self, spans: &[Span]) {
        spans.iter().for_each(|span| self.enlist(&span.pin, span.pin.folio()));
    }

    /// Takes writeback bits back that were set in vain: another thread had claimed these blocks, and they may
    /// be written by now. A look that met such a bit waits for nothing: it gathers once more.
    #[cold]
    pub(crate) fn not_in_flight(&self, pin: &FolioPin, word: usize, bits: u64) {
        let mut waits = self.waits.lock();
        pin.writeback().word(word).fetch_and(!bits, Ordering::SeqCst);
        for (first, count) in runs(word, bits) {
            let start = pin.start() + u64::from(first);
            for Wait { pending, again, .. } in &mut waits.waits {
                pending.remove(start, start + u64::from(count), |word, bits| again.insert_bits(word, bits));
            }
        }
        self.tell(waits);
        self.settle(pin);
    }
}

impl Snapshot {
    /// Blocks that were dirty or in writeback.
    pub fn len(&self) -> u64 {
        self.blocks.len()
    }

    /// Whether there was nothing to write or wait for.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Starts writing all that is dirty of it, and waits for nothing but segments that others hold.
    pub fn start(&mut self) {
        let mut outbox = Outbox::new(self.mapping.core.clone(), Queue::Forced);
        self.gather_some(&mut outbox, false, Purpose::Writeback, u64::MAX);
    }

    /// As [`Snapshot::start`], for callers who wait next: a single request, with nothing to be done beside
    /// it, is written by the calling thread, which spares three changes of threads.
    pub fn start_here(&mut self, purpose: Purpose) {
        let mut outbox = Outbox::new(self.mapping.core.clone(), Queue::Forced);
        self.gather_some(&mut outbox, false, purpose, WAVE_BLOCKS);
        outbox.write_here();
    }

    /// Puts what is dirty of it into the outbox. With `passing` it does not wait for segments that others
    /// hold.
    pub(crate) fn gather(&mut self, outbox: &mut Outbox, passing: bool) {
        self.gather_some(outbox, passing, Purpose::Writeback, WAVE_BLOCKS);
    }

    /// As [`Snapshot::gather`], until there are about `blocks_max`. What is left is gathered when these have
    /// been written.
    fn gather_some(&mut self, outbox: &mut Outbox, passing: bool, purpose: Purpose, blocks_max: u64) {
        let Some(number) = self.wait else { return };
        let passing = passing && self.rounds < PASSING_ROUNDS;
        let effort = Effort::Forced { blocks: &self.blocks, passing, purpose };
        let (from, to) = (self.blocks.start().max(self.first), self.blocks.end().min(self.end));
        let (mut busy, mut is_held, mut seen_to) = (Vec::new(), false, to);
        match self.mapping.gather(outbox, from, to, effort, blocks_max) {
            Ok(gathered) => {
                self.rounds = if gathered.started > 0 { 0 } else { self.rounds + 1 };
                (busy, is_held) = (gathered.busy, gathered.is_held);
                seen_to = if is_held { from } else { gathered.next };
            }
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
        // A busy segment's holder may wait for any of these in turn.
        let around: Vec<(u64, u64)> =
            busy.iter().map(|(first, end)| (*first, end + self.mapping.core.batch_blocks())).collect();
        // What comes behind is for the next wave: no look at all the folios that are left, at each wave.
        let looked_to = if is_held { to } else { seen_to };
        let stop = around.last().map_or(looked_to, |(_, end)| looked_to.max(*end));
        let mut at = from;
        while at < stop {
            let mut waits = self.mapping.waits.lock();
            let mut in_flight: SmallVec<[(u64, u64); 4]> = SmallVec::new();
            let next = self.mapping.for_listed_words(at, stop, |number, _, writeback| {
                if writeback != 0 {
                    in_flight.push((number, writeback));
                }
            });
            let Some(wait) = waits.find(number) else { return };
            let mut waited = Blocks::default();
            wait.pending.remove(at, next, |number, bits| waited.insert_bits(number, bits));
            // What was not looked at and is not in writeback may be dirty still.
            for (number, bits) in waited.words() {
                wait.again.insert_bits(*number, bits & from_block(*number, seen_to));
            }
            for (number, bits) in in_flight {
                let base = number * 64;
                let mut ours = waited.word(number);
                wait.again.remove(base, base + 64, |_, lost| ours |= lost);
                let ended = waited.word(number) & !from_block(number, seen_to);
                let back = ours & !bits & !ended;
                wait.again.insert_bits(number, back);
                if around.iter().any(|(first, end)| *first < base + 64 && base < *end) {
                    ours |= bits;
                }
                wait.pending.insert_bits(number, ours & bits);
            }
            at = next;
        }
        self.mapping.end_gathering(number, |wait, is_hold_alive| {
            wait.is_behind_hold = is_held && is_hold_alive;
            wait.put_off(stop);
            for (first, end) in busy {
                (first..end).filter(|block| self.blocks.contains(*block)).for_each(|block| {
                    wait.again.insert_bits(block / 64, 1 << (block % 64));
                });
            }
        });
    }

    /// What it waits for now; `None`: it is over. Where blocks were given back unwritten it gathers them
    /// again first, and does not wait with `passing` for segments that others hold.
    pub fn advance(&mut self, passing: bool) -> Option<SnapshotEnd> {
        while let Some(number) = self.wait {
            let mut waits = self.mapping.waits.lock();
            let wait = waits.find(number).expect("it waits");
            if !wait.is_over() {
                return Some(SnapshotEnd { mapping: self.mapping.clone(), wait: number });
            }
            // A gathering that failed has given its blocks back: gathering them again would fail again.
            if wait.again.is_empty() || self.failed.is_some() {
                waits.remove(number);
                drop(waits);
                self.wait = None;
                return None;
            }
            wait.pending = std::mem::take(&mut wait.again);
            wait.is_gathering = true;
            self.blocks = wait.pending.clone();
            drop(waits);
            self.gather(&mut Outbox::new(self.mapping.core.clone(), Queue::Forced), passing);
        }
        None
    }

    /// Waits until it is over. Fails if a block of its range has failed and is still not written.
    pub fn wait(&mut self) -> Result<()> {
        self.wait_out();
        self.outcome()
    }

    /// Waits until it is over, whatever comes of it.
    pub(crate) fn wait_out(&mut self) {
        while self.advance(false).is_some() {
            self.wait_in_flight();
        }
        // Its gathering may have taken blocks that were written to again, and that it does not wait for.
        finish::finish_queued(&self.mapping.core);
    }

    /// Waits for what was in writeback or has been gathered, and gathers nothing again. Without background
    /// threads the waiter finishes what completes.
    pub(crate) fn wait_in_flight(&self) {
        let Some(number) = self.wait else { return };
        let (core, waits) = (&self.mapping.core, &self.mapping.waits);
        let mut held = waits.lock();
        let sleeper = Arc::new(Condvar::new());
        while let Some(wait) = held.find(number).filter(|wait| !wait.is_over()) {
            wait.sleeper = Some(sleeper.clone());
            if core.running.load(Ordering::Acquire) {
                // Looks again now and then: the threads may be stopped meanwhile.
                sleeper.wait_for(&mut held, Duration::from_millis(100));
            } else {
                drop(held);
                finish::help(core, || waits.lock().find(number).is_some_and(|wait| !wait.is_over()));
                held = waits.lock();
            }
        }
    }

    /// What has come of it: an error if a block of its range has failed and is still not written.
    pub fn outcome(&self) -> Result<()> {
        let failed = self.mapping.errors.within(self.first, self.end).or_else(|| self.failed.clone());
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(number) = self.wait {
            let gone = self.mapping.waits.lock().remove(number);
            drop(gone);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_of_blocks_agrees_with_a_plain_one() {
        let (mut blocks, mut model) = (Blocks::default(), BTreeSet::new());
        let mut random = Random::seeded(3);
        for _ in 0..5000 {
            let first = random.below(600);
            let end = first + random.below(100);
            if random.below(3) > 0 {
                let bits = random.next_u64() & random.next_u64();
                blocks.insert_bits(first / 64, bits);
                model.extend((0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| first / 64 * 64 + bit));
            } else {
                let mut lost = 0;
                blocks.remove(first, end, |_, bits| lost += bits.count_ones() as usize);
                let before = model.len();
                model.retain(|block| !(first..end).contains(block));
                assert_eq!(lost, before - model.len());
            }
            assert_eq!(blocks.len(), model.len() as u64);
            assert!((0..700).all(|block| blocks.contains(block) == model.contains(&block)));
        }
    }
}
