//! Slowing writers down so that dirty data stays within its limit.
//!
//! Up to half way between the background threshold and the limit a writer passes. From there on it pauses for
//! the time that the device takes for its bytes, times f/(1-f), where f goes from 0 half way to 1 at the
//! limit: n writers settle at f = n/(n+1). At the limit it stops until blocks become clean, or fails after a
//! time in which none does. Without background threads the writer does the writeback itself.
//!
//! Neighbours: [`crate::write`] calls it before the gate, [`crate::flusher`] does the work.

use crate::core::{Core, PATIENCE, Standstill};
use crate::flusher;
use quire_base::patience;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::Instant;
use quire_base::{Error, ErrorKind, Result};
use std::time::Duration;

/// Longest single pause.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Steps without effect after which a writer without background threads gives up.
const STEPS_MAX: u32 = 64;

/// Lets `bytes` more become dirty, sooner or later.
pub(crate) fn throttle(core: &Arc<Core>, bytes: u64) -> Result<()> {
    let background = core.dirty_background_bytes.load(Ordering::Relaxed);
    let limit = core.dirty_limit_bytes.load(Ordering::Relaxed);
    let dirty = core.dirty_bytes() + bytes;
    if dirty <= background {
        return Ok(());
    }
    let running = core.running.load(Ordering::Acquire);
    if running {
        core.kick_flusher();
    }
    let half_way = half_way(background, limit);
    if dirty <= half_way {
        return Ok(());
    }
    patience::check("data to be written back")?;
    if !running {
        return write_it_ourselves(core, bytes, half_way.max(bytes));
    }
    if dirty < limit {
        pause(core, bytes, (dirty - half_way) as f64 / (limit - half_way) as f64);
        return Ok(());
    }
    stop(core, bytes, limit)
}

/// Whether `bytes` more may become dirty without a pause; sees to it that writeback begins.
pub(crate) fn passes(core: &Core, bytes: u64) -> bool {
    let background = core.dirty_background_bytes.load(Ordering::Relaxed);
    let limit = core.dirty_limit_bytes.load(Ordering::Relaxed);
    let dirty = core.dirty_bytes() + bytes;
    if dirty <= background {
        return true;
    }
    let running = core.running.load(Ordering::Acquire);
    if running {
        core.kick_flusher();
    }
    running && dirty <= half_way(background, limit)
}

/// Whether much more may become dirty before writers are slowed.
pub(crate) fn is_far_below_limit(core: &Core) -> bool {
    let background = core.dirty_background_bytes.load(Ordering::Relaxed);
    let limit = core.dirty_limit_bytes.load(Ordering::Relaxed);
    core.dirty_bytes() <= half_way(background, limit)
}

/// Where pauses begin. The two are loaded one after the other: a limit lowered in between may be below the
/// threshold.
fn half_way(background: u64, limit: u64) -> u64 {
    background + limit.saturating_sub(background) / 2
}

fn write_it_ourselves(core: &Arc<Core>, bytes: u64, goal: u64) -> Result<()> {
    let mut idle = 0;
    while core.dirty_bytes() + bytes > goal {
        if flusher::write_some(core, flusher::Need::All) {
            idle = 0;
        } else {
            idle += 1;
            if core.dirty_bytes() + bytes <= core.dirty_limit_bytes.load(Ordering::Relaxed) {
                return Ok(());
            }
            if idle > STEPS_MAX {
                return Err(stuck(core));
            }
            quire_base::sync::thread::yield_now();
        }
    }
    Ok(())
}

fn pause(core: &Core, bytes: u64, fullness: f64) {
    let rate = core.clean_bytes_per_second().max(1 << 20) as f64;
    let seconds = bytes as f64 / rate * fullness / (1.0 - fullness).max(0.01);
    let pause = Duration::from_secs_f64(seconds.min(PAUSE_MAX.as_secs_f64()));
    if pause >= Duration::from_micros(50) {
        core.metrics.throttle_pauses.add(1);
        core.metrics.throttle_nanos.add(pause.as_nanos() as u64);
        core.pause(pause);
    }
}

fn stop(core: &Core, bytes: u64, limit: u64) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(20);
    core.metrics.throttle_stops.add(1);
    let mut standstill = Standstill::default();
    let is_over = || core.dirty_bytes() + bytes > limit;
    while is_over() {
        core.kick_flusher();
        core.wait_for_progress_while(LOOK, is_over);
        let waited = standstill.look(core.cleaned_blocks.load(Ordering::Relaxed), Instant::now());
        if waited >= PATIENCE || !core.running.load(Ordering::Acquire) {
            return Err(stuck(core));
        }
    }
    Ok(())
}

fn stuck(core: &Core) -> Error {
    let failed = core.dirty_mappings().iter().find_map(|mapping| mapping.error());
    failed.map_or_else(
        || Error::new(ErrorKind::Busy, "the dirty limit is reached and nothing can be written back"),
        |error| error.context("the dirty limit is reached and writeback fails"),
    )
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::half_way;

    #[test]
    fn pauses_begin_half_way_and_never_below_the_threshold() {
        assert_eq!(half_way(10, 40), 25);
        assert_eq!(half_way(10, 10), 10);
        assert_eq!(half_way(40, 10), 40);
    }
}
