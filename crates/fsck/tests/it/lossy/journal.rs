//! Sectors of the journal that cannot be read. One in the unused part of the ring kept a whole volume from
//! opening: recovery reads all of the ring, and took the device's error for its own.

use super::one_block::unused_journal;
use super::*;
use quire::ScrubOptions;
use std::ops::ControlFlow;

/// Each block of the ring in turn: what recovery needs is refused, and the rest opens with all that was
/// there. Opening for writing writes such a block anew, whenever the power goes meanwhile.
#[test]
fn a_sector_that_nothing_needs_is_written_anew() {
    for (nth, sample) in samples().iter().enumerate().take(2) {
        let superblock = &superblocks(&sample.image)[0].1;
        let unused: BTreeSet<u64> = unused_journal(sample).iter().map(|at| at.0).collect();
        for at in superblock.journal_start.0..superblock.journal_end().0 {
            let what = format!("sample {nth}, block {at}");
            let inner = Arc::new(SimulatedBackend::from_image(sample.image.clone()));
            let backend = Arc::new(Sectors::new(inner.clone(), BTreeSet::from([at])));
            // Without a journal to replay the one behind the end is known to be unused.
            if nth == 1 && !unused.contains(&at) {
                let refused = options().open_backend(backend.clone()).map(drop).unwrap_err();
                assert!(refused.to_string().contains("cannot be read"), "{what}: {refused}");
                let report = check_backend(backend.clone(), &Options::default()).unwrap();
                assert!(report.has(quire_fsck::IssueKind::JournalDamaged), "{what}: {report:#?}");
                continue;
            }
            let report = check_backend(backend.clone(), &Options::default()).unwrap();
            assert!(report.has(quire_fsck::IssueKind::JournalBlockUnreadable), "{what}: {report:#?}");
            // The older checkpoint may lead through it.
            assert!(report.worst() == Some(quire_fsck::Severity::Warning), "{what}: {report:#?}");
            if at % 16 == 0 {
                let read_only = options().read_only(true).open_backend(backend.clone()).unwrap();
                assert!(ledger::of(&read_only) == sample.ledger, "{what}");
                assert!(!backend.bad().is_empty());
                let repaired = Arc::new(Sectors::new(device(&sample.image), BTreeSet::from([at])));
                let mended =
                    check_backend(repaired, &Options { repair: true, ..Options::default() }).unwrap();
                assert_eq!(mended.exit_code(), 1, "{what}: {mended:#?}");
            }
            let volume =
                options().open_backend(backend.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(backend.bad().is_empty(), "{what}");
            drop(volume);
            if at % 64 == 0 {
                for event in 0..=inner.event_count() {
                    let policy = CrashPolicy::Power { seed: event as u64 };
                    let crashed = inner.crash_at(event, policy).unwrap();
                    let again = Arc::new(Sectors::new(device(&crashed), BTreeSet::from([at])));
                    let volume = options().open_backend(again.clone()).unwrap();
                    assert!(ledger::of(&volume) == sample.ledger, "{what}, after event {event}");
                    volume.close().unwrap();
                    assert!(again.bad().is_empty(), "{what}, after event {event}");
                }
            }
        }
    }
}

/// A scrub finds such a sector while the volume is in use, and writes it anew, but never over a record that
/// recovery needs.
#[test]
fn a_scrub_writes_unreadable_sectors_of_the_journal_anew() {
    let sample = &samples()[1];
    let inner = Arc::new(SimulatedBackend::from_image(sample.image.clone()));
    let backend = Arc::new(Sectors::new(inner.clone(), BTreeSet::new()));
    let volume = options().open_backend(backend.clone()).unwrap();
    let superblock = superblocks(&inner.visible())[0].1.clone();
    let mut random = Random::seeded(4);
    for round in 0..40 {
        // What the ring gets now is behind the newest checkpoint.
        let (path, text) = (format!("round-{round}"), format!("{round} ").repeat(9000));
        volume.write(&path, &text).unwrap();
        volume.sync().unwrap();
        let at = superblock.journal_start.0 + random.below(superblock.journal_blocks);
        backend.go_bad(at);
        let report = volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(report.is_good() && report.damaged > 0, "round {round}: {report:#?}");
        assert_eq!(report.healed, report.damaged, "round {round}: {report:#?}");
        assert!(backend.bad().is_empty(), "round {round}: block {at}");
        let expected = ledger::of(&volume);
        assert!(expected.contains_key(&format!("/{path}")));
        // Whatever was written since, a crash finds all of it.
        for event in [inner.event_count(), inner.event_count() - 1] {
            let crashed = inner.crash_at(event, CrashPolicy::LoseAll).unwrap();
            assert!(read_only(&crashed) == expected, "round {round}");
        }
    }
}
