//! The tables against the encoders: the same fields in the same places.

use super::*;
use crate::dirent::Entry;
use crate::extent::Extent;
use crate::inode::{FileType, InodeRecord};
use crate::journal::BlockHeader;
use crate::logged::{LoggedKind, LoggedOp};
use crate::node::{Bounds, NodeIdentity, NodePage, NodeRef};
use crate::place::Place;
use crate::pool::{ChunkEntry, ManifestPage, ManifestRef, NextPage, OrphanRef, PageIdentity, PageStamp};
use crate::scrub::LastScrub;
use crate::snapshot::Snapshot;
use crate::superblock::Superblock;
use quire_base::{BlockNo, InodeNo, Seq, Timestamp};
use std::collections::BTreeSet;

#[test]
fn fields_cover_every_byte_once() {
    for layout in ALL {
        let mut at = 0;
        for field in layout.fields {
            assert_eq!(field.offset, at, "{}: {}", layout.name, field.name);
            assert!(field.width > 0 && field.count > 0);
            at = field.end();
        }
        assert_eq!(at, layout.bytes, "{}", layout.name);
        let named = layout.fields.iter().filter(|field| field.kind != FieldKind::Zero);
        let names: BTreeSet<_> = named.clone().map(|field| field.name).collect();
        assert_eq!(names.len(), named.count(), "{} has a name twice", layout.name);
    }
    let names: BTreeSet<_> = ALL.iter().map(|layout| layout.name).collect();
    assert_eq!(names.len(), ALL.len());
}

/// A field's name, and what changes it.
type Change<T> = (&'static str, fn(&mut T));

/// Changes one field of a value at a time: no byte but the field's (and a checksum's) may change, and the
/// field's lowest byte must.
fn same_places<T: Clone>(layout: &Layout, value: &T, encode: impl Fn(&T) -> Vec<u8>, changes: &[Change<T>]) {
    let before = encode(value);
    for (name, change) in changes {
        let field = layout.field(name).unwrap_or_else(|| panic!("{} has no {name}", layout.name));
        let mut changed = value.clone();
        change(&mut changed);
        let after = encode(&changed);
        assert_ne!(before[field.offset], after[field.offset], "{}: {name}", layout.name);
        for at in 0..layout.bytes {
            let own = (field.offset..field.end()).contains(&at);
            let crc = layout
                .fields
                .iter()
                .any(|other| other.kind == FieldKind::Checksum && (other.offset..other.end()).contains(&at));
            assert!(own || crc || before[at] == after[at], "{}: {name} changes byte {at}", layout.name);
        }
    }
    let left_out = layout.fields.iter().filter(|field| {
        !changes.iter().any(|(name, _)| *name == field.name)
            && !matches!(field.kind, FieldKind::Zero | FieldKind::Checksum)
            && field.name != "magic"
    });
    assert_eq!(left_out.map(|field| field.name).collect::<Vec<_>>(), [""; 0], "{}", layout.name);
}

/// A layout without some of its fields, which depend on others.
fn without(names: &[&str], layout: &Layout) -> Layout {
    let fields = layout.fields.iter().filter(|field| !names.contains(&field.name));
    Layout { fields: Vec::leak(fields.copied().collect()), ..*layout }
}

fn superblock() -> Superblock {
    Superblock {
        version: (2, 0),
        flags: 0,
        feature_compat: 0,
        feature_ro_compat: 0,
        feature_incompat: 0,
        uuid: [0; 16],
        changed_uuid: [0; 16],
        label: [0; 64],
        block_count: 0,
        slot: 0,
        checkpoint: 0,
        incarnation: 0,
        journal_start: BlockNo(0),
        journal_blocks: 0,
        sequence: Seq(0),
        root: NO_NODE,
        manifest: ManifestRef { block: BlockNo(0), twin: BlockNo(0), crc: 0, count: 0 },
        orphan_blocks: 0,
        mount_count: 0,
        pool_start: BlockNo(0),
        pool_blocks: 0,
        data_start: BlockNo(0),
        data_end: BlockNo(0),
        mirror_start: BlockNo(0),
        mirror_blocks: 0,
        free_blocks: 0,
        inode_count: 0,
        next_inode: 0,
        hash_seed: [0; 2],
        created: Timestamp(0),
        mounted: Timestamp(0),
        checkpointed: Timestamp(0),
        metadata_copies: 0,
        epoch: 0,
        space_root: NO_NODE,
        scrub: None,
    }
}

const NO_NODE: NodeRef = NodeRef { block: BlockNo(0), twin: BlockNo(0), generation: 0, crc: 0, level: 0 };

/// Changes the root of the space tree.
fn space(superblock: &mut Superblock, change: fn(&mut NodeRef)) {
    change(&mut superblock.space_root);
}

#[test]
fn superblocks_are_as_the_table_says() {
    let mut changes: Vec<Change<Superblock>> = vec![
        ("major version", |s| s.version.0 = 9),
        ("minor version", |s| s.version.1 = 9),
        ("flags", |s| s.flags = 1),
        ("features, compatible", |s| s.feature_compat = 1),
        ("features, read-only compatible", |s| s.feature_ro_compat = 1),
        ("features, incompatible", |s| s.feature_incompat = 1),
        ("uuid", |s| s.uuid = [1; 16]),
        ("uuid, changed", |s| s.changed_uuid = [1; 16]),
        ("label", |s| s.label = [1; 64]),
        ("slot", |s| s.slot = 1),
        ("block count", |s| s.block_count = 1),
        ("checkpoint", |s| s.checkpoint = 1),
        ("incarnation", |s| s.incarnation = 1),
        ("journal start", |s| s.journal_start.0 = 1),
        ("journal blocks", |s| s.journal_blocks = 1),
        ("sequence", |s| s.sequence.0 = 1),
        ("root: block", |s| s.root.block.0 = 1),
        ("root: twin", |s| s.root.twin.0 = 1),
        ("root: checkpoint", |s| s.root.generation = 1),
        ("root: crc", |s| s.root.crc = 1),
        ("root: level", |s| s.root.level = 1),
        ("manifest: block", |s| s.manifest.block.0 = 1),
        ("manifest: twin", |s| s.manifest.twin.0 = 1),
        ("manifest: crc", |s| s.manifest.crc = 1),
        ("manifest: count", |s| s.manifest.count = 1),
        ("orphan blocks", |s| s.orphan_blocks = 1),
        ("mount count", |s| s.mount_count = 1),
    ];
    changes.extend([
        ("pool start", (|s| s.pool_start.0 = 1) as fn(&mut Superblock)),
        ("pool blocks", |s| s.pool_blocks = 1),
        ("data start", |s| s.data_start.0 = 1),
        ("data end", |s| s.data_end.0 = 1),
        ("mirror start", |s| s.mirror_start.0 = 1),
        ("mirror blocks", |s| s.mirror_blocks = 1),
        ("free blocks", |s| s.free_blocks = 1),
        ("inodes", |s| s.inode_count = 1),
        ("next inode", |s| s.next_inode = 1),
        ("hash seed", |s| s.hash_seed = [1; 2]),
        ("created", |s| s.created.0 = 1),
        ("mounted", |s| s.mounted.0 = 1),
        ("checkpointed", |s| s.checkpointed.0 = 1),
        ("metadata copies", |s| s.metadata_copies = 1),
        ("epoch", |s| s.epoch = 1),
        ("space root: block", |s| space(s, |root| root.block.0 = 1)),
        ("space root: twin", |s| space(s, |root| root.twin.0 = 1)),
        ("space root: checkpoint", |s| space(s, |root| root.generation = 1)),
        ("space root: crc", |s| space(s, |root| root.crc = 1)),
        ("space root: level", |s| space(s, |root| root.level = 1)),
        ("last scrub", |s| {
            let mut bytes = [0; SCRUB_BYTES];
            // Finished, at an inode's key.
            (bytes[0], bytes[48]) = (3, 16);
            s.scrub = LastScrub::decode(&bytes);
        }),
    ]);
    // The block size is a constant.
    let layout = without(&["block size"], &SUPERBLOCK);
    same_places(&layout, &superblock(), |s| s.encode().to_vec(), &changes);
    let at = SUPERBLOCK.field("block size").unwrap().offset;
    assert_eq!(superblock().encode()[at..at + 4], (BLOCK_SIZE as u32).to_le_bytes());
}

#[test]
fn values_are_as_the_tables_say() {
    let inode = InodeRecord {
        mode: 0,
        flags: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        xattr_bytes: 0,
        size: 0,
        blocks: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        btime: Timestamp(0),
        generation: 0,
        rdev: 0,
        parent: 0,
    };
    same_places(
        &INODE,
        &inode,
        |r| r.encode().to_vec(),
        &[
            ("mode", |r| r.mode = 1),
            ("flags", |r| r.flags = 1),
            ("uid", |r| r.uid = 1),
            ("gid", |r| r.gid = 1),
            ("links", |r| r.nlink = 1),
            ("attribute bytes", |r| r.xattr_bytes = 1),
            ("size", |r| r.size = 1),
            ("blocks", |r| r.blocks = 1),
            ("atime", |r| r.atime.0 = 1),
            ("mtime", |r| r.mtime.0 = 1),
            ("ctime", |r| r.ctime.0 = 1),
            ("btime", |r| r.btime.0 = 1),
            ("generation", |r| r.generation = 1),
            ("device number", |r| r.rdev = 1),
            ("parent", |r| r.parent = 1),
        ],
    );
    let extent = Extent { file_block: 0, disk_block: BlockNo(2), len: 2, unwritten: false, birth: 0 };
    same_places(
        &EXTENT,
        &extent,
        |e| e.encode().to_vec(),
        &[
            ("disk block", |e| e.disk_block.0 = 3),
            ("birth", |e| e.birth = 1),
            ("length", |e| e.len = 3),
            ("flags", |e| e.unwritten = true),
        ],
    );
    let entry = Entry { inode: InodeNo(2), generation: 0, file_type: FileType::Fifo, name: b"n" };
    same_places(
        &ENTRY,
        &entry,
        |e| e.encode(),
        &[
            ("inode", |e| e.inode.0 = 3),
            ("generation", |e| e.generation = 1),
            ("type", |e| e.file_type = FileType::Socket),
        ],
    );
    let logged = LoggedOp {
        kind: LoggedKind::Truncate,
        inode: InodeNo(1),
        generation: 0,
        start: 0,
        end: 0,
        cursor: 0,
        size: 0,
    };
    same_places(
        &LOGGED,
        &logged,
        |o| o.encode().to_vec(),
        &[
            ("kind", |o| o.kind = LoggedKind::Free),
            ("inode", |o| o.inode.0 = 2),
            ("generation", |o| o.generation = 1),
            ("start", |o| o.start = 1),
            ("end", |o| o.end = 1),
            ("cursor", |o| o.cursor = 1),
            ("size", |o| o.size = 1),
        ],
    );
    let snapshot =
        Snapshot { name: "n".into(), created: Timestamp(0), deleting: Some(0), superblock: superblock() };
    same_places(
        &without(&["superblock"], &SNAPSHOT),
        &snapshot,
        |s| s.encode(),
        &[
            ("created", |s| s.created.0 = 1),
            ("cursor", |s| s.deleting = Some(1)),
            ("state", |s| s.deleting = None),
            ("bytes of the name", |s| s.name = "nn".into()),
        ],
    );
    let (value, field) = (snapshot.encode(), SNAPSHOT.field("superblock").unwrap());
    assert_eq!(value[field.offset..field.end()], superblock().encode()[..field.width]);
    assert_eq!(value[SNAPSHOT.bytes..], *b"n");
    let attribute = (b"user.a".to_vec(), vec![7; 3]);
    let pieces = crate::xattr::encode(&attribute.0, &attribute.1).unwrap();
    assert_eq!(pieces[0][..5], [3, 0, 0, 0, 6]);
}

#[test]
fn metadata_blocks_are_as_the_tables_say() {
    let header = BlockHeader {
        volume: 0,
        incarnation: 0,
        position: 0,
        durable: Seq(0),
        checkpoint: Seq(0),
        first_record: Some(0),
    };
    same_places(
        &JOURNAL_BLOCK,
        &header,
        |header| {
            let mut block = [0; BLOCK_SIZE];
            header.seal(&mut block);
            block.to_vec()
        },
        &[
            ("volume id", |h| h.volume = 1),
            ("incarnation", |h| h.incarnation = 1),
            ("position", |h| h.position = 1),
            ("durable", |h| h.durable.0 = 1),
            ("checkpoint", |h| h.checkpoint.0 = 1),
            ("first record", |h| h.first_record = Some(1)),
        ],
    );
    let child = NO_NODE;
    same_places(
        &NODE_REF,
        &child,
        |child| child.encode().to_vec(),
        &[
            ("block", |c| c.block.0 = 1),
            ("twin", |c| c.twin.0 = 1),
            ("generation", |c| c.generation = 1),
            ("crc", |c| c.crc = 1),
            ("level", |c| c.level = 1),
        ],
    );
    // What a node says, its level, and the bytes of its only value, if it has one.
    type Node = (NodeIdentity, u8, Option<&'static [u8]>);
    let seal = |(identity, level, value): &Node| {
        let mut bytes = vec![0; BLOCK_SIZE];
        let mut page = NodePage::new(*level);
        if let Some(value) = value {
            page.insert(0, crate::key::Key::MIN, value);
        }
        page.seal(identity, &mut bytes);
        bytes
    };
    let zero_key = crate::key::Key { object: 0, offset: 0, ..crate::key::Key::MIN };
    let identity = NodeIdentity {
        volume: 0,
        generation: 0,
        incarnation: 0,
        birth: 0,
        place: Place { block: BlockNo(0), twin: BlockNo(0) },
        bounds: Bounds { low: Some(zero_key), high: Some(zero_key) },
    };
    fn low(node: &mut Node, change: fn(&mut crate::key::Key)) {
        node.0.bounds.low.iter_mut().for_each(change);
    }
    fn high(node: &mut Node, change: fn(&mut crate::key::Key)) {
        node.0.bounds.high.iter_mut().for_each(change);
    }
    same_places(
        &without(&["count", "heap start", "bounds"], &NODE),
        &(identity, 0, None),
        |value| {
            let mut bytes = seal(value);
            bytes[4..8].fill(0);
            bytes
        },
        &[
            ("volume id", |v| v.0.volume = 1),
            ("generation", |v| v.0.generation = 1),
            ("block", |v| v.0.place.block.0 = 1),
            ("twin", |v| v.0.place.twin.0 = 1),
            ("incarnation", |v| v.0.incarnation = 1),
            ("birth", |v| v.0.birth = 1),
            ("level", |v| v.1 = 1),
            ("low: kind", |v| low(v, |key| key.kind = crate::key::KeyKind::Inode)),
            ("high: kind", |v| high(v, |key| key.kind = crate::key::KeyKind::Inode)),
            ("low: object", |v| low(v, |key| key.object = 1)),
            ("low: offset", |v| low(v, |key| key.offset = 1)),
            ("high: object", |v| high(v, |key| key.object = 1)),
            ("high: offset", |v| high(v, |key| key.offset = 1)),
        ],
    );
    let (empty, one, valued) =
        (seal(&(identity, 0, None)), seal(&(identity, 0, Some(b""))), seal(&(identity, 0, Some(b"abc"))));
    let bounds = NODE.field("bounds").unwrap().offset;
    let unbounded = seal(&(NodeIdentity { bounds: Bounds::ALL, ..identity }, 0, None));
    assert_eq!((empty[bounds], unbounded[bounds]), (3, 0));
    let at = |name: &str| NODE.field(name).unwrap().offset;
    assert_eq!((empty[at("count")], one[at("count")]), (0, 1));
    assert_eq!(one[at("heap start")..][..2], 4096u16.to_le_bytes());
    assert_eq!(valued[at("heap start")..][..2], 4093u16.to_le_bytes());
    let at = |name: &str| NODE.bytes + NODE_SLOT.field(name).unwrap().offset;
    assert_eq!(valued[at("value offset")..][..2], 4093u16.to_le_bytes());
    assert_eq!(valued[at("value bytes")..][..2], 3u16.to_le_bytes());
    assert_eq!(valued[at("kind")], crate::key::Key::MIN.kind as u8);
}

#[test]
fn the_pool_s_map_is_as_the_tables_say() {
    type Page = (PageIdentity, PageStamp, ManifestPage);
    let nowhere = Place { block: BlockNo(0), twin: BlockNo(0) };
    let mut used = [0; BITMAP_WORDS];
    used[1] = 2;
    let page: Page = (
        PageIdentity { volume: 0, place: nowhere, index: 0, count: 0 },
        PageStamp { generation: 0, incarnation: 0 },
        ManifestPage {
            next: Some(NextPage { place: nowhere, crc: 0 }),
            chunks: vec![ChunkEntry { start: BlockNo(2), blocks: 2, used }],
            orphans: vec![OrphanRef { index: 2, crc: 2, block: BlockNo(2), twin: BlockNo(2) }],
        },
    );
    fn next(page: &mut Page, change: fn(&mut NextPage)) {
        page.2.next.iter_mut().for_each(change);
    }
    let encode = |(identity, stamp, page): &Page| {
        let mut bytes = vec![0; BLOCK_SIZE];
        page.encode(identity, *stamp, &mut bytes);
        bytes
    };
    same_places(
        &without(&["chunks", "orphan blocks"], &MANIFEST_PAGE),
        &page,
        encode,
        &[
            ("volume id", |p| p.0.volume = 1),
            ("generation", |p| p.1.generation = 1),
            ("incarnation", |p| p.1.incarnation = 1),
            ("block", |p| p.0.place.block.0 = 1),
            ("twin", |p| p.0.place.twin.0 = 1),
            ("index", |p| p.0.index = 1),
            ("count", |p| p.0.count = 1),
            ("next: block", |p| next(p, |next| next.place.block.0 = 1)),
            ("next: twin", |p| next(p, |next| next.place.twin.0 = 1)),
            ("next: crc", |p| next(p, |next| next.crc = 1)),
        ],
    );
    let bytes = encode(&page);
    let at = |name: &str| MANIFEST_PAGE.field(name).unwrap().offset;
    assert_eq!((bytes[at("chunks")], bytes[at("orphan blocks")]), (1, 1));
    let chunk = |page: &Page| encode(page)[MANIFEST_PAGE.bytes..][..CHUNK.bytes].to_vec();
    same_places(
        &without(&["used", "bitmap"], &CHUNK),
        &page,
        chunk,
        &[("first block", |p| p.2.chunks[0].start.0 = 1), ("blocks", |p| p.2.chunks[0].blocks = 1)],
    );
    let (used, bitmap) = (CHUNK.field("used").unwrap(), CHUNK.field("bitmap").unwrap());
    assert_eq!((chunk(&page)[used.offset], chunk(&page)[bitmap.offset + bitmap.width]), (1, 2));
    same_places(
        &ORPHAN_REF,
        &page,
        |page| encode(page)[MANIFEST_PAGE.bytes + CHUNK.bytes..][..ORPHAN_REF.bytes].to_vec(),
        &[
            ("index", |p| p.2.orphans[0].index = 1),
            ("crc", |p| p.2.orphans[0].crc = 1),
            ("block", |p| p.2.orphans[0].block.0 = 1),
            ("twin", |p| p.2.orphans[0].twin.0 = 1),
        ],
    );
    let slots = |&(index, first): &(u64, u64)| {
        let mut slots = [0; SLOTS];
        slots[0] = first;
        crate::orphan::encode(index, &slots).to_vec()
    };
    same_places(&ORPHAN_BLOCK, &(0, 0), slots, &[("slot", |v| v.1 = 1), ("index", |v| v.0 = 1)]);
}
