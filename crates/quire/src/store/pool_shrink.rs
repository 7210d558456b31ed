//! Giving chunks of the metadata pool back to files, once the tree has become small again.
//!
//! Protocol, one pass at a time, of the background work or of an operation that found no space:
//! 1. While no checkpoint is written, retire chunks ([`quire_tree::Tree::pool_retire`]): nothing more is put
//!    there. The pool keeps what it began with, what it is widened to by itself, and much more than the tree
//!    needs now; so it does not grow again at once.
//! 2. Write anew what lies in them: nodes as for healing, orphan blocks, and with these the manifest.
//! 3. Write two checkpoints. Then neither slot needs a block of the chunks, and both list them as empty.
//! 4. Journal that each is the pool's no longer. Its blocks are free for files when the record is durable, as
//!    those of any transaction (J2). What the pool owes to accepted data is paid from them first: else the
//!    volume would fill up again, and the pool take another chunk from what is kept for that data.
//!
//! A replay may begin at either of these checkpoints, or behind. It meets a chunk that is empty, and takes it
//! out before it meets the extents that have its blocks.
//!
//! Invariants: a chunk goes only while there is no snapshot. To one, the chunk's blocks were in use when it
//! was taken; were they a file's afterwards, and a later snapshot's, then the deletion of the first would
//! free them, since a block that is used in two snapshots is used in between ([`crate::snapshots::sweep`]).
//! What is retired is so in memory alone: a crash forgets it.
//!
//! Neighbours: [`super::heal`] rewrites nodes, [`super::pool_promise`] grows the pool.

use super::Store;
use super::transaction::{Cost, Depends};
use quire_base::Result;
use quire_base::sync::atomic::Ordering;
use quire_format::extent::{Run, total_blocks};
use quire_format::key::{Key, VALUE_MAX};

/// Chunks that one pass gives back at most.
const CHUNKS_MAX: usize = 16;

/// Chunks that are retired until this is dropped, or until they are the pool's no longer.
struct Retired<'a> {
    store: &'a Store,
    chunks: Vec<Run>,
}

impl Drop for Retired<'_> {
    fn drop(&mut self) {
        self.chunks.iter().for_each(|chunk| self.store.tree.pool_unretire(chunk.start));
    }
}

impl Store {
    /// Gives chunks back that the pool does not need any more.
    pub(crate) fn shrink_pool(&self) -> Result<()> {
        let least = self.widened_pool_max().max(total_blocks(&self.superblock.pool_areas()));
        let is_small = || self.tree.pool_blocks() <= least;
        if self.read_only || is_small() || !self.snapshots.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.shrinking.lock();
        if is_small() {
            return Ok(());
        }
        let retired = self.retire_chunks(least);
        if retired.chunks.is_empty() {
            return Ok(());
        }
        self.write_anew(&retired.chunks)?;
        self.rewrite_pool.store(true, Ordering::Release);
        self.checkpoint_now()?;
        self.checkpoint_now()?;
        let empty = retired.chunks.iter().filter(|chunk| self.tree.pool_is_unused(chunk.start));
        empty.copied().try_for_each(|chunk| self.give_back_chunk(chunk))?;
        self.force_frees()?;
        self.pay_pool_debt();
        Ok(())
    }

    /// Step 1.
    fn retire_chunks(&self, least: u64) -> Retired<'_> {
        let _no_checkpoint = self.checkpoint.lock();
        let areas = self.superblock.pool_areas();
        let has_grown = |chunk: Run| !areas.iter().any(|area| area.contains(chunk.start));
        let next = || self.tree.pool_retire(&has_grown, least);
        Retired { store: self, chunks: std::iter::from_fn(next).take(CHUNKS_MAX).collect() }
    }

    /// Step 2, for nodes.
    fn write_anew(&self, chunks: &[Run]) -> Result<()> {
        let mut from = Some(Key::MIN);
        while let Some(key) = from {
            let (nodes, next) = self.tree.nodes_in(chunks, key)?;
            nodes.iter().try_for_each(|node| self.rewrite(node).map(drop))?;
            from = next;
        }
        Ok(())
    }

    /// Step 4.
    fn give_back_chunk(&self, chunk: Run) -> Result<()> {
        let _frees = self.frees.shared();
        if self.snapshots.is_empty() {
            let mut transaction = self.begin(Cost::new(2, 2 * VALUE_MAX).critical())?;
            transaction.shrink_pool(chunk);
            transaction.commit(Depends::Nothing)?;
        }
        Ok(())
    }
}
