//! A system that has no memory left for the cache (a limit of the process, a container's) refused most of a
//! stream of writes: 5,376 of 6,400 pieces failed for want of memory, though the cache had clean and dirty
//! folios to give up. Writers wait for these instead, and none fails.
//!
//! Where the cache got less memory than may be dirty, a large write span: it made folios, found too few,
//! reclaimed these very ones, the only clean ones, and began again. Now it writes something back before it
//! tries for the third time.
//!
//! The limit is a process's, so the writer is a process of its own. The C library's heap must not take room
//! in large pieces meanwhile, so it has one arena; what the cache cannot map leaves enough for it.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]

use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::Command;

const FILE_BYTES: usize = 400 << 20;
/// One of the cache's mappings, as address space.
const BATCH: u64 = 66 << 20;
/// What a process with such a limit may take beside what it has and what the cache gets.
const OTHERS: u64 = 48 << 20;
/// Processor time that a process has, against one that spins.
const SECONDS_MAX: u64 = 300;
/// Name the image and the case of [`program_that_writes`].
const IMAGE: &str = "QUIRE_TEST_IMAGE";
const CASE: &str = "QUIRE_TEST_CASE";

struct Case {
    name: &'static str,
    /// Bytes a write.
    piece: usize,
    /// From each piece written to the next; 1 is a stream.
    stride: usize,
    /// What the process may take beside what it has.
    room: u64,
}

/// More memory than may be dirty before background threads write.
const PLENTY: Case = Case { name: "plenty", piece: 64 << 10, stride: 1, room: 2 * BATCH + OTHERS };
/// Less, and writes of which the last finds room for a part of its blocks.
const LITTLE: Case = Case { name: "little", piece: (1 << 20) - 12_345, stride: 7, room: BATCH + OTHERS };

impl Case {
    fn piece(&self, n: usize) -> Vec<u8> {
        vec![(n % 251) as u8 + 1; self.piece]
    }

    fn pieces(&self) -> usize {
        FILE_BYTES / self.piece
    }

    fn write(&self, volume: &Volume) {
        let file = OpenOptions::new().write(true).create(true).open(volume, "file").unwrap();
        for n in (0..self.pieces()).map(|n| n * self.stride % self.pieces()) {
            file.write_all_at(&self.piece(n), (n * self.piece) as u64).unwrap();
        }
        file.sync_all().unwrap();
    }

    fn check(&self, volume: &Volume) {
        let file = volume.open_file("file").unwrap();
        let mut read = vec![0; self.piece];
        for n in 0..self.pieces() {
            file.read_exact_at(&mut read, (n * self.piece) as u64).unwrap();
            assert!(read == self.piece(n), "piece {n}");
        }
    }

    /// Writes in a process with the limit, and looks at the file without it.
    fn run(&self) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let format = FormatOptions::new().size(1 << 30);
        format.format(&path).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program_that_writes", "--ignored", "--nocapture"])
            .env("MALLOC_ARENA_MAX", "1")
            .env(IMAGE, &path)
            .env(CASE, self.name)
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        let volume = options().open(&path).unwrap();
        self.check(&volume);
        volume.close().unwrap();
    }
}

/// Bytes of address space that the process has.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

fn options() -> VolumeOptions {
    VolumeOptions::new().cache_bytes(1 << 30)
}

#[test]
fn writers_wait_for_memory_instead_of_failing() {
    PLENTY.run();
}

#[test]
fn a_writer_with_less_memory_than_may_be_dirty_goes_on() {
    LITTLE.run();
}

#[test]
#[ignore = "a program that the other tests start"]
fn program_that_writes() {
    let path = PathBuf::from(std::env::var_os(IMAGE).expect("started by another test"));
    let name = std::env::var(CASE).expect("started by another test");
    let case = [PLENTY, LITTLE].into_iter().find(|case| case.name == name).expect("one of them");
    let volume = options().open(&path).unwrap();
    let before = getrlimit(Resource::As);
    setrlimit(Resource::Cpu, Rlimit { current: Some(SECONDS_MAX), ..getrlimit(Resource::Cpu) }).unwrap();
    setrlimit(Resource::As, Rlimit { current: Some(address_space() + case.room), ..before }).unwrap();
    case.write(&volume);
    case.check(&volume);
    let cached = volume.metrics()["cache_used_bytes"];
    setrlimit(Resource::As, before).unwrap();
    assert!(cached < case.room, "the limit was none: {cached} bytes are cached");
    volume.close().unwrap();
}
