//! Splits and merges against evictions and loads against changes, look-ups and scans, under shuttle's
//! schedules: nothing is lost or seen twice, and what was prepared is changed without I/O. With one copy of
//! every node bad, a scrub and the healing go on beside them, and leave two good ones.
//!
//! Run: `RUSTFLAGS="--cfg shuttle" cargo test -p quire-tree --test it shuttle_shape --release`

use quire_base::sync::{Arc, Mutex, RwLock, thread};
use quire_base::{BlockNo, Error, InodeNo, Result};
use quire_device::{AlignedBuf, Backend, Device, Io, IoClass, MemoryBackend};
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_tree::{CheckpointStamp, PoolState, Tree, TreeLimits};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A checkpoint of the first incarnation.
fn stamp(checkpoint: u64) -> CheckpointStamp {
    CheckpointStamp { checkpoint, incarnation: 1 }
}

const LIMITS: TreeLimits = TreeLimits { cache_nodes: 3, dirty_nodes: 1000 };

/// A device that a thread with prepared keys must not read.
struct Watched {
    memory: MemoryBackend,
    forbidden: Mutex<Vec<thread::ThreadId>>,
}

impl Watched {
    fn without_reads<R>(&self, work: impl FnOnce() -> R) -> R {
        let me = thread::current().id();
        self.forbidden.lock().push(me);
        let result = work();
        self.forbidden.lock().retain(|id| *id != me);
        result
    }
}

impl Backend for Watched {
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
        if self.forbidden.lock().contains(&thread::current().id()) {
            return Err(Error::corrupt("a thread with prepared keys reads the device"));
        }
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
        self.memory.submit(class, ios);
    }
}

/// Large values: a leaf holds three, so that a few keys make splits, merges and two levels.
fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 1000]
}

/// An entry: leaves that changers fight over are halved, too.
fn key(n: u64) -> Key {
    Key::entry(InodeNo(1), n)
}

fn contents(tree: &Tree) -> BTreeMap<u64, Vec<u8>> {
    let mut all = BTreeMap::new();
    tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        assert!(all.insert(key.offset, value.to_vec()).is_none(), "{} came twice", key.offset);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// Overwrites the first copy of each node, or the second one.
fn damage(tree: &Tree, memory: &MemoryBackend) {
    let mut first = false;
    tree.walk(&mut |at, _| {
        first = !first;
        let block = if first { at.block } else { at.twin };
        memory.write(IoClass::Metadata, block, &AlignedBuf::blocks(1))
    })
    .unwrap();
}

/// Looks at all copies; gives how many nodes have a bad one.
fn scrub(tree: &Tree) -> u64 {
    let (mut damaged, mut from) = (0, Some(Key::MIN));
    while let Some(key) = from {
        let step = tree.scrub_from(key);
        assert!(step.lost.is_empty(), "{:?}", step.lost);
        damaged += step.damaged;
        from = step.next;
    }
    damaged
}

/// Has what is known to be damaged written by the next checkpoint.
fn heal(tree: &Tree, barrier: &RwLock<()>) {
    for node in tree.take_damaged() {
        let ticket = tree.ticket();
        loop {
            tree.prepare_rewrite(&ticket, &node).unwrap();
            let _shared = barrier.read();
            if tree.rewrite(&node).is_some() {
                break;
            }
        }
    }
}

/// Keys that are multiples of ten stay; the others come and go.
fn scenario(entries: u64, damaged: bool) {
    let backend = Arc::new(Watched { memory: MemoryBackend::new(4096), forbidden: Mutex::new(Vec::new()) });
    let device = Device::new(backend.clone());
    let pool = PoolState::new(&[Run::new(BlockNo(16), 4000)], 1 + u32::from(damaged));
    let tree = Tree::create(device.clone(), 1, pool, LIMITS);
    for n in 0..entries {
        tree.put(key(10 * n), &value(n)).unwrap();
    }
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(1)).unwrap();
    if damaged {
        damage(&tree, &backend.memory);
    }
    let pool = PoolState::load(&device, 1, image.manifest, device.blocks()).unwrap();
    let tree = Tree::open(device, 1, image.roots, pool, LIMITS).unwrap();
    let barrier = Arc::new(RwLock::new(()));
    let steady = move |found: &BTreeMap<u64, Vec<u8>>| {
        for n in 0..entries {
            assert_eq!(found.get(&(10 * n)), Some(&value(n)), "key {}", 10 * n);
        }
    };

    // Each changer has its own keys, in leaves that others change, too.
    let changers: Vec<_> = (1..3u64)
        .map(|changer| {
            let (tree, barrier, backend) = (tree.clone(), barrier.clone(), backend.clone());
            thread::spawn(move || {
                for step in 0..6u64 {
                    let n = 10 * (step % 3 * (entries / 4)) + changer;
                    let ticket = tree.ticket();
                    tree.prepare(&ticket, &[key(n), key(n + 2)]).unwrap();
                    let shared = barrier.read();
                    backend.without_reads(|| {
                        if step < 3 {
                            tree.put(key(n), &value(n)).unwrap();
                            tree.put(key(n + 2), &value(n)).unwrap();
                            assert_eq!(tree.get(key(n)).unwrap(), Some(value(n)));
                        } else {
                            assert!(tree.delete(key(n)).unwrap(), "what was put is there");
                            assert!(tree.delete(key(n + 2)).unwrap(), "what was put is there");
                        }
                    });
                    drop(shared);
                }
            })
        })
        .collect();
    let reader = {
        let tree = tree.clone();
        thread::spawn(move || {
            for n in [entries - 1, 0, entries / 2, entries / 4] {
                assert_eq!(tree.get(key(10 * n)).unwrap(), Some(value(n)));
                let (at, _) = tree.last_at_or_before(key(10 * n + 9), Key::MIN).unwrap().unwrap();
                assert!((10 * n..10 * n + 5).contains(&at.offset));
            }
        })
    };
    let scanner = {
        let tree = tree.clone();
        thread::spawn(move || (0..2).for_each(|_| steady(&contents(&tree))))
    };
    let healer = damaged.then(|| {
        let (tree, barrier) = (tree.clone(), barrier.clone());
        thread::spawn(move || {
            scrub(&tree);
            heal(&tree, &barrier);
        })
    });
    // Without checkpoints nothing would be clean.
    for number in 2..4 {
        let whole = barrier.write();
        let frozen = tree.freeze(Vec::new());
        drop(whole);
        tree.write_frozen(frozen, stamp(number)).unwrap();
        tree.published(number);
    }
    changers.into_iter().for_each(|changer| changer.join().unwrap());
    reader.join().unwrap();
    scanner.join().unwrap();
    if let Some(healer) = healer {
        healer.join().unwrap();
        heal(&tree, &barrier);
        tree.write_frozen(tree.freeze(Vec::new()), stamp(4)).unwrap();
        assert_eq!(scrub(&tree), 0);
    }
    let found = contents(&tree);
    steady(&found);
    assert_eq!(found.len() as u64, entries);
}

/// Shuttle's own stacks are too small for a log line within a load.
const STACK_BYTES: usize = 256 << 10;

/// Runs a scenario under a scheduler, with stacks that are large enough.
pub fn check(scheduler: impl Scheduler + 'static, scenario: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    shuttle::Runner::new(scheduler, config).run(scenario);
}

fn run(scheduler: impl Scheduler + 'static, entries: u64, damaged: bool) {
    check(scheduler, move || scenario(entries, damaged));
}

#[test]
fn nothing_is_lost_when_the_tree_changes_its_shape_random() {
    run(RandomScheduler::new(500), 16, false);
}

#[test]
fn nothing_is_lost_when_the_tree_changes_its_shape_pct() {
    run(PctScheduler::new(4, 500), 16, false);
}

/// Three levels, so that inner nodes come and go, too.
#[test]
fn nothing_is_lost_when_inner_nodes_are_evicted() {
    run(RandomScheduler::new(60), 300, false);
}

#[test]
fn bad_copies_are_healed_beside_changes_random() {
    run(RandomScheduler::new(500), 16, true);
}

#[test]
fn bad_copies_are_healed_beside_changes_pct() {
    run(PctScheduler::new(4, 300), 16, true);
}

#[test]
fn bad_copies_of_inner_nodes_are_healed_beside_changes() {
    run(RandomScheduler::new(100), 300, true);
}
