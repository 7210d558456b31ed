//! The open files of a mount, by the handle that the kernel repeats in each request on them.

use std::collections::HashMap;

use quire::Volume;
use quire::inodes::InodeRef;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, RwLock};
use quire_base::{Error, ErrorKind, Result};

use super::group::HandleGroup;
use super::kept::Counted;
use super::lease::HandleLeases;

const SHARDS: usize = 64;

/// One `open`, shared by all descriptors duplicated from it.
pub struct OpenFile {
    /// What is open.
    pub inode: InodeRef,
    /// Something was written, or cut off, through it.
    changed: AtomicBool,
    /// The log has been told that the kernel could not write pages back through it.
    pub(super) gave_up: AtomicBool,
    /// Open for writing.
    pub writable: bool,
    /// What is written through it is durable when the call returns.
    pub synchronous: bool,
    /// The kernel passes reads and writes on as they are.
    pub uncached: bool,
    /// The snapshot that it is in, held open.
    pub snapshot: Option<Arc<Volume>>,
    /// Writes through it that are to take effect together.
    pub(super) group: HandleGroup,
    /// Layouts that a program relies on.
    pub(super) leases: HandleLeases,
    /// With `cache=auto`.
    pub(super) counted: Option<Counted>,
}

impl OpenFile {
    /// An open of `inode`.
    pub fn new(inode: InodeRef, writable: bool, uncached: bool, counted: Option<Counted>) -> OpenFile {
        let (changed, gave_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let (snapshot, group, leases) = (None, HandleGroup::default(), HandleLeases::default());
        OpenFile {
            inode,
            changed,
            gave_up,
            writable,
            synchronous: false,
            uncached,
            snapshot,
            group,
            leases,
            counted,
        }
    }
    /// An open of an inode in a snapshot.
    pub fn in_snapshot(inode: InodeRef, snapshot: Arc<Volume>, uncached: bool) -> OpenFile {
        OpenFile { snapshot: Some(snapshot), ..OpenFile::new(inode, false, uncached, None) }
    }
    /// Refuses a change of a file in a snapshot. (The kernel does, as it is open for reading only.)
    pub fn check_live(&self) -> Result<()> {
        match self.snapshot {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::ReadOnly, "snapshots are read-only")),
        }
    }
    /// Whether the kernel keeps pages for those who read through it, under `cache=auto`.
    pub fn is_kept(&self) -> bool {
        self.counted.as_ref().is_some_and(Counted::is_kept)
    }
    /// Notes a write. Reads the flag first: it is set once, and read by every writer.
    pub fn note_change(&self) {
        if !self.changed.load(Ordering::Relaxed) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }
    /// Whether something was written through it.
    pub fn changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<u64, Arc<OpenFile>>>);

/// See the module's documentation. Handles are never reused; zero is none.
pub struct FileTable {
    next: AtomicU64,
    shards: Box<[Shard]>,
}

impl Default for FileTable {
    fn default() -> FileTable {
        FileTable { next: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl FileTable {
    fn shard(&self, handle: u64) -> &RwLock<HashMap<u64, Arc<OpenFile>>> {
        &self.shards[handle as usize % SHARDS].0
    }

    /// Adds an open file and returns its handle.
    pub fn insert(&self, file: OpenFile) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).write().insert(handle, Arc::new(file));
        handle
    }

    /// The file of a handle; `BadHandle` if there is none.
    pub fn get(&self, handle: u64) -> Result<Arc<OpenFile>> {
        self.shard(handle)
            .read()
            .get(&handle)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::BadHandle, format!("file handle {handle} is not open")))
    }

    /// Takes a handle out.
    pub fn remove(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.shard(handle).write().remove(&handle)
    }

    /// Takes all out.
    pub fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.0.write());
            drop(all);
        }
    }
}
