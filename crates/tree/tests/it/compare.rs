//! Comparing the trees of two checkpoints: what a model of both says, and no more reads than that takes.

use crate::common::{Model, VOLUME, Volume};
use quire_base::InodeNo;
use quire_base::random::Random;
use quire_device::Device;
use quire_format::key::Key;
use quire_tree::compare::compare;
use quire_tree::{NodeRef, TreeLimits};
use std::collections::BTreeMap;

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 200, dirty_nodes: 4096 };

type Differences = BTreeMap<Key, (Option<Vec<u8>>, Option<Vec<u8>>)>;

fn expected(old: &Model, new: &Model) -> Differences {
    let keys = old.keys().chain(new.keys()).copied();
    keys.filter(|key| *key >= Key::NAMES && old.get(key) != new.get(key))
        .map(|key| (key, (old.get(&key).cloned(), new.get(&key).cloned())))
        .collect()
}

fn found(device: &Device, old: Option<NodeRef>, new: NodeRef) -> Differences {
    let mut all = Differences::new();
    let mut last = None;
    compare(device, VOLUME, old, new, &mut |key, old, new| {
        assert!(last < Some(key), "{key:?} after {last:?}");
        last = Some(key);
        all.insert(key, (old.map(<[u8]>::to_vec), new.map(<[u8]>::to_vec)));
        Ok(())
    })
    .unwrap();
    all
}

/// The tree of names and the model of the newer slot, and those of the older one.
fn both(volume: &Volume) -> [(NodeRef, Model); 2] {
    let slot = |number: u64| {
        let (root, model) = volume.slots[number as usize % 2].clone().unwrap();
        (root.roots[1], model)
    };
    [slot(volume.number - 1), slot(volume.number)]
}

/// Trees that grow, shrink, split and merge between the two.
#[test]
fn finds_what_the_models_say() {
    for seed in 0..6 {
        let device = Device::in_memory(8192);
        let mut volume = Volume::make(device.clone(), 6000, LIMITS);
        let mut random = Random::seeded(seed);
        for round in 0..25u64 {
            let (count, removes) = (random.below(400), 1 + random.below(4) * (round % 2));
            for _ in 0..count {
                let key = Key::extent(InodeNo(1 + random.below(8)), random.below(300));
                if random.below(5) < removes {
                    volume.delete(key);
                } else {
                    volume.put(key, &vec![random.next_u64() as u8; random.below(500) as usize]);
                }
            }
            volume.checkpoint(false);
            let [(old, before), (new, after)] = both(&volume);
            assert_eq!(
                found(&device, Some(old), new),
                expected(&before, &after),
                "seed {seed}, round {round}"
            );
            assert_eq!(found(&device, Some(new), old), expected(&after, &before));
            assert_eq!(found(&device, None, new), expected(&Model::new(), &after));
            assert!(found(&device, Some(new), new).is_empty());
        }
    }
}

/// A tree of some thousand leaves with one changed key: a path of each tree is read, and what lies beside it.
#[test]
fn reads_what_has_changed() {
    let device = Device::in_memory(16384);
    let mut volume = Volume::make(device.clone(), 12000, TreeLimits { cache_nodes: 5000, dirty_nodes: 8000 });
    for n in 0..20_000 {
        volume.put(Key::extent(InodeNo(1), n), &[7; 400]);
    }
    volume.checkpoint(false);
    volume.put(Key::extent(InodeNo(1), 9_999), b"other");
    volume.checkpoint(false);
    let [(old, before), (new, after)] = both(&volume);
    let read = device.stats();
    assert_eq!(found(&device, Some(old), new), expected(&before, &after));
    let reads =
        |stats: &quire_device::DeviceStats| stats.classes.iter().map(|class| class.reads.ops).sum::<u64>();
    let count = reads(&device.stats()) - reads(&read);
    assert!(count <= 10, "{count} nodes of {} were read", volume.tree.stats().nodes);
}
