//! The areas of a volume, as a superblock names them.
//!
//! A new volume has journal, first pool chunks and data space one behind the other. When the journal is
//! enlarged, it moves: a region of the data space becomes the ring, and the old ring becomes free space. From
//! then on ([`INCOMPAT_JOURNAL_MOVED`]) the data space begins at [`JOURNAL_START`], and journal and first
//! pool chunks lie within it, at any place.
//!
//! Invariants: areas that a superblock names never overlap, and no file has blocks in those of metadata.
//!
//! Neighbours: [`super`] has the fields; `quire::reshape` moves the journal.

use super::{FAR_BLOCKS, JOURNAL_BLOCKS_MIN, JOURNAL_START, Superblock, check, contradiction};
use crate::extent::Run;
use quire_base::{BlockNo, Result};

/// Incompatible feature: the journal has been moved; see the module's documentation.
pub const INCOMPAT_JOURNAL_MOVED: u64 = 1 << 0;

impl Superblock {
    /// Whether journal and first pool chunks lie within the data space.
    pub fn journal_has_moved(&self) -> bool {
        self.feature_incompat & INCOMPAT_JOURNAL_MOVED != 0
    }

    /// The blocks of the journal.
    pub fn journal(&self) -> Run {
        Run::new(self.journal_start, self.journal_blocks)
    }

    /// What the metadata pool has for ever: its first chunks, and those made with the volume for second
    /// copies.
    pub fn pool_areas(&self) -> [Run; 2] {
        [Run::new(self.pool_start, self.pool_blocks), Run::new(self.mirror_start, self.mirror_blocks)]
    }

    /// Journal and first pool chunks, if they lie within the data space.
    pub fn kept_from_files(&self) -> impl Iterator<Item = Run> {
        let areas = [self.journal(), Run::new(self.pool_start, self.pool_blocks)];
        areas.into_iter().filter(|_| self.journal_has_moved())
    }

    /// The blocks of the data space that are not kept from files.
    pub fn data_blocks(&self) -> u64 {
        let kept: u64 = self.kept_from_files().map(|run| run.blocks).sum();
        self.data_end.0 - self.data_start.0 - kept
    }

    /// Whether a file may have the blocks of a run.
    pub fn may_hold_data(&self, run: Run) -> bool {
        self.may_hold_data_up_to(run, self.data_end)
    }

    /// As [`Superblock::may_hold_data`], of a volume that has grown: its data space has another end.
    pub fn may_hold_data_up_to(&self, run: Run, data_end: BlockNo) -> bool {
        run.start >= self.data_start
            && run.end() <= data_end
            && self.kept_from_files().all(|kept| are_apart(run, kept))
    }

    /// Checks the areas against the volume and one another; gives the first block that tree and pool may
    /// have.
    pub(super) fn check_areas(&self) -> Result<BlockNo> {
        let count = self.block_count;
        let moved = self.journal_has_moved();
        // An area within the volume; its end, for the next area to start behind.
        let area = |what: &str, from: u64, start: BlockNo, blocks: u64| -> Result<u64> {
            let end = start.0.checked_add(blocks).filter(|end| *end <= count && start.0 >= from);
            end.ok_or_else(|| {
                contradiction(format!("{what} of {blocks} blocks at {start}, in a volume of {count} blocks"))
            })
        };
        let journal_end = area("journal", JOURNAL_START.0, self.journal_start, self.journal_blocks)?;
        check(self.journal_blocks >= JOURNAL_BLOCKS_MIN, || {
            format!("journal of {} blocks", self.journal_blocks)
        })?;
        let pool_from = if moved { JOURNAL_START.0 } else { journal_end };
        let pool_end = area("metadata pool", pool_from, self.pool_start, self.pool_blocks)?;
        let data_blocks = self.data_end.0.saturating_sub(self.data_start.0);
        let data_from = if moved { JOURNAL_START.0 } else { pool_end };
        let data_end = area("data space", data_from, self.data_start, data_blocks)?;
        check(data_end == self.data_end.0 && count - data_end >= FAR_BLOCKS, || {
            format!("data space from {} to {}, in a volume of {count} blocks", self.data_start, self.data_end)
        })?;
        check(self.free_blocks <= data_blocks, || {
            format!("{} free blocks in {data_blocks} blocks of data space", self.free_blocks)
        })?;
        let mirror = Run::new(self.mirror_start, self.mirror_blocks);
        if mirror.blocks > 0 {
            let end = area("mirrored metadata", self.data_start.0, mirror.start, mirror.blocks)?;
            check(end <= data_end, || {
                format!("mirrored metadata up to {end}, the data space ends at {data_end}")
            })?;
        }
        if !moved {
            return Ok(BlockNo(journal_end));
        }
        let (journal, pool) = (self.journal(), Run::new(self.pool_start, self.pool_blocks));
        let inside = |run: Run| run.start >= self.data_start && run.end() <= self.data_end;
        check(inside(journal) && inside(pool), || {
            format!(
                "journal at {}+{} and metadata pool at {}+{}, but the data space is {} to {data_end}",
                journal.start, journal.blocks, pool.start, pool.blocks, self.data_start
            )
        })?;
        let mirrored = mirror.blocks > 0;
        let apart =
            are_apart(journal, pool) && (!mirrored || are_apart(journal, mirror) && are_apart(pool, mirror));
        check(apart, || {
            format!(
                "journal at {}+{}, metadata pool at {}+{} and mirrored metadata at {}+{} overlap",
                journal.start, journal.blocks, pool.start, pool.blocks, mirror.start, mirror.blocks
            )
        })?;
        Ok(self.data_start)
    }
}

fn are_apart(a: Run, b: Run) -> bool {
    a.end() <= b.start || b.end() <= a.start
}
