//! Writes that no flush has covered, in the order in which they completed.
//!
//! Invariant: a write is in the list from its completion until a flush that was *submitted* after that
//! completion has succeeded.

use super::protocol::Request;
use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Kept {
    /// Each with its number.
    writes: VecDeque<(u64, Request)>,
    /// Writes that have completed.
    completed: u64,
    bytes: usize,
}

impl Kept {
    /// Adds a write that has just completed.
    pub(super) fn push(&mut self, write: Request) {
        self.completed += 1;
        self.bytes += write.memory();
        self.writes.push_back((self.completed, write));
    }

    /// What a flush covers that is submitted now.
    pub(super) fn covered_by_a_flush(&self) -> u64 {
        self.completed
    }

    /// Forgets the writes that a flush has covered.
    pub(super) fn flushed(&mut self, covered: u64) {
        while let Some((number, _)) = self.writes.front()
            && *number <= covered
        {
            let (_, write) = self.writes.pop_front().expect("there is a first one");
            self.bytes -= write.memory();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.bytes = 0;
    }

    /// Memory that the writes hold.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of writes.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// The writes, oldest first.
    pub(super) fn writes(&self) -> Vec<Request> {
        self.writes.iter().map(|(_, write)| write.clone()).collect()
    }
}
