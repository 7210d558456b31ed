//! The exact answer: is there an order of the operations that explains every read?
//!
//! Search after Wing and Gong (J. Parallel Distrib. Comput. 1993) with the memory of Lowe (Concurrency
//! Computat. Pract. Exper. 2017): an order is built from its front; an operation may come next if none that
//! is still to come returned before it was called; a set of operations done that led to the same contents
//! before is not searched again.
//!
//! Two things keep it small. An operation that only looks, may come next, and fits, comes next: were there an
//! order with it later, there is one with it now. And cells that no read of the history has seen are made
//! alike, so that the order of the writes behind them makes no difference.
//!
//! Operations that have not returned may be done at any time after their call, or never.
//!
//! Neighbours: [`crate::content`] is the file; [`crate::report`] explains a contradiction; [`crate::graph`]
//! answers for histories that are too long for this.

use crate::cell::{Run, Writer, ZERO};
use crate::content::{Content, Hash128};
use crate::operation::{Event, Operation, Outcome};
use std::collections::{BTreeMap, HashSet};

/// What a search found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// An order, as numbers of operations.
    Explained(Vec<Writer>),
    /// There is none; the longest one until nothing fitted, and the contents after it.
    Contradiction(Vec<Writer>, Content),
    /// There are too many possibilities to say.
    GivenUp,
}

/// Contents after which sets of operations that a search looks at before it gives up.
pub const STATES_MAX: usize = 2_000_000;

/// Looks for an order of `events`, of a file that is empty at first.
pub fn explain(events: &[Event], states_max: usize) -> Verdict {
    let mut events: Vec<&Event> =
        events.iter().filter(|event| !event.operation.is_silent() && !is_idle(event)).collect();
    events.sort_by_key(|event| event.called);
    let data = data_of_writes(&events);
    let left = events.iter().filter(|event| event.outcome != Outcome::Pending).count();
    let mut search = Search {
        done: vec![0; events.len().div_ceil(64)],
        events,
        data,
        left,
        order: Vec::new(),
        longest: (Vec::new(), Content::default()),
        seen: HashSet::new(),
        states_max,
    };
    match search.go_on(Content::default(), 0) {
        Some(true) => Verdict::Explained(search.order),
        Some(false) => Verdict::Contradiction(search.longest.0, search.longest.1),
        None => Verdict::GivenUp,
    }
}

/// A look that has not returned says nothing.
fn is_idle(event: &Event) -> bool {
    event.outcome == Outcome::Pending && event.operation.only_looks()
}

/// What each write writes, with what nobody has seen made alike.
fn data_of_writes(events: &[&Event]) -> Vec<Vec<Run>> {
    let mut seen: BTreeMap<Writer, Vec<(u32, u32)>> = BTreeMap::new();
    for event in events {
        if let Outcome::Runs(runs) = &event.outcome {
            for run in runs.iter().filter(|run| run.writer != ZERO) {
                seen.entry(run.writer).or_default().push((run.position, run.position + run.len));
            }
        }
    }
    let pieces = |event: &&Event| {
        let len = match (&event.operation, &event.outcome) {
            (_, Outcome::Written { count, .. }) => *count,
            (Operation::Write { len, .. } | Operation::Append { len, .. }, Outcome::Pending) => *len,
            _ => return Vec::new(),
        };
        let mut ranges = seen.get(&event.number).cloned().unwrap_or_default();
        ranges.sort_unstable();
        let (mut runs, mut at) = (Vec::new(), 0);
        let mut push = |run: Run| {
            if run.len > 0 {
                runs.push(run);
            }
        };
        for (from, to) in ranges {
            let (from, to) = (from.max(at), to.min(len as u32));
            if from < to {
                push(Run::unseen(from - at));
                push(Run { len: to - from, writer: event.number, position: from });
                at = to;
            }
        }
        push(Run::unseen(len as u32 - at));
        runs
    };
    events.iter().map(pieces).collect()
}

struct Search<'a> {
    /// By the time of their call.
    events: Vec<&'a Event>,
    data: Vec<Vec<Run>>,
    /// A bit for each event.
    done: Vec<u64>,
    /// Events that returned and are not done.
    left: usize,
    order: Vec<Writer>,
    longest: (Vec<Writer>, Content),
    seen: HashSet<u128>,
    states_max: usize,
}

impl Search<'_> {
    fn is_done(&self, at: usize) -> bool {
        self.done[at / 64] >> (at % 64) & 1 == 1
    }

    fn set_done(&mut self, at: usize, done: bool) {
        self.done[at / 64] ^= 1 << (at % 64);
        let counts = usize::from(self.events[at].outcome != Outcome::Pending);
        if done {
            self.left -= counts;
            self.order.push(self.events[at].number);
        } else {
            self.left += counts;
            self.order.pop();
        }
    }

    /// The events that may come next, by the time of their call.
    fn next(&self, first: usize) -> Vec<usize> {
        let mut next = Vec::new();
        let mut returned = u64::MAX;
        for at in first..self.events.len() {
            if self.is_done(at) {
                continue;
            }
            let event = self.events[at];
            if event.called > returned {
                break;
            }
            returned = returned.min(event.returned);
            next.push(at);
        }
        next
    }

    /// Builds on; every event before `first` is done. None: too much.
    fn go_on(&mut self, content: Content, first: usize) -> Option<bool> {
        let mut content = content;
        let mut first = first;
        let mut looked = Vec::new();
        let next = loop {
            while first < self.events.len() && self.is_done(first) {
                first += 1;
            }
            let next = self.next(first);
            let fits = next.iter().copied().find(|at| {
                let event = self.events[*at];
                event.operation.only_looks() && content.apply(&event.operation, &event.outcome, &[]).is_ok()
            });
            match fits {
                Some(at) => {
                    self.set_done(at, true);
                    looked.push(at);
                }
                None => break next,
            }
        };
        if self.left == 0 {
            return Some(true);
        }
        let outcome = self.branch(&content, first, next);
        if outcome != Some(true) {
            looked.into_iter().rev().for_each(|at| self.set_done(at, false));
        }
        outcome
    }

    fn branch(&mut self, content: &Content, first: usize, next: Vec<usize>) -> Option<bool> {
        if self.order.len() > self.longest.0.len() || self.longest.0.is_empty() {
            self.longest = (self.order.clone(), content.clone());
        }
        let mut key = Hash128::new(self.left as u64);
        self.done.iter().for_each(|word| key.add(*word));
        if !self.seen.insert(key.value() ^ content.hash()) {
            return Some(false);
        }
        if self.seen.len() > self.states_max {
            return None;
        }
        for at in next {
            let event = self.events[at];
            if event.operation.only_looks() {
                continue;
            }
            let mut after = content.clone();
            if after.apply(&event.operation, &event.outcome, &self.data[at]).is_err() {
                continue;
            }
            self.set_done(at, true);
            match self.go_on(after, first) {
                Some(false) => self.set_done(at, false),
                other => return other,
            }
        }
        Some(false)
    }
}

/// The part of a history up to `time`: what had not returned by then is still under way.
pub fn until(events: &[Event], time: u64) -> Vec<Event> {
    let cut = |event: &Event| {
        let mut event = event.clone();
        if event.returned > time {
            (event.outcome, event.returned) = (Outcome::Pending, u64::MAX);
        }
        event
    };
    events.iter().filter(|event| event.called <= time).map(cut).collect()
}
