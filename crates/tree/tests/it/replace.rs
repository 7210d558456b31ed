//! A kept tree of names takes the place of the one that there is.

use crate::common::{Volume, stamp};
use quire_base::InodeNo;
use quire_base::random::Random;
use quire_device::Device;
use quire_format::key::Key;
use quire_tree::TreeLimits;

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 1 << 20, dirty_nodes: 1 << 20 };

fn key(n: u64) -> Key {
    Key::extent(InodeNo(1), n)
}

/// Keeps the newest checkpoint, makes `change`, puts the kept tree of names back, and checks what is written
/// then. Gives the nodes read for that.
fn keep_change_and_put_back(volume: &mut Volume, change: impl FnOnce(&mut Volume)) -> u64 {
    let (kept, model) = volume.slots[volume.number as usize % 2].clone().unwrap();
    volume.tree.keep_newest(1, volume.number).unwrap();
    change(volume);
    let reads = || volume.device.stats().classes.iter().map(|class| class.reads.ops).sum::<u64>();
    let before = reads();
    volume.tree.replace_names(kept.roots[1], stamp(volume.number + 1)).unwrap();
    let read = reads() - before;
    volume.model = model;
    // All that was in memory and is not of the space tree was the old tree of names, but for the new root.
    assert_eq!(volume.tree.stats().resident_nodes, 2);
    // As a rollback changes the tree of space, so the checkpoint has a map to write.
    volume.put(Key::region(0), &[volume.number as u8; 8]);
    volume.checkpoint(true);
    volume.check();
    assert_eq!(volume.tree.stats().nodes, volume.tree.pool_state().nodes());
    volume.tree.let_go(1, volume.number + 1);
    volume.checkpoint(true);
    volume.checkpoint(true);
    read
}

/// A rollback read the whole old tree and the whole kept one, though next to nothing differed. What the old
/// tree had in memory counted as resident for ever, so that later nodes were evicted early.
#[test]
fn what_both_trees_have_is_not_read() {
    let mut volume = Volume::make(Device::in_memory(1 << 15), 1 << 14, LIMITS);
    (0..50_000).for_each(|n| volume.put(key(n), &[1; 100]));
    volume.reopen();
    let nodes = volume.tree.stats().nodes;
    let read = keep_change_and_put_back(&mut volume, |volume| {
        volume.put(key(30_000), &[2; 100]);
        volume.checkpoint(false);
        volume.put(key(40_000), &[2; 100]);
        assert!(volume.tree.stats().resident_nodes > 2);
    });
    assert!(nodes > 1000 && read < 20, "{read} of {nodes} nodes were read");
}

/// Trees of another height, nodes split and merged, on the device and only in memory.
#[test]
fn trees_that_have_little_in_common_are_put_back() {
    for seed in 0..24 {
        let mut random = Random::seeded(seed);
        let device = Device::in_memory(1 << 14);
        let mut volume = Volume::with_copies(device, 1 << 13, LIMITS, 1 + seed as u32 % 2);
        let mut some = |volume: &mut Volume, count: u64| {
            let from = random.below(4000);
            for _ in 0..count {
                let at = key((from + random.below(2000)) % 4000);
                match random.one_in(3) || !volume.model.contains_key(&at) {
                    true => volume.put(at, &vec![count as u8; random.below(400) as usize]),
                    false => volume.delete(at),
                }
            }
        };
        some(&mut volume, [0, 5, 3000][seed as usize % 3]);
        volume.reopen();
        keep_change_and_put_back(&mut volume, |volume| {
            for _ in 0..seed / 6 {
                some(volume, 500);
                volume.checkpoint(false);
            }
            some(volume, 700);
        });
    }
}
