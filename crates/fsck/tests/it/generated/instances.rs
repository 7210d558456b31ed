//! The structures of a volume, each with the place of its bytes, and how to change them with every checksum
//! above made right again.

use crate::common::editor::{Editor, Location};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_format::layout::{self, Layout};
use quire_format::pool::OrphanRef;
use std::collections::BTreeMap;

/// Which checksums follow a change.
#[derive(Clone, Copy, Debug)]
pub enum Home {
    Superblock(usize),
    /// The same change in both slots.
    Superblocks,
    Node,
    Manifest(usize),
    Orphans(OrphanRef),
}

/// One structure in a volume.
#[derive(Clone, Debug)]
pub struct Instance {
    pub layout: &'static Layout,
    pub home: Home,
    pub block: BlockNo,
    pub offset: usize,
    pub len: usize,
    /// Of a slot or value in a leaf.
    pub key: Option<Key>,
    /// What sorts instances of one layout by what they stand for.
    pub shape: u64,
}

impl Instance {
    pub fn describe(&self) -> String {
        let key = self
            .key
            .map_or(String::new(), |key| format!(" of ({} {:?} {:#x})", key.object, key.kind, key.offset));
        format!("{}{key} at {:?} {}+{}", self.layout.name, self.home, self.block, self.offset)
    }

    pub fn bytes(&self, editor: &Editor) -> Vec<u8> {
        editor.block(self.block)[self.offset..self.offset + self.len].to_vec()
    }

    /// Replaces the bytes of two structures at once.
    pub fn set_both(&self, bytes: &[u8], other: &Instance, others: &[u8], editor: &mut Editor) {
        if let (Home::Node, Home::Node) = (self.home, other.home) {
            let change =
                |instance: &Instance, bytes: &[u8]| (instance.block, instance.offset, bytes.to_vec());
            editor.edit_nodes(&[change(other, others), change(self, bytes)]);
        } else {
            other.set(editor, others);
            self.set(editor, bytes);
        }
    }

    /// Replaces all bytes of the structure.
    pub fn set(&self, editor: &mut Editor, bytes: &[u8]) {
        let change = |block: &mut [u8; BLOCK_SIZE]| {
            block[self.offset..self.offset + self.len].copy_from_slice(bytes);
        };
        match self.home {
            Home::Superblock(slot) => editor.edit_superblock(slot, change),
            Home::Superblocks => {
                // Each keeps what is its own.
                let before = self.bytes(editor);
                for slot in 0..2 {
                    editor.edit_superblock(slot, |block| {
                        for at in 0..self.len {
                            if before[at] != bytes[at] {
                                block[self.offset + at] = bytes[at];
                            }
                        }
                    });
                }
            }
            Home::Node => editor.edit_node(self.block, change),
            Home::Manifest(slot) => editor.edit_manifest(slot, change),
            Home::Orphans(orphan) => editor.edit_orphans(orphan, change),
        }
    }
}

fn value_layout(at: &Location, value: &[u8]) -> Option<&'static Layout> {
    Some(match at.key.kind {
        KeyKind::FreeSpace | KeyKind::Dead => &layout::REGION,
        KeyKind::LoggedOp => &layout::LOGGED,
        KeyKind::OrphanKey | KeyKind::Snapshot | KeyKind::Receive => return None,
        KeyKind::Inode => &layout::INODE,
        KeyKind::Symlink => &layout::LINK_TARGET,
        KeyKind::Xattr if at.key.offset as u16 == 0 && !value.is_empty() => &layout::XATTR,
        KeyKind::Xattr => &layout::LINK_TARGET,
        KeyKind::Entry => &layout::ENTRY,
        KeyKind::Extent => &layout::EXTENT,
    })
}

fn shape(at: &Location, value: &[u8]) -> u64 {
    match at.key.kind {
        KeyKind::Inode => {
            let record = InodeRecord::decode(value).unwrap();
            u64::from(record.mode >> 12) << 3
                | u64::from(record.nlink == 0) << 2
                | u64::from(record.xattr_bytes > 0) << 1
                | u64::from(record.blocks > 0)
        }
        KeyKind::Symlink => 100 + at.key.offset,
        KeyKind::Xattr => u64::from(at.key.offset as u16).min(2),
        KeyKind::FreeSpace | KeyKind::Dead | KeyKind::LoggedOp => value[0].into(),
        KeyKind::Entry => value[16].into(),
        KeyKind::Extent => value[12].into(),
        KeyKind::OrphanKey | KeyKind::Snapshot | KeyKind::Receive => 0,
    }
}

/// All structures of a closed volume, by layout.
pub fn all(editor: &Editor) -> Vec<Instance> {
    let mut found = Vec::new();
    let mut add = |layout, home, block, offset, len, key, shape| {
        found.push(Instance { layout, home, block, offset, len, key, shape });
    };
    let slots = quire_format::superblock::SLOT_BLOCKS;
    for (slot, block) in slots.into_iter().enumerate() {
        add(&layout::SUPERBLOCK, Home::Superblock(slot), block, 0, BLOCK_SIZE, None, slot as u64);
    }
    add(&layout::SUPERBLOCK, Home::Superblocks, slots[0], 0, BLOCK_SIZE, None, 2);

    for node in editor.nodes() {
        let (at, level) = (node.block, node.level);
        add(&layout::NODE, Home::Node, at, 0, layout::NODE.bytes, None, level.into());
        if level > 0 {
            let block = editor.block(at);
            let count = usize::from(u16::from_le_bytes([block[54], block[55]]));
            for slot in 0..count {
                let offset = layout::NODE.bytes + slot * layout::NODE_SLOT.bytes;
                let value = usize::from(u16::from_le_bytes([block[offset + 18], block[offset + 19]]));
                let (slot_bytes, ref_bytes) = (layout::NODE_SLOT.bytes, layout::NODE_REF.bytes);
                let place = if slot == 0 { 200 } else { 201 };
                add(&layout::NODE_SLOT, Home::Node, at, offset, slot_bytes, None, place);
                add(&layout::NODE_REF, Home::Node, at, value, ref_bytes, None, 0);
            }
        }
    }
    for at in editor.keys() {
        let value = editor.value(&at);
        let (key, shape) = (Some(at.key), shape(&at, &value));
        let slot_shape = (at.key.kind as u64) << 8 | shape & 0xff;
        let slot_bytes = layout::NODE_SLOT.bytes;
        add(&layout::NODE_SLOT, Home::Node, at.node, at.slot, slot_bytes, key, slot_shape);
        if let Some(layout) = value_layout(&at, &value) {
            add(layout, Home::Node, at.node, at.value, at.len, key, shape);
            if layout.name == layout::REGION.name && value[0] == 1 {
                for run in (1..at.len).step_by(4) {
                    add(&layout::REGION_RUN, Home::Node, at.node, at.value + run, 4, key, 0);
                }
            }
        }
    }
    let newest = editor.newest();
    let (block, page) = editor.manifest(newest);
    let home = Home::Manifest(newest);
    let mut offset = layout::MANIFEST_PAGE.bytes;
    add(&layout::MANIFEST_PAGE, home, block, 0, offset, None, 0);
    for _ in &page.chunks {
        add(&layout::CHUNK, home, block, offset, layout::CHUNK.bytes, None, 0);
        offset += layout::CHUNK.bytes;
    }
    for orphan in &page.orphans {
        add(&layout::ORPHAN_REF, home, block, offset, layout::ORPHAN_REF.bytes, None, 0);
        offset += layout::ORPHAN_REF.bytes;
        let home = Home::Orphans(*orphan);
        add(&layout::ORPHAN_BLOCK, home, orphan.block, 0, BLOCK_SIZE, None, orphan.index.into());
    }
    found
}

/// The first, one in the middle and the last of each layout and shape.
pub fn representatives(all: &[Instance]) -> Vec<Instance> {
    let mut groups: BTreeMap<(&str, u64), Vec<&Instance>> = BTreeMap::new();
    for instance in all {
        groups.entry((instance.layout.name, instance.shape)).or_default().push(instance);
    }
    let mut chosen = Vec::new();
    for group in groups.values() {
        let middle = if group[0].layout.name == layout::NODE_SLOT.name { 0 } else { group.len() / 2 };
        let mut places = vec![0, middle, group.len() - 1];
        places.dedup();
        chosen.extend(places.into_iter().map(|at| group[at].clone()));
    }
    chosen
}
