//! Small new data that is forced at once, through the journal: one write and one flush each; and homes that
//! the device refuses.

use crate::common::{BLOCK, file, flushes, new_volume, options};
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::internals::inspect::Image;
use quire::{ErrorKind, OpenOptions, Place, Volume};
use quire_base::{BlockNo, Result};
use quire_device::simulated::{CrashPolicy, Fault, FaultOp};
use quire_device::{Backend, Io, IoClass, IoOp, SimulatedBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn append(volume: &Volume, log: &InodeRef, byte: u8) {
    volume.inodes().append(log, &[byte; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
}

#[test]
fn a_durable_append_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    for n in 0..200 {
        let before = device.events(0..usize::MAX).len();
        append(&volume, &log, n as u8);
        assert_eq!(flushes(&device, before), 1, "append {n}");
        let image = device.crash(CrashPolicy::LoseAll);
        if n % 50 == 0 {
            let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
            let log = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
            let mut last = [0; BLOCK];
            after.inodes().read_at(&log, &mut last, log.size() - BLOCK as u64, IoFlags::empty()).unwrap();
            assert_eq!((log.size(), last[0]), ((1 + n as u64) * BLOCK as u64, n as u8));
        }
        volume.background_step().unwrap();
    }
}

/// Counts what passes: writes of the calling thread, writes handed to the device's own threads, flushes.
struct Watched {
    inner: Arc<SimulatedBackend>,
    written: AtomicUsize,
    submitted: AtomicUsize,
    flushed: AtomicUsize,
}

impl Watched {
    fn new(inner: Arc<SimulatedBackend>) -> Arc<Watched> {
        Arc::new(Watched {
            inner,
            written: AtomicUsize::new(0),
            submitted: AtomicUsize::new(0),
            flushed: AtomicUsize::new(0),
        })
    }

    fn counts(&self) -> [usize; 3] {
        [&self.written, &self.submitted, &self.flushed].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Backend for Watched {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.inner.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.flushed.fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        let writes = ios.iter().filter(|io| io.op == IoOp::Write).count();
        self.submitted.fetch_add(writes, Ordering::Relaxed);
        self.inner.submit(class, ios);
    }
}

/// A durable append ran at 0.6 of the bare file's speed: its data went to the completion thread and to a
/// finisher, and the caller looked for it with pauses of 100 us before it flushed.
#[test]
fn a_durable_append_needs_no_other_thread() {
    let (device, volume) = new_volume(16_384);
    volume.close().unwrap();
    let watched = Watched::new(device);
    let volume = options().open_backend(watched.clone()).unwrap();
    let log = file(&volume, "log");
    for n in 0..20 {
        let before = watched.counts();
        append(&volume, &log, n);
        let now = watched.counts();
        let [written, submitted, flushed] = std::array::from_fn(|at| now[at] - before[at]);
        assert_eq!([written, submitted, flushed], [1, 0, 1], "append {n}: the journal's write, and a flush");
        volume.background_step().unwrap();
    }
}

/// Appends that end inside a block, and the device's writes, requests and flushes of the last.
fn append_small(volume: &Volume, watched: &Watched, log: &InodeRef, bytes: &[u8]) -> [usize; 3] {
    let before = watched.counts();
    volume.inodes().append(log, bytes, IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
    let now = watched.counts();
    volume.background_step().unwrap();
    std::array::from_fn(|at| now[at] - before[at])
}

/// Every durable append of less than a block took two flushes: one behind the data, since nobody knew what
/// the block held past the end of the file, and one behind the record of the size.
#[test]
fn growth_inside_a_block_is_one_flush() {
    for bytes in [1, 100, 1000, 4120, 6000] {
        let (device, volume) = new_volume(16_384);
        volume.close().unwrap();
        let watched = Watched::new(device.clone());
        let volume = options().open_backend(watched.clone()).unwrap();
        let log = file(&volume, "log");
        for n in 0..50u8 {
            let [written, submitted, flushed] = append_small(&volume, &watched, &log, &vec![n + 1; bytes]);
            assert!(written <= 2, "append {n} of {bytes} bytes: {written} writes");
            assert_eq!((submitted, flushed), (0, 1), "append {n} of {bytes} bytes");
        }
        let image = device.crash(CrashPolicy::LoseAll);
        let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        let log = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
        let mut contents = vec![0; 50 * bytes];
        assert_eq!(after.inodes().read_at(&log, &mut contents, 0, IoFlags::empty()).unwrap(), 50 * bytes);
        let is_right = |(at, &byte): (usize, &u8)| usize::from(byte) == at / bytes + 1;
        assert!(contents.iter().enumerate().all(is_right), "{bytes} bytes");
    }
}

/// After a mount, a truncate inside the block, an allocation and a direct write it took two, since nobody
/// knew what the last block held.
#[test]
fn growth_inside_any_block_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    volume.inodes().write_at(&log, &[1; 3000], 0, IoFlags::DATASYNC).unwrap();
    volume.close().unwrap();
    let watched = Watched::new(device);
    let volume = options().open_backend(watched.clone()).unwrap();
    let log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
    let flushes = |bytes: &[u8]| append_small(&volume, &watched, &log, bytes)[2];
    assert_eq!([flushes(&[2; 10]), flushes(&[3; 10])], [1, 1]);
    volume.inodes().set_len(&log, 500).unwrap();
    assert_eq!([flushes(&[5; 10]), flushes(&[6; 10])], [1, 1]);
    volume.inodes().allocate(&log, quire::inodes::FallocateMode::KeepSize, 0, 100_000).unwrap();
    assert_eq!([flushes(&[8; 10]), flushes(&[9; BLOCK])], [1, 1]);
    volume.inodes().write_at(&log, &[10; BLOCK], 0, IoFlags::DIRECT).unwrap();
    volume.inodes().set_len(&log, 530).unwrap();
    assert_eq!([flushes(&[11; 10]), flushes(&[12; 10])], [1, 1]);
}

#[test]
fn a_new_small_file_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    for n in 0..50 {
        let new = file(&volume, &format!("new{n}"));
        volume.inodes().write_at(&new, &[n; 1000], 0, IoFlags::empty()).unwrap();
        let before = device.events(0..usize::MAX).len();
        volume.inodes().fsync(&new, false).unwrap();
        assert_eq!(flushes(&device, before), 1, "file {n}");
        volume.background_step().unwrap();
    }
}

/// Two logs that take turns lie in long runs, not block by block.
#[test]
fn logs_written_together_lie_apart() {
    let (_, volume) = new_volume(16_384);
    let logs = [file(&volume, "a"), file(&volume, "b")];
    for n in 0..400 {
        append(&volume, &logs[n % 2], n as u8);
        volume.background_step().unwrap();
    }
    for name in ["a", "b"] {
        let log = volume.open_file(name).unwrap();
        let runs = log.lease_layout(..).unwrap().extents().len();
        assert!(runs <= 10, "200 blocks lie in {runs} runs");
    }
}

/// Each overwrite of a snapshot's block looked for free blocks of its own, as a file does that grows: the
/// new blocks lay one in each 4 MiB.
#[test]
fn blocks_in_the_place_of_a_snapshots_lie_together() {
    let (_, volume) = new_volume(16_384);
    let data = file(&volume, "data");
    volume.inodes().write_at(&data, &vec![1; 2048 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    volume.take_snapshot("s").unwrap();
    let overwritten: Vec<u64> = (0..12).map(|n| 2000 - 100 * n).collect();
    for block in &overwritten {
        let at = block * BLOCK as u64;
        volume.inodes().write_at(&data, &[2; BLOCK], at, IoFlags::DATASYNC).unwrap();
    }
    let lease = volume.open_file("data").unwrap().lease_layout(..).unwrap();
    let found = lease.extents().iter().filter(|extent| extent.len == BLOCK as u64);
    let homes: Vec<u64> = found
        .map(|extent| match extent.place {
            Place::Device(at) => at,
            place => panic!("{place:?}"),
        })
        .collect();
    assert_eq!(homes.len(), overwritten.len());
    let span = (homes.iter().max().unwrap() - homes.iter().min().unwrap()) / BLOCK as u64;
    assert!(span < 200, "12 blocks lie in {span}");
}

/// The device takes no data from now on, as a sparse image on a full disk does.
fn refuse_data(device: &SimulatedBackend) {
    let fault = Fault::on(FaultOp::Write).class(IoClass::Data);
    device.inject(fault.times(u64::MAX).kind(ErrorKind::NoSpace));
}

/// A log with two durable appends whose homes the device refuses; what it takes again is up to the caller.
fn with_refused_homes() -> (Arc<SimulatedBackend>, Volume, InodeRef) {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    volume.checkpoint().unwrap();
    refuse_data(&device);
    append(&volume, &log, 1);
    append(&volume, &log, 2);
    (device, volume, log)
}

/// A home that could not be written ended all changes of the volume, though its content was durable in the
/// journal.
#[test]
fn a_refused_home_ends_nothing() {
    let (device, volume, log) = with_refused_homes();
    let error = volume.checkpoint().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("home"), "{error}");
    assert!(volume.failure().is_none());
    // Other files go on; new data hears of the error itself, instead of filling the journal.
    file(&volume, "other");
    volume.sync().unwrap();
    let refused = volume.inodes().append(&log, &[3; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    device.clear_faults();
    volume.checkpoint().unwrap();
    volume.inodes().fsync(&log, true).unwrap();
    volume.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    let found = volume.read("log").unwrap();
    let expected = [1, 2, 3].map(|byte| [byte; BLOCK]).concat();
    assert!(found == expected, "{} bytes", found.len());
}

/// Changes go on as long as the journal has room, fail with the device's error when it has none, and go on
/// when the device takes homes again.
#[test]
fn a_journal_that_is_full_for_want_of_homes_says_so() {
    let (device, volume, log) = with_refused_homes();
    let refused = (0..100_000).find_map(|n| {
        let name = format!("{n:0200}");
        let made = volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644));
        made.err().or_else(|| volume.inodes().remove_file(&volume.inodes().root(), name.as_bytes()).err())
    });
    let error = refused.expect("the journal has an end");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(volume.failure().is_none(), "{error}");
    device.clear_faults();
    file(&volume, "again");
    assert_eq!(log.size(), 2 * BLOCK as u64);
    volume.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    assert!(volume.read("log").unwrap() == [[1; BLOCK], [2; BLOCK]].concat());
    volume.metadata("again").unwrap();
}

/// An insert that had begun shut the volume down when the journal was full, though the device refused homes
/// only for a while.
#[test]
fn what_has_begun_outlasts_a_refusal() {
    const PIECES: u64 = 3000;
    let fill = |volume: &Volume, most: usize| {
        (0..most).find(|n| {
            let name = format!("{n:0200}");
            let made = volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644));
            made.is_err() || volume.inodes().remove_file(&volume.inodes().root(), name.as_bytes()).is_err()
        })
    };
    let prepare = || {
        let (device, volume) = new_volume(16_384);
        let (long, log) = (file(&volume, "long"), file(&volume, "log"));
        for n in 0..PIECES {
            volume.inodes().write_at(&long, &[1; BLOCK], 2 * n * BLOCK as u64, IoFlags::empty()).unwrap();
        }
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        volume.checkpoint().unwrap();
        refuse_data(&device);
        append(&volume, &log, 1);
        (device, volume, long)
    };
    let (_, volume, _) = prepare();
    let full = fill(&volume, 100_000).expect("the journal has an end");
    let (device, volume, long) = prepare();
    assert_eq!(fill(&volume, full - 20), None);
    let heals = std::thread::spawn({
        let device = device.clone();
        move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            device.clear_faults();
        }
    });
    let start = std::time::Instant::now();
    OpenOptions::new().write(true).open(&volume, "long").unwrap().insert_range(0, BLOCK as u64).unwrap();
    assert!(start.elapsed().as_millis() >= 100, "it never waited");
    heals.join().unwrap();
    assert!(volume.failure().is_none());
    assert_eq!(long.size(), 2 * PIECES * BLOCK as u64);
    drop(long);
    volume.close().unwrap();
    options().open_backend(device).unwrap();
}

/// Content of a file that is gone needs no home.
#[test]
fn deleting_the_file_frees_a_journal_from_its_homes() {
    let (device, volume, log) = with_refused_homes();
    volume.checkpoint().unwrap_err();
    drop(log);
    volume.inodes().remove_file(&volume.inodes().root(), b"log").unwrap();
    volume.drain_orphans();
    volume.checkpoint().unwrap();
    volume.close().unwrap();
    options().open_backend(device).unwrap();
}

/// A bad sector under a home hid what the journal had of it: reads asked the device first, and its error was
/// theirs.
#[test]
fn what_the_journal_has_can_be_read_where_the_device_cannot() {
    let (device, volume, log) = with_refused_homes();
    drop(log);
    volume.close().unwrap_err();
    device.inject(Fault::on(FaultOp::Read).class(IoClass::Data).times(u64::MAX));
    let volume = options().read_only(true).open_backend(device.clone()).unwrap();
    assert!(volume.read("log").unwrap() == [[1; BLOCK], [2; BLOCK]].concat());
    volume.close().unwrap();
    // A file of which the device has the rest.
    device.clear_faults();
    let volume = options().open_backend(device.clone()).unwrap();
    let log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
    volume.checkpoint().unwrap();
    volume.checkpoint().unwrap();
    refuse_data(&device);
    append(&volume, &log, 3);
    let number = log.number();
    drop(log);
    volume.close().unwrap_err();
    device.clear_faults();
    let extents = Image::load(device.clone()).unwrap().extents(number).unwrap();
    let extent = extents.iter().find(|extent| extent.file_end() == 3).unwrap();
    let home = extent.disk_block.0 + u64::from(extent.len) - 1;
    device.inject(Fault::on(FaultOp::Read).region(home..home + 1).times(u64::MAX));
    let volume = options().read_only(true).open_backend(device.clone()).unwrap();
    assert!(volume.read("log").unwrap() == [[1; BLOCK], [2; BLOCK], [3; BLOCK]].concat());
}

/// A close that cannot write homes says so; a mount that cannot, too, and either loses nothing. A volume that
/// is opened read-only shows everything.
#[test]
fn a_mount_needs_the_homes_and_a_read_only_one_does_not() {
    let (device, volume, log) = with_refused_homes();
    drop(log);
    assert_eq!(volume.close().unwrap_err().kind(), ErrorKind::NoSpace);
    let refused = options().open_backend(device.clone()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    let expected = [[1; BLOCK], [2; BLOCK]].concat();
    let volume = options().read_only(true).open_backend(device.clone()).unwrap();
    assert!(volume.read("log").unwrap() == expected);
    volume.close().unwrap();
    device.clear_faults();
    let volume = options().open_backend(device).unwrap();
    assert!(volume.read("log").unwrap() == expected);
}
