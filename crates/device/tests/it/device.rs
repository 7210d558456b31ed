//! The front: marks, the latch, counters, batches.

use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, Result, Seq};
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold};
use quire_device::{AlignedBuf, Backend, Device, Io, IoClass, IoOp, Segment, SimulatedBackend};
use std::sync::{Arc, mpsc};

fn simulated(blocks: u64) -> (Arc<SimulatedBackend>, Arc<Device>) {
    let backend = Arc::new(SimulatedBackend::new(blocks));
    (backend.clone(), Device::new(backend))
}

fn filled(byte: u8, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::blocks(blocks);
    buf.fill(byte);
    buf
}

/// A write whose outcome comes through the channel; `buf` must outlive it.
fn write_io(at: u64, buf: &mut AlignedBuf, sender: &mpsc::Sender<Result<()>>) -> Io {
    let sender = sender.clone();
    Io {
        op: IoOp::Write,
        at: BlockNo(at),
        // SAFETY: every caller keeps the buffer until it has heard from the channel.
        segments: vec![unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) }],
        done: Box::new(move |outcome| sender.send(outcome).unwrap()),
    }
}

#[test]
fn the_first_flush_always_reaches_the_medium_and_the_second_is_needless() {
    let (_, device) = simulated(16);
    assert!(device.flushed_mark() < device.mark());
    device.flush().unwrap();
    device.flush().unwrap();
    let stats = device.stats();
    assert_eq!((stats.flush_requests, stats.flushes, stats.flush_needless), (2, 1, 1));
}

#[test]
fn a_mark_covers_exactly_what_had_completed() {
    let (backend, device) = simulated(16);
    device.write(IoClass::Data, BlockNo(1), &filled(1, 1)).unwrap();
    let mark = device.mark();
    device.flush_to(mark).unwrap();
    assert_eq!(device.flushed_mark(), mark);
    device.write(IoClass::Data, BlockNo(2), &filled(2, 1)).unwrap();
    device.flush_to(mark).unwrap();
    let image = backend.crash(CrashPolicy::LoseAll);
    assert!(image.get(BlockNo(1)).is_some() && image.get(BlockNo(2)).is_none());
    device.flush().unwrap();
    assert!(backend.crash(CrashPolicy::LoseAll).get(BlockNo(2)).is_some());
}

#[test]
fn a_submitted_write_counts_when_it_completes_not_before() {
    let (backend, device) = simulated(16);
    backend.set_hold(Hold::Submitted);
    let (sender, receiver) = mpsc::channel();
    let mut buf = filled(3, 1);
    let before = device.mark();
    device.submit(IoClass::Data, vec![write_io(5, &mut buf, &sender)]);
    assert_eq!(device.mark(), before);
    device.flush().unwrap();
    backend.release_all(&mut Random::seeded(1));
    receiver.recv().unwrap().unwrap();
    assert_eq!(device.mark(), before + 1);
    assert!(backend.crash(CrashPolicy::LoseAll).get(BlockNo(5)).is_none());
    device.flush().unwrap();
    assert!(backend.crash(CrashPolicy::LoseAll).get(BlockNo(5)).is_some());
}

#[test]
fn a_failed_flush_ends_changes_but_not_data_writes_or_reads() {
    let (backend, device) = simulated(16);
    let buf = filled(1, 1);
    device.write(IoClass::Data, BlockNo(1), &buf).unwrap();
    device.flush().unwrap();
    let durable = device.mark();
    device.write(IoClass::Data, BlockNo(2), &buf).unwrap();
    backend.inject(Fault::on(FaultOp::Flush));
    let error = device.flush().unwrap_err();
    assert_eq!(device.failure().unwrap().to_string(), error.to_string());
    assert_eq!(device.flush().unwrap_err().to_string(), error.to_string());
    for class in [IoClass::Journal, IoClass::Metadata] {
        assert_eq!(device.write(class, BlockNo(3), &buf).unwrap_err().to_string(), error.to_string());
        let (sender, receiver) = mpsc::channel();
        device.submit(class, vec![write_io(3, &mut filled(1, 1), &sender)]);
        assert!(receiver.recv().unwrap().is_err());
    }
    device.write(IoClass::Data, BlockNo(3), &buf).unwrap();
    device.read(IoClass::Metadata, BlockNo(3), &mut AlignedBuf::blocks(1)).unwrap();
    device.flush_to(durable).unwrap();
    assert_eq!(device.stats().flushes, 2);
}

#[test]
fn a_failed_metadata_write_is_kept_and_a_failed_data_write_is_not() {
    let (backend, device) = simulated(16);
    let buf = filled(1, 1);
    backend.inject(Fault::on(FaultOp::Write).class(IoClass::Data).kind(ErrorKind::NoSpace));
    assert_eq!(device.write(IoClass::Data, BlockNo(1), &buf).unwrap_err().kind(), ErrorKind::NoSpace);
    backend.inject(Fault::on(FaultOp::Read));
    assert!(device.read(IoClass::Metadata, BlockNo(1), &mut AlignedBuf::blocks(1)).is_err());
    assert!(device.write(IoClass::Metadata, BlockNo(16), &buf).is_err());
    assert!(device.failure().is_none());
    let mark = device.mark();
    backend.inject(Fault::on(FaultOp::Write).class(IoClass::Journal));
    let (sender, receiver) = mpsc::channel();
    device.submit(IoClass::Journal, vec![write_io(2, &mut filled(1, 1), &sender)]);
    let error = receiver.recv().unwrap().unwrap_err();
    assert_eq!(device.failure().unwrap().to_string(), error.to_string());
    assert_eq!(device.mark(), mark);
    assert!(device.write(IoClass::Metadata, BlockNo(1), &buf).is_err());
    assert_eq!(device.stats().class(IoClass::Journal).writes.errors, 1);
}

#[test]
fn batches_gather_neighbours_and_report_the_first_error() {
    let (backend, device) = simulated(1024);
    let bufs: Vec<AlignedBuf> = (0..300).map(|byte| filled(byte as u8, 1)).collect();
    // Blocks 0..256 are one full transfer, 256..298 the rest of the run, and two stand alone.
    let address = |index: u64| BlockNo(if index < 298 { index } else { index * 2 });
    let items: Vec<(BlockNo, &[u8])> =
        bufs.iter().enumerate().map(|(index, buf)| (address(index as u64), &**buf)).collect();
    device.write_batch(IoClass::Metadata, &items).unwrap();
    let writes = device.stats().class(IoClass::Metadata).writes;
    assert_eq!((writes.ops, writes.bytes), (4, 300 * BLOCK_SIZE as u64));
    assert_eq!((writes.runs.0[0], writes.runs.0[5], writes.runs.0[8]), (2, 1, 1));
    let mut back: Vec<AlignedBuf> = (0..300).map(|_| AlignedBuf::blocks(1)).collect();
    let mut items: Vec<(BlockNo, &mut [u8])> =
        back.iter_mut().enumerate().map(|(index, buf)| (address(index as u64), &mut **buf)).collect();
    device.read_batch(IoClass::Metadata, &mut items).unwrap();
    assert!(back.iter().zip(&bufs).all(|(a, b)| **a == **b));
    backend.inject(Fault::on(FaultOp::Write).region(20..21));
    let items = [(BlockNo(10), &*bufs[0]), (BlockNo(20), &*bufs[0]), (BlockNo(30), &*bufs[0])];
    assert!(device.write_batch(IoClass::Data, &items).is_err());
    device.write_batch(IoClass::Data, &[]).unwrap();
}

#[test]
fn malformed_requests_are_answered_not_done() {
    let (_, device) = simulated(16);
    let (sender, receiver) = mpsc::channel();
    let mut ok = filled(1, 1);
    let mut past = filled(1, 2);
    let mut io = write_io(3, &mut filled(1, 1), &sender);
    // SAFETY: refused before the address is used.
    io.segments.push(unsafe { Segment::new(std::ptr::null_mut(), 100) });
    let mut empty = write_io(3, &mut filled(1, 1), &sender);
    empty.segments.clear();
    device.submit(
        IoClass::Journal,
        vec![write_io(15, &mut past, &sender), io, empty, write_io(2, &mut ok, &sender)],
    );
    drop(sender);
    let outcomes: Vec<bool> = receiver.iter().map(|outcome| outcome.is_ok()).collect();
    assert_eq!(outcomes.iter().filter(|ok| **ok).count(), 1);
    assert_eq!(outcomes.len(), 4);
    assert!(device.failure().is_none());
}

/// Many threads write and flush; nobody is told "durable" before it is, and flushes are shared.
#[test]
fn concurrent_flushes_combine_and_never_lie() {
    let (backend, device) = simulated(64);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (backend, device) = (&backend, &device);
            scope.spawn(move || {
                for round in 1..100_u8 {
                    device.write(IoClass::Data, BlockNo(thread), &filled(round, 1)).unwrap();
                    device.flush_to(device.mark()).unwrap();
                    assert_eq!(backend.safe().get(BlockNo(thread)).unwrap()[0], round);
                }
            });
        }
    });
    let stats = device.stats();
    assert_eq!(stats.flush_requests, stats.flush_needless + stats.flush_joined + stats.flushes);
    assert_eq!(backend.unsafe_writes(), 0);
    assert!(stats.to_string().contains("flush: "));
}

/// A backend whose flush panics: the leader unwinds, and those who waited for it get an error, not a hang.
#[test]
fn a_flush_that_panics_frees_its_waiters() {
    struct Panics;
    impl Backend for Panics {
        fn blocks(&self) -> u64 {
            1
        }
        fn name(&self) -> String {
            "panics".into()
        }
        fn is_read_only(&self) -> bool {
            false
        }
        fn read(&self, _: IoClass, _: BlockNo, _: &mut [u8]) -> Result<()> {
            Ok(())
        }
        fn write(&self, _: IoClass, _: BlockNo, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(20));
            panic!("deliberate")
        }
        fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
            Ok(())
        }
        fn submit(&self, _: IoClass, _: Vec<Io>) {}
    }
    let device = Device::new(Arc::new(Panics));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let device = device.clone();
            std::thread::spawn(move || device.flush().is_err())
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    assert_eq!(ended.iter().filter(|ended| ended.is_err()).count(), 1);
    assert!(ended.into_iter().flatten().all(|failed| failed));
    assert_eq!(device.failure().unwrap().kind(), ErrorKind::Io);
}

/// The journal had the content of a block that the device could neither write nor read. A read on the calling
/// thread took it from there. Several at a time, or one that did not wait, asked the device for the block as
/// part of its run, and failed.
#[test]
fn requests_leave_out_what_the_journal_has() {
    const BAD: u64 = 6;
    let (backend, device) = simulated(16);
    device.write(IoClass::Data, BlockNo(0), &filled(1, 16)).unwrap();
    for op in [FaultOp::Read, FaultOp::Write] {
        backend.inject(Fault::on(op).region(BAD..BAD + 1).times(u64::MAX));
    }
    device.recorded().record(Seq(1), BlockNo(BAD), &vec![2; BLOCK_SIZE].into());
    device.recorded().write_home(&device, Seq(1), &mut |_| Ok(())).unwrap_err();
    assert!(device.recorded().is_stuck());
    let expected = |start: u64, blocks: usize| {
        let mut expected = filled(1, blocks);
        expected[(BAD - start) as usize * BLOCK_SIZE..][..BLOCK_SIZE].fill(2);
        expected
    };

    let (mut one, mut other) = (filled(0, 3), filled(0, 2));
    let mut items = [(BlockNo(BAD - 1), &mut one[..]), (BlockNo(12), &mut other[..])];
    device.read_batch(IoClass::Data, &mut items).unwrap();
    assert_eq!((&one[..], &other[..]), (&expected(BAD - 1, 3)[..], &filled(1, 2)[..]));

    // Gaps that begin and end within pieces of memory. They end in the reverse order.
    device.recorded().record(Seq(2), BlockNo(BAD + 3), &vec![2; BLOCK_SIZE].into());
    backend.set_hold(Hold::Submitted);
    let mut pieces = [2, 3, 3].map(|blocks| filled(0, blocks));
    let (sender, ended) = mpsc::channel();
    // SAFETY: the memory is kept until the channel has been heard.
    let segments = pieces.each_mut().map(|piece| unsafe { Segment::new(piece.as_mut_ptr(), piece.len()) });
    let done = Box::new(move |outcome| sender.send(outcome).unwrap());
    let read = Io { op: IoOp::Read, at: BlockNo(BAD - 3), segments: segments.to_vec(), done };
    device.submit(IoClass::Data, vec![read]);
    assert_eq!(backend.held(), 3);
    for newest in (0..3).rev() {
        assert!(ended.try_recv().is_err(), "a part is still under way");
        assert!(backend.release(newest));
    }
    ended.recv().unwrap().unwrap();
    let mut whole = expected(BAD - 3, 8);
    whole[6 * BLOCK_SIZE..7 * BLOCK_SIZE].fill(2);
    assert_eq!(pieces.each_ref().map(|piece| &piece[..]).concat(), whole[..]);
}
