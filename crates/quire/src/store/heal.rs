//! Healing while the volume is in use: metadata of which one copy was bad is written again.
//!
//! The tree notes what its loads find ([`quire_tree::heal`]). The committer, or a caller of the background
//! work instead, marks these nodes under a reservation and the barrier, and writes a checkpoint. Metadata
//! that is read only at the opening (superblocks, the pool's manifest, orphan blocks) is written again by the
//! opening itself ([`crate::recovery`]). What snapshots have is mended by a scrub ([`crate::scrub`]).
//!
//! Neighbours: [`super::transaction`] reserves, [`super::checkpoint`] writes.

use super::Store;
use super::transaction::{Cost, Transaction};
use quire_base::{Error, ErrorKind, Result};
use quire_tree::heal::Placed;

impl Store {
    /// Writes the nodes anew that were found damaged; says how many, and gives an error for each that cannot
    /// be read any more. Its next load finds such a node again. Whatever else fails is tried again with the
    /// next call.
    pub(crate) fn heal(&self) -> Result<(u64, Vec<Error>)> {
        let damaged = self.tree.take_damaged();
        let (mut healed, mut lost) = (0_u64, Vec::new());
        if damaged.is_empty() || self.read_only {
            return Ok((healed, lost));
        }
        for (done, node) in damaged.iter().enumerate() {
            let transaction = self.begin(Cost::new(1, 0).critical());
            match transaction.map(|transaction| self.rewrite_in(&transaction, node)) {
                Ok(Ok(rewritten)) => {
                    self.tree.count_healed(rewritten.into());
                    healed += u64::from(rewritten);
                }
                Ok(Err(error))
                    if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
                        && self.failure().is_none() =>
                {
                    tracing::error!(%error, "a node of which one copy was bad cannot be read any more");
                    lost.push(error);
                }
                Ok(Err(error)) | Err(error) => {
                    self.tree.put_back_damaged(damaged[done..].iter().copied());
                    return Err(error);
                }
            }
        }
        if healed > 0 {
            self.checkpoint_now()?;
            tracing::info!(nodes = healed, "metadata of which one copy was bad has been written anew");
        }
        Ok((healed, lost))
    }

    /// Has the next checkpoint write a node to another place; false if the tree does not name it there any
    /// more.
    pub(crate) fn rewrite(&self, node: &Placed) -> Result<bool> {
        self.rewrite_in(&self.begin(Cost::new(1, 0).critical())?, node)
    }

    /// The same, with a reservation for it. Errors: of reading the node; of a volume that takes no changes.
    fn rewrite_in(&self, transaction: &Transaction<'_>, node: &Placed) -> Result<bool> {
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
