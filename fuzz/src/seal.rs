//! Makes the checksums of an edited image right again, so that a fuzzer tests more than CRC-32C.
//!
//! A checkpoint is a tree of checksums: superblock over root nodes and first manifest page, node over child,
//! manifest page over the next page and over orphan blocks. [`Sealer::seal`] goes down from both superblocks
//! and writes each checksum where it belongs on the way up. Whatever the bytes say is followed only as far as
//! they make sense; blocks that the caller wants broken keep the checksum they have.
//!
//! Neighbours: [`crate::edits`] changes the bytes before; `quire_format` has the layouts, whose offsets are
//! repeated here since a damaged block does not decode.

use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::simulated::Image;
use quire_format::key::KeyKind;
use quire_format::{node, pool, superblock};
use std::collections::{BTreeMap, BTreeSet};

/// Where a block keeps its own checksum.
pub const SUPERBLOCK_CRC_AT: usize = 8;
/// As above, of nodes, manifest pages and journal blocks.
pub const NODE_CRC_AT: usize = 4;
/// As above, of orphan blocks.
pub const ORPHAN_CRC_AT: usize = 4084;

/// The roots of both trees.
const ROOTS_AT: [usize; 2] = [184, 368];
const MANIFEST_AT: usize = 216;
/// Where a reference to a node has its checksum.
const REF_CRC: usize = 24;
/// Where the value of a snapshot has the superblock's first bytes.
const SNAPSHOT_SUPERBLOCK_AT: usize = 20;
const MANIFEST_PAGES_MAX: usize = 64;
const LEVELS_MAX: usize = 34;

/// Puts the CRC-32C of the whole block, its own field zero, at `at`, and returns it.
pub fn seal_block(block: &mut [u8; BLOCK_SIZE], at: usize) -> u32 {
    block[at..at + 4].fill(0);
    let crc = crc32c::crc32c(&block[..]);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The `u64` at an offset.
pub fn word(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

/// The `u16` at an offset.
pub fn half(block: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Seals the superblocks in the snapshots of a leaf. What they lead to stays as it is.
fn seal_snapshots(leaf: &mut [u8; BLOCK_SIZE]) {
    for entry in 0..half(leaf, 54).min((BLOCK_SIZE - node::HEADER_BYTES) / node::SLOT_BYTES) {
        let slot = node::HEADER_BYTES + entry * node::SLOT_BYTES;
        let fields = half(leaf, slot + 18) + SNAPSHOT_SUPERBLOCK_AT;
        let end = fields + superblock::FIELDS_BYTES;
        if leaf[slot + 16] == KeyKind::Snapshot as u8 && end <= BLOCK_SIZE {
            let mut whole = [0; BLOCK_SIZE];
            whole[..superblock::FIELDS_BYTES].copy_from_slice(&leaf[fields..end]);
            seal_block(&mut whole, SUPERBLOCK_CRC_AT);
            leaf[fields..end].copy_from_slice(&whole[..superblock::FIELDS_BYTES]);
        }
    }
}

/// Seals one image; see the module's documentation.
pub struct Sealer<'a> {
    image: &'a mut Image,
    /// Blocks whose checksums stay as they are.
    broken: &'a BTreeSet<BlockNo>,
    /// What was sealed, and its checksum; None while it is being sealed.
    sealed: BTreeMap<BlockNo, Option<u32>>,
}

impl<'a> Sealer<'a> {
    /// Seals everything that the superblocks lead to, but for the blocks in `broken`.
    pub fn seal(image: &'a mut Image, broken: &'a BTreeSet<BlockNo>) {
        let mut sealer = Sealer { image, broken, sealed: BTreeMap::new() };
        for slot in superblock::SLOT_BLOCKS {
            sealer.superblock(slot);
        }
    }

    fn block(&self, at: BlockNo) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        self.image.read(at, &mut block);
        block
    }

    /// Writes a block with its checksum, unless it is to stay broken; the checksum it then has.
    fn finish(&mut self, at: BlockNo, mut block: [u8; BLOCK_SIZE], crc_at: usize) -> u32 {
        if !self.broken.contains(&at) {
            seal_block(&mut block, crc_at);
            self.image.write(at, &block);
        }
        u32::from_le_bytes(block[crc_at..crc_at + 4].try_into().expect("4 bytes"))
    }

    fn superblock(&mut self, at: BlockNo) {
        let mut block = self.block(at);
        for root in ROOTS_AT {
            if let Some(crc) = self.node(BlockNo(word(&block, root)), LEVELS_MAX) {
                block[root + REF_CRC..root + REF_CRC + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        if let Some(crc) = self.manifest(BlockNo(word(&block, MANIFEST_AT)), MANIFEST_PAGES_MAX) {
            block[MANIFEST_AT + 16..MANIFEST_AT + 20].copy_from_slice(&crc.to_le_bytes());
        }
        self.finish(at, block, SUPERBLOCK_CRC_AT);
        // The second copy says the same, so that it does not stand in for what was edited.
        let far = BlockNo(self.image.blocks() - superblock::FAR_BLOCKS + at.0);
        let sealed = self.block(at);
        self.image.write(far, &sealed);
    }

    /// The checksum of a block that was sealed already, or None in `Err` if it cannot be sealed now.
    fn begin(&mut self, at: BlockNo, magic: u32, room: usize) -> Result<[u8; BLOCK_SIZE], Option<u32>> {
        if let Some(known) = self.sealed.get(&at) {
            return Err(*known);
        }
        let block = self.block(at);
        if room == 0 || at.0 >= self.image.blocks() || block[..4] != magic.to_le_bytes() {
            return Err(None);
        }
        self.sealed.insert(at, None);
        Ok(block)
    }

    fn node(&mut self, at: BlockNo, levels: usize) -> Option<u32> {
        let mut block = match self.begin(at, node::MAGIC, levels) {
            Ok(block) => block,
            Err(known) => return known,
        };
        if block[52] > 0 {
            let count = half(&block, 54).min(node::CHILDREN_MAX);
            for entry in 0..count {
                let place = half(&block, node::HEADER_BYTES + entry * node::SLOT_BYTES + 18);
                if place + node::REF_BYTES <= BLOCK_SIZE
                    && let Some(crc) = self.node(BlockNo(word(&block, place)), levels - 1)
                {
                    block[place + REF_CRC..place + REF_CRC + 4].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
        if block[52] == 0 {
            seal_snapshots(&mut block);
        }
        let crc = self.finish(at, block, NODE_CRC_AT);
        self.sealed.insert(at, Some(crc));
        Some(crc)
    }

    fn manifest(&mut self, at: BlockNo, pages: usize) -> Option<u32> {
        let mut block = match self.begin(at, pool::MAGIC, pages) {
            Ok(block) => block,
            Err(known) => return known,
        };
        if let Some(crc) = self.manifest(BlockNo(word(&block, 56)), pages - 1) {
            block[72..76].copy_from_slice(&crc.to_le_bytes());
        }
        let (chunks, orphans) = (half(&block, 76), half(&block, 78));
        let first = pool::HEADER_BYTES + chunks.min(32) * pool::CHUNK_BYTES;
        for entry in 0..orphans.min(256) {
            let place = first + entry * pool::ORPHAN_BYTES;
            if place + pool::ORPHAN_BYTES > BLOCK_SIZE {
                break;
            }
            let orphan = BlockNo(word(&block, place + 8));
            if orphan.0 < self.image.blocks() && !self.sealed.contains_key(&orphan) {
                let bytes = self.block(orphan);
                self.finish(orphan, bytes, ORPHAN_CRC_AT);
                let crc = crc32c::crc32c(&self.block(orphan));
                block[place + 4..place + 8].copy_from_slice(&crc.to_le_bytes());
            }
        }
        let crc = self.finish(at, block, NODE_CRC_AT);
        self.sealed.insert(at, Some(crc));
        Some(crc)
    }
}
