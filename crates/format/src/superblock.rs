//! The superblock: the root of everything on a volume.
//!
//! There are two, at the blocks [`SLOT_BLOCKS`], written in turn; the valid one with the higher `checkpoint`
//! is the newest. Each has a second copy of the same bytes at the volume's end ([`far_slots`]), written once
//! the first is durable. Each names one whole, immutable state of the volume (a tree, a pool map) and the
//! journal position from which records lead on from it. The crc is CRC-32C over the whole block with its own
//! field zero.
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 8 | magic `QUIRE\0FS` (this place and the next never move between versions) |
//! | 8 | 4 | crc |
//! | 12 | 4 + 4 | format version: major, minor |
//! | 20 | 4 | flags |
//! | 24 | 3 * 8 | features: compat, ro_compat, incompat |
//! | 48 | 16 | uuid |
//! | 64 | 64 | label, UTF-8, padded with zeros |
//! | 128 | 4 + 4 | block size, slot |
//! | 136 | 8 | block count |
//! | 144 | 8 + 8 | checkpoint number, incarnation |
//! | 160 | 8 + 8 + 8 | journal start, journal blocks, sequence (where replay starts) |
//! | 184 | 8 + 8 + 8 + 4 + 4 | root of the tree of names: block, twin, generation, crc, level |
//! | 216 | 8 + 8 + 4 + 4 | manifest head: block, twin, crc, count |
//! | 240 | 4 + 4 | orphan blocks, mount count |
//! | 248 | 8 + 8 | first pool chunks: start, blocks |
//! | 264 | 8 + 8 | data space: start, end |
//! | 280 | 8 + 8 | pool chunks for second copies, within the data space: start, blocks |
//! | 296 | 8 + 8 + 8 | free blocks, inode count, next inode |
//! | 320 | 8 + 8 | hash seed |
//! | 336 | 8 + 8 + 8 | created, mounted, checkpointed (ns since the epoch, signed) |
//! | 360 | 4 + 4 | copies of metadata (1 or 2), epoch |
//! | 368 | 8 + 8 + 8 + 4 + 4 | root of the space tree: block, twin, generation, crc, level |
//! | 400 | 16 | the uuid that is shown, if it was changed; else zeros |
//! | 416 | | zeros |
//!
//! The *tree of names* holds the state of the files. The *space tree* holds what is the volume's: the used
//! space, what of it snapshots alone need, and the snapshots. The *epoch* counts the snapshots ever taken.
//!
//! Invariants: a decoded superblock does not contradict itself, so its users need not check sums of its
//! fields for overflow: journal, first pool, data space and the second copies of the superblocks lie inside
//! the volume, in this order, and do not overlap; or, where the journal has been moved, journal and first
//! pool lie within the data space ([`INCOMPAT_JOURNAL_MOVED`]).
//!
//! Neighbours: `areas` checks where things lie; [`crate::journal`] for the ring, [`crate::pool`] for the
//! manifest, [`crate::node`] for the root.

mod areas;

pub use areas::INCOMPAT_JOURNAL_MOVED;

use crate::journal::PAYLOAD_BYTES;
use crate::node::{NodeRef, Roots};
use crate::place::{NO_TWIN, Place};
use crate::pool::ManifestRef;
use crate::scrub::{LastScrub, SCRUB_AT, SCRUB_BYTES};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, Seq, Timestamp};

/// The first bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"QUIRE\0FS";
/// Where the two superblocks lie.
pub const SLOT_BLOCKS: [BlockNo; 2] = [BlockNo(0), BlockNo(8)];
/// Blocks at the volume's end that belong to the second copies of the superblocks.
pub const FAR_BLOCKS: u64 = 16;

/// Where the second copies of the two superblocks lie on a volume of so many blocks (at least
/// [`FAR_BLOCKS`]).
pub fn far_slots(block_count: u64) -> [BlockNo; 2] {
    SLOT_BLOCKS.map(|at| BlockNo(block_count - FAR_BLOCKS + at.0))
}

/// First block of the journal ring: what lies below belongs to the superblocks.
pub const JOURNAL_START: BlockNo = BlockNo(16);
/// The smallest journal, in blocks.
pub const JOURNAL_BLOCKS_MIN: u64 = 16;
/// The largest volume, in blocks (8 EiB): byte offsets then fit a signed 64-bit number.
pub const BLOCK_COUNT_MAX: u64 = 1 << 51;
/// The most orphan blocks a volume may have.
pub const ORPHAN_BLOCKS_MAX: u32 = 1 << 16;

/// Most orphan blocks of a volume of so many blocks. A mount keeps two copies of each in memory, so this
/// bounds what a forged superblock makes it take: a 32nd of the volume's bytes.
pub fn orphan_blocks_max(block_count: u64) -> u32 {
    (block_count / 64).clamp(2, u64::from(ORPHAN_BLOCKS_MAX)) as u32
}
/// No tree is higher: 64 nodes a parent would fill the largest volume long before.
pub const TREE_LEVEL_MAX: u8 = 32;
/// The most checkpoints and lives a volume can count: none reaches it, and one more never overflows.
pub const COUNTER_MAX: u64 = 1 << 62;
/// The bytes of all that a snapshot keeps of a superblock. Behind them are the changed uuid and the last
/// scrub.
pub const FIELDS_BYTES: usize = 400;
/// Bytes a label may have.
pub const LABEL_BYTES: usize = 64;

/// Version of the format that this build writes: `major` changes when older builds cannot read it.
pub const FORMAT_MAJOR: u32 = 3;
/// See [`FORMAT_MAJOR`]; `minor` changes when they can.
pub const FORMAT_MINOR: u32 = 0;

/// Features that a build which does not know them may ignore. Known bits: none.
pub const COMPAT_KNOWN: u64 = 0;
/// Features that a build which does not know them may read but not write. Known bits: none.
pub const RO_COMPAT_KNOWN: u64 = 0;
/// Features that a build which does not know them must keep its hands off. Known bits:
/// [`INCOMPAT_JOURNAL_MOVED`].
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_JOURNAL_MOVED;

/// Flag: unmounted with nothing left to replay.
pub const FLAG_CLEAN: u32 = 1;
/// Flag: an error was met that fsck has not looked into.
pub const FLAG_ERRORS: u32 = 2;

const CRC_AT: usize = 8;

/// The most copies of a piece of metadata.
pub const METADATA_COPIES_MAX: u32 = 2;

/// A superblock; the module's documentation has its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Format version: major, minor.
    pub version: (u32, u32),
    /// [`FLAG_CLEAN`], [`FLAG_ERRORS`].
    pub flags: u32,
    /// See [`COMPAT_KNOWN`].
    pub feature_compat: u64,
    /// See [`RO_COMPAT_KNOWN`].
    pub feature_ro_compat: u64,
    /// See [`INCOMPAT_KNOWN`].
    pub feature_incompat: u64,
    /// The identity of the volume and of every block of it. It never changes.
    pub uuid: [u8; 16],
    /// The volume's name for machines, if it was changed since; else zeros. Read it with
    /// [`Superblock::shown_uuid`].
    pub changed_uuid: [u8; 16],
    /// The volume's name for people, padded with zeros; read it with [`Superblock::label`].
    pub label: [u8; LABEL_BYTES],
    /// Size of the volume in blocks.
    pub block_count: u64,
    /// Index into [`SLOT_BLOCKS`] this copy was written to.
    pub slot: u32,
    /// Counts checkpoints up.
    pub checkpoint: u64,
    /// Counts lives of the journal up: records of other incarnations are dead.
    pub incarnation: u64,
    /// First block of the journal ring.
    pub journal_start: BlockNo,
    /// Length of the journal ring in blocks.
    pub journal_blocks: u64,
    /// Stream position at which replay starts; the start of a journal block.
    pub sequence: Seq,
    /// The tree of names.
    pub root: NodeRef,
    /// The metadata pool.
    pub manifest: ManifestRef,
    /// Orphan blocks, fixed when the volume is made.
    pub orphan_blocks: u32,
    /// Times mounted for writing.
    pub mount_count: u32,
    /// First chunks of the metadata pool: start.
    pub pool_start: BlockNo,
    /// First chunks of the metadata pool: blocks.
    pub pool_blocks: u64,
    /// Where the data space begins.
    pub data_start: BlockNo,
    /// Where it ends, and the second copies of the superblocks begin.
    pub data_end: BlockNo,
    /// Chunks of the metadata pool within the data space, made with the volume for second copies: start.
    pub mirror_start: BlockNo,
    /// The blocks of these chunks; 0 where there is one copy only.
    pub mirror_blocks: u64,
    /// Free blocks of the data space at this checkpoint.
    pub free_blocks: u64,
    /// Inodes in existence at this checkpoint.
    pub inode_count: u64,
    /// The number the next inode gets.
    pub next_inode: u64,
    /// Key of the hash of names.
    pub hash_seed: [u64; 2],
    /// When the volume was made.
    pub created: Timestamp,
    /// When it was last mounted for writing.
    pub mounted: Timestamp,
    /// When this copy was written.
    pub checkpointed: Timestamp,
    /// Copies of each tree node, manifest page and orphan block: 1 or 2.
    pub metadata_copies: u32,
    /// Snapshots ever taken.
    pub epoch: u32,
    /// The space tree.
    pub space_root: NodeRef,
    /// The last scrub, as of this checkpoint.
    pub scrub: Option<LastScrub>,
}

impl Superblock {
    /// The roots of both trees.
    pub fn roots(&self) -> Roots {
        [self.space_root, self.root]
    }

    /// Sets the roots of both trees.
    pub fn set_roots(&mut self, roots: Roots) {
        [self.space_root, self.root] = roots;
    }

    /// The blocks where data of files may lie.
    pub fn data_space(&self) -> std::ops::Range<u64> {
        self.data_start.0..self.data_end.0
    }

    /// The number that journal blocks, tree nodes and pool blocks carry to show that they are this volume's.
    pub fn volume_id(&self) -> u64 {
        let half = |at: usize| u64::from_le_bytes(self.uuid[at..at + 8].try_into().expect("8 bytes"));
        half(0) ^ half(8).rotate_left(32)
    }

    /// The volume's name for machines.
    pub fn shown_uuid(&self) -> [u8; 16] {
        if self.changed_uuid == [0; 16] { self.uuid } else { self.changed_uuid }
    }

    /// The label without its padding; empty if it is not UTF-8.
    pub fn label(&self) -> &str {
        let end = self.label.iter().position(|byte| *byte == 0).unwrap_or(LABEL_BYTES);
        std::str::from_utf8(&self.label[..end]).unwrap_or("")
    }

    /// Pads a label, or says `Invalid`: longer than [`LABEL_BYTES`], or with a zero byte in it.
    pub fn pad_label(label: &str) -> Result<[u8; LABEL_BYTES]> {
        if label.len() > LABEL_BYTES {
            return Err(Error::invalid(format!("label of {} bytes: at most {LABEL_BYTES} fit", label.len())));
        }
        if label.contains('\0') {
            return Err(Error::invalid("a label cannot contain a zero byte"));
        }
        let mut padded = [0; LABEL_BYTES];
        padded[..label.len()].copy_from_slice(label.as_bytes());
        Ok(padded)
    }

    /// The first block behind the journal ring.
    pub fn journal_end(&self) -> BlockNo {
        self.journal_start.offset(self.journal_blocks)
    }

    /// An error that names the features for whose sake this build must not write to the volume, if there are
    /// any.
    pub fn read_only_because(&self) -> Option<Error> {
        let unknown = self.feature_ro_compat & !RO_COMPAT_KNOWN;
        (unknown != 0).then(|| {
            Error::new(
                ErrorKind::ReadOnly,
                format!("the volume has features ({}) that this build can read but not write", bits(unknown)),
            )
        })
    }

    /// The bytes, checksum included.
    pub fn encode(&self) -> [u8; BLOCK_SIZE] {
        let mut block = [0u8; BLOCK_SIZE];
        let mut w = Writer { block: &mut block, at: 0 };
        w.bytes(&MAGIC);
        w.u32(0);
        w.u32(self.version.0);
        w.u32(self.version.1);
        w.u32(self.flags);
        w.u64(self.feature_compat);
        w.u64(self.feature_ro_compat);
        w.u64(self.feature_incompat);
        w.bytes(&self.uuid);
        w.bytes(&self.label);
        w.u32(BLOCK_SIZE as u32);
        w.u32(self.slot);
        w.u64(self.block_count);
        w.u64(self.checkpoint);
        w.u64(self.incarnation);
        w.u64(self.journal_start.0);
        w.u64(self.journal_blocks);
        w.u64(self.sequence.0);
        w.node(&self.root);
        w.u64(self.manifest.block.0);
        w.u64(self.manifest.twin.0);
        w.u32(self.manifest.crc);
        w.u32(self.manifest.count);
        w.u32(self.orphan_blocks);
        w.u32(self.mount_count);
        w.u64(self.pool_start.0);
        w.u64(self.pool_blocks);
        w.u64(self.data_start.0);
        w.u64(self.data_end.0);
        w.u64(self.mirror_start.0);
        w.u64(self.mirror_blocks);
        w.u64(self.free_blocks);
        w.u64(self.inode_count);
        w.u64(self.next_inode);
        w.u64(self.hash_seed[0]);
        w.u64(self.hash_seed[1]);
        w.u64(self.created.0 as u64);
        w.u64(self.mounted.0 as u64);
        w.u64(self.checkpointed.0 as u64);
        w.u32(self.metadata_copies);
        w.u32(self.epoch);
        w.node(&self.space_root);
        w.bytes(&self.changed_uuid);
        block[SCRUB_AT..SCRUB_AT + SCRUB_BYTES].copy_from_slice(&LastScrub::encode(self.scrub.as_ref()));
        let crc = crc32c::crc32c(&block);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and checks a superblock.
    ///
    /// Errors: `NotAVolume` (no magic), `UnknownFormat` (newer major version, unknown incompatible features),
    /// `Corrupt` (checksum, or fields that contradict one another).
    pub fn decode(bytes: &[u8]) -> Result<Superblock> {
        if bytes.len() < BLOCK_SIZE || bytes[..MAGIC.len()] != MAGIC {
            return Err(Error::new(
                ErrorKind::NotAVolume,
                "no Quire volume here: the superblock's magic is missing",
            ));
        }
        let bytes = &bytes[..BLOCK_SIZE];
        let mut r = Reader { bytes, at: CRC_AT };
        let crc = r.u32();
        let found = crc32c_without(bytes, CRC_AT);
        if crc != found {
            return Err(Error::corrupt(format!(
                "superblock: checksum is {crc:#010x}, its bytes give {found:#010x}"
            )));
        }
        let version = (r.u32(), r.u32());
        let flags = r.u32();
        let (feature_compat, feature_ro_compat, feature_incompat) = (r.u64(), r.u64(), r.u64());
        if version.0 != FORMAT_MAJOR {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!(
                    "the volume has format {}.{}, this build reads {FORMAT_MAJOR}.x: use a matching build",
                    version.0, version.1
                ),
            ));
        }
        let unknown = feature_incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!("the volume has features ({}) that this build does not know", bits(unknown)),
            ));
        }
        let uuid = r.array();
        let label = r.array();
        let block_size = r.u32();
        let slot = r.u32();
        let block_count = r.u64();
        let (checkpoint, incarnation) = (r.u64(), r.u64());
        let (journal_start, journal_blocks, sequence) = (BlockNo(r.u64()), r.u64(), Seq(r.u64()));
        let root = r.node()?;
        let manifest =
            ManifestRef { block: BlockNo(r.u64()), twin: BlockNo(r.u64()), crc: r.u32(), count: r.u32() };
        let (orphan_blocks, mount_count) = (r.u32(), r.u32());
        let (pool_start, pool_blocks) = (BlockNo(r.u64()), r.u64());
        let (data_start, data_end) = (BlockNo(r.u64()), BlockNo(r.u64()));
        let (mirror_start, mirror_blocks) = (BlockNo(r.u64()), r.u64());
        let (free_blocks, inode_count, next_inode) = (r.u64(), r.u64(), r.u64());
        let hash_seed = [r.u64(), r.u64()];
        let mut time = || Timestamp(r.u64() as i64);
        let (created, mounted, checkpointed) = (time(), time(), time());
        let (metadata_copies, epoch) = (r.u32(), r.u32());
        let space_root = r.node()?;
        let changed_uuid = r.array();
        let scrub: &[u8; SCRUB_BYTES] =
            bytes[SCRUB_AT..][..SCRUB_BYTES].try_into().expect("a part of a block");
        let scrub = LastScrub::decode(scrub);
        check(block_size as usize == BLOCK_SIZE, || format!("block size {block_size}"))?;
        let superblock = Superblock {
            version,
            flags,
            feature_compat,
            feature_ro_compat,
            feature_incompat,
            uuid,
            changed_uuid,
            label,
            block_count,
            slot,
            checkpoint,
            incarnation,
            journal_start,
            journal_blocks,
            sequence,
            root,
            manifest,
            orphan_blocks,
            mount_count,
            pool_start,
            pool_blocks,
            data_start,
            data_end,
            mirror_start,
            mirror_blocks,
            free_blocks,
            inode_count,
            next_inode,
            hash_seed,
            created,
            mounted,
            checkpointed,
            metadata_copies,
            epoch,
            space_root,
            scrub,
        };
        superblock.validate()?;
        Ok(superblock)
    }

    /// Checks the fields against one another (`Corrupt`); [`Superblock::decode`] has done it.
    pub fn validate(&self) -> Result<()> {
        let count = self.block_count;
        check((self.slot as usize) < SLOT_BLOCKS.len(), || format!("slot {}", self.slot))?;
        check(self.checkpoint <= COUNTER_MAX && self.incarnation <= COUNTER_MAX, || {
            format!("checkpoint {}, incarnation {}", self.checkpoint, self.incarnation)
        })?;
        check(count <= BLOCK_COUNT_MAX, || format!("volume of {count} blocks"))?;
        let metadata_from = self.check_areas()?;
        let mirrored = self.mirror_blocks > 0;
        check((1..=METADATA_COPIES_MAX).contains(&self.metadata_copies), || {
            format!("{} copies of metadata", self.metadata_copies)
        })?;
        // A place within the pool, with as many copies as the volume keeps.
        let place = |what: &str, place: Place| -> Result<()> {
            let copies = if place.twin == NO_TWIN { 1 } else { METADATA_COPIES_MAX };
            check(copies == self.metadata_copies && place.block != place.twin, || {
                format!("{what} at blocks {} and {}", place.block, place.twin)
            })?;
            place.copies().try_for_each(|block| {
                let journal = self.journal_start..self.journal_end();
                let good = block >= metadata_from && block.0 < count && !journal.contains(&block);
                check(good, || format!("{what} at block {block}, in a volume of {count} blocks"))
            })
        };
        check(mirrored || self.mirror_start == NO_TWIN, || {
            format!("no mirrored metadata at {}", self.mirror_start)
        })?;
        for root in self.roots() {
            place("tree root", root.place())?;
            check(root.level <= TREE_LEVEL_MAX, || format!("tree of height {}", root.level))?;
            check(root.generation <= self.checkpoint, || {
                format!("tree root of checkpoint {} in checkpoint {}", root.generation, self.checkpoint)
            })?;
        }
        check(self.root.block != self.space_root.block, || {
            format!("both tree roots at block {}", self.root.block)
        })?;
        place("pool manifest", self.manifest.place())?;
        check(self.manifest.count >= 1 && u64::from(self.manifest.count) <= count, || {
            format!("pool manifest of {} blocks", self.manifest.count)
        })?;
        check(self.orphan_blocks <= orphan_blocks_max(count), || {
            format!("{} orphan blocks on a volume of {count} blocks", self.orphan_blocks)
        })?;
        check(self.sequence.0.is_multiple_of(PAYLOAD_BYTES as u64), || {
            format!("replay would start at {}, inside a journal block", self.sequence)
        })?;
        check(self.sequence.0 <= crate::journal::POSITION_MAX, || {
            format!("replay would start at {}", self.sequence)
        })?;
        check(self.inode_count < self.next_inode, || {
            format!("{} inodes, but the next one is {}", self.inode_count, self.next_inode)
        })?;
        let end = self.label.iter().position(|byte| *byte == 0).unwrap_or(LABEL_BYTES);
        let label_good =
            std::str::from_utf8(&self.label[..end]).is_ok() && self.label[end..].iter().all(|b| *b == 0);
        check(label_good, || "label is not text".to_string())
    }
}

/// CRC-32C of `block` as if the four bytes at `crc_at` were zero.
pub(crate) fn crc32c_without(block: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&block[..crc_at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &block[crc_at + 4..])
}

fn contradiction(what: String) -> Error {
    Error::corrupt(format!("superblock contradicts itself: {what}"))
}

fn check(good: bool, what: impl FnOnce() -> String) -> Result<()> {
    if good { Ok(()) } else { Err(contradiction(what())) }
}

/// Names the bits of a feature word.
fn bits(word: u64) -> String {
    let names: Vec<String> =
        (0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| format!("bit {bit}")).collect();
    names.join(", ")
}

struct Writer<'a> {
    block: &'a mut [u8; BLOCK_SIZE],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
    fn node(&mut self, node: &NodeRef) {
        self.u64(node.block.0);
        self.u64(node.twin.0);
        self.u64(node.generation);
        self.u32(node.crc);
        self.u32(u32::from(node.level));
    }
}

/// Reads fields in order from a slice that is known to be a whole block.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let array = self.bytes[self.at..self.at + N].try_into().expect("N bytes");
        self.at += N;
        array
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
    fn node(&mut self) -> Result<NodeRef> {
        let (block, twin, generation) = (BlockNo(self.u64()), BlockNo(self.u64()), self.u64());
        let (crc, level) = (self.u32(), self.u32());
        check(level <= u32::from(TREE_LEVEL_MAX), || format!("tree of height {level}"))?;
        Ok(NodeRef { block, twin, generation, crc, level: level as u8 })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::extent::Run;
    use proptest::prelude::*;

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
            manifest: ManifestRef {
                block: BlockNo(2001),
                twin: BlockNo(131_101),
                crc: 0x1234_5678,
                count: 2,
            },
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
}
