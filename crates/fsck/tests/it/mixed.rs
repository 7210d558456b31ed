//! Random mixtures of damage, by seed: no panic, no hang, and what is repaired is clean.

use crate::common::editor::Editor;
use crate::common::*;
use quire_base::BLOCK_SIZE;
use quire_base::random::Random;
use quire_format::key::KeyKind;
use quire_format::superblock::SLOT_BLOCKS;

/// `QUIRE_FSCK_SEEDS` sets how many seeds are tried.
fn seeds(default: u64) -> u64 {
    std::env::var("QUIRE_FSCK_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Changes one value or key at random, checksums right.
fn damage(editor: &mut Editor, random: &mut Random) -> String {
    let keys = editor.keys();
    let at = keys[random.below(keys.len() as u64) as usize];
    match random.below(6) {
        0 => {
            editor.remove(at.key);
            format!("{:?} removed", at.key)
        }
        1 if at.len > 0 => {
            let value: Vec<u8> = (0..at.len).map(|_| random.below(256) as u8).collect();
            editor.set_value(&at, &value);
            format!("{:?} overwritten", at.key)
        }
        2 => {
            // Another value of the same kind.
            let others: Vec<_> =
                keys.iter().filter(|other| other.key.kind == at.key.kind && other.len == at.len).collect();
            let value = editor.value(others[random.below(others.len() as u64) as usize]);
            editor.set_value(&at, &value);
            format!("{:?} has another's value", at.key)
        }
        _ if at.len > 0 => {
            let (byte, bit) = (random.below(at.len as u64) as usize, random.below(8));
            let mut value = editor.value(&at);
            value[byte] ^= 1 << bit;
            editor.set_value(&at, &value);
            format!("{:?} byte {byte} bit {bit}", at.key)
        }
        _ => String::new(),
    }
}

#[test]
fn mixtures_of_damaged_values_are_mended() {
    let original = Editor::new(&closed());
    for seed in 0..seeds(120) {
        let mut random = Random::seeded(seed);
        let mut editor = Editor::new(&original.image);
        let count = 1 + random.below(8);
        let done: Vec<String> = (0..count).map(|_| damage(&mut editor, &mut random)).collect();
        let (report, after) = repair(&editor.image);
        assert!(matches!(report.exit_code(), 0 | 1), "seed {seed}: {done:#?} {:#?}", report.issues);
        assert_clean(&after, &format!("seed {seed}: {done:#?}"));
    }
}

#[test]
fn regions_of_garbage_are_mended() {
    let original = Editor::new(&closed());
    for at in original.of_kind(KeyKind::FreeSpace) {
        let mut editor = Editor::new(&original.image);
        editor.remove(at.key);
        let (report, after) = repair(&editor.image);
        assert_eq!(report.exit_code(), 1, "{:#?}", report.issues);
        assert_clean(&after, "a region");
    }
}

#[test]
fn any_bytes_anywhere_end_without_panic() {
    let original = Editor::new(&closed());
    let (manifest, page) = original.manifest(original.newest());
    let nodes: Vec<_> = original.nodes().iter().map(|node| node.block).collect();
    let orphans = page.orphans.clone();
    for seed in 0..seeds(300) {
        let mut random = Random::seeded(seed ^ 0xabcd);
        let mut editor = Editor::new(&original.image);
        let spoil = |random: &mut Random, block: &mut [u8; BLOCK_SIZE]| {
            for _ in 0..1 + random.below(4) {
                // Most of the meaning is at the start.
                let limit = if random.one_in(2) { 400 } else { BLOCK_SIZE as u64 };
                block[random.below(limit) as usize] = random.below(256) as u8;
            }
        };
        match random.below(6) {
            0 => {
                let slot = random.below(2) as usize;
                editor.edit_superblock(slot, |block| spoil(&mut random, block));
            }
            1 => {
                for slot in 0..2 {
                    let mut same = Random::seeded(seed);
                    editor.edit_superblock(slot, |block| spoil(&mut same, block));
                }
            }
            2 => {
                let slot = editor.newest();
                editor.edit_manifest(slot, |block| spoil(&mut random, block));
            }
            3 => editor.edit_orphans(orphans[0], |block| spoil(&mut random, block)),
            4 => {
                let node = nodes[random.below(nodes.len() as u64) as usize];
                editor.edit_node(node, |block| spoil(&mut random, block));
            }
            _ => {
                let at = [SLOT_BLOCKS[0], SLOT_BLOCKS[1], manifest, nodes[0], orphans[0].block];
                editor.image.edit(at[random.below(5) as usize], |block| spoil(&mut random, block));
            }
        }
        let Ok(before) = check(&editor.image) else { continue };
        let backend = device(&editor.image);
        let options = quire_fsck::Options { repair: true, ..quire_fsck::Options::default() };
        let Ok(report) = quire_fsck::check_backend(backend.clone(), &options) else { continue };
        if report.exit_code() == 1 {
            assert_clean(&backend.visible(), &format!("seed {seed}: {:#?}", report.issues));
        } else if report.exit_code() == 0 {
            assert!(before.issues.is_empty(), "seed {seed}");
        }
    }
}
