//! Fixed values and their bytes. If one of these fails, the format has changed: that needs a new format
//! version, not new bytes here.

use quire_base::{BlockNo, InodeNo, Timestamp};
use quire_format::dirent::{self, Entry};
use quire_format::extent::Extent;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use quire_format::record::{self, Change};
use quire_format::region::RegionMap;
use quire_format::xattr;

const SEED: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    let expected: String = expected.split_whitespace().collect();
    assert_eq!(hex(bytes), expected);
}

#[test]
fn inode() {
    let record = InodeRecord {
        mode: FileType::Directory.to_mode() | 0o1755,
        flags: 0x0a0b_0c0d,
        uid: 1000,
        gid: 1001,
        nlink: 3,
        xattr_bytes: 77,
        size: 0x0102_0304_0506_0708,
        blocks: 9,
        atime: Timestamp(-1),
        mtime: Timestamp(1_700_000_000_123_456_789),
        ctime: Timestamp(2),
        btime: Timestamp(i64::MIN),
        generation: 0x1122_3344_5566_7788,
        rdev: 0,
        parent: 1,
    };
    check(
        &record.encode(),
        "ed430000 0d0c0b0a e8030000 e9030000 03000000 4d000000 0807060504030201 0900000000000000
         ffffffffffffffff 15cd853dfe9c9717 0200000000000000 0000000000000080
         8877665544332211 0000000000000000 0100000000000000",
    );
}

#[test]
fn extent() {
    let extent = Extent {
        file_block: 7,
        disk_block: BlockNo(0x0001_0203_0405_0607),
        len: 0x8000,
        unwritten: true,
        birth: 0x1011,
    };
    check(&extent.encode(), "0706050403020100 11100000 0080 0100");
}

#[test]
fn region() {
    let mut map = RegionMap::new();
    map.set_used(1, 2).unwrap();
    map.set_used(4000, 96).unwrap();
    check(&map.encode().unwrap(), "01 0100 0100 a00f 5f00");
    map.set_used(0, 1).unwrap();
    map.set_used(3, 3997).unwrap();
    check(&map.encode().unwrap(), "00");
    let mut odd = RegionMap::new();
    for block in (1..4096).step_by(2) {
        odd.set_used(block, 1).unwrap();
    }
    check(&odd.encode().unwrap(), &format!("02 {}", "aa".repeat(512)));
}

#[test]
fn directory_entry() {
    let entry =
        Entry { inode: InodeNo(0x0102), generation: 0x0304, file_type: FileType::Regular, name: b"name" };
    check(&entry.encode(), "0201000000000000 0403000000000000 08 6e616d65");
    // The published vector of SipHash-1-3: no bytes under the key 00 01 .. 0f give abac0158050fc4dc.
    assert_eq!(dirent::name_hash(SEED, b""), 0x55d6_00ac_0287);
    assert_eq!(dirent::cookie(0x1234_5678_9abc, 7), 0x1234_5678_9abc_0007);
}

#[test]
fn extended_attribute() {
    let pieces = xattr::encode(b"user.a", b"value").unwrap();
    assert_eq!(pieces.len(), 1);
    check(&pieces[0], "05000000 06 757365722e61 76616c7565");
}

#[test]
fn logged_operation() {
    let op = LoggedOp {
        kind: LoggedKind::Insert,
        inode: InodeNo(2),
        generation: 3,
        start: 4,
        end: 5,
        cursor: 6,
        size: 7,
    };
    let words: String = (2..8).map(|n| format!("{n:02x}00000000000000")).collect();
    check(&op.encode(), &format!("0400000000000000 {words}"));
}

#[test]
fn transaction() {
    let extent = |file_block, disk_block, len, unwritten| Extent {
        file_block,
        disk_block: BlockNo(disk_block),
        len,
        unwritten,
        birth: u32::from(file_block == 3) * 0x81,
    };
    let changes = [
        Change::Put { key: Key::inode(InodeNo(300)), value: vec![0xaa, 0xbb] },
        Change::Delete { key: Key::entry(InodeNo(1), 0x0102_0304_0506_0708) },
        Change::Extents {
            inode: InodeNo(300),
            removed: vec![extent(2, 100, 4, true)],
            inserted: vec![extent(2, 100, 1, false), extent(3, 90, 3, true)],
        },
        Change::OrphanSet { slot: 128, inode: InodeNo(5) },
        Change::OrphanClear { slot: 1, inode: InodeNo(6) },
        Change::PoolGrow { start: BlockNo(4096), blocks: 1024 },
        Change::PoolShrink { start: BlockNo(1), blocks: 2 },
        Change::Delete { key: Key::logged(9) },
    ];
    let mut encoder = record::Encoder::new();
    changes.iter().for_each(|change| encoder.push(change));
    let bytes = encoder.finish();
    check(
        &bytes,
        "01 10 ac02 00 02 aabb
         02 13 01 0807060504030201
         03 ac02 01 02  02 c801 11  02 c801 04  00 15 0f 8101
         04 8001 05
         05 01 06
         06 8020 8008
         07 01 02
         02 08 00 09",
    );
    assert_eq!(record::decode(&bytes).unwrap(), changes);

    let bytes: std::sync::Arc<[u8]> = vec![0x5a; 4096].into();
    let data = [Change::Data { start: BlockNo(300), bytes }];
    let mut encoder = record::Encoder::new();
    encoder.push(&data[0]);
    check(&encoder.finish(), &format!("08 ac02 01 {}", "5a".repeat(4096)));
}
