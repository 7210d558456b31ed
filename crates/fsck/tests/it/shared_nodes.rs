//! Trees that are none: nodes that many parents share.

use crate::common::editor::Editor;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_format::key::{Key, KeyKind};
use quire_format::node::{CHILDREN_MAX, NodeIdentity, NodePage, TREE_BOUNDS};
use quire_format::place::Place;
use quire_fsck::IssueKind;

const LEVELS: usize = 12;

/// Puts nodes on top of the root, each with the one below as all of its children: 71^12 ways down.
fn tower(editor: &mut Editor) {
    let superblock = editor.superblock(0);
    let used = editor.manifest(0).1.chunks[0].used;
    let free: Vec<BlockNo> = (0..superblock.pool_blocks.min(1024))
        .filter(|bit| used[*bit as usize / 64] >> (bit % 64) & 1 == 0)
        .map(|bit| superblock.pool_start.offset(bit))
        .collect();
    let root = superblock.root;
    let mut top = root;
    for at in free.into_iter().take(LEVELS) {
        let mut page = NodePage::new(top.level + 1);
        for step in 0..CHILDREN_MAX as u64 {
            page.push_child(Key::new(step + 1, KeyKind::Inode, 0), &top);
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
        editor.image.write(at, &bytes);
    }
    for slot in 0..2 {
        editor.set_superblock(slot, |superblock| {
            superblock.root = top;
        });
    }
}

#[test]
fn every_node_is_followed_once() {
    let mut editor = Editor::new(&crate::common::closed());
    tower(&mut editor);
    let report = crate::common::check(&editor.image).unwrap();
    assert!(report.has(IssueKind::NodeShared), "{:?}", report.issues);
}

/// Without the pool's map there was nothing to mark nodes in, and those with keys out of place were followed
/// each time that a parent named them: the check never ended.
#[test]
fn every_node_is_followed_once_without_a_map() {
    let mut editor = Editor::new(&crate::common::closed());
    tower(&mut editor);
    let manifest = editor.manifest(0).0;
    editor.image.edit(manifest, |bytes| bytes[100] ^= 1);
    let report = crate::common::check(&editor.image).unwrap();
    assert!(report.has(IssueKind::PoolManifestDamaged), "{:?}", report.issues);
    assert!(report.has(IssueKind::NodeOutOfOrder), "{:?}", report.issues);
}
