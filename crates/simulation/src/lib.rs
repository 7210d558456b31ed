//! Runs threads under a scheduler that a seed decides: the same seed gives the same interleaving, and another
//! seed another one. `quire_base::sync` takes its names from here with its feature `simulation`, which no
//! product build turns on.
//!
//! Protocol
//! * [`run`] starts a simulated thread 0; threads that simulated threads start through
//!   `quire_base::sync::thread` are simulated as well and numbered in that order. Each is a thread of the
//!   system (thread locals and panics work as ever), but only one holds the *turn* and runs.
//! * The turn may pass at *points*: before a lock is taken, when a lock that others wait for is released, at
//!   every operation of a condition variable, at yields, spins, sleeps, parks, joins, starts of threads,
//!   atomic read-modify-writes, and at [`point`]. The seed draws the next thread in one of several styles
//!   ([`strategy`]), because each finds bugs that the others hide from.
//! * A thread that must wait gives up the turn until another wakes it. Timed waits, sleeps and `Instant`s go
//!   by virtual time, which stands still while somebody can run (now and then a yield lets it reach the next
//!   timer, so that polling ends). When nobody can run, it jumps to the next timer.
//! * When nobody can run and there is no timer, or thread 0 has waited without limit for longer than
//!   [`scheduler::PATIENCE`] of virtual time while others only answered timers, the run fails with a report
//!   of who waits for what, and where. So it does when it takes more steps than it may, and when a thread
//!   panics.
//!
//! Ending. When the run has failed, or thread 0 has returned while others still run, the others are ended one
//! after the other: the next time one reaches a point it unwinds with a payload of its own, while those whose
//! turn to end has not come go on as before, so that destructors that need them still work. A thread that is
//! unwinding already is never interrupted again. If unwinding gets stuck, what is left is abandoned: parked
//! for ever, touching nothing.
//!
//! Invariants: at most one thread of a run is between points; nothing that decides depends on addresses, real
//! time or the system's scheduler (addresses only say whether two waits are for the same lock). Threads
//! outside a run use the plain locks; a lock must not be contended by threads inside and outside.
//!
//! Neighbours: `quire_base::{sync, shard, random, clock}` ask who and when we are; [`mistakes`] is a switch
//! for tests.

mod ending;
pub mod mistakes;
mod report;
pub(crate) mod scheduler;
mod start;
pub(crate) mod strategy;
pub mod sync;
pub mod thread;

pub use report::{Failure, Step};
pub use start::run;

use scheduler::{Kind, me};
use std::panic::Location;
use std::time::Duration;

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides every choice of the scheduler.
    pub seed: u64,
    /// Points that may be passed before the run counts as livelocked. The second half of them is scheduled
    /// uniformly at random, so that no unfair style is to blame.
    pub step_limit: u64,
}

/// Whether the current thread is simulated.
pub fn is_active() -> bool {
    scheduler::is_simulated()
}

/// Virtual time since the start of the run; zero on a thread that is not simulated.
pub fn now() -> Duration {
    me().map_or(Duration::ZERO, |me| me.now())
}

/// Lets another thread run, if the seed says so. Nothing on a thread that is not simulated.
#[track_caller]
pub fn point() {
    if let Some(me) = me() {
        me.point(Kind::Point, Location::caller());
    }
}

/// Points passed so far in this run; zero outside.
pub fn steps() -> u64 {
    me().map_or(0, |me| me.world.lock().steps)
}

/// A hash of every step so far (which thread, what, where), to compare runs; zero outside.
pub fn fingerprint() -> u64 {
    me().map_or(0, |me| me.world.lock().fingerprint)
}

/// A number that the seed determines, from a stream apart from the scheduler's; zero outside.
pub fn random() -> u64 {
    me().map_or(0, |me| me.world.lock().entropy.u64(..))
}

/// Keeps every step from now on, for [`take_steps`]: to find where two runs part.
pub fn keep_steps() {
    if let Some(me) = me() {
        me.world.lock().kept.get_or_insert_default();
    }
}

/// The steps since [`keep_steps`].
pub fn take_steps() -> Vec<Step> {
    me().and_then(|me| me.world.lock().kept.take()).unwrap_or_default()
}

/// Number of the current simulated thread in its run.
pub fn thread_number() -> Option<usize> {
    me().map(|me| me.index)
}
