//! A simulation of cores that repeat one operation and share cache lines.
//!
//! An operation is private work, cut in pieces of random length, and between the pieces visits to shared
//! lines. A line serves one visit at a time, in the order of arrival; a visit takes [`Model::transfer_ns`] if
//! another core had the line, and [`HELD_NS`] otherwise. Cores never wait for anything else. Events are done
//! in the order of their times, so a run depends on the seed alone.

use quire_base::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A visit to a line that the core had last.
const HELD_NS: f64 = 5.0;
/// Simulated time of a run.
const RUN_NS: f64 = 10_000_000.0;
/// A line that is busy for a larger part of the time is what bounds the rate.
const BUSY: f64 = 0.9;

/// A line that operations of different cores write.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// What it holds.
    pub name: &'static str,
    /// Visits of one operation.
    pub visits: u32,
}

/// An operation and the machine.
pub struct Model<'a> {
    /// Nanoseconds of the operation on one core, visits included.
    pub alone_ns: f64,
    /// Nanoseconds of a visit to a line that another core had.
    pub transfer_ns: f64,
    /// The lines.
    pub lines: &'a [Line],
}

/// What a run shows.
pub struct Outcome {
    /// Operations of all cores in a second.
    pub per_second: f64,
    /// The line that bounds the rate, if one does.
    pub busiest: Option<&'static str>,
}

/// A line in a run.
#[derive(Clone, Default)]
struct Server {
    free_at: f64,
    last: Option<usize>,
    busy: f64,
}

/// A core arrives somewhere; times are ordered as whole picoseconds.
type Event = Reverse<(u64, usize)>;

fn event(at_ns: f64, core: usize) -> Event {
    Reverse(((at_ns * 1000.0) as u64, core))
}

impl Model<'_> {
    /// The visits of one operation, spread over its lines in turn.
    fn visits(&self) -> Vec<usize> {
        let most = self.lines.iter().map(|line| line.visits).max().unwrap_or(0);
        let with = |round| move |&(_, line): &(usize, &Line)| line.visits > round;
        let lines = || self.lines.iter().enumerate();
        (0..most).flat_map(|round| lines().filter(with(round)).map(|(index, _)| index)).collect()
    }

    /// So many cores for [`RUN_NS`].
    pub fn run(&self, cores: usize, seed: u64) -> Outcome {
        let (visits, mut random) = (self.visits(), Random::seeded(seed));
        let private = (self.alone_ns - visits.len() as f64 * HELD_NS).max(1.0);
        let piece = private / (visits.len() + 1) as f64;
        // From half to one and a half of the mean.
        let mut work = || piece * (0.5 + random.below(1024) as f64 / 1023.0);
        let mut servers = vec![Server::default(); self.lines.len()];
        let mut steps = vec![0; cores];
        let mut done = 0u64;
        let mut events: BinaryHeap<Event> = (0..cores).map(|core| event(work(), core)).collect();
        while let Some(Reverse((at, core))) = events.pop() {
            let at = at as f64 / 1000.0;
            if at > RUN_NS {
                break;
            }
            // The end of a piece: of the last one, or in front of a line.
            let leaves_at = match visits.get(steps[core]) {
                None => {
                    done += 1;
                    steps[core] = 0;
                    at
                }
                Some(&line) => {
                    steps[core] += 1;
                    let server = &mut servers[line];
                    let takes = if server.last == Some(core) { HELD_NS } else { self.transfer_ns };
                    server.free_at = server.free_at.max(at) + takes;
                    server.last = Some(core);
                    server.busy += takes;
                    server.free_at
                }
            };
            events.push(event(leaves_at + work(), core));
        }
        let busiest = servers.iter().zip(self.lines).max_by(|one, other| one.0.busy.total_cmp(&other.0.busy));
        Outcome {
            per_second: done as f64 / (RUN_NS / 1e9),
            busiest: busiest.filter(|(server, _)| server.busy > BUSY * RUN_NS).map(|(_, line)| line.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [Line; 1] = [Line { name: "one", visits: 2 }];

    #[test]
    fn without_shared_lines_cores_add_up() {
        let model = Model { alone_ns: 1000.0, transfer_ns: 100.0, lines: &[] };
        let rates = [1, 2, 64].map(|cores| model.run(cores, 1).per_second);
        assert!((rates[0] / 1e6 - 1.0).abs() < 0.02, "{rates:?}");
        assert!((rates[2] / rates[0] - 64.0).abs() < 1.0, "{rates:?}");
        assert!(model.run(64, 1).busiest.is_none());
    }

    #[test]
    fn a_shared_line_bounds_the_rate_by_the_time_of_its_visits() {
        let model = Model { alone_ns: 1000.0, transfer_ns: 100.0, lines: &ONE };
        // One core pays what was measured; many pay two transfers, one behind the other.
        assert!((model.run(1, 1).per_second / 1e6 - 1.0).abs() < 0.02);
        let many = model.run(128, 1);
        assert!((many.per_second / 5e6 - 1.0).abs() < 0.02, "{}", many.per_second);
        assert_eq!(many.busiest, Some("one"));
        // Far from that bound, each visit costs a transfer and little waiting.
        let two = model.run(2, 1);
        assert!(two.per_second > 1.6e6 && two.per_second < 2e6, "{}", two.per_second);
        assert!(two.busiest.is_none());
    }

    #[test]
    fn a_seed_gives_the_same_run() {
        let model = Model { alone_ns: 700.0, transfer_ns: 80.0, lines: &ONE };
        assert_eq!(model.run(16, 5).per_second, model.run(16, 5).per_second);
    }
}
