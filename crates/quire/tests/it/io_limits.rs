//! Reads and writes at their limits: offsets, lengths, handles, and a volume that shuts down in the middle.
//! An error says what, and nothing is half done that the caller is not told of.

use quire::backend::MemoryBackend;
use quire::inodes::{FallocateMode, IoFlags, SetAttributes};
use quire::{ErrorKind, FormatOptions, OpenOptions, Volume, VolumeOptions};
use quire_device::simulated::{Fault, FaultOp};
use quire_device::{Backend, IoClass, SimulatedBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;
const LARGEST: u64 = i64::MAX as u64;

fn options() -> VolumeOptions {
    VolumeOptions::new().cache_bytes(16 << 20)
}

fn volume_on(backend: Arc<dyn Backend>) -> Volume {
    FormatOptions::new().seed(1).format_backend(backend.clone()).unwrap();
    options().open_backend(backend).unwrap()
}

fn volume() -> Volume {
    volume_on(Arc::new(MemoryBackend::new(16384)))
}

fn writable() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

#[test]
fn offsets_past_the_largest_file() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    for direct in [false, true] {
        let file = writable().direct(direct).open(&volume, "f").unwrap();
        for offset in [LARGEST, LARGEST - 4095, u64::MAX - 4095, u64::MAX] {
            let error = file.write_at(&[1; BLOCK], offset).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooBig, "{error}");
            // Reading there is reading behind the end.
            assert_eq!(file.read_at(&mut [0; BLOCK], offset).unwrap(), 0);
        }
    }
    assert_eq!(file.set_len(u64::MAX).unwrap_err().kind(), ErrorKind::FileTooBig);
    assert_eq!(file.inode().size(), 4);
    let mut all = [0; 9];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), 4);
    assert_eq!(&all[..4], b"kept");
    volume.close().unwrap();
}

/// At the end of a file of the largest size, a read whose buffer reached past the largest offset failed as
/// invalid, unless all of it was cached; an append that did not fit was called invalid, too.
#[test]
fn reads_and_appends_at_the_end_of_the_largest_file() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    file.set_len(LARGEST).unwrap();
    for direct in [false, true] {
        let file = writable().direct(direct).open(&volume, "f").unwrap();
        // In the last block, over several, and longer than a batch.
        for (before, len) in [(1, 2), (4095, BLOCK), (3 * 4096 - 1, 4 * BLOCK), (4 << 20, 8 << 20)] {
            let mut bytes = vec![1; len];
            let read = file.read_at(&mut bytes, LARGEST - before).unwrap();
            assert_eq!(read as u64, before);
            assert!(bytes[..read].iter().all(|byte| *byte == 0));
        }
        for len in [1, 2, BLOCK, 2 << 20] {
            let log = OpenOptions::new().append(true).direct(direct).open(&volume, "f").unwrap();
            let error = log.append(&vec![1; len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooBig, "{len} bytes: {error}");
        }
    }
    assert_eq!(file.inode().size(), LARGEST);
    volume.close().unwrap();
}

#[test]
fn nothing_is_written_where_nothing_is_given() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    assert_eq!(file.write_at(&[], 1 << 30).unwrap(), 0);
    assert_eq!(file.write_at(&[], u64::MAX).unwrap(), 0);
    assert_eq!(file.inode().size(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    volume.close().unwrap();
}

/// A write that does not fit ends short, and what it says is there is there.
#[test]
fn buffers_of_gigabytes() {
    let volume = volume();
    let file = writable().open(&volume, "f").unwrap();
    file.write_all_at(&[7; 5000], 0).unwrap();
    // Not touched beyond the file's end, so the memory is never there.
    let mut room = vec![0u8; (3 << 30) + 4097];
    assert_eq!(file.read_at(&mut room, 0).unwrap(), 5000);
    assert!(room[..5000].iter().all(|byte| *byte == 7) && room[5000..1 << 20].iter().all(|byte| *byte == 0));
    room[..5000].fill(0);
    let written = file.write_at(&room, 4096).unwrap();
    assert!(written > 16 << 20 && written < 64 << 20, "{written}");
    assert_eq!(file.inode().size(), 4096 + written as u64);
    let error = file.write_at(&room[..32 << 20], file.inode().size()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(file.inode().size(), 4096 + written as u64);
    assert_eq!(file.read_at(&mut room[..8192], 0).unwrap(), 8192);
    assert!(room[..4096].iter().all(|byte| *byte == 7));
    assert!(room[4096..8192].iter().all(|byte| *byte == 0));
    volume.sync().unwrap();
    volume.close().unwrap();
}

#[test]
fn handles_and_volumes_that_only_read() {
    let backend = Arc::new(MemoryBackend::new(16384));
    let volume = volume_on(backend.clone());
    writable().open(&volume, "f").unwrap().write_all_at(b"kept", 0).unwrap();
    let file = volume.open_file("f").unwrap();
    assert_eq!(file.write_at(b"no", 0).unwrap_err().kind(), ErrorKind::BadHandle);
    assert_eq!(file.set_len(0).unwrap_err().kind(), ErrorKind::BadHandle);
    let blind = OpenOptions::new().write(true).open(&volume, "f").unwrap();
    assert_eq!(blind.read_at(&mut [0], 0).unwrap_err().kind(), ErrorKind::BadHandle);
    drop((file, blind));
    volume.close().unwrap();
    let volume = options().read_only(true).open_backend(backend).unwrap();
    assert_eq!(writable().open(&volume, "f").unwrap_err().kind(), ErrorKind::ReadOnly);
    let mut out = [0; 4];
    let file = volume.open_file("f").unwrap();
    file.read_exact_at(&mut out, 0).unwrap();
    assert_eq!(&out, b"kept");
    volume.close().unwrap();
}

/// The journal's buffer is full, and the force that makes room in it fails: the volume shuts down at once. It
/// did so with the next force, and took writes until then.
#[test]
fn a_journal_that_fails_while_it_makes_room() {
    let device = Arc::new(SimulatedBackend::new(65536));
    // So large a ring that no checkpoint comes before.
    FormatOptions::new().seed(1).journal_bytes(64 << 20).format_backend(device.clone()).unwrap();
    let volume = options().threads(false).open_backend(device.clone()).unwrap();
    volume.write("f", [1; BLOCK]).unwrap();
    volume.sync().unwrap();
    let file = writable().open(&volume, "f").unwrap();
    device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal));
    // Nor do changes of one record make many nodes dirty.
    let root = volume.inodes().root();
    let change = |n: u32| {
        let mode = SetAttributes { mode: Some(n % 0o777), ..SetAttributes::default() };
        volume.inodes().set_attributes(&root, &mode).err()
    };
    let failed = (0..).find_map(change).unwrap();
    assert_eq!(failed.kind(), ErrorKind::Shutdown, "{failed}");
    assert_eq!(file.write_at(&[2; BLOCK], 0).unwrap_err().kind(), ErrorKind::Shutdown);
}

/// Writers are at work when the journal fails. Every write before says that it was done, every one after that
/// the volume takes no more changes; no record is half there, in memory or after the next mount.
#[test]
fn a_volume_that_shuts_down_in_the_middle() {
    const RECORD: usize = 4 * BLOCK;
    const RECORDS: u64 = 64;
    let device = Arc::new(SimulatedBackend::new(16384));
    let volume = volume_on(device.clone());
    let file = writable().open(&volume, "f").unwrap();
    file.write_all_at(&vec![1; RECORD * RECORDS as usize], 0).unwrap();
    volume.sync().unwrap();
    let is_whole = |record: &[u8]| record.iter().all(|byte| *byte == record[0]);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..3u64 {
            let failed = &failed;
            // Opened outside the thread: on a busy machine that may begin behind the failure.
            let file = writable().direct(n == 2).open(&volume, "f").unwrap();
            scope.spawn(move || {
                for round in 0u64.. {
                    let at = (round * 13 + n) % RECORDS * RECORD as u64;
                    let outcome = file.write_at(&[round as u8 | 1; RECORD], at);
                    match outcome {
                        Ok(count) => assert_eq!(count, RECORD),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Shutdown, "{error}");
                            assert!(failed.load(Ordering::SeqCst), "before there was a reason: {error}");
                            return;
                        }
                    }
                    if round % 16 == 0 {
                        let _ = file.sync_all();
                    }
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        failed.store(true, Ordering::SeqCst);
        device.inject(Fault::on(FaultOp::Write).class(IoClass::Journal).times(1));
        while volume.create_dir("d").and_then(|()| volume.sync()).is_ok() {
            volume.remove_dir("d").unwrap();
        }
    });
    // Reading goes on, and tells that writing does not.
    let mut record = vec![0; RECORD];
    for number in 0..RECORDS {
        file.read_exact_at(&mut record, number * RECORD as u64).unwrap();
        assert!(is_whole(&record), "record {number} is torn");
    }
    assert_eq!(file.sync_all().unwrap_err().kind(), ErrorKind::Shutdown);
    drop(file);
    let _ = volume.close();
    let after = options().open_backend(device).unwrap();
    let file = after.open_file("f").unwrap();
    assert_eq!(file.inode().size(), RECORD as u64 * RECORDS);
    for number in 0..RECORDS {
        file.read_exact_at(&mut record, number * RECORD as u64).unwrap();
        let blocks: Vec<u8> = record.chunks(BLOCK).map(|block| block[0]).collect();
        assert!(record.chunks(BLOCK).all(is_whole), "a block of record {number} is torn: {blocks:?}");
    }
    drop(file);
    after.close().unwrap();
}

/// Blocks that were allocated far beyond the end of a file had no place further up. The insertion was logged,
/// could not move them, and shut the volume down; after a crash the volume could not be opened for writing.
#[test]
fn nothing_is_inserted_below_what_cannot_move() {
    let device = Arc::new(MemoryBackend::new(4096));
    let volume = volume_on(device.clone());
    let inode = crate::common::file(&volume, "data");
    let inodes = volume.inodes();
    inodes.write_at(&inode, &[1; 2 * BLOCK], 0, IoFlags::empty()).unwrap();
    inodes.allocate(&inode, FallocateMode::KeepSize, (1 << 63) - 2 * BLOCK as u64, BLOCK as u64).unwrap();
    let inserted = inodes.allocate(&inode, FallocateMode::Insert, 0, 1 << 20);
    assert_eq!(inserted.unwrap_err().kind(), ErrorKind::FileTooBig);
    inodes.fsync(&inode, false).unwrap();
    volume.close().unwrap();
    let after = options().open_backend(device).unwrap();
    assert_eq!(after.read("data").unwrap(), [1; 2 * BLOCK]);
}

/// The same, where blocks begin below the point and reach over it.
#[test]
fn nothing_is_inserted_into_what_cannot_move() {
    let device = Arc::new(MemoryBackend::new(4096));
    let volume = volume_on(device.clone());
    let inode = crate::common::file(&volume, "data");
    let inodes = volume.inodes();
    let below = |bytes: u64| (1 << 63) - bytes;
    let size = SetAttributes { size: Some(below(16 << 10)), ..SetAttributes::default() };
    inodes.set_attributes(&inode, &size).unwrap();
    inodes.allocate(&inode, FallocateMode::KeepSize, below(32 << 10), 28 << 10).unwrap();
    let inserted = inodes.allocate(&inode, FallocateMode::Insert, below(20 << 10), 8 << 10);
    assert_eq!(inserted.unwrap_err().kind(), ErrorKind::FileTooBig);
    volume.close().unwrap();
    options().open_backend(device).unwrap();
}
