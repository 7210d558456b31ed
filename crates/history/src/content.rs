//! The reference file: its size, and who wrote each cell.
//!
//! What an operation does to it is what POSIX and `fallocate(2)` say, as one step. The contents are a list of
//! runs from offset 0 to the size, neighbours merged, so that equal files have equal lists.
//!
//! Neighbours: [`crate::exact`] applies operations to it in every order that may explain a history.

use crate::cell::{Run, Writer};
use crate::operation::{Mode, Operation, Outcome};
use quire::ErrorKind;

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    runs: Vec<Run>,
    size: u64,
}

/// Why an answer is not the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// A read, of something else: what it would have seen.
    Read(Vec<Run>),
    /// The size was another.
    Size(u64),
    /// An append got an offset that was not the end of file, which was here.
    Append(u64),
    /// It failed and should not have, or the other way round, with this size.
    Failure(u64),
}

impl Content {
    /// Cells in the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All of it.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// What a read of `len` cells at `at` sees.
    pub fn read(&self, at: u64, len: u64) -> Vec<Run> {
        let mut seen = Vec::new();
        self.visit(at, at.saturating_add(len), |run| push(&mut seen, run));
        seen
    }

    /// Calls `each` for the parts of `[from, to)`, ascending.
    fn visit(&self, from: u64, to: u64, mut each: impl FnMut(Run)) {
        let mut start = 0;
        for run in &self.runs {
            let end = start + u64::from(run.len);
            let (low, high) = (start.max(from), end.min(to));
            if low < high {
                each(run.part((low - start) as u32, (high - low) as u32));
            }
            start = end;
        }
    }

    /// Whether a read of `len` cells at `at` that gave `seen` is right.
    fn reads(&self, at: u64, len: u64, seen: &[Run]) -> bool {
        self.read(at, len) == seen
    }

    /// Replaces `[from, to)` by `with`, of any length; `from` and `to` are within the file.
    fn replace(&mut self, from: u64, to: u64, with: &[Run]) {
        let mut runs = Vec::with_capacity(self.runs.len() + with.len() + 2);
        self.visit(0, from, |run| push(&mut runs, run));
        with.iter().for_each(|run| push(&mut runs, *run));
        self.visit(to, self.size, |run| push(&mut runs, run));
        self.size = runs.iter().map(|run| u64::from(run.len)).sum();
        self.runs = runs;
    }

    fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.replace(size, self.size, &[]);
        } else if size > self.size {
            let end = self.size;
            self.replace(end, end, &zeros(size - end));
        }
    }

    fn write(&mut self, at: u64, data: &[Run]) {
        let len: u64 = data.iter().map(|run| u64::from(run.len)).sum();
        self.set_size(self.size.max(at));
        self.replace(at, (at + len).min(self.size), data);
    }

    /// Does an operation, if that is what it answered. `data` is what a write of it writes: its own cells,
    /// those that nobody ever reads made alike.
    pub fn apply(&mut self, operation: &Operation, outcome: &Outcome, data: &[Run]) -> Result<(), Mismatch> {
        match (operation, outcome) {
            (Operation::Read { at, len, .. }, Outcome::Runs(seen)) => {
                if self.reads(*at, *len, seen) {
                    Ok(())
                } else {
                    Err(Mismatch::Read(self.read(*at, *len)))
                }
            }
            (Operation::Size, Outcome::Size(size)) => {
                if *size == self.size {
                    Ok(())
                } else {
                    Err(Mismatch::Size(self.size))
                }
            }
            (Operation::Write { at, .. }, Outcome::Written { .. } | Outcome::Pending) => {
                self.write(*at, data);
                Ok(())
            }
            (Operation::Append { .. }, Outcome::Written { at, .. }) => {
                if *at != self.size {
                    return Err(Mismatch::Append(self.size));
                }
                self.write(*at, data);
                Ok(())
            }
            (Operation::Append { .. }, Outcome::Pending) => {
                self.write(self.size, data);
                Ok(())
            }
            (Operation::Truncate { size }, Outcome::Done | Outcome::Pending) => {
                self.set_size(*size);
                Ok(())
            }
            (Operation::Allocate { mode, at, len }, _) => self.allocate(*mode, *at, *len, outcome),
            _ => Err(Mismatch::Failure(self.size)),
        }
    }

    fn allocate(&mut self, mode: Mode, at: u64, len: u64, outcome: &Outcome) -> Result<(), Mismatch> {
        let end = at + len;
        let allowed = match mode {
            Mode::Collapse => end < self.size,
            Mode::Insert => at < self.size,
            _ => true,
        };
        match outcome {
            Outcome::Done if allowed => {}
            Outcome::Pending if allowed => {}
            Outcome::Pending => return Ok(()),
            Outcome::Failed(ErrorKind::Invalid, _) if !allowed => return Ok(()),
            _ => return Err(Mismatch::Failure(self.size)),
        }
        match mode {
            Mode::KeepSize => {}
            Mode::Allocate => self.set_size(self.size.max(end)),
            Mode::Punch | Mode::Zero | Mode::ZeroKeepSize => {
                let (from, to) = (at.min(self.size), end.min(self.size));
                self.replace(from, to, &zeros(to - from));
                if mode == Mode::Zero {
                    self.set_size(self.size.max(end));
                }
            }
            Mode::Collapse => self.replace(at, end, &[]),
            Mode::Insert => self.replace(at, at, &zeros(len)),
        }
        Ok(())
    }

    /// A hash of it, wide enough to stand for it.
    pub fn hash(&self) -> u128 {
        let mut hash = Hash128::new(self.size);
        for run in &self.runs {
            hash.add(u64::from(run.len) << 32 | u64::from(run.writer));
            hash.add(u64::from(run.position));
        }
        hash.value()
    }
}

fn zeros(len: u64) -> Vec<Run> {
    if len == 0 { Vec::new() } else { vec![Run::zeros(len as u32)] }
}

fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.continues(run) => last.len += run.len,
        _ if run.len > 0 => runs.push(run),
        _ => {}
    }
}

/// What a write writes: the cells of `writer`.
pub fn data_of(writer: Writer, len: u64) -> Vec<Run> {
    vec![Run { len: len as u32, writer, position: 0 }]
}

/// A hash of words, of 128 bits.
pub struct Hash128 {
    low: u64,
    high: u64,
}

impl Hash128 {
    /// Of nothing yet.
    pub fn new(seed: u64) -> Hash128 {
        Hash128 { low: seed ^ 0x243F_6A88_85A3_08D3, high: seed.rotate_left(32) ^ 0x1319_8A2E_0370_7344 }
    }

    /// Adds a word.
    pub fn add(&mut self, word: u64) {
        self.low = mix(self.low ^ word);
        self.high = mix(self.high.rotate_left(17) ^ word.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    }

    /// The hash so far.
    pub fn value(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(len: u32, writer: Writer, position: u32) -> Run {
        Run { len, writer, position }
    }

    #[test]
    fn operations_do_what_they_say() {
        let mut file = Content::default();
        let mut apply = |operation: Operation, outcome: Outcome, data: &[Run]| {
            file.apply(&operation, &outcome, data).map(|()| file.runs().to_vec())
        };
        let write = |at, len| Operation::Write { at, len, flags: quire::inodes::IoFlags::empty() };
        let allocate = |mode, at, len| Operation::Allocate { mode, at, len };
        let written = Outcome::Written { at: 0, count: 0 };
        let runs = apply(write(2, 4), written.clone(), &data_of(1, 4)).unwrap();
        assert_eq!(runs, [Run::zeros(2), run(4, 1, 0)]);
        let runs = apply(allocate(Mode::Punch, 3, 1), Outcome::Done, &[]).unwrap();
        assert_eq!(runs, [Run::zeros(2), run(1, 1, 0), Run::zeros(1), run(2, 1, 2)]);
        let runs = apply(allocate(Mode::Collapse, 3, 1), Outcome::Done, &[]).unwrap();
        assert_eq!(runs, [Run::zeros(2), run(1, 1, 0), run(2, 1, 2)]);
        let runs = apply(allocate(Mode::Insert, 1, 1), Outcome::Done, &[]).unwrap();
        assert_eq!(runs, [Run::zeros(3), run(1, 1, 0), run(2, 1, 2)]);
        let runs = apply(Operation::Truncate { size: 5 }, Outcome::Done, &[]).unwrap();
        assert_eq!(runs, [Run::zeros(3), run(1, 1, 0), run(1, 1, 2)]);
        let runs = apply(allocate(Mode::Zero, 4, 3), Outcome::Done, &[]).unwrap();
        assert_eq!(runs, [Run::zeros(3), run(1, 1, 0), Run::zeros(3)]);
        let refused = Outcome::Failed(ErrorKind::Invalid, String::new());
        assert!(apply(allocate(Mode::Collapse, 3, 1), refused.clone(), &[]).is_err());
        assert!(apply(allocate(Mode::Collapse, 3, 4), refused, &[]).is_ok());
        let flags = quire::inodes::IoFlags::APPEND;
        let appended = |at| Outcome::Written { at, count: 2 };
        let append = Operation::Append { len: 2, flags };
        assert_eq!(apply(append.clone(), appended(6), &data_of(2, 2)), Err(Mismatch::Append(7)));
        let runs = apply(append, appended(7), &data_of(2, 2)).unwrap();
        assert_eq!(runs, [Run::zeros(3), run(1, 1, 0), Run::zeros(3), run(2, 2, 0)]);
        let read = Operation::Read { at: 8, len: 9, direct: false };
        let nothing = Outcome::Runs(Vec::new());
        assert_eq!(apply(read.clone(), nothing, &[]), Err(Mismatch::Read(vec![run(1, 2, 1)])));
        assert!(apply(read, Outcome::Runs(vec![run(1, 2, 1)]), &[]).is_ok());
    }
}
