//! How the next thread is drawn. A seed picks one style for its whole run.
//!
//! * *Uniform*: any runnable thread, each time.
//! * *Sticky*: stays with the running thread most of the time, so that threads get far apart.
//! * *Priorities* (after Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010): the runnable thread of
//!   highest priority runs; at a few steps, whose mean distance the seed chooses, the running thread falls to
//!   the lowest. So one thread may stand still for long in the middle of something while others do much. Who
//!   yields or spins falls as well, or nobody would ever do what it spins for.

use crate::scheduler::Kind;
use fastrand::Rng;

#[derive(Debug)]
enum Style {
    Uniform,
    /// Moves on once in so many steps.
    Sticky(u64),
    /// The running thread falls once in so many steps.
    Priorities(u64),
}

/// Draws threads.
#[derive(Debug)]
pub(crate) struct Chooser {
    random: Rng,
    style: Style,
    /// By thread number; higher runs first.
    priorities: Vec<u64>,
    lowest: u64,
    /// From this step on the draw is uniform.
    fair_from: u64,
}

impl Chooser {
    pub fn new(seed: u64, step_limit: u64) -> Chooser {
        let mut random = Rng::with_seed(seed);
        let style = match random.u64(..8) {
            0 | 1 => Style::Uniform,
            2 | 3 => Style::Sticky(8),
            4 => Style::Sticky(32),
            _ => Style::Priorities(1 << (2 + random.u64(..9))),
        };
        // Priorities of threads are above 2^32, those of the fallen below, each lower than the one before.
        Chooser { random, style, priorities: Vec::new(), lowest: 1 << 32, fair_from: step_limit / 2 }
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.random.u64(..bound as u64) as usize
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.random.u64(..n) == 0
    }

    pub fn thread_started(&mut self) {
        let priority = (1 << 33) + self.random.u64(..1 << 40);
        self.priorities.push(priority);
    }

    fn fall(&mut self, thread: usize) {
        self.lowest -= 1;
        self.priorities[thread] = self.lowest;
    }

    /// One of `runnable` (ascending, at least one), when `last` has just done `kind` as step number `step`.
    pub fn choose(&mut self, runnable: &[usize], last: usize, kind: Kind, step: u64) -> usize {
        if let Style::Priorities(distance) = self.style
            && (kind.lets_others_on() || self.one_in(distance))
        {
            self.fall(last);
        }
        if let [only] = runnable {
            return *only;
        }
        let fair = step >= self.fair_from;
        match &self.style {
            Style::Sticky(_) | Style::Priorities(_) if fair => {}
            Style::Sticky(stay)
                if !kind.lets_others_on()
                    && runnable.binary_search(&last).is_ok()
                    && self.random.u64(..*stay) != 0 =>
            {
                return last;
            }
            Style::Priorities(_) => {
                let highest = runnable.iter().max_by_key(|thread| self.priorities[**thread]);
                return *highest.unwrap_or(&last);
            }
            _ => {}
        }
        runnable[self.below(runnable.len())]
    }
}
