//! Thousands of histories of the engine as it is, under schedules from seeds: an order explains each of them.

use history::campaign::Campaign;
use history::generate::{Extent, Style};
use history::simulated::{Settings, check, histories};
use quire_base::simulation::mistakes;

fn clean(settings: Settings, runs: u64) {
    let outcome = mistakes::with(None, || Campaign::first(runs).run(|seed| check(seed, &settings)));
    if let Some((seed, report)) = outcome.found {
        panic!("{report}again: cargo run --release -p history -- --seed {seed} (with this test's settings)");
    }
    assert_eq!(outcome.tally.histories, runs * settings.files);
    assert_eq!(outcome.tally.undecided, 0, "the exact check decides histories of this length");
}

#[test]
fn every_mixture() {
    clean(Settings::default(), 300);
}

#[test]
fn each_style() {
    for style in Style::ALL {
        let runs = if style == Style::Large { 8 } else { 25 };
        clean(Settings { style: Some(style), ..Settings::default() }, runs);
    }
}

#[test]
fn many_threads_and_longer_histories() {
    let extent = Extent { threads: 7, operations: 12 };
    clean(Settings { extent, files: 3, ..Settings::default() }, 25);
}

/// The scheduler decides everything: what failed once can be looked at again.
#[test]
fn a_run_repeats() {
    mistakes::with(None, || {
        for seed in 0..4 {
            let once = histories(seed, &Settings::default()).unwrap();
            assert!(once == histories(seed, &Settings::default()).unwrap(), "seed {seed}");
        }
    });
}
