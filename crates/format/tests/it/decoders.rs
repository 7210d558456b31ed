//! Whatever bytes come from disk, decoders give a value or an error of kind `Corrupt`; and what they accept,
//! encodes to the same bytes again.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, InodeNo, Result, Timestamp};
use quire_format::dirent::{Entry, cookie};
use quire_format::extent::Extent;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use quire_format::logged::LoggedOp;
use quire_format::receive::{SnapshotId, Token, Unfinished};
use quire_format::record::{self, Change, Encoder};
use quire_format::region::RegionMap;
use quire_format::scrub::LastScrub;
use quire_format::snapshot::Snapshot;
use quire_format::xattr;

fn same<T>(bytes: &[u8], decoded: Result<T>, encode: impl FnOnce(T) -> Vec<u8>) {
    match decoded {
        Ok(value) => assert_eq!(encode(value), bytes),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
    }
}

fn encode_all(changes: &[Change]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    changes.iter().for_each(|change| encoder.push(change));
    encoder.finish()
}

fn every_decoder(bytes: &[u8]) {
    same(bytes, InodeRecord::decode(bytes), |v| v.encode().to_vec());
    same(bytes, Extent::decode(3, bytes), |v| v.encode().to_vec());
    same(bytes, RegionMap::decode(bytes), |v| v.encode().unwrap());
    same(bytes, Entry::decode(bytes), |v| v.encode());
    same(bytes, LoggedOp::decode(bytes), |v| v.encode().to_vec());
    same(bytes, xattr::assemble([bytes]), |(name, value)| xattr::encode(name, &value).unwrap().concat());
    same(bytes, record::decode(bytes), |v| encode_all(&v));
    same(bytes, SnapshotId::decode(bytes), |v| v.encode().to_vec());
    same(bytes, Unfinished::decode(bytes), |v| v.encode());
    if let Ok(snapshot) = Snapshot::decode(bytes) {
        assert_eq!(Snapshot::decode(&snapshot.encode()).unwrap(), snapshot);
    }
    if let Ok(token) = std::str::from_utf8(bytes).unwrap_or_default().parse::<Token>() {
        assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
    }
    if let Some(scrub) = bytes.first_chunk().and_then(LastScrub::decode) {
        assert_eq!(LastScrub::decode(&LastScrub::encode(Some(&scrub))), Some(scrub));
    }
}

fn list() -> impl Strategy<Value = Vec<Extent>> {
    vec((0u64..1 << 20, 1u64..1 << 40, 1u32..=32768, any::<bool>()), 0..6).prop_map(|parts| {
        let mut file = 0;
        let place = |(gap, disk_block, len, unwritten)| {
            let extent = Extent {
                file_block: file + gap,
                disk_block: BlockNo(disk_block),
                len,
                unwritten,
                birth: len % 3,
            };
            file = extent.file_end();
            extent
        };
        parts.into_iter().map(place).collect()
    })
}

fn key() -> impl Strategy<Value = Key> {
    let inode = (1u64..).prop_map(InodeNo);
    prop_oneof![
        any::<u64>().prop_map(Key::logged),
        (1..=u32::MAX).prop_map(Key::snapshot),
        any::<u32>().prop_map(Key::received),
        inode.clone().prop_map(Key::orphan),
        inode.clone().prop_map(Key::inode),
        (inode.clone(), any::<u64>()).prop_map(|(inode, piece)| Key::symlink(inode, piece)),
        (inode.clone(), any::<u32>(), any::<u16>(), any::<u16>())
            .prop_map(|(i, h, d, p)| Key::xattr(i, h, d, p)),
        (inode, 1u64..1 << 47, 0u16..=0xfffe).prop_map(|(i, hash, d)| Key::entry(i, cookie(hash, d))),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let inode = (1u64..).prop_map(InodeNo);
    let chunk = (1u64..1 << 50, 1u32..).prop_map(|(start, blocks)| (BlockNo(start), blocks));
    prop_oneof![
        (key(), vec(any::<u8>(), 0..1088)).prop_map(|(key, value)| Change::Put { key, value }),
        key().prop_map(|key| Change::Delete { key }),
        (inode.clone(), list(), list())
            .prop_filter("some extent", |(_, removed, inserted)| !removed.is_empty() || !inserted.is_empty())
            .prop_map(|(inode, removed, inserted)| Change::Extents { inode, removed, inserted }),
        (any::<u32>(), inode.clone()).prop_map(|(slot, inode)| Change::OrphanSet { slot, inode }),
        (any::<u32>(), inode).prop_map(|(slot, inode)| Change::OrphanClear { slot, inode }),
        chunk.clone().prop_map(|(start, blocks)| Change::PoolGrow { start, blocks }),
        chunk.clone().prop_map(|(start, blocks)| Change::PoolShrink { start, blocks }),
        chunk.prop_map(|(start, blocks)| Change::Reclaim { start, blocks }),
        (1u64..1 << 50, any::<u8>()).prop_map(|(start, byte)| Change::Data {
            start: BlockNo(start),
            bytes: [byte; BLOCK_SIZE].into()
        }),
    ]
}

proptest! {
    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..1200)) {
        every_decoder(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_likely_start(tag in 0u8..10, kind in 0u8..22, bytes in vec(0u8..=0x90, 0..60)) {
        every_decoder(&[&[tag, kind], &bytes[..]].concat());
        every_decoder(&[&[tag], &bytes[..]].concat());
    }

    #[test]
    fn transactions_survive(changes in vec(change(), 1..8)) {
        let bytes = encode_all(&changes);
        prop_assert_eq!(record::decode(&bytes).unwrap(), changes.clone());
        prop_assert!(changes.iter().all(|change| !change.describe().is_empty()));
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 2048) {
            every_decoder(&bytes[..cut]);
        }
    }

    #[test]
    fn damaged_transactions(changes in vec(change(), 1..4), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = encode_all(&changes);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        every_decoder(&bytes);
    }

    #[test]
    fn inodes_survive(
        kind in prop::sample::select(FileType::ALL.to_vec()), words in any::<[u32; 6]>(), times in any::<[i64; 4]>(),
        size in 0..=i64::MAX as u64, blocks in 0u64..1 << 51, rdev: u64, parent: u64,
    ) {
        let record = InodeRecord {
            mode: kind.to_mode() | words[0] & 0o7777,
            flags: words[1],
            uid: words[2],
            gid: words[3],
            nlink: words[4],
            xattr_bytes: words[5],
            size: if kind == FileType::Symlink { size % 4096 } else { size },
            blocks,
            atime: Timestamp(times[0]),
            mtime: Timestamp(times[1]),
            ctime: Timestamp(times[2]),
            btime: Timestamp(times[3]),
            generation: rdev ^ parent,
            rdev,
            parent: if kind == FileType::Directory { parent } else { 0 },
        };
        prop_assert_eq!(InodeRecord::decode(&record.encode()).unwrap(), record);
    }
}
