//! What a crash left beyond the end of a file came back when the file grew past it.
//!
//! Growth by writing reaches the disk over the contiguous front (J6): a block that was written ahead of a gap
//! has its extent journaled while the size stays behind the gap. After a crash the volume has the shorter
//! size, and a written block beyond it. A later write, truncate or allocation past that block took it for a
//! hole, and showed the bytes of the lost write where zeros must be. (Found by `sim`, seed 48.)

use crate::common::{BLOCK, file, new_volume, options};
use quire::Volume;
use quire::inodes::{FallocateMode, IoFlags};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

/// A volume whose file `f` has no byte, and a written block at 8 KiB.
fn crashed() -> (Volume, quire::inodes::InodeRef) {
    let (device, volume) = new_volume(8192);
    let file = file(&volume, "f");
    volume.inodes().write_at(&file, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.inodes().write_at(&file, &[2; 2 * BLOCK], 2 * BLOCK as u64, IoFlags::DIRECT).unwrap();
    volume.checkpoint().unwrap();
    let image = device.cut_power(CrashPolicy::KeepAll);
    drop((file, volume));
    let volume = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
    let file = volume.inodes().lookup(&volume.inodes().root(), b"f").unwrap();
    assert_eq!(file.size(), 0, "the front has not moved");
    (volume, file)
}

fn assert_zeros_before(volume: &Volume, file: &quire::inodes::InodeRef, end: usize) {
    let mut bytes = vec![9; end];
    assert_eq!(volume.inodes().read_at(file, &mut bytes, 0, IoFlags::empty()).unwrap(), end);
    assert_eq!(bytes.iter().position(|byte| *byte != 0), None, "an old byte came back");
}

#[test]
fn a_write_past_it_leaves_zeros() {
    for flags in [IoFlags::empty(), IoFlags::DIRECT] {
        let (volume, file) = crashed();
        volume.inodes().write_at(&file, &[3; BLOCK], 5 * BLOCK as u64, flags).unwrap();
        assert_zeros_before(&volume, &file, 5 * BLOCK);
    }
}

#[test]
fn a_write_into_its_midst_leaves_zeros() {
    let (volume, file) = crashed();
    volume.inodes().write_at(&file, &[3; 10], 3 * BLOCK as u64 + 100, IoFlags::empty()).unwrap();
    assert_zeros_before(&volume, &file, 3 * BLOCK + 100);
}

#[test]
fn a_truncate_or_an_allocation_past_it_leaves_zeros() {
    let (volume, file) = crashed();
    volume.inodes().set_len(&file, 5 * BLOCK as u64).unwrap();
    assert_zeros_before(&volume, &file, 5 * BLOCK);
    let (volume, file) = crashed();
    volume.inodes().allocate(&file, FallocateMode::Allocate, 0, 5 * BLOCK as u64).unwrap();
    assert_zeros_before(&volume, &file, 5 * BLOCK);
}

/// Where a snapshot had the block beyond the end, it left the file, and a hole stayed in its place: a zeroing
/// that ended in it was an invalid request, and an allocation allocated less than was asked for. (Found by
/// `sim`, seed 5496.)
#[test]
fn an_allocation_past_it_has_all_its_blocks() {
    for mode in [FallocateMode::ZeroRange { keep_size: false }, FallocateMode::Allocate] {
        let (volume, file) = crashed();
        volume.take_snapshot("s").unwrap();
        let end = 3 * BLOCK + 100;
        volume.inodes().allocate(&file, mode, 0, end as u64).unwrap();
        assert_zeros_before(&volume, &file, end);
        volume.sync().unwrap();
        assert_eq!(volume.inodes().metadata(&file).blocks(), 4 * BLOCK as u64 / 512, "{mode:?}");
    }
}
