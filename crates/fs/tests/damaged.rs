//! Volumes whose tree is whole but says what cannot be: errors, never a panic, and nothing that recovery would refuse.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{file, new_volume, options};
use quire::repair::Session;
use quire::{ErrorKind, FallocateMode, IoFlags, Volume};
use quire_format::extent::Extent;
use quire_format::key::Key;

/// A file had two extents for one block. A truncate put both into a transaction, which is no list that a record may
/// carry: the encoder panicked, and without its assertion recovery would have refused the record.
#[test]
fn overlapping_extents_are_corrupt() {
    let (device, volume) = new_volume(4096);
    let file = file(&volume, "file");
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
