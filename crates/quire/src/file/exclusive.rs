//! Having a file to oneself: truncate, every fallocate, and writes longer than a batch.
//!
//! Protocol: the gate, exclusively; then the exclusive sequence odd, for the whole of the operation; then the
//! size lock. While the sequence is odd the size on disk stays where it is ([`Engine::front`]), though data
//! goes on being written back: by the operation, by an fsync, in the background. So when it is even again,
//! and before the gate opens, the size on disk follows what has been written: no such operation keeps it
//! behind, however many come one after the other.
//!
//! Neighbours: [`super::truncate`], [`super::fallocate`], [`super::shift`], [`super::buffered`];
//! [`crate::size_sequence`] has the sequence.

use crate::dirty_inodes::Owes;
use crate::engine::Engine;
use crate::gate::{GateState, Permit};
use crate::inode::Inode;
use crate::size_sequence::OddSequence;
use quire_base::Result;

impl Engine {
    /// Runs an operation that has the file to itself, and moves no blocks that a lease may name.
    pub(crate) fn exclusively<T>(&self, inode: &Inode, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        self.run_alone(inode.gate.enter(GateState::Exclusive), inode, operation)
    }

    /// As [`Engine::exclusively`], with the gate already entered.
    pub(crate) fn run_alone<T>(
        &self,
        permit: Permit<'_>,
        inode: &Inode,
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _permit = permit;
        let outcome = {
            let _odd = OddSequence::new(&inode.size_sequence);
            // Before anything is dropped: a thread that makes the volume durable waits for this operation.
            inode.mark_dirty(Owes::Due);
            let _size = inode.size_lock.lock();
            operation()
        };
        // The operation is done, or has failed, whatever comes of this: who needs the size on disk tries
        // again.
        if let Err(error) = self.journal_attributes(inode, true) {
            tracing::debug!(%error, inode = %inode.number, "the size on disk stays behind for now");
        }
        outcome
    }
}
