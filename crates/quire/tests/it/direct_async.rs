//! Asynchronous direct I/O: what is in flight, and who waits for it.

use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{AlignedBuf, ErrorKind, FormatOptions, Volume, VolumeOptions};
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold};
use quire_device::{IoClass, SimulatedBackend};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn options(threads: bool) -> VolumeOptions {
    VolumeOptions::new().threads(threads).cache_bytes(8 << 20)
}

fn volume(threads: bool) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(16384));
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    let volume = options(threads).open_backend(device.clone()).unwrap();
    (device, volume)
}

/// A file of [`BLOCKS`] durable blocks, each full of `byte`.
fn file(volume: &Volume, byte: u8) -> InodeRef {
    let create = Create::file(0o644);
    let file = volume.inodes().create(&volume.inodes().root(), b"file", &create).unwrap();
    volume.inodes().write_at(&file, &vec![byte; BLOCKS * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    file
}

fn blocks(count: usize, byte: u8) -> AlignedBuf {
    let mut buffer = AlignedBuf::blocks(count);
    buffer.fill(byte);
    buffer
}

type Answer = (AlignedBuf, quire::Result<usize>);

fn write(
    volume: &Volume,
    file: &InodeRef,
    block: usize,
    data: AlignedBuf,
    flags: IoFlags,
) -> mpsc::Receiver<Answer> {
    let (send, answer) = mpsc::channel();
    let done = Box::new(move |buffer, outcome| send.send((buffer, outcome)).unwrap());
    volume.inodes().write_direct_then(file, data, (block * BLOCK) as u64, flags, done);
    answer
}

fn read(volume: &Volume, file: &InodeRef, offset: u64, buffer: AlignedBuf) -> Answer {
    let (send, answer) = mpsc::channel();
    let done = Box::new(move |buffer, outcome| send.send((buffer, outcome)).unwrap());
    volume.inodes().read_direct_then(file, buffer, offset, done);
    answer.recv().unwrap()
}

fn cached(volume: &Volume, file: &InodeRef, block: usize) -> u8 {
    let mut out = [0; BLOCK];
    assert_eq!(
        volume.inodes().read_at(file, &mut out, (block * BLOCK) as u64, IoFlags::empty()).unwrap(),
        BLOCK
    );
    assert!(out.iter().all(|byte| *byte == out[0]), "torn");
    out[0]
}

/// The gate belongs to the request, not to the call: a cached reader that comes while the data travels waits,
/// and then sees all of it; a direct request elsewhere in the file does not wait.
#[test]
fn a_write_in_flight_holds_the_gate_and_its_range_only() {
    let (device, volume) = volume(false);
    let file = file(&volume, 1);
    assert_eq!(cached(&volume, &file, 3), 1);
    device.set_hold(Hold::Submitted);
    let first = write(&volume, &file, 2, blocks(4, 2), IoFlags::empty());
    let second = write(&volume, &file, 20, blocks(1, 3), IoFlags::empty());
    assert_eq!(device.held(), 2, "both are under way");
    assert!(first.try_recv().is_err());
    let passed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let seen = cached(&volume, &file, 3);
            passed.store(true, Ordering::SeqCst);
            seen
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!passed.load(Ordering::SeqCst), "a cached read overtook a direct write");
        device.set_hold(Hold::Nothing);
        assert!(device.release(1) && device.release(0));
        assert_eq!(reader.join().unwrap(), 2);
    });
    let (buffer, outcome) = first.recv().unwrap();
    assert_eq!((buffer.len(), outcome.unwrap()), (4 * BLOCK, 4 * BLOCK));
    assert_eq!(second.recv().unwrap().1.unwrap(), BLOCK);
    assert_eq!((cached(&volume, &file, 6), cached(&volume, &file, 20)), (1, 3));
    volume.close().unwrap();
}

#[test]
fn what_cannot_be_sent_off_is_done_at_once() {
    let (_device, volume) = volume(false);
    let file = file(&volume, 1);
    let size = (BLOCKS * BLOCK) as u64;
    // Growth, a hole, and an end of file inside a block.
    assert_eq!(
        write(&volume, &file, BLOCKS, blocks(1, 5), IoFlags::empty()).recv().unwrap().1.unwrap(),
        BLOCK
    );
    assert_eq!(
        write(&volume, &file, BLOCKS + 9, blocks(1, 6), IoFlags::empty()).recv().unwrap().1.unwrap(),
        BLOCK
    );
    assert_eq!(write(&volume, &file, 0, blocks(1, 7), IoFlags::APPEND).recv().unwrap().1.unwrap(), BLOCK);
    volume.inodes().write_at(&file, b"tail", size + 11 * BLOCK as u64, IoFlags::empty()).unwrap();
    let (buffer, outcome) = read(&volume, &file, size, blocks(16, 0xEE));
    assert_eq!(outcome.unwrap(), 11 * BLOCK + 4);
    let firsts: Vec<u8> = buffer.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(firsts[..12], [5, 0, 0, 0, 0, 0, 0, 0, 0, 6, 7, b't']);
    assert!(
        buffer[11 * BLOCK + 4..12 * BLOCK].iter().all(|byte| *byte == 0),
        "nothing foreign behind the end"
    );
    // Past the end, unaligned, empty.
    assert_eq!(read(&volume, &file, 1 << 40, blocks(1, 0)).1.unwrap(), 0);
    assert_eq!(read(&volume, &file, 3, blocks(1, 0)).1.unwrap(), BLOCK);
    assert_eq!(read(&volume, &file, 0, AlignedBuf::zeroed(0)).1.unwrap(), 0);
    // Not possible.
    let answer = read(&volume, &volume.inodes().root(), 0, blocks(1, 0)).1;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::IsDirectory);
    assert!(read(&volume, &file, u64::MAX - 4095, blocks(1, 0)).1.is_err());
    let answer = write(&volume, &file, usize::MAX / BLOCK, blocks(2, 0), IoFlags::empty());
    assert!(answer.recv().unwrap().1.is_err());
    volume.close().unwrap();
}

/// A caller who asks for that gets back what would have to wait before it can be sent off, or cannot be sent
/// off at all.
#[test]
fn what_would_wait_is_given_back() {
    let (device, volume) = volume(false);
    let file = file(&volume, 1);
    let inodes = volume.inodes();
    let sends = |block: usize, reads: bool| {
        let (data, at, done) = (blocks(1, 9), (block * BLOCK) as u64, Box::new(|_, _| {}));
        match reads {
            true => inodes.try_read_direct_then(&file, data, at, done).is_none(),
            false => inodes.try_write_direct_then(&file, data, at, IoFlags::empty(), done).is_none(),
        }
    };
    let reads = |block| sends(block, true);
    let writes = |block| sends(block, false);
    assert!(reads(5) && !writes(5), "a cached block is read past the cache, and written where it is dropped");
    assert!(!writes(BLOCKS) && !reads(BLOCKS), "behind the end");
    let drop_cached =
        || write(&volume, &file, 0, blocks(BLOCKS, 2), IoFlags::empty()).recv().unwrap().1.unwrap();
    drop_cached();
    assert!(writes(5));
    volume.inodes().write_at(&file, &[3; BLOCK], 7 * BLOCK as u64, IoFlags::empty()).unwrap();
    assert!(!reads(7) && !writes(7) && reads(40) && writes(40), "block 7 is dirty");
    drop_cached();
    device.set_hold(Hold::Submitted);
    assert!(writes(5) && !reads(5) && !writes(5), "a write of block 5 is under way");
    device.set_hold(Hold::Nothing);
    assert!(device.release(0));
    let frozen = volume.freeze().unwrap();
    assert!(!writes(5) && reads(5));
    drop(frozen);
    assert!(writes(5));
    volume.close().unwrap();
}

#[test]
fn a_synchronous_one_is_durable_when_it_is_done() {
    let (device, volume) = volume(true);
    let file = file(&volume, 1);
    let answer = write(&volume, &file, 7, blocks(2, 9), IoFlags::DATASYNC);
    assert_eq!(answer.recv().unwrap().1.unwrap(), 2 * BLOCK);
    let image = device.crash(CrashPolicy::LoseAll);
    let after = options(false).open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let found = after.inodes().lookup(&after.inodes().root(), b"file").unwrap();
    assert_eq!((cached(&after, &found, 7), cached(&after, &found, 8), cached(&after, &found, 9)), (9, 9, 1));
    volume.close().unwrap();
}

#[test]
fn a_failed_transfer_is_told_and_lets_go() {
    let (device, volume) = volume(false);
    let file = file(&volume, 1);
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(1));
    let (_, outcome) = write(&volume, &file, 7, blocks(2, 9), IoFlags::empty()).recv().unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(
        write(&volume, &file, 7, blocks(2, 8), IoFlags::empty()).recv().unwrap().1.unwrap(),
        2 * BLOCK
    );
    assert_eq!(cached(&volume, &file, 8), 8);
    volume.close().unwrap();
}

/// Many in flight beside cached readers and writers of the same blocks: nothing is torn, nothing is lost, and
/// the last one to finish is seen.
#[test]
fn many_in_flight_stay_coherent_with_the_cache() {
    let (_device, volume) = volume(true);
    let file = file(&volume, 0);
    let stop = AtomicBool::new(false);
    let in_flight = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let buffered: Vec<_> = (0..2)
            .map(|n| {
                let (volume, file, stop) = (&volume, &file, &stop);
                scope.spawn(move || {
                    let mut block = n;
                    while !stop.load(Ordering::Relaxed) {
                        block = (block * 7 + 3) % BLOCKS;
                        cached(volume, file, block);
                        let data = [block as u8 ^ n as u8; BLOCK];
                        volume
                            .inodes()
                            .write_at(file, &data, (block * BLOCK) as u64, IoFlags::empty())
                            .unwrap();
                    }
                })
            })
            .collect();
        for round in 0..2000 {
            while in_flight.load(Ordering::Acquire) >= 16 {
                std::thread::yield_now();
            }
            in_flight.fetch_add(1, Ordering::AcqRel);
            let ended = in_flight.clone();
            let at = (round * 5 % (BLOCKS - 4) * BLOCK) as u64;
            if round % 2 == 0 {
                let done = Box::new(move |_: AlignedBuf, outcome: quire::Result<usize>| {
                    outcome.unwrap();
                    ended.fetch_sub(1, Ordering::AcqRel);
                });
                let (inodes, flags) = (volume.inodes(), IoFlags::empty());
                let data = blocks(3, round as u8);
                if let Some((data, done)) = inodes.try_write_direct_then(&file, data, at, flags, done) {
                    inodes.write_direct_then(&file, data, at, flags, done);
                }
            } else {
                let done = Box::new(move |buffer: AlignedBuf, outcome: quire::Result<usize>| {
                    assert_eq!(outcome.unwrap(), 3 * BLOCK);
                    assert!(buffer.chunks(BLOCK).all(|block| block.iter().all(|byte| *byte == block[0])));
                    ended.fetch_sub(1, Ordering::AcqRel);
                });
                let inodes = volume.inodes();
                if let Some((buffer, done)) = inodes.try_read_direct_then(&file, blocks(3, 0), at, done) {
                    inodes.read_direct_then(&file, buffer, at, done);
                }
            }
        }
        while in_flight.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        buffered.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(write(&volume, &file, 5, blocks(1, 77), IoFlags::empty()).recv().unwrap().1.unwrap(), BLOCK);
    assert_eq!(cached(&volume, &file, 5), 77);
    drop(file);
    volume.close().unwrap();
}

/// A volume that is open read-only has no syncers. References of reads that had ended were left for them, and
/// every file that was read stayed in memory.
#[test]
fn reads_of_a_read_only_volume_leave_nothing() {
    const FILES: usize = 9000;
    let (device, volume) = volume(true);
    for n in 0..FILES {
        volume.write(format!("{n}"), "").unwrap();
    }
    volume.close().unwrap();
    let volume = options(true).read_only(true).open_backend(device).unwrap();
    let root = volume.inodes().root();
    for n in 0..FILES {
        let file = volume.inodes().lookup(&root, format!("{n}").as_bytes()).unwrap();
        assert_eq!(read(&volume, &file, 0, blocks(1, 0)).1.unwrap(), 0);
    }
    let cached = volume.metrics()["inodes_cached"];
    assert!(cached < 5000, "{cached} of {FILES} inodes stay in memory");
}

/// A future that had given its outcome said that it was under way; to wait for it once more never ended.
#[test]
fn a_request_that_has_given_its_outcome_is_over() {
    let (_, volume) = volume(true);
    file(&volume, 1);
    let mut request = volume.open_file("file").unwrap().read_direct_async(AlignedBuf::blocks(1), 0);
    assert_eq!(futures::executor::block_on(&mut request).0.unwrap(), BLOCK);
    assert!(request.is_over());
    let again = std::panic::AssertUnwindSafe(|| request.wait());
    assert!(std::panic::catch_unwind(again).is_err());
}
