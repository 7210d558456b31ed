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
//! Neighbours: `bytes` writes and reads the fields, `areas` checks where things lie; [`crate::journal`] for
//! the ring, [`crate::pool`] for the manifest, [`crate::node`] for the root.

mod areas;
mod bytes;

pub use areas::INCOMPAT_JOURNAL_MOVED;

use crate::journal::PAYLOAD_BYTES;
use crate::node::{NodeRef, Roots};
use crate::place::{NO_TWIN, Place};
use crate::pool::ManifestRef;
use crate::scrub::LastScrub;
use quire_base::{BlockNo, Error, ErrorKind, Result, Seq, Timestamp};

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

    /// Pads a label, or says `Invalid`: longer than [`LABEL_BYTES`], or with control characters in it.
    pub fn pad_label(label: &str) -> Result<[u8; LABEL_BYTES]> {
        if label.len() > LABEL_BYTES {
            return Err(Error::invalid(format!("label of {} bytes: at most {LABEL_BYTES} fit", label.len())));
        }
        if label.contains(char::is_control) {
            return Err(Error::invalid("a label cannot contain control characters"));
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

#[cfg(test)]
pub(crate) mod tests;
