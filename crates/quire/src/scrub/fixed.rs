//! Looking at what lies at places of its own: superblocks, the pool's manifest, orphan blocks, the journal.
//!
//! Neighbours: [`super`] looks at the nodes of the tree, [`super::kept`] at what snapshots have.

use super::ScrubReport;
use crate::store::Store;
use crate::store::checkpoint::CheckpointState;
use crate::store::superblocks;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::journal::PAYLOAD_BYTES;
use quire_format::superblock::Superblock;
use quire_journal::{ReplayConfig, replay_readable};
use quire_tree::PoolState;
use quire_tree::copies::Look;

/// What a look at a manifest and the orphan blocks has found.
#[derive(Default)]
pub(super) struct PoolLook {
    /// Bytes read, all copies counted.
    pub(super) bytes: u64,
    /// A copy is bad where the other one is good.
    pub(super) is_damaged: bool,
    /// What has no good copy, and why.
    pub(super) lost: Vec<Error>,
}

/// Reads the manifest and the orphan blocks that a superblock names.
pub(super) fn look_at_pool(device: &Device, superblock: &Superblock, look: Look) -> PoolLook {
    let volume = superblock.volume_id();
    let loaded = PoolState::load_with(device, volume, superblock.manifest, superblock.block_count, look);
    let mut pool = match loaded {
        Ok(pool) => pool,
        Err(error) => {
            tracing::warn!(%error, "the metadata pool's manifest is bad");
            return PoolLook { lost: vec![error], ..PoolLook::default() };
        }
    };
    let orphan_blocks = 0..superblock.orphan_blocks;
    let lost = orphan_blocks.filter_map(|index| pool.load_orphan_block(device, index, look).err()).collect();
    let pages = u64::from(superblock.manifest.count) + u64::from(superblock.orphan_blocks);
    PoolLook { bytes: pages * pool.copies() * BLOCK_SIZE as u64, is_damaged: pool.is_damaged(), lost }
}

impl Store {
    /// Looks at what lies at places of its own; keeps checkpoints out meanwhile. What is bad is written anew
    /// from memory. A snapshot has nothing there.
    pub(super) fn scrub_fixed(&self, report: &mut ScrubReport) -> Result<()> {
        if self.options.snapshot.is_some() {
            return Ok(());
        }
        let state = self.checkpoint.lock();
        let slots = superblocks::read(&self.device);
        report.metadata_bytes += 4 * BLOCK_SIZE as u64;
        let copies = slots.iter().flat_map(|slot| [&slot.near, &slot.far]);
        let errors = copies.filter_map(|copy| copy.as_ref().err());
        let mut bad =
            errors.inspect(|error| tracing::warn!(%error, "a copy of a superblock is bad")).count() as u64;
        // One without a good copy has been counted, and is replaced.
        if let Ok(superblock) = slots[state.slot].newest() {
            let pool = look_at_pool(&self.device, &superblock, Look::AtAll);
            report.metadata_bytes += pool.bytes;
            bad += u64::from(pool.is_damaged) + pool.lost.len() as u64;
            if self.read_only {
                // Memory has it, and nothing will write it.
                report.lost.extend(pool.lost.iter().map(ToString::to_string));
            }
        }
        let (damaged, unreadable) = self.look_at_journal(&state, report);
        bad += u64::from(damaged);
        drop(state);
        report.damaged += bad + unreadable.len() as u64;
        if self.read_only {
            return Ok(());
        }
        if bad > 0 {
            self.rewrite_pool.store(true, Ordering::Release);
        }
        if bad > 0 || !unreadable.is_empty() {
            // Both slots.
            self.checkpoint_now()?;
            self.checkpoint_now()?;
        }
        report.healed += bad + self.renew_journal(&unreadable)?;
        if bad == 0 {
            return Ok(());
        }
        tracing::info!(bad, "damaged superblocks, pool pages or journal blocks are replaced");
        Ok(())
    }

    /// Reads the records behind the newest checkpoint, as a recovery would: whether they are damaged, and the
    /// blocks of the journal that cannot be read.
    fn look_at_journal(&self, state: &CheckpointState, report: &mut ScrubReport) -> (bool, Vec<BlockNo>) {
        let Some(journal) = &self.journal else { return (false, Vec::new()) };
        let durable = journal.durable();
        let superblock = &self.superblock;
        // Where it ends is known, and no witness is needed.
        let closed = durable <= state.sequence;
        let config = ReplayConfig { from: state.sequence, closed, ..ReplayConfig::of(superblock) };
        report.metadata_bytes += durable.0.saturating_sub(state.sequence.0);
        let read = replay_readable(&self.device, &config, &mut |_, _| Ok(()), &mut |_| ());
        match read {
            Ok(read) if read.end.end >= durable => (false, read.end.unreadable),
            Ok(read) => {
                let end = read.end.end.0;
                let why = read.damage.map(|error| error.to_string());
                tracing::warn!(end, durable = durable.0, why, "the journal is damaged before its end");
                (true, read.end.unreadable)
            }
            Err(error) => {
                tracing::warn!(%error, "the journal is damaged");
                (true, Vec::new())
            }
        }
    }

    /// Writes zeros over blocks of the journal that cannot be read, where neither superblock needs them: a
    /// crash would be refused if the journal ended at one. Keeps all changes out for as long as that takes;
    /// the journal writes nothing meanwhile. A block that cannot be written either is left to the journal.
    fn renew_journal(&self, unreadable: &[BlockNo]) -> Result<u64> {
        let (false, Some(journal)) = (unreadable.is_empty(), &self.journal) else { return Ok(0) };
        let _state = self.checkpoint.lock();
        let _barrier = self.barrier.whole();
        let head = journal.close_block();
        journal.force(head)?;
        let (tail, ring) = (journal.usage().tail, self.superblock.journal_blocks);
        let needed = |at: &BlockNo| {
            let index = at.0 - self.superblock.journal_start.0;
            let first = tail.0 / PAYLOAD_BYTES as u64;
            let behind = (index + ring - first % ring) % ring;
            behind < (head.0 - tail.0) / PAYLOAD_BYTES as u64
        };
        let mut renewed = 0;
        for at in unreadable.iter().filter(|at| !needed(at)) {
            match self.device.mend(IoClass::Journal, *at, &AlignedBuf::zeroed(BLOCK_SIZE)) {
                Ok(()) => {
                    tracing::warn!(%at, "an unused block of the journal could not be read; it is written anew");
                    renewed += 1;
                }
                Err(error) => {
                    tracing::warn!(%at, %error, "an unused block of the journal can neither be read nor written");
                }
            }
        }
        Ok(renewed)
    }
}
