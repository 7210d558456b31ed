//! A volume on a simulated device, without threads and with a clock that stands: what happens is what the
//! test does.

use quire::inodes::{Create, InodeRef};
use quire::{Clock, FormatOptions, Timestamp, Volume, VolumeOptions};
use quire_device::SimulatedBackend;
use quire_device::simulated::Event;
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// A clock that stands.
pub fn clock() -> Clock {
    Clock::simulated(Timestamp(1_000_000_000))
}

/// No threads, the smallest cache, one moment for ever.
pub fn options() -> VolumeOptions {
    VolumeOptions::new().threads(false).cache_bytes(6 << 20).clock(clock())
}

/// A new volume of so many blocks, whose journal has a MiB, on a device that remembers which writes are safe.
pub fn new_volume(blocks: u64) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(blocks));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    (device, volume)
}

/// A new, empty file in the root.
pub fn file(volume: &Volume, name: &str) -> InodeRef {
    volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644)).unwrap()
}

/// Flushes that a device has done behind its first `from` events.
pub fn flushes(device: &SimulatedBackend, from: usize) -> usize {
    let events = device.events(from..usize::MAX);
    events.iter().filter(|event| matches!(event, Event::FlushCompleted { .. })).count()
}
