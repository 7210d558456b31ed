//! Work stays in proportion to the volume: damage that is repeated thousands of times costs thousands of
//! times as much, not the square of it.
//!
//! Each volume here made a check or a repair take minutes once, though a fuzzer, whose inputs are short, had
//! not got there. What counts is the processor's time of the thread, so that a busy machine makes no
//! difference.

use crate::common::*;
use quire::inodes::Create;
use quire::internals::repair::Session;
use quire_base::InodeNo;
use quire_device::simulated::Image;
use quire_format::dirent::{Entry, cookie};
use quire_format::extent::{Extent, FILE_BLOCKS_MAX};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::{Key, KeyKind};
use quire_format::logged::{LoggedKind, LoggedOp};
use quire_format::superblock::FAR_BLOCKS;
use quire_fsck::{IssueKind, Report};
use std::time::Duration;

/// Several times what each of these takes now, and a fraction of what it took.
const TIME_MAX: Duration = Duration::from_secs(4);

/// Time that this thread has had on a processor.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn timed<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let begun = spent();
    let result = work();
    let took = spent() - begun;
    println!("{what}: {} ms", took.as_millis());
    assert!(took < TIME_MAX, "{what} took {took:?}");
    result
}

/// A volume with keys that no engine writes.
fn volume_with(blocks: u64, change: impl FnOnce(&mut Session)) -> Image {
    let backend = device(&format_of(blocks));
    let volume = options().open_backend(backend.clone()).unwrap();
    for name in ["one", "two", "three"] {
        volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o600)).unwrap();
    }
    volume.close().unwrap();
    let mut session = Session::open(backend.clone()).unwrap();
    change(&mut session);
    session.close().unwrap();
    backend.visible()
}

fn put(session: &mut Session, key: Key, value: &[u8]) {
    session.put(key, value);
    if session.pending() > 60 {
        session.commit().unwrap();
    }
}

/// Numbers and records of the regular files.
fn files(session: &Session) -> Vec<(u64, InodeRecord)> {
    let mut found = Vec::new();
    session
        .tree()
        .scan(Key::MIN, Key::MAX, &mut |key, value| {
            if key.kind == KeyKind::Inode {
                let record = InodeRecord::decode(value).unwrap();
                found.extend((record.file_type() == FileType::Regular).then_some((key.object, record)));
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    found
}

/// Opens the damaged volume as a mount does, if it can be opened, and closes it.
fn mount(image: &Image) {
    timed("mount", || {
        if let Ok(volume) = options().open_backend(device(image)) {
            volume.drain_orphans();
            drop(volume.close());
        }
    });
}

fn check_and_mend(image: &Image, expected: IssueKind) -> Report {
    mount(image);
    let report = timed("check", || check(image).unwrap());
    assert!(report.has(expected), "{:#?}", report.issues.first());
    let (report, after) = timed("repair", || repair(image));
    assert_eq!(report.exit_code(), 1, "{:?}", report.issues.iter().find(|issue| !issue.repaired));
    assert_clean(&after, "after the repair");
    report
}

#[test]
fn thousands_of_names_that_cannot_be_restored() {
    // For each, every byte of the name was tried in place of the one that might be wrong: 65,025 hashes.
    let image = volume_with(8192, |session| {
        for number in 0..3000u64 {
            let name = format!("{number:0255}").into_bytes();
            let mut value =
                Entry { inode: InodeNo(2), generation: 1, file_type: FileType::Regular, name: &name }
                    .encode();
            value[16] = 0xee;
            put(session, Key::entry(InodeNo::ROOT, cookie(number * 1000 + 77, 0)), &value);
        }
    });
    check_and_mend(&image, IssueKind::EntryDamaged);
}

#[test]
fn thousands_of_attributes_that_cannot_be_restored() {
    // As with names.
    let image = volume_with(8192, |session| {
        let inode = InodeNo(files(session)[0].0);
        for number in 0..3000u32 {
            let mut value = vec![0xff; 5];
            value[4] = 250;
            value.extend(format!("{number:0250}").into_bytes());
            put(session, Key::xattr(inode, number * 1000 + 5, 0, 0), &value);
        }
    });
    check_and_mend(&image, IssueKind::XattrDamaged);
}

#[test]
fn tens_of_thousands_of_names_with_one_hash() {
    // Each was compared with all before it.
    let image = volume_with(1 << 18, |session| {
        for number in 0..64_000u64 {
            let name = format!("{number:05}");
            let entry = Entry {
                inode: InodeNo(2),
                generation: 1,
                file_type: FileType::Regular,
                name: name.as_bytes(),
            };
            put(session, Key::entry(InodeNo::ROOT, cookie(4711, number as u16)), &entry.encode());
        }
    });
    mount(&image);
    let report = timed("check", || check(&image).unwrap());
    assert!(report.has(IssueKind::EntryMisplaced));
}

#[test]
fn thousands_of_logged_operations() {
    // Each was looked for among all before it.
    let image = volume_with(1 << 18, |session| {
        let (inode, record) = files(session).swap_remove(0);
        for id in 0..15_000 {
            let operation = LoggedOp {
                kind: LoggedKind::Truncate,
                inode: InodeNo(inode + id / 2),
                generation: record.generation,
                start: 0,
                end: FILE_BLOCKS_MAX,
                cursor: FILE_BLOCKS_MAX,
                size: 0,
            };
            put(session, Key::logged(id), &operation.encode());
        }
    });
    check_and_mend(&image, IssueKind::LoggedOperationInvalid);
}

#[test]
fn tens_of_thousands_of_orphans() {
    // Under keys; slots are as many as mkfs made.
    let image = volume_with(1 << 18, |session| {
        let (inode, record) = files(session).swap_remove(0);
        for number in 0..20_000 {
            let inode = InodeNo(inode + 100 + number);
            let record = InodeRecord { nlink: 0, size: 0, blocks: 0, ..record.clone() };
            put(session, Key::inode(inode), &record.encode());
            put(session, Key::orphan(inode), &[]);
        }
    });
    let report = timed("check", || check(&image).unwrap());
    assert_eq!(report.summary.orphans, 20_000);
    mount(&image);
}

/// Gives files one extent in every second file block, and counts to fit; where they are is `place`'s to say.
fn fragment(session: &mut Session, count: u64, place: impl Fn(u64, u64) -> Extent) {
    for (number, (inode, record)) in files(session).into_iter().take(2).enumerate() {
        for at in 0..count {
            let extent = place(number as u64, at);
            put(session, Key::extent(InodeNo(inode), extent.file_block), &extent.encode());
        }
        let record = InodeRecord { size: count * 8192, blocks: count, ..record };
        put(session, Key::inode(InodeNo(inode)), &record.encode());
    }
}

#[test]
fn a_file_with_thousands_of_extents_past_the_end() {
    // For each, all extents of the file were read and written anew.
    let image = volume_with(8192, |session| {
        fragment(session, 10_000, |_, at| Extent {
            file_block: at * 2,
            disk_block: quire_base::BlockNo((1 << 30) + at * 2),
            len: 1,
            unwritten: false,
            birth: 0,
        });
    });
    check_and_mend(&image, IssueKind::ExtentOutOfRange);
}

#[test]
fn two_files_that_share_thousands_of_blocks() {
    // As above, and a flush for each.
    let image = volume_with(32768, |session| {
        let start = session.superblock().data_start.0 + 100;
        fragment(session, 8000, |_, at| Extent {
            file_block: at * 2,
            disk_block: quire_base::BlockNo(start + at),
            len: 1,
            unwritten: false,
            birth: 0,
        });
    });
    check_and_mend(&image, IssueKind::ExtentShared);
}

#[test]
fn a_small_volume_that_says_that_it_is_huge() {
    // What a volume has in memory for its size is little, and a sparse file of a pebibyte is easily made.
    let small = volume_with(8192, |_| {});
    for blocks in [1u64 << 30, 1 << 38] {
        let mut image = Image::new(blocks);
        small.for_each(&mut |at, block| image.write(at, block));
        let mut editor = crate::common::editor::Editor::new(&image);
        for slot in 0..2 {
            editor.set_superblock(slot, |superblock| {
                superblock.block_count = blocks;
                superblock.data_end.0 = blocks - FAR_BLOCKS;
            });
        }
        check_and_mend(&editor.image, IssueKind::FreeBlocksWrong);
    }
}
