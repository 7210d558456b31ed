//! Damage to an image, as a list of edits that are decoded from the fuzzer's bytes.
//!
//! An edit takes [`EDIT_BYTES`], so that a fuzzer can move, copy and drop edits:
//!
//! ```text
//! 0 operation u8   1 flags u8   2 which u16   4 at u16   6 more u16   8 value u64
//! ```
//!
//! `which` chooses among the sample's metadata blocks. Flag 1 keeps the block's checksum broken; flags 2 and
//! 4 say what `value` is: itself, an index into interesting numbers, a distance from the number that is
//! there, or a place in the block to copy from. One operation builds a tower of nodes on the root instead.
//!
//! Invariants: any bytes give an image, and the same bytes the same image.
//!
//! Neighbours: [`crate::sample`] has the images before, [`crate::seal`] makes their checksums right again.

use crate::sample::{BLOCKS, Sample, block};
use crate::seal::{Sealer, half, word};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::simulated::Image;
use quire_format::key::{Key, KeyKind, VALUE_MAX};
use quire_format::node::{
    CHILDREN_MAX, HEADER_BYTES, NodeIdentity, NodePage, NodeRef, SLOT_BYTES, TREE_BOUNDS,
};
use quire_format::place::Place;
use quire_format::superblock::{SLOT_BLOCKS, Superblock};
use quire_format::{journal, node, pool};
use std::collections::BTreeSet;

/// Bytes of an edit.
pub const EDIT_BYTES: usize = 16;
/// Edits of one image at most.
pub const EDITS_MAX: usize = 24;

const BROKEN: u8 = 1;

/// Numbers near the limits of the format.
const INTERESTING: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    16,
    255,
    256,
    510,
    511,
    512,
    1023,
    1024,
    1088,
    1089,
    4031,
    4032,
    4095,
    4096,
    4097,
    BLOCKS - 1,
    BLOCKS,
    BLOCKS + 1,
    32767,
    32768,
    65535,
    65536,
    1 << 20,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    (1 << 48) - 1,
    1 << 51,
    1 << 60,
    (1 << 60) + 4032,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Where a superblock's fields begin.
const SUPERBLOCK_FIELDS: &[(usize, usize)] = &[
    (0, 8),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (128, 4),
    (132, 4),
    (136, 8),
    (144, 8),
    (152, 8),
    (160, 8),
    (168, 8),
    (176, 8),
    (184, 8),
    (192, 8),
    (200, 8),
    (208, 4),
    (212, 4),
    (216, 8),
    (224, 8),
    (232, 4),
    (236, 4),
    (240, 4),
    (244, 4),
    (248, 8),
    (256, 8),
    (264, 8),
    (272, 8),
    (280, 8),
    (288, 8),
    (296, 8),
    (304, 8),
    (312, 8),
    (320, 8),
    (328, 8),
    (336, 8),
    (344, 8),
    (352, 8),
    (360, 4),
    (364, 4),
    (368, 8),
    (376, 8),
    (384, 8),
    (392, 4),
    (396, 4),
    (400, 8),
];

struct Edit {
    operation: u8,
    flags: u8,
    which: usize,
    at: usize,
    more: usize,
    value: u64,
}

impl Edit {
    fn decode(bytes: &[u8]) -> Edit {
        Edit {
            operation: bytes[0],
            flags: bytes[1],
            which: half(bytes, 2),
            at: half(bytes, 4),
            more: half(bytes, 6),
            value: word(bytes, 8),
        }
    }

    /// What is to be put where the number `old` is.
    fn number(&self, bytes: &[u8; BLOCK_SIZE], old: u64) -> u64 {
        match self.flags >> 1 & 3 {
            0 => self.value,
            1 => INTERESTING[self.value as usize % INTERESTING.len()],
            2 => old.wrapping_add_signed(self.value as i8 as i64),
            _ => word(bytes, self.value as usize % (BLOCK_SIZE - 8)),
        }
    }

    /// Puts a number of `len` bytes at `at`.
    fn put(&self, bytes: &mut [u8; BLOCK_SIZE], at: usize, len: usize) {
        let (at, len) = (at.min(BLOCK_SIZE - 1), len.min(8));
        let len = len.min(BLOCK_SIZE - at);
        let mut old = [0; 8];
        old[..len].copy_from_slice(&bytes[at..at + len]);
        let new = self.number(bytes, u64::from_le_bytes(old));
        bytes[at..at + len].copy_from_slice(&new.to_le_bytes()[..len]);
    }
}

/// The sample's image with the edits that `input` says.
pub fn edited(sample: &Sample, input: &[u8]) -> Image {
    let mut image = sample.image.clone();
    let mut broken = BTreeSet::new();
    let mut touched = BTreeSet::new();
    let mut tower = None;
    for bytes in input.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        let edit = Edit::decode(bytes);
        if edit.operation % 16 == 15 && edit.more.is_multiple_of(4) {
            tower = Some(Tower { levels: 1 + edit.which % 12, children: 1 + edit.at % CHILDREN_MAX });
            continue;
        }
        let at = target(&edit, sample, &image);
        let mut bytes = block(&image, at);
        apply(&edit, sample, &image, &mut bytes);
        image.write(at, &bytes);
        touched.insert(at);
        if edit.flags & BROKEN != 0 {
            broken.insert(at);
        }
    }
    if let Some(tower) = tower {
        tower.build(&mut image, sample);
    }
    for at in touched.difference(&broken) {
        seal_journal(&mut image, *at);
    }
    Sealer::seal(&mut image, &broken);
    image
}

/// Inner nodes on top of the root, each with the one below as its child many times over: there are as many
/// ways down as the number of children to the power of that of levels.
struct Tower {
    levels: usize,
    children: usize,
}

impl Tower {
    fn build(&self, image: &mut Image, sample: &Sample) {
        for slot in SLOT_BLOCKS {
            let Ok(mut superblock) = Superblock::decode(&block(image, slot)) else { continue };
            let root = superblock.root;
            let mut top = root;
            let unused = (superblock.pool_start.0..).map(BlockNo).filter(|at| !sample.metadata.contains(at));
            for at in unused.take(self.levels) {
                let mut page = NodePage::new(top.level + 1);
                for step in 1..=self.children as u64 {
                    page.push_child(Key::new(step, KeyKind::Inode, 0), &top);
                }
                let mut bytes = [0; BLOCK_SIZE];
                let identity = NodeIdentity {
                    volume: superblock.volume_id(),
                    generation: root.generation,
                    incarnation: superblock.incarnation,
                    birth: 0,
                    place: Place::single(at),
                    bounds: TREE_BOUNDS[1],
                };
                top = page.seal(&identity, &mut bytes);
                image.write(at, &bytes);
                mark_used(image, &superblock, at);
            }
            superblock.root = top;
            image.write(slot, &superblock.encode());
        }
    }
}

/// Marks a block of the pool in a superblock's map, whose checksum is the sealer's to mend.
fn mark_used(image: &mut Image, superblock: &Superblock, at: BlockNo) {
    image.edit(superblock.manifest.block, |bytes| {
        for entry in 0..half(bytes, 76).min(27) {
            let chunk = pool::HEADER_BYTES + entry * pool::CHUNK_BYTES;
            let bit = at.0.wrapping_sub(word(bytes, chunk)) as usize;
            if bit < pool::CHUNK_BLOCKS_MAX as usize && bytes[chunk + 16 + bit / 8] >> (bit % 8) & 1 == 0 {
                bytes[chunk + 16 + bit / 8] |= 1 << (bit % 8);
                let used = (half(bytes, chunk + 12) + 1) as u16;
                bytes[chunk + 12..chunk + 14].copy_from_slice(&used.to_le_bytes());
            }
        }
    });
}

/// Journal blocks have checksums of their own and nothing above them.
fn seal_journal(image: &mut Image, at: BlockNo) {
    let bytes = block(image, at);
    if bytes[..4] == *b"QJnl" {
        image.edit(at, |bytes| {
            crate::seal::seal_block(bytes, crate::seal::NODE_CRC_AT);
        });
    }
}

fn target(edit: &Edit, sample: &Sample, image: &Image) -> BlockNo {
    let chosen = |wanted: &dyn Fn(&[u8; BLOCK_SIZE]) -> bool| {
        let count = sample.metadata.len();
        (0..count)
            .map(|step| sample.metadata[(edit.which + step) % count])
            .find(|at| wanted(&block(image, *at)))
            .unwrap_or(sample.metadata[edit.which % count])
    };
    match edit.operation % 16 {
        6..=10 => chosen(&|bytes| bytes[..4] == node::MAGIC.to_le_bytes()),
        11 => SLOT_BLOCKS[edit.which % 2],
        12 => chosen(&|bytes| bytes[..4] == pool::MAGIC.to_le_bytes()),
        13 => chosen(&|bytes| bytes[..4] == *b"QJnl"),
        14 => BlockNo(edit.which as u64 % BLOCKS),
        _ => sample.metadata[edit.which % sample.metadata.len()],
    }
}

fn apply(edit: &Edit, sample: &Sample, image: &Image, bytes: &mut [u8; BLOCK_SIZE]) {
    let at = edit.at % BLOCK_SIZE;
    match edit.operation % 16 {
        0 | 14 => edit.put(bytes, at, 1),
        1 => edit.put(bytes, at & !1, 2),
        2 => edit.put(bytes, at & !3, 4),
        3 => edit.put(bytes, at & !7, 8),
        4 => bytes[at..(at + 1 + edit.more % 512).min(BLOCK_SIZE)].fill(edit.value as u8),
        5 => *bytes = block(image, sample.metadata[edit.more % sample.metadata.len()]),
        6 => edit_slot(edit, bytes),
        7 => edit_value(edit, bytes),
        8..=10 => edit_page(edit, bytes),
        11 => {
            let (at, len) = SUPERBLOCK_FIELDS[edit.at % SUPERBLOCK_FIELDS.len()];
            edit.put(bytes, at, len);
        }
        12 => {
            // The header's words, then those of the chunks and orphan blocks.
            let at = if edit.more.is_multiple_of(2) { 8 + edit.at % 88 } else { 96 + edit.at % 1024 };
            edit.put(bytes, at, [1, 2, 4, 8][edit.more / 2 % 4]);
        }
        13 if edit.more.is_multiple_of(4) => edit.put(bytes, 8 + edit.at % 48, 8),
        13 => edit.put(bytes, journal::HEADER_BYTES + at % journal::PAYLOAD_BYTES, 1 + edit.more % 8),
        _ => bytes[at] ^= 1 << (edit.value % 8),
    }
}

/// The slot of an entry, if the node has any.
fn slot_of(edit: &Edit, bytes: &[u8; BLOCK_SIZE]) -> Option<usize> {
    let count = half(bytes, 54).min((BLOCK_SIZE - HEADER_BYTES) / SLOT_BYTES);
    (count > 0).then(|| HEADER_BYTES + edit.at % count * SLOT_BYTES)
}

fn edit_slot(edit: &Edit, bytes: &mut [u8; BLOCK_SIZE]) {
    let Some(slot) = slot_of(edit, bytes) else { return };
    let (field, len) = [(0, 8), (8, 8), (16, 1), (18, 2), (20, 2), (8, 2)][edit.more % 6];
    edit.put(bytes, slot + field, len);
}

fn edit_value(edit: &Edit, bytes: &mut [u8; BLOCK_SIZE]) {
    let Some(slot) = slot_of(edit, bytes) else { return };
    let (place, len) = (half(bytes, slot + 18), half(bytes, slot + 20));
    if len > 0 {
        edit.put(bytes, place + edit.more % len, [1, 2, 4, 8][edit.flags as usize >> 3 & 3]);
    }
}

/// Changes that leave a node well-formed: entries that go, come twice, or have other keys.
fn edit_page(edit: &Edit, bytes: &mut [u8; BLOCK_SIZE]) {
    let own = NodeRef {
        block: BlockNo(word(bytes, 24)),
        twin: BlockNo(word(bytes, 32)),
        generation: word(bytes, 16),
        crc: crate::seal::seal_block(&mut bytes.clone(), 4),
        level: bytes[52],
    };
    let volume = word(bytes, 8);
    let mut sealed = *bytes;
    crate::seal::seal_block(&mut sealed, 4);
    let Ok(mut page) = NodePage::decode(&sealed, volume, &own) else { return };
    if page.count() == 0 {
        return;
    }
    let at = edit.at % page.count();
    let (mut key, mut value) = (page.key(at), page.value(at).to_vec());
    match edit.operation % 16 {
        8 => {
            if page.count() > 1 {
                page.remove(at);
            }
        }
        9 => {
            change_key(edit, bytes, &mut key);
            insert(&mut page, key, &value);
        }
        _ => {
            value.resize(edit.more % (VALUE_MAX + 1), edit.value as u8);
            if page.fits_instead(at, value.len()) && page.level() == 0 {
                page.replace(at, &value);
            }
        }
    }
    let identity = NodeIdentity {
        volume,
        generation: own.generation,
        incarnation: page.incarnation(),
        birth: page.birth(),
        place: own.place(),
        bounds: page.bounds(),
    };
    page.seal(&identity, bytes);
}

fn change_key(edit: &Edit, bytes: &[u8; BLOCK_SIZE], key: &mut Key) {
    match edit.more % 3 {
        0 => key.object = edit.number(bytes, key.object),
        1 => key.offset = edit.number(bytes, key.offset),
        _ => key.kind = KeyKind::from_byte(edit.value as u8).unwrap_or(KeyKind::Extent),
    }
}

fn insert(page: &mut NodePage, key: Key, value: &[u8]) {
    if let Err(at) = page.search(&key)
        && page.fits(value.len())
    {
        page.insert(at, key, value);
    }
}
