//! What every backend must do, put to each of them: the contract in `backend`'s header.

use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, Result, Seq};
use quire_device::{
    AlignedBuf, Backend, Device, FileBackend, Io, IoClass, IoOp, MemoryBackend, OpenMode, Segment,
    SimulatedBackend, UringBackend,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

const BLOCKS: u64 = 300;

fn image(directory: &tempfile::TempDir) -> std::path::PathBuf {
    let path = directory.path().join("volume.img");
    std::fs::File::create(&path).unwrap().set_len(BLOCKS * BLOCK_SIZE as u64).unwrap();
    path
}

/// Runs `test` on every backend; those on the host in a directory where direct I/O works.
fn for_each_backend(test: impl Fn(Arc<dyn Backend>)) {
    test(Arc::new(MemoryBackend::new(BLOCKS)));
    test(Arc::new(SimulatedBackend::new(BLOCKS)));
    let directory = host_directory();
    test(Arc::new(FileBackend::open(&image(&directory), OpenMode::ReadWrite).unwrap()));
    test(Arc::new(UringBackend::open(&image(&directory)).unwrap()));
    test(Arc::new(UringBackend::open_with_rings(&image(&directory), 3).unwrap()));
}

fn host_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn pattern(seed: u64, blocks: usize) -> AlignedBuf {
    let mut random = Random::seeded(seed);
    let mut buf = AlignedBuf::blocks(blocks);
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    buf
}

fn read(backend: &dyn Backend, at: u64, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::blocks(blocks);
    buf.fill(0xee);
    backend.read(IoClass::Data, BlockNo(at), &mut buf).unwrap();
    buf
}

/// A segment over a buffer that the test keeps until the request is done.
fn segment(buf: &mut [u8]) -> Segment {
    // SAFETY: every test below waits for its requests before it drops their buffers.
    unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) }
}

/// Submits and waits; outcomes in the order of the requests.
fn submit_and_wait(
    backend: &dyn Backend,
    class: IoClass,
    requests: Vec<(IoOp, u64, Vec<Segment>)>,
) -> Vec<Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let count = requests.len();
    let ios = requests
        .into_iter()
        .enumerate()
        .map(|(index, (op, at, segments))| {
            let sender = sender.clone();
            let done = Box::new(move |outcome| sender.send((index, outcome)).unwrap());
            Io { op, at: BlockNo(at), segments, done }
        })
        .collect();
    drop(sender);
    backend.submit(class, ios);
    let mut outcomes: Vec<Option<Result<()>>> = vec![None; count];
    for (index, outcome) in receiver {
        assert!(outcomes[index].replace(outcome).is_none(), "done ran twice");
    }
    outcomes.into_iter().map(|outcome| outcome.expect("done never ran")).collect()
}

#[test]
fn scattered_memory_is_filled_in_order() {
    for_each_backend(|backend| {
        let written = pattern(5, 6);
        backend.write(IoClass::Data, BlockNo(7), &written).unwrap();
        let device = Device::new(backend);
        let newer = pattern(6, 2);
        let read = |class| {
            let mut parts = [2, 1, 3].map(AlignedBuf::blocks);
            let segments = parts.each_mut().map(|part| segment(part));
            device.read_scattered(class, BlockNo(7), &segments).unwrap();
            parts.each_ref().map(|part| &part[..]).concat()
        };
        assert_eq!(read(IoClass::Data), written[..]);
        // What the journal has of the second and third block, in two parts.
        device.recorded().record(Seq(1), BlockNo(8), &newer[..].into());
        assert_eq!(read(IoClass::Metadata), written[..]);
        let expected = [&written[..BLOCK_SIZE], &newer, &written[3 * BLOCK_SIZE..]].concat();
        assert_eq!(read(IoClass::Data), expected);
        let mut parts = [1, 1].map(AlignedBuf::blocks);
        let segments = parts.each_mut().map(|part| segment(part));
        assert!(device.read_scattered(IoClass::Data, BlockNo(BLOCKS - 1), &segments).is_err());
    });
}

#[test]
fn starts_as_zeros_and_keeps_what_is_written() {
    for_each_backend(|backend| {
        assert_eq!(backend.blocks(), BLOCKS);
        assert!(!backend.is_read_only());
        assert!(read(&*backend, 0, 300).iter().all(|byte| *byte == 0));
        for (at, blocks) in [(0, 1), (15, 2), (298, 2), (100, 64)] {
            let data = pattern(at, blocks);
            backend.write(IoClass::Metadata, BlockNo(at), &data).unwrap();
            assert_eq!(&*read(&*backend, at, blocks), &*data);
        }
        backend.flush().unwrap();
        assert_eq!(&*read(&*backend, 15, 2), &*pattern(15, 2));
    });
}

#[test]
fn takes_memory_of_any_alignment() {
    for_each_backend(|backend| {
        let data = pattern(1, 3);
        let mut odd = vec![0; data.len() + 5];
        odd[5..].copy_from_slice(&data);
        backend.write(IoClass::Data, BlockNo(7), &odd[5..]).unwrap();
        let mut back = vec![0; data.len() + 3];
        backend.read(IoClass::Data, BlockNo(7), &mut back[3..]).unwrap();
        assert_eq!(&back[3..], &*data);
        let outcomes = submit_and_wait(
            &*backend,
            IoClass::Data,
            vec![(IoOp::Write, 20, vec![segment(&mut odd[5..][..8192]), segment(&mut odd[5 + 8192..])])],
        );
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        back.fill(0);
        let outcomes =
            submit_and_wait(&*backend, IoClass::Data, vec![(IoOp::Read, 20, vec![segment(&mut back[3..])])]);
        assert!(outcomes[0].is_ok());
        assert_eq!(&back[3..], &*data);
    });
}

#[test]
fn refuses_ranges_outside_and_parts_of_blocks() {
    for_each_backend(|backend| {
        let mut buf = AlignedBuf::blocks(2);
        for at in [BLOCKS - 1, BLOCKS, u64::MAX, u64::MAX / 4096] {
            let error = backend.read(IoClass::Data, BlockNo(at), &mut buf).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("past its end"), "{error}");
            assert!(backend.write(IoClass::Data, BlockNo(at), &buf).is_err());
            assert!(backend.discard(BlockNo(at), 2).is_err());
            let outcomes =
                submit_and_wait(&*backend, IoClass::Data, vec![(IoOp::Write, at, vec![segment(&mut buf)])]);
            assert!(outcomes[0].is_err());
        }
        assert_eq!(
            backend.write(IoClass::Data, BlockNo(0), &buf[..100]).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert!(read(&*backend, 0, 300).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn submits_vectored_batches() {
    for_each_backend(|backend| {
        let mut parts: Vec<AlignedBuf> = (0..120).map(|part| pattern(part, 1 + part as usize % 4)).collect();
        let mut requests = Vec::new();
        let mut at = 0;
        for three in parts.chunks_mut(3) {
            let blocks = three.iter().map(|part| part.len() / BLOCK_SIZE).sum::<usize>() as u64;
            requests.push((IoOp::Write, at, three.iter_mut().map(|part| segment(part)).collect()));
            at += blocks;
        }
        assert_eq!(at, BLOCKS);
        assert!(submit_and_wait(&*backend, IoClass::Data, requests).iter().all(|outcome| outcome.is_ok()));
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        assert_eq!(&*read(&*backend, 0, BLOCKS as usize), &*whole);
        // Back in other pieces: every block a segment of its own, and then every block a request.
        let mut blocks: Vec<AlignedBuf> = (0..BLOCKS).map(|_| AlignedBuf::blocks(1)).collect();
        let all = blocks.iter_mut().map(|block| segment(block)).collect();
        assert!(submit_and_wait(&*backend, IoClass::Data, vec![(IoOp::Read, 0, all)])[0].is_ok());
        assert!(blocks.iter().flat_map(|block| block.iter()).eq(whole.iter()));
        blocks.iter_mut().for_each(|block| block.fill(1));
        let singles = blocks
            .iter_mut()
            .enumerate()
            .map(|(at, block)| (IoOp::Read, at as u64, vec![segment(block)]))
            .collect();
        assert!(submit_and_wait(&*backend, IoClass::Data, singles).iter().all(|outcome| outcome.is_ok()));
        assert!(blocks.iter().flat_map(|block| block.iter()).eq(whole.iter()));
    });
}

#[test]
fn discards_leave_neighbours_alone() {
    for_each_backend(|backend| {
        let data = pattern(9, 40);
        backend.write(IoClass::Data, BlockNo(10), &data).unwrap();
        backend.discard(BlockNo(12), 30).unwrap();
        assert_eq!(&*read(&*backend, 10, 2), &data[..2 * BLOCK_SIZE]);
        assert_eq!(&*read(&*backend, 42, 8), &data[32 * BLOCK_SIZE..]);
        backend.write(IoClass::Data, BlockNo(20), &data[..BLOCK_SIZE]).unwrap();
        assert_eq!(&*read(&*backend, 20, 1), &data[..BLOCK_SIZE]);
    });
}

#[test]
fn behaves_as_an_array_under_random_transfers() {
    for_each_backend(|backend| {
        let mut random = Random::seeded(42);
        let mut model = vec![0_u8; BLOCKS as usize * BLOCK_SIZE];
        for step in 0..300 {
            let at = random.below(BLOCKS);
            let blocks = 1 + random.below((BLOCKS - at).min(20)) as usize;
            let range = at as usize * BLOCK_SIZE..(at as usize + blocks) * BLOCK_SIZE;
            let mut data = pattern(step, blocks);
            match random.below(4) {
                0 => assert_eq!(&*read(&*backend, at, blocks), &model[range]),
                1 => {
                    backend.write(IoClass::Data, BlockNo(at), &data).unwrap();
                    model[range].copy_from_slice(&data);
                }
                2 => {
                    let write = (IoOp::Write, at, vec![segment(&mut data)]);
                    submit_and_wait(&*backend, IoClass::Data, vec![write])[0].as_ref().unwrap();
                    model[range].copy_from_slice(&data);
                }
                _ => {
                    let request = (IoOp::Read, at, vec![segment(&mut data)]);
                    submit_and_wait(&*backend, IoClass::Data, vec![request])[0].as_ref().unwrap();
                    assert_eq!(&*data, &model[range]);
                }
            }
        }
        assert_eq!(&*read(&*backend, 0, BLOCKS as usize), &*model);
    });
}

/// Submitting threads that exit at once: the kernel cancels what it had queued on their behalf, and the
/// backend must start that again. The image is sparse, so that the writes do queue.
#[test]
fn requests_outlive_the_threads_that_submit_them() {
    for_each_backend(|backend| {
        let bufs: Vec<Mutex<AlignedBuf>> = (0..BLOCKS).map(|at| Mutex::new(pattern(at, 1))).collect();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (bufs, backend, sender) = (&bufs, &backend, sender.clone());
                scope.spawn(move || {
                    let ios = (0..50).map(|index| {
                        let at = thread * 50 + index;
                        let sender = sender.clone();
                        Io {
                            op: IoOp::Write,
                            at: BlockNo(at),
                            segments: vec![segment(&mut bufs[at as usize].lock().unwrap())],
                            done: Box::new(move |outcome| sender.send(outcome).unwrap()),
                        }
                    });
                    backend.submit(IoClass::Data, ios.collect());
                });
            }
        });
        drop(sender);
        let outcomes: Vec<Result<()>> = receiver.iter().collect();
        assert_eq!(outcomes.len(), BLOCKS as usize);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        for (at, buf) in bufs.iter().enumerate() {
            assert_eq!(&*read(&*backend, at as u64, 1), &**buf.lock().unwrap());
        }
    });
}

/// More requests than the ring and its waiting line hold, from completions that submit the next.
#[test]
fn completions_may_submit() {
    fn next(backend: &Arc<dyn Backend>, left: usize, buf: Segment, ended: mpsc::Sender<Result<()>>) {
        let again = backend.clone();
        let done = Box::new(move |outcome: Result<()>| {
            if left == 0 || outcome.is_err() {
                ended.send(outcome).unwrap();
            } else {
                next(&again, left - 1, buf, ended);
            }
        });
        let at = BlockNo(left as u64 % BLOCKS);
        backend.submit(IoClass::Data, vec![Io { op: IoOp::Read, at, segments: vec![buf], done }]);
    }
    for_each_backend(|backend| {
        let mut bufs: Vec<AlignedBuf> = (0..500).map(|_| AlignedBuf::blocks(1)).collect();
        let (sender, receiver) = mpsc::channel();
        for buf in &mut bufs {
            next(&backend, 10, segment(buf), sender.clone());
        }
        drop(sender);
        assert_eq!(receiver.iter().map(|outcome| outcome.unwrap()).count(), 500);
    });
}

/// Submitters on every CPU, each with more requests than its ring takes, from completions as well: what one
/// ring's completion thread submits must not wait for the room of another.
#[test]
fn rings_of_several_cpus_serve_side_by_side() {
    const EACH: usize = 4000;
    let directory = host_directory();
    let backend: Arc<dyn Backend> = Arc::new(UringBackend::open_with_rings(&image(&directory), 2).unwrap());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let share = BLOCKS / threads as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let backend = &backend;
            scope.spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(thread);
                // A container may have other CPUs; then the scheduler decides.
                let _ = sched_setaffinity(None, &cpus);
                let (sender, receiver) = mpsc::channel();
                let mut bufs: Vec<AlignedBuf> =
                    (0..share).map(|n| pattern(n + thread as u64 * 999, 1)).collect();
                let places: Vec<_> = bufs.iter_mut().map(|buf| segment(buf)).collect();
                let io = |n: usize, done| {
                    let at = BlockNo(thread as u64 * share + n as u64 % share);
                    let segments = vec![places[n % share as usize]];
                    Io { op: IoOp::Write, at, segments, done }
                };
                let ios = (0..EACH).map(|n| {
                    let (sender, again) = (sender.clone(), backend.clone());
                    let second = io(n, Box::new(move |outcome| sender.send(outcome).unwrap()));
                    let done = Box::new(move |outcome: Result<()>| {
                        outcome.unwrap();
                        again.submit(IoClass::Data, vec![second]);
                    });
                    io(n, done)
                });
                for batch in ios.collect::<Vec<_>>().into_iter().fold(Vec::<Vec<Io>>::new(), in_batches) {
                    backend.submit(IoClass::Data, batch);
                }
                drop(sender);
                assert_eq!(receiver.iter().map(|outcome| outcome.unwrap()).count(), EACH);
                for (n, buf) in bufs.iter().enumerate() {
                    assert_eq!(&*read(&**backend, thread as u64 * share + n as u64, 1), &**buf);
                }
            });
        }
    });
}

fn in_batches(mut batches: Vec<Vec<Io>>, io: Io) -> Vec<Vec<Io>> {
    match batches.last_mut() {
        Some(batch) if batch.len() < 7 => batch.push(io),
        _ => batches.push(vec![io]),
    }
    batches
}

#[test]
fn a_submitter_waits_for_room_and_gets_it() {
    for_each_backend(|backend| {
        let mut buf = AlignedBuf::blocks(1);
        let reads = (0..5000).map(|at| (IoOp::Read, at % BLOCKS, vec![segment(&mut buf)])).collect();
        assert!(submit_and_wait(&*backend, IoClass::Data, reads).iter().all(|outcome| outcome.is_ok()));
    });
}

#[test]
fn dropping_completes_what_is_in_flight_also_from_a_completion() {
    for_each_backend(|backend| {
        let mut bufs: Vec<AlignedBuf> = (0..BLOCKS).map(|at| pattern(at, 1)).collect();
        let count = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = mpsc::channel::<()>();
        let owner = Arc::new(Mutex::new(None));
        let ios = bufs.iter_mut().enumerate().map(|(at, buf)| {
            let (count, sender, owner) = (count.clone(), sender.clone(), owner.clone());
            let done = Box::new(move |outcome: Result<()>| {
                outcome.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                drop(owner);
                drop(sender);
            });
            Io { op: IoOp::Write, at: BlockNo(at as u64), segments: vec![segment(buf)], done }
        });
        let ios = ios.collect();
        backend.submit(IoClass::Data, ios);
        // From here on the completions own the backend, as far as they have not run.
        *owner.lock().unwrap() = Some(backend);
        drop(owner);
        drop(sender);
        assert!(receiver.recv().is_err());
        assert_eq!(count.load(Ordering::Relaxed), BLOCKS as usize);
    });
}

#[test]
fn a_callback_that_panics_does_not_stop_the_ring() {
    let directory = host_directory();
    let backend = UringBackend::open(&image(&directory)).unwrap();
    let mut buf = AlignedBuf::blocks(1);
    let (sender, receiver) = mpsc::channel::<()>();
    let done = Box::new(move |_| {
        let _sender = sender;
        panic!("deliberate");
    });
    backend.submit(
        IoClass::Data,
        vec![Io { op: IoOp::Read, at: BlockNo(0), segments: vec![segment(&mut buf)], done }],
    );
    assert!(receiver.recv().is_err());
    let outcomes = submit_and_wait(&backend, IoClass::Data, vec![(IoOp::Read, 1, vec![segment(&mut buf)])]);
    assert!(outcomes[0].is_ok());
}

#[test]
fn a_file_that_shrinks_while_open_is_an_error_not_zeros() {
    let shrink =
        |path: &Path| std::fs::File::options().write(true).open(path).unwrap().set_len(8192).unwrap();
    for_each_host_backend(|backend, path| {
        shrink(path);
        let mut buf = AlignedBuf::blocks(4);
        let error = backend.read(IoClass::Data, BlockNo(1), &mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("truncated"), "{error}");
        let outcomes =
            submit_and_wait(&*backend, IoClass::Data, vec![(IoOp::Read, 50, vec![segment(&mut buf)])]);
        assert!(outcomes[0].as_ref().unwrap_err().to_string().contains("truncated"));
    });
}

fn for_each_host_backend(test: impl Fn(Arc<dyn Backend>, &Path)) {
    let directory = host_directory();
    let path = image(&directory);
    test(Arc::new(FileBackend::open(&path, OpenMode::ReadWrite).unwrap()), &path);
    let path = image(&directory);
    test(Arc::new(UringBackend::open(&path).unwrap()), &path);
}

#[test]
fn a_sparse_terabyte_in_memory_costs_what_is_written() {
    let backend = MemoryBackend::new(1 << 28);
    let data = pattern(3, 1);
    for at in [0, 1 << 20, (1 << 28) - 1] {
        backend.write(IoClass::Data, BlockNo(at), &data).unwrap();
    }
    assert!(backend.resident_bytes() <= 3 * 65536);
    backend.discard(BlockNo(1), (1 << 28) - 1).unwrap();
    assert_eq!(&*read(&backend, 0, 1), &*data);
    assert!(read(&backend, 1 << 20, 1).iter().all(|byte| *byte == 0));
    assert_eq!(backend.resident_bytes(), 65536);
}
