//! The operations of a history, what they answered, and when.
//!
//! Offsets and lengths are in cells of eight bytes. Times are numbers of one counter: an operation that
//! returned at a smaller number than another's call was over before that one began.
//!
//! Neighbours: [`crate::generate`] chooses them, [`crate::perform`] does them, the checkers read them.

use crate::cell::{CELL, Run, UNSEEN, Writer, ZERO};
use quire::ErrorKind;
use quire::inodes::{FallocateMode, IoFlags};
use std::fmt::{self, Write};

/// What `fallocate` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Blocks for all of it; the file grows to hold it.
    Allocate,
    /// Blocks for all of it; the size stays.
    KeepSize,
    /// Zeros, blocks given back.
    Punch,
    /// Zeros; the file grows to hold it.
    Zero,
    /// Zeros; the size stays.
    ZeroKeepSize,
    /// Cut out.
    Collapse,
    /// A hole put in.
    Insert,
}

impl Mode {
    /// As the engine calls it.
    pub fn engine(self) -> FallocateMode {
        match self {
            Mode::Allocate => FallocateMode::Allocate,
            Mode::KeepSize => FallocateMode::KeepSize,
            Mode::Punch => FallocateMode::PunchHole,
            Mode::Zero => FallocateMode::ZeroRange { keep_size: false },
            Mode::ZeroKeepSize => FallocateMode::ZeroRange { keep_size: true },
            Mode::Collapse => FallocateMode::Collapse,
            Mode::Insert => FallocateMode::Insert,
        }
    }
}

/// What is done. Those of the second half leave the contents as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are offsets, lengths and sizes in cells")]
pub enum Operation {
    Write {
        at: u64,
        len: u64,
        flags: IoFlags,
    },
    Append {
        len: u64,
        flags: IoFlags,
    },
    Truncate {
        size: u64,
    },
    Allocate {
        mode: Mode,
        at: u64,
        len: u64,
    },
    Read {
        at: u64,
        len: u64,
        direct: bool,
    },
    /// What `stat` says.
    Size,
    Fsync {
        datasync: bool,
    },
    /// Everything of the volume made durable.
    Sync,
    /// Other files fill the cache, so that this one's blocks leave it.
    Pressure,
    /// Long enough for background writeback.
    Pause,
    /// A direct read or write that is not waited for; the event has the operation itself.
    Submit(Box<Operation>),
}

impl Operation {
    /// Whether it says nothing about the contents and does nothing to them.
    pub fn is_silent(&self) -> bool {
        use Operation::{Fsync, Pause, Pressure, Sync};
        matches!(self, Fsync { .. } | Sync | Pressure | Pause)
    }

    /// Whether it only looks.
    pub fn only_looks(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::Size)
    }
}

/// What it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not returned: it may have been done or not.
    Pending,
    /// Success.
    Done,
    /// Written, at this cell, so many cells.
    Written {
        /// Where.
        at: u64,
        /// How many.
        count: u64,
    },
    /// Read.
    Runs(Vec<Run>),
    /// Read, and this byte of it (from the read's start) is of no write.
    Foreign(usize),
    /// Cells in the file.
    Size(u64),
    /// An error; then nothing was done.
    Failed(ErrorKind, String),
}

/// An operation in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number, from 1 on: the tag of what it writes.
    pub number: Writer,
    /// The thread that called it.
    pub thread: u32,
    /// That thread did not wait for it.
    pub submitted: bool,
    /// What it was.
    pub operation: Operation,
    /// What came of it.
    pub outcome: Outcome,
    /// When it was called.
    pub called: u64,
    /// When it returned; the largest number if it has not.
    pub returned: u64,
}

impl Event {
    /// Where it wrote, as `[from, to)` in cells; for an append as it answered.
    pub fn written(&self) -> Option<(u64, u64)> {
        match (&self.operation, &self.outcome) {
            (Operation::Write { at, .. }, Outcome::Written { count, .. }) => Some((*at, at + count)),
            (Operation::Append { .. }, Outcome::Written { at, count }) => Some((*at, at + count)),
            (Operation::Write { at, len, .. }, Outcome::Pending) => Some((*at, at + len)),
            _ => None,
        }
    }
}

/// Runs as text, with byte offsets from `at` (a cell) on.
pub fn show_runs(at: u64, runs: &[Run]) -> String {
    let mut text = String::new();
    let mut start = at;
    for run in runs {
        let end = start + u64::from(run.len);
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{}..{} ", start * CELL, end * CELL);
        let _ = match run.writer {
            ZERO => write!(text, "zeros"),
            UNSEEN => write!(text, "what nobody reads"),
            writer => write!(text, "#{writer}+{}", u64::from(run.position) * CELL),
        };
        start = end;
    }
    if text.is_empty() { "nothing".into() } else { text }
}

fn flags_text(flags: IoFlags) -> String {
    let mut text = String::new();
    for (flag, name) in
        [(IoFlags::DIRECT, " direct"), (IoFlags::SYNC, " sync"), (IoFlags::DATASYNC, " datasync")]
    {
        if flags.contains(flag) {
            text.push_str(name);
        }
    }
    text
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |at: &u64, len: &u64| format!("{}..{}", at * CELL, (at + len) * CELL);
        match self {
            Operation::Write { at, len, flags } => {
                write!(f, "write{} {}", flags_text(*flags), range(at, len))
            }
            Operation::Append { len, flags } => write!(f, "append{} {}", flags_text(*flags), len * CELL),
            Operation::Truncate { size } => write!(f, "truncate to {}", size * CELL),
            Operation::Allocate { mode, at, len } => write!(f, "{mode:?} {}", range(at, len)),
            Operation::Read { at, len, direct } => {
                write!(f, "read{} {}", if *direct { " direct" } else { "" }, range(at, len))
            }
            Operation::Size => f.write_str("size"),
            Operation::Fsync { datasync } => f.write_str(if *datasync { "fdatasync" } else { "fsync" }),
            Operation::Sync => f.write_str("sync of the volume"),
            Operation::Pressure => f.write_str("other files fill the cache"),
            Operation::Pause => f.write_str("pause"),
            Operation::Submit(operation) => write!(f, "asynchronous {operation}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} thread {} [{}, ", self.number, self.thread, self.called)?;
        match self.returned {
            u64::MAX => write!(f, "...")?,
            returned => write!(f, "{returned}")?,
        }
        write!(f, "] {}{}", if self.submitted { "asynchronous " } else { "" }, self.operation)?;
        match (&self.operation, &self.outcome) {
            (_, Outcome::Pending) => write!(f, " (has not returned)"),
            (_, Outcome::Done) => Ok(()),
            (Operation::Append { .. }, Outcome::Written { at, .. }) => write!(f, " at {}", at * CELL),
            (_, Outcome::Written { .. }) => Ok(()),
            (Operation::Read { at, .. }, Outcome::Runs(runs)) => write!(f, " = {}", show_runs(*at, runs)),
            (_, Outcome::Runs(runs)) => write!(f, " = {}", show_runs(0, runs)),
            (_, Outcome::Foreign(byte)) => write!(f, " = bytes of no write from byte {byte} of it on"),
            (_, Outcome::Size(size)) => write!(f, " = {}", size * CELL),
            (_, Outcome::Failed(kind, text)) => write!(f, " failed ({kind:?}): {text}"),
        }
    }
}
