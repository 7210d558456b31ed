//! Snapshots read beside their volume while that is in use.

use crate::common::BLOCK;
use quire::backend::MemoryBackend;
use quire::{ErrorKind, FormatOptions, Volume, VolumeOptions, take_snapshot_backend as take_snapshot};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const FILES: usize = 40;

fn made() -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(128 * MIB / BLOCK as u64));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    backend
}

fn open(backend: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(16 * MIB).open_backend(backend.clone()).unwrap()
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..(3 + seed % 20) * BLOCK + seed).map(|at| (seed * 7 + at / BLOCK + at % 251) as u8).collect()
}

/// A volume with a directory of files, and a snapshot `first` of it; open.
fn with_snapshot(backend: &Arc<MemoryBackend>) -> Volume {
    let volume = open(backend);
    volume.create_dir("files").unwrap();
    for file in 0..FILES {
        volume.write(format!("files/{file}"), bytes(file)).unwrap();
    }
    volume.close().unwrap();
    take_snapshot(backend.clone(), "first").unwrap();
    open(backend)
}

fn check(reader: &Volume) {
    let mut names: Vec<usize> = reader
        .read_dir("files")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap())
        .collect();
    names.sort_unstable();
    assert!(names.into_iter().eq(0..FILES));
    for file in 0..FILES {
        assert!(reader.read(format!("files/{file}")).unwrap() == bytes(file), "file {file} has changed");
    }
}

/// Writers, removals and checkpoints go on at the volume while its snapshot is read: it never changes.
#[test]
fn a_snapshot_is_read_while_its_volume_changes() {
    let backend = made();
    let volume = with_snapshot(&backend);
    let reader = volume.open_snapshot("first").unwrap();
    assert!(reader.is_read_only());
    assert_eq!(reader.write("files/new", "data").unwrap_err().kind(), ErrorKind::ReadOnly);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..6 {
                for file in 0..FILES {
                    let path = format!("files/{file}");
                    match (file + round) % 4 {
                        0 => drop(volume.remove_file(&path)),
                        1 => volume.write(&path, bytes(file + round + 1)).unwrap(),
                        _ => volume.write(format!("files/new-{round}-{file}"), bytes(file)).unwrap(),
                    }
                }
                volume.sync().unwrap();
                volume.checkpoint().unwrap();
                for file in 0..FILES {
                    let _ = volume.remove_file(format!("files/new-{round}-{file}"));
                }
            }
        });
        while !writer.is_finished() {
            check(&reader);
            // A second reader reads from the device what the first one has cached.
            check(&volume.open_snapshot("first").unwrap());
        }
        writer.join().unwrap();
    });
    check(&reader);
    let beside = volume.metrics();
    assert!(beside.iter().any(|metric| metric.name.starts_with("device_")));
    reader.close().unwrap();
    volume.close().unwrap();
    check(&open(&backend).open_snapshot("first").unwrap());
}

#[test]
fn a_snapshot_that_is_open_is_not_deleted() {
    let backend = made();
    let volume = with_snapshot(&backend);
    assert_eq!(volume.open_snapshot("second").unwrap_err().kind(), ErrorKind::NotFound);
    let (reader, other) = (volume.open_snapshot("first").unwrap(), volume.open_snapshot("first").unwrap());
    let nested = reader.open_snapshot("first").unwrap_err();
    assert_eq!(nested.kind(), ErrorKind::Unsupported);
    for file in 0..FILES {
        volume.remove_file(format!("files/{file}")).unwrap();
    }
    let busy = volume.delete_snapshot("first").unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("open for reading (2 times)"), "{busy}");
    other.close().unwrap();
    // A clone, and an open file, keep it open.
    let file = quire::OpenOptions::new().read(true).open(&reader, "files/7").unwrap();
    drop(reader);
    assert_eq!(volume.delete_snapshot("first").unwrap_err().kind(), ErrorKind::Busy);
    let mut content = vec![0; bytes(7).len()];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content == bytes(7));
    drop(file);
    let before = volume.statfs().free;
    volume.delete_snapshot("first").unwrap();
    assert!(volume.statfs().free > before);
    assert_eq!(volume.open_snapshot("first").unwrap_err().kind(), ErrorKind::NotFound);
    volume.close().unwrap();
}

/// Closing the volume leaves its readers alone, and they do not keep it from being marked clean.
#[test]
fn a_reader_outlives_its_volume() {
    let backend = made();
    let volume = with_snapshot(&backend);
    let reader = volume.open_snapshot("first").unwrap();
    assert!(reader.read("files/3").unwrap() == bytes(3));
    volume.write("files/3", "new").unwrap();
    volume.close().unwrap();
    check(&reader);
    let read_only = VolumeOptions::new().read_only(true).open_backend(backend.clone()).unwrap();
    assert!(read_only.info().clean && read_only.recovery().records == 0);
    assert_eq!(read_only.read("files/3").unwrap(), b"new");
    // Of a volume that is open for reading as well.
    check(&read_only.open_snapshot("first").unwrap());
    check(&reader);
    reader.close().unwrap();
}

/// Many readers keep to the one limit of the page cache.
#[test]
fn readers_share_the_page_cache() {
    let backend = made();
    let volume = with_snapshot(&backend);
    let readers: Vec<Volume> = (0..8).map(|_| volume.open_snapshot("first").unwrap()).collect();
    for _ in 0..3 {
        readers.iter().for_each(check);
        for file in 0..FILES {
            volume.write(format!("files/{file}"), bytes(file + 100)).unwrap();
        }
    }
    let metrics = volume.metrics();
    let of = |name: &str| metrics.iter().find(|metric| metric.name == name).expect("the metric").value;
    assert!(of("cache_used_bytes") <= of("cache_limit_bytes"), "{} bytes", of("cache_used_bytes"));
    drop(readers);
    volume.delete_snapshot("first").unwrap();
    volume.close().unwrap();
}
