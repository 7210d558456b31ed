//! Healing while the volume is in use: metadata of which one copy was bad is written again.
//!
//! The tree notes what its loads find ([`quire_tree::heal`]). The committer, or a caller of the background
//! work instead, marks these nodes under a reservation and the barrier, and writes a checkpoint. Metadata
//! that is read only at the opening (superblocks, the pool's manifest, orphan blocks) is written again by the
//! opening itself ([`crate::recovery`]). What snapshots have is mended by a scrub ([`crate::scrub`]).
//!
//! Neighbours: [`super::transaction`] reserves, [`super::checkpoint`] writes.

use super::Store;
use super::transaction::Cost;
use quire_base::Result;
use quire_tree::heal::Placed;

impl Store {
    /// Writes the nodes anew that were found damaged. What fails is tried again with the next call.
    pub(crate) fn heal(&self) -> Result<()> {
        let damaged = self.tree.take_damaged();
        if damaged.is_empty() || self.read_only {
            return Ok(());
        }
        let mut healed = 0_u64;
        for (done, node) in damaged.iter().enumerate() {
            match self.rewrite(node) {
                Ok(rewritten) => {
                    self.tree.count_healed(rewritten.into());
                    healed += u64::from(rewritten);
                }
                Err(error) => {
                    self.tree.put_back_damaged(damaged[done..].iter().copied());
                    return Err(error);
                }
            }
        }
        if healed > 0 {
            self.checkpoint_now()?;
            tracing::info!(nodes = healed, "metadata of which one copy was bad has been written anew");
        }
        Ok(())
    }

    /// Has the next checkpoint write a node to another place; false if the tree does not name it there any
    /// more.
    pub(crate) fn rewrite(&self, node: &Placed) -> Result<bool> {
        let transaction = self.begin(Cost::new(1, 0).critical())?;
        loop {
            self.tree.prepare_rewrite(transaction.ticket(), node)?;
            self.check_writable()?;
            let _barrier = self.barrier.shared();
            if let Some(rewritten) = self.tree.rewrite(node) {
                return Ok(rewritten);
            }
        }
    }
}
