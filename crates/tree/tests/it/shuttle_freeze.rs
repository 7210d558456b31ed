//! Freezing against changing against writing against evicting, under shuttle's schedules: a checkpoint's tree
//! is exactly what had been put before its freeze.
//!
//! Run: `RUSTFLAGS="--cfg shuttle" cargo test -p quire-tree --test it shuttle_freeze --release`

use crate::shuttle_shape::check;
use quire_base::sync::{Arc, Mutex, RwLock, thread};
use quire_base::{BlockNo, InodeNo};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_tree::{CheckpointImage, CheckpointStamp, PoolState, Tree, TreeLimits};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A checkpoint of the first incarnation.
fn stamp(checkpoint: u64) -> CheckpointStamp {
    CheckpointStamp { checkpoint, incarnation: 1 }
}

type Model = BTreeMap<Key, Vec<u8>>;

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 3, dirty_nodes: 1000 };

fn contents(tree: &Tree) -> Model {
    let mut all = Model::new();
    tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        all.insert(key, value.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

fn open(device: &Arc<Device>, image: &CheckpointImage) -> Arc<Tree> {
    let pool = PoolState::load(device, 1, image.manifest, device.blocks()).unwrap();
    Tree::open(device.clone(), 1, image.roots, pool, LIMITS).unwrap()
}

/// Large values: a leaf holds three, so that a few keys make splits, merges and two levels.
fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 1000]
}

fn key(n: u64) -> Key {
    // An entry: leaves that the changers fight over are halved, too.
    Key::entry(InodeNo(1), n)
}

fn scenario() {
    let device = Device::in_memory(256);
    let tree = Tree::create(device.clone(), 1, PoolState::new(&[Run::new(BlockNo(16), 200)], 1), LIMITS);
    let mut model = Model::new();
    for n in 0..14 {
        tree.put(key(2 * n), &value(n)).unwrap();
        model.insert(key(2 * n), value(n));
    }
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(1)).unwrap();
    let tree = open(&device, &image);
    let barrier = Arc::new(RwLock::new(()));
    let model = Arc::new(Mutex::new(model));

    let changers: Vec<_> = (0..2u64)
        .map(|changer| {
            let (tree, barrier, model) = (tree.clone(), barrier.clone(), model.clone());
            thread::spawn(move || {
                // Each its own keys, in shared leaves: one splits and replaces, one empties leaves.
                for step in 0..5 {
                    let shared = barrier.read();
                    if changer == 0 {
                        let key = key(4 * step + 1);
                        tree.put(key, &value(100 + step)).unwrap();
                        model.lock().insert(key, value(100 + step));
                    } else {
                        let key = key(8 + 2 * step);
                        assert!(tree.delete(key).unwrap());
                        model.lock().remove(&key);
                    }
                    drop(shared);
                }
            })
        })
        .collect();
    let reader = {
        let tree = tree.clone();
        thread::spawn(move || {
            for n in [0, 26, 4] {
                assert_eq!(tree.get(key(n)).unwrap(), Some(value(n / 2)));
            }
        })
    };
    let mut images: Vec<(CheckpointImage, Model)> = Vec::new();
    for number in 2..5 {
        let whole = barrier.write();
        let frozen = tree.freeze(Vec::new());
        let expected = model.lock().clone();
        drop(whole);
        images.push((tree.write_frozen(frozen, stamp(number)).unwrap(), expected));
        for (image, expected) in images.iter().rev().take(2) {
            assert_eq!(&contents(&open(&device, image)), expected);
        }
        tree.published(number);
    }
    changers.into_iter().for_each(|changer| changer.join().unwrap());
    reader.join().unwrap();
    assert_eq!(contents(&tree), *model.lock());
}

#[test]
fn a_checkpoint_is_the_tree_at_its_freeze_random() {
    check(RandomScheduler::new(500), scenario);
}

#[test]
fn a_checkpoint_is_the_tree_at_its_freeze_pct() {
    check(PctScheduler::new(4, 500), scenario);
}
