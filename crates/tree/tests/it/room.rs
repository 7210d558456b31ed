//! A caller that respects reservations never finds the pool too small: not while a checkpoint is written
//! beside live changes, and not when all changes since the last durable one are replayed in one go.

use crate::common::{Root, Volume, contents, stamp};
use quire_base::random::Random;
use quire_base::{BlockNo, InodeNo};
use quire_device::Device;
use quire_format::key::Key;
use quire_tree::{Class, Frozen, Short, TreeLimits};

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 1 << 20, dirty_nodes: 1 << 20 };

#[derive(Clone)]
enum Change {
    Put(Key, Vec<u8>),
    Delete(Key),
    Grow(BlockNo, u32),
}

struct Run {
    volume: Volume,
    random: Random,
    /// What the journal would hold: changes since the freeze of the durable checkpoint, and since the last
    /// freeze.
    since_durable: Vec<Change>,
    since_freeze: Vec<Change>,
    frozen: Option<(Frozen, crate::common::Model)>,
    next_chunk: u64,
    full: u64,
}

impl Run {
    fn apply(&mut self, change: Change) {
        match &change {
            Change::Put(key, value) => self.volume.put(*key, value),
            Change::Delete(key) => {
                let existed = self.volume.model.remove(key).is_some();
                assert_eq!(self.volume.tree.delete(*key).unwrap(), existed);
            }
            Change::Grow(start, blocks) => self.volume.tree.pool_grow(*start, *blocks).unwrap(),
        }
        self.since_freeze.push(change);
    }

    /// A transaction of some keys; `fill` grows the tree, else it shrinks.
    fn transaction(&mut self, fill: bool) -> Result<(), Short> {
        let keys = 1 + self.random.below(12) as usize;
        let class = if fill { Class::Normal } else { Class::Critical };
        let tree = self.volume.tree.clone();
        let (before, live) = (tree.stats(), tree.nodes_for(keys));
        let reservation = tree.try_reserve(live, class)?;
        for _ in 0..keys {
            let key = Key::extent(InodeNo(1), self.random.below(4000));
            let change = if fill && !self.random.one_in(4) {
                Change::Put(key, vec![7; [16, 120, 1000][self.random.below(3) as usize]])
            } else {
                Change::Delete(key)
            };
            self.apply(change);
        }
        let dirtied = tree.stats().dirty_nodes - before.dirty_nodes.min(tree.stats().dirty_nodes);
        assert!(dirtied <= reservation.nodes(), "{dirtied} dirtied, {} reserved", reservation.nodes());
        Ok(())
    }

    fn freeze(&mut self) {
        self.frozen = Some(self.volume.freeze());
        let mut all = std::mem::take(&mut self.since_durable);
        all.append(&mut self.since_freeze);
        self.since_durable = all;
    }

    fn write(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            self.volume.write(frozen, false);
            self.since_durable.clear();
        }
    }

    /// Crash: the durable checkpoint, everything since in one epoch, and a checkpoint of that.
    fn crash_and_replay(&mut self) {
        let (root, _) =
            self.volume.slots.iter().flatten().max_by_key(|(root, _)| root.checkpoint).cloned().unwrap();
        root.write(&self.volume.device, 1 - root.checkpoint as usize % 2).unwrap();
        self.frozen = None;
        let expected = self.volume.model.clone();
        let tree = root.open(&self.volume.device, LIMITS).unwrap();
        for change in self.since_durable.iter().chain(&self.since_freeze) {
            match change {
                Change::Put(key, value) => tree.put(*key, value).unwrap(),
                Change::Delete(key) => drop(tree.delete(*key).unwrap()),
                Change::Grow(start, blocks) => tree.pool_grow(*start, *blocks).unwrap(),
            }
        }
        assert_eq!(contents(&tree), expected);
        let number = root.checkpoint + 1;
        let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(number)).unwrap();
        let root = Root::of(number, &image);
        root.write(&self.volume.device, 0).unwrap();
        root.write(&self.volume.device, 1).unwrap();
        tree.both_slots(number);
        self.volume.number = number;
        self.volume.slots = [Some((root, expected.clone())), Some((root, expected))];
        self.volume.tree = tree;
        self.since_durable.clear();
        self.since_freeze.clear();
    }

    fn step(&mut self, fill: bool) {
        match self.transaction(fill) {
            Ok(()) => {}
            Err(Short::Checkpoint) => {
                self.write();
                self.freeze();
                // Often the next waits for this one, beside live changes up to the limit.
                if self.random.one_in(2) {
                    self.write();
                }
            }
            Err(Short::PoolFull) => {
                self.full += 1;
                assert!(fill, "a critical transaction finds the pool full: {:?}", self.volume.tree.stats());
                if self.random.one_in(40) && self.next_chunk < 12 {
                    let at = BlockNo(2000 + self.next_chunk * 70);
                    self.next_chunk += 1;
                    self.apply(Change::Grow(at, 64));
                }
            }
        }
    }
}

#[test]
fn reservations_keep_room_for_two_dirty_sets() {
    for seed in 0..6u32 {
        let copies = 1 + seed % 2;
        let volume = Volume::with_copies(Device::in_memory(4096), u64::from(512 * copies), LIMITS, copies);
        let mut run = Run {
            volume,
            random: Random::seeded(seed.into()),
            since_durable: Vec::new(),
            since_freeze: Vec::new(),
            frozen: None,
            next_chunk: 0,
            full: 0,
        };
        for round in 0..6000u64 {
            let filling = round / 600 % 3 != 2;
            run.step(filling);
            if run.random.one_in(700) {
                run.crash_and_replay();
            }
        }
        run.write();
        run.volume.check();
        assert!(run.full > 0, "the pool was never full: {:?}", run.volume.tree.stats());
        for _ in 0..20_000 {
            run.step(false);
        }
        run.write();
        run.volume.checkpoint(true);
    }
}

/// What the newest checkpoint freed is busy until the next one is published. A pool that gave chunks back
/// counted on it, and the checkpoint that emptied them found no free block.
#[test]
fn chunks_stay_while_freed_blocks_fill_the_others() {
    let mut volume = Volume::make(Device::in_memory(4096), 1024, LIMITS);
    volume.tree.pool_grow(BlockNo(2000), 64).unwrap();
    let write_all = |volume: &mut Volume, byte: u8| {
        (0..1400).for_each(|n| volume.put(Key::extent(InodeNo(1), n), &[byte; 1000]));
        volume.checkpoint(false);
    };
    write_all(&mut volume, 1);
    let live = volume.tree.stats().nodes;
    write_all(&mut volume, 2);
    let stats = volume.tree.stats();
    assert!(stats.pool_blocks - stats.pool_used_blocks - stats.pool_free_blocks >= live / 2, "{stats:?}");
    let has_grown = |chunk: quire_format::extent::Run| chunk.start == BlockNo(2000);
    assert_eq!(volume.tree.pool_retire(&has_grown, 0), None, "{stats:?}");
    // Two checkpoints that change nothing: nothing is freed but their own pages.
    volume.checkpoint(false);
    volume.checkpoint(false);
    assert!(volume.tree.pool_retire(&has_grown, 0).is_some(), "{:?}", volume.tree.stats());
}

/// A snapshot keeps the blocks of the nodes that change after it. The pool heard of them when the checkpoint
/// was written that leaves them; two dirty sets had been measured without them by then. The third checkpoint
/// found no free block, and the volume shut down.
#[test]
fn what_a_kept_checkpoint_holds_counts_from_the_first_change_on() {
    const KEYS: u64 = 15_000;
    for copies in [1, 2] {
        let device = Device::in_memory(64 << 10);
        let mut volume = Volume::with_copies(device, u64::from(16_384 * copies), LIMITS, copies);
        let tree = volume.tree.clone();
        (0..KEYS).for_each(|n| volume.put(Key::extent(InodeNo(1), n), &[0; 1000]));
        volume.checkpoint(false);
        volume.checkpoint(false);
        tree.keep_newest(1, volume.number).unwrap();

        let mut next = 0;
        let mut fill = |volume: &mut Volume| {
            for n in 0..KEYS {
                let Ok(_reservation) = tree.try_reserve(tree.nodes_for(1), Class::Normal) else {
                    return n;
                };
                volume.put(Key::extent(InodeNo(1), next % KEYS), &[(next / KEYS + 1) as u8; 1000]);
                next += 1;
            }
            KEYS
        };
        let mut changed = fill(&mut volume);
        for _ in 0..8 {
            let frozen = volume.freeze();
            // Up to the limit, while the set before is written.
            changed += fill(&mut volume);
            volume.write(frozen, false);
        }
        volume.checkpoint(true);
        assert!(changed > KEYS, "only {changed} changes: {:?}", volume.tree.stats());
    }
}

/// While a snapshot was taken, healing and a pool that became smaller marked nodes behind the freeze of the
/// checkpoint that the snapshot was to keep. Their blocks stay with it. They counted only when the next
/// checkpoint had been written, and what else became dirty until then had room that was theirs.
#[test]
fn what_was_dirty_before_a_checkpoint_was_kept_counts_as_well() {
    let mut volume = Volume::make(Device::in_memory(8192), 4096, LIMITS);
    let tree = volume.tree.clone();
    let write = |volume: &mut Volume, byte: u8| {
        (0..3000).for_each(|n| volume.put(Key::extent(InodeNo(1), n), &[byte; 1000]));
    };
    write(&mut volume, 1);
    let frozen = volume.freeze();
    write(&mut volume, 2);
    volume.write(frozen, false);
    let before = tree.stats();
    tree.keep_newest(1, volume.number).unwrap();
    // Each of them leaves its block to the snapshot. Either of two dirty sets has half of what is left.
    let after = tree.stats();
    let room = before.dirty_nodes_max - before.dirty_nodes / 2;
    assert!(before.dirty_nodes > 500 && after.dirty_nodes_max <= room, "{before:?} {after:?}");
    // Exact again, once the pool knows what is kept.
    volume.checkpoint(false);
    let counted = tree.stats();
    assert!(tree.pool_kept_blocks() >= before.dirty_nodes);
    assert!(counted.dirty_nodes_max.abs_diff(room) < 20, "{room} {counted:?}");
}

/// A checkpoint that took the place of an unpublished one was written though the two had more nodes than the
/// pool has room for beside the slots. It found no free block, or the one after it did, and the volume shut
/// down.
#[test]
fn images_that_give_way_to_others_count_with_them() {
    const KEYS: u64 = 4000;
    for seed in 0..4u32 {
        let copies = 1 + seed % 2;
        let device = Device::in_memory(32 << 10);
        let mut volume = Volume::with_copies(device, u64::from(4096 * copies), LIMITS, copies);
        let tree = volume.tree.clone();
        let mut random = Random::seeded(seed.into());
        let mut written = None;
        let (mut replaced, mut too_large) = (0, 0);
        for round in 0..120u64 {
            let changes = [100, 2500][random.below(2) as usize];
            for _ in 0..random.below(changes) {
                let Ok(_reservation) = tree.try_reserve(tree.nodes_for(1), Class::Normal) else { break };
                volume.put(Key::extent(InodeNo(1), random.below(KEYS)), &[round as u8; 1000]);
            }
            if written.is_some() {
                if tree.may_replace_unpublished() {
                    replaced += 1;
                } else {
                    too_large += 1;
                    volume.publish(written.take().unwrap(), false);
                }
            }
            let frozen = volume.freeze();
            written = Some(volume.write_unpublished(frozen));
            if random.one_in(3) {
                volume.publish(written.take().unwrap(), round % 8 == 0);
            }
        }
        assert!(replaced > 10 && too_large > 10, "{replaced} {too_large}: {:?}", tree.stats());
    }
}
