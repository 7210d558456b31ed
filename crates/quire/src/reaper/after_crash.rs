//! What a crash left: orphans, for the reaper, and logged operations, which are finished before anybody else
//! uses the volume.
//!
//! A full volume may lack the room to finish one. Snapshots have to go then, and for that the volume must be
//! open. So the operation stays in the tree, for the next opening, and its file is kept from everybody until
//! then: it may be half moved, and what was written to it now would be moved with the rest. No snapshot is
//! taken meanwhile, since it would have the file so for ever.
//!
//! Neighbours: [`super::recovered`] is the list of orphans; [`crate::recovery`] calls this.

use crate::engine::Engine;
use crate::inode::Inode;
use crate::store::orphan_slots::OrphanState;
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
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
        let mut unfinished = Vec::new();
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
            let Some(inode) = inode else {
                self.forget_logged(id)?;
                continue;
            };
            match self.run_logged(&inode, id, &mut operation, None) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    tracing::warn!(
                        %error,
                        inode = %operation.inode,
                        "no room to finish an operation that a crash cut off: its file cannot be used until \
                         snapshots or files have been deleted and the volume is opened again"
                    );
                    let has_name = inode.meta().record.nlink > 0;
                    drop(inode);
                    if has_name {
                        self.inodes.remove(operation.inode);
                        unfinished.push(operation.inode);
                    } else {
                        // The reaper frees it, in whatever state.
                        self.forget_logged(id)?;
                    }
                }
                outcome => outcome?,
            }
        }
        self.set_unfinished(unfinished);
        Ok(())
    }

    fn forget_logged(&self, id: u64) -> Result<()> {
        let mut transaction = self.store.begin(Cost::new(1, 0).critical())?;
        transaction.delete(Key::logged(id));
        transaction.commit(Depends::Nothing).map(drop)
    }

    /// Keeps everybody from files that are shown half moved, on a volume that is opened read-only. What else
    /// may be half done shows nothing that was not the file's.
    pub(crate) fn hide_half_moved(&self) -> Result<()> {
        let mut unfinished = Vec::new();
        self.store.tree.scan(Key::logged(0), Key::logged(u64::MAX), &mut |_, value| {
            let moves = |kind| matches!(kind, LoggedKind::Collapse | LoggedKind::Insert);
            let operation = LoggedOp::decode(value).ok().filter(|operation| moves(operation.kind));
            unfinished.extend(operation.map(|operation| operation.inode));
            ControlFlow::Continue(())
        })?;
        self.set_unfinished(unfinished);
        Ok(())
    }

    fn set_unfinished(&self, inodes: Vec<InodeNo>) {
        self.unfinished.set(inodes).expect("a volume is opened once");
    }

    /// Errors: `Busy` if an operation on the inode is not finished.
    pub(crate) fn check_finished(&self, number: InodeNo) -> Result<()> {
        match self.unfinished.get().is_some_and(|unfinished| unfinished.contains(&number)) {
            true => Err(unfinished(number)),
            false => Ok(()),
        }
    }

    /// Errors: `Busy` if an operation on any inode is not finished.
    pub(crate) fn check_all_finished(&self) -> Result<()> {
        match self.unfinished.get().and_then(|unfinished| unfinished.first()) {
            Some(number) => Err(unfinished(*number)),
            None => Ok(()),
        }
    }
}

fn unfinished(number: InodeNo) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "inode {number} has an operation that a crash cut off, and the volume had no room to finish it: \
             delete snapshots or files, then open the volume again"
        ),
    )
}
