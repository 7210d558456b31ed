//! Advice and per-call hints: what they bring into the cache, what they keep out of it, and what reaches the
//! device.

use quire::backend::{Backend, MemoryBackend};
use quire::inodes::IoFlags;
use quire::{Advice, File, FormatOptions, OpenOptions, Volume, VolumeOptions};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn volume() -> Volume {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(1 << 16));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    let options = VolumeOptions::new().cache_bytes(64 << 20).threads(false);
    options.open_backend(backend).unwrap()
}

fn file(volume: &Volume) -> File {
    OpenOptions::new().read(true).write(true).create(true).open(volume, "file").unwrap()
}

fn number(volume: &Volume, name: &str) -> u64 {
    volume.metrics()[name]
}

fn is_cached(volume: &Volume, file: &File, at: usize, len: usize) -> bool {
    volume.inodes().try_read_at(file.inode(), &mut vec![0; len], at as u64).is_some()
}

/// A write that is not to be kept reaches the device by itself and leaves the cache; its contents are right.
#[test]
fn an_uncached_write_leaves_the_cache() {
    let volume = volume();
    let file = file(&volume);
    let data: Vec<u8> = (0..4 * MIB).map(|at| (at / 4096) as u8).collect();
    for at in (0..data.len()).step_by(MIB) {
        let piece = &data[at..at + MIB];
        volume
            .inodes()
            .write_at(file.inode(), piece, at as u64, IoFlags::UNCACHED | IoFlags::THROUGH)
            .unwrap();
        assert!(!is_cached(&volume, &file, at, 4096), "at {at}");
    }
    assert_eq!(number(&volume, "device_data_write_bytes_total"), data.len() as u64);
    assert_eq!(number(&volume, "cache_dirty_bytes"), 0);
    let mut read = vec![0; data.len()];
    assert_eq!(volume.inodes().read_at(file.inode(), &mut read, 0, IoFlags::UNCACHED).unwrap(), data.len());
    assert!(read == data);
    assert!((0..data.len()).step_by(MIB).all(|at| !is_cached(&volume, &file, at, 4096)));
}

/// Blocks that were dirty before stay right: an uncached write beside them writes them too or leaves them
/// dirty.
#[test]
fn an_uncached_write_loses_nothing_beside_it() {
    let volume = volume();
    let file = file(&volume);
    file.write_all_at(&vec![1; MIB], 0).unwrap();
    volume.inodes().write_at(file.inode(), &[2; 4096], 8192, IoFlags::UNCACHED).unwrap();
    volume.sync().unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    assert!(!is_cached(&volume, &file, 0, 4096));
    let mut read = vec![0; MIB];
    file.read_at(&mut read, 0).unwrap();
    assert!(read[..8192].iter().chain(&read[12288..]).all(|byte| *byte == 1));
    assert!(read[8192..12288] == [2; 4096]);
}

/// A write-through write is on the device when it returns; nothing flushes it.
#[test]
fn write_through_is_a_write_without_a_flush() {
    let volume = volume();
    let file = file(&volume);
    let flushes = number(&volume, "device_flushes_total");
    volume.inodes().write_at(file.inode(), &[3; 8192], 0, IoFlags::THROUGH).unwrap();
    assert_eq!(number(&volume, "device_data_write_bytes_total"), 8192);
    assert_eq!(number(&volume, "cache_dirty_bytes"), 0);
    assert_eq!(number(&volume, "device_flushes_total"), flushes);
    assert!(is_cached(&volume, &file, 0, 8192));
}

/// What is needed soon is read in; what is not needed is written and leaves; what is read at random brings
/// nothing along.
#[test]
fn advice_moves_data_in_and_out() {
    let volume = volume();
    let file = file(&volume);
    file.write_all_at(&vec![5; 4 * MIB], 0).unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    volume.sync().unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    assert!((0..4 * MIB).step_by(MIB).all(|at| !is_cached(&volume, &file, at, 4096)));
    file.advise(MIB as u64, 2 * MIB as u64, Advice::WillNeed).unwrap();
    assert!(is_cached(&volume, &file, MIB, 4096) && is_cached(&volume, &file, 3 * MIB - 4096, 4096));
    assert!(!is_cached(&volume, &file, 0, 4096) && !is_cached(&volume, &file, 3 * MIB, 4096));
    file.advise(0, 0, Advice::DontNeed).unwrap();
    let mut block = [0; 4096];
    file.advise(0, 0, Advice::Random).unwrap();
    for number in 0..64 {
        file.read_at(&mut block, number * 4096).unwrap();
    }
    assert!(!is_cached(&volume, &file, 64 * 4096, 4096), "something was read ahead");
    file.advise(0, 0, Advice::Sequential).unwrap();
    file.read_at(&mut block, 2 * MIB as u64).unwrap();
    assert!(is_cached(&volume, &file, 2 * MIB, 512 << 10), "nothing was read ahead");
    assert!(block == [5; 4096]);
}
