//! Background writeback: what is written when nobody asked.
//!
//! A step takes the mappings with unfinished blocks, those waiting longest first. Over the background threshold
//! it writes whatever there is, below it what is older than the age limit; a file that failed a moment ago waits
//! a second. Each file is gathered for at most [`STEP_BLOCKS`] from where the last step left off, all are started
//! before any is waited for. Then clean folios are dropped ahead of need.
//!
//! Files with few dirty folios are one thread's at a time, so that they get their homes next to each other and their
//! writes join; the other threads take the large ones meanwhile.
//!
//! Without threads the same step runs when it is called ([`crate::Cache::background_step`]) or when a writer
//! meets a limit; nothing in it depends on time but through the clock, nor on the order of a hash table.
//!
//! Neighbours: [`crate::writeback`] gathers, [`crate::throttle`] and [`crate::core`] kick.

use crate::core::Core;
use crate::mapping::{BLOCKS_END, Mapping};
use crate::outbox::Outbox;
use crate::reclaim;
use quire_base::Timestamp;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that one step puts under way (16 MiB).
const STEP_BLOCKS: u64 = 4096;
/// Dirty folios up to which a file is small.
const SMALL_FOLIOS: usize = 16;
/// Time before a file whose writeback failed is tried again in the background, nanoseconds.
const RETRY_NANOS: i64 = 1_000_000_000;
/// How often a background thread looks by itself.
const PERIOD: Duration = Duration::from_millis(500);

/// One step of everything; true if it did something.
pub(crate) fn step(core: &Arc<Core>) -> bool {
    let wrote = write_some(core, false);
    let reclaimed = reclaim_ahead(core);
    if wrote || reclaimed {
        core.metrics.flusher_steps.add(1);
    }
    wrote || reclaimed
}

/// Writes a part of what is dirty and waits for it; true if blocks have become clean. With `force` whatever its age, and
/// what failed a moment ago as well.
pub(crate) fn write_some(core: &Arc<Core>, force: bool) -> bool {
    let before = core.cleaned_blocks.load(Ordering::Relaxed);
    let now = core.clock.now();
    let over = force || core.dirty_bytes() > core.dirty_background_bytes.load(Ordering::Relaxed);
    let mut waiting: Vec<(Timestamp, u64, bool, Arc<Mapping>)> = core
        .dirty_mappings()
        .into_iter()
        .map(|mapping| {
            let (since, folios) = mapping.dirty_since();
            (since, mapping.number, folios <= SMALL_FOLIOS, mapping)
        })
        .collect();
    waiting.sort_by_key(|(since, number, ..)| (*since, *number));
    // Without background threads nobody else makes progress meanwhile: who comes second waits.
    let turn = if core.running.load(Ordering::Acquire) {
        core.small_files.try_lock()
    } else {
        Some(core.small_files.lock())
    };
    let mut outbox = Outbox::new(core.clone());
    let mut started: Vec<Arc<Mapping>> = Vec::new();
    let mut left = STEP_BLOCKS;
    for (since, _, small, mapping) in waiting {
        if small && turn.is_none() {
            continue;
        }
        let cursor = mapping.flush_cursor.load(Ordering::Relaxed);
        let old = now.0.saturating_sub(since.0) >= core.config.dirty_age_nanos;
        let failed =
            !force && mapping.errors.failed_at().is_some_and(|at| now.0.saturating_sub(at.0) < RETRY_NANOS);
        if !(over || old || cursor > 0) || failed || mapping.flushing.swap(true, Ordering::Acquire) {
            continue;
        }
        if cursor == 0 {
            mapping.gathered();
        }
        match mapping.gather(&mut outbox, cursor, BLOCKS_END, false, left) {
            Ok((blocks, next)) => {
                left = left.saturating_sub(blocks);
                mapping.flush_cursor.store(if next >= BLOCKS_END { 0 } else { next }, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(inode = %mapping.inode, %error, "background writeback");
                mapping.flush_cursor.store(0, Ordering::Relaxed);
            }
        }
        mapping.flushing.store(false, Ordering::Release);
        started.push(mapping);
        if left == 0 {
            break;
        }
    }
    drop(outbox);
    drop(turn);
    started.iter().for_each(|mapping| mapping.wait_tickets(0, BLOCKS_END));
    core.cleaned_blocks.load(Ordering::Relaxed) != before
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
        signal.kicked = false;
        drop(signal);
        let began = core.clock.now();
        let before = core.cleaned_blocks.load(Ordering::Relaxed);
        while step(core) && !core.flusher.lock().stop {}
        core.note_rate(core.cleaned_blocks.load(Ordering::Relaxed) - before, core.clock.now().0 - began.0);
    }
}
