//! Many runs, some at a time, up to the first violation.
//!
//! Invariants: which runs there are and what each does depends on the list alone; only which of several
//! violations is told first, and how far the others got by then, depends on time.
//!
//! Neighbours: the program `sim` and the tests say which runs; [`crate::levels`] does one.

use crate::coverage::Coverage;
use crate::levels::{self, Settings, Violation};
use quire_base::simulation::mistakes::Mistake;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One of so many may be too wide to be judged.
const UNDECIDED_ONE_IN: u64 = 20;

/// What came of many runs.
#[derive(Debug, Default)]
pub struct Campaign {
    /// What all of them reached.
    pub coverage: Coverage,
    /// Runs that were finished.
    pub runs: u64,
    /// The first violation, with the run that showed it.
    pub found: Option<(Settings, Violation)>,
}

impl Campaign {
    /// Whether so much could be judged that finding nothing says something: at least one image, all but a
    /// twentieth of the runs, and of the units of untorn files no more than one in twenty images.
    pub fn is_decided(&self) -> bool {
        let reached = &self.coverage;
        reached.images > 0
            && reached.undecided * UNDECIDED_ONE_IN <= self.runs
            && reached.undecided_units * UNDECIDED_ONE_IN <= reached.images
    }
}

/// Does the runs that `list` gives, `jobs` at a time. `tick` is called after each; if it gives false, no more
/// are begun.
pub fn run(
    list: impl Iterator<Item = Settings> + Send,
    jobs: usize,
    tick: impl Fn(&Settings, &Campaign) -> bool + Sync,
) -> Campaign {
    let list = Mutex::new(list.fuse());
    let stop = AtomicBool::new(false);
    let campaign = Mutex::new(Campaign::default());
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(settings) = list.lock().expect("no panic").next() else { return };
            let outcome = levels::run(&settings, &mut |_| !stop.load(Ordering::Relaxed));
            let mut campaign = campaign.lock().expect("no panic");
            campaign.coverage.add(&outcome.coverage);
            campaign.runs += 1;
            if !tick(&settings, &campaign) || outcome.violation.is_some() {
                stop.store(true, Ordering::Relaxed);
            }
            if let Some(violation) = outcome.violation {
                campaign.found.get_or_insert((settings, violation));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(worker);
        }
    });
    campaign.into_inner().expect("no panic")
}

/// The command that repeats a run.
pub fn command(settings: &Settings, mistake: Option<Mistake>) -> String {
    let Settings { seed, operations, threads, images, levels, style, faults, only } = settings;
    // No step is no operation: an empty list could not be told from a missing one.
    let operations = if only.as_ref().is_some_and(Vec::is_empty) { &0 } else { operations };
    let mut command = format!(
        "cargo run --release -p sim -- --seed {seed} --ops {operations} --threads {threads} --images {images} --levels {levels}"
    );
    if let Some(style) = style {
        command += &format!(" --style {}", format!("{style:?}").to_lowercase());
    }
    if let Some(mistake) = mistake {
        command += &format!(" --mistake {}", mistake.name());
    }
    if let Some(faults) = faults {
        command += &format!(" --faults {faults}");
    }
    if let Some(only) = only
        && !only.is_empty()
    {
        let steps: Vec<_> = only.iter().map(|(level, thread, at)| format!("{level}.{thread}.{at}")).collect();
        command += &format!(" --only {}", steps.join(","));
    }
    command
}
