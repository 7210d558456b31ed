//! Volumes whose tree is whole but says what cannot be: errors, never a panic, and nothing that recovery would refuse.
#![cfg(not(any(loom, shuttle)))]

use quire::repair::Session;
use quire::{
    Clock, Create, ErrorKind, FallocateMode, FormatOptions, IoFlags, Timestamp, Volume, VolumeOptions,
};
use quire_base::sync::Arc;
use quire_device::SimulatedBackend;
use quire_format::extent::Extent;
use quire_format::key::Key;

fn options() -> VolumeOptions {
    let clock = Clock::simulated(Timestamp(1));
    VolumeOptions { threads: false, cache_bytes: Some(6 << 20), clock, ..VolumeOptions::default() }
}

/// A file had two extents for one block. A truncate put both into a transaction, which is no list that a record may
/// carry: the encoder panicked, and without its assertion recovery would have refused the record.
#[test]
fn overlapping_extents_are_corrupt() {
    let device = Arc::new(SimulatedBackend::new(4096));
    let format = FormatOptions { seed: Some(1), clock: options().clock, ..FormatOptions::default() };
    Volume::format_backend(device.clone(), &format).unwrap();
    let volume = Volume::open_backend(device.clone(), options()).unwrap();
    let file = volume.create(&volume.root(), b"file", &Create::file(0o644)).unwrap();
    volume.write(&file, 0, &[7; 10 * 4096], IoFlags::empty()).unwrap();
    let number = file.number();
    drop(file);
    volume.close().unwrap();

    let mut session = Session::open(device.clone()).unwrap();
    let value = session.tree().get(Key::extent(number, 0)).unwrap().expect("the file has an extent");
    let first = Extent::decode(0, &value).unwrap();
    assert_eq!(first.len, 10);
    session.put(Key::extent(number, 4), &Extent { file_block: 4, len: 8, ..first }.encode());
    session.close().unwrap();

    let volume = Volume::open_backend(device.clone(), options()).unwrap();
    let file = volume.lookup(&volume.root(), b"file").unwrap();
    let refused = [
        volume.truncate(&file, 0),
        volume.allocate(&file, FallocateMode::PunchHole, 0, 1 << 20),
        volume.read(&file, 0, &mut [0; 10 * 4096], IoFlags::empty()).map(|_| ()),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    drop(file);
    assert!(volume.failure().is_none(), "a damaged file does not take the volume down");
    volume.close().unwrap();
    Volume::open_backend(device, options()).unwrap().close().unwrap();
}
