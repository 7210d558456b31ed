//! No thread reads the tree from the device while it holds an inode's `meta`: a `stat` of that inode, also on
//! a thread that may not wait, would wait for the device. Debug builds panic where it would happen
//! (`quire_base::patience::Forbidden`).
//!
//! The node cache is the smallest there is. Before each operation a checkpoint cleans all nodes, and a walk
//! through a large directory evicts what the operation needs.

use crate::common;
use quire::inodes::{
    Caller, Create, DirectoryEntry, FallocateMode, InodeRef, IoFlags, SetAttributes, SetTime, XattrFlags,
};
use quire::{RenameFlags, Timestamp, Volume};
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
        let volume = common::options().node_cache_bytes(1).open_backend(device).unwrap();
        let large =
            volume.inodes().create(&volume.inodes().root(), b"large", &Create::directory(0o755)).unwrap();
        let first = volume.inodes().create(&large, b"0", &Create::file(0o644)).unwrap();
        for name in 1..NAMES {
            volume.inodes().hard_link(&first, &large, name.to_string().as_bytes()).unwrap();
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
            self.volume.inodes().allocate(&file, FallocateMode::Allocate, 2 * n * BLOCK, BLOCK).unwrap();
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
            let mut count = |_: DirectoryEntry<'_>| {
                names += 1;
                true
            };
            self.volume.inodes().read_dir(&self.large, 0, &mut count).unwrap();
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
        self.volume.metrics()["tree_loads_total"]
    }
}

#[test]
fn nothing_is_read_under_meta() {
    let mut cold = Cold::new();
    let root = cold.volume.inodes().root();
    let set = SetAttributes::default();
    let flags = XattrFlags::empty();

    let file = cold.fragmented("attributes");
    cold.cold("chmod", |volume| {
        volume.inodes().set_attributes(&file, &SetAttributes { mode: Some(0o6755), ..set }).unwrap()
    });
    cold.cold("write that clears privileges", |volume| {
        volume.inodes().write_at(&file, b"x", 0, IoFlags::empty()).unwrap()
    });
    let times = SetAttributes { mtime: Some(SetTime::At(Timestamp(7))), ..set };
    cold.cold("utimes", |volume| volume.inodes().set_attributes(&file, &times).unwrap());
    cold.cold("setxattr", |volume| volume.inodes().set_xattr(&file, b"user.a", &[1; 9000], flags).unwrap());
    cold.cold("chmod beside an attribute", |volume| {
        volume.inodes().set_attributes(&file, &SetAttributes { mode: Some(0o700), ..set }).unwrap()
    });
    cold.cold("setxattr again", |volume| {
        volume.inodes().set_xattr(&file, b"user.a", &[2; 30000], flags).unwrap()
    });
    cold.cold("getxattr", |volume| volume.inodes().get_xattr(&file, b"user.a").unwrap());
    cold.cold("listxattr", |volume| volume.inodes().list_xattrs(&file).unwrap());
    cold.cold("removexattr", |volume| volume.inodes().remove_xattr(&file, b"user.a").unwrap());
    cold.cold("fsync of times", |volume| {
        volume.inodes().write_at(&file, b"y", 0, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&file, false).unwrap();
    });
    cold.cold("the periodic commit", |volume| {
        volume.inodes().read_at(&file, &mut [0; 8], 0, IoFlags::empty()).unwrap();
        volume.sync().unwrap();
    });

    let file = cold.fragmented("data");
    cold.cold("filling holes", |volume| {
        volume.inodes().allocate(&file, FallocateMode::Allocate, 0, 300 * BLOCK).unwrap();
    });
    cold.cold("growth", |volume| volume.inodes().set_len(&file, 8000 * BLOCK + 17).unwrap());
    cold.cold("writeback into holes", |volume| {
        for n in 200..230 {
            volume.inodes().write_at(&file, &[7; 4096], (2 * n + 1) * BLOCK, IoFlags::empty()).unwrap();
        }
        volume.inodes().fsync(&file, true).unwrap();
    });
    cold.cold("a small forced write", |volume| {
        volume.background_step().unwrap();
        volume.inodes().write_at(&file, &[7; 100], 7001 * BLOCK, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&file, true).unwrap();
    });
    cold.cold("a direct write", |volume| {
        volume.inodes().write_at(&file, &[7; 4096], 801 * BLOCK, IoFlags::DIRECT).unwrap();
    });
    cold.cold("collapse", |volume| {
        volume.inodes().allocate(&file, FallocateMode::Collapse, 40 * BLOCK, 100 * BLOCK).unwrap();
    });
    cold.cold("insert", |volume| {
        volume.inodes().allocate(&file, FallocateMode::Insert, 61 * BLOCK, 100 * BLOCK).unwrap();
    });
    cold.cold("zeroing", |volume| {
        let mode = FallocateMode::ZeroRange { keep_size: true };
        volume.inodes().allocate(&file, mode, 500 * BLOCK + 7, 90 * BLOCK).unwrap();
    });
    cold.cold("punch", |volume| {
        volume.inodes().allocate(&file, FallocateMode::PunchHole, 300 * BLOCK, 400 * BLOCK).unwrap();
    });
    cold.cold("truncate", |volume| volume.inodes().set_len(&file, 900 * BLOCK + 3).unwrap());
    cold.cold("a long truncate", |volume| volume.inodes().set_len(&file, 5).unwrap());

    let moved = cold.file("moved");
    cold.cold("link", |volume| volume.inodes().hard_link(&moved, &root, b"second").unwrap());
    cold.cold("unlink of one name", |volume| volume.inodes().remove_file(&root, b"second").unwrap());
    cold.cold("rename", |volume| {
        volume.inodes().rename(&root, b"moved", &cold_large(volume), b"there", RenameFlags::empty()).unwrap()
    });
    let victim = cold.file("victim");
    cold.cold("rename over a file", |volume| {
        volume.inodes().rename(&cold_large(volume), b"there", &root, b"victim", RenameFlags::empty()).unwrap()
    });
    cold.cold("exchange", |volume| {
        volume.inodes().rename(&root, b"victim", &root, b"data", RenameFlags::EXCHANGE).unwrap()
    });
    drop(victim);
    cold.cold("the reaper", |volume| volume.drain_orphans());
    cold.cold("mkdir", |volume| volume.inodes().create(&root, b"dir", &Create::directory(0o755)).unwrap());
    cold.cold("rmdir", |volume| volume.inodes().remove_dir(&root, b"dir").unwrap());
    cold.cold("tmpfile", |volume| volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap());
    cold.cold("symlink", |volume| {
        volume.inodes().symlink(&root, b"symlink", &[b't'; 3000], Caller::default()).unwrap()
    });
    cold.cold("unlink of a link", |volume| volume.inodes().remove_file(&root, b"symlink").unwrap());
    let large = cold.fragmented("large file");
    cold.volume.inodes().set_xattr(&large, b"user.a", &[2; 30000], flags).unwrap();
    drop(large);
    cold.cold("unlink", |volume| volume.inodes().remove_file(&root, b"large file").unwrap());
    cold.cold("the reaper again", |volume| volume.drain_orphans());
    assert!(cold.failures.is_empty(), "{:#?}", cold.failures);
}

/// More orphans than there are slots: those without one are named by a key in the tree.
#[test]
fn nor_where_orphans_have_keys() {
    let mut cold = Cold::new();
    let root = cold.volume.inodes().root();
    let slots = quire::internals::orphan::SLOTS_PER_BLOCK * 2;
    let file = |n: usize| format!("orphan {n}");
    let held: Vec<InodeRef> = (0..slots + 4).map(|n| cold.file(&file(n))).collect();
    let mut used = 0;
    while cold.volume.metrics()["orphan_claims_total"] < slots as u64 && used < slots {
        cold.volume.inodes().remove_file(&root, file(used).as_bytes()).unwrap();
        used += 1;
    }
    cold.cold("unlink without a slot", |volume| {
        volume.inodes().remove_file(&root, file(slots).as_bytes()).unwrap()
    });
    cold.cold("tmpfile without a slot", |volume| {
        let tmp = volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap();
        volume.inodes().hard_link(&tmp, &root, b"named").unwrap();
    });
    let tmp = cold.volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap();
    cold.cold("a first name", |volume| volume.inodes().hard_link(&tmp, &root, b"first").unwrap());
    drop(held);
    cold.cold("the reaper", |volume| volume.drain_orphans());
    assert!(cold.failures.is_empty(), "{:#?}", cold.failures);
}

fn cold_large(volume: &Volume) -> InodeRef {
    volume.inodes().lookup(&volume.inodes().root(), b"large").unwrap()
}
