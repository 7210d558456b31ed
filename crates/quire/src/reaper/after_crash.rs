//! What a crash left: orphans, for the reaper, and logged operations, which are finished before anybody else
//! uses the volume.
//!
//! Neighbours: [`super::recovered`] is the list of orphans; [`crate::recovery`] calls this.

use crate::engine::Engine;
use crate::inode::Inode;
use crate::store::orphan_slots::OrphanState;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::{ErrorKind, InodeNo, Result};
use quire_format::key::Key;
use quire_format::logged::LoggedOp;
use std::ops::ControlFlow;

impl Engine {
    /// Lists what replay found without a name, for the reaper. Before the volume's threads start.
    pub(crate) fn list_orphans(self: &Arc<Engine>) -> Result<()> {
        let slots =
            self.store.orphans.applied().into_iter().map(|(slot, number)| (number, OrphanState::Slot(slot)));
        let mut found: Vec<(InodeNo, OrphanState)> = slots.collect();
        // No inode has the number 0: a key that says so can only be forged, and is left to fsck.
        self.store.tree.scan(Key::orphan(InodeNo(1)), Key::orphan(InodeNo(u64::MAX)), &mut |key, _| {
            found.push((InodeNo(key.offset), OrphanState::Key));
            ControlFlow::Continue(())
        })?;
        // What a logged operation was finished on is in the table, and queued.
        found.retain(|(number, _)| self.inodes.peek(*number).is_none());
        if !found.is_empty() {
            tracing::info!(orphans = found.len(), "files without a name that a crash left will be freed");
        }
        self.reaper.list(found);
        Ok(())
    }

    /// Queues the next orphan of a crash. False if there was none.
    pub(super) fn adopt_one(self: &Arc<Engine>) -> bool {
        if self.store.failure().is_some() {
            return false;
        }
        let Some(recovered) = self.reaper.take_recovered() else { return false };
        if let Err(error) = self.adopt_orphan(recovered.number, recovered.state) {
            // The slot stays: the next mount takes it up.
            tracing::warn!(%error, inode = %recovered.number, "an orphan that a crash left could not be freed");
        }
        drop(recovered);
        self.reaper.tell_drains();
        true
    }

    fn adopt_orphan(self: &Arc<Engine>, number: InodeNo, state: OrphanState) -> Result<()> {
        match self.orphan_inode(number, state)? {
            // Leaving it is what queues it.
            Some(inode) if inode.meta().record.nlink == 0 => drop(inode),
            Some(inode) => {
                tracing::warn!(inode = %number, "an orphan slot names an inode with links; the slot is released");
                self.clear_orphan(&inode, state)?;
            }
            None => {
                tracing::warn!(inode = %number, "an orphan slot names an inode that does not exist; it is released");
                let mut transaction = self.store.begin(Cost::new(2, 64).critical())?;
                match state {
                    OrphanState::Slot(slot) => transaction.orphan_clear(Some(slot), number),
                    _ => transaction.orphan_clear(None, number),
                }
                transaction.commit(Depends::Nothing)?;
            }
        }
        Ok(())
    }

    pub(super) fn clear_orphan(&self, inode: &Inode, state: OrphanState) -> Result<()> {
        let mut transaction = self.store.begin(Cost::new(2, 64).critical())?;
        transaction.warm_orphan(inode.number, state)?;
        let mut meta = inode.meta();
        match state {
            OrphanState::Slot(slot) => transaction.orphan_clear(Some(slot), inode.number),
            _ => transaction.orphan_clear(None, inode.number),
        }
        transaction.commit(Depends::Nothing)?;
        meta.orphan = OrphanState::Named;
        Ok(())
    }

    /// Runs the rest of every logged operation that a crash cut off.
    pub(crate) fn finish_logged_operations(self: &Arc<Engine>) -> Result<()> {
        let mut pending = Vec::new();
        let mut broken = Ok(());
        self.store.tree.scan(
            Key::logged(0),
            Key::logged(u64::MAX),
            &mut |key, value| match LoggedOp::decode(value) {
                Ok(operation) => {
                    pending.push((key.offset, operation));
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    broken = Err(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        broken?;
        for (id, mut operation) in pending {
            tracing::info!(?operation, "finishing an operation that a crash cut off");
            let inode = match self.inode(operation.inode) {
                Ok(inode) => Some(inode),
                Err(error) if error.kind() == ErrorKind::Stale => {
                    let slots = self.store.orphans.applied();
                    let slot = slots.iter().find(|(_, number)| *number == operation.inode);
                    let state = slot.map_or(OrphanState::Key, |(slot, _)| OrphanState::Slot(*slot));
                    self.orphan_inode(operation.inode, state)?
                }
                Err(error) => return Err(error),
            };
            match inode {
                Some(inode) => self.run_logged(&inode, id, &mut operation)?,
                None => {
                    let mut transaction = self.store.begin(Cost::new(1, 0).critical())?;
                    transaction.delete(Key::logged(id));
                    transaction.commit(Depends::Nothing)?;
                }
            }
        }
        Ok(())
    }
}
