//! The inodes that the kernel holds.
//!
//! Each time the kernel is told of an inode (look-up, create, link, an entry of a directory read with
//! attributes) its count goes up; when the kernel evicts it, it says how many of these times it forgets. The
//! table keeps a reference to the inode while its count is above zero.
//!
//! Invariants: counts go up under the shard's shared lock and an entry leaves under its exclusive lock, so a
//! count never rises on an entry that is gone. References are dropped outside of the locks: the last one to
//! an unlinked inode frees it, which is work.

use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::OnceLock;

use quire::inodes::InodeRef;
use quire_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use quire_base::sync::{Arc, RwLock};
use quire_base::{Error, ErrorKind, InodeNo, Result};

use super::kept::Opens;

const SHARDS: usize = 64;

/// What is noted of an inode for as long as the kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// The kernel has read pages to keep, or may.
    Paged = 1,
    /// The size that the kernel works with may be one that a group would give the file.
    SizeGuessed = 2,
    /// It was opened for reading and writing, as a mapping that programs store through needs.
    Storable = 4,
}

struct Node {
    inode: InodeRef,
    count: AtomicU64,
    /// Bits of [`Mark`].
    marks: AtomicU8,
    /// Made when first asked for.
    opens: OnceLock<Arc<Opens>>,
}

#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<u64, Node>>);

/// See the module's documentation.
pub struct InodeTable {
    root: InodeRef,
    shards: Box<[Shard]>,
}

impl InodeTable {
    /// With the root directory, which the kernel holds without ever being told of it.
    pub fn new(root: InodeRef) -> InodeTable {
        InodeTable { root, shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, node: u64) -> &RwLock<HashMap<u64, Node>> {
        &self.shards[node as usize % SHARDS].0
    }

    /// The inode of a node that the kernel holds; `Stale` for any other number.
    pub fn get(&self, node: u64) -> Result<InodeRef> {
        if node == InodeNo::ROOT.0 {
            return Ok(self.root.clone());
        }
        self.shard(node).read().get(&node).map(|node| node.inode.clone()).ok_or_else(|| {
            Error::new(ErrorKind::Stale, format!("the kernel asks for inode {node}, which it has forgotten"))
        })
    }

    /// Counts `inode` once more.
    pub fn remember(&self, inode: InodeRef) {
        let node = inode.number().0;
        if node == InodeNo::ROOT.0 {
            return;
        }
        let shard = self.shard(node);
        if let Some(known) = shard.read().get(&node) {
            known.count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let spare = match shard.write().entry(node) {
            hash_map::Entry::Occupied(known) => {
                known.get().count.fetch_add(1, Ordering::Relaxed);
                Some(inode)
            }
            hash_map::Entry::Vacant(free) => {
                let opens = OnceLock::new();
                free.insert(Node { inode, count: AtomicU64::new(1), marks: AtomicU8::new(0), opens });
                None
            }
        };
        drop(spare);
    }

    /// Notes something of a node that the kernel holds.
    pub fn mark(&self, node: u64, mark: Mark) {
        if let Some(known) = self.shard(node).read().get(&node)
            // Most marks are there already, and then no line is written.
            && known.marks.load(Ordering::Acquire) & mark as u8 == 0
        {
            known.marks.fetch_or(mark as u8, Ordering::AcqRel);
        }
    }

    /// Takes a note back.
    pub fn unmark(&self, node: u64, mark: Mark) {
        if let Some(known) = self.shard(node).read().get(&node) {
            known.marks.fetch_and(!(mark as u8), Ordering::AcqRel);
        }
    }

    /// The opens of a node, counted.
    pub fn opens(&self, node: u64) -> Arc<Opens> {
        self.shard(node)
            .read()
            .get(&node)
            .map(|known| known.opens.get_or_init(Arc::default).clone())
            .unwrap_or_default()
    }

    /// Whether something was noted of a node.
    pub fn is_marked(&self, node: u64, mark: Mark) -> bool {
        self.shard(node)
            .read()
            .get(&node)
            .is_some_and(|known| known.marks.load(Ordering::Acquire) & mark as u8 != 0)
    }

    /// Takes `count` off; the last one lets the inode go. A count larger than what was told is the kernel's
    /// error and taken for "all".
    pub fn forget(&self, node: u64, count: u64) {
        let shard = self.shard(node);
        {
            let nodes = shard.read();
            let Some(known) = nodes.get(&node) else { return };
            let left = known
                .count
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_sub(count)))
                .map_or(0, |held| held.saturating_sub(count));
            if left > 0 {
                return;
            }
        }
        let gone = {
            let mut nodes = shard.write();
            match nodes.entry(node) {
                hash_map::Entry::Occupied(known) if known.get().count.load(Ordering::Relaxed) == 0 => {
                    Some(known.remove())
                }
                _ => None,
            }
        };
        drop(gone);
    }

    /// Lets every inode go.
    pub fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.0.write());
            drop(all);
        }
    }

    /// Inodes held, the root apart.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }

    /// Whether the kernel holds nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
