//! No thread reads the tree from the device while it holds an inode's `meta`: a `stat` of that inode, also on
//! a thread that may not wait, would wait for the device. Debug builds panic where it would happen
//! (`quire_base::patience::Forbidden`).
//!
//! The node cache is the smallest there is. Before each operation a checkpoint cleans all nodes, and a walk
//! through a large directory evicts what the operation needs.

use crate::common;
use quire::{
    Create, FallocateMode, InodeRef, IoFlags, RenameFlags, SetAttributes, SetTime, Timestamp, Volume,
    VolumeOptions, XattrFlags,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCK: u64 = common::BLOCK as u64;
/// Entries of the directory that evicts all else.
const NAMES: usize = 12_000;
/// Extents of a fragmented file: several leaves.
const EXTENTS: u64 = 600;

struct Cold {
    volume: Volume,
    large: InodeRef,
    failures: Vec<String>,
}

impl Cold {
    fn new() -> Cold {
        let (device, volume) = common::new_volume(64 << 10);
        volume.close().unwrap();
        let options = VolumeOptions { node_cache_bytes: Some(1), ..common::options() };
        let volume = Volume::open_backend(device, options).unwrap();
        let large = volume.create(&volume.root(), b"large", &Create::directory(0o755)).unwrap();
        let first = volume.create(&large, b"0", &Create::file(0o644)).unwrap();
        for name in 1..NAMES {
            volume.link(&first, &large, name.to_string().as_bytes()).unwrap();
        }
        drop(first);
        let cold = Cold { volume, large, failures: Vec::new() };
        // What is made later does not share a leaf with the large directory.
        cold.fragmented("between");
        cold
    }

    fn file(&self, name: &str) -> InodeRef {
        common::file(&self.volume, name)
    }

    /// A file of many extents with holes between them.
    fn fragmented(&self, name: &str) -> InodeRef {
        let file = self.file(name);
        for n in 0..EXTENTS {
            self.volume.allocate(&file, FallocateMode::Allocate, 2 * n * BLOCK, BLOCK).unwrap();
        }
        file
    }

    /// Evicts what is not in use.
    fn evict(&self) {
        self.volume.sync().unwrap();
        for _ in 0..2 {
            self.volume.checkpoint().unwrap();
        }
        for _ in 0..3 {
            let mut names = 0;
            let mut count = |_: quire::DirectoryEntry<'_>| {
                names += 1;
                true
            };
            self.volume.read_directory(&self.large, 0, &mut count).unwrap();
            assert!(names >= NAMES);
        }
    }

    /// Runs `work` with nothing in memory.
    fn cold<T>(&mut self, what: &str, work: impl FnOnce(&Volume) -> T) {
        self.evict();
        let before = self.loads();
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(work(&self.volume))));
        if let Err(panic) = outcome {
            let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            self.failures.push(format!("{what}: {message}"));
        } else {
            assert!(self.loads() > before, "{what} read nothing: the test shows nothing");
        }
    }

    fn loads(&self) -> u64 {
        let measures = self.volume.measures();
        measures.iter().find(|measure| measure.name == "tree_loads_total").expect("it is measured").value
    }
}

#[test]
fn nothing_is_read_under_meta() {
    let mut cold = Cold::new();
    let root = cold.volume.root();
    let set = SetAttributes::default();
    let flags = XattrFlags::empty();

    let file = cold.fragmented("attributes");
    cold.cold("chmod", |volume| {
        volume.set_attributes(&file, &SetAttributes { mode: Some(0o6755), ..set }).unwrap()
    });
    cold.cold("write that clears privileges", |volume| {
        volume.write(&file, 0, b"x", IoFlags::empty()).unwrap()
    });
    let times = SetAttributes { mtime: Some(SetTime::At(Timestamp(7))), ..set };
    cold.cold("utimes", |volume| volume.set_attributes(&file, &times).unwrap());
    cold.cold("setxattr", |volume| volume.set_xattr(&file, b"user.a", &[1; 9000], flags).unwrap());
    cold.cold("chmod beside an attribute", |volume| {
        volume.set_attributes(&file, &SetAttributes { mode: Some(0o700), ..set }).unwrap()
    });
    cold.cold("setxattr again", |volume| volume.set_xattr(&file, b"user.a", &[2; 30000], flags).unwrap());
    cold.cold("getxattr", |volume| volume.get_xattr(&file, b"user.a").unwrap());
    cold.cold("listxattr", |volume| volume.list_xattr(&file).unwrap());
    cold.cold("removexattr", |volume| volume.remove_xattr(&file, b"user.a").unwrap());
    cold.cold("fsync of times", |volume| {
        volume.write(&file, 0, b"y", IoFlags::empty()).unwrap();
        volume.fsync(&file, false).unwrap();
    });
    cold.cold("the periodic commit", |volume| {
        volume.read(&file, 0, &mut [0; 8], IoFlags::empty()).unwrap();
        volume.sync().unwrap();
    });

    let file = cold.fragmented("data");
    cold.cold("filling holes", |volume| {
        volume.allocate(&file, FallocateMode::Allocate, 0, 300 * BLOCK).unwrap();
    });
    cold.cold("growth", |volume| volume.truncate(&file, 8000 * BLOCK + 17).unwrap());
    cold.cold("writeback into holes", |volume| {
        for n in 200..230 {
            volume.write(&file, (2 * n + 1) * BLOCK, &[7; 4096], IoFlags::empty()).unwrap();
        }
        volume.fsync(&file, true).unwrap();
    });
    cold.cold("a small forced write", |volume| {
        volume.background_step().unwrap();
        volume.write(&file, 7001 * BLOCK, &[7; 100], IoFlags::empty()).unwrap();
        volume.fsync(&file, true).unwrap();
    });
    cold.cold("a direct write", |volume| {
        volume.write(&file, 801 * BLOCK, &[7; 4096], IoFlags::DIRECT).unwrap();
    });
    cold.cold("collapse", |volume| {
        volume.allocate(&file, FallocateMode::Collapse, 40 * BLOCK, 100 * BLOCK).unwrap();
    });
    cold.cold("insert", |volume| {
        volume.allocate(&file, FallocateMode::Insert, 61 * BLOCK, 100 * BLOCK).unwrap();
    });
    cold.cold("zeroing", |volume| {
        let mode = FallocateMode::ZeroRange { keep_size: true };
        volume.allocate(&file, mode, 500 * BLOCK + 7, 90 * BLOCK).unwrap();
    });
    cold.cold("punch", |volume| {
        volume.allocate(&file, FallocateMode::PunchHole, 300 * BLOCK, 400 * BLOCK).unwrap();
    });
    cold.cold("truncate", |volume| volume.truncate(&file, 900 * BLOCK + 3).unwrap());
    cold.cold("a long truncate", |volume| volume.truncate(&file, 5).unwrap());

    let moved = cold.file("moved");
    cold.cold("link", |volume| volume.link(&moved, &root, b"second").unwrap());
    cold.cold("unlink of one name", |volume| volume.unlink(&root, b"second").unwrap());
    cold.cold("rename", |volume| {
        volume.rename(&root, b"moved", &cold_large(volume), b"there", RenameFlags::empty()).unwrap()
    });
    let victim = cold.file("victim");
    cold.cold("rename over a file", |volume| {
        volume.rename(&cold_large(volume), b"there", &root, b"victim", RenameFlags::empty()).unwrap()
    });
    cold.cold("exchange", |volume| {
        volume.rename(&root, b"victim", &root, b"data", RenameFlags::EXCHANGE).unwrap()
    });
    drop(victim);
    cold.cold("the reaper", |volume| volume.drain_orphans());
    cold.cold("mkdir", |volume| volume.create(&root, b"dir", &Create::directory(0o755)).unwrap());
    cold.cold("rmdir", |volume| volume.rmdir(&root, b"dir").unwrap());
    cold.cold("tmpfile", |volume| volume.tmpfile(&root, &Create::file(0o600)).unwrap());
    cold.cold("symlink", |volume| {
        volume.symlink(&root, b"symlink", &[b't'; 3000], quire::Caller::default()).unwrap()
    });
    cold.cold("unlink of a link", |volume| volume.unlink(&root, b"symlink").unwrap());
    let large = cold.fragmented("large file");
    cold.volume.set_xattr(&large, b"user.a", &[2; 30000], flags).unwrap();
    drop(large);
    cold.cold("unlink", |volume| volume.unlink(&root, b"large file").unwrap());
    cold.cold("the reaper again", |volume| volume.drain_orphans());
    assert!(cold.failures.is_empty(), "{:#?}", cold.failures);
}

/// More orphans than there are slots: those without one are named by a key in the tree.
#[test]
fn nor_where_orphans_have_keys() {
    let mut cold = Cold::new();
    let root = cold.volume.root();
    let slots = quire::orphan::SLOTS_PER_BLOCK * 2;
    let file = |n: usize| format!("orphan {n}");
    let held: Vec<InodeRef> = (0..slots + 4).map(|n| cold.file(&file(n))).collect();
    let mut used = 0;
    while cold.volume.metrics().orphan_claims < slots as u64 && used < slots {
        cold.volume.unlink(&root, file(used).as_bytes()).unwrap();
        used += 1;
    }
    cold.cold("unlink without a slot", |volume| volume.unlink(&root, file(slots).as_bytes()).unwrap());
    cold.cold("tmpfile without a slot", |volume| {
        let tmp = volume.tmpfile(&root, &Create::file(0o600)).unwrap();
        volume.link(&tmp, &root, b"named").unwrap();
    });
    let tmp = cold.volume.tmpfile(&root, &Create::file(0o600)).unwrap();
    cold.cold("a first name", |volume| volume.link(&tmp, &root, b"first").unwrap());
    drop(held);
    cold.cold("the reaper", |volume| volume.drain_orphans());
    assert!(cold.failures.is_empty(), "{:#?}", cold.failures);
}

fn cold_large(volume: &Volume) -> InodeRef {
    volume.lookup(&volume.root(), b"large").unwrap()
}
