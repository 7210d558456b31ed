//! A system that has no memory left for the cache (a limit of the process, a container's) refused most of a stream of
//! writes: 5,376 of 6,400 pieces failed for want of memory, though the cache had clean and dirty folios to give up.
//! Writers wait for these instead, and none fails.
//!
//! The limit is a process's, so the writer is a process of its own. The C library's heap must not take room in large
//! pieces meanwhile, so it has one arena; what the cache cannot map leaves enough for it.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]

use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::Command;

const PIECE: usize = 64 << 10;
const FILE_BYTES: usize = 400 << 20;
/// What the process may take beside what it has: the cache gets two of its mappings of 66 MiB, others keep the rest.
const ROOM: u64 = 180 << 20;
/// Names the image of [`program_that_writes`].
const IMAGE: &str = "QUIRE_TEST_IMAGE";

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

fn write(volume: &Volume) {
    let file = volume.open_file("file", OpenOptions::new().write(true).create(true)).unwrap();
    for n in 0..FILE_BYTES / PIECE {
        file.write_all_at(&piece(n), (n * PIECE) as u64).unwrap();
    }
    file.sync_all().unwrap();
}

fn check(volume: &Volume) {
    let file = volume.open_file("file", OpenOptions::new().read(true)).unwrap();
    let mut read = vec![0; PIECE];
    for n in 0..FILE_BYTES / PIECE {
        file.read_exact_at(&mut read, (n * PIECE) as u64).unwrap();
        assert!(read == piece(n), "piece {n}");
    }
}

#[test]
fn writers_wait_for_memory_instead_of_failing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let format = FormatOptions { size: Some(1 << 30), ..FormatOptions::default() };
    Volume::format_image(&path, &format).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program_that_writes", "--ignored", "--nocapture"])
        .env("MALLOC_ARENA_MAX", "1")
        .env(IMAGE, &path)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let volume = Volume::open(&path, options()).unwrap();
    check(&volume);
    volume.close().unwrap();
}

#[test]
#[ignore = "a program that writers_wait_for_memory_instead_of_failing starts"]
fn program_that_writes() {
    let path = PathBuf::from(std::env::var_os(IMAGE).expect("started by the other test"));
    let volume = Volume::open(&path, options()).unwrap();
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(address_space() + ROOM), ..before }).unwrap();
    write(&volume);
    check(&volume);
    let measures = volume.measures();
    let cached = measures.iter().find(|measure| measure.name == "cache_used_bytes").unwrap().value;
    setrlimit(Resource::As, before).unwrap();
    assert!(cached < ROOM, "the limit was none: {cached} bytes are cached");
    volume.close().unwrap();
}
