//! Discards hold up nobody.
//!
//! The thread that forced the journal issued the discards of what had become free, under the checkpoint's
//! lock: deleting a large file stalled the fsync of an unrelated one for as long as the device took. A writer
//! on a full volume got ENOSPC meanwhile.

use crate::common::{BLOCK, file, new_volume, options};
use quire::inodes::IoFlags;
use quire::{FormatOptions, Volume};
use quire_base::{BlockNo, Result};
use quire_device::simulated::CrashPolicy;
use quire_device::{Backend, Io, IoClass, SimulatedBackend};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// So long a discard is held at most: a test that comes to this has failed.
const HELD_MAX: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Gate {
    is_open: bool,
    waiting: usize,
    given_up: bool,
}

/// A device whose discards wait for the test.
struct Slow {
    inner: SimulatedBackend,
    gate: Mutex<Gate>,
    changed: Condvar,
}

impl Slow {
    fn set_open(&self, is_open: bool) {
        self.gate.lock().unwrap().is_open = is_open;
        self.changed.notify_all();
    }

    fn await_discard(&self) {
        let gate = self.gate.lock().unwrap();
        drop(self.changed.wait_while(gate, |gate| gate.waiting == 0 && !gate.given_up).unwrap());
    }

    fn has_given_up(&self) -> bool {
        self.gate.lock().unwrap().given_up
    }
}

impl Backend for Slow {
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
        self.inner.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting += 1;
        self.changed.notify_all();
        let held = self.changed.wait_timeout_while(gate, HELD_MAX, |gate| !gate.is_open);
        let (mut gate, timeout) = held.unwrap();
        gate.waiting -= 1;
        gate.given_up |= timeout.timed_out();
        self.changed.notify_all();
        drop(gate);
        self.inner.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        self.inner.submit(class, ios);
    }
}

fn slow_volume(blocks: u64) -> (Arc<Slow>, Volume) {
    let slow = Arc::new(Slow {
        inner: SimulatedBackend::new(blocks),
        gate: Mutex::new(Gate::default()),
        changed: Condvar::new(),
    });
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20);
    format.format_backend(slow.clone()).unwrap();
    let how = options().threads(true).discard(true);
    (slow.clone(), how.open_backend(slow).unwrap())
}

/// What a crash may bring back is not discarded: the blocks of a file whose removal is not durable yet.
#[test]
fn a_trim_leaves_what_a_crash_brings_back() {
    let (device, volume) = new_volume(8192);
    device.set_discard_pattern(Some(0xdd));
    volume.write("gone", vec![6; 500 * BLOCK]).unwrap();
    volume.sync().unwrap();
    volume.remove_file("gone").unwrap();
    volume.drain_orphans();
    assert!(volume.trim(0..u64::MAX).unwrap() > 0);
    let image = device.cut_power(CrashPolicy::LoseAll);
    drop(volume);
    let volume = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    assert_eq!(volume.read("gone").unwrap(), vec![6; 500 * BLOCK]);
}

/// A volume that was used for long without `discard`: its device knew nothing of what was freed since.
#[test]
fn a_trim_discards_what_is_free_and_nothing_else() {
    let (device, volume) = new_volume(8192);
    device.set_discard_pattern(Some(0xdd));
    volume.write("kept", vec![5; 300 * BLOCK]).unwrap();
    volume.write("gone", vec![6; 500 * BLOCK]).unwrap();
    volume.sync().unwrap();
    volume.remove_file("gone").unwrap();
    volume.drain_orphans();
    volume.sync().unwrap();
    let (free, available) = (volume.info().free_blocks, volume.statfs().available);
    assert_eq!(volume.trim(0..u64::MAX).unwrap(), free * BLOCK as u64);
    assert_eq!((volume.info().free_blocks, volume.statfs().available), (free, available));
    // Parts of it: nothing, and less than a block, are nothing.
    assert_eq!(volume.trim(100..100).unwrap() + volume.trim(4097..8191).unwrap(), 0);
    let half = 4096 * BLOCK as u64;
    let parts = volume.trim(0..half).unwrap() + volume.trim(half..u64::MAX).unwrap();
    assert_eq!(parts, free * BLOCK as u64);
    assert_eq!(volume.read("kept").unwrap(), vec![5; 300 * BLOCK]);
    volume.write("new", vec![7; 400 * BLOCK]).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.read("new").unwrap(), vec![7; 400 * BLOCK]);
    assert_eq!(device.violations(), Vec::<String>::new());
    volume.close().unwrap();
    let volume = options().read_only(true).open_backend(device).unwrap();
    assert!(volume.trim(0..u64::MAX).is_err(), "nothing is discarded of a volume that is not written");
    assert_eq!(volume.read("kept").unwrap(), vec![5; 300 * BLOCK]);
}

#[test]
fn an_fsync_waits_for_no_discard() {
    let (slow, volume) = slow_volume(16_384);
    let (large, small) = (file(&volume, "large"), file(&volume, "small"));
    volume.inodes().write_at(&large, &[1; 256 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    volume.inodes().set_len(&large, 0).unwrap();
    for n in 0..3 {
        volume.inodes().write_at(&small, &[2], n, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&small, false).unwrap();
        volume.checkpoint().unwrap();
        slow.await_discard();
    }
    assert!(!slow.has_given_up(), "the fsync waited for the discard");
    slow.set_open(true);
    volume.close().unwrap();
    assert!(slow.inner.violations().is_empty(), "{:?}", slow.inner.violations());
}

#[test]
fn space_that_is_being_discarded_is_waited_for() {
    let (slow, volume) = slow_volume(8192);
    let hog = file(&volume, "hog");
    let most = volume.statfs().available - 2048;
    volume.inodes().allocate(&hog, quire::inodes::FallocateMode::Allocate, 0, most * BLOCK as u64).unwrap();
    volume.sync().unwrap();
    volume.inodes().set_len(&hog, 0).unwrap();
    volume.sync().unwrap();
    slow.await_discard();
    assert!(volume.statfs().available < most, "freed blocks are busy while they are discarded");
    std::thread::scope(|scope| {
        // All of it, also what is under way: it waits, and does not fail.
        let writer = scope.spawn(|| {
            volume.inodes().allocate(&hog, quire::inodes::FallocateMode::Allocate, 0, most * BLOCK as u64)
        });
        // Time to find no space; it may also come later.
        std::thread::sleep(Duration::from_millis(50));
        slow.set_open(true);
        writer.join().unwrap().unwrap();
    });
    assert!(!slow.has_given_up());
    volume.close().unwrap();
}
