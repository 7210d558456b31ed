//! Splits and merges against evictions and loads against changes, look-ups and scans, under shuttle's
//! schedules: nothing is lost or seen twice, and what was prepared is changed without I/O.
//!
//! Run: `RUSTFLAGS="--cfg shuttle" cargo test -p quire-tree --test it shuttle_shape --release`

use quire_base::sync::{Arc, Mutex, RwLock, thread};
use quire_base::{BlockNo, Error, InodeNo, Result};
use quire_device::{Backend, Device, Io, IoClass, MemoryBackend};
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_tree::{CheckpointStamp, PoolState, Tree, TreeLimits};
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

/// Keys that are multiples of ten stay; the others come and go.
fn scenario(entries: u64) {
    let backend = Arc::new(Watched { memory: MemoryBackend::new(2048), forbidden: Mutex::new(Vec::new()) });
    let device = Device::new(backend.clone());
    let tree = Tree::create(device.clone(), 1, PoolState::new(&[Run::new(BlockNo(16), 2000)], 1), LIMITS);
    for n in 0..entries {
        tree.put(key(10 * n), &value(n)).unwrap();
    }
    let image = tree.write_frozen(tree.freeze(Vec::new()), stamp(1)).unwrap();
    let pool = PoolState::load(&device, 1, image.manifest, device.blocks()).unwrap();
    let tree = Tree::open(device, 1, image.root, pool, LIMITS).unwrap();
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
    let found = contents(&tree);
    steady(&found);
    assert_eq!(found.len() as u64, entries);
}

#[test]
fn nothing_is_lost_when_the_tree_changes_its_shape_random() {
    shuttle::check_random(|| scenario(16), 500);
}

#[test]
fn nothing_is_lost_when_the_tree_changes_its_shape_pct() {
    shuttle::check_pct(|| scenario(16), 500, 4);
}

/// Three levels, so that inner nodes come and go, too.
#[test]
fn nothing_is_lost_when_inner_nodes_are_evicted() {
    shuttle::check_random(|| scenario(300), 60);
}
