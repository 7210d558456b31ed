//! Many seeds, several at a time, until one finds something.
//!
//! Neighbours: the program and the tests run campaigns of [`crate::simulated`] and [`crate::threads`].

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One history of so many may have too many possibilities to decide.
const UNDECIDED_ONE_IN: u64 = 20;

/// What a run had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Histories, each of one file.
    pub histories: u64,
    /// Operations in them.
    pub operations: u64,
    /// Histories with too many possibilities to decide.
    pub undecided: u64,
    /// Histories that the polynomial check took.
    pub graphs: u64,
    /// Points of the scheduler.
    pub steps: u64,
}

impl Tally {
    /// Adds another's.
    pub fn add(&mut self, other: Tally) {
        self.histories += other.histories;
        self.operations += other.operations;
        self.undecided += other.undecided;
        self.graphs += other.graphs;
        self.steps += other.steps;
    }
}

/// Seeds to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Which.
    pub seeds: Range<u64>,
    /// When to stop even if there are more.
    pub end: Option<Instant>,
    /// How many at a time.
    pub jobs: usize,
}

/// What a campaign came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Runs in which nothing was found.
    pub runs: u64,
    /// What they had.
    pub tally: Tally,
    /// The lowest seed that found something, and its report.
    pub found: Option<(u64, String)>,
}

impl Outcome {
    /// Whether so many histories could be decided that finding nothing says something: all but a twentieth,
    /// and at least one.
    pub fn is_decided(&self) -> bool {
        self.tally.histories > 0 && self.tally.undecided * UNDECIDED_ONE_IN <= self.tally.histories
    }
}

impl Campaign {
    /// The seeds below `count`, two at a time.
    pub fn first(count: u64) -> Campaign {
        Campaign { seeds: 0..count, end: None, jobs: 2 }
    }

    /// Calls `check` for every seed until it finds something. Seeds below the one that is told have all been
    /// run.
    pub fn run(&self, check: impl Fn(u64) -> Result<Tally, String> + Sync) -> Outcome {
        let next = AtomicU64::new(self.seeds.start);
        let outcome = Mutex::new(Outcome::default());
        let lock = || outcome.lock();
        let body = || {
            while lock().found.is_none() && self.end.is_none_or(|end| Instant::now() < end) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= self.seeds.end {
                    return;
                }
                let checked = check(seed);
                let mut outcome = lock();
                match checked {
                    Ok(tally) => {
                        outcome.runs += 1;
                        outcome.tally.add(tally);
                    }
                    Err(report) if outcome.found.as_ref().is_none_or(|(found, _)| seed < *found) => {
                        outcome.found = Some((seed, report));
                    }
                    Err(_) => {}
                }
            }
        };
        if self.jobs <= 1 {
            body();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..self.jobs {
                    scope.spawn(body);
                }
            });
        }
        std::mem::take(&mut *lock())
    }
}
