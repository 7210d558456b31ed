//! Power cuts at every event of a run with checkpoints: what the newest readable superblock names is whole.

use crate::common::{Model, Root, Volume, check_image, check_map, contents, stamp};
use quire_base::random::Random;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, InodeNo, Result};
use quire_device::simulated::{CrashPolicy, Fault, FaultOp};
use quire_device::{Backend, Device, Io, IoClass, IoOp, MemoryBackend, SimulatedBackend};
use quire_format::key::Key;
use quire_tree::TreeLimits;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 24, dirty_nodes: 4096 };

fn change(volume: &mut Volume, random: &mut Random, count: usize) {
    for _ in 0..count {
        let key = Key::extent(InodeNo(1 + random.below(6)), random.below(150));
        if random.one_in(3) {
            volume.delete(key);
        } else {
            volume.put(key, &vec![random.next_u64() as u8; random.below(500) as usize]);
        }
    }
}

/// Opens what a crash left and compares it with the model of the checkpoint that it names.
fn check_crashed(image: quire_device::simulated::Image, models: &BTreeMap<u64, Model>, at_least: u64) -> u64 {
    let device = Device::new(Arc::new(SimulatedBackend::from_image(image)));
    let root = Root::newest(&device).expect("one superblock is always readable");
    assert!(root.checkpoint >= at_least, "checkpoint {} was durable, {} is there", at_least, root.checkpoint);
    let model = &models[&root.checkpoint];
    check_image(&device, &root, model);

    // Life goes on from there: the slot beside names nothing that the new tree overwrites.
    root.write(&device, 1 - root.checkpoint as usize % 2).unwrap();
    let tree = root.open(&device, LIMITS).unwrap();
    let mut after = model.clone();
    for n in 0..20 {
        let key = Key::extent(InodeNo(2), n);
        tree.put(key, &[9; 40]).unwrap();
        after.insert(key, vec![9; 40]);
    }
    let number = root.checkpoint + 1;
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(number)).unwrap();
    check_image(&device, &root, model);
    check_image(&device, &Root::of(number, &image), &after);
    root.checkpoint
}

#[test]
fn every_crash_leaves_a_whole_checkpoint() {
    for seed in 0..4 {
        let backend = Arc::new(SimulatedBackend::new(2048));
        let copies = 1 + seed as u32 % 2;
        let device = Device::new(backend.clone());
        let mut volume = Volume::with_copies(device, 1024, LIMITS, copies);
        let mut random = Random::seeded(seed);
        let mut models = BTreeMap::from([(1, Model::new())]);
        // (events so far, checkpoint durable by then)
        let mut durable = vec![(backend.event_count(), 1)];
        let first = backend.event_count();
        for _ in 0..8 {
            change(&mut volume, &mut random, 120);
            let frozen = volume.freeze();
            models.insert(volume.number + 1, frozen.1.clone());
            change(&mut volume, &mut random, 60);
            volume.write(frozen, false);
            durable.push((backend.event_count(), volume.number));
        }
        assert_eq!(backend.violations(), Vec::<String>::new());
        for events in first..=backend.event_count() {
            let at_least =
                durable.iter().rev().find(|(at, _)| *at <= events).map_or(1, |(_, number)| *number);
            for policy in
                [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Power { seed: events as u64 }]
            {
                check_crashed(backend.crash_at(events, policy).unwrap(), &models, at_least);
            }
        }
    }
}

#[test]
fn a_failed_checkpoint_ends_checkpoints_and_leaves_the_old_ones_whole() {
    for skip in 0..6 {
        let backend = Arc::new(SimulatedBackend::new(2048));
        let mut volume = Volume::make(Device::new(backend.clone()), 1024, LIMITS);
        let mut random = Random::seeded(skip);
        change(&mut volume, &mut random, 300);
        volume.checkpoint(true);
        change(&mut volume, &mut random, 300);
        let (frozen, _) = volume.freeze();
        backend.inject(Fault::on(FaultOp::Write).class(IoClass::Metadata).after(skip).times(1));
        let written = volume.tree.write_frozen(frozen, stamp(3));
        if let Err(error) = written {
            let again = volume.tree.write_frozen(volume.tree.freeze(Vec::new()), stamp(4)).unwrap_err();
            assert_eq!(again.kind(), error.kind());
        }
        backend.clear_faults();
        for (root, model) in volume.slots.iter().flatten() {
            check_image(&volume.device, root, model);
        }
        // Reading goes on.
        volume.check();
    }
}

/// Changes of prepared keys need no device while the ticket lives, whatever else is read and evicted, and
/// whatever merges and splits around them.
#[test]
fn prepared_keys_need_no_device() {
    let backend = Arc::new(SimulatedBackend::new(4096));
    let limits = TreeLimits { cache_nodes: 8, dirty_nodes: 4096 };
    for seed in 0..8 {
        let backend = if seed == 0 { backend.clone() } else { Arc::new(SimulatedBackend::new(4096)) };
        let mut volume = Volume::make(Device::new(backend.clone()), 2048, limits);
        for n in 0..12000 {
            volume.put(Key::extent(InodeNo(1), n), &[3; 100]);
        }
        volume.reopen();
        let mut random = Random::seeded(seed);
        let keys: Vec<Key> = (0..80).map(|_| Key::extent(InodeNo(1), random.below(12100))).collect();
        assert_eq!(contents(&volume.tree), volume.model);
        assert!(volume.tree.stats().evictions > 50);
        let tree = volume.tree.clone();
        let ticket = tree.ticket();
        keys.iter().for_each(|key| tree.prepare(&ticket, &[*key]).unwrap());
        backend.inject(Fault::on(FaultOp::Read).times(u64::MAX));
        for key in &keys {
            match random.below(3) {
                0 => volume.put(*key, &[1; 700]),
                _ => volume.delete(*key),
            }
        }
        backend.clear_faults();
        drop(ticket);
        volume.check();
        volume.checkpoint(true);
        let resident = volume.tree.stats().resident_nodes;
        assert!(resident <= 16, "{resident} nodes stay");
    }
}

/// A leaf that a transaction has prepared is emptied by others and merged into a neighbour that nobody has
/// used since the ticket was made: the neighbour must stay, since the prepared key now goes there.
#[test]
fn a_prepared_key_stays_reachable_when_its_leaf_is_merged_away() {
    let backend = Arc::new(SimulatedBackend::new(4096));
    let limits = TreeLimits { cache_nodes: 8, dirty_nodes: 4096 };
    let mut volume = Volume::make(Device::new(backend.clone()), 2048, limits);
    let key = |n| Key::extent(InodeNo(1), n);
    // 8 entries to a leaf.
    for n in 0..2000 {
        volume.put(key(n), &[3; 470]);
    }
    volume.reopen();
    let load_others = |volume: &Volume| {
        for n in (1000..2000).step_by(8) {
            volume.tree.get(key(n)).unwrap();
        }
    };
    let tree = volume.tree.clone();
    let older = tree.ticket();
    for n in 0..32 {
        volume.tree.get(key(n)).unwrap();
    }
    // The neighbour has room, its own neighbours have none.
    (9..16).for_each(|n| volume.delete(key(n)));
    // The clock ticks, but what the older ticket protects stays.
    load_others(&volume);
    let ticket = tree.ticket();
    tree.prepare(&ticket, &[key(20)]).unwrap();
    let merges = volume.tree.stats().merges;
    (17..23).for_each(|n| volume.delete(key(n)));
    assert_eq!(volume.tree.stats().merges, merges + 1);
    drop(older);
    let resident = volume.tree.stats().resident_nodes;
    volume.checkpoint(true);
    load_others(&volume);
    assert!(volume.tree.stats().resident_nodes < resident);
    backend.inject(Fault::on(FaultOp::Read).times(u64::MAX));
    volume.put(key(20), &[8; 100]);
    backend.clear_faults();
    drop(ticket);
    volume.check();
}

#[test]
fn blocks_come_back_and_a_small_pool_serves_for_ever() {
    // 1024 keys of 40 bytes in 11 leaves: each checkpoint writes nearly all of them.
    let mut volume = Volume::make(Device::in_memory(256), 80, LIMITS);
    let mut random = Random::seeded(5);
    for round in 0..300 {
        for _ in 0..40 {
            let key = Key::extent(InodeNo(1), random.below(1024));
            volume.put(key, &[round as u8; 16]);
        }
        volume.checkpoint(round % 50 == 0);
    }
    volume.reopen();
    let (root, _) = volume.slots[0].clone().unwrap();
    check_map(&volume.tree, &root);
    assert_eq!(volume.tree.stats().pool_free_blocks + volume.tree.stats().pool_used_blocks, 80);
}

/// A device that completes writes late: when three are there, or when no more come.
struct Late {
    memory: Arc<MemoryBackend>,
    requests: Sender<(IoClass, Io)>,
    outstanding: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Late {
    fn new(blocks: u64) -> Late {
        let (requests, arriving) = channel();
        let (memory, outstanding) = (Arc::new(MemoryBackend::new(blocks)), Arc::new(AtomicU64::new(0)));
        let device = (memory.clone(), outstanding.clone());
        thread::spawn(move || Late::complete(&arriving, &device.0, &device.1));
        Late { memory, requests, outstanding, most: Arc::default() }
    }

    fn complete(arriving: &Receiver<(IoClass, Io)>, memory: &MemoryBackend, outstanding: &Arc<AtomicU64>) {
        let mut held = Vec::new();
        while let Ok(first) = arriving.recv() {
            held.push(first);
            while held.len() < 3
                && let Ok(another) = arriving.recv_timeout(Duration::from_millis(500))
            {
                held.push(another);
            }
            for (class, mut io) in held.drain(..) {
                let (outstanding, done) = (outstanding.clone(), io.done);
                io.done = Box::new(move |outcome| {
                    outstanding.fetch_sub(1, Ordering::AcqRel);
                    done(outcome);
                });
                memory.submit(class, vec![io]);
            }
        }
    }
}

impl Backend for Late {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        self.memory.name()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        let (reads, writes): (Vec<_>, Vec<_>) = ios.into_iter().partition(|io| io.op == IoOp::Read);
        self.memory.submit(class, reads);
        for io in writes {
            let outstanding = self.outstanding.fetch_add(1, Ordering::AcqRel) + 1;
            self.most.fetch_max(outstanding, Ordering::AcqRel);
            self.requests.send((class, io)).expect("the device runs");
        }
    }
}

/// A checkpoint that returned before its last batch had completed would be flushed, and named by a
/// superblock, without it. One that waited for each batch before it filled the next left the device idle
/// meanwhile.
#[test]
fn a_checkpoint_keeps_several_batches_under_way_and_waits_for_all() {
    let backend = Arc::new(Late::new(1 << 14));
    let limits = TreeLimits { cache_nodes: 8192, dirty_nodes: 8192 };
    let mut volume = Volume::make(Device::new(backend.clone()), 1 << 13, limits);
    for n in 0..6000 {
        volume.put(Key::extent(InodeNo(1), n), &[n as u8; 1000]);
    }
    let (frozen, model) = volume.freeze();
    let image = volume.tree.write_frozen(frozen, stamp(2)).unwrap();
    assert_eq!(backend.outstanding.load(Ordering::Acquire), 0, "writes are still under way");
    assert!(backend.most.load(Ordering::Acquire) >= 3, "one batch after the other");
    assert!(image.blocks_written > 2000);
    check_image(&volume.device, &Root::of(2, &image), &model);
}

/// A flush takes along what was written before it, so every fsync beside a checkpoint waited for all of its
/// nodes. While it may rest, a checkpoint has one batch under way; as soon as somebody waits, several again.
#[test]
fn a_gentle_checkpoint_has_one_batch_under_way_until_it_has_to_hurry() {
    for rests in [u64::MAX, 2] {
        let backend = Arc::new(Late::new(1 << 14));
        let limits = TreeLimits { cache_nodes: 8192, dirty_nodes: 8192 };
        let mut volume = Volume::make(Device::new(backend.clone()), 1 << 13, limits);
        for n in 0..600 {
            volume.put(Key::extent(InodeNo(1), n), &[n as u8; 1000]);
        }
        let (frozen, model) = volume.freeze();
        let asked = AtomicU64::new(0);
        let may_rest = || asked.fetch_add(1, Ordering::Relaxed) < rests;
        backend.most.store(0, Ordering::Release);
        let image = volume.tree.write_frozen_gently(frozen, stamp(2), &may_rest).unwrap();
        assert_eq!(backend.outstanding.load(Ordering::Acquire), 0, "writes are still under way");
        let most = backend.most.load(Ordering::Acquire);
        assert_eq!(most == 1, rests == u64::MAX, "{most} requests at once, with {rests} rests at most");
        assert!(asked.load(Ordering::Relaxed) >= 4);
        check_image(&volume.device, &Root::of(2, &image), &model);
    }
}
