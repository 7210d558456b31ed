//! What programs know of ext4 and find on a mount too.
//!
//! Needs root and `/dev/fuse`; says so and passes where they are missing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::fs::SeekFrom;

use crate::mounted::{Map, code, create, on_all, program_file, run_program};

/// The kernel had stores to a mapping in its pages when it asked for holes, and their place was called one:
/// `cp` lost them.
#[test]
fn stores_to_a_mapping_are_no_hole() {
    on_all(|mounted| {
        run_program("as_on_ext4::program_that_stores_and_copies", &mounted.path("stored"));
        // A file that is read only keeps its holes.
        let path = mounted.path("sparse");
        fs::write(&path, b"").unwrap();
        fs::File::options().write(true).open(&path).unwrap().write_all_at(b"x", 1 << 20).unwrap();
        let file = File::open(&path).unwrap();
        file.read_exact_at(&mut [0; 4096], 4096).unwrap();
        let first = if mounted.is_told_at_once() { 1 << 20 } else { 0 };
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), first);
    });
}

#[test]
#[ignore = "a program that the test of stores starts"]
fn program_that_stores_and_copies() {
    const SIZE: u64 = 1 << 20;
    const AT: u64 = 64 << 10;
    let path = program_file();
    let file = create(&path);
    file.set_len(SIZE).unwrap();
    let map = Map::new(&file, SIZE as usize, libc::MAP_SHARED);
    map.put(AT as usize, b"stored");
    let other = File::open(&path).unwrap();
    let seek = |from| rustix::fs::seek(&other, from);
    assert!(seek(SeekFrom::Data(0)).unwrap() <= AT);
    assert_eq!(seek(SeekFrom::Data(AT)).unwrap(), AT);
    assert!(seek(SeekFrom::Hole(AT)).unwrap() > AT);
    assert_eq!(seek(SeekFrom::Hole(SIZE - 1)).unwrap(), SIZE);
    for from in [SeekFrom::Data(SIZE), SeekFrom::Hole(SIZE), SeekFrom::Data(SIZE + 1)] {
        assert_eq!(code(seek(from).map_err(Into::into)), libc::ENXIO);
    }
    let copy = path.with_extension("copy");
    // Without a copy by the kernel, which writes the pages back.
    let status = Command::new("cp").args(["--sparse=auto", "--reflink=never"]).args([&path, &copy]).status();
    assert!(status.unwrap().success());
    let mut bytes = [0; 6];
    File::open(&copy).unwrap().read_exact_at(&mut bytes, AT).unwrap();
    assert_eq!(&bytes, b"stored");
    drop(map);
}
