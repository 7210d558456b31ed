//! What superblocks are written as, and which are refused.

use super::bytes::CRC_AT;
use super::*;
use crate::extent::Run;
use proptest::prelude::*;
use quire_base::BLOCK_SIZE;

pub(crate) fn sample() -> Superblock {
    Superblock {
        version: (FORMAT_MAJOR, FORMAT_MINOR),
        flags: FLAG_CLEAN,
        feature_compat: 0x11,
        feature_ro_compat: 0,
        feature_incompat: 0,
        uuid: *b"0123456789abcdef",
        changed_uuid: [0; 16],
        label: Superblock::pad_label("Vorrat").unwrap(),
        block_count: 262_144,
        slot: 1,
        checkpoint: 7,
        incarnation: 3,
        journal_start: JOURNAL_START,
        journal_blocks: 1024,
        sequence: Seq(4032 * 5000),
        root: NodeRef {
            block: BlockNo(2000),
            twin: BlockNo(131_100),
            generation: 6,
            crc: 0xdead_beef,
            level: 2,
        },
        manifest: ManifestRef { block: BlockNo(2001), twin: BlockNo(131_101), crc: 0x1234_5678, count: 2 },
        orphan_blocks: 4,
        mount_count: 9,
        pool_start: BlockNo(1040),
        pool_blocks: 2048,
        data_start: BlockNo(3088),
        data_end: BlockNo(262_128),
        mirror_start: BlockNo(131_072),
        mirror_blocks: 2048,
        free_blocks: 200_000,
        inode_count: 41,
        next_inode: 100,
        hash_seed: [0x0102_0304_0506_0708, 0x1112_1314_1516_1718],
        created: Timestamp(-5),
        mounted: Timestamp(1_700_000_000_000_000_000),
        checkpointed: Timestamp(1_700_000_001_000_000_000),
        metadata_copies: 2,
        epoch: 0,
        space_root: NodeRef {
            block: BlockNo(2002),
            twin: BlockNo(131_102),
            generation: 5,
            crc: 0x0bad_cafe,
            level: 1,
        },
        scrub: None,
    }
}

/// Makes a block check again after a change to its bytes.
fn seal(block: &mut [u8; BLOCK_SIZE]) {
    let crc = crc32c_without(block, CRC_AT);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

fn kind(block: &[u8]) -> ErrorKind {
    Superblock::decode(block).unwrap_err().kind()
}

#[test]
fn what_is_written_is_read() {
    let superblock = sample();
    assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    assert_eq!(superblock.label(), "Vorrat");
    assert_eq!(superblock.journal_end(), BlockNo(1040));
}

/// The bytes of a known superblock: a change here is a change of the format.
#[test]
fn golden_bytes() {
    let block = sample().encode();
    let golden: &[(usize, &[u8])] = &[
        (0, b"QUIRE\0FS"),
        (12, &[3, 0, 0, 0, 0, 0, 0, 0]),
        (20, &[1, 0, 0, 0]),
        (24, &[0x11, 0, 0, 0, 0, 0, 0, 0]),
        (48, b"0123456789abcdef"),
        (64, b"Vorrat\0"),
        (128, &[0, 16, 0, 0, 1, 0, 0, 0]),
        (136, &[0, 0, 4, 0, 0, 0, 0, 0]),
        (144, &[7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]),
        (160, &[16, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]),
        (176, &20_160_000u64.to_le_bytes()),
        (184, &[0xd0, 7, 0, 0, 0, 0, 0, 0, 0x1c, 0, 2, 0, 0, 0, 0, 0]),
        (200, &[6, 0, 0, 0, 0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 2, 0, 0, 0]),
        (216, &[0xd1, 7, 0, 0, 0, 0, 0, 0, 0x1d, 0, 2, 0, 0, 0, 0, 0]),
        (232, &[0x78, 0x56, 0x34, 0x12, 2, 0, 0, 0]),
        (240, &[4, 0, 0, 0, 9, 0, 0, 0]),
        (248, &[0x10, 4, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]),
        (264, &[0x10, 0x0c, 0, 0, 0, 0, 0, 0, 0xf0, 0xff, 3, 0, 0, 0, 0, 0]),
        (280, &[0, 0, 2, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]),
        (296, &200_000u64.to_le_bytes()),
        (304, &[41, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]),
        (320, &[8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
        (336, &[0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (360, &[2, 0, 0, 0, 0, 0, 0, 0]),
        (368, &[0xd2, 7, 0, 0, 0, 0, 0, 0, 0x1e, 0, 2, 0, 0, 0, 0, 0]),
        (384, &[5, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xca, 0xad, 0x0b, 1, 0, 0, 0]),
    ];
    for (at, bytes) in golden {
        assert_eq!(&block[*at..*at + bytes.len()], *bytes, "at offset {at}");
    }
    assert!(block[400..].iter().all(|byte| *byte == 0));
    assert_eq!(u32::from_le_bytes(block[8..12].try_into().unwrap()), GOLDEN_CRC);
}
const GOLDEN_CRC: u32 = 3_030_137_726;

#[test]
fn each_kind_of_refusal() {
    assert_eq!(kind(&[0; BLOCK_SIZE]), ErrorKind::NotAVolume);
    assert_eq!(kind(&MAGIC), ErrorKind::NotAVolume);
    let mut block = sample().encode();
    block[4000] ^= 1;
    assert_eq!(kind(&block), ErrorKind::Corrupt);

    let most = orphan_blocks_max(sample().block_count);
    assert_eq!(most, 4096);
    assert!(Superblock::decode(&Superblock { orphan_blocks: most, ..sample() }.encode()).is_ok());
    let too_many = Superblock { orphan_blocks: most + 1, ..sample() };
    assert_eq!(kind(&too_many.encode()), ErrorKind::Corrupt);

    let newer = Superblock { version: (FORMAT_MAJOR + 1, 0), ..sample() };
    assert_eq!(kind(&newer.encode()), ErrorKind::UnknownFormat);
    let minor = Superblock { version: (FORMAT_MAJOR, 77), ..sample() };
    assert!(Superblock::decode(&minor.encode()).is_ok());
    let unknown = Superblock { feature_incompat: 1 << 5 | 1 << 63, ..sample() };
    let error = Superblock::decode(&unknown.encode()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownFormat);
    assert!(error.to_string().contains("bit 5, bit 63"), "{error}");
    let read_only = Superblock { feature_ro_compat: 2, ..sample() };
    let read_only = Superblock::decode(&read_only.encode()).unwrap();
    assert_eq!(read_only.read_only_because().unwrap().kind(), ErrorKind::ReadOnly);
    assert!(sample().read_only_because().is_none());
}

/// The journal of [`sample`], moved to the data space, where the old one is free now.
fn moved() -> Superblock {
    Superblock {
        feature_incompat: INCOMPAT_JOURNAL_MOVED,
        journal_start: BlockNo(10_000),
        journal_blocks: 4096,
        data_start: JOURNAL_START,
        ..sample()
    }
}

#[test]
fn a_moved_journal_lies_within_the_data_space() {
    let superblock = moved();
    assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    let run = |start, blocks| Run::new(BlockNo(start), blocks);
    for free in [run(16, 1024), run(3088, 6912), run(14_096, 100), run(262_127, 1)] {
        assert!(superblock.may_hold_data(free), "{free:?}");
    }
    for kept in [run(15, 2), run(16, 1025), run(2000, 1), run(9999, 2), run(12_000, 1), run(262_127, 2)] {
        assert!(!superblock.may_hold_data(kept), "{kept:?}");
    }
    assert!(sample().may_hold_data(run(10_000, 1)) && !sample().may_hold_data(run(3087, 1)));
    let bad: [fn(&mut Superblock); 9] = [
        |s| s.feature_incompat = 0,
        |s| s.journal_start = BlockNo(8),
        |s| s.journal_start = BlockNo(u64::MAX - 4095),
        |s| s.journal_start = BlockNo(262_127),
        |s| s.journal_start = BlockNo(3000),
        |s| s.journal_start = BlockNo(131_072 - 1),
        |s| s.pool_start = BlockNo(131_072),
        |s| s.data_start = BlockNo(3088),
        |s| s.root.block = BlockNo(10_001),
    ];
    for (number, spoil) in bad.iter().enumerate() {
        let mut superblock = moved();
        spoil(&mut superblock);
        assert_eq!(kind(&superblock.encode()), ErrorKind::Corrupt, "case {number}");
    }
}

#[test]
fn contradictions_are_corrupt() {
    let bad: [fn(&mut Superblock); 33] = [
        |s| s.slot = 2,
        |s| s.block_count = BLOCK_COUNT_MAX + 1,
        |s| s.block_count = 3000,
        |s| s.journal_start = BlockNo(8),
        |s| s.journal_start = BlockNo(u64::MAX),
        |s| s.journal_blocks = 1 << 40,
        |s| s.journal_blocks = 3,
        |s| s.sequence = Seq(17),
        |s| s.sequence = Seq(u64::MAX / 4032 * 4032),
        |s| s.pool_start = BlockNo(100),
        |s| s.pool_blocks = u64::MAX,
        |s| s.data_start = BlockNo(2000),
        |s| s.data_start = BlockNo(1 << 30),
        |s| s.free_blocks = 262_144,
        |s| s.root.block = BlockNo(20),
        |s| s.root.generation = 8,
        |s| s.manifest.count = 0,
        |s| s.next_inode = 41,
        |s| s.data_end = BlockNo(262_129),
        |s| s.data_end = BlockNo(3000),
        |s| s.metadata_copies = 0,
        |s| s.metadata_copies = 1,
        |s| s.metadata_copies = 3,
        |s| s.root.twin = NO_TWIN,
        |s| s.root.twin = s.root.block,
        |s| s.root.twin = BlockNo(20),
        |s| s.manifest.twin = BlockNo(262_144),
        |s| s.mirror_start = BlockNo(3000),
        |s| s.mirror_blocks = 1 << 20,
        |s| s.mirror_blocks = 0,
        |s| s.space_root.block = s.root.block,
        |s| s.space_root.generation = 8,
        |s| s.space_root.twin = NO_TWIN,
    ];
    for (number, spoil) in bad.iter().enumerate() {
        let mut superblock = sample();
        spoil(&mut superblock);
        assert_eq!(kind(&superblock.encode()), ErrorKind::Corrupt, "case {number}");
    }
    let mut block = sample().encode();
    block[64] = 0xff;
    seal(&mut block);
    assert_eq!(kind(&block), ErrorKind::Corrupt);
    assert!(Superblock::pad_label(&"x".repeat(65)).is_err());
    assert!(Superblock::pad_label("a\0b").is_err());
}

proptest! {
    /// No bytes make the decoder panic, and what it takes it would write again.
    #[test]
    fn any_bytes(changes in proptest::collection::vec((12usize..400, any::<u8>()), 0..20)) {
        let mut block = sample().encode();
        for (at, byte) in changes {
            block[at] = byte;
        }
        seal(&mut block);
        if let Ok(superblock) = Superblock::decode(&block) {
            prop_assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
        }
    }
}

/// A label with a line break and an escape sequence could forge lines of `quire info`, and drive a terminal.
#[test]
fn labels_have_no_control_characters() {
    for label in ["zero\0", "line\nbreak", "\u{1b}[31m"] {
        assert_eq!(Superblock::pad_label(label).unwrap_err().kind(), ErrorKind::Invalid, "{label:?}");
    }
    assert_eq!(
        Superblock { label: Superblock::pad_label("Größe 1").unwrap(), ..sample() }.label(),
        "Größe 1"
    );
}
