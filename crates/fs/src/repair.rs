//! Raw changes to a volume, for fsck's repairs: journaled and crash-safe like any others, but not checked against
//! what the volume says about itself, since that is what is being mended.
//!
//! Protocol: [`Session::open`] recovers the volume as a mount does, but frees no orphans and finishes no logged
//! operations; changes gather until [`Session::commit`], which makes them one transaction; [`Session::close`] writes
//! a clean checkpoint. A crash in between leaves whole transactions, and the next check finds the rest.
//!
//! Neighbours: `quire-fsck` is the only user; [`crate::transaction`] does the work.

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::orphan::Slot;
use crate::recovery;
use crate::transaction::Cost;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{InodeNo, Result};
use quire_device::Backend;
use quire_format::key::Key;
use quire_format::region::RegionMap;
use quire_format::superblock::Superblock;
use quire_tree::Tree;

enum Raw {
    Put(Key, Vec<u8>),
    Delete(Key),
    OrphanSet(Slot, InodeNo),
    OrphanClear(Slot, InodeNo),
}

/// A volume under repair.
pub struct Session {
    engine: Arc<Engine>,
    pending: Vec<Raw>,
}

impl Session {
    /// Recovers the volume on `backend` and opens it for raw changes.
    pub fn open(backend: Arc<dyn Backend>) -> Result<Session> {
        let options = VolumeOptions { threads: false, ..VolumeOptions::default() };
        let (engine, _) = recovery::open_unfinished(backend, options)?;
        engine.check_writable()?;
        Ok(Session { engine, pending: Vec::new() })
    }

    /// The tree as it is now.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.engine.tree
    }

    /// The superblock as it was after recovery.
    pub fn superblock(&self) -> &Superblock {
        &self.engine.superblock
    }

    /// The orphan slots in use.
    pub fn orphans(&self) -> Vec<(Slot, InodeNo)> {
        self.engine.orphans.applied()
    }

    /// A slot that no orphan has; it stays claimed until its change is committed.
    pub fn claim_orphan_slot(&self, inode: InodeNo) -> Option<Slot> {
        self.engine.orphans.claim(inode)
    }

    /// Sets a key's value.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        self.pending.push(Raw::Put(key, value.to_vec()));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Key) {
        self.pending.push(Raw::Delete(key));
    }

    /// Sets the used blocks of a region.
    pub fn set_region(&mut self, region: u64, map: &RegionMap) {
        match map.encode() {
            Some(value) => self.put(Key::region(region), &value),
            None => self.delete(Key::region(region)),
        }
    }

    /// Names an orphan in a slot claimed before.
    pub fn orphan_set(&mut self, slot: Slot, inode: InodeNo) {
        self.pending.push(Raw::OrphanSet(slot, inode));
    }

    /// Releases an orphan slot.
    pub fn orphan_clear(&mut self, slot: Slot, inode: InodeNo) {
        self.pending.push(Raw::OrphanClear(slot, inode));
    }

    /// Sets the counters that checkpoints write; [`Session::commit`]s keep them up from here.
    pub fn set_counters(&mut self, free_blocks: u64, inodes: u64, next_inode: u64) {
        self.engine.applied_free_blocks.store(free_blocks, Ordering::Relaxed);
        self.engine.applied_inodes.store(inodes, Ordering::Relaxed);
        self.engine.next_inode.fetch_max(next_inode, Ordering::Relaxed);
    }

    /// Changes that wait for a commit.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Makes the pending changes one transaction. Keep it below some hundred changes.
    pub fn commit(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let bytes = pending.iter().map(|raw| if let Raw::Put(_, value) = raw { value.len() } else { 0 }).sum();
        let mut transaction = self.engine.begin(Cost::new(pending.len(), bytes).critical())?;
        for raw in &pending {
            match raw {
                Raw::Put(key, value) => transaction.put(*key, value),
                Raw::Delete(key) => transaction.delete(*key),
                Raw::OrphanSet(slot, inode) => transaction.orphan_set(Some(*slot), *inode),
                Raw::OrphanClear(slot, inode) => transaction.orphan_clear(Some(*slot), *inode),
            }
        }
        transaction.commit().map(drop)
    }

    /// Commits what is pending and writes a clean checkpoint.
    pub fn close(mut self) -> Result<()> {
        self.commit()?;
        self.engine.force_all()?;
        self.engine.checkpoint_clean()?;
        self.engine.inodes.clear();
        Ok(())
    }
}
