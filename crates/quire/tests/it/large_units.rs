//! Units of which a record has many pieces.

use crate::common::{BLOCK, clock, file};
use quire::inodes::IoFlags;
use quire::{FormatOptions, Properties, Unit, VolumeOptions};
use quire_device::MemoryBackend;
use std::sync::Arc;

/// Every other block of units of a mebibyte was written: a record of one has 128 pieces, and no room was
/// found for it. Writeback then waited for the room of 64, which was there, tried again ten thousand times,
/// and every fsync of the file ended with `Busy`.
#[test]
fn room_for_all_pieces_of_a_unit_is_waited_for() {
    let device = Arc::new(MemoryBackend::new((512 << 20) / BLOCK as u64));
    FormatOptions::new().seed(1).clock(clock()).format_backend(device.clone()).unwrap();
    let volume = VolumeOptions::new().clock(clock()).cache_bytes(64 << 20).open_backend(device).unwrap();
    let inode = file(&volume, "data");
    let untorn = Some(Unit::from_bytes(1 << 20).unwrap());
    volume.inodes().set_properties(&inode, Properties { untorn, ..Properties::default() }).unwrap();
    for block in 0..128 {
        let offset = (2 * block * BLOCK) as u64;
        volume.inodes().write_at(&inode, &[1; BLOCK], offset, IoFlags::empty()).unwrap();
    }
    volume.inodes().fsync(&inode, true).unwrap();
    volume.close().unwrap();
}
