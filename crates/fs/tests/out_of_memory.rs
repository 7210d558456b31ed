//! A system that has no memory left for the cache: writes go on in what there is, or fail and say why; nothing that was
//! accepted is lost, and the process lives. A test program of its own, since the limit is the process's.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]

use quire::{ErrorKind, FormatOptions, OpenOptions, Volume, VolumeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

const PIECE: usize = 64 << 10;
const FILE_BYTES: usize = 400 << 20;
/// What the process may take beside what it has: the cache gets one or two of its mappings, others keep some.
const ROOM: u64 = 180 << 20;

/// Bytes of address space that the process has.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

fn piece(n: usize) -> Vec<u8> {
    vec![(n % 251) as u8 + 1; PIECE]
}

fn options() -> VolumeOptions {
    VolumeOptions { cache_bytes: Some(1 << 30), ..VolumeOptions::default() }
}

/// Writes the file; gives the pieces that were refused.
fn write(volume: &Volume) -> Vec<usize> {
    let file = volume.open_file("file", OpenOptions::new().write(true).create(true)).unwrap();
    let mut refused = Vec::new();
    for n in 0..FILE_BYTES / PIECE {
        match file.write_all_at(&piece(n), (n * PIECE) as u64) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
                assert!(error.to_string().contains("memory for the cache"), "{error}");
                refused.push(n);
            }
        }
    }
    file.sync_all().unwrap();
    refused
}

fn check(volume: &Volume, refused: &[usize]) {
    let file = volume.open_file("file", OpenOptions::new().read(true)).unwrap();
    let mut read = vec![0; PIECE];
    for n in (0..FILE_BYTES / PIECE).filter(|n| !refused.contains(n)) {
        file.read_exact_at(&mut read, (n * PIECE) as u64).unwrap();
        assert!(read == piece(n), "piece {n}");
    }
}

fn format(path: &Path) {
    let format = FormatOptions { size: Some(1 << 30), ..FormatOptions::default() };
    Volume::format_image(path, &format).unwrap();
}

#[test]
fn writes_without_memory_for_the_cache_wait_or_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    format(&path);
    let volume = Volume::open(&path, options()).unwrap();
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(address_space() + ROOM), ..before }).unwrap();
    let refused = write(&volume);
    check(&volume, &refused);
    let cached =
        volume.measures().into_iter().find(|measure| measure.name == "cache_used_bytes").unwrap().value;
    setrlimit(Resource::As, before).unwrap();
    assert!(cached < ROOM, "the limit was none: {cached} bytes are cached");
    // With memory again, everything can be written.
    assert_eq!(write(&volume), []);
    check(&volume, &[]);
    volume.close().unwrap();
    let volume = Volume::open(&path, options()).unwrap();
    check(&volume, &[]);
    volume.close().unwrap();
}
