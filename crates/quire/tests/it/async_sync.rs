//! Asynchronous fsyncs: as futures and as completions, lazy, withdrawn, more than there is room for, and on a
//! volume that ends meanwhile.

use quire::inodes::{Create, InodeRef, IoFlags};
use quire::internals::sync_queue::SYNCS_MAX;
use quire::{
    Durability, Error, ErrorKind, FormatOptions, OpenOptions, Result, SyncOptions, Syncing, Volume,
    VolumeOptions,
};
use quire_base::random::Random;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Hold};
use quire_device::{IoClass, SimulatedBackend};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Longer than any test.
const NEVER: Durability = Durability::Lazy(Duration::from_secs(50_000));

/// Nothing is forced behind the test's back.
fn options() -> VolumeOptions {
    VolumeOptions::new().cache_bytes(32 << 20).commit_seconds(100_000)
}

fn new_volume() -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(65_536));
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    device.stop_recording();
    let volume = options().open_backend(device.clone()).unwrap();
    (device, volume)
}

fn file(volume: &Volume, name: &str) -> InodeRef {
    let made =
        volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644)).unwrap();
    volume.inodes().write_at(&made, &[name.as_bytes()[0]; BLOCK], 0, IoFlags::empty()).unwrap();
    made
}

fn files(volume: &Volume, count: usize) -> Vec<InodeRef> {
    (0..count).map(|n| file(volume, &format!("f{n}"))).collect()
}

/// Whether a power cut now leaves these files with their contents.
fn are_durable(device: &SimulatedBackend, names: impl Iterator<Item = String>) -> bool {
    let image = device.crash(CrashPolicy::LoseAll);
    let threadless = options().threads(false);
    let after = threadless.open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    names.into_iter().all(|name| {
        let Ok(found) = after.inodes().lookup(&after.inodes().root(), name.as_bytes()) else { return false };
        let mut contents = vec![0; 2 * BLOCK];
        let read = after.inodes().read_at(&found, &mut contents, 0, IoFlags::empty()).unwrap();
        contents[..read] == [name.as_bytes()[0]; BLOCK]
    })
}

fn under_way(volume: &Volume) -> u64 {
    volume.metrics()["syncs_under_way"]
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets everything go, now and from now on.
fn let_go(device: &SimulatedBackend) {
    device.set_hold(Hold::Nothing);
    device.release_all(&mut Random::seeded(0));
}

/// The smallest executor: tasks by number, and the numbers of those that were woken.
struct Woken {
    number: usize,
    woken: Arc<Mutex<VecDeque<usize>>>,
    thread: std::thread::Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push_back(self.number);
        self.thread.unpark();
    }
}

/// Polls each when it is woken, until all have ended or `look` says that it is enough; gives what has ended.
fn run(futures: &mut [Option<Syncing>], mut look: impl FnMut(usize) -> bool) -> Vec<Result<()>> {
    let woken = Arc::new(Mutex::new((0..futures.len()).collect::<VecDeque<_>>()));
    let mut outcomes = Vec::new();
    while outcomes.len() < futures.len() && !look(outcomes.len()) {
        let next = woken.lock().unwrap().pop_front();
        let Some(number) = next else {
            std::thread::park_timeout(Duration::from_millis(10));
            continue;
        };
        let Some(future) = &mut futures[number] else { continue };
        let waker: Waker =
            Arc::new(Woken { number, woken: woken.clone(), thread: std::thread::current() }).into();
        if let Poll::Ready(outcome) = Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            outcomes.push(outcome);
            futures[number] = None;
        }
    }
    outcomes
}

#[test]
fn futures_of_many_files_are_durable_when_they_are_ready() {
    let (device, volume) = new_volume();
    let files = files(&volume, 300);
    let names = || (0..300).map(|n| format!("f{n}"));
    let violations = device.violations().len();
    let mut each: Vec<_> =
        files.iter().map(|file| Some(volume.inodes().fsync_async(file, &SyncOptions::new()))).collect();
    assert_eq!(run(&mut each, |_| false).into_iter().collect::<Result<Vec<_>>>().unwrap().len(), 300);
    assert!(are_durable(&device, names()));
    for file in &files {
        volume.inodes().write_at(file, &[b'f'; BLOCK], 0, IoFlags::empty()).unwrap();
    }
    volume.inodes().fsync_many_async(&files, &SyncOptions::new().data_only(true)).wait().unwrap();
    file(&volume, "last");
    volume.sync_async().wait().unwrap();
    assert!(are_durable(&device, names().chain(["last".to_owned()])));
    until(|| under_way(&volume) == 0);
    assert_eq!(device.violations().len(), violations);
    volume.close().unwrap();
}

#[test]
fn a_range_is_made_durable() {
    let (device, volume) = new_volume();
    let table = file(&volume, "t");
    volume.inodes().write_at(&table, &[b't'; 64 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.inodes().fsync(&table, false).unwrap();
    volume.inodes().write_at(&table, &[b'u'; 64 * BLOCK], 0, IoFlags::empty()).unwrap();
    let how = SyncOptions::new().data_only(true).range(8 * BLOCK as u64, BLOCK as u64 + 1);
    volume.inodes().fsync_async(&table, &how).wait().unwrap();
    let image = device.crash(CrashPolicy::LoseAll);
    let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let mut contents = vec![0; 64 * BLOCK];
    let found = after.inodes().lookup(&after.inodes().root(), b"t").unwrap();
    after.inodes().read_at(&found, &mut contents, 0, IoFlags::empty()).unwrap();
    let new: Vec<usize> = (0..64).filter(|block| contents[block * BLOCK] == b'u').collect();
    assert_eq!(new, [8, 9]);
    volume.close().unwrap();
}

#[test]
fn a_lazy_one_is_served_by_the_force_of_another() {
    let (device, volume) = new_volume();
    let lazy = files(&volume, 50);
    let waiting: Vec<Syncing> = lazy
        .iter()
        .map(|file| volume.inodes().fsync_async(file, &SyncOptions::new().durability(NEVER)))
        .collect();
    let other = file(&volume, "other");
    // The first force may come before the lazy ones have been seen to.
    while waiting.iter().any(|one| !one.is_over()) {
        volume.inodes().write_at(&other, &[b'o'; BLOCK], 0, IoFlags::empty()).unwrap();
        volume.inodes().set_len(&other, BLOCK as u64).unwrap();
        volume.inodes().fsync(&other, false).unwrap();
        std::thread::yield_now();
    }
    for one in waiting {
        one.wait().unwrap();
    }
    assert!(are_durable(&device, (0..50).map(|n| format!("f{n}"))));
    let metrics = volume.metrics();
    assert_eq!((metrics["lazy_syncs_served_total"], metrics["lazy_syncs_due_total"]), (50, 0));
    volume.close().unwrap();
}

/// Data written in place has no record: a flush serves it.
#[test]
fn a_lazy_overwrite_is_served_by_a_flush() {
    let (device, volume) = new_volume();
    let (table, other) = (file(&volume, "t"), file(&volume, "o"));
    volume.sync().unwrap();
    volume.inodes().write_at(&table, &[b't'; BLOCK], 0, IoFlags::empty()).unwrap();
    let lazy = volume.inodes().fsync_async(&table, &SyncOptions::new().data_only(true).durability(NEVER));
    while !lazy.is_over() {
        volume.inodes().write_at(&other, &[b'o'; BLOCK], 0, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&other, true).unwrap();
    }
    lazy.wait().unwrap();
    assert!(are_durable(&device, ["t".to_owned()].into_iter()));
    assert_eq!(volume.metrics()["lazy_syncs_due_total"], 0);
    volume.close().unwrap();
}

/// A checkpoint forces the journal and flushes, but told nobody: a lazy fsync waited on, for its time to be
/// up.
#[test]
fn a_lazy_one_is_served_by_a_checkpoint() {
    let (device, volume) = new_volume();
    let lazy = volume.inodes().fsync_async(&file(&volume, "t"), &SyncOptions::new().durability(NEVER));
    until(|| volume.metrics()["syncs_waiting"] == 1);
    volume.checkpoint().unwrap();
    lazy.wait().unwrap();
    assert!(are_durable(&device, ["t".to_owned()].into_iter()));
    assert_eq!(volume.metrics()["lazy_syncs_due_total"], 0);
    volume.close().unwrap();
}

#[test]
fn a_lazy_one_forces_when_its_time_is_up_and_takes_the_others_along() {
    let (device, volume) = new_volume();
    let lazy = files(&volume, 20);
    let others: Vec<Syncing> = lazy[1..]
        .iter()
        .map(|file| volume.inodes().fsync_async(file, &SyncOptions::new().durability(NEVER)))
        .collect();
    let soon = Durability::Lazy(Duration::from_millis(30));
    volume.inodes().fsync_async(&lazy[0], &SyncOptions::new().durability(soon)).wait().unwrap();
    assert!(are_durable(&device, ["f0".to_owned()].into_iter()));
    let metrics = volume.metrics();
    assert_eq!(metrics["lazy_syncs_served_total"] + metrics["lazy_syncs_due_total"], 20 - under_way(&volume));
    assert!(metrics["lazy_syncs_due_total"] > 0 || metrics["lazy_syncs_served_total"] > 0);
    // The end serves those that came too late for that force.
    volume.close().unwrap();
    for other in others {
        other.wait().unwrap();
    }
    assert!(are_durable(&device, (0..20).map(|n| format!("f{n}"))));
}

/// A future that is dropped: before it began, while it is queued, in a syncer's hands, waiting for a force.
#[test]
fn withdrawn_ones_leave_nothing_behind_and_harm_nobody() {
    let (device, volume) = new_volume();
    let files = files(&volume, 400);
    device.set_hold(Hold::Everything);
    let mut all: Vec<Option<Syncing>> = files
        .iter()
        .enumerate()
        .map(|(n, file)| {
            let durability = if n % 4 == 3 { NEVER } else { Durability::Now };
            Some(volume.inodes().fsync_async(file, &SyncOptions::new().durability(durability)))
        })
        .collect();
    // Half of them have been polled, and their wakers are known.
    let (polled, _) = all.split_at_mut(200);
    let mut polls = 0;
    run(polled, |_| {
        polls += 1;
        polls > 250
    });
    until(|| device.held() > 0);
    (0..400).filter(|n| n % 2 == 1).for_each(|n| all[n] = None);
    let_go(&device);
    let mut kept: Vec<Option<Syncing>> = all.into_iter().flatten().map(Some).collect();
    assert_eq!(kept.len(), 200);
    assert!(run(&mut kept, |_| false).iter().all(Result::is_ok));
    until(|| under_way(&volume) == 0);
    assert!(are_durable(&device, (0..400).step_by(2).map(|n| format!("f{n}"))));
    // Nothing holds the inodes: they are freed, and their blocks with them.
    let free = volume.statfs().free;
    for (n, file) in files.into_iter().enumerate() {
        volume.inodes().remove_file(&volume.inodes().root(), format!("f{n}").as_bytes()).unwrap();
        drop(file);
    }
    volume.drain_orphans();
    volume.sync().unwrap();
    assert!(volume.statfs().free >= free + 400);
    volume.close().unwrap();
}

#[test]
fn a_withdrawn_lazy_one_no_longer_waits() {
    let (_, volume) = new_volume();
    let table = file(&volume, "t");
    for _ in 0..100 {
        drop(volume.inodes().fsync_async(&table, &SyncOptions::new().durability(NEVER)));
        let waiting = volume.inodes().fsync_async(&table, &SyncOptions::new().durability(NEVER));
        until(|| under_way(&volume) <= 1);
        drop(waiting);
    }
    until(|| under_way(&volume) == 0);
    volume.close().unwrap();
}

/// More than there is room for, a million of them: no more than there is room for are under way, the others
/// stand in line, and all end.
#[test]
fn a_million_pending_ones_are_bounded() {
    const FILES: usize = 50;
    let (device, volume) = new_volume();
    let files = files(&volume, FILES);
    device.set_hold(Hold::Everything);
    let group = |count: usize| {
        volume.inodes().fsync_many_async(files.iter().cycle().take(count), &SyncOptions::new())
    };
    // Some by themselves, the rest in groups, each of which is more than there is room for.
    let mut futures: Vec<Option<Syncing>> = (0..20_000).map(|_| Some(group(1))).collect();
    futures.extend((0..14).map(|_| Some(group(70_000))));
    assert_eq!(under_way(&volume), SYNCS_MAX as u64);
    // Dropped while they stand in line, some of them polled.
    futures.extend((0..1000).map(|_| Some(group(1))));
    let mut polls = 0;
    let (_, last) = futures.split_at_mut(20_014);
    run(last, |_| {
        polls += 1;
        polls > 1500
    });
    let_go(&device);
    futures.truncate(20_014);
    let mut highest = 0;
    let outcomes = run(&mut futures, |_| {
        highest = highest.max(under_way(&volume));
        false
    });
    assert_eq!(outcomes.len(), 20_014);
    assert!(outcomes.iter().all(Result::is_ok) && highest <= SYNCS_MAX as u64);
    until(|| under_way(&volume) == 0);
    assert!(are_durable(&device, (0..FILES).map(|n| format!("f{n}"))));
    volume.close().unwrap();
}

/// A future beyond what there is room for begins when others have ended, whether anybody polls it or not.
#[test]
fn what_stands_in_line_begins_by_itself() {
    let (device, volume) = new_volume();
    let table = file(&volume, "t");
    device.set_hold(Hold::Everything);
    let full = volume.inodes().fsync_many_async(std::iter::repeat_n(&table, SYNCS_MAX), &SyncOptions::new());
    let last = volume.inodes().fsync_async(&table, &SyncOptions::new());
    assert_eq!(under_way(&volume), SYNCS_MAX as u64);
    let_go(&device);
    until(|| last.is_over());
    full.wait().unwrap();
    last.wait().unwrap();
    volume.close().unwrap();
}

/// Callers that leave a callback instead of holding a future are kept waiting.
#[test]
fn completions_are_admitted_as_there_is_room() {
    let (device, volume) = new_volume();
    let table = file(&volume, "t");
    device.set_hold(Hold::Everything);
    let ended = Arc::new(AtomicUsize::new(0));
    let count = SYNCS_MAX + 5000;
    std::thread::scope(|scope| {
        let (begun, last) = mpsc::channel();
        let (asked, volume, table) = (ended.clone(), &volume, &table);
        scope.spawn(move || {
            for n in 0..count {
                if n == SYNCS_MAX {
                    begun.send(()).unwrap();
                }
                let ended = asked.clone();
                let done = move |outcome: Result<()>| {
                    outcome.unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                };
                volume.inodes().fsync_then(table, &SyncOptions::new(), Box::new(done));
            }
        });
        last.recv().unwrap();
        assert!(under_way(volume) <= SYNCS_MAX as u64);
        let_go(&device);
    });
    until(|| ended.load(Ordering::Relaxed) == count && under_way(&volume) == 0);
    volume.close().unwrap();
}

/// What panics in a callback would have taken a syncer along, and with the second one every later fsync.
#[test]
fn a_callback_that_panics_stays_alone() {
    let (_, volume) = new_volume();
    let table = file(&volume, "t");
    for _ in 0..4 {
        volume.inodes().fsync_then(
            &table,
            &SyncOptions::new(),
            Box::new(|_| panic!("a callback of the test")),
        );
    }
    volume.inodes().fsync_async(&table, &SyncOptions::new()).wait().unwrap();
    until(|| under_way(&volume) == 0);
    volume.close().unwrap();
}

/// Wakers that panic took the syncer along that had woken them, and fsyncs in line behind them never began.
#[test]
fn a_waker_that_panics_stays_alone() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the test");
        }
    }
    let (device, volume) = new_volume();
    let table = file(&volume, "t");
    device.set_hold(Hold::Everything);
    let full: Vec<Syncing> =
        (0..SYNCS_MAX).map(|_| volume.inodes().fsync_async(&table, &SyncOptions::new())).collect();
    let mut in_line: Vec<Option<Syncing>> =
        (0..8).map(|_| Some(volume.inodes().fsync_async(&table, &SyncOptions::new()))).collect();
    let panics: Waker = Arc::new(Panics).into();
    for future in in_line.iter_mut().flatten() {
        assert!(Pin::new(future).poll(&mut Context::from_waker(&panics)).is_pending());
    }
    let mut last = [Some(volume.inodes().fsync_async(&table, &SyncOptions::new()))];
    let mut polls = 0;
    run(&mut last, |_| {
        polls += 1;
        polls > 1
    });
    let_go(&device);
    assert!(run(&mut last, |_| false).iter().all(Result::is_ok));
    for one in full.into_iter().chain(in_line.into_iter().flatten()) {
        one.wait().unwrap();
    }
    until(|| under_way(&volume) == 0);
    volume.close().unwrap();
}

fn thousands(volume: &Volume, files: &[InodeRef]) -> Vec<Syncing> {
    let how =
        |n: usize| SyncOptions::new().durability(if n.is_multiple_of(3) { NEVER } else { Durability::Now });
    (0..5000).map(|n| volume.inodes().fsync_async(&files[n % files.len()], &how(n))).collect()
}

#[test]
fn an_error_of_the_journal_ends_thousands() {
    let (device, volume) = new_volume();
    let files = files(&volume, 100);
    device.set_hold(Hold::Everything);
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal).times(u64::MAX));
    let all = thousands(&volume, &files);
    let_go(&device);
    let outcomes: Vec<Error> = all.into_iter().map(|one| one.wait().unwrap_err()).collect();
    assert!(outcomes.iter().all(|error| error.kind() == ErrorKind::Shutdown), "{:?}", outcomes[0]);
    let late = volume.inodes().fsync_async(&files[0], &SyncOptions::new().durability(NEVER));
    assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Shutdown);
    until(|| under_way(&volume) == 0);
    let _ = volume.close();
}

/// Lazy ones wait for forces of others: when the volume fails nobody makes one any more.
#[test]
fn an_error_ends_those_that_wait_for_others() {
    let (device, volume) = new_volume();
    let files = files(&volume, 10);
    let lazy: Vec<Syncing> = files
        .iter()
        .map(|file| volume.inodes().fsync_async(file, &SyncOptions::new().durability(NEVER)))
        .collect();
    // The data of all has been written, and only records are left to force.
    until(|| volume.metrics()["syncs_waiting"] == 10);
    device.inject(Fault::on(FaultOp::Flush).times(u64::MAX));
    assert!(volume.sync().is_err());
    for one in lazy {
        assert_eq!(one.wait().unwrap_err().kind(), ErrorKind::Shutdown);
    }
    let _ = volume.close();
}

#[test]
fn closing_ends_thousands() {
    let (device, volume) = new_volume();
    let files = files(&volume, 100);
    let all = thousands(&volume, &files);
    drop(files);
    let other = volume.clone();
    volume.close().unwrap();
    // In order: what was asked for before is durable.
    for one in all {
        one.wait().unwrap();
    }
    assert!(are_durable(&device, (0..100).map(|n| format!("f{n}"))));
    assert_eq!(other.sync_async().wait().unwrap_err().kind(), ErrorKind::Shutdown);
}

#[test]
fn handles_that_cannot_write_and_volumes_that_are_closed() {
    let (device, volume) = new_volume();
    let writer = OpenOptions::new().write(true).create(true).open(&volume, "f").unwrap();
    writer.write_all_at(&[b'f'; BLOCK], 0).unwrap();
    // As with POSIX, any handle will do.
    let reader = volume.open_file("f").unwrap();
    reader.sync_all_async().wait().unwrap();
    assert!(are_durable(&device, ["f".to_owned()].into_iter()));
    writer.write_all_at(&[b'f'; BLOCK], 0).unwrap();
    // The handle is closed, and the file unlinked, before the fsync has ended.
    let left = writer.sync_all_async();
    drop((writer, reader));
    volume.remove_file("f").unwrap();
    left.wait().unwrap();
    let last = file(&volume, "last");
    let other = volume.clone();
    volume.close().unwrap();
    assert_eq!(other.inodes().fsync(&last, false).unwrap_err().kind(), ErrorKind::Shutdown);
    let refused = other.inodes().fsync_async(&last, &SyncOptions::new().durability(NEVER)).wait();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Shutdown);
    let (tell, told) = mpsc::channel();
    other.inodes().fsync_then(
        &last,
        &SyncOptions::new(),
        Box::new(move |outcome| tell.send(outcome).unwrap()),
    );
    assert_eq!(told.recv().unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    // Paths had no root to begin at, and the call panicked.
    assert_eq!(other.write("another", "text").unwrap_err().kind(), ErrorKind::Shutdown);
    assert!(other.metadata("last").is_ok_and(|found| found.is_file()));
}

/// A volume that is opened read-only has no syncers: an asynchronous fsync on it was queued and never ended.
#[test]
fn a_read_only_volume_has_nothing_to_sync() {
    let (device, volume) = new_volume();
    file(&volume, "f");
    volume.close().unwrap();
    let only = options().read_only(true);
    let volume = only.open_backend(device).unwrap();
    let found = volume.resolve("f").unwrap();
    for durability in [Durability::Now, NEVER] {
        volume.inodes().fsync_async(&found, &SyncOptions::new().durability(durability)).wait().unwrap();
    }
    let (tell, told) = mpsc::channel();
    volume.inodes().fsync_then(
        &found,
        &SyncOptions::new(),
        Box::new(move |outcome| tell.send(outcome).unwrap()),
    );
    told.recv().unwrap().unwrap();
    volume.sync_async().wait().unwrap();
    volume.close().unwrap();
}
