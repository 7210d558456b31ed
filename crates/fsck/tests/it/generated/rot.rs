//! Rot: metadata changed without its checksums, as a device gives it back. All of it must be found, and what
//! has a second copy must be mended without a loss.

use super::judge::{self, Touched, Verdict};
use super::{Tally, limits, volumes};
use crate::common::editor::Editor;
use crate::common::*;
use quire::inodes::Create;
use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::simulated::{CrashPolicy, Image};
use quire_format::node::NodePage;
use quire_format::superblock::SLOT_BLOCKS;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// In use, with two checkpoints that share some of their nodes.
fn two_checkpoints() -> Image {
    let backend = device(&volumes::in_use());
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.drain_orphans();
    volume.checkpoint().unwrap();
    let root = volume.inodes().root();
    for number in 0..30 {
        volume.inodes().create(&root, format!("new-{number}").as_bytes(), &Create::file(0o600)).unwrap();
    }
    volume.checkpoint().unwrap();
    for number in 30..40 {
        volume.inodes().create(&root, format!("new-{number}").as_bytes(), &Create::file(0o600)).unwrap();
    }
    volume.sync().unwrap();
    backend.crash(CrashPolicy::KeepAll)
}

/// Every block that either superblock leads to.
fn metadata(editor: &Editor) -> Vec<BlockNo> {
    let mut blocks = BTreeSet::from(SLOT_BLOCKS);
    for slot in 0..2 {
        let superblock = editor.superblock(slot);
        let (manifest, page) = editor.manifest(slot);
        blocks.insert(manifest);
        blocks.extend(page.orphans.iter().map(|orphan| orphan.block));
        let mut nodes = superblock.roots().to_vec();
        while let Some(at) = nodes.pop() {
            blocks.insert(at.block);
            let page = NodePage::decode(&editor.block(at.block), superblock.volume_id(), &at).unwrap();
            nodes.extend((0..if page.level() > 0 { page.count() } else { 0 }).map(|child| page.child(child)));
        }
    }
    blocks.into_iter().collect()
}

fn rot(image: &Image, seed: u64, least: usize) {
    limits::watch();
    let editor = Editor::new(image);
    assert_clean(image, "before any damage");
    let original = judge::original(&editor);
    let mut random = Random::seeded(seed);
    let mut tally = Tally::default();
    let blocks = metadata(&editor);
    for (number, &at) in blocks.iter().enumerate() {
        let was = editor.block(at);
        let mut damages: Vec<(&str, [u8; BLOCK_SIZE])> = Vec::new();
        for _ in 0..4 {
            let mut block = was;
            block[random.below(BLOCK_SIZE as u64) as usize] ^= 1 << random.below(8);
            damages.push(("a bit flipped", block));
        }
        damages.push(("zeros", [0; BLOCK_SIZE]));
        damages.push(("another block's", editor.block(blocks[(number + 1) % blocks.len()])));
        let mut torn = was;
        torn[512 * random.below(8) as usize..][..512].fill(0);
        damages.push(("a sector lost", torn));
        for (how, block) in damages {
            if block == was {
                continue;
            }
            let what = format!("block {at}: {how}");
            let mut image = image.clone();
            image.write(at, &block);
            limits::begin(&what);
            let outcome =
                catch_unwind(AssertUnwindSafe(|| judge::judge(&original, &image, &Touched::default())));
            limits::end();
            tally.tried += 1;
            match outcome {
                Ok(Verdict::Refused) => tally.refused += 1,
                Ok(Verdict::Found) => tally.found += 1,
                Ok(Verdict::NotFound) => tally.wrong.push(format!("NOT FOUND {what}")),
                Err(panic) => tally.wrong.push(format!("{what}: {}", limits::message(&*panic))),
            }
        }
    }
    tally.end(least);
}

#[test]
fn rot_in_a_closed_volume() {
    rot(&volumes::closed(), 21, 100);
}

#[test]
fn rot_in_a_volume_in_use() {
    rot(&two_checkpoints(), 22, 100);
}
