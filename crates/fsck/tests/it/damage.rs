//! Generated damage: every field of every structure is changed, with all checksums right again, and the check
//! (or recovery, whose refusal the check reports) must notice.
//!
//! What nobody can notice is listed where it is left out: contents of files and attributes, owners, times,
//! permission bits, numbers that only order things.

use crate::common::editor::{Editor, Location};
use crate::common::*;
use quire_base::BLOCK_SIZE;
use quire_base::random::Random;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::KeyKind;
use quire_format::node::{HEADER_BYTES, REF_BYTES, SLOT_BYTES};
use quire_format::superblock::SLOT_BLOCKS;
use std::collections::BTreeMap;

/// What a check says of an image: the codes, or that it cannot run. Never a panic.
fn verdict(image: &quire_device::simulated::Image) -> Vec<String> {
    match check(image) {
        Ok(report) => report.issues.iter().map(|issue| issue.code.to_string()).collect(),
        Err(error) => vec![format!("{:?}", error.kind())],
    }
}

struct Missed(Vec<String>);

impl Missed {
    fn new() -> Missed {
        Missed(Vec::new())
    }

    fn expect(&mut self, editor: &Editor, what: impl FnOnce() -> String) {
        if verdict(&editor.image).is_empty() {
            self.0.push(what());
        }
    }

    fn none(self) {
        assert!(self.0.is_empty(), "{} damages were not noticed: {:#?}", self.0.len(), self.0);
    }
}

/// Some keys of each kind, inodes of each type, values of each shape.
fn representatives(editor: &Editor) -> Vec<Location> {
    let mut chosen: BTreeMap<(u8, u64), Vec<Location>> = BTreeMap::new();
    for at in editor.keys() {
        let value = editor.value(&at);
        let shape = match at.key.kind {
            KeyKind::Inode => {
                let record = InodeRecord::decode(&value).unwrap();
                u64::from(record.mode >> 12) << 2
                    | u64::from(record.nlink == 0) << 1
                    | u64::from(record.xattr_bytes > 0)
            }
            KeyKind::Symlink | KeyKind::Xattr => u64::from(at.key.offset as u16),
            KeyKind::FreeSpace => value[0].into(),
            _ => 0,
        };
        chosen.entry((at.key.kind as u8, shape)).or_default().push(at);
    }
    // The first and the last of each.
    let ends = |all: Vec<Location>| {
        let last = all[all.len() - 1];
        let first = all[0];
        if all.len() > 1 { vec![first, last] } else { vec![first] }
    };
    chosen.into_values().flat_map(ends).collect()
}

/// Bits of a value's byte that nobody can check.
fn unknowable(at: &Location, value: &[u8], byte: usize) -> u8 {
    match at.key.kind {
        KeyKind::Inode => {
            let record = InodeRecord::decode(value).unwrap();
            let kind = record.file_type();
            match byte {
                0 => 0xff,
                1 => 0x0f,
                // Never-named: of an orphan it may be either.
                4 if record.nlink == 0 => 1,
                // Properties.
                5 => 0x1f,
                8..16 | 40..72 => 0xff,
                24..32 if kind == FileType::Regular => 0xff,
                72..80 if record.nlink == 0 => 0xff,
                80..88 if kind.is_device() => 0xff,
                88..96 if record.nlink == 0 && kind == FileType::Directory => 0xff,
                _ => 0,
            }
        }
        KeyKind::Symlink => 0xff,
        // The value; and in later pieces there is nothing else.
        KeyKind::Xattr if at.key.offset as u16 > 0 || byte >= 5 + usize::from(value[4]) => 0xff,
        KeyKind::Extent if byte == 14 => 1,
        // A truncate and a punch to the end free the same.
        KeyKind::LoggedOp if byte == 0 => 0b111,
        _ => 0,
    }
}

#[test]
fn every_field_of_every_value() {
    let original = Editor::new(&closed());
    let mut missed = Missed::new();
    let mut tried = 0;
    let mut random = Random::seeded(3);
    for at in representatives(&original) {
        let value = original.value(&at);
        for byte in 0..value.len() {
            let bits = !unknowable(&at, &value, byte);
            if bits == 0 || (byte > 120 && !random.one_in(8)) {
                continue;
            }
            let mut choices: Vec<u32> = (0..8).filter(|bit| bits >> bit & 1 == 1).collect();
            if std::env::var_os("QUIRE_FSCK_ALL_BITS").is_none() {
                choices = vec![choices[random.below(choices.len() as u64) as usize]];
            }
            for bit in choices {
                let mut editor = Editor::new(&original.image);
                let mut damaged = value.clone();
                damaged[byte] ^= 1 << bit;
                editor.set_value(&at, &damaged);
                tried += 1;
                missed.expect(&editor, || format!("{:?} byte {byte} bit {bit} of {value:02x?}", at.key));
            }
        }
    }
    assert!(tried > 800, "{tried}");
    missed.none();
}

#[test]
fn every_key_missing_or_moved() {
    let original = Editor::new(&closed());
    let mut missed = Missed::new();
    for at in representatives(&original) {
        let key = at.key;
        // Without it: a logged operation leaves no trace, a link's or an attribute's last piece does.
        if key.kind != KeyKind::LoggedOp {
            let mut editor = Editor::new(&original.image);
            editor.remove(key);
            missed.expect(&editor, || format!("{key:?} removed"));
        }
        // With another key: each byte of object, offset and kind.
        for byte in 0..17 {
            let harmless = match (key.kind, byte) {
                // Where an extent belongs in its file, and what orders names of one hash, is up to nobody
                // else.
                (KeyKind::Extent | KeyKind::LoggedOp, 8..16) => true,
                (KeyKind::Entry, 8..10) | (KeyKind::Xattr, 10..12) => true,
                _ => false,
            };
            if harmless {
                continue;
            }
            let mut editor = Editor::new(&original.image);
            editor.edit_node(at.node, |block| block[at.slot + byte] ^= 1);
            missed.expect(&editor, || format!("{key:?} byte {byte} of the key"));
        }
    }
    missed.none();
}

/// Where the value of a node's slot begins.
fn value_of(block: &[u8; BLOCK_SIZE], slot: usize) -> usize {
    let at = HEADER_BYTES + slot * SLOT_BYTES + 18;
    usize::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[test]
fn every_field_of_the_nodes() {
    let original = Editor::new(&closed());
    let nodes = original.nodes();
    assert!(nodes[0].level > 0, "the tree has inner nodes");
    let mut missed = Missed::new();
    for node in [nodes[0], *nodes.last().unwrap()] {
        // Not the padding of the header; the checksum is made right by the editor. An earlier life leaves no
        // trace.
        for byte in (0..4).chain(8..40).chain(41..60).chain(64..96) {
            let mut editor = Editor::new(&original.image);
            editor.edit_node(node.block, |block| block[byte] ^= 1);
            missed.expect(&editor, || format!("node of level {} byte {byte}", node.level));
        }
        // The first slots: key, kind, place of the value. The first key of an inner node only orders.
        for slot in 0..3 {
            for byte in (0..17).chain(18..22) {
                if node.level > 0 && byte < 17 {
                    continue;
                }
                let mut editor = Editor::new(&original.image);
                editor.edit_node(node.block, |block| block[HEADER_BYTES + slot * SLOT_BYTES + byte] ^= 1);
                let harmless = node.level == 0 && byte < 17;
                if !harmless {
                    missed
                        .expect(&editor, || format!("node of level {} slot {slot} byte {byte}", node.level));
                }
            }
        }
    }
    // References to children, all fields.
    let block = original.block(nodes[0].block);
    for slot in 0..2 {
        let value = value_of(&block, slot);
        for byte in 0..29 {
            let mut editor = Editor::new(&original.image);
            editor.edit_node(nodes[0].block, |block| block[value + byte] ^= 1);
            missed.expect(&editor, || format!("reference {slot} byte {byte}"));
        }
    }
    missed.none();
}

#[test]
fn keys_that_belong_into_other_nodes() {
    let original = Editor::new(&closed());
    let leaves: Vec<_> = original.nodes().into_iter().filter(|node| node.level == 0).collect();
    // The last leaf's first key gets into the range of the first leaf.
    let mut editor = Editor::new(&original.image);
    editor.edit_node(leaves[leaves.len() - 1].block, |block| block[HEADER_BYTES..HEADER_BYTES + 8].fill(0));
    assert!(verdict(&editor.image).iter().any(|code| code == "node-out-of-order"));
    // One leaf twice, another not at all.
    let mut editor = Editor::new(&original.image);
    let block = original.block(original.nodes()[0].block);
    let (first, second) = (value_of(&block, 0), value_of(&block, 1));
    editor.edit_node(original.nodes()[0].block, |block| block.copy_within(first..first + REF_BYTES, second));
    let found = verdict(&editor.image);
    assert!(found.iter().any(|code| code == "node-shared"), "{found:?}");
}

#[test]
fn every_field_of_the_pool_s_manifest() {
    let original = Editor::new(&closed());
    let slot = original.newest();
    let (_, page) = original.manifest(slot);
    let body = page.body_bytes();
    let mut missed = Missed::new();
    // Padding: 80 to 96. The generation (16 to 24) and the incarnation (40 to 48) may be lower.
    for byte in (0..4).chain(8..16).chain(17..40).chain(41..80).chain(96..96 + body) {
        let mut editor = Editor::new(&original.image);
        editor.edit_manifest(slot, |block| block[byte] ^= 1);
        missed.expect(&editor, || format!("manifest byte {byte}"));
    }
    missed.none();
}

#[test]
fn every_slot_of_the_orphan_blocks() {
    let original = Editor::new(&closed());
    let (_, page) = original.manifest(original.newest());
    let mut missed = Missed::new();
    for orphan in &page.orphans {
        for byte in (0..4080).step_by(29).chain(0..16).chain(4080..4084).chain(4088..4096) {
            let mut editor = Editor::new(&original.image);
            editor.edit_orphans(*orphan, |block| block[byte] ^= 0x40);
            missed.expect(&editor, || format!("orphan block {} byte {byte}", orphan.index));
        }
    }
    missed.none();
}

#[test]
fn every_field_of_one_superblock() {
    let original = Editor::new(&closed());
    let mut missed = Missed::new();
    for slot in 0..2 {
        for byte in (0..8).chain(12..400) {
            for bit in [0, 6] {
                // The time of the checkpoint is the slot's own, and so is whether it was the last before a
                // close.
                let harmless = matches!(byte, 352..360) || (byte, bit) == (20, 0);
                let mut editor = Editor::new(&original.image);
                editor.edit_superblock(slot, |block| block[byte] ^= 1 << bit);
                if !harmless {
                    missed.expect(&editor, || format!("superblock {slot} byte {byte} bit {bit}"));
                }
            }
        }
    }
    missed.none();
}

#[test]
fn every_field_of_both_superblocks() {
    let original = Editor::new(&closed());
    let mut missed = Missed::new();
    for byte in (0..8).chain(12..400) {
        let harmless = match byte {
            // Known to these blocks alone: versions and features that are compatible, clean or not, the
            // label, counts of checkpoints, lives and mounts, where the journal ends, times.
            16..21 | 24..40 | 64..128 | 144..168 | 176..184 | 244..248 | 336..360 => true,
            // Numbers that were given away and taken back leave no trace; nor do snapshots that are deleted.
            312..320 | 364..368 => true,
            _ => false,
        };
        let mut editor = Editor::new(&original.image);
        for slot in 0..2 {
            editor.edit_superblock(slot, |block| block[byte] ^= 1);
        }
        if !harmless {
            missed.expect(&editor, || format!("both superblocks byte {byte}"));
        }
    }
    missed.none();
}

#[test]
fn bit_rot_in_any_block_of_metadata() {
    let original = Editor::new(&closed());
    let (manifest, page) = original.manifest(original.newest());
    let mut blocks = SLOT_BLOCKS.to_vec();
    blocks.push(manifest);
    blocks.extend(page.orphans.iter().map(|orphan| orphan.block));
    blocks.extend(original.nodes().iter().map(|node| node.block));
    let mut random = Random::seeded(5);
    let mut missed = Missed::new();
    for block in blocks {
        for _ in 0..6 {
            let (byte, bit) = (random.below(BLOCK_SIZE as u64) as usize, random.below(8));
            let mut editor = Editor::new(&original.image);
            editor.image.edit(block, |block| block[byte] ^= 1 << bit);
            missed.expect(&editor, || format!("block {block} byte {byte} bit {bit}"));
        }
    }
    missed.none();
}

#[test]
fn damage_in_the_journal_is_noticed_or_looks_torn() {
    let image = crashed();
    let editor = Editor::new(&image);
    let superblock = editor.superblock(editor.newest());
    let mut random = Random::seeded(9);
    let whole = check(&image).unwrap().summary.journal_records;
    let mut damaged = 0;
    for _ in 0..150 {
        let block = superblock.journal_start.offset(random.below(superblock.journal_blocks));
        let byte = random.below(BLOCK_SIZE as u64) as usize;
        let mut editor = Editor::new(&image);
        editor.image.edit(block, |block| block[byte] ^= 1 << random.below(8));
        let report = check(&editor.image).unwrap();
        if report.issues.is_empty() {
            assert!(report.summary.journal_records <= whole);
        } else {
            damaged += 1;
            assert_eq!(report.exit_code(), 4);
        }
    }
    assert!(damaged > 0);
}

#[test]
fn a_truncated_image() {
    let image = closed();
    let mut shorter = quire_device::simulated::Image::new(image.blocks() - 100);
    image.for_each(&mut |at, block| {
        if at.0 < shorter.blocks() {
            shorter.write(at, block);
        }
    });
    assert_eq!(verdict(&shorter), ["volume-truncated", "volume-truncated"]);
}
