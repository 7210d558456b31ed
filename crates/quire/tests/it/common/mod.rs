//! A volume on a simulated device, without threads and with a clock that stands: what happens is what the test does.

use quire::inodes::{Create, InodeRef};
use quire::{Clock, FormatOptions, Timestamp, Volume, VolumeOptions};
use quire_device::SimulatedBackend;
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// No threads, the smallest cache, one moment for ever.
pub fn options() -> VolumeOptions {
    VolumeOptions {
        threads: false,
        cache_bytes: Some(6 << 20),
        clock: Clock::simulated(Timestamp(1_000_000_000)),
        ..VolumeOptions::default()
    }
}

/// A new volume of so many blocks, whose journal has a MiB, on a device that remembers which writes are safe.
pub fn new_volume(blocks: u64) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(blocks));
    let format = FormatOptions {
        seed: Some(1),
        journal_bytes: Some(1 << 20),
        clock: options().clock,
        ..FormatOptions::default()
    };
    Volume::format_backend(device.clone(), &format).unwrap();
    let volume = Volume::open_backend(device.clone(), options()).unwrap();
    (device, volume)
}

/// A new, empty file in the root.
pub fn file(volume: &Volume, name: &str) -> InodeRef {
    volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644)).unwrap()
}
