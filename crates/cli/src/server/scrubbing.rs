//! The scrub of a mounted volume, in its server: started, watched and stopped over the control socket.
//!
//! One scrub runs at a time, on a thread of its own. What it has found stays until the next one starts. The
//! volume remembers how far it is: one that the end of the mount, or a crash, has interrupted goes on by
//! itself with the next mount, one that was stopped when the next one is started.
//!
//! ```text
//!   scrub start [data] [anew] [rate=BYTES]   scrub status   scrub stop
//! ```
//!
//! Each is answered with the state as one line of JSON.
//! Neighbours: [`super::listener`] hears the requests, [`crate::commands::scrub`] makes them.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quire::{LastScrub, ScrubOptions, ScrubReport, ScrubState, Volume};
use serde_json::json;

use crate::exit::{self, Failure, Outcome};

/// The scrub of one volume.
#[derive(Clone, Default)]
pub struct Scrubbing(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    phase: Phase,
    stop: bool,
    /// About how much is to be read.
    expected: u64,
    /// With the lists that the volume does not keep; `None` until a scrub runs in this process.
    report: Option<ScrubReport>,
}

#[derive(Default)]
enum Phase {
    /// What the volume remembers is all there is.
    #[default]
    Idle,
    Running(Instant),
    Failed(String),
}

impl Scrubbing {
    /// Answers what follows `scrub` in a request.
    pub fn answer(&self, request: &str, volume: &Volume) -> Outcome<String> {
        let mut words = request.split_whitespace();
        match words.next() {
            Some("start") => self.start(words, volume)?,
            Some("stop") => self.state().stop = true,
            Some("status") => {}
            _ => return Err(Failure::usage("the server does not know this request about a scrub")),
        }
        let last = volume.last_scrub();
        Ok(format!("{}\n", self.state().json(last.as_ref())))
    }

    /// Goes on with a scrub that the end of the last mount has interrupted.
    pub fn go_on(&self, volume: &Volume) {
        let Some(last) = volume.last_scrub() else { return };
        if last.state != ScrubState::Unfinished || volume.is_read_only() {
            return;
        }
        let options = ScrubOptions::new().data(last.data).resume(true);
        let options = match last.bytes_per_second {
            Some(rate) => options.bytes_per_second(rate),
            None => options,
        };
        tracing::info!("a scrub that was interrupted goes on");
        if let Err(failure) = self.run_beside(volume, options) {
            tracing::warn!("an interrupted scrub does not go on: {}", failure.message);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start<'w>(&self, words: impl Iterator<Item = &'w str>, volume: &Volume) -> Outcome {
        let mut options = ScrubOptions::new().resume(true);
        for word in words {
            options = match word.split_once('=') {
                None if word == "data" => options.data(true),
                None if word == "anew" => options.resume(false),
                Some(("rate", bytes)) => {
                    let bytes = bytes.parse::<u64>().ok().filter(|bytes| *bytes > 0);
                    let wrong = || Failure::usage(format!("'{word}' is no rate in bytes a second"));
                    options.bytes_per_second(bytes.ok_or_else(wrong)?)
                }
                _ => return Err(Failure::usage(format!("'{word}' is no option of a scrub"))),
            };
        }
        self.run_beside(volume, options)
    }

    fn run_beside(&self, volume: &Volume, options: ScrubOptions) -> Outcome {
        let mut state = self.state();
        if matches!(state.phase, Phase::Running(_)) {
            return Err(Failure::new(
                exit::BUSY,
                "a scrub of this volume is running: --status shows how far it is, --stop ends it",
            ));
        }
        *state = State { phase: Phase::Running(Instant::now()), ..State::default() };
        drop(state);
        let (scrubbing, volume) = (self.clone(), volume.clone());
        let spawned = quire_base::sync::thread::Builder::new()
            .name("quire-scrub".into())
            .spawn(move || scrubbing.run(&volume, &options));
        spawned.map(drop).map_err(|error| {
            self.state().phase = Phase::Failed("no thread could be started".into());
            Failure::system("starting the scrub's thread", &error)
        })
    }

    fn run(&self, volume: &Volume, options: &ScrubOptions) {
        let mut watch = |report: &ScrubReport| {
            let mut state = self.state();
            if state.report.is_none() {
                state.expected = expected(volume);
            }
            // Lists are long only where much is broken.
            state.report.get_or_insert_default().clone_from(report);
            if state.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = volume.scrub(options, &mut watch);
        let mut state = self.state();
        state.phase = match outcome {
            Ok(report) => {
                state.report = Some(report);
                Phase::Idle
            }
            Err(error) => Phase::Failed(error.to_string()),
        };
    }
}

/// About how many bytes the scrub that runs is going to read.
fn expected(volume: &Volume) -> u64 {
    let metrics = volume.metrics();
    let gauge = |name: &str| metrics.iter().find(|metric| metric.name == name).map_or(0, |found| found.value);
    let statfs = volume.statfs();
    let data = volume.last_scrub().is_some_and(|scrub| scrub.data);
    let blocks = gauge("tree_pool_used_blocks") + if data { statfs.blocks - statfs.free } else { 0 };
    blocks * quire::backend::BLOCK_SIZE as u64
}

impl State {
    fn json(&self, last: Option<&LastScrub>) -> serde_json::Value {
        let known = last.map(|last| match last.state {
            ScrubState::Unfinished => "interrupted",
            ScrubState::Stopped => "stopped",
            ScrubState::Finished => "finished",
        });
        let (phase, why) = match &self.phase {
            Phase::Idle => (known.unwrap_or("never"), None),
            Phase::Running(_) => ("running", None),
            Phase::Failed(why) => ("failed", Some(why)),
        };
        let remembered = last.map(|last| last.report.clone()).unwrap_or_default();
        let report = self.report.as_ref().unwrap_or(&remembered);
        let unreadable: Vec<_> = report
            .unreadable
            .iter()
            .map(|part| {
                let path = part.path.display().to_string();
                json!({ "path": path, "offset": part.offset, "bytes": part.bytes, "why": part.why })
            })
            .collect();
        let seconds = |time: quire::Timestamp| time.0 as f64 / 1e9;
        let spent = last.map_or(Duration::ZERO, |last| last.spent);
        // What it says itself is up to date only between two pieces.
        let here = match self.phase {
            Phase::Running(since) => since.elapsed(),
            _ => Duration::ZERO,
        };
        json!({
            "state": phase,
            "why": why,
            "started": last.map(|last| seconds(last.started)),
            "ended": last.filter(|_| phase != "running").map(|last| seconds(last.ended)),
            "seconds": spent.max(here).as_secs_f64(),
            "data": last.is_some_and(|last| last.data),
            "expected_bytes": self.expected,
            "metadata_bytes": report.metadata_bytes,
            "data_bytes": report.data_bytes,
            "files": report.files,
            "damaged": report.damaged,
            "healed": report.healed,
            "lost": report.lost,
            "unreadable": unreadable,
            "lost_before": report.lost_before,
            "unreadable_before": report.unreadable_before,
        })
    }
}
