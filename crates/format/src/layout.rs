//! The fields of every structure, as data: name, place, width.
//!
//! The encoders and decoders of the other modules do not use these tables; programs that look at bytes from
//! outside do (tests that damage each field of each structure, dumps). The tests here hold table and code
//! together: fields follow one another without gap or overlap and cover every byte, and what changes when one
//! field of a value changes is the bytes that the table names, and a checksum.
//!
//! Not here: transactions, whose numbers have no fixed width (see [`crate::record`]).
//!
//! Neighbours: each table's structure is described in the module of its name.

use crate::node::{HEADER_BYTES, REF_BYTES, SLOT_BYTES};
use crate::orphan::SLOTS;
use crate::pool::{self, BITMAP_WORDS, CHUNK_BYTES, ORPHAN_BYTES};
use crate::scrub::{SCRUB_AT, SCRUB_BYTES};
use crate::superblock::FIELDS_BYTES;
use crate::{extent::EXTENT_BYTES, inode::INODE_BYTES, journal, logged::LOGGED_BYTES};
use quire_base::BLOCK_SIZE;

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An integer, little-endian.
    Number,
    /// Bytes without further structure.
    Bytes,
    /// The checksum of the block that the structure heads or ends.
    Checksum,
    /// Written as zeros, and not looked at but by checksums.
    Zero,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// As docs/format.md calls it.
    pub name: &'static str,
    /// What it is.
    pub kind: FieldKind,
    /// Of the first element, in bytes from the start of the structure.
    pub offset: usize,
    /// Bytes of one element.
    pub width: usize,
    /// Elements: more than one in an array.
    pub count: usize,
}

impl Field {
    /// One behind the last byte.
    pub const fn end(&self) -> usize {
        self.offset + self.width * self.count
    }
}

/// The fields of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The structure's name.
    pub name: &'static str,
    /// Bytes that the fields take.
    pub bytes: usize,
    /// Ascending by offset.
    pub fields: &'static [Field],
    /// What follows the fields, where the structure has no fixed length.
    pub rest: Option<&'static str>,
}

impl Layout {
    /// The field of a name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

const fn number(name: &'static str, offset: usize, width: usize) -> Field {
    Field { name, kind: FieldKind::Number, offset, width, count: 1 }
}

const fn numbers(name: &'static str, offset: usize, width: usize, count: usize) -> Field {
    Field { name, kind: FieldKind::Number, offset, width, count }
}

const fn bytes(name: &'static str, offset: usize, width: usize) -> Field {
    Field { name, kind: FieldKind::Bytes, offset, width, count: 1 }
}

const fn checksum(offset: usize) -> Field {
    Field { name: "crc", kind: FieldKind::Checksum, offset, width: 4, count: 1 }
}

const fn zero(offset: usize, width: usize) -> Field {
    Field { name: "zero", kind: FieldKind::Zero, offset, width, count: 1 }
}

const fn fixed(name: &'static str, bytes: usize, fields: &'static [Field]) -> Layout {
    Layout { name, bytes, fields, rest: None }
}

const fn open(name: &'static str, bytes: usize, fields: &'static [Field], rest: &'static str) -> Layout {
    Layout { name, bytes, fields, rest: Some(rest) }
}

/// A superblock.
pub const SUPERBLOCK: Layout = fixed(
    "superblock",
    BLOCK_SIZE,
    &[
        bytes("magic", 0, 8),
        checksum(8),
        number("major version", 12, 4),
        number("minor version", 16, 4),
        number("flags", 20, 4),
        number("features, compatible", 24, 8),
        number("features, read-only compatible", 32, 8),
        number("features, incompatible", 40, 8),
        bytes("uuid", 48, 16),
        bytes("label", 64, 64),
        number("block size", 128, 4),
        number("slot", 132, 4),
        number("block count", 136, 8),
        number("checkpoint", 144, 8),
        number("incarnation", 152, 8),
        number("journal start", 160, 8),
        number("journal blocks", 168, 8),
        number("sequence", 176, 8),
        number("root: block", 184, 8),
        number("root: twin", 192, 8),
        number("root: checkpoint", 200, 8),
        number("root: crc", 208, 4),
        number("root: level", 212, 4),
        number("manifest: block", 216, 8),
        number("manifest: twin", 224, 8),
        number("manifest: crc", 232, 4),
        number("manifest: count", 236, 4),
        number("orphan blocks", 240, 4),
        number("mount count", 244, 4),
        number("pool start", 248, 8),
        number("pool blocks", 256, 8),
        number("data start", 264, 8),
        number("data end", 272, 8),
        number("mirror start", 280, 8),
        number("mirror blocks", 288, 8),
        number("free blocks", 296, 8),
        number("inodes", 304, 8),
        number("next inode", 312, 8),
        numbers("hash seed", 320, 8, 2),
        number("created", 336, 8),
        number("mounted", 344, 8),
        number("checkpointed", 352, 8),
        number("metadata copies", 360, 4),
        number("epoch", 364, 4),
        number("space root: block", 368, 8),
        number("space root: twin", 376, 8),
        number("space root: checkpoint", 384, 8),
        number("space root: crc", 392, 4),
        number("space root: level", 396, 4),
        bytes("uuid, changed", 400, 16),
        zero(416, SCRUB_AT - 416),
        bytes("last scrub", SCRUB_AT, SCRUB_BYTES),
        zero(SCRUB_AT + SCRUB_BYTES, BLOCK_SIZE - SCRUB_AT - SCRUB_BYTES),
    ],
);

/// The header of a journal block.
pub const JOURNAL_BLOCK: Layout = open(
    "journal block",
    journal::HEADER_BYTES,
    &[
        bytes("magic", 0, 4),
        checksum(4),
        number("volume id", 8, 8),
        number("incarnation", 16, 8),
        number("position", 24, 8),
        number("durable", 32, 8),
        number("checkpoint", 40, 8),
        number("first record", 48, 2),
        zero(50, 14),
    ],
    "payload",
);

/// The header of a record in the journal's stream.
pub const JOURNAL_RECORD: Layout = open(
    "journal record",
    journal::RECORD_HEADER_BYTES,
    &[number("payload bytes", 0, 4), number("kind", 4, 4)],
    "payload",
);

/// The header of a tree node.
pub const NODE: Layout = open(
    "tree node",
    HEADER_BYTES,
    &[
        bytes("magic", 0, 4),
        checksum(4),
        number("volume id", 8, 8),
        number("generation", 16, 8),
        number("block", 24, 8),
        number("twin", 32, 8),
        number("incarnation", 40, 8),
        number("birth", 48, 4),
        number("level", 52, 1),
        number("bounds", 53, 1),
        number("count", 54, 2),
        number("heap start", 56, 2),
        number("low: kind", 58, 1),
        number("high: kind", 59, 1),
        zero(60, 4),
        number("low: object", 64, 8),
        number("low: offset", 72, 8),
        number("high: object", 80, 8),
        number("high: offset", 88, 8),
    ],
    "slots, zeros, values",
);

/// A slot of a tree node.
pub const NODE_SLOT: Layout = fixed(
    "slot",
    SLOT_BYTES,
    &[
        number("object", 0, 8),
        number("offset", 8, 8),
        number("kind", 16, 1),
        zero(17, 1),
        number("value offset", 18, 2),
        number("value bytes", 20, 2),
        zero(22, 2),
    ],
);

/// An inner node's reference to a child.
pub const NODE_REF: Layout = fixed(
    "node reference",
    REF_BYTES,
    &[
        number("block", 0, 8),
        number("twin", 8, 8),
        number("generation", 16, 8),
        number("crc", 24, 4),
        number("level", 28, 1),
        zero(29, 3),
    ],
);

/// The header of a page of the pool's manifest.
pub const MANIFEST_PAGE: Layout = open(
    "manifest page",
    pool::HEADER_BYTES,
    &[
        bytes("magic", 0, 4),
        checksum(4),
        number("volume id", 8, 8),
        number("generation", 16, 8),
        number("block", 24, 8),
        number("twin", 32, 8),
        number("incarnation", 40, 8),
        number("index", 48, 4),
        number("count", 52, 4),
        number("next: block", 56, 8),
        number("next: twin", 64, 8),
        number("next: crc", 72, 4),
        number("chunks", 76, 2),
        number("orphan blocks", 78, 2),
        zero(80, 16),
    ],
    "chunk entries, orphan entries, zeros",
);

/// A chunk's entry in the manifest.
pub const CHUNK: Layout = fixed(
    "chunk",
    CHUNK_BYTES,
    &[
        number("first block", 0, 8),
        number("blocks", 8, 4),
        number("used", 12, 4),
        numbers("bitmap", 16, 8, BITMAP_WORDS),
    ],
);

/// An orphan block's entry in the manifest.
pub const ORPHAN_REF: Layout = fixed(
    "orphan entry",
    ORPHAN_BYTES,
    &[number("index", 0, 4), number("crc", 4, 4), number("block", 8, 8), number("twin", 16, 8)],
);

/// An orphan block.
pub const ORPHAN_BLOCK: Layout = fixed(
    "orphan block",
    BLOCK_SIZE,
    &[
        numbers("slot", 0, 8, SLOTS),
        bytes("magic", 8 * SLOTS, 4),
        checksum(8 * SLOTS + 4),
        number("index", 8 * SLOTS + 8, 8),
    ],
);

/// An inode record.
pub const INODE: Layout = fixed(
    "inode",
    INODE_BYTES,
    &[
        number("mode", 0, 4),
        number("flags", 4, 4),
        number("uid", 8, 4),
        number("gid", 12, 4),
        number("links", 16, 4),
        number("attribute bytes", 20, 4),
        number("size", 24, 8),
        number("blocks", 32, 8),
        number("atime", 40, 8),
        number("mtime", 48, 8),
        number("ctime", 56, 8),
        number("btime", 64, 8),
        number("generation", 72, 8),
        number("device number", 80, 8),
        number("parent", 88, 8),
    ],
);

/// An extent's value.
pub const EXTENT: Layout = fixed(
    "extent",
    EXTENT_BYTES,
    &[number("disk block", 0, 8), number("birth", 8, 4), number("length", 12, 2), number("flags", 14, 2)],
);

/// A directory entry's value.
pub const ENTRY: Layout =
    open("entry", 17, &[number("inode", 0, 8), number("generation", 8, 8), number("type", 16, 1)], "name");

/// The start of an extended attribute's first piece.
pub const XATTR: Layout = open(
    "attribute",
    5,
    &[number("value length", 0, 4), number("name length", 4, 1)],
    "name, start of the value",
);

/// A logged operation's value.
pub const LOGGED: Layout = fixed(
    "logged operation",
    LOGGED_BYTES,
    &[
        number("kind", 0, 8),
        number("inode", 8, 8),
        number("generation", 16, 8),
        number("start", 24, 8),
        number("end", 32, 8),
        number("cursor", 40, 8),
        number("size", 48, 8),
    ],
);

/// The start of a snapshot's value.
pub const SNAPSHOT: Layout = open(
    "snapshot",
    20 + FIELDS_BYTES,
    &[
        number("created", 0, 8),
        number("cursor", 8, 8),
        number("state", 16, 1),
        number("bytes of the name", 17, 1),
        zero(18, 2),
        bytes("superblock", 20, FIELDS_BYTES),
    ],
    "name",
);

/// The start of a region's value; runs ([`REGION_RUN`]) or a bitmap of 512 bytes may follow.
pub const REGION: Layout = open("region", 1, &[number("form", 0, 1)], "runs or bitmap");

/// A run of used blocks in a region's value.
pub const REGION_RUN: Layout = fixed("run", 4, &[number("start", 0, 2), number("length - 1", 2, 2)]);

/// A piece of a symbolic link's target: nothing but bytes of it.
pub const LINK_TARGET: Layout = open("link target", 0, &[], "target");

/// Every structure.
pub const ALL: &[&Layout] = &[
    &SUPERBLOCK,
    &JOURNAL_BLOCK,
    &JOURNAL_RECORD,
    &NODE,
    &NODE_SLOT,
    &NODE_REF,
    &MANIFEST_PAGE,
    &CHUNK,
    &ORPHAN_REF,
    &ORPHAN_BLOCK,
    &INODE,
    &EXTENT,
    &ENTRY,
    &XATTR,
    &LOGGED,
    &SNAPSHOT,
    &REGION,
    &REGION_RUN,
    &LINK_TARGET,
];

#[cfg(test)]
mod tests;
