//! Histories of the system's threads: the engine as it is passes, and mistakes that need no rare schedule are
//! found.

use history::campaign::Campaign;
use history::threads::{Amount, check};
use quire_base::simulation::mistakes::{self, Mistake};

fn campaign(runs: u64) -> Campaign {
    Campaign { jobs: 1, ..Campaign::first(runs) }
}

#[test]
fn the_engine_as_it_is() {
    let outcome = mistakes::with(None, || campaign(3).run(|seed| check(seed, &Amount::default())));
    assert_eq!(outcome.found, None);
    assert!(outcome.is_decided(), "{:?}", outcome.tally);
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_long_history_shows_mistakes() {
    let long = Amount { short: 0, ..Amount::default() };
    for mistake in [Mistake::MissingFolioReadAsZeros, Mistake::CacheKeptAfterDirectWrite] {
        let outcome = mistakes::with(Some(mistake), || campaign(20).run(|seed| check(seed, &long)));
        let (_, report) = outcome.found.unwrap_or_else(|| panic!("{} is not found", mistake.name()));
        assert!(report.contains("long history"), "{report}");
    }
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn short_histories_show_mistakes() {
    let short = Amount { operations: 1, threads: 2, ..Amount::default() };
    for mistake in [Mistake::AppendOffsetBeforeLock, Mistake::ZeroingSkippedBeyondEnd] {
        let outcome = mistakes::with(Some(mistake), || campaign(60).run(|seed| check(seed, &short)));
        assert!(outcome.found.is_some(), "{} is not found", mistake.name());
    }
}
