//! The freeze of a mounted volume, in its server: begun and ended over the control socket.
//!
//! The volume is frozen on a thread of its own, which thaws it when it is told to, or when the time is over:
//! a command that was killed must not stop a mount for ever. Who thaws a volume whose time was over is told
//! so, since what was copied by then may not be whole.
//!
//! ```text
//!   freeze SECONDS   freeze status   freeze end
//! ```
//!
//! Each is answered with a word: `thawed`, `freezing`, `frozen`, or why it could not be frozen.
//! Neighbours: [`super::listener`] hears the requests, [`crate::commands::freeze`] makes them.

use std::ops::RangeInclusive;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quire::Volume;

use crate::exit::{self, Failure, Outcome};

/// Seconds after which a volume may thaw by itself.
pub const LIMITS: RangeInclusive<u64> = 1..=86_400;

/// The freeze of one volume.
#[derive(Clone, Default)]
pub struct Freezing(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    end: bool,
}

#[derive(Clone, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Thawed,
    Freezing,
    Frozen,
    /// It thawed by itself after so long. Whoever wants to end the freeze hears of it, until the next one.
    Over(Duration),
    Failed(String),
}

impl Freezing {
    /// Answers what follows `freeze` in a request.
    pub fn answer(&self, request: &str, volume: &Volume) -> Outcome<String> {
        match request {
            "status" => {}
            "end" => self.end()?,
            seconds => {
                let wrong = || {
                    let (least, most) = LIMITS.into_inner();
                    Failure::usage(format!("'{seconds}' is no number of seconds from {least} to {most}"))
                };
                let seconds = seconds.parse().ok().filter(|seconds| LIMITS.contains(seconds));
                let seconds = seconds.ok_or_else(wrong)?;
                self.begin(Duration::from_secs(seconds), volume)?;
            }
        }
        match &self.state().phase {
            Phase::Thawed | Phase::Over(_) => Ok("thawed\n".into()),
            Phase::Freezing => Ok("freezing\n".into()),
            Phase::Frozen => Ok("frozen\n".into()),
            Phase::Failed(why) => Err(Failure::new(exit::FAILED, why.clone())),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, limit: Duration, volume: &Volume) -> Outcome {
        let mut state = self.state();
        if matches!(state.phase, Phase::Freezing | Phase::Frozen) {
            return Err(Failure::new(exit::BUSY, "the volume is frozen already: quire thaw ends that"));
        }
        *state = State { phase: Phase::Freezing, end: false };
        drop(state);
        let (freezing, volume) = (self.clone(), volume.clone());
        let spawned = quire_base::sync::thread::Builder::new()
            .name("quire-freeze".into())
            .spawn(move || freezing.run(limit, &volume));
        spawned.map(drop).map_err(|error| {
            self.state().phase = Phase::Thawed;
            Failure::system("starting the thread that freezes", &error)
        })
    }

    fn run(&self, limit: Duration, volume: &Volume) {
        let frozen = match volume.freeze() {
            Ok(frozen) => frozen,
            Err(error) => {
                tracing::warn!("the volume could not be frozen: {error}");
                self.state().phase = Phase::Failed(format!("freezing: {error}"));
                return;
            }
        };
        tracing::info!("the volume is frozen for at most {} s", limit.as_secs());
        let end = Instant::now() + limit;
        let mut state = self.state();
        state.phase = Phase::Frozen;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if state.end || left.is_zero() {
                break;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let was_told = state.end;
        drop(frozen);
        state.phase = if was_told { Phase::Thawed } else { Phase::Over(limit) };
        drop(state);
        match was_told {
            true => tracing::info!("the volume has thawed"),
            false => tracing::warn!(
                "the volume has thawed by itself after {} s: a copy that was under way is not whole",
                limit.as_secs()
            ),
        }
        self.0.changed.notify_all();
    }

    fn end(&self) -> Outcome {
        let mut state = self.state();
        match &state.phase {
            Phase::Freezing | Phase::Frozen => {
                state.end = true;
                self.0.changed.notify_all();
                Ok(())
            }
            Phase::Over(limit) => {
                let seconds = limit.as_secs();
                Err(Failure::new(
                    exit::FAILED,
                    format!(
                        "the volume has thawed by itself after {seconds} s: a copy that took longer is not whole; \
                         freeze it again with a larger --limit"
                    ),
                ))
            }
            Phase::Thawed | Phase::Failed(_) => Err(Failure::new(exit::MISSING, "the volume is not frozen")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit beyond what a clock can hold, sent to the control socket, ended the server in the middle of a
    /// freeze.
    #[test]
    fn a_limit_is_checked_where_it_arrives() {
        let memory = std::sync::Arc::new(quire::backend::MemoryBackend::new(16384));
        quire::FormatOptions::new().format_backend(memory.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(memory).unwrap();
        let freezing = Freezing::default();
        for wrong in ["0", "86401", "18446744073709551615", "99999999999999999999", "-1", ""] {
            let refused = freezing.answer(wrong, &volume).unwrap_err();
            assert_eq!(refused.code, exit::USAGE, "{wrong}");
        }
        assert_eq!(freezing.answer("status", &volume).unwrap(), "thawed\n");
        volume.close().unwrap();
    }
}
