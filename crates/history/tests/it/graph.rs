//! The polynomial check against the exact one: it never refuses what has an order (which every run of the
//! simulated histories asserts), and refuses nearly all that has none.

use history::cell::Run;
use history::exact::{self, STATES_MAX, Verdict};
use history::generate::Style;
use history::graph::{self, Answer};
use history::operation::{Event, Operation, Outcome};
use history::simulated::{Settings, histories};
use quire::inodes::IoFlags;
use quire_base::simulation::mistakes::{self, Mistake};

#[test]
#[ignore = "scripts/mistakes runs it"]
fn it_finds_nearly_all_that_the_exact_search_finds() {
    let mistakes = [
        (Mistake::UnlockBeforeSizePublished, Style::Edge),
        (Mistake::SizeNotLookedAtAgain, Style::Edge),
        (Mistake::VersionsTakenAfterCopy, Style::Cached),
        (Mistake::ExclusiveSequenceIgnored, Style::Resize),
        (Mistake::MissingFolioReadAsZeros, Style::Direct),
        (Mistake::ReadaheadWithoutFillBits, Style::Ahead),
        (Mistake::GateLeftAtSubmission, Style::Direct),
        (Mistake::CacheKeptAfterDirectWrite, Style::Direct),
        (Mistake::AppendOffsetBeforeLock, Style::Append),
        (Mistake::ZeroingSkippedBeyondEnd, Style::Resize),
    ];
    let (mut refused, mut refused_by_both) = (0, 0);
    for (mistake, style) in mistakes {
        let settings = Settings { style: Some(style), ..Settings::default() };
        let (mut exact, mut both) = (0, 0);
        mistakes::with(Some(mistake), || {
            for seed in 0..60 {
                // A mistake may also end in an error or a panic of the engine.
                let Ok((histories, _)) = histories(seed, &settings) else { continue };
                for (_, events) in histories {
                    let found = matches!(exact::explain(&events, STATES_MAX), Verdict::Contradiction(..));
                    match graph::check(&events) {
                        Answer::NotTaken => {}
                        Answer::Consistent => exact += u32::from(found),
                        Answer::Contradiction(report) => {
                            assert!(found, "seed {seed}: refused, but it has an order: {report}");
                            (exact, both) = (exact + 1, both + 1);
                        }
                    }
                }
            }
        });
        eprintln!("{}: {both} of {exact}", mistake.name());
        (refused, refused_by_both) = (refused + exact, refused_by_both + both);
    }
    assert!(refused > 100, "the mistakes show: {refused}");
    assert!(refused_by_both * 10 >= refused * 9, "{refused_by_both} of {refused}");
}

fn write(number: u32, times: (u64, u64), at: u64, len: u64) -> Event {
    let operation = Operation::Write { at, len, flags: IoFlags::empty() };
    let outcome = Outcome::Written { at, count: len };
    Event { number, thread: number, submitted: false, operation, outcome, called: times.0, returned: times.1 }
}

fn read(number: u32, times: (u64, u64), at: u64, len: u64, seen: &[(u32, u32, u32)]) -> Event {
    let run = |&(len, writer, position): &(u32, u32, u32)| Run { len, writer, position };
    let (operation, outcome) =
        (Operation::Read { at, len, direct: false }, Outcome::Runs(seen.iter().map(run).collect()));
    Event { number, thread: number, submitted: false, operation, outcome, called: times.0, returned: times.1 }
}

fn refusal(events: &[Event]) -> Option<String> {
    match graph::check(events) {
        Answer::Contradiction(report) => Some(report),
        Answer::Consistent => None,
        Answer::NotTaken => panic!("not taken"),
    }
}

#[test]
fn a_torn_read_is_a_circle() {
    let mut events = vec![write(1, (1, 9), 0, 4), write(2, (2, 10), 0, 4)];
    events.push(read(3, (3, 4), 0, 4, &[(4, 1, 0)]));
    assert_eq!(refusal(&events), None);
    events.push(read(4, (5, 6), 0, 4, &[(2, 1, 0), (2, 2, 2)]));
    let report = refusal(&events).expect("torn");
    assert!(report.contains("goes round in a circle") && report.contains("#4"), "{report}");
}

#[test]
fn readers_who_disagree_are_a_circle() {
    let events = [
        write(1, (1, 20), 0, 2),
        write(2, (2, 21), 0, 2),
        read(3, (3, 4), 0, 2, &[(2, 1, 0)]),
        read(4, (5, 6), 0, 2, &[(2, 2, 0)]),
        read(5, (7, 8), 0, 2, &[(2, 1, 0)]),
    ];
    assert_eq!(refusal(&events[..4]), None);
    assert!(refusal(&events).is_some());
}

#[test]
fn stale_zeros_and_moved_cells_are_refused() {
    let stale = [write(1, (1, 2), 0, 2), read(2, (3, 4), 0, 2, &[(2, 0, 0)])];
    assert!(refusal(&stale).expect("stale").contains("nobody zeroed"));
    let moved = [write(1, (1, 2), 0, 4), read(2, (3, 4), 0, 2, &[(2, 1, 1)])];
    assert!(refusal(&moved).expect("moved").contains("written elsewhere"));
    let half =
        [write(1, (1, 2), 0, 4), write(2, (3, 9), 2, 4), read(3, (4, 5), 0, 8, &[(2, 1, 0), (2, 2, 0)])];
    assert!(refusal(&half).is_some(), "the new bytes with the old end");
}
