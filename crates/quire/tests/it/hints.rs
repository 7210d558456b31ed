//! Advice and per-call hints: what they bring into the cache, what they keep out of it, and what reaches the
//! device.

use quire::backend::{Backend, MemoryBackend};
use quire::inodes::IoFlags;
use quire::{Advice, File, FormatOptions, OpenOptions, Properties, Volume, VolumeOptions};
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
    volume.inodes().try_read_at(file.inode(), &mut vec![0; len], at as u64, IoFlags::empty()).is_some()
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

/// What is written to a file with `cache=drop`, and read from it, leaves the cache: whole streams, small
/// overwrites, and what was there when the property was set.
#[test]
fn a_file_that_drops_leaves_nothing_behind() {
    let volume = volume();
    let file = file(&volume);
    let is_empty = |what: &str| {
        for at in (0..4 * MIB).step_by(4096) {
            assert!(!is_cached(&volume, &file, at, 4096), "{what}, at {at}");
        }
    };
    let mut data: Vec<u8> = (0..4 * MIB).map(|at| (at / 4096) as u8).collect();
    file.write_all_at(&data, 0).unwrap();
    volume.sync().unwrap();
    assert!(is_cached(&volume, &file, MIB, 4096));
    file.set_properties(Properties { cache_drop: true, ..Properties::default() }).unwrap();
    is_empty("cached before");
    let before = number(&volume, "device_data_write_bytes_total");
    for at in (0..data.len()).step_by(32 << 10) {
        data[at] ^= 1;
        file.write_all_at(&data[at..at + (32 << 10)], at as u64).unwrap();
    }
    assert!(number(&volume, "device_data_write_bytes_total") >= before + 3 * MIB as u64, "streams go on");
    volume.sync().unwrap();
    is_empty("a stream of writes");
    for at in (0..data.len()).step_by(52 * 1024) {
        data[at] ^= 2;
        file.write_all_at(&data[at..at + 1], at as u64).unwrap();
    }
    // Dirty blocks are cached, so small writes gather.
    assert!(is_cached(&volume, &file, 52 * 1024, 1));
    volume.sync().unwrap();
    is_empty("small writes");
    let mut read = vec![0; 48 << 10];
    for at in (0..data.len()).step_by(read.len()) {
        let len = file.read_at(&mut read, at as u64).unwrap();
        assert!(read[..len] == data[at..at + len], "at {at}");
    }
    is_empty("reads");
    file.set_properties(Properties::default()).unwrap();
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(is_cached(&volume, &file, 0, 4096));
}

/// A file of many times the cache's size passes through it without pushing others out.
#[test]
fn a_file_that_drops_pushes_nobody_out() {
    let volume = volume();
    let kept = file(&volume);
    kept.write_all_at(&vec![7; 16 * MIB], 0).unwrap();
    volume.sync().unwrap();
    let properties = Properties { cache_drop: true, ..Properties::default() };
    let stream = OpenOptions::new().read(true).write(true).create(true).properties(properties);
    let stream = stream.open(&volume, "stream").unwrap();
    let piece = vec![9; MIB / 4];
    for at in (0..128 * MIB).step_by(piece.len()) {
        stream.write_all_at(&piece, at as u64).unwrap();
    }
    volume.sync().unwrap();
    let mut read = vec![0; MIB / 4];
    for at in (0..128 * MIB).step_by(read.len()) {
        stream.read_exact_at(&mut read, at as u64).unwrap();
    }
    assert!((0..16 * MIB).step_by(4096).all(|at| is_cached(&volume, &kept, at, 4096)));
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

/// A run that had been written read the places of its blocks from their folios again after these had left the
/// cache. Another file had taken such a folio meanwhile, and the writer waited for its own blocks without
/// end.
#[test]
fn uncached_streams_side_by_side_come_to_their_ends() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(1 << 16));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    let volume = VolumeOptions::new().cache_bytes(16 << 20).open_backend(backend).unwrap();
    let (end, ends) = std::sync::mpsc::channel();
    for number in 0..8 {
        let (volume, end) = (volume.clone(), end.clone());
        std::thread::spawn(move || {
            let options = OpenOptions::new().read(true).write(true).create(true).clone();
            let file = options.open(&volume, format!("{number}")).unwrap();
            let how = IoFlags::UNCACHED | IoFlags::THROUGH;
            for at in 0..50_000u64 {
                volume.inodes().write_at(file.inode(), &[1; 4096], at * 7 % 64 * 4096, how).unwrap();
            }
            end.send(()).unwrap();
        });
    }
    for _ in 0..8 {
        ends.recv_timeout(std::time::Duration::from_secs(60)).expect("a write that ends");
    }
    volume.close().unwrap();
}

/// Without threads nobody finished a writeback that nobody waited for: the next writer of the block waited
/// for ever.
#[test]
fn a_block_that_is_only_started_can_be_written_again() {
    type Write = fn(&Volume, &File);
    const WRITES: &[(&str, Write)] = &[
        ("uncached", |volume, file| {
            volume.inodes().write_at(file.inode(), &[1; 4096], 0, IoFlags::UNCACHED).unwrap();
        }),
        ("advice", |_, file| {
            file.write_all_at(&[1; 4096], 0).unwrap();
            file.advise(0, 0, Advice::DontNeed).unwrap();
        }),
        ("cache=drop", |_, file| {
            file.set_properties(Properties { cache_drop: true, ..Properties::default() }).unwrap();
            file.write_all_at(&vec![1; MIB], 0).unwrap();
        }),
    ];
    for (name, write) in WRITES {
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let volume = volume();
            let file = file(&volume);
            (0..2).for_each(|_| write(&volume, &file));
            end.send(()).unwrap();
        });
        assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(20)), Ok(()), "{name}");
    }
}
