//! Appends, forces and replays by one thread: what is where, what is written when, what a replay makes of it.

use crate::common::*;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, Seq};
use quire_device::simulated::{Fault, FaultOp};
use quire_device::{AlignedBuf, IoClass};
use quire_journal::{JournalConfig, Short};

#[test]
fn records_come_back_in_order() {
    let rig = Rig::new(64);
    let lens = [0, 1, 7, 8, 9, 100, 4016, 4024, 4025, 9000, 12_000, 3];
    let mut expected = Vec::new();
    for (number, len) in lens.into_iter().enumerate() {
        let payload = payload(number as u64, len);
        expected.push((rig.append(&payload), payload));
    }
    assert_eq!(rig.journal.durable(), Seq(0));
    rig.journal.force(rig.journal.head()).unwrap();
    assert_eq!(rig.journal.durable(), rig.journal.head());
    let (records, end) = rig.replay(Seq(0)).unwrap();
    assert_eq!(records, expected);
    assert_eq!(end.end, rig.journal.durable());
    assert_eq!(end.last, expected.last().unwrap().0);
    assert_eq!((end.records, end.torn_bytes), (12, 0));
}

#[test]
fn an_empty_journal_replays_to_nothing() {
    let rig = Rig::new(16);
    let (records, end) = rig.replay(Seq(0)).unwrap();
    assert!(records.is_empty());
    assert_eq!((end.end, end.last, end.blocks), (Seq(0), Seq(0), 0));
}

#[test]
fn a_force_without_news_does_no_io() {
    let rig = Rig::new(16);
    rig.journal.force(Seq(0)).unwrap();
    rig.journal.force(rig.journal.head()).unwrap();
    assert_eq!(rig.backend.event_count(), 0);
    let seq = rig.append(b"x");
    rig.journal.force(seq).unwrap();
    let events = rig.backend.event_count();
    rig.journal.force(seq).unwrap();
    rig.journal.force(rig.journal.head()).unwrap();
    assert_eq!(rig.backend.event_count(), events);
    let counts = rig.journal.counts();
    assert_eq!((counts.writes, counts.forces, counts.forces_free), (1, 5, 4));
}

/// The flush before the journal write exists for data, and only if there is any.
#[test]
fn flushes_first_only_what_needs_it() {
    let rig = Rig::new(16);
    // A device counts as unflushed when it is opened.
    rig.device.flush().unwrap();
    let seq = rig.append(b"no data");
    rig.journal.force(seq).unwrap();
    assert_eq!(rig.device.stats().flushes, 2);
    rig.device.write(IoClass::Data, BlockNo(0), &AlignedBuf::zeroed(BLOCK_SIZE)).unwrap();
    let seq = rig.append(b"data");
    rig.journal.force(seq).unwrap();
    assert_eq!(rig.device.stats().flushes, 4);
}

#[test]
fn a_force_beyond_the_end_is_refused() {
    let rig = Rig::new(16);
    let seq = rig.append(b"x");
    let error = rig.journal.force(Seq(seq.0 + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    rig.journal.force(seq).unwrap();
}

#[test]
fn closing_a_block_separates() {
    let rig = Rig::new(16);
    assert_eq!(rig.journal.close_block(), Seq(0));
    rig.append(b"before");
    let at = rig.journal.close_block();
    assert_eq!(at, Seq(PAYLOAD));
    assert_eq!(rig.journal.close_block(), at);
    let after = rig.append(b"after");
    rig.journal.force(after).unwrap();
    let (records, _) = rig.replay(at).unwrap();
    assert_eq!(records, [(after, b"after".to_vec())]);
    assert_eq!(rig.replay(Seq(0)).unwrap().0.len(), 2);
}

/// A full block is never padded for its neighbour's sake.
#[test]
fn a_target_in_full_blocks_leaves_the_open_block_open() {
    let rig = Rig::new(16);
    let full = rig.append(&[1; 4024]);
    assert_eq!(full, Seq(PAYLOAD));
    let open = rig.append(b"open");
    rig.journal.force(full).unwrap();
    assert_eq!((rig.journal.durable(), rig.journal.head()), (full, open));
    rig.journal.force(open).unwrap();
    assert_eq!(rig.journal.counts().padding_bytes, 2 * PAYLOAD - open.0);
}

#[test]
fn many_laps() {
    let rig = Rig::new(16);
    let (mut newest, mut since) = (Seq(0), Vec::new());
    for number in 0..2000u64 {
        let payload = payload(number, (number * 37 % 5000) as usize);
        let mut reservation = loop {
            match rig.journal.try_reserve(payload.len()) {
                Ok(reservation) => break reservation,
                Err(Short::Checkpoint) => {
                    let older = newest;
                    newest = rig.journal.close_block();
                    rig.journal.force(newest).unwrap();
                    rig.journal.checkpointed(newest, older);
                    since.clear();
                }
                Err(other) => panic!("{other:?}"),
            }
        };
        since.push((rig.journal.append(&mut reservation, &payload), payload));
        if number % 7 == 0 {
            rig.journal.force(since.last().unwrap().0).unwrap();
        }
        if number % 50 == 0 {
            rig.journal.force(rig.journal.head()).unwrap();
            assert_eq!(rig.replay(newest).unwrap().0, since, "after record {number}");
        }
    }
    assert!(rig.journal.head().0 > 50 * 16 * PAYLOAD, "that was no lap race");
    assert!(rig.backend.violations().is_empty(), "{:?}", rig.backend.violations());
}

/// However reservations, forces and block closings mix, a reservation once given is honoured and the ring
/// never overruns its tail.
#[test]
fn padding_never_overruns_the_ring() {
    let rig = Rig::new(16);
    let mut held = Vec::new();
    while let Ok(reservation) = rig.journal.try_reserve_now(16) {
        held.push(reservation);
    }
    assert!(matches!(rig.journal.try_reserve_now(16), Err(Short::Checkpoint | Short::Buffer)));
    assert!(held.len() >= 13, "only {} fit", held.len());
    for mut reservation in held {
        let seq = rig.journal.append(&mut reservation, &[7; 16]);
        rig.journal.force(seq).unwrap();
    }
    assert!(rig.journal.head().0 <= 16 * PAYLOAD);
    let usage = rig.journal.usage();
    assert_eq!(usage.reserved_bytes, 0);
    assert_eq!(usage.used_bytes, rig.journal.head().0);
}

#[test]
fn dropped_reservations_give_back_everything() {
    let rig = Rig::new(16);
    let empty = rig.journal.usage();
    let mut several = rig.journal.try_reserve(2 * PAYLOAD as usize).unwrap();
    assert!(rig.journal.usage().free_bytes() < empty.free_bytes());
    rig.journal.append(&mut several, &[1; 50]);
    rig.journal.append(&mut several, &[1; 50]);
    drop(several);
    let usage = rig.journal.usage();
    assert_eq!((usage.reserved_bytes, usage.used_bytes, usage.unforced_bytes), (0, PAYLOAD, 128));
}

#[test]
fn what_can_never_fit_is_refused() {
    let rig = Rig::new(16);
    let most = rig.journal.payload_max();
    assert!(
        matches!(rig.journal.try_reserve(most + 1000), Err(Short::Failed(e)) if e.kind() == ErrorKind::Invalid)
    );
    assert!(matches!(rig.journal.try_reserve(usize::MAX), Err(Short::Failed(_))));
    let payload = payload(1, most);
    let seq = rig.append(&payload);
    rig.journal.force(seq).unwrap();
    assert_eq!(rig.replay(Seq(0)).unwrap().0, [(seq, payload)]);
}

/// The buffer is smaller than the ring; reservations push it out by themselves.
#[test]
fn a_full_buffer_is_forced_by_reserving() {
    let backend_blocks = 256;
    let rig = Rig::open(
        quire_device::simulated::Image::new(START.0 + backend_blocks),
        JournalConfig { buffer_bytes: 1, ..config(backend_blocks, Seq(0)) },
    );
    let mut expected = Vec::new();
    for number in 0..200 {
        let payload = payload(number, 3000);
        expected.push((rig.append(&payload), payload));
    }
    assert!(rig.journal.counts().writes > 30 && rig.journal.counts().forces == 0);
    let reservation = rig.journal.try_reserve(10).unwrap();
    let other = rig.journal.try_reserve(10).unwrap();
    let third = rig.journal.try_reserve_now(10);
    assert!(matches!(third, Err(Short::Buffer)), "{third:?}");
    drop((reservation, other));
    rig.journal.force(rig.journal.head()).unwrap();
    assert_eq!(rig.replay(Seq(0)).unwrap().0, expected);
}

#[test]
fn the_first_failure_stays() {
    for (fault, forced) in
        [(Fault::on(FaultOp::Write).class(IoClass::Journal), "write"), (Fault::on(FaultOp::Flush), "flush")]
    {
        let rig = Rig::new(16);
        let mut held = rig.journal.try_reserve(10).unwrap();
        let seq = rig.append(b"lost");
        rig.backend.inject(fault);
        let first = rig.journal.force(seq).unwrap_err();
        assert_eq!(rig.journal.durable(), Seq(0), "{forced}");
        rig.journal.shut_down(quire_base::Error::invalid("a later failure"));
        assert_eq!(rig.journal.force(seq).unwrap_err().to_string(), first.to_string());
        assert_eq!(rig.journal.force(Seq(0)).unwrap_err().to_string(), first.to_string());
        assert!(
            matches!(rig.journal.try_reserve(1), Err(Short::Failed(e)) if e.to_string() == first.to_string())
        );
        // A thread that has a reservation still appends without harm; the record is not written.
        let events = rig.backend.event_count();
        let seq = rig.journal.append(&mut held, b"too late");
        assert!(rig.journal.force(seq).is_err());
        assert_eq!(rig.backend.event_count(), events);
    }
}

/// What a thread that panics in the middle of a transaction leaves must not become durable.
#[test]
fn a_record_larger_than_its_reservation_panics_and_shuts_down() {
    let rig = Rig::new(16);
    let seq = rig.append(b"before");
    let misuse = || {
        let mut reservation = rig.journal.try_reserve(100).unwrap();
        rig.journal.append(&mut reservation, &[1; 200]);
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(misuse)).unwrap_err();
    assert_eq!(rig.journal.force(seq).unwrap_err().kind(), ErrorKind::Shutdown);
    assert!(rig.journal.try_reserve(1).is_err());
}

#[test]
fn contradicting_configurations_are_shut_down_from_the_start() {
    for bad in [
        JournalConfig { head: Seq(5), ..config(16, Seq(0)) },
        JournalConfig { tail: Seq(PAYLOAD), ..config(16, Seq(0)) },
        JournalConfig { head: Seq(PAYLOAD * 17), ..config(16, Seq(0)) },
        JournalConfig { head: Seq(u64::MAX / PAYLOAD * PAYLOAD), ..config(16, Seq(0)) },
        JournalConfig { blocks: 0, ..config(16, Seq(0)) },
        JournalConfig { blocks: u64::MAX, ..config(16, Seq(0)) },
        JournalConfig { start: BlockNo(1 << 40), ..config(16, Seq(0)) },
    ] {
        let rig = Rig::open(quire_device::simulated::Image::new(100), bad);
        assert!(rig.journal.failure().is_some());
        assert!(rig.journal.try_reserve(1).is_err());
    }
}

#[test]
fn checkpoints_that_do_not_fit_shut_down() {
    for (newest, tail) in [(Seq(PAYLOAD * 9), Seq(0)), (Seq(0), Seq(PAYLOAD)), (Seq(8), Seq(0))] {
        let rig = Rig::new(16);
        rig.append(b"x");
        rig.journal.checkpointed(newest, tail);
        assert!(rig.journal.failure().is_some(), "{newest} {tail}");
    }
}

/// At the end of the position space reservations stop; nothing wraps.
#[test]
fn positions_run_out_in_order() {
    let last = quire_format::journal::POSITION_MAX - 3 * PAYLOAD;
    let rig = Rig::open(quire_device::simulated::Image::new(100), config(16, Seq(last)));
    let seq = rig.append(b"nearly");
    rig.journal.force(seq).unwrap();
    let refused = (0..5).find_map(|_| {
        let got = rig.journal.try_reserve(10).map(|mut reservation| {
            let seq = rig.journal.append(&mut reservation, b"0123456789");
            rig.journal.force(seq).unwrap();
        });
        got.err()
    });
    assert!(matches!(refused, Some(Short::Failed(e)) if e.kind() == ErrorKind::NoSpace));
    assert!(rig.journal.head().0 <= quire_format::journal::POSITION_MAX);
}
