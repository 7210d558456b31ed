//! Making a failing run small: steps are left out, in ever smaller pieces, as long as it still fails.
//!
//! What remains is another run, whose crash may come at another moment and show something else; what counts
//! is that it fails and is short. Steps draw what they do from seeds of their own, so leaving some out does
//! not change what the others want.
//!
//! Neighbours: [`crate::levels`].

use crate::levels::{self, Settings, Violation};
use std::time::{Duration, Instant};

/// A run that still fails, with fewer steps, and how it fails. Tries for so long at most.
pub fn shrink(settings: &Settings, violation: Violation, time: Duration) -> (Settings, Violation) {
    let end = Instant::now() + time;
    let mut best = Settings { levels: violation.level + 1, ..settings.clone() };
    let mut seen = violation;
    let mut steps = best.only.clone().unwrap_or_else(|| all_steps(&best));
    let mut piece = steps.len().div_ceil(2);
    while piece > 0 && Instant::now() < end {
        let mut at = 0;
        let mut shorter = false;
        while at < steps.len() && Instant::now() < end {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + piece).min(steps.len()));
            let tried = Settings { only: Some(fewer.clone()), ..best.clone() };
            match levels::run(&tried, &mut |_| Instant::now() < end).violation {
                Some(violation) => {
                    best = Settings { levels: violation.level + 1, ..tried };
                    steps = fewer;
                    seen = violation;
                    shorter = true;
                }
                None => at += piece,
            }
        }
        if piece == 1 && !shorter {
            break;
        }
        piece = if piece == 1 { 1 } else { piece / 2 };
    }
    (best, seen)
}

fn all_steps(settings: &Settings) -> Vec<(usize, usize, usize)> {
    let each = settings.operations.div_ceil(settings.threads);
    let of_thread = |level, thread| (0..each).map(move |place| (level, thread, place));
    (0..settings.levels)
        .flat_map(|level| (0..settings.threads).flat_map(move |thread| of_thread(level, thread)))
        .collect()
}
