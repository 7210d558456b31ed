//! Small data that is forced at once, in blocks zeroed ahead: one flush each, nothing foreign, and space that
//! stays exact.

use crate::common::{BLOCK, file, flushes, new_volume, options};
use quire::inodes::{InodeRef, IoFlags};
use quire::{ErrorKind, Volume};
use quire_base::{BlockNo, Result};
use quire_device::simulated::{CrashPolicy, Event, Fault, FaultOp};
use quire_device::{Backend, Io, IoClass, IoOp, SimulatedBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn append(volume: &Volume, log: &InodeRef, byte: u8) {
    volume.inodes().append(log, &[byte; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
}

/// Appends until blocks are zeroed ahead and a flush has covered them.
fn warm_up(volume: &Volume, log: &InodeRef) {
    for n in 0..4 {
        append(volume, log, n);
        volume.background_step().unwrap();
    }
}

#[test]
fn a_durable_append_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    warm_up(&volume, &log);
    for n in 0..200 {
        let before = device.events(0..usize::MAX).len();
        let ahead = volume.metrics()["records_ahead_total"];
        append(&volume, &log, n as u8);
        assert_eq!(
            (flushes(&device, before), volume.metrics()["records_ahead_total"] - ahead),
            (1, 1),
            "append {n}"
        );
        let image = device.crash(CrashPolicy::LoseAll);
        if n % 50 == 0 {
            let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
            let log = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
            let mut last = [0; BLOCK];
            after.inodes().read_at(&log, &mut last, log.size() - BLOCK as u64, IoFlags::empty()).unwrap();
            assert_eq!((log.size(), last[0]), ((5 + n as u64) * BLOCK as u64, n as u8));
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
    warm_up(&volume, &log);
    for n in 0..20 {
        let before = watched.counts();
        append(&volume, &log, n);
        let now = watched.counts();
        let [written, submitted, flushed] = std::array::from_fn(|at| now[at] - before[at]);
        assert_eq!([written, submitted, flushed], [2, 0, 1], "append {n}: data and journal, and a flush");
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
        warm_up(&volume, &file(&volume, "other"));
        let log = file(&volume, "log");
        for n in 0..100u8 {
            let [written, submitted, flushed] = append_small(&volume, &watched, &log, &vec![n + 1; bytes]);
            assert!(written <= 3, "append {n} of {bytes} bytes: {written} writes");
            assert_eq!((submitted, flushed), (0, 1), "append {n} of {bytes} bytes");
        }
        let image = device.crash(CrashPolicy::LoseAll);
        let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        let log = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
        let mut contents = vec![0; 100 * bytes];
        assert_eq!(after.inodes().read_at(&log, &mut contents, 0, IoFlags::empty()).unwrap(), 100 * bytes);
        let is_right = |(at, &byte): (usize, &u8)| usize::from(byte) == at / bytes + 1;
        assert!(contents.iter().enumerate().all(is_right), "{bytes} bytes");
    }
}

/// What the last block holds is not known after a mount, nor after a truncate inside it: the first append
/// takes two flushes.
#[test]
fn growth_inside_an_unknown_block_is_two_flushes_once() {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    volume.inodes().write_at(&log, &[1; 3000], 0, IoFlags::DATASYNC).unwrap();
    volume.close().unwrap();
    let watched = Watched::new(device);
    let volume = options().open_backend(watched.clone()).unwrap();
    let log = volume.inodes().lookup(&volume.inodes().root(), b"log").unwrap();
    let flushes = |bytes: &[u8]| append_small(&volume, &watched, &log, bytes)[2];
    assert_eq!([flushes(&[2; 10]), flushes(&[3; 10]), flushes(&[4; 10])], [2, 1, 1]);
    volume.inodes().set_len(&log, 500).unwrap();
    assert_eq!([flushes(&[5; 10]), flushes(&[6; 10]), flushes(&[7; 10])], [2, 1, 1]);
    volume.inodes().allocate(&log, quire::inodes::FallocateMode::KeepSize, 0, 100_000).unwrap();
    assert_eq!([flushes(&[8; 10]), flushes(&[9; 10])], [2, 1]);
    volume.inodes().write_at(&log, &[10; BLOCK], 0, IoFlags::DIRECT).unwrap();
    volume.inodes().set_len(&log, 530).unwrap();
    assert_eq!([flushes(&[11; 10]), flushes(&[12; 10])], [2, 1]);
}

#[test]
fn a_new_small_file_is_one_flush() {
    let (device, volume) = new_volume(16_384);
    let log = file(&volume, "log");
    warm_up(&volume, &log);
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
    let (device, volume) = new_volume(16_384);
    let logs = [file(&volume, "a"), file(&volume, "b")];
    for n in 0..400 {
        append(&volume, &logs[n % 2], n as u8);
        volume.background_step().unwrap();
    }
    let mut next = [0; 2];
    let mut jumps = 0;
    for event in device.events(0..usize::MAX) {
        if let Event::WriteSubmitted { class: Some(IoClass::Data), at, contents, .. } = event
            && let [Some(block)] = &contents[..]
        {
            let log = usize::from(block[0] % 2);
            jumps += u32::from(at.0 != next[log]);
            next[log] = at.0 + 1;
        }
    }
    assert!(jumps <= 40, "400 blocks lie in {jumps} runs");
}

/// What is zeroed ahead is free space: it is counted, and the last block can be had.
#[test]
fn the_reserve_is_free_space() {
    let (device, volume) = new_volume(8192);
    let log = file(&volume, "log");
    let free = volume.statfs().available;
    warm_up(&volume, &log);
    assert!(volume.metrics()["records_ahead_total"] > 0);
    let used = volume.inodes().metadata(&log).blocks() / 8;
    assert_eq!(volume.statfs().available, free - used, "of a reserve that is not empty");
    // Every block that statfs promises can be had, those of the reserve too.
    let hog = file(&volume, "hog");
    let most = volume.statfs().available;
    volume
        .inodes()
        .allocate(&hog, quire::inodes::FallocateMode::Allocate, 0, (most - 2048) * BLOCK as u64)
        .unwrap();
    let delayed = file(&volume, "delayed");
    let error = (0..2048 * BLOCK as u64)
        .step_by(BLOCK)
        .find_map(|at| volume.inodes().write_at(&delayed, &[1; BLOCK], at, IoFlags::empty()).err())
        .expect("the volume has an end");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(volume.statfs().available <= 1, "{} blocks are left", volume.statfs().available);
    drop((hog, delayed));
    reopened_is_as_before(device, volume, &log);
}

/// The volume as it is opened again has the free space that it had.
fn reopened_is_as_before(device: Arc<SimulatedBackend>, volume: Volume, log: &InodeRef) {
    volume.inodes().remove_file(&volume.inodes().root(), b"delayed").unwrap();
    volume.drain_orphans();
    volume.sync().unwrap();
    append(&volume, log, 7);
    volume.checkpoint().unwrap();
    volume.sync().unwrap();
    let free = volume.statfs().free;
    volume.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    assert_eq!(volume.statfs().free, free);
}

/// The record stands when the data cannot be written: the fsync fails, the data stays dirty, nothing is
/// promised twice.
#[test]
fn data_that_fails_behind_its_record_is_written_again() {
    let (device, volume) = new_volume(8192);
    let log = file(&volume, "log");
    warm_up(&volume, &log);
    volume.background_step().unwrap();
    let ahead = volume.metrics()["records_ahead_total"];
    let free = volume.statfs().available;
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Data));
    let outcome = volume.inodes().append(&log, &[9; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(volume.metrics()["records_ahead_total"], ahead + 1);
    assert_eq!(volume.statfs().available, free - 1);
    volume.inodes().fsync(&log, true).unwrap();
    assert_eq!(volume.statfs().available, free - 1);
    let image = device.crash(CrashPolicy::LoseAll);
    let after = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let found = after.inodes().lookup(&after.inodes().root(), b"log").unwrap();
    let mut last = [0; BLOCK];
    after.inodes().read_at(&found, &mut last, 4 * BLOCK as u64, IoFlags::empty()).unwrap();
    assert_eq!((found.size(), last[0]), (5 * BLOCK as u64, 9));
    file(&volume, "delayed");
    reopened_is_as_before(device, volume, &log);
}
