//! The scrub of a mounted volume, in its server: started, watched and stopped over the control socket.
//!
//! One scrub runs at a time, on a thread of its own. What it has found stays until the next one starts. A
//! scrub that is stopped, or that the end of the mount breaks off, begins anew when it is started again.
//!
//! ```text
//!   scrub start [data] [rate=BYTES]   scrub status   scrub stop
//! ```
//!
//! Each is answered with the state as one line of JSON.
//! Neighbours: [`crate::control`] hears the requests, [`crate::commands::scrub`] makes them.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quire::{ScrubOptions, ScrubReport, Volume};
use serde_json::json;

use crate::exit::{Failure, Outcome};

/// The scrub of one volume.
#[derive(Clone, Default)]
pub struct Scrubbing(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    phase: Phase,
    stop: bool,
    started: Option<Instant>,
    took: Duration,
    /// About how much is to be read.
    expected: u64,
    report: ScrubReport,
}

#[derive(Default)]
enum Phase {
    #[default]
    Never,
    Running,
    Finished,
    Stopped,
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
        Ok(format!("{}\n", self.state().json()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start<'w>(&self, words: impl Iterator<Item = &'w str>, volume: &Volume) -> Outcome {
        let mut options = ScrubOptions::new();
        let statfs = volume.statfs();
        let metrics = volume.metrics();
        let gauge =
            |name: &str| metrics.iter().find(|metric| metric.name == name).map_or(0, |found| found.value);
        let mut expected = gauge("tree_pool_used_blocks") * quire::backend::BLOCK_SIZE as u64;
        for word in words {
            match word.split_once('=') {
                None if word == "data" => {
                    options = options.data(true);
                    expected += (statfs.blocks - statfs.free) * quire::backend::BLOCK_SIZE as u64;
                }
                Some(("rate", bytes)) => {
                    let bytes = bytes.parse::<u64>().ok().filter(|bytes| *bytes > 0);
                    let wrong = || Failure::usage(format!("'{word}' is no rate in bytes a second"));
                    options = options.bytes_per_second(bytes.ok_or_else(wrong)?);
                }
                _ => return Err(Failure::usage(format!("'{word}' is no option of a scrub"))),
            }
        }
        let mut state = self.state();
        if matches!(state.phase, Phase::Running) {
            return Err(Failure::new(
                36,
                "a scrub of this volume is running: --status shows how far it is, --stop ends it",
            ));
        }
        *state = State { phase: Phase::Running, started: Some(Instant::now()), expected, ..State::default() };
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
            // Lists are long only where much is broken.
            state.report.clone_from(report);
            if state.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = volume.scrub(options, &mut watch);
        let mut state = self.state();
        state.took = state.started.map_or(Duration::ZERO, |started| started.elapsed());
        state.phase = match outcome {
            Ok(report) => {
                state.report = report;
                if state.stop { Phase::Stopped } else { Phase::Finished }
            }
            Err(error) => Phase::Failed(error.to_string()),
        };
    }
}

impl State {
    fn json(&self) -> serde_json::Value {
        let (phase, why) = match &self.phase {
            Phase::Never => ("never", None),
            Phase::Running => ("running", None),
            Phase::Finished => ("finished", None),
            Phase::Stopped => ("stopped", None),
            Phase::Failed(why) => ("failed", Some(why)),
        };
        let running = self.started.filter(|_| matches!(self.phase, Phase::Running));
        let report = &self.report;
        let unreadable: Vec<_> = report
            .unreadable
            .iter()
            .map(|part| {
                let path = part.path.display().to_string();
                json!({ "path": path, "offset": part.offset, "bytes": part.bytes, "why": part.why })
            })
            .collect();
        json!({
            "state": phase,
            "why": why,
            "seconds": running.map_or(self.took, |started| started.elapsed()).as_secs_f64(),
            "expected_bytes": self.expected,
            "metadata_bytes": report.metadata_bytes,
            "data_bytes": report.data_bytes,
            "files": report.files,
            "damaged": report.damaged,
            "healed": report.healed,
            "lost": report.lost,
            "unreadable": unreadable,
        })
    }
}
