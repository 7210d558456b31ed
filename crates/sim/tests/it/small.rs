//! Small cases: every crash point of short workloads, every short program; and live = recovered.

use quire::inodes::{FallocateMode, IoFlags};
use quire::{FileType, RenameFlags};
use sim::generate::{Profile, Style};
use sim::model::ROOT;
use sim::operation::{GroupEnd, GroupWrite, Name, Operation};
use sim::{exhaustive, live};

#[test]
fn every_crash_of_short_workloads() {
    let mut images = 0;
    for (number, style) in Style::ALL.into_iter().enumerate() {
        for seed in 0..3 {
            let seed = 1000 * number as u64 + seed;
            images += exhaustive::run(seed, 14, Some(style), 6).unwrap_or_else(|what| panic!("{what}"));
        }
    }
    println!("{images} images");
    assert!(images > 500, "only {images} images");
}

#[test]
fn what_is_seen_is_what_a_crash_leaves() {
    let mut images = 0;
    for (number, style) in Style::ALL.into_iter().enumerate() {
        for seed in 0..2 {
            let seed = 1000 * number as u64 + seed;
            images += live::run(seed, 60, Some(style)).unwrap_or_else(|what| panic!("{what}"));
        }
    }
    println!("{images} images");
}

/// Programs of three operations on a file with units of four blocks that ends in its second one, behind each
/// of which a group in another file forces the journal. A size that rose inside a unit came without the write
/// before it; the simulator's long runs met that once in two thousand.
#[test]
fn every_short_program_on_a_unit() {
    const FILE: u64 = 2;
    const OTHER: u64 = 3;
    const UNIT: u64 = 16 << 10;
    let write = |inode, offset, length| Operation::Write { inode, offset, length, flags: IoFlags::empty() };
    let group = |inode, offset, length, end| {
        let writes = vec![GroupWrite { inode, offset, length }];
        Operation::Group { writes, end }
    };
    let create = |name| Operation::Create {
        directory: ROOT,
        name: Name(name),
        kind: quire::FileType::Regular,
        mode: 0o600,
    };
    let prepared = [
        create(0),
        create(1),
        Operation::SetUntorn { inode: FILE, unit: UNIT, file: true },
        write(FILE, 0, 24 << 10),
        write(OTHER, 0, 100),
        Operation::Sync,
    ];
    let alphabet = [
        write(FILE, 18_000, 100),
        write(FILE, 22_000, 6000),
        write(FILE, 12 << 10, 8 << 10),
        group(FILE, 17_000, 5000, GroupEnd::Ordered),
        group(FILE, 34_000, 100, GroupEnd::Now),
        group(FILE, 30_000, 0, GroupEnd::Ordered),
        Operation::Truncate { inode: FILE, size: 30_000 },
        Operation::Truncate { inode: FILE, size: 20_000 },
        Operation::Allocate { inode: FILE, mode: FallocateMode::PunchHole, offset: 17_000, length: 3000 },
        Operation::Fsync { inode: FILE, datasync: true, anew: false },
    ];
    let last = group(OTHER, 0, 100, GroupEnd::Now);
    for group_record_bytes in [None, Some(0)] {
        let profile = Profile { faults: false, group_record_bytes, ..Profile::of(1, Some(Style::Atomic)) };
        let images = exhaustive::programs(&profile, &prepared, &alphabet, 3, &last);
        println!("{} images", images.unwrap_or_else(|what| panic!("{what}")));
    }
}

/// Programs of three operations on the names of two files, one of them in a directory that may go or move.
#[test]
fn every_short_program_on_names() {
    const FILE: u64 = 2;
    const DIRECTORY: u64 = 3;
    const INNER: u64 = 4;
    let create = |directory, name, kind| Operation::Create { directory, name: Name(name), kind, mode: 0o700 };
    let write = |inode, offset, length| Operation::Write { inode, offset, length, flags: IoFlags::empty() };
    let rename = |from, name, to, to_name, flags| Operation::Rename {
        from,
        name: Name(name),
        to,
        to_name: Name(to_name),
        flags,
    };
    let fsync = |inode| Operation::Fsync { inode, datasync: false, anew: false };
    let prepared = [
        create(ROOT, 0, FileType::Regular),
        create(ROOT, 1, FileType::Directory),
        create(DIRECTORY, 2, FileType::Regular),
        write(FILE, 0, 5000),
        write(INNER, 0, 9000),
        Operation::Sync,
    ];
    let alphabet = [
        create(ROOT, 5, FileType::Regular),
        Operation::Link { inode: FILE, directory: DIRECTORY, name: Name(6) },
        Operation::Unlink { directory: ROOT, name: Name(0) },
        Operation::RemoveDirectory { directory: ROOT, name: Name(1) },
        rename(ROOT, 0, DIRECTORY, 2, RenameFlags::empty()),
        rename(DIRECTORY, 2, ROOT, 0, RenameFlags::EXCHANGE),
        rename(ROOT, 1, ROOT, 7, RenameFlags::empty()),
        write(FILE, 4900, 4000),
        Operation::Forget { inode: FILE },
        fsync(FILE),
        fsync(INNER),
        fsync(DIRECTORY),
    ];
    let profile = Profile { faults: false, ..Profile::of(1, Some(Style::Mixed)) };
    let last = fsync(ROOT);
    let images = exhaustive::programs(&profile, &prepared, &alphabet, 3, &last);
    println!("{} images", images.unwrap_or_else(|what| panic!("{what}")));
}
