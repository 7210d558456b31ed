//! Which inodes have something in memory that the journal does not know.
//!
//! Protocol. An inode carries a [`DirtyMark`], and its number is in the list as long as the mark is set. A
//! thread that changes an inode stores the change and then marks ([`DirtyInodes::mark`]): if the mark is set
//! already, that is a fence and one load. A thread that journals inodes reads the list, journals each, and
//! settles it ([`DirtyInodes::settle`]): under the list's lock it clears the mark, looks at the inode again,
//! and keeps in the list what still owes something. Both fence between their store and their load, so one of
//! the two sees the other: no change stays outside the list. An inode stays listed while it is being
//! journaled, so that two threads that make the volume durable both find it.
//!
//! Two levels: *due* at the next periodic commit (sizes, times, exclusive operations under way), and *times*
//! alone, on a volume that keeps these in memory (`lazytime`).
//!
//! Invariants: a number is in the set of its mark's level and in no other. Changes of mark and list are made
//! together, under the lock of the number's shard, which is a leaf.
//!
//! Shared lines: a shard's lock and sets, written when an inode becomes dirty or clean; a mark, likewise.
//!
//! Neighbours: [`crate::inode`] marks, [`crate::file::fsync`] journals and settles, [`crate::inode_table`]
//! lets no marked inode leave.

use quire_base::InodeNo;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU8, Ordering, fence};
use std::collections::BTreeSet;

#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 64;
/// Few under a model checker, which explores each.
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 1;

/// What an inode owes to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Owes {
    /// Nothing.
    Nothing = 0,
    /// Times, which may stay in memory.
    Times = 1,
    /// What the next periodic commit journals.
    Due = 2,
}

/// An inode's place in the list.
#[derive(Debug, Default)]
pub struct DirtyMark(AtomicU8);

impl DirtyMark {
    /// Whether the inode is in the list.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != Owes::Nothing as u8
    }
}

#[derive(Default)]
struct Sets {
    times: BTreeSet<u64>,
    due: BTreeSet<u64>,
}

impl Sets {
    fn of(&mut self, level: u8) -> Option<&mut BTreeSet<u64>> {
        match level {
            level if level == Owes::Due as u8 => Some(&mut self.due),
            level if level == Owes::Times as u8 => Some(&mut self.times),
            _ => None,
        }
    }

    /// Moves an inode to where it belongs now.
    fn put(&mut self, inode: InodeNo, mark: &DirtyMark, before: u8, level: Owes) {
        if before != level as u8 {
            self.of(before).map(|set| set.remove(&inode.0));
            self.of(level as u8).map(|set| set.insert(inode.0));
        }
        mark.0.store(level as u8, Ordering::Release);
    }
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Sets>);

/// See the module's documentation.
pub struct DirtyInodes {
    shards: Box<[Shard]>,
}

impl Default for DirtyInodes {
    fn default() -> DirtyInodes {
        DirtyInodes { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl DirtyInodes {
    fn shard(&self, inode: InodeNo) -> &Mutex<Sets> {
        &self.shards[inode.0 as usize % SHARDS].0
    }

    /// Lists an inode that owes at least this much since a change that the caller has stored.
    pub fn mark(&self, inode: InodeNo, mark: &DirtyMark, level: Owes) {
        fence(Ordering::SeqCst);
        if mark.0.load(Ordering::Relaxed) >= level as u8 {
            return;
        }
        let mut sets = self.shard(inode).lock();
        let before = mark.0.load(Ordering::Relaxed);
        if before < level as u8 {
            sets.put(inode, mark, before, level);
        }
    }

    /// Lists an inode as what `look` says that it still owes; `look` reads the inode after the mark has been
    /// cleared. The caller keeps the inode in memory.
    pub fn settle(&self, inode: InodeNo, mark: &DirtyMark, look: impl FnOnce() -> Owes) {
        let mut sets = self.shard(inode).lock();
        let before = mark.0.load(Ordering::Relaxed);
        mark.0.store(Owes::Nothing as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let level = look();
        sets.put(inode, mark, before, level);
    }

    /// The numbers of the listed inodes that owe at least `level`, ascending.
    pub fn numbers(&self, level: Owes) -> Vec<InodeNo> {
        let mut numbers = Vec::new();
        for shard in &self.shards {
            let sets = shard.0.lock();
            numbers.extend(sets.due.iter().map(|number| InodeNo(*number)));
            if level <= Owes::Times {
                numbers.extend(sets.times.iter().map(|number| InodeNo(*number)));
            }
        }
        numbers.sort_unstable();
        numbers
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| {
            let sets = shard.0.lock();
            sets.due.is_empty() && sets.times.is_empty()
        })
    }
}
