//! Damaged nodes, maps and orphan blocks: errors of kind Corrupt, never a panic, never wrong contents.

use crate::common::{ORPHAN_BLOCKS, Root, VOLUME, Volume, stamp};
use proptest::prelude::*;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, InodeNo, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::key::{Key, KeyKind};
use quire_format::node::{NodeIdentity, NodePage, NodeRef, TREE_BOUNDS};
use quire_format::place::{NO_TWIN, Place};
use quire_tree::{PoolState, Tree, TreeLimits};
use std::ops::ControlFlow;

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 16, dirty_nodes: 4096 };

fn volume() -> (Arc<Device>, Root, crate::common::Model) {
    let mut volume = Volume::make(Device::in_memory(1024), 512, LIMITS);
    for n in 0..6000 {
        volume.put(Key::extent(InodeNo(1), n), &[n as u8; 24]);
    }
    volume.checkpoint(true);
    let (root, model) = volume.slots[0].clone().unwrap();
    (volume.device.clone(), root, model)
}

fn read(device: &Device, at: BlockNo) -> AlignedBuf {
    let mut block = AlignedBuf::blocks(1);
    device.read(IoClass::Metadata, at, &mut block).unwrap();
    block
}

/// A node with one copy that has all names.
fn identity(generation: u64, block: BlockNo) -> NodeIdentity {
    let place = Place::single(block);
    NodeIdentity { volume: VOLUME, generation, incarnation: 1, birth: 0, place, bounds: TREE_BOUNDS[1] }
}

/// Uses the whole of a tree; the first error.
fn use_all(tree: &Tree) -> Result<usize> {
    let mut count = 0;
    tree.scan(Key::MIN, Key::MAX, &mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    for n in (0..6000).step_by(37) {
        tree.get(Key::extent(InodeNo(1), n))?;
        tree.last_at_or_before(Key::extent(InodeNo(1), n), Key::MIN)?;
        tree.put(Key::extent(InodeNo(1), n), &[1; 300])?;
        tree.delete(Key::extent(InodeNo(1), n + 1))?;
    }
    Ok(count)
}

#[test]
fn every_damaged_block_is_seen() {
    let (device, root, model) = volume();
    let pool = PoolState::load(&device, VOLUME, root.manifest, device.blocks()).unwrap();
    let used: Vec<BlockNo> = (0..device.blocks()).map(BlockNo).filter(|block| pool.is_used(*block)).collect();
    assert!(used.len() > 60);
    for (n, &at) in used.iter().enumerate() {
        let good = read(&device, at);
        let mut bad = good.clone();
        bad[n * 389 % BLOCK_SIZE] ^= 1 << (n % 8);
        device.write(IoClass::Metadata, at, &bad).unwrap();
        let error = root.open(&device, LIMITS).and_then(|tree| use_all(&tree)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "block {at}: {error}");
        // The rest of the tree can be looked at.
        if let Ok(tree) = root.open(&device, LIMITS) {
            let (mut whole, mut damaged) = (0, 0);
            tree.walk_all(&mut |_, page| {
                if page.is_ok() {
                    whole += 1
                } else {
                    damaged += 1
                }
                Ok(())
            })
            .unwrap();
            assert!(whole >= 1 && damaged == 1, "{whole} whole, {damaged} damaged");
        }
        device.write(IoClass::Metadata, at, &good).unwrap();
    }
    let tree = root.open(&device, LIMITS).unwrap();
    assert_eq!(crate::common::contents(&tree), model);
    assert_eq!(ORPHAN_BLOCKS, 2);
}

/// Whatever one copy has become, the other one serves.
#[test]
fn one_of_two_copies_is_enough() {
    let mut volume = Volume::with_copies(Device::in_memory(2048), 1024, LIMITS, 2);
    for n in 0..3000 {
        volume.put(Key::extent(InodeNo(1), n), &[n as u8; 24]);
    }
    volume.checkpoint(true);
    let (root, model) = volume.slots[0].clone().unwrap();
    let device = &volume.device;
    let pool = PoolState::load(device, VOLUME, root.manifest, device.blocks()).unwrap();
    let used: Vec<BlockNo> = (0..device.blocks()).map(BlockNo).filter(|block| pool.is_used(*block)).collect();
    let all = read(device, used[3]);
    for (n, &at) in used.iter().enumerate() {
        let good = read(device, at);
        let mut bad = good.clone();
        match n % 3 {
            0 => bad[n * 389 % BLOCK_SIZE] ^= 1 << (n % 8),
            1 => bad.fill(0),
            _ => bad.copy_from_slice(&all),
        }
        device.write(IoClass::Metadata, at, &bad).unwrap();
        let tree = root.open(device, LIMITS).unwrap();
        assert_eq!(crate::common::contents(&tree), model, "block {at}");
        use_all(&tree).unwrap();
        device.write(IoClass::Metadata, at, &good).unwrap();
    }
}

#[test]
fn a_node_in_the_place_of_another_is_seen() {
    let (device, root, _) = volume();
    let mut nodes = Vec::new();
    root.open(&device, LIMITS)
        .unwrap()
        .walk(&mut |at, _| {
            nodes.push(at);
            Ok(())
        })
        .unwrap();
    let leaves: Vec<NodeRef> = nodes.into_iter().filter(|at| at.level == 0).collect();
    for pair in leaves.chunks_exact(2) {
        let (good, other) = (read(&device, pair[0].block), read(&device, pair[1].block));
        device.write(IoClass::Metadata, pair[0].block, &other).unwrap();
        let error = root.open(&device, LIMITS).and_then(|tree| use_all(&tree)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        device.write(IoClass::Metadata, pair[0].block, &good).unwrap();
    }
}

#[test]
fn references_to_nowhere_are_corrupt() {
    let (device, root, _) = volume();
    for block in [0, 5, 1023, 1024, u64::MAX] {
        let node = NodeRef { block: BlockNo(block), ..root.roots[1] };
        let pool = PoolState::load(&device, VOLUME, root.manifest, device.blocks()).unwrap();
        let error = Tree::open(device.clone(), VOLUME, [root.roots[0], node], pool, LIMITS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let mut manifest = root.manifest;
        manifest.block = BlockNo(block);
        assert_eq!(
            PoolState::load(&device, VOLUME, manifest, device.blocks()).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
    let mut pool = PoolState::load(&device, VOLUME, root.manifest, device.blocks()).unwrap();
    let blocks = pool.load_orphan_blocks(&device, 4);
    assert!(blocks[0].is_ok() && blocks[1].is_ok() && blocks[2].is_err() && blocks[3].is_err());
    let other = PoolState::load(&device, VOLUME + 1, root.manifest, device.blocks());
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Nodes that lie with a correct checksum: keys outside of the parent's bounds, wrong levels, children used
/// twice.
#[test]
fn sealed_lies_are_corrupt_or_harmless() {
    let (device, root, _) = volume();
    let mut nodes: Vec<(NodeRef, NodePage)> = Vec::new();
    let names = root.roots[1];
    let tree = root.open(&device, LIMITS).unwrap();
    tree.walk(&mut |at, page| {
        nodes.push((at, page.clone()));
        Ok(())
    })
    .unwrap();
    let top = &nodes.iter().find(|(at, _)| *at == names).unwrap().1;
    let lie = |page: &NodePage| {
        let mut block = AlignedBuf::blocks(1);
        let at = page.seal(&identity(names.generation, names.block), &mut block);
        device.write(IoClass::Metadata, names.block, &block).unwrap();
        let pool = PoolState::load(&device, VOLUME, root.manifest, device.blocks()).unwrap();
        Tree::open(device.clone(), VOLUME, [root.roots[0], at], pool, LIMITS)
    };
    // One child under every entry.
    let mut same = NodePage::new(top.level());
    (0..top.count()).for_each(|n| same.push_child(top.key(n), &top.child(0)));
    let error = lie(&same).and_then(|tree| use_all(&tree)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Children in the wrong order.
    let mut swapped = NodePage::new(top.level());
    (0..top.count()).for_each(|n| swapped.push_child(top.key(n), &top.child(top.count() - 1 - n)));
    let error = lie(&swapped).and_then(|tree| use_all(&tree)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // A leaf as the root of a higher tree; a child of the wrong level.
    let mut wrong = NodePage::new(3);
    wrong.push_child(Key::MIN, &top.child(0));
    assert_eq!(lie(&wrong).unwrap_err().kind(), ErrorKind::Corrupt);
    // Itself as its child.
    let mut itself = NodePage::new(1);
    itself.push_child(Key::MIN, &NodeRef { level: 0, ..names });
    assert!(lie(&itself).and_then(|tree| use_all(&tree)).is_err());
}

/// An inner node's first key says nothing and is not checked. A forged one lay above the keys of its own
/// child; when that child split, its new neighbour's key came out of order, and the checkpoint that wrote it
/// could not be read.
#[test]
fn a_first_key_that_is_too_high_stays_harmless() {
    let (device, root, mut model) = volume();
    let [space, names] = root.roots;
    let top = NodePage::decode(&read(&device, names.block), VOLUME, &names).unwrap();
    let mut forged = NodePage::new(top.level());
    let second = top.key(1);
    forged.push_child(Key { offset: second.offset - 1, ..second }, &top.child(0));
    (1..top.count()).for_each(|n| forged.push_child(top.key(n), &top.child(n)));
    let mut block = AlignedBuf::blocks(1);
    let at = forged.seal(&identity(names.generation, names.block), &mut block);
    device.write(IoClass::Metadata, at.block, &block).unwrap();

    let tree = Root { roots: [space, at], ..root }.open(&device, LIMITS).unwrap();
    tree.put(Key::extent(InodeNo(1), 3), &[1; 300]).unwrap();
    model.insert(Key::extent(InodeNo(1), 3), vec![1; 300]);
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(9)).unwrap();
    assert!(tree.stats().splits > 0);
    let written = Root::of(9, &image).open(&device, LIMITS).unwrap();
    assert_eq!(crate::common::contents(&written), model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Any bytes with a correct checksum decode to a page that can be used, or to an error.
    #[test]
    fn any_sealed_page_is_usable_or_refused(
        level in 0u8..3,
        entries in 0usize..20,
        changes in proptest::collection::vec((40usize..BLOCK_SIZE, any::<u8>()), 0..6),
        head in proptest::collection::vec((40usize..96 + 200, any::<u8>()), 0..3),
    ) {
        let mut page = NodePage::new(level);
        for n in 0..entries {
            let key = Key::new(1, KeyKind::Extent, n as u64 * 3);
            let child = NodeRef { block: BlockNo(n as u64), twin: NO_TWIN, generation: 1, crc: 0, level: level.wrapping_sub(1) };
            if level == 0 { page.insert(n, key, &vec![n as u8; n * 7]) } else { page.push_child(key, &child) }
        }
        let mut block = vec![0; BLOCK_SIZE];
        let mut at = page.seal(&identity(2, BlockNo(77)), &mut block);
        for (offset, byte) in changes.into_iter().chain(head) {
            block[offset] = byte;
        }
        block[4..8].fill(0);
        at.crc = crc32c::crc32c(&block);
        block[4..8].copy_from_slice(&at.crc.to_le_bytes());
        at.level = block[52];
        if let Ok(mut page) = NodePage::decode(&block, VOLUME, &at) {
            for n in 0..page.count() {
                let key = page.key(n);
                prop_assert_eq!(page.search(&key), Ok(n));
                let _ = page.value(n);
            }
            if page.level() == 0 {
                while page.count() > 0 {
                    if page.fits_instead(0, 50) { page.replace(0, &[1; 50]) }
                    page.remove(page.count() / 2);
                }
                prop_assert_eq!(page.used_bytes(), 0);
            }
        }
    }

    /// A page as an ordered list of entries.
    #[test]
    fn a_page_behaves_as_a_map(ops in proptest::collection::vec((0u64..40, 0usize..900, any::<bool>()), 1..200)) {
        let mut page = NodePage::new(0);
        let mut model = std::collections::BTreeMap::new();
        for (n, len, put) in ops {
            let key = Key::extent(InodeNo(n / 10), n);
            let value = vec![n as u8 ^ len as u8; len];
            match page.search(&key) {
                Ok(at) if !put => { page.remove(at); model.remove(&key); }
                Ok(at) if page.fits_instead(at, len) => { page.replace(at, &value); model.insert(key, value); }
                Err(at) if put && page.fits(len) => { page.insert(at, key, &value); model.insert(key, value); }
                _ => {}
            }
            let mut block = vec![0xee; BLOCK_SIZE];
            let at = page.seal(&identity(3, BlockNo(5)), &mut block);
            let read = NodePage::decode(&block, VOLUME, &at).unwrap();
            for page in [&page, &read] {
                let entries: Vec<_> = (0..page.count()).map(|n| (page.key(n), page.value(n).to_vec())).collect();
                prop_assert_eq!(entries, model.clone().into_iter().collect::<Vec<_>>());
            }
            prop_assert_eq!(page.used_bytes(), read.used_bytes());
        }
    }
}
