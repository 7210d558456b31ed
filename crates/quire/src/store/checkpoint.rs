//! Checkpoints: the tree published as of one point of the journal, by one of two alternating superblocks.
//!
//! Protocol, one at a time: take the barrier whole just long enough to close the journal's open block (which
//! gives S), freeze the tree and copy the changed orphan blocks; release it; write the frozen nodes to fresh
//! pool blocks, and home what records up to S say of blocks, each when its record is durable (J8); make the
//! journal durable up to S; flush; write the superblock into the older slot; flush. Only then may journal
//! space before the *older* slot's S and pool blocks that neither slot needs be used again (J2).
//!
//! A home that the device refuses (a sparse image on a full disk, a bad block) ends nothing: its content is
//! durable in the journal. The checkpoint waits with everything else done, and the next attempt goes on with
//! it. Until then the journal fills; when it is full, changes fail with the device's error. Freeing the block
//! helps as well. Errors of the journal, the tree and the superblock end all changes (J7).
//!
//! Invariants: between S and the last apply of any transaction up to S nobody can take the barrier whole, so
//! the frozen tree is exactly the state at S. A checkpoint needs no data writeback and no lock but its own,
//! so it can always be waited for by a thread without a reservation (J9).
//!
//! A checkpoint is a force and a flush, and says so to those that wait for one ([`Store::forced`]).
//!
//! A checkpoint that nobody waits for is written gently, with pauses, so that what it writes does not lie
//! before others' flushes all at once. It hurries as soon as somebody waits for its lock or for room, or when
//! either becomes likely.
//!
//! Neighbours: [`super::transaction`] waits for checkpoints when the journal or the dirty nodes run short;
//! [`crate::recovery`] writes one when it has replayed something.

use super::Store;
use super::superblocks::publish;
use quire_base::sync::atomic::{AtomicUsize, Ordering};
use quire_base::sync::{Mutex, MutexGuard};
use quire_base::{Result, Seq};
use quire_device::HomesError;
use quire_format::superblock::{FLAG_CLEAN, FLAG_ERRORS, Superblock};
use quire_journal::Journal;
use quire_tree::{CheckpointImage, CheckpointStamp};

/// What the superblock slots hold.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointState {
    /// Number of the newest durable checkpoint.
    pub(crate) number: u64,
    /// The slot that it is in.
    pub(crate) slot: usize,
    /// Its S.
    pub(crate) sequence: Seq,
    /// The superblock of a checkpoint that is written, but for homes up to its S, and not yet published.
    pub(crate) unpublished: Option<Superblock>,
}

/// The lock of checkpoints, of which one is written at a time. It knows whether somebody waits for it.
pub(crate) struct CheckpointLock {
    state: Mutex<CheckpointState>,
    waiting: AtomicUsize,
}

impl CheckpointLock {
    pub(super) fn new(state: CheckpointState) -> CheckpointLock {
        CheckpointLock { state: Mutex::new(state), waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CheckpointState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// How a checkpoint is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Fast,
    /// With pauses, as long as nobody waits.
    Gentle,
}

impl CheckpointState {
    pub(crate) fn published(number: u64, slot: usize, sequence: Seq) -> CheckpointState {
        CheckpointState { number, slot, sequence, unpublished: None }
    }

    /// The number of the first checkpoint of which nothing can have been written yet.
    pub(crate) fn next(&self) -> u64 {
        self.number + 1 + u64::from(self.unpublished.is_some())
    }
}

impl Store {
    /// Makes sure that a checkpoint with a number beyond `seen` is durable.
    pub(crate) fn checkpoint_beyond(&self, seen: u64) -> Result<()> {
        let mut state = self.checkpoint.lock();
        if state.number > seen {
            return Ok(());
        }
        self.write_checkpoint(&mut state, 0)
    }

    /// Writes a checkpoint now.
    pub(crate) fn checkpoint_now(&self) -> Result<()> {
        let mut state = self.checkpoint.lock();
        self.write_checkpoint(&mut state, 0)
    }

    /// Writes a checkpoint that somebody has asked for ahead of time, if it is still needed. Checkpoints
    /// become rarer with a larger pool, so it widens that first.
    pub(crate) fn background_checkpoint(&self) -> Result<()> {
        self.widen_pool()?;
        let mut state = self.checkpoint.lock();
        // Changes ask again and again while one is being written, and that one is what they need.
        match self.wants_checkpoint(self.journal()?) {
            true => {
                self.write_image(&mut state, 0, Pace::Gentle).and_then(|()| self.publish_image(&mut state))
            }
            false => Ok(()),
        }
    }

    /// Whether a checkpoint should start before somebody must wait for it: replay would have a quarter of the
    /// ring to read, or much of the tree is dirty.
    pub(crate) fn wants_checkpoint(&self, journal: &Journal) -> bool {
        let usage = journal.usage();
        let is_filling = usage.head.0 - usage.checkpoint.0 > usage.ring_bytes / 4;
        is_filling || self.tree.wants_checkpoint()
    }

    /// Writes the last checkpoint of a volume that is being closed, and says so in both slots' flags.
    pub(crate) fn checkpoint_clean(&self) -> Result<()> {
        let mut state = self.checkpoint.lock();
        self.write_checkpoint(&mut state, 0)?;
        // The second names the same tree, so that either slot alone tells of a clean volume.
        self.write_checkpoint(&mut state, FLAG_CLEAN)?;
        self.write_checkpoint(&mut state, FLAG_CLEAN)?;
        // The second copy of the last superblock.
        self.device.flush()
    }

    /// Writes a checkpoint and publishes it.
    ///
    /// Errors: of the device, if it refuses a home; all others end changes.
    pub(crate) fn write_checkpoint(&self, state: &mut CheckpointState, flags: u32) -> Result<()> {
        self.write_image(state, flags, Pace::Fast)?;
        self.publish_image(state)
    }

    /// Writes everything of a checkpoint but homes and its superblock, which it keeps, and flushes nothing.
    /// To be followed by [`Store::publish_image`], under the same lock.
    pub(crate) fn write_image(&self, state: &mut CheckpointState, flags: u32, pace: Pace) -> Result<()> {
        // Only one at a time waits for its homes.
        self.publish_image(state)?;
        self.write_image_instead(state, flags, pace)
    }

    /// As [`Store::write_image`], but takes the place of an image that is not published yet, if the pool has
    /// room for both. It gets that one's number: what either of the two frees stays until the slot of the
    /// checkpoint before them is overwritten.
    pub(crate) fn write_image_instead(
        &self,
        state: &mut CheckpointState,
        flags: u32,
        pace: Pace,
    ) -> Result<()> {
        if !self.tree.may_replace_unpublished() {
            self.publish_image(state)?;
        }
        let image =
            self.freeze_and_write(state.number + 1, flags, pace).map_err(|error| self.shut_down(&error))?;
        state.unpublished = Some(image);
        Ok(())
    }

    fn freeze_and_write(&self, number: u64, flags: u32, pace: Pace) -> Result<Superblock> {
        let journal = self.journal()?.clone();
        let barrier = self.barrier.whole();
        let sequence = journal.close_block();
        let orphan_blocks = self.orphans.take_changed(self.rewrite_pool.swap(false, Ordering::AcqRel))?;
        let frozen = self.tree.freeze(orphan_blocks);
        let mut superblock = self.superblock_now();
        superblock.free_blocks = self.applied_free_blocks.get();
        superblock.inode_count = self.applied_inodes.get();
        superblock.next_inode = self.inode_numbers.end();
        superblock.epoch = self.snapshots.epoch();
        superblock.scrub = self.last_scrub.lock().clone();
        drop(barrier);

        let stamp = CheckpointStamp { checkpoint: number, incarnation: superblock.incarnation };
        let may_rest = || pace == Pace::Gentle && self.may_rest(&journal);
        let image = self.tree.write_frozen_gently(frozen, stamp, &may_rest)?;
        superblock.checkpoint = number;
        superblock.sequence = sequence;
        superblock.flags = (superblock.flags & FLAG_ERRORS) | flags;
        superblock.checkpointed = self.options.clock.now();
        name_image(&mut superblock, &image);
        Ok(superblock)
    }

    /// Whether a checkpoint that is being written may take its time.
    fn may_rest(&self, journal: &Journal) -> bool {
        let usage = journal.usage();
        let has_time =
            usage.head.0 - usage.checkpoint.0 < usage.ring_bytes / 2 && !self.tree.wants_checkpoint();
        let is_awaited =
            self.checkpoint.is_awaited() || !self.room.is_empty() || self.committer.is_wanted_elsewhere();
        self.options.threads && has_time && !is_awaited
    }

    /// Makes a checkpoint that was written the newest one, if there is one.
    pub(crate) fn publish_image(&self, state: &mut CheckpointState) -> Result<()> {
        let Some(superblock) = &state.unpublished else { return Ok(()) };
        self.write_homes_up_to(superblock.sequence)?;
        let superblock = state.unpublished.take().expect("it was there");
        self.publish(state, superblock).map_err(|error| self.shut_down(&error))
    }

    /// Writes the homes of everything that records up to `upto` have.
    ///
    /// Errors: of the device, if it refuses one; those of the journal end changes.
    pub(crate) fn write_homes_up_to(&self, upto: Seq) -> Result<()> {
        let journal = self.journal()?;
        let homes = self.device.recorded().write_home(&self.device, upto, &mut |seq| journal.force(seq));
        homes.map_err(|error| match error {
            HomesError::Device(error) => error,
            HomesError::Journal(error) => self.shut_down(&error),
        })
    }

    fn publish(&self, state: &mut CheckpointState, superblock: Superblock) -> Result<()> {
        let journal = self.journal()?.clone();
        let (number, sequence) = (superblock.checkpoint, superblock.sequence);
        journal.force(sequence)?;
        self.device.flush_to(self.device.mark())?;
        let slot = 1 - state.slot;
        publish(&self.device, &superblock, slot)?;

        let older = state.sequence;
        *state = CheckpointState::published(number, slot, sequence);
        self.checkpoint_number.store(number, Ordering::Release);
        journal.checkpointed(sequence, older);
        self.device.recorded().passed(older);
        self.tree.published(number);
        self.settle_frees(&journal);
        self.checkpoint_counts_reserve()?;
        self.counters.checkpoints.add(1);
        self.room.notify();
        self.forced();
        Ok(())
    }
}

/// Puts what a checkpoint wrote into the superblock that will name it.
pub(crate) fn name_image(superblock: &mut Superblock, image: &CheckpointImage) {
    superblock.set_roots(image.roots);
    superblock.manifest = image.manifest;
}
