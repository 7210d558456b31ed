//! Discards hold up nobody.
//!
//! The thread that forced the journal issued the discards of what had become free, under the checkpoint's
//! lock: deleting a large file stalled the fsync of an unrelated one for as long as the device took. A writer
//! on a full volume got ENOSPC meanwhile.

use crate::common::{BLOCK, file, options};
use quire::inodes::IoFlags;
use quire::{FormatOptions, Volume};
use quire_base::{BlockNo, Result};
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
