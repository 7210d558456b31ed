//! Which blocks belong to snapshots: the table in memory, and the rule.
//!
//! Extents carry the number of the last snapshot that had been taken when their blocks were allocated, their
//! *birth*. A block that a file has belongs to the newest snapshot, too, if it was born before that. (It
//! belongs to older ones then as well, from the first behind its birth on: a block that a file has is never
//! free in between.) So the test is one comparison, and without snapshots it is never true.
//!
//! What belongs to a snapshot is *shared*. Written shared blocks keep their content: new content goes to
//! fresh blocks ([`quire_cache::Home::Shared`]). A shared block that leaves its file stays in use, and
//! becomes *dead* (a key of its region); deleting snapshots frees the dead ([`crate::snapshots::sweep`]).
//!
//! Invariants: the table changes only while no other change is applied ([`Turn`] of the barrier), so whether
//! a block that a record frees is shared depends on the records before it alone, live and in replay. An
//! extent that keeps its blocks keeps their birth, whatever else of it changes.
//!
//! Neighbours: [`super::apply`] tells of changes of the table; `format::snapshot` has its values.
//!
//! [`Turn`]: super::transaction::Transaction::commit_alone

use quire_base::Result;
use quire_base::sync::Mutex;
use quire_base::sync::atomic::{AtomicU32, Ordering};
use quire_format::extent::{Extent, Run, subtract};
use quire_format::key::{Key, KeyKind};
use quire_format::snapshot::Snapshot;
use quire_tree::Tree;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct SnapshotTable {
    /// The newest snapshot that is not being deleted; 0: there is none.
    newest: AtomicU32,
    /// The highest that `newest` was since the volume was opened.
    newest_seen: AtomicU32,
    /// The last snapshot ever taken.
    epoch: AtomicU32,
    /// By number; of those that are being deleted, the epoch in which that began. 0: it is not known.
    all: Mutex<BTreeMap<u32, Option<u32>>>,
}

/// The blocks that a change of extents takes from a file.
pub(crate) struct Freed {
    /// Those that are free then.
    pub(crate) own: Vec<Run>,
    /// Those that a snapshot has, too.
    pub(crate) shared: Vec<Run>,
}

impl SnapshotTable {
    /// The table that a tree has. A snapshot whose value makes no sense is one that shares blocks: so nothing
    /// that it may have is free after a replay. No such volume is opened for writing
    /// ([`keep_all`](crate::snapshots::table::keep_all)).
    pub(crate) fn load(tree: &Tree, epoch: u32) -> Result<SnapshotTable> {
        let table = SnapshotTable::default();
        table.epoch.store(epoch, Ordering::Relaxed);
        tree.scan(Key::snapshot(0), Key::snapshot(u32::MAX), &mut |key, value| {
            let deleting = Snapshot::decode(value).is_ok_and(|snapshot| snapshot.deleting.is_some());
            table.put_since(key, deleting, 0);
            ControlFlow::Continue(())
        })?;
        Ok(table)
    }

    /// A snapshot was put into the tree, or is being deleted from now on.
    pub(crate) fn put(&self, key: Key, snapshot: &Snapshot) {
        self.put_since(key, snapshot.deleting.is_some(), self.epoch());
    }

    fn put_since(&self, key: Key, deleting: bool, now: u32) {
        debug_assert_eq!(key.kind, KeyKind::Snapshot);
        let number = key.offset as u32;
        let mut all = self.all.lock();
        let since = deleting.then(|| all.get(&number).copied().flatten().unwrap_or(now));
        all.insert(number, since);
        self.epoch.fetch_max(number, Ordering::Relaxed);
        self.choose(&all);
    }

    /// A snapshot is no more.
    pub(crate) fn delete(&self, key: Key) {
        let mut all = self.all.lock();
        all.remove(&(key.offset as u32));
        self.choose(&all);
    }

    fn choose(&self, all: &BTreeMap<u32, Option<u32>>) {
        let newest = all.iter().rev().find(|(_, since)| since.is_none());
        let newest = newest.map_or(0, |(number, _)| *number);
        self.newest.store(newest, Ordering::Release);
        self.newest_seen.fetch_max(newest, Ordering::Release);
    }

    /// Whether there is still a snapshot of this number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.all.lock().contains_key(&number)
    }

    /// Whether there is no snapshot, not even one that is being deleted.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Whether snapshots are to be deleted.
    pub(crate) fn any_deleted(&self) -> bool {
        self.all.lock().values().any(Option::is_some)
    }

    /// The epoch in which the deletion of a snapshot began, or an earlier one.
    pub(crate) fn deleted_since(&self, number: u32) -> u32 {
        self.all.lock().get(&number).copied().flatten().unwrap_or(0)
    }

    /// The last snapshot ever taken: the birth of what is allocated now.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether there is a snapshot that shares blocks with files.
    pub(crate) fn any(&self) -> bool {
        self.newest.load(Ordering::Relaxed) > 0
    }

    /// Whether new content of an extent goes elsewhere, since a snapshot has its blocks, too. It stays so
    /// when that is deleted: dirty blocks have reserved for it.
    #[inline]
    pub(crate) fn moves(&self, extent: &Extent) -> bool {
        extent.birth < self.newest_seen.load(Ordering::Relaxed)
    }

    /// Whether a snapshot has the blocks of an extent, too.
    fn share(&self, extent: &Extent) -> bool {
        extent.birth < self.newest.load(Ordering::Relaxed)
    }

    /// What becomes of the blocks that a change of extents takes from a file.
    pub(crate) fn freed(&self, removed: &[Extent], inserted: &[Extent]) -> Result<Freed> {
        if !self.any() {
            return Ok(Freed { own: subtract(removed, inserted)?.0, shared: Vec::new() });
        }
        let part = |shared: bool| {
            let removed = removed.iter().filter(|extent| self.share(extent) == shared);
            subtract(removed, inserted).map(|(freed, _)| freed)
        };
        Ok(Freed { own: part(false)?, shared: part(true)? })
    }

    /// Extents that are to be laid over those of a file: where they have the blocks that the file has there
    /// already, with the birth of these.
    pub(crate) fn keep_births(&self, before: &[Extent], pieces: &[Extent]) -> Vec<Extent> {
        if self.epoch() == 0 {
            return pieces.to_vec();
        }
        let mut kept = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let mut at = piece.file_block;
            for old in before.iter().filter_map(|old| old.clip(piece.file_block, piece.file_end())) {
                if piece.disk_block_of(old.file_block) != Some(old.disk_block) {
                    continue;
                }
                kept.extend(piece.clip(at, old.file_block));
                let same = piece.clip(old.file_block, old.file_end());
                kept.extend(same.map(|same| Extent { birth: old.birth, ..same }));
                at = old.file_end();
            }
            kept.extend(piece.clip(at, piece.file_end()));
        }
        kept
    }
}
