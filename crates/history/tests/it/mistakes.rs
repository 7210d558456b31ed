//! Each deliberate mistake is found within a few thousand histories, and the same seeds find nothing in the
//! engine as it is.

use history::campaign::Campaign;
use history::generate::{Extent, Style};
use history::simulated::{Settings, check};
use quire_base::simulation::mistakes::{self, Mistake};

/// Runs, of six histories each, in which a mistake must be found.
const RUNS_MAX: u64 = 3000;

fn found(mistake: Mistake, style: Style) -> String {
    let settings = Settings { style: Some(style), ..Settings::default() };
    found_with(mistake, settings)
}

fn found_with(mistake: Mistake, settings: Settings) -> String {
    let campaign = Campaign::first(RUNS_MAX);
    let outcome = mistakes::with(Some(mistake), || campaign.run(|seed| check(seed, &settings)));
    let Some((seed, report)) = outcome.found else {
        panic!("{} is not found in {RUNS_MAX} runs", mistake.name());
    };
    eprintln!("{}: seed {seed}", mistake.name());
    // The right engine: that seed, and a few around it.
    let campaign = Campaign { seeds: seed.saturating_sub(3)..seed + 4, ..Campaign::first(0) };
    let outcome = mistakes::with(None, || campaign.run(|seed| check(seed, &settings)));
    assert_eq!(outcome.found, None, "the engine without the mistake");
    report
}

macro_rules! found {
    ($($test:ident: $mistake:ident by $style:ident;)*) => {
        $(
            #[test]
            #[ignore = "scripts/mistakes runs it"]
            fn $test() {
                let report = found(Mistake::$mistake, Style::$style);
                assert!(report.contains("no order of the operations explains"), "{report}");
            }
        )*
    };
}

found! {
    unlock_before_size_published: UnlockBeforeSizePublished by Edge;
    size_not_looked_at_again: SizeNotLookedAtAgain by Append;
    versions_taken_after_copy: VersionsTakenAfterCopy by Cached;
    exclusive_sequence_ignored: ExclusiveSequenceIgnored by Resize;
    missing_folio_read_as_zeros: MissingFolioReadAsZeros by Direct;
    cache_kept_after_direct_write: CacheKeptAfterDirectWrite by Direct;
    append_offset_before_lock: AppendOffsetBeforeLock by Append;
    zeroing_skipped_beyond_end: ZeroingSkippedBeyondEnd by Resize;
}

/// It shows in what is read, or earlier still, when a fill overwrites the memory of a write in flight.
#[test]
#[ignore = "scripts/mistakes runs it"]
fn readahead_without_fill_bits() {
    found(Mistake::ReadaheadWithoutFillBits, Style::Ahead);
}

/// It shows in what is read, or earlier still, when a volume is closed while its data is in flight.
#[test]
#[ignore = "scripts/mistakes runs it"]
fn writeback_not_waited_for() {
    found(Mistake::WritebackNotWaitedFor, Style::Direct);
}

/// It shows in what is read, or earlier still, when a cached write of the same blocks is written back
/// while the direct one is in flight (C2).
#[test]
#[ignore = "scripts/mistakes runs it"]
fn gate_left_at_submission() {
    let report = found(Mistake::GateLeftAtSubmission, Style::Direct);
    let overlap = report.contains("while another at") && report.contains("is in flight");
    assert!(overlap || report.contains("no order of the operations explains"), "{report}");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn locks_not_in_order() {
    let extent = Extent { threads: 5, operations: 8 };
    let settings = Settings { style: Some(Style::Cached), extent, ..Settings::default() };
    let report = found_with(Mistake::LocksNotInOrder, settings);
    assert!(report.contains("deadlock"), "{report}");
}

#[test]
fn every_mistake_of_memory_has_its_test() {
    let source = include_str!("mistakes.rs");
    for mistake in Mistake::MEMORY {
        let test = mistake.name().replace('-', "_");
        assert!(source.contains(&test), "{test}");
    }
}
