//! Background writeback: what is written when nobody asked.
//!
//! A step takes mappings with unfinished blocks from the front of a line ([`crate::dirty_line`]), those that
//! wait longest first, and no more of them than it writes. Over the background threshold, and where threads
//! wait for memory, it writes whatever there is, below it what is due; a file that failed a moment ago waits
//! a second. A step puts about [`STEP_BLOCKS`] under way at most; a file with more stays in front, and the
//! next step goes on with it. All are started before any is waited for. Then clean folios are dropped ahead
//! of need.
//!
//! Dirty data is due at an age of half a minute, that of files which programs make durable after a second
//! ([`Mapping::note_forced`]). An fsync waits for all that is dirty, and on a mount the kernel keeps writers
//! out of the file meanwhile, and those who ask for its end: a checkpoint of a database would find the pages
//! of half a minute. Below the threshold the background threads write in small parts with pauses between
//! them, since a flush of the device waits for all that the device is writing; the more is dirty, the larger
//! the parts.
//!
//! A block in writeback cannot be written to until the device is done with it (C2), so a pass leaves the end
//! of a growing file alone ([`Mapping::tail`]): a log that is appended to would wait at every pass. Over the
//! threshold a file of which nothing else is dirty keeps its end for [`TAIL_NANOS`]. The end is written like
//! the rest when it is half a minute old, and when writers are about to be slowed. What a pass leaves behind
//! keeps its age, for the next one.
//!
//! Files with few dirty folios are one thread's at a time, so that they get their homes next to each other
//! and their writes join; the other threads take the large ones meanwhile.
//!
//! Without threads the same step runs when it is called ([`crate::Cache::background_step`]) or when a writer
//! meets a limit; nothing in it depends on time but through the clock, nor on the order of a hash table.
//!
//! Neighbours: [`crate::writeback`] gathers, [`crate::throttle`] and [`crate::core`] kick.

use crate::core::Core;
use crate::dirty_line::Which;
use crate::mapping::Mapping;
use crate::outbox::{Outbox, Queue};
use crate::reclaim;
use crate::snapshot::Snapshot;
use crate::throttle;
use crate::writeback::Effort;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Timestamp};
use std::time::Duration;

/// Blocks that one step puts under way (16 MiB).
const STEP_BLOCKS: u64 = 4096;
/// The part of what is dirty that one paced step puts under way, and its least number of blocks.
const PACED_SHARE: u64 = 64;
const PACED_BLOCKS_MIN: u64 = 32;
/// Between two paced steps.
const PACED_PAUSE: Duration = Duration::from_millis(10);
/// Age at which dirty data of a file that programs make durable is written, nanoseconds.
const EARLY_NANOS: i64 = 1_000_000_000;
/// Time before a file whose writeback failed is tried again in the background, nanoseconds.
const RETRY_NANOS: i64 = 1_000_000_000;
/// Blocks before the end of a file from which on the end is left alone (1 MiB): two requests and two records
/// in place of one are much for a smaller file.
const TAIL_BEHIND_BLOCKS: u64 = 256;
/// Time for which the end of a growing file is left alone, if nothing else of the file is dirty, nanoseconds.
const TAIL_NANOS: i64 = 1_000_000_000;
/// How often a background thread looks by itself.
const PERIOD: Duration = Duration::from_millis(500);

/// What a step writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// What is due; over the background threshold whatever there is.
    Due,
    /// Whatever there is: threads wait for memory, and what is clean cannot be dropped. One dirty block keeps
    /// all of its folio, so little may be dirty then.
    Memory,
    /// As `Memory`, what failed a moment ago as well, and the end of a growing file.
    All,
}

/// One step of everything; true if it did something.
pub(crate) fn step(core: &Arc<Core>) -> bool {
    let wrote = write_some(core, Need::Due);
    let reclaimed = reclaim_ahead(core);
    count_step(core, wrote || reclaimed);
    wrote || reclaimed
}

fn count_step(core: &Core, did_something: bool) {
    if did_something {
        core.metrics.flusher_steps.add(1);
    }
}

/// Writes a part of what is dirty and waits for it; true if blocks have become clean.
pub(crate) fn write_some(core: &Arc<Core>, need: Need) -> bool {
    let before = core.cleaned_blocks.load(Ordering::Relaxed);
    let force = need == Need::All;
    let over = need != Need::Due || is_over(core);
    // Without background threads nobody else makes progress meanwhile: who comes second waits.
    let turn = if core.running.load(Ordering::Acquire) {
        core.small_files.try_lock()
    } else {
        Some(core.small_files.lock())
    };
    let mut outbox = Outbox::new(core.clone(), Queue::Background);
    let mut pass = Step {
        core,
        force,
        over,
        // Those that join the line or go back meanwhile are for the next step.
        end: core.dirty.lock().end(),
        now: core.clock.now(),
        left: if over || !core.running.load(Ordering::Acquire) { STEP_BLOCKS } else { paced_blocks(core) },
        started: Vec::new(),
    };
    let only_large = turn.is_none();
    if over {
        pass.take(&mut outbox, Which { only_large, is_early: None });
    } else {
        pass.take(&mut outbox, Which { only_large, is_early: Some(true) });
        pass.take(&mut outbox, Which { only_large, is_early: Some(false) });
    }
    let mut started = pass.started;
    drop(outbox);
    drop(turn);
    started.iter_mut().for_each(Snapshot::wait_out);
    core.cleaned_blocks.load(Ordering::Relaxed) != before
}

/// What one step writes.
struct Step<'a> {
    core: &'a Arc<Core>,
    force: bool,
    /// It writes whatever there is.
    over: bool,
    end: u64,
    now: Timestamp,
    /// Blocks that it may still put under way.
    left: u64,
    started: Vec<Snapshot>,
}

impl Step<'_> {
    /// Takes from the front of the line what is due.
    fn take(&mut self, outbox: &mut Outbox, which: Which) {
        let core = self.core;
        let (early, late) = (EARLY_NANOS, core.config.dirty_age_nanos);
        let age = if which.is_early == Some(true) { early.min(late) } else { late };
        let mut from = 0;
        while self.left > 0 {
            let Some((waiting, next)) = core.dirty.lock().first(from, self.end, which) else { return };
            from = next;
            core.metrics.flusher_looks.add(1);
            if !self.over && !self.is_old(waiting.since, age) {
                return;
            }
            let Some(mapping) = waiting.what.upgrade() else { continue };
            let since = mapping.left_since().unwrap_or(waiting.since);
            let written = self.force
                || self.is_old(since, core.config.dirty_age_nanos)
                || !throttle::is_far_below_limit(core);
            let tail = match written {
                true => Tail::Written,
                // Small as it may be: an fsync does not wait for it for long.
                false if !self.over => Tail::Left(0),
                false if self.is_old(waiting.since, TAIL_NANOS) => Tail::LeftBehindOthers,
                false => Tail::Left(TAIL_BEHIND_BLOCKS),
            };
            let failed_at = mapping.errors.failed_at().filter(|_| !self.force);
            let failed = failed_at.is_some_and(|at| !self.is_old(at, RETRY_NANOS));
            if failed || mapping.flushing.swap(true, Ordering::Acquire) {
                continue;
            }
            if let Some((blocks, in_flight)) = gather_some(&mapping, outbox, self.left, tail, since) {
                self.left = self.left.saturating_sub(blocks);
                self.started.push(in_flight);
            } else if !self.over {
                // It does not stay in front only because of its end.
                mapping.gathered(Some(since));
            }
            mapping.flushing.store(false, Ordering::Release);
        }
    }

    /// Whether something has waited for so long. The clock may have been set back.
    fn is_old(&self, since: Timestamp, age: i64) -> bool {
        since > self.now || self.now.0.saturating_sub(since.0) >= age
    }
}

/// Whether more is dirty than may wait for its time.
fn is_over(core: &Core) -> bool {
    core.dirty_bytes() > core.dirty_background_bytes.load(Ordering::Relaxed)
}

/// Blocks that a step puts under way while there is time.
fn paced_blocks(core: &Core) -> u64 {
    let dirty = core.dirty_bytes() / BLOCK_SIZE as u64;
    (dirty / PACED_SHARE).clamp(PACED_BLOCKS_MIN, STEP_BLOCKS)
}

/// What a pass does with the end of a growing file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// It is written like the rest.
    Written,
    /// It is left alone, if that many blocks lie before it.
    Left(u64),
    /// It is left alone, unless little lies before it or nothing else of the file is dirty.
    LeftBehindOthers,
}

/// Gathers up to `blocks_max` of what was dirty when this pass over the file began, from where the last step
/// left off. A file that grows all the while does not make the pass longer. The oldest of it waits since
/// `since`. Returns how many blocks there were, and what is in flight there; `None` if only the end is dirty,
/// and is left alone.
fn gather_some(
    mapping: &Mapping,
    outbox: &mut Outbox,
    blocks_max: u64,
    tail: Tail,
    since: Timestamp,
) -> Option<(u64, Snapshot)> {
    let cursor = mapping.flush_cursor.load(Ordering::Relaxed);
    if cursor == 0 {
        let start = match tail {
            Tail::Written => None,
            Tail::Left(blocks) => mapping.tail(blocks),
            Tail::LeftBehindOthers => mapping.tail(TAIL_BEHIND_BLOCKS),
        };
        let has_others = |start: &u64| mapping.first_dirty(0).is_some_and(|block| block < *start);
        let end = match start {
            Some(start) if has_others(&start) => start,
            Some(_) if tail != Tail::LeftBehindOthers => return None,
            _ => mapping.listed_end(),
        };
        mapping.flush_end.store(end, Ordering::Relaxed);
        mapping.flush_leaves.store(end < mapping.listed_end(), Ordering::Relaxed);
    }
    let end = mapping.flush_end.load(Ordering::Relaxed);
    let (blocks, next, leaves) = match mapping.gather(outbox, cursor, end, Effort::Background, blocks_max) {
        Ok(gathered) => (gathered.started, gathered.next, gathered.is_held || !gathered.busy.is_empty()),
        Err(error) => {
            tracing::warn!(inode = %mapping.inode, %error, "background writeback");
            (0, end, true)
        }
    };
    if leaves {
        mapping.flush_leaves.store(true, Ordering::Relaxed);
    }
    let is_over = next >= end;
    mapping.flush_cursor.store(if is_over { 0 } else { next }, Ordering::Relaxed);
    if is_over {
        mapping.gathered(mapping.flush_leaves.load(Ordering::Relaxed).then_some(since));
    }
    Some((blocks, mapping.take_snapshot(cursor, next, false)))
}

/// Keeps a little memory free, so that few threads have to reclaim for themselves.
fn reclaim_ahead(core: &Core) -> bool {
    let limit = core.budget.limit();
    let reserve = (limit / 64).min(64 << 20);
    let used = core.budget.used();
    let target = limit.saturating_sub(reserve);
    core.trim();
    used > target && reclaim::reclaim(core, used - target) > 0
}

/// The body of a background thread.
pub(crate) fn work(core: &Arc<Core>) {
    loop {
        let mut signal = core.flusher.lock();
        if !signal.stop && !signal.kicked {
            core.flusher_wake.wait_for(&mut signal, PERIOD);
        }
        if signal.stop {
            return;
        }
        let mut need = signal.taken();
        drop(signal);
        loop {
            let began = core.clock.now();
            let before = core.cleaned_blocks.load(Ordering::Relaxed);
            let wrote = write_some(core, need);
            let reclaimed = reclaim_ahead(core);
            core.note_rate(
                core.cleaned_blocks.load(Ordering::Relaxed) - before,
                core.clock.now().0 - began.0,
            );
            count_step(core, wrote || reclaimed);
            let mut signal = core.flusher.lock();
            if wrote && !signal.stop && !signal.kicked && !is_over(core) {
                core.flusher_wake.wait_for(&mut signal, PACED_PAUSE);
            }
            if signal.stop || !(wrote || reclaimed) {
                break;
            }
            need = signal.taken();
        }
    }
}
