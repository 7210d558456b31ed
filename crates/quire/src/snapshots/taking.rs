//! Taking a snapshot.
//!
//! A snapshot is a checkpoint that is kept: its superblock lies under a key of the space tree. From the
//! record of that key on, what the checkpoint's trees name is not freed ([`quire_tree::Tree::keep`]), and
//! blocks of files that it has are shared ([`crate::store::snapshot_table`]).
//!
//! Protocol of taking one, while others use the volume:
//! 1. Sync, checkpoint, both again, while changes go on. Then write back, and write a checkpoint with its
//!    homes, which stays unpublished if the pool has room for it and for the one of step 5. Steps 3 and 5
//!    then write only what changed while this one was being written.
//! 2. Keep changes back where they begin ([`crate::changes`]), and wait for those under way.
//! 3. Write back. Nothing is dirty then, nothing is written, and no reservation for data stands.
//! 4. Keep the engine itself from freeing blocks ([`frees`](crate::store::Store::frees)): what is freed
//!    between the checkpoint and the key's record would be given to others, though the snapshot has it.
//! 5. Write a checkpoint with its homes, but for its superblock; it takes the place of the unpublished one.
//!    Keep room back for what the pool needs from now on ([`crate::store::pool_promise`]), and append the
//!    key's record. The record depends on all that was written so far, so nothing is flushed for
//!    it while changes are kept back. A reader of the snapshot replays no journal: homes must not come later
//!    than the key.
//! 6. Have the cache ask for homes again ([`quire_cache::Cache::forget_homes`]), and let changes go on.
//! 7. Publish the checkpoint, and force the record. What goes on meanwhile spares the snapshot's blocks, and
//!    its records lie behind the key's: a crash that loses the key loses them. A crash may also leave the key
//!    and lose the superblock: then a replay from an older checkpoint finds the key, and with it all that the
//!    snapshot needs.
//!
//! So a snapshot holds what all changes that had returned before step 2 have made, and no part of a later
//! one. A failure of steps 1 to 4 leaves no trace, and one of step 5 no key, or the volume is shut down.
//!
//! Invariants: one snapshot at a time is taken, and none of a frozen volume (`Engine::frozen` is held
//! throughout).
//!
//! Neighbours: [`super::table`] lists, [`super::sweep`] deletes; [`crate::store::apply`] has the rules of
//! single changes; [`crate::recovery`] opens a snapshot as a volume.

use super::table::{BASE_NAME, SnapshotInfo, table};
use crate::engine::Engine;
use crate::freeze::Freezes;
use crate::store::checkpoint::Pace;
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_base::sync::time::Instant;
use quire_base::sync::{Arc, MutexGuard};
use quire_base::{Error, ErrorKind, Result, Seq, Timestamp};
use quire_format::key::{Key, VALUE_MAX};
use quire_format::snapshot::Snapshot;
use quire_format::superblock::Superblock;

/// Changes are kept back while it lives.
pub(crate) struct Held<'a> {
    engine: &'a Engine,
    since: Instant,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.engine.changes.release();
        let counters = &self.engine.counters;
        counters.snapshot_holds.add(1);
        counters.snapshot_hold_us.add(self.since.elapsed().as_micros() as u64);
    }
}

impl Engine {
    /// The protocol's steps.
    pub(super) fn take_snapshot(self: &Arc<Engine>, name: &str) -> Result<SnapshotInfo> {
        self.store.check_writable()?;
        if name == BASE_NAME {
            return Err(Error::invalid(format!("the name {name:?} is for quire receive")));
        }
        self.check_new_name(name)?;
        drop(self.not_frozen("a snapshot can be taken")?);
        self.sync_ahead()?;
        self.write_ahead()?;
        let _not_frozen = self.not_frozen("a snapshot can be taken")?;
        let since = Instant::now();
        if !self.changes.hold() {
            return Err(Error::new(ErrorKind::Shutdown, "the volume is being closed"));
        }
        let held = Held { engine: self, since };
        self.write_back()?;
        let now = self.store.options.clock.now();
        self.take_snapshot_and(name, now, Cost::new(0, 0), &mut |_, _| (), Some(held))
    }

    /// The second half of step 1.
    fn write_ahead(self: &Arc<Engine>) -> Result<()> {
        self.write_back()?;
        let mut state = self.store.checkpoint.lock();
        self.store.write_image(&mut state, 0, Pace::Fast)?;
        let sequence = state.unpublished.as_ref().expect("it was just written").sequence;
        self.store.write_homes_up_to(sequence)?;
        // Else step 5 would do that, with its flushes.
        if self.store.tree.may_replace_unpublished() { Ok(()) } else { self.store.publish_image(&mut state) }
    }

    /// Steps 4 to 7. Nobody else changes the volume, as long as `held` lives, and nothing is dirty. With the
    /// snapshot, `change` makes changes of its own, which cost `more`.
    pub(crate) fn take_snapshot_and(
        &self,
        name: &str,
        created: Timestamp,
        more: Cost,
        change: &mut dyn FnMut(u32, &mut Transaction<'_>),
        held: Option<Held<'_>>,
    ) -> Result<SnapshotInfo> {
        self.check_new_name(name)?;
        let frees = self.store.frees.whole();
        let transaction = self.store.begin(Cost::new(1 + more.keys, VALUE_MAX + more.bytes))?;
        let mut state = self.store.checkpoint.lock();
        self.store.write_image_instead(&mut state, 0, Pace::Fast)?;
        let superblock = state.unpublished.clone().expect("it was just written");
        self.store.write_homes_up_to(superblock.sequence)?;
        let kept = self.keep_checkpoint(name, created, superblock, transaction, change);
        self.cache.forget_homes();
        drop((frees, held));
        self.store.publish_image(&mut state)?;
        let (taken, seq) = kept?;
        drop(state);
        self.store.force(seq)?;
        Ok(taken)
    }

    /// While the guard lives nobody freezes the volume, takes a snapshot, or makes the volume larger. Errors:
    /// `Busy` while it is frozen, with what has to wait.
    pub(crate) fn not_frozen(&self, what: &str) -> Result<MutexGuard<'_, Freezes>> {
        let freezes = self.frozen.lock();
        match freezes.in_force {
            true => Err(Error::new(ErrorKind::Busy, format!("the volume is frozen: {what} after the thaw"))),
            false => Ok(freezes),
        }
    }

    fn check_new_name(&self, name: &str) -> Result<()> {
        self.check_all_finished()?;
        Snapshot::check_new_name(name)?;
        match table(&self.store.tree)?.into_iter().find(|(_, other)| other.name == name) {
            Some((_, taken)) => {
                let state = if taken.deleting.is_some() { "is still being deleted" } else { "exists" };
                Err(Error::new(ErrorKind::Exists, format!("a snapshot {name:?} {state}")))
            }
            None => Ok(()),
        }
    }

    /// Appends the key of a snapshot: the checkpoint that was written last, which may have to be published
    /// yet.
    fn keep_checkpoint(
        &self,
        name: &str,
        created: Timestamp,
        mut superblock: Superblock,
        mut transaction: Transaction<'_>,
        change: &mut dyn FnMut(u32, &mut Transaction<'_>),
    ) -> Result<(SnapshotInfo, Seq)> {
        let number = self.store.snapshots.epoch().checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "no volume takes more than 2^32 - 1 snapshots")
        })?;
        let checkpoint = superblock.checkpoint;
        // The volume's, not the snapshot's.
        (superblock.scrub, superblock.changed_uuid) = (None, [0; 16]);
        let snapshot = Snapshot { name: name.into(), created, deleting: None, superblock };
        self.store.tree.keep_newest(number, checkpoint)?;
        let committed = self.store.keep_whole_reserve().and_then(|()| {
            transaction.put(Key::snapshot(number), &snapshot.encode());
            change(number, &mut transaction);
            transaction.commit_alone(Depends::Written(self.store.device.mark()))
        });
        match committed {
            Ok(seq) => Ok((SnapshotInfo::of(number, &snapshot), seq)),
            Err(error) => {
                self.store.tree.let_go(number, checkpoint + 1);
                Err(error)
            }
        }
    }
}
