//! The simulator can fail: each deliberate mistake in the engine is caught within 500 crash images of
//! ordinary runs, and the same runs of the engine as it is show nothing.
//!
//! Every mistake has the style, threads and first seed under which it is looked for; all of them are styles
//! that the simulator's own tests run too. Any change of the engine changes every schedule, and what shows in
//! one of sixty runs may be missed then: it is looked for on a few more grounds.

use quire_base::simulation::mistakes::{self, Mistake};
use sim::campaign::command;
use sim::coverage::Coverage;
use sim::generate::Style;
use sim::levels::{self, Settings, Violation};

/// Images within which a mistake must be found.
const IMAGES_MAX: u64 = 500;

/// Grounds on which a mistake is looked for, and the seeds between two of them.
const GROUNDS: u64 = 4;
const GROUNDS_APART: u64 = 1000;

fn of(style: Style, threads: usize, operations: usize, seed: u64) -> Settings {
    Settings { seed, operations, threads, style: Some(style), faults: Some(false), ..Settings::default() }
}

/// Where a mistake is looked for: the runs are of this seed and the following ones.
fn ground(mistake: Mistake) -> Settings {
    match mistake {
        Mistake::NoFlushBeforeJournalWrite => of(Style::Data, 3, 80, 1000),
        Mistake::RecordNamesNoData => of(Style::Data, 3, 80, 2000),
        Mistake::ExtentBeforeData => of(Style::Names, 4, 80, 1000),
        Mistake::FreedBlocksReusedAtOnce | Mistake::FreedBlocksDiscardedAtOnce => {
            of(Style::Reshape, 2, 80, 1000)
        }
        Mistake::HealedNodeUnreached => of(Style::Names, 1, 80, 1001),
        Mistake::UsedBlocksDiscarded => of(Style::Reshape, 4, 80, 1000),
        Mistake::SuperblockBeforeNodes => of(Style::Forces, 1, 80, 1000),
        Mistake::TornJournalTailAccepted => of(Style::Wrap, 4, 80, 5004),
        Mistake::JournalWriteBeforeItsPredecessor => of(Style::Wrap, 4, 80, 2000),
        Mistake::JournalSpaceReusedEarly => of(Style::Wrap, 1, 250, 1000),
        Mistake::CollapseGateBeforeForce => of(Style::Reshape, 2, 40, 6000),
        Mistake::CheckpointNodesInDataSpace | Mistake::SizePastGap => of(Style::Mixed, 1, 60, 1000),
        Mistake::DeadRecordsAccepted => of(Style::Forces, 2, 80, 1000),
        Mistake::RenameInTwoTransactions => of(Style::Names, 1, 80, 1000),
        Mistake::SecondSuperblockUnused => of(Style::Wrap, 1, 120, 1000),
        Mistake::FsyncWithoutFlush => of(Style::Shared, 1, 80, 2000),
        Mistake::EvictedSeqForgotten => of(Style::Names, 1, 80, 1000),
        Mistake::ErrorSeenOnce => Settings { faults: Some(true), ..of(Style::Shared, 3, 80, 1000) },
        Mistake::OverlappingDeviceWrites => of(Style::Shared, 3, 80, 1000),
        Mistake::SeqStoredAfterWriteback => of(Style::Shared, 4, 80, 4000),
        Mistake::HomeBeforeRecord => of(Style::Atomic, 2, 160, 8003),
        Mistake::RecoveryReadsUnflushed
        | Mistake::HomesSkippedByCheckpoint
        | Mistake::FreedContentReplayed
        | Mistake::MovedContentForgotten
        | Mistake::GroupInTwoRecords
        | Mistake::RecordedWrittenInPlace
        | Mistake::PassedForNewestSlot
        | Mistake::ExchangeNamesNoData
        | Mistake::ExchangeInTwoRecords
        | Mistake::CacheKeptAfterExchange
        | Mistake::StreamedDataUnmarked
        | Mistake::StreamedBlocksGivenBack => of(Style::Atomic, 1, 80, 1000),
        Mistake::SharedOverwritten
        | Mistake::SharedFreed
        | Mistake::DeadFreedEarly
        | Mistake::DeadNeverFreed
        | Mistake::KeptNodesReused
        | Mistake::RollbackRestoresMap => of(Style::Snapshots, 1, 80, 1000),
        Mistake::SnapshotWithoutSync | Mistake::HomesKeptBySnapshot | Mistake::ReplacedImageCounted => {
            of(Style::Snapshots, 3, 80, 1000)
        }
        Mistake::OrphanClaimedApart => of(Style::Forces, 4, 80, 2000),
        _ => of(Style::Forces, 4, 80, 1000),
    }
}

/// Looks at up to so many images; the violation, with the run that showed it, and the images looked at.
fn look(first: &Settings, images: u64) -> (Option<(Settings, Violation)>, u64) {
    let mut coverage = Coverage::default();
    for seed in first.seed.. {
        let settings = Settings { seed, ..first.clone() };
        let before = coverage.images;
        let outcome = levels::run(&settings, &mut |reached| before + reached.images < images);
        coverage.add(&outcome.coverage);
        if let Some(violation) = outcome.violation {
            return (Some((settings, violation)), coverage.images);
        }
        if coverage.images >= images {
            break;
        }
    }
    (None, coverage.images)
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn every_mistake_is_caught_and_nothing_else() {
    let mut missed = Vec::new();
    for mistake in Mistake::ALL {
        let mut ground = ground(mistake);
        let mut looked_at = 1;
        let (found, images) = loop {
            let (found, images) = mistakes::with(Some(mistake), || look(&ground, IMAGES_MAX));
            if found.is_some() || looked_at == GROUNDS {
                break (found, images);
            }
            looked_at += 1;
            ground.seed += GROUNDS_APART;
        };
        match found {
            Some((_, violation)) => {
                println!(
                    "{:<38} {images:>4} images from seed {}, {}",
                    mistake.name(),
                    ground.seed,
                    brief(&violation)
                )
            }
            None => missed.push(format!("{}: {}", mistake.name(), command(&ground, Some(mistake)))),
        }
        let (found, _) = mistakes::with(None, || look(&ground, images));
        if let Some((settings, violation)) = found {
            panic!("without a mistake: {violation}\nrepeat: {}", command(&settings, None));
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {IMAGES_MAX} images of {GROUNDS} grounds:\n{}",
        missed.join("\n")
    );
}

fn brief(violation: &Violation) -> String {
    violation.to_string().chars().take(160).collect()
}
