//! What a failed run tells: who waits for what, where and since when, and what happened last.

use crate::scheduler::{Kind, Slot, State, Status};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::panic::Location;

/// Why a run failed. The texts are for people; the same run gives the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody could run any more.
    Deadlock(String),
    /// It took more steps than it may.
    StepLimit(String),
    /// A thread panicked: its name, the message and the place.
    Panicked(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Deadlock(report) => write!(f, "deadlock\n{report}"),
            Failure::StepLimit(report) => write!(f, "step limit reached (livelock?)\n{report}"),
            Failure::Panicked(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Failure {}

/// A point that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread's number.
    pub thread: usize,
    pub(super) kind: Kind,
    pub(super) location: &'static Location<'static>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at {}", self.thread, self.kind.text(), self.location)
    }
}

const RECENT: usize = 48;

/// The last few steps.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<Step>);

impl Recent {
    pub fn push(&mut self, step: Step) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(step);
    }
}

fn describe(state: &State, index: usize, slot: &Slot, out: &mut String) -> fmt::Result {
    write!(out, "  {index} '{}' ", slot.name)?;
    match slot.status {
        Status::Finished => write!(out, "has finished")?,
        Status::Runnable => write!(out, "can run")?,
        Status::Blocked(wait) => {
            write!(out, "waits for {}", wait.text(state))?;
            if let Some(deadline) = slot.deadline {
                write!(out, " until {deadline:?}")?;
            }
        }
    }
    if !matches!(slot.status, Status::Finished) {
        write!(out, " at {}, since step {} ({:?})", slot.location, slot.since_step, slot.since)?;
    }
    for held in &slot.held {
        write!(out, "\n      holds {} taken at {}", held.mode.text(), held.location)?;
    }
    writeln!(out)
}

/// Everything worth knowing about a run that goes no further.
pub(super) fn report(state: &State) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "after {} steps, virtual time {:?}", state.steps, state.now);
    for (index, slot) in state.threads.iter().enumerate() {
        let _ = describe(state, index, slot, &mut out);
    }
    let _ = writeln!(out, "last steps:");
    for step in &state.recent.0 {
        let _ = writeln!(out, "  {step}");
    }
    out
}
