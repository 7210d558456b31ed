//! What the simulated device may forget, and what it may not.

use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind};
use quire_device::simulated::{CrashPolicy, Event, Fault, FaultOp, Hold, Image};
use quire_device::{Backend, Io, IoClass, IoOp, Segment, SimulatedBackend};
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

fn write(device: &SimulatedBackend, at: u64, byte: u8) {
    device.write(IoClass::Data, BlockNo(at), &[byte; BLOCK_SIZE]).unwrap();
}

/// First byte of a block; 0 if it was never written.
fn byte(image: &Image, at: u64) -> u8 {
    image.get(BlockNo(at)).map_or(0, |block| block[0])
}

/// Submits a write; its buffer lives as long as the request.
fn submit(device: &SimulatedBackend, at: u64, byte: u8, ended: &mpsc::Sender<u64>) {
    let mut buf = Box::new([byte; BLOCK_SIZE]);
    // SAFETY: the buffer moves, as a box, into `done`.
    let segments = vec![unsafe { Segment::new(buf.as_mut_ptr(), BLOCK_SIZE) }];
    let ended = ended.clone();
    let done = Box::new(move |_| {
        drop(buf);
        ended.send(at).unwrap();
    });
    device.submit(IoClass::Data, vec![Io { op: IoOp::Write, at: BlockNo(at), segments, done }]);
}

#[test]
fn a_flush_makes_safe_what_had_completed_and_nothing_else() {
    let device = SimulatedBackend::new(16);
    write(&device, 1, 1);
    device.flush().unwrap();
    write(&device, 1, 2);
    write(&device, 2, 2);
    let lost = device.crash(CrashPolicy::LoseAll);
    assert_eq!((byte(&lost, 1), byte(&lost, 2)), (1, 0));
    let kept = device.crash(CrashPolicy::Killed { seed: 0 });
    assert_eq!((byte(&kept, 1), byte(&kept, 2)), (2, 2));
    // Every subset of the two unsafe writes is possible, and no more.
    let states: BTreeSet<_> = (0..4)
        .map(|kept| device.crash(CrashPolicy::Subset { kept }))
        .map(|image| (byte(&image, 1), byte(&image, 2)))
        .collect();
    assert_eq!(states, BTreeSet::from([(1, 0), (1, 2), (2, 0), (2, 2)]));
}

#[test]
fn a_write_in_flight_when_the_flush_was_submitted_stays_unsafe() {
    let device = SimulatedBackend::new(16);
    let (sender, receiver) = mpsc::channel();
    device.set_hold(Hold::Submitted);
    submit(&device, 3, 3, &sender);
    device.flush().unwrap();
    assert_eq!(byte(&device.visible(), 3), 0);
    assert!(device.release(0));
    assert_eq!(receiver.recv().unwrap(), 3);
    assert_eq!(byte(&device.visible(), 3), 3);
    assert_eq!(byte(&device.crash(CrashPolicy::LoseAll), 3), 0);
    device.flush().unwrap();
    assert_eq!(byte(&device.crash(CrashPolicy::LoseAll), 3), 3);
}

/// A flush is held between submission and completion; a write completes in between and must not profit.
#[test]
fn a_write_that_completes_during_a_flush_is_not_covered() {
    let device = Arc::new(SimulatedBackend::new(16));
    write(&device, 1, 1);
    device.set_hold(Hold::Everything);
    let flusher = {
        let device = device.clone();
        std::thread::spawn(move || device.flush())
    };
    while device.held() == 0 {
        std::thread::yield_now();
    }
    device.set_hold(Hold::Nothing);
    write(&device, 2, 2);
    assert_eq!(byte(&device.safe(), 1), 0);
    assert!(device.release(0));
    flusher.join().unwrap().unwrap();
    assert_eq!((byte(&device.safe(), 1), byte(&device.safe(), 2)), (1, 0));
}

#[test]
fn completions_come_in_any_order_and_the_seed_repeats_it() {
    let order = |seed| {
        let device = SimulatedBackend::new(64);
        let (sender, receiver) = mpsc::channel();
        device.set_hold(Hold::Submitted);
        (0..20).for_each(|at| submit(&device, at, 1, &sender));
        assert_eq!(device.held(), 20);
        assert_eq!(device.release_all(&mut Random::seeded(seed)), 20);
        assert_eq!(device.violations(), Vec::<String>::new());
        receiver.try_iter().collect::<Vec<u64>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn power_cuts_tear_at_sectors_and_repeat_by_seed() {
    let device = SimulatedBackend::new(64);
    (0..8).for_each(|at| write(&device, at, 1));
    device.flush().unwrap();
    (0..8).for_each(|at| write(&device, at, 2));
    let (mut torn, mut old, mut new, mut reordered) = (0, 0, 0, 0);
    for seed in 0..500 {
        let image = device.crash(CrashPolicy::Power { seed });
        assert_eq!(image, device.crash(CrashPolicy::Power { seed }));
        for at in 0..8 {
            let block = image.get(BlockNo(at)).unwrap();
            let sectors: Vec<u8> = block.chunks(512).map(|sector| sector[0]).collect();
            assert!(block.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            assert!(sectors.iter().all(|byte| [1, 2].contains(byte)));
            torn += usize::from(sectors.contains(&1) && sectors.contains(&2));
            old += usize::from(!sectors.contains(&2));
            new += usize::from(!sectors.contains(&1));
        }
        reordered += usize::from(byte(&image, 0) == 1 && byte(&image, 7) == 2);
    }
    assert!(torn > 100 && old > 100 && new > 100 && reordered > 50, "{torn} {old} {new} {reordered}");
}

#[test]
fn versions_of_one_block_never_go_back_past_a_flush() {
    let device = SimulatedBackend::new(4);
    write(&device, 0, 1);
    write(&device, 0, 2);
    device.flush().unwrap();
    write(&device, 0, 3);
    write(&device, 0, 4);
    for seed in 0..300 {
        let image = device.crash(CrashPolicy::Power { seed });
        assert!(image.get(BlockNo(0)).unwrap().iter().all(|byte| (2..=4).contains(byte)));
    }
}

/// Everything that a process left behind counted as safe when it was killed, though its drive lives on with a
/// cache: no test could tell whether a recovery flushes.
#[test]
fn a_killed_process_leaves_its_drive_with_a_cache() {
    let device = SimulatedBackend::new(16);
    let (sender, _receiver) = mpsc::channel();
    write(&device, 1, 1);
    device.flush().unwrap();
    write(&device, 1, 2);
    device.set_hold(Hold::Submitted);
    submit(&device, 3, 3, &sender);
    let (events, mut in_flight) = (device.event_count(), BTreeSet::new());
    for seed in 0..16 {
        let next = device.killed_at(events, seed).unwrap();
        let left = device.crash_at(events, CrashPolicy::Killed { seed }).unwrap();
        assert_eq!((next.visible(), next.event_count()), (left.clone(), 0));
        assert_eq!(byte(&left, 1), 2);
        in_flight.insert(byte(&left, 3));
        let lost = next.crash(CrashPolicy::LoseAll);
        assert_eq!((byte(&lost, 1), byte(&lost, 3)), (1, 0));
        // What the next process writes has numbers of its own.
        write(&next, 1, 4);
        write(&next, 5, 5);
        let lost = next.crash(CrashPolicy::LoseAll);
        assert_eq!((byte(&lost, 1), byte(&lost, 3), byte(&lost, 5)), (1, 0, 0));
        next.flush().unwrap();
        let kept = next.crash(CrashPolicy::LoseAll);
        assert_eq!((byte(&kept, 1), byte(&kept, 3), byte(&kept, 5)), (4, byte(&left, 3), 5));
    }
    assert_eq!(in_flight, BTreeSet::from([0, 3]));
    assert!(device.killed_at(events + 1, 0).is_none());
    device.release_all(&mut Random::seeded(0));
}

/// A discard ended at once even where every other operation was held: nothing could be seen to go to a block
/// during its discard.
#[test]
fn a_discard_is_held_like_a_write() {
    let device = Arc::new(SimulatedBackend::new(16));
    let (sender, _receiver) = mpsc::channel();
    write(&device, 3, 1);
    device.set_hold(Hold::Everything);
    let discarder = {
        let device = device.clone();
        std::thread::spawn(move || device.discard(BlockNo(2), 4))
    };
    let start = std::time::Instant::now();
    while device.held() == 0 && start.elapsed() < std::time::Duration::from_secs(30) {
        std::thread::yield_now();
    }
    assert_eq!((device.held(), byte(&device.visible(), 3)), (1, 1));
    submit(&device, 5, 2, &sender);
    submit(&device, 6, 2, &sender);
    device.release_all(&mut Random::seeded(0));
    discarder.join().unwrap().unwrap();
    assert_eq!(byte(&device.visible(), 3), 0);
    let violations = device.violations();
    assert!(violations.len() == 1 && violations[0].contains("write of 1 blocks at 5"), "{violations:?}");
}

#[test]
fn what_a_failed_flush_covered_is_never_safe() {
    let device = SimulatedBackend::new(8);
    write(&device, 1, 1);
    device.inject(Fault::on(FaultOp::Flush));
    assert_eq!(device.flush().unwrap_err().kind(), ErrorKind::Io);
    write(&device, 2, 2);
    device.flush().unwrap();
    let image = device.crash(CrashPolicy::LoseAll);
    assert_eq!((byte(&image, 1), byte(&image, 2)), (0, 2));
    // Written again and flushed, the block is safe, and the doomed version cannot come back.
    write(&device, 1, 3);
    device.flush().unwrap();
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Killed { seed: 1 }] {
        assert_eq!(byte(&device.crash(policy), 1), 3);
    }
}

#[test]
fn a_failed_write_may_or_may_not_have_reached_the_medium() {
    let device = SimulatedBackend::new(8);
    write(&device, 1, 1);
    device.flush().unwrap();
    device.inject(Fault::on(FaultOp::Write).after(1).times(1));
    write(&device, 2, 2);
    let error = device.write(IoClass::Data, BlockNo(1), &[9; BLOCK_SIZE]).unwrap_err();
    assert!(error.to_string().contains("block 1"), "{error}");
    assert_eq!(byte(&device.visible(), 1), 1);
    device.flush().unwrap();
    let states: BTreeSet<u8> =
        (0..50).map(|seed| byte(&device.crash(CrashPolicy::Killed { seed }), 1)).collect();
    assert_eq!(states, BTreeSet::from([1, 9]));
}

#[test]
fn faults_choose_by_operation_class_region_and_count() {
    let device = SimulatedBackend::new(64);
    let mut buf = [0; BLOCK_SIZE];
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal).region(10..20).after(1).times(2));
    let results: Vec<bool> = [(0, IoClass::Journal), (10, IoClass::Data), (19, IoClass::Journal)]
        .into_iter()
        .chain([
            (10, IoClass::Journal),
            (20, IoClass::Journal),
            (11, IoClass::Journal),
            (12, IoClass::Journal),
        ])
        .map(|(at, class)| device.write(class, BlockNo(at), &buf).is_ok())
        .collect();
    assert_eq!(results, [true, true, true, false, true, false, true]);
    device.inject(Fault::on(FaultOp::Read).region(5..6).times(u64::MAX));
    assert!(device.read(IoClass::Data, BlockNo(5), &mut buf).is_err());
    assert!(device.read(IoClass::Metadata, BlockNo(5), &mut buf).is_err());
    device.read(IoClass::Data, BlockNo(6), &mut buf).unwrap();
    device.clear_faults();
    device.read(IoClass::Data, BlockNo(5), &mut buf).unwrap();
}

#[test]
fn a_full_host_refuses_new_blocks_but_not_old_ones() {
    let device = SimulatedBackend::new(64);
    write(&device, 0, 1);
    device.set_host_space(Some(2));
    write(&device, 0, 2);
    write(&device, 1, 1);
    write(&device, 2, 1);
    let error = device.write(IoClass::Data, BlockNo(3), &[1; BLOCK_SIZE]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    device.discard(BlockNo(1), 1).unwrap();
    write(&device, 3, 1);
    device.set_host_space(None);
    write(&device, 4, 1);
}

#[test]
fn rot_stays_until_the_block_is_written() {
    let device = SimulatedBackend::new(64);
    (10..20).for_each(|at| write(&device, at, 7));
    device.flush().unwrap();
    let hit = device.rot(12..15, 5, 99);
    assert_eq!(hit.len(), 5);
    assert!(hit.iter().all(|at| (12..15).contains(&at.0)));
    let image = device.crash(CrashPolicy::LoseAll);
    let damaged = |image: &Image| {
        (0..64)
            .filter(|at| image.get(BlockNo(*at)).is_some_and(|block| block.iter().any(|byte| *byte != 7)))
            .count()
    };
    let blocks: BTreeSet<_> = hit.iter().collect();
    assert_eq!(damaged(&image), blocks.len());
    (12..15).for_each(|at| write(&device, at, 7));
    assert_eq!(damaged(&device.visible()), 0);
    assert!(device.rot(40..50, 3, 1).is_empty());
}

#[test]
fn any_earlier_moment_can_crash_and_equals_what_a_crash_then_gave() {
    let device = SimulatedBackend::new(128);
    let mut random = Random::seeded(5);
    let policies = |seed| {
        [
            CrashPolicy::LoseAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Killed { seed },
            CrashPolicy::Power { seed },
            CrashPolicy::Subset { kept: seed },
        ]
    };
    let mut taken = Vec::new();
    for step in 0..400 {
        match random.below(10) {
            0 => device.flush().unwrap(),
            1 => device.discard(BlockNo(random.below(100)), 1 + random.below(20)).unwrap(),
            2 => device.note(step),
            3 => {
                device.inject(Fault::on(FaultOp::Write));
                device.write(IoClass::Data, BlockNo(1), &[1; BLOCK_SIZE]).unwrap_err();
            }
            4 if step > 300 => {
                device.inject(Fault::on(FaultOp::Flush));
                device.flush().unwrap_err();
            }
            5 => drop(device.rot(0..128, 1, step)),
            _ => write(&device, random.below(128), step as u8),
        }
        taken.push((
            device.event_count(),
            device.unsafe_writes(),
            policies(step).map(|p| (p, device.crash(p))),
        ));
    }
    for (events, unsafe_writes, images) in taken {
        assert_eq!(device.unsafe_writes_at(events), Some(unsafe_writes));
        for (policy, image) in images {
            assert_eq!(device.crash_at(events, policy).unwrap(), image);
        }
    }
    assert!(device.crash_at(device.event_count() + 1, CrashPolicy::LoseAll).is_none());
    assert!(device.events(0..50).iter().any(|event| matches!(event, Event::FlushCompleted { .. })));
    device.stop_recording();
    assert!(device.crash_at(0, CrashPolicy::LoseAll).is_none());
    write(&device, 0, 1);
    assert_eq!(device.event_count(), 0);
}

#[test]
fn crashes_nest() {
    let mut device = SimulatedBackend::new(64);
    for depth in 1..6 {
        write(&device, 0, depth);
        write(&device, u64::from(depth), depth);
        device.flush().unwrap();
        write(&device, 63, depth);
        let image = device.cut_power(CrashPolicy::LoseAll);
        let off = device.write(IoClass::Data, BlockNo(0), &[0; BLOCK_SIZE]).unwrap_err();
        assert!(off.to_string().contains("power cut"));
        device = SimulatedBackend::from_image(image);
        assert_eq!(byte(&device.visible(), 0), depth);
        assert_eq!(byte(&device.visible(), 63), 0);
        assert_eq!((1..=depth).map(|at| byte(&device.safe(), u64::from(at))).max(), Some(depth));
    }
}

#[test]
fn cutting_the_power_fails_what_is_held() {
    let device = Arc::new(SimulatedBackend::new(8));
    device.set_hold(Hold::Everything);
    let blocked = {
        let device = device.clone();
        std::thread::spawn(move || device.write(IoClass::Data, BlockNo(1), &[1; BLOCK_SIZE]))
    };
    while device.held() == 0 {
        std::thread::yield_now();
    }
    device.cut_power(CrashPolicy::LoseAll);
    assert!(blocked.join().unwrap().is_err());
    assert!(device.flush().is_err());
}

#[test]
fn misuse_by_the_engine_is_seen() {
    let device = SimulatedBackend::new(8);
    let (sender, _receiver) = mpsc::channel();
    device.set_hold(Hold::Submitted);
    submit(&device, 1, 1, &sender);
    submit(&device, 1, 2, &sender);
    assert!(device.violations()[0].contains("in flight"));
    let mut buf = vec![1; BLOCK_SIZE];
    // SAFETY: the buffer outlives the release below.
    let segments = vec![unsafe { Segment::new(buf.as_mut_ptr(), BLOCK_SIZE) }];
    let io = Io { op: IoOp::Write, at: BlockNo(5), segments, done: Box::new(|_| {}) };
    device.submit(IoClass::Data, vec![io]);
    buf[77] = 2;
    device.release_all(&mut Random::seeded(3));
    assert!(device.violations().last().unwrap().contains("changed while in flight"));
    assert_eq!(device.violations().len(), 2);
}

#[test]
fn discarded_blocks_may_read_as_anything() {
    let device = SimulatedBackend::new(8);
    write(&device, 1, 1);
    device.discard(BlockNo(1), 1).unwrap();
    assert_eq!(byte(&device.visible(), 1), 0);
    device.set_discard_pattern(Some(0xdd));
    write(&device, 1, 1);
    device.flush().unwrap();
    device.discard(BlockNo(1), 2).unwrap();
    assert_eq!((byte(&device.visible(), 1), byte(&device.visible(), 2)), (0xdd, 0xdd));
    assert_eq!(byte(&device.crash(CrashPolicy::LoseAll), 1), 1);
}

/// Thousands of crash images of a 64 MiB volume must not cost thousands of copies of it.
#[test]
fn crash_images_are_cheap() {
    let device = SimulatedBackend::new(16384);
    (0..16384).for_each(|at| write(&device, at, at as u8 | 1));
    device.flush().unwrap();
    (0..200).for_each(|at| write(&device, at * 80, 1));
    // Two thousand full copies would move 128 GB; that this ends at all is the point.
    for seed in 0..2000 {
        let image = device.crash(CrashPolicy::Power { seed });
        assert!(image.blocks() == 16384 && image.get(BlockNo(3)).is_some());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    device.crash(CrashPolicy::LoseAll).save(file.path()).unwrap();
    let saved = std::fs::read(file.path()).unwrap();
    assert_eq!((saved.len(), saved[3 * BLOCK_SIZE]), (64 << 20, 3));
}
