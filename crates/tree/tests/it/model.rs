//! The tree against a `BTreeMap`, with checkpoints, changes while they are written, reopening and a tiny
//! cache.

use crate::common::{Volume, stamp};
use proptest::prelude::*;
use quire_base::random::Random;
use quire_base::{BlockNo, InodeNo};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::{Key, KeyKind, VALUE_MAX};
use quire_tree::TreeLimits;
use std::ops::ControlFlow;

#[derive(Clone, Debug)]
enum Op {
    Put(u16, usize),
    Delete(u16),
    DeleteRange(u16, u16),
    Update(u16, usize),
    Checkpoint,
    Freeze,
    Write,
    Reopen,
    Check,
}

fn key(n: u16) -> Key {
    let kinds = [KeyKind::Inode, KeyKind::Xattr, KeyKind::Entry, KeyKind::Extent];
    Key::new(1 + u64::from(n / 64), kinds[usize::from(n / 16 % 4)], u64::from(n % 16) * 7)
}

fn value(n: u16, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u16).wrapping_mul(31).wrapping_add(n) as u8).collect()
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![3 => 0usize..64, 2 => 0..VALUE_MAX + 1];
    prop_oneof![
        20 => (0u16..700, len.clone()).prop_map(|(n, len)| Op::Put(n, len)),
        6 => (0u16..700).prop_map(Op::Delete),
        2 => (0u16..700, 1u16..200).prop_map(|(n, count)| Op::DeleteRange(n, count)),
        3 => (0u16..700, len).prop_map(|(n, len)| Op::Update(n, len)),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Freeze),
        1 => Just(Op::Write),
        1 => Just(Op::Reopen),
        1 => Just(Op::Check),
    ]
}

fn run(ops: Vec<Op>, cache_nodes: u64) {
    let limits = TreeLimits { cache_nodes, dirty_nodes: 1 << 20 };
    let copies = 1 + (ops.len() % 2) as u32;
    let mut volume = Volume::with_copies(Device::in_memory(8192), 4096, limits, copies);
    let mut frozen = None;
    for op in ops {
        match op {
            Op::Put(n, len) => volume.put(key(n), &value(n, len)),
            Op::Delete(n) => volume.delete(key(n)),
            Op::DeleteRange(n, count) => (n..n.saturating_add(count)).for_each(|n| volume.delete(key(n))),
            Op::Update(n, len) => {
                let expected = volume.model.get(&key(n)).cloned();
                let new = (len % 5 != 0).then(|| value(n + 1, len));
                volume
                    .tree
                    .update(key(n), &mut |old| {
                        assert_eq!(old, expected.as_deref());
                        Ok(new.clone())
                    })
                    .unwrap();
                match new {
                    Some(new) => volume.model.insert(key(n), new),
                    None => volume.model.remove(&key(n)),
                };
            }
            Op::Freeze if frozen.is_none() => frozen = Some(volume.freeze()),
            Op::Freeze => {}
            Op::Write | Op::Checkpoint | Op::Reopen => {
                if let Some(frozen) = frozen.take() {
                    volume.write(frozen, true);
                }
                match op {
                    Op::Checkpoint => volume.checkpoint(true),
                    Op::Reopen => volume.reopen(),
                    _ => {}
                }
            }
            Op::Check => volume.check(),
        }
        let stats = volume.tree.stats();
        assert!(stats.nodes >= 1 && stats.resident_nodes >= 1);
    }
    volume.check();
    for n in 0..700 {
        assert_eq!(volume.tree.get(key(n)).unwrap(), volume.model.get(&key(n)).cloned());
        let (at, floor) = (key(n), key(n.saturating_sub(40)));
        let expected = volume.model.range(floor..=at).next_back().map(|(key, value)| (*key, value.clone()));
        assert_eq!(volume.tree.last_at_or_before(at, floor).unwrap(), expected);
    }
    if let Some(frozen) = frozen.take() {
        volume.write(frozen, true);
    }
    volume.checkpoint(true);
    volume.checkpoint(true);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_map(ops in proptest::collection::vec(op(), 1..400)) {
        run(ops, 1 << 20);
    }

    #[test]
    fn behaves_as_a_map_with_a_tiny_cache(ops in proptest::collection::vec(op(), 1..400)) {
        run(ops, 4);
    }
}

#[test]
fn ascending_keys_fill_nodes_and_a_tree_shrinks_back_to_a_leaf() {
    let mut volume =
        Volume::make(Device::in_memory(1 << 16), 1 << 15, TreeLimits::with_cache_bytes(256 << 20));
    let count = 100_000;
    for n in 0..count {
        volume.put(Key::inode(InodeNo(n + 1)), &[n as u8; 16]);
    }
    let stats = volume.tree.stats();
    assert!(stats.levels >= 3);
    // 40 bytes an entry, 100 to a leaf.
    assert!(stats.nodes < count / 100 * 105 / 100 + 10, "{stats:?}");
    volume.checkpoint(true);
    let mut random = Random::seeded(1);
    let mut left: Vec<u64> = (0..count).collect();
    while let Some(last) = left.len().checked_sub(1) {
        let n = left.swap_remove(random.below(last as u64 + 1) as usize);
        volume.delete(Key::inode(InodeNo(n + 1)));
        if left.len() == 50_000 {
            volume.checkpoint(true);
        }
    }
    let stats = volume.tree.stats();
    assert_eq!((stats.levels, stats.nodes), (1, 2), "{stats:?}");
    volume.checkpoint(true);
    volume.reopen();
    volume.check();
}

#[test]
fn a_scan_may_change_the_tree_and_stops_when_told() {
    let mut volume = Volume::make(Device::in_memory(4096), 2048, TreeLimits::with_cache_bytes(1 << 20));
    for n in 0..1000 {
        volume.put(Key::extent(InodeNo(5), n), &[1; 16]);
    }
    let mut seen = 0;
    volume
        .tree
        .scan(Key::extent(InodeNo(5), 10), Key::extent(InodeNo(5), 899), &mut |key, _| {
            assert_eq!(key.offset, 10 + seen);
            seen += 1;
            assert!(volume.tree.delete(key).unwrap());
            if key.offset == 800 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(seen, 791);
    assert_eq!(crate::common::contents(&volume.tree).len(), 1000 - 791);
    assert!(volume.tree.put(Key::MIN, &[0; VALUE_MAX + 1]).is_err());
}

#[test]
fn an_unchanged_tree_is_not_written_again() {
    let mut volume = Volume::make(Device::in_memory(4096), 2048, TreeLimits::with_cache_bytes(1 << 20));
    volume.put(Key::MIN, b"x");
    volume.checkpoint(true);
    let before = volume.tree.stats().blocks_written;
    for _ in 0..2 {
        let (frozen, _) = (volume.tree.freeze(Vec::new()), ());
        volume.number += 1;
        let image = volume.tree.write_frozen(frozen, stamp(volume.number)).unwrap();
        assert_eq!((image.nodes_written, image.blocks_written), (0, 0));
        assert_eq!(image.roots, volume.slots[0].as_ref().unwrap().0.roots);
    }
    volume.tree.put(Key::MIN, b"x").unwrap();
    assert_eq!(volume.tree.stats().dirty_nodes, 0);
    assert_eq!(volume.tree.stats().blocks_written, before);
}

#[test]
fn a_pool_grows_by_chunks_that_later_checkpoints_use() {
    let limits = TreeLimits::with_cache_bytes(1 << 20);
    let mut volume = Volume::make(Device::in_memory(8192), 64, limits);
    for n in 0..2000 {
        volume.put(Key::extent(InodeNo(5), n), &[1; 16]);
    }
    let frozen = volume.freeze();
    volume.tree.pool_grow(BlockNo(1000), 1024).unwrap();
    assert!(volume.tree.pool_grow(BlockNo(1500), 1024).is_err());
    assert!(volume.tree.pool_grow(BlockNo(8000), 1024).is_err());
    volume.write(frozen, true);
    let (root, _) = volume.slots[0].clone().unwrap();
    assert_eq!(root.open(&volume.device, limits).unwrap().pool_chunks().len(), 1);
    for n in 2000..9000 {
        volume.put(Key::extent(InodeNo(5), n), &[1; 16]);
    }
    volume.checkpoint(true);
    volume.reopen();
    assert_eq!(volume.tree.pool_chunks().len(), 2);
    volume.tree.pool_grow(BlockNo(4000), 100).unwrap();
    assert_eq!(
        volume.tree.pool_retire(&|run| run.start > BlockNo(2000), 1),
        Some(Run::new(BlockNo(4000), 100))
    );
    assert!(volume.tree.pool_is_unused(BlockNo(4000)));
    volume.tree.pool_shrink(BlockNo(4000), 100).unwrap();
    volume.checkpoint(true);
    volume.check();
}
