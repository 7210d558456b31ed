//! What a replay says about rings that are not as they were written.

use crate::common::*;
use quire_base::{ErrorKind, Seq};
use quire_device::simulated::{Fault, FaultOp};
use quire_device::{Device, SimulatedBackend};
use quire_journal::JournalConfig;
use quire_journal::fuzz::fuzz_replay;
use std::sync::Arc;

/// Nine records of three quarters of a block, forced after each third.
fn three_forces() -> (Rig, Vec<Seq>) {
    let rig = Rig::new(32);
    let seqs = (0..9)
        .map(|number| {
            let seq = rig.append(&payload(number, 3000));
            if number % 3 == 2 {
                rig.journal.force(seq).unwrap();
            }
            seq
        })
        .collect();
    (rig, seqs)
}

#[test]
fn damage_before_a_later_durable_write_is_found() {
    let (rig, seqs) = three_forces();
    let end = rig.replay(Seq(0)).unwrap().1.end;
    assert_eq!(end.0, 9 * PAYLOAD);
    for block in 0..6 {
        for byte in [0, 6, 20, 48, 60, 64, 4095] {
            let mut image = rig.backend.visible();
            damage(&mut image, &rig.config, block * PAYLOAD, byte);
            let error = replay_image(image, &rig.config, Seq(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "block {block} byte {byte}");
            assert!(error.to_string().contains("damaged"), "{error}");
        }
    }
    // In the last write it cannot be told from a torn one: a prefix comes back.
    for block in 6..9 {
        let mut image = rig.backend.visible();
        damage(&mut image, &rig.config, block * PAYLOAD, 99);
        let (records, end) = replay_image(image, &rig.config, Seq(0)).unwrap();
        assert_eq!(end.end, Seq(block * PAYLOAD));
        assert!(records.iter().map(|record| record.0).eq(seqs.iter().copied().filter(|seq| *seq <= end.end)));
        assert!(records.len() >= 6 && (end.torn_bytes > 0) == (end.end > end.last && block > 6), "{end:?}");
    }
}

/// Blocks before the replay's start may be anything.
#[test]
fn damage_before_the_start_is_nothing() {
    let (rig, _) = three_forces();
    let mut image = rig.backend.visible();
    damage(&mut image, &rig.config, 0, 500);
    let (records, _) = replay_image(image, &rig.config, Seq(3 * PAYLOAD)).unwrap();
    assert_eq!(records.len(), 6);
}

/// A checkpoint that a block names must be reached when the older superblock is replayed.
#[test]
fn damage_before_a_named_checkpoint_is_found() {
    let rig = Rig::new(32);
    let seq = rig.append(b"one");
    rig.journal.force(seq).unwrap();
    rig.append(b"two");
    // The checkpoint's position is not forced: the block of "two" is written after it.
    let newest = rig.journal.close_block();
    rig.journal.checkpointed(newest, Seq(0));
    let seq = rig.append(b"three");
    rig.journal.force(seq).unwrap();
    assert_eq!(rig.replay(Seq(0)).unwrap().1.checkpoint, newest);
    let mut image = rig.backend.visible();
    damage(&mut image, &rig.config, PAYLOAD, 77);
    assert_eq!(replay_image(image.clone(), &rig.config, newest).unwrap().0.len(), 1);
    assert_eq!(replay_image(image, &rig.config, Seq(0)).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn other_lives_and_volumes_do_not_count() {
    let (rig, _) = three_forces();
    let image = rig.backend.visible();
    for other in [
        JournalConfig { incarnation: 2, ..rig.config.clone() },
        JournalConfig { incarnation: 0, ..rig.config.clone() },
        JournalConfig { volume: 78, ..rig.config.clone() },
    ] {
        let (records, end) = replay_image(image.clone(), &other, Seq(0)).unwrap();
        assert!(records.is_empty() && end.end == Seq(0), "{other:?}");
    }
    // A ring of another length, or elsewhere: positions do not fit their places.
    let shifted = JournalConfig { start: START.offset(1), ..rig.config.clone() };
    assert!(replay_image(image, &shifted, Seq(0)).map_or(true, |(records, _)| records.is_empty()));
}

/// The blocks of the life before, still in the ring, are dead: a replay stops before them.
#[test]
fn a_new_life_overwrites_the_old_one() {
    let (rig, _) = three_forces();
    let config = JournalConfig {
        incarnation: 2,
        head: Seq(4 * PAYLOAD),
        tail: Seq(4 * PAYLOAD),
        ..rig.config.clone()
    };
    let rig = Rig::open(rig.backend.visible(), config);
    let seq = rig.append(b"new");
    rig.journal.force(seq).unwrap();
    let (records, end) = rig.replay(Seq(4 * PAYLOAD)).unwrap();
    assert_eq!(records, [(seq, b"new".to_vec())]);
    assert_eq!(end.end, Seq(5 * PAYLOAD));
}

#[test]
fn impossible_replays_are_refused() {
    let (rig, _) = three_forces();
    let image = rig.backend.visible();
    let from = |from| replay_image(image.clone(), &rig.config, from).unwrap_err().kind();
    assert_eq!(from(Seq(7)), ErrorKind::Corrupt);
    assert_eq!(from(Seq(u64::MAX / PAYLOAD * PAYLOAD)), ErrorKind::Corrupt);
    for blocks in [0, 1000, u64::MAX] {
        let config = JournalConfig { blocks, ..rig.config.clone() };
        assert_eq!(replay_image(image.clone(), &config, Seq(0)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

/// A sector of the ring that nothing was in went bad, and the whole volume was refused: replay reads all of
/// the ring. Behind the end such a block means nothing. Within the stream it does, and where the stream would
/// go on: something durable may have been there.
#[test]
fn an_unreadable_block_behind_the_end_means_nothing() {
    let (rig, _) = three_forces();
    let replay = |at: u64, from: u64, closed: bool| {
        let backend = Arc::new(SimulatedBackend::from_image(rig.backend.visible()));
        backend.inject(Fault::on(FaultOp::Read).region(at..at + 1).times(u64::MAX));
        let config = quire_journal::ReplayConfig {
            start: START,
            blocks: 32,
            volume: VOLUME,
            incarnation: 1,
            from: Seq(from * PAYLOAD),
            closed,
        };
        quire_journal::replay(&Device::new(backend), &config, &mut |_, _| Ok(()))
    };
    for index in 0..32 {
        let at = START.0 + index;
        let outcome = replay(at, 0, false);
        if index <= 9 {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "block {index}");
            assert!(error.to_string().contains("cannot be read"), "{error}");
        } else {
            let end = outcome.unwrap();
            assert_eq!((end.end, end.unreadable), (Seq(9 * PAYLOAD), vec![START.offset(index)]));
        }
        // Closed in order, nothing follows; but what is there all the same is looked at.
        assert_eq!(replay(at, 9, true).unwrap().unreadable, [START.offset(index)]);
        assert_eq!(replay(at, 9, false).is_ok(), index != 9, "block {index}");
        assert_eq!(replay(at, 0, true).is_ok(), index > 9, "block {index}");
    }
}

/// An error of the applier ends the replay and comes out.
#[test]
fn an_applier_may_refuse() {
    let (rig, _) = three_forces();
    let config = quire_journal::ReplayConfig {
        start: START,
        blocks: 32,
        volume: VOLUME,
        incarnation: 1,
        from: Seq(0),
        closed: false,
    };
    let mut seen = 0;
    let error = quire_journal::replay(&rig.device, &config, &mut |_, _| {
        seen += 1;
        if seen == 3 { Err(quire_base::Error::corrupt("not this one")) } else { Ok(()) }
    });
    assert!(error.unwrap_err().to_string().contains("not this one"));
    assert_eq!(seen, 3);
}

mod any_bytes {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let _ = fuzz_replay(&bytes);
        }

        /// Blocks that check, with record headers that nearly make sense.
        #[test]
        fn nearly_sensible(
            start in 0u8..3,
            blocks in proptest::collection::vec(
                (any::<bool>(), 0u8..9, 0u8..4, 0u8..4, proptest::collection::vec((0usize..600, 0u8..3, 0u8..3), 0..6)),
                0..8,
            ),
        ) {
            let mut bytes = vec![start];
            for (sealed, first, durable, checkpoint, records) in blocks {
                let mut block = [0; 4097];
                block[0] = u8::from(sealed);
                block[1..4].copy_from_slice(&[first, durable, checkpoint]);
                let mut at = 65 + usize::from(first) * 16;
                for (len, kind, high) in records {
                    if at + 8 > block.len() {
                        break;
                    }
                    block[at..at + 2].copy_from_slice(&(len as u16).to_le_bytes());
                    block[at + 2] = high / 2;
                    block[at + 4] = kind;
                    at += 8 + len.next_multiple_of(8);
                }
                bytes.extend(block);
            }
            let _ = fuzz_replay(&bytes);
        }
    }
}
