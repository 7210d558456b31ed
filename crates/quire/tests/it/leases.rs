//! Layout leases: what they name, what recalls them, and what comes of holders that do not answer.

use crate::common::{BLOCK, clock};
use quire::inodes::IoFlags;
use quire::{
    AlignedBuf, Commit, ErrorKind, File, FormatOptions, LayoutExtent, LayoutLease, OpenOptions, Place,
    Properties, Recalled, Unit, Volume, VolumeOptions,
};
use quire_base::{BlockNo, patience};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn made() -> Arc<SimulatedBackend> {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(clock());
    format.format_backend(device.clone()).unwrap();
    device
}

/// A volume without threads, whose operations wait so long for leases.
fn volume(patience: Duration) -> (Arc<SimulatedBackend>, Volume) {
    let device = made();
    (device.clone(), options(patience).open_backend(device).unwrap())
}

fn options(patience: Duration) -> VolumeOptions {
    crate::common::options().lease_recall_time(patience)
}

fn file(volume: &Volume, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).open(volume, name).unwrap()
}

/// Blocks that tell their number in the file and a version.
fn blocks(first: u8, count: u8, version: u8) -> Vec<u8> {
    (first..first + count).flat_map(|block| [[block, version]; BLOCK / 2].concat()).collect()
}

fn of_eight_blocks(volume: &Volume) -> File {
    let file = file(volume, "file");
    file.write_all_at(&blocks(0, 8, 1), 0).unwrap();
    file
}

/// What the device has of the parts of a lease that are there, and zeros for the rest.
fn on_device(device: &SimulatedBackend, extents: &[LayoutExtent]) -> Vec<u8> {
    let image = device.visible();
    let mut bytes = Vec::new();
    for extent in extents {
        let count = extent.len as usize / BLOCK;
        for n in 0..count {
            let mut block = [0; BLOCK];
            if let Place::Device(at) = extent.place {
                assert!(at.is_multiple_of(BLOCK as u64));
                image.read(BlockNo(at / BLOCK as u64 + n as u64), &mut block);
            }
            bytes.extend(block);
        }
    }
    bytes
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_lease_names_what_is_written_and_the_rest() {
    let (device, volume) = volume(LONG);
    let file = file(&volume, "file");
    file.write_all_at(&blocks(0, 2, 1), 0).unwrap();
    file.allocate(4 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    file.write_all_at(&blocks(8, 1, 1)[..100], 8 * BLOCK as u64).unwrap();
    let lease = file.lease_layout(..).unwrap();
    assert_eq!(lease.range(), 0..9 * BLOCK as u64);
    let kinds: Vec<(u64, u64, char)> = lease
        .extents()
        .iter()
        .map(|extent| {
            let kind = match extent.place {
                Place::Device(_) => 'd',
                Place::Unwritten => 'u',
                _ => 'h',
            };
            (extent.offset / BLOCK as u64, extent.len / BLOCK as u64, kind)
        })
        .collect();
    assert_eq!(kinds, [(0, 2, 'd'), (2, 2, 'h'), (4, 2, 'u'), (6, 2, 'h'), (8, 1, 'd')]);
    assert_eq!(on_device(&device, lease.extents())[..8 * BLOCK + 100], read(&file));
    assert!(lease.is_valid() && !lease.is_recalled());
    // Of a part, in whole blocks; and of nothing.
    let part = file.lease_layout(5000..6000).unwrap();
    assert_eq!((part.range(), part.extents().len()), (BLOCK as u64..2 * BLOCK as u64, 1));
    assert_eq!(file.lease_layout(1 << 30..).unwrap().extents(), []);
    assert_eq!(volume.metrics()["leases_held"], 2);
    drop((lease, part));
    assert_eq!(volume.metrics()["leases_held"], 0);
    #[expect(clippy::reversed_empty_ranges, reason = "a range that ends before it begins is refused")]
    let backwards = file.lease_layout(2..1);
    assert_eq!(backwards.unwrap_err().kind(), ErrorKind::Invalid);
}

/// What is done to a file of eight written blocks.
type Operation = fn(&Volume, &File);

fn group(volume: &Volume, file: &File, bytes: &[u8]) {
    let mut group = volume.atomic();
    group.write_at(file, bytes, 0).unwrap();
    group.commit(Commit::Now).unwrap();
}

fn untorn(file: &File) {
    file.set_properties(Properties { untorn: Some(Unit::from_bytes(8192).unwrap()), ..file.properties() })
        .unwrap();
}

fn write_past_cache(file: &File) {
    let mut buffer = AlignedBuf::zeroed(BLOCK);
    buffer.fill(9);
    let (written, _) = file.write_direct_async(buffer, 0).wait();
    written.unwrap();
}

/// Name, what comes before the lease, what recalls it.
const MOVES: &[(&str, Operation, Operation)] = &[
    ("shrink", |_, _| {}, |_, file| file.set_len(4096).unwrap()),
    ("shrink inside a block", |_, _| {}, |_, file| file.set_len(30_000).unwrap()),
    ("punch", |_, _| {}, |_, file| file.punch_hole(8192, 8192).unwrap()),
    ("zero", |_, _| {}, |_, file| file.zero_range(4096, 10_000).unwrap()),
    ("collapse", |_, _| {}, |_, file| file.collapse_range(4096, 4096).unwrap()),
    ("insert", |_, _| {}, |_, file| file.insert_range(4096, 4096).unwrap()),
    ("group", |_, _| {}, |volume, file| group(volume, file, &[9; 5000])),
    ("large group", |_, _| {}, |volume, file| group(volume, file, &vec![9; 3 << 20])),
    ("untorn", |_, file| untorn(file), |_, file| file.write_all_at(&[9; 10], 0).unwrap()),
    (
        "shared",
        |volume, _| drop(volume.take_snapshot("s").unwrap()),
        |_, file| file.write_all_at(&[9; 10], 0).unwrap(),
    ),
    (
        "shared, past the cache",
        |volume, _| drop(volume.take_snapshot("s").unwrap()),
        |_, file| write_past_cache(file),
    ),
    (
        "shared, a large write",
        |volume, _| drop(volume.take_snapshot("s").unwrap()),
        |_, file| file.write_all_at(&vec![9; 3 << 20], 0).unwrap(),
    ),
    (
        "shared, at once",
        |volume, file| {
            file.write_all_at(&[7; 10], 0).unwrap();
            volume.take_snapshot("s").unwrap();
        },
        |volume, file| {
            if !volume.inodes().try_write_at(file.inode(), &[9; 10], 0, IoFlags::empty()) {
                file.write_all_at(&[9; 10], 0).unwrap();
            }
        },
    ),
    (
        "untorn, at once",
        |_, file| {
            untorn(file);
            file.write_all_at(&[7; 10], 0).unwrap();
        },
        |volume, file| {
            if !volume.inodes().try_write_at(file.inode(), &[9; 10], 0, IoFlags::empty()) {
                file.write_all_at(&[9; 10], 0).unwrap();
            }
        },
    ),
];

#[test]
fn what_moves_blocks_recalls_the_lease_and_waits() {
    for (name, before, operation) in MOVES {
        let (device, volume) = volume(LONG);
        let file = of_eight_blocks(&volume);
        before(&volume, &file);
        let lease = file.lease_layout(..).unwrap();
        let content = read(&file);
        let (called, calls) = mpsc::channel();
        lease.on_recall(move || called.send(()).unwrap());
        let returned = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (device, file, returned) = (&device, &file, &returned);
            scope.spawn(move || {
                calls.recv_timeout(LONG).unwrap_or_else(|_| panic!("{name}: no recall"));
                assert!(lease.is_recalled() && lease.wait_recalled(Duration::ZERO), "{name}");
                // The holder may use the file meanwhile.
                file.sync_all().unwrap();
                assert!(read(file) == content, "{name}");
                assert!(on_device(device, lease.extents()) == content, "{name}");
                assert!(lease.is_valid(), "{name}: revoked in spite of an answer in time");
                assert_eq!(file.lease_layout(..).unwrap_err().kind(), ErrorKind::Busy, "{name}");
                returned.store(true, Ordering::SeqCst);
                drop(lease);
            });
            operation(&volume, file);
            assert!(returned.load(Ordering::SeqCst), "{name} did not wait");
        });
        let metrics = volume.metrics();
        let counts = ["held", "recalled", "revoked"].map(|what| match what {
            "held" => metrics["leases_held"],
            what => metrics[&format!("leases_{what}_total")],
        });
        assert_eq!(counts, [0, 1, 0], "{name}");
        let lease = file.lease_layout(..).unwrap_or_else(|error| panic!("{name}: {error}"));
        let now = read(&file);
        assert!(on_device(&device, lease.extents())[..now.len()] == now, "{name}");
        drop((lease, file));
        volume.close().unwrap();
    }
}

#[test]
fn a_holder_that_does_not_answer_is_revoked() {
    for (name, before, operation) in MOVES {
        let (_, volume) = volume(Duration::from_millis(1));
        let file = of_eight_blocks(&volume);
        before(&volume, &file);
        let lease = file.lease_layout(..).unwrap();
        assert!(lease.is_valid());
        operation(&volume, &file);
        assert!(!lease.is_valid() && lease.is_recalled(), "{name}");
        assert_eq!(volume.metrics()["leases_revoked_total"], 1, "{name}");
        assert_eq!(volume.metrics()["leases_held"], 0, "{name}");
        let next = file.lease_layout(..).unwrap();
        drop(lease);
        assert!(next.is_valid(), "{name}");
    }
}

#[test]
fn what_moves_nothing_recalls_nothing() {
    const QUIET: &[(&str, Operation)] = &[
        ("overwrite", |_, file| file.write_all_at(&[9; 9000], 100).unwrap()),
        ("direct overwrite", |_, file| write_past_cache(file)),
        ("large overwrite", |_, file| file.write_all_at(&vec![9; 2 << 20], 8 * BLOCK as u64).unwrap()),
        ("append", |_, file| {
            file.append(&[9; 100]).unwrap();
        }),
        ("growth", |_, file| file.set_len(1 << 20).unwrap()),
        ("allocate", |_, file| file.allocate(0, 1 << 20).unwrap()),
        ("a hole and an unwritten part", |_, file| file.write_all_at(&[9; 8192], 12 * BLOCK as u64).unwrap()),
        ("punch elsewhere", |_, file| file.punch_hole(10 * BLOCK as u64, 4096).unwrap()),
        ("snapshot", |volume, _| drop(volume.take_snapshot("s").unwrap())),
        ("fsync, checkpoint", |volume, file| {
            file.sync_all().unwrap();
            volume.checkpoint().unwrap();
        }),
        ("freeze", |volume, _| drop(volume.freeze().unwrap())),
        ("rename", |volume, _| volume.rename("file", "other").unwrap()),
        ("properties", |_, file| untorn(file)),
    ];
    for (name, operation) in QUIET {
        let (device, volume) = volume(Duration::ZERO);
        let file = of_eight_blocks(&volume);
        file.allocate(12 * BLOCK as u64, BLOCK as u64).unwrap();
        let lease = file.lease_layout(..8 * BLOCK as u64).unwrap();
        operation(&volume, &file);
        file.sync_all().unwrap();
        assert!(lease.is_valid() && !lease.is_recalled(), "{name}");
        let content = &read(&file)[..8 * BLOCK];
        assert!(on_device(&device, lease.extents()) == content, "{name}");
    }
}

/// Little that is forced goes into the journal's record. So the fsync of an append, or of a write to a hole,
/// revoked leases of the file at once, though nothing had moved.
#[test]
fn little_that_is_forced_moves_nothing_either() {
    const QUIET: &[(&str, Operation)] = &[
        ("append in the last block", |_, file| {
            file.append(&[9; 100]).unwrap();
        }),
        ("a hole", |_, file| file.write_all_at(&[9; BLOCK], 8 * BLOCK as u64).unwrap()),
        ("an unwritten part", |_, file| file.write_all_at(&[9; 10], 10 * BLOCK as u64).unwrap()),
        ("overwrite and append", |_, file| {
            file.write_all_at(&[9; BLOCK], 7 * BLOCK as u64).unwrap();
            file.append(&[9; BLOCK]).unwrap();
        }),
    ];
    for (name, operation) in QUIET {
        let (device, volume) = volume(Duration::ZERO);
        let file = of_eight_blocks(&volume);
        file.allocate(10 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
        file.write_all_at(&[1; 100], 13 * BLOCK as u64).unwrap();
        let lease = file.lease_layout(..).unwrap();
        operation(&volume, &file);
        file.sync_all().unwrap();
        assert!(lease.is_valid() && !lease.is_recalled(), "{name}");
        let content = read(&file);
        for extent in lease.extents().iter().filter(|extent| matches!(extent.place, Place::Device(_))) {
            let (at, end) =
                (extent.offset as usize, content.len().min((extent.offset + extent.len) as usize));
            let bytes = on_device(&device, std::slice::from_ref(extent));
            assert!(bytes[..end - at] == content[at..end], "{name}: the device has old content at {at}");
        }
    }
}

/// A mount's thread that takes requests must not be held up by a program that holds a lease.
#[test]
fn a_thread_that_may_not_wait_does_not() {
    let (_, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    let lease = file.lease_layout(..).unwrap();
    let refused = |outcome: quire::Result<()>| {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!lease.is_recalled());
    };
    refused(patience::at_once(|| file.set_len(0)));
    refused(patience::at_once(|| file.punch_hole(0, 8192)));
    refused(patience::at_once(|| file.collapse_range(0, 8192)));
    refused(patience::at_once(|| file.lease_layout(..).map(drop)));
    let write = || patience::at_once(|| volume.inodes().write_at(file.inode(), &[1], 0, IoFlags::empty()));
    assert_eq!(write().unwrap(), 1, "an overwrite in place waits for nobody");
    volume.take_snapshot("s").unwrap();
    refused(write().map(drop));
    assert!(
        !volume.inodes().try_write_at(file.inode(), &[1], 0, IoFlags::empty()),
        "the other way finds out"
    );
    drop(lease);
    file.set_len(0).unwrap();
}

/// Content that is in the journal only would not be on the device.
#[test]
fn a_lease_sends_recorded_content_home() {
    for by_group in [false, true] {
        let (device, volume) = volume(LONG);
        let file = of_eight_blocks(&volume);
        file.sync_all().unwrap();
        if by_group {
            group(&volume, &file, &blocks(0, 4, 2));
        } else {
            untorn(&file);
            file.write_all_at(&blocks(0, 4, 2), 0).unwrap();
        }
        let lease = file.lease_layout(..).unwrap();
        assert!(on_device(&device, lease.extents()) == [blocks(0, 4, 2), blocks(4, 4, 1)].concat());
        assert!(lease.is_valid());
    }
}

/// As with an open file: a removed name frees nothing while somebody uses the inode.
#[test]
fn a_lease_keeps_a_removed_file() {
    let (device, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    let lease = file.lease_layout(..).unwrap();
    drop(file);
    volume.remove_file("file").unwrap();
    volume.drain_orphans();
    volume.sync().unwrap();
    let other = self::file(&volume, "other");
    other.write_all_at(&vec![0xee; 8 << 20], 0).unwrap();
    other.sync_all().unwrap();
    assert!(on_device(&device, lease.extents()) == blocks(0, 8, 1));
    assert!(lease.is_valid() && !lease.is_recalled());
    let inodes = volume.info().inodes;
    drop(lease);
    volume.drain_orphans();
    assert_eq!(volume.info().inodes, inodes - 1);
}

/// What a lease names is what the file has after a crash, as after an fsync.
#[test]
fn a_crash_leaves_what_a_lease_named() {
    let (device, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    file.punch_hole(8192, 4096).unwrap();
    file.write_all_at(&blocks(20, 3, 1), 20 * BLOCK as u64).unwrap();
    let lease = file.lease_layout(..).unwrap();
    let (extents, content) = (lease.extents().to_vec(), read(&file));
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
        let image = Arc::new(SimulatedBackend::from_image(device.crash(policy)));
        let recovered = options(LONG).open_backend(image.clone()).unwrap();
        let file = self::file(&recovered, "file");
        assert_eq!(file.lease_layout(..).unwrap().extents(), extents);
        assert!(read(&file) == content);
        assert!(on_device(&image, &extents) == content);
    }
    assert!(lease.is_valid());
}

#[test]
fn a_volume_that_closes_revokes_at_once() {
    let (_, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    let lease = file.lease_layout(..).unwrap();
    let other = volume.clone();
    let recall = lease.recalled();
    std::thread::scope(|scope| {
        // It would wait for a minute.
        let truncating = scope.spawn(|| file.set_len(0));
        assert!(lease.wait_recalled(LONG));
        other.close().unwrap();
        assert!(!lease.is_valid());
        assert_eq!(truncating.join().unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    });
    futures::executor::block_on(recall);
    drop((file, lease, volume));
}

/// A lease that its holder returned told nobody: a task that awaited its recall slept for ever, also when the
/// volume had been closed.
#[test]
fn a_returned_lease_ends_what_awaits_its_recall() {
    let (_, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    let lease = file.lease_layout(..).unwrap();
    let is_called = Arc::new(AtomicBool::new(false));
    let called = is_called.clone();
    lease.on_recall(move || called.store(true, Ordering::Relaxed));
    let mut recall = std::pin::pin!(lease.recalled());
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    assert!(recall.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(lease);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the task sleeps for ever");
    assert!(recall.poll(&mut Context::from_waker(&waker)).is_ready());
    assert!(!is_called.load(Ordering::Relaxed), "nobody has recalled it");
    assert_eq!(Arc::strong_count(&is_called), 1, "the call is kept");
}

/// Each task that had polled the recall of a lease left a waker there, until the recall. A holder that waits
/// for a recall or something else, again and again, used more and more memory, and each wait looked at all
/// wakers.
#[test]
fn a_recall_that_nobody_awaits_keeps_no_waker() {
    let (_, volume) = volume(LONG);
    let lease = of_eight_blocks(&volume).lease_layout(..).unwrap();
    let wakes = [(); 3].map(|()| Arc::new(Wakes::default()));
    let kept = || wakes.each_ref().map(|wakes| Arc::strong_count(wakes) - 1);
    let poll = |recall: &mut Recalled, of: usize| {
        let waker = Waker::from(wakes[of].clone());
        Pin::new(recall).poll(&mut Context::from_waker(&waker))
    };
    let (mut one, mut other) = (lease.recalled(), lease.recalled());
    for _ in 0..2 {
        assert!(poll(&mut one, 0).is_pending() && poll(&mut other, 1).is_pending());
    }
    assert_eq!(kept(), [1, 1, 0]);
    assert!(poll(&mut one, 2).is_pending(), "another task has it now");
    assert_eq!(kept(), [0, 1, 1]);
    drop(other);
    assert_eq!(kept(), [0, 0, 1]);
    volume.clone().close().unwrap();
    assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed)), [0, 0, 1]);
    assert!(poll(&mut one, 0).is_ready());
    assert_eq!(kept(), [0; 3]);
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A truncate that waited for a lease kept changes under way, so a freeze or a snapshot waited with it; the
/// changes that the freeze kept back were those of the holder, which then could not return the lease.
#[test]
fn an_operation_that_waits_holds_nothing() {
    let (_, volume) = volume(LONG);
    let file = of_eight_blocks(&volume);
    let lease = file.lease_layout(..).unwrap();
    std::thread::scope(|scope| {
        let truncating = scope.spawn(|| file.set_len(0).unwrap());
        assert!(lease.wait_recalled(LONG));
        volume.take_snapshot("s").unwrap();
        drop(volume.freeze().unwrap());
        file.append(&[1; 100]).unwrap();
        file.sync_all().unwrap();
        volume.rename("file", "other").unwrap();
        assert!(!truncating.is_finished() && lease.is_valid());
        drop(lease);
        truncating.join().unwrap();
    });
    assert_eq!(file.metadata().len(), 0);
}

/// A lease names so many extents; the next one goes on behind them.
#[test]
fn a_file_in_many_pieces_takes_several_leases() {
    let (device, volume) = volume(LONG);
    let file = file(&volume, "file");
    file.write_all_at(&blocks(0, 40, 1), 0).unwrap();
    (0..20).for_each(|n| file.punch_hole((2 * n + 1) * BLOCK as u64, BLOCK as u64).unwrap());
    let mut leases: Vec<LayoutLease> = Vec::new();
    let mut at = 0;
    while at < 40 * BLOCK as u64 {
        let lease = volume.inodes().lease_layout(file.inode(), at..u64::MAX, 7).unwrap();
        assert_eq!(lease.range().start, at);
        at = lease.range().end;
        leases.push(lease);
    }
    assert_eq!(leases.len(), 3);
    let bytes: Vec<u8> = leases.iter().flat_map(|lease| on_device(&device, lease.extents())).collect();
    assert!(bytes == read(&file));
    // Only what it covers is its own.
    drop(leases.pop());
    file.set_len(leases[1].range().end).unwrap();
    assert!(leases.iter().all(|lease| !lease.is_recalled()));
}

/// A volume has so many leases at most.
#[test]
fn leases_are_bounded() {
    let (_, volume) = volume(Duration::ZERO);
    let file = of_eight_blocks(&volume);
    let one = || file.lease_layout(..4096);
    let leases: Vec<LayoutLease> = (0..4096).map(|_| one().unwrap()).collect();
    assert_eq!(one().unwrap_err().kind(), ErrorKind::Busy);
    file.set_len(0).unwrap();
    assert!(leases.iter().all(|lease| !lease.is_valid()));
    assert_eq!(volume.metrics()["leases_held"], 0);
}

#[test]
fn a_volume_that_takes_no_changes_gives_no_leases() {
    let (device, volume) = volume(LONG);
    drop(of_eight_blocks(&volume));
    volume.close().unwrap();
    let volume = options(LONG).read_only(true).open_backend(device).unwrap();
    let file = OpenOptions::new().read(true).open(&volume, "file").unwrap();
    assert_eq!(file.lease_layout(..).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(volume.metrics()["leases_held"], 0);
}
