//! Raw changes to a volume, for fsck's repairs: not checked against what the volume says about itself, since
//! that is what is being mended.
//!
//! Protocol: [`Session::open`] recovers the volume as a mount does, but frees no orphans and finishes no
//! logged operations; a volume with an unfinished receive opens as what it has of it. Changes gather until
//! [`Session::commit`], which applies them to the tree in memory, under the barrier and past the journal;
//! checkpoints publish them, [`Session::close`]'s at the latest. A crash in between leaves what the last
//! checkpoint had, and the next check finds the rest.
//!
//! Neighbours: `quire-fsck` is the only user; [`crate::store::checkpoint`] publishes.

use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::recovery;
pub use crate::recovery::JournalCut;
use crate::store::orphan_slots::Slot;
use crate::volume::Volume;
use quire_base::sync::Arc;
use quire_base::{InodeNo, Result};
use quire_device::Backend;
use quire_format::key::Key;
use quire_format::region::RegionMap;
use quire_format::superblock::Superblock;
use quire_tree::Tree;

/// Opens what can be read of a volume that recovery refuses, for reading: its newest checkpoint with the
/// journal up to the damage; with an unfinished receive, the snapshot at which that began. Gives with it
/// where the journal was cut.
pub fn open_for_reading(backend: Arc<dyn Backend>) -> Result<(Volume, JournalCut)> {
    let options =
        VolumeOptions { remains: true, threads: false, read_only: true, ..VolumeOptions::default() };
    let volume = options.open_backend(backend)?;
    let cut = volume.recovery().cut.clone();
    Ok((volume, cut))
}

enum Raw {
    Put(Key, Vec<u8>),
    Delete(Key),
    OrphanSet(Slot, InodeNo),
    OrphanClear(Slot),
}

/// A volume under repair.
pub struct Session {
    engine: Arc<Engine>,
    pending: Vec<Raw>,
}

impl Session {
    /// Recovers the volume on `backend` and opens it for raw changes.
    pub fn open(backend: Arc<dyn Backend>) -> Result<Session> {
        Session::of(recovery::open_unfinished(backend, Session::options())?.0)
    }

    /// As [`Session::open`], without these snapshots, whatever is damaged of them. What they had stays marked
    /// used, for the caller to settle. No unfinished receive began at one of them.
    pub fn open_without(backend: Arc<dyn Backend>, snapshots: &[u32]) -> Result<Session> {
        Session::of(recovery::open_without(backend, Session::options(), snapshots)?)
    }

    /// As [`Session::open`], of a volume that recovery may refuse: its newest checkpoint is whole, but it may
    /// lack keys, and its journal may be damaged. The journal is replayed up to the damage; used blocks and
    /// counters are then wrong, and for the caller to settle.
    pub fn open_remains(backend: Arc<dyn Backend>) -> Result<(Session, JournalCut)> {
        let (engine, cut) = recovery::open_remains(backend, Session::options())?;
        Ok((Session::of(engine)?, cut))
    }

    fn options() -> VolumeOptions {
        VolumeOptions { threads: false, receiving: true, ..VolumeOptions::default() }
    }

    fn of(engine: Arc<Engine>) -> Result<Session> {
        engine.store.check_writable()?;
        Ok(Session { engine, pending: Vec::new() })
    }

    /// The tree as it is now.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.engine.store.tree
    }

    /// The superblock as it was after recovery.
    pub fn superblock(&self) -> &Superblock {
        &self.engine.store.superblock
    }

    /// The orphan slots in use.
    pub fn orphans(&self) -> Vec<(Slot, InodeNo)> {
        self.engine.store.orphans.applied()
    }

    /// A slot that no orphan has; it stays claimed until its change is committed.
    pub fn claim_orphan_slot(&self, inode: InodeNo) -> Option<Slot> {
        self.engine.store.orphans.claim(inode)
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

    /// Sets the blocks of a region that only snapshots use.
    pub fn set_dead(&mut self, region: u64, map: &RegionMap) {
        match map.encode() {
            Some(value) => self.put(Key::dead(region), &value),
            None => self.delete(Key::dead(region)),
        }
    }

    /// Names an orphan in a slot claimed before.
    pub fn orphan_set(&mut self, slot: Slot, inode: InodeNo) {
        self.pending.push(Raw::OrphanSet(slot, inode));
    }

    /// Releases an orphan slot.
    pub fn orphan_clear(&mut self, slot: Slot) {
        self.pending.push(Raw::OrphanClear(slot));
    }

    /// Inode numbers below `end` are in use: whatever the next checkpoint has, a mount gives out others.
    pub fn pass_inodes(&mut self, end: u64) {
        self.engine.store.inode_numbers.pass(end);
    }

    /// Sets the counters that checkpoints write; [`Session::commit`]s keep them up from here.
    pub fn set_counters(&mut self, free_blocks: u64, inodes: u64, next_inode: u64) {
        self.engine.store.applied_free_blocks.set(free_blocks);
        self.engine.store.applied_inodes.set(inodes);
        self.engine.store.inode_numbers.pass(next_inode);
    }

    /// Changes that wait for a commit.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Applies the pending changes. They are durable with the next checkpoint, all of one commit with the
    /// same one.
    pub fn commit(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        {
            let _barrier = self.engine.store.barrier.shared();
            for raw in &pending {
                match raw {
                    Raw::Put(key, value) => self.engine.store.tree.put(*key, value)?,
                    Raw::Delete(key) => self.engine.store.tree.delete(*key).map(drop)?,
                    Raw::OrphanSet(slot, inode) => self.engine.store.orphans.apply_set(*slot, *inode),
                    Raw::OrphanClear(slot) => self.engine.store.orphans.apply_clear(*slot),
                }
            }
        }
        if self.engine.store.tree.wants_checkpoint() {
            self.engine.store.checkpoint_now()?;
        }
        Ok(())
    }

    /// Commits what is pending and writes a clean checkpoint.
    pub fn close(mut self) -> Result<()> {
        self.commit()?;
        self.engine.store.checkpoint_clean()?;
        self.engine.inodes.clear();
        Ok(())
    }
}
