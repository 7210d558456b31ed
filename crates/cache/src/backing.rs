//! The interface between the cache and the file behind a mapping.
//!
//! Contract
//! * [`Backing::map`] answers for the extents as they are; a hole's answer stays true until the cache itself
//!   places the block, or fs changes extents under an exclusive or direct gate after it dropped the range
//!   from the cache.
//! * Delayed allocation: the cache calls [`Backing::reserve`] for each block that becomes dirty without a
//!   home, and [`Backing::unreserve`] when such a block is dropped unwritten. A successful [`Backing::place`]
//!   takes over the reservations of the blocks it gave homes to; [`Backing::written`] uses them up, or, when
//!   it is told of or returns an error, hands them back to the cache (the blocks are dirty again).
//! * `place` is called with segments held shared, so it may not wait for journal space, a gate, a size lock
//!   or a segment: if it would have to, it returns an error of kind `WouldBlock`, the cache releases
//!   everything and calls [`Backing::wait_for_room`].
//! * `written` runs on a finisher thread (or, without threads, on a thread that waits for writeback), never
//!   on the device's completion thread; or on the thread that called [`crate::Snapshot::start_here`] or
//!   [`crate::Mapping::write_back`], under whatever its caller holds: a gate, a size lock, a range lock. Its
//!   blocks are still in writeback, for the other calls of this mapping as well. It may wait for a
//!   transaction, but not for segments, writeback, a gate, a size lock or a range lock.
//!
//! Neighbours: fs's inode implements it.

use crate::span::Contents;
use quire_base::{BlockNo, Error, InodeNo, Result};

/// Where a run of blocks lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Nowhere; reads as zeros.
    Hole,
    /// Allocated from this block on, reads as zeros.
    Unwritten(BlockNo),
    /// Allocated from this block on, holds data.
    Written(BlockNo),
    /// As written; but the blocks belong to a snapshot, too: what is written goes elsewhere, so a dirty block
    /// reserves as if it had no home.
    Shared(BlockNo),
}

impl Home {
    /// Where data is to be read, if the blocks hold some.
    pub fn data(self) -> Option<BlockNo> {
        match self {
            Home::Written(at) | Home::Shared(at) => Some(at),
            Home::Hole | Home::Unwritten(_) => None,
        }
    }

    /// Whether what is written there needs blocks of its own.
    pub fn needs_blocks(self) -> bool {
        matches!(self, Home::Hole | Home::Shared(_))
    }

    /// The home of the block `count` further on.
    pub fn offset(self, count: u64) -> Home {
        match self {
            Home::Hole => Home::Hole,
            Home::Unwritten(at) => Home::Unwritten(at.offset(count)),
            Home::Written(at) => Home::Written(at.offset(count)),
            Home::Shared(at) => Home::Shared(at.offset(count)),
        }
    }
}

/// A run of a file's blocks with one kind of home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block within the file.
    pub file_block: u64,
    /// Blocks.
    pub count: u64,
    /// Where they live.
    pub home: Home,
}

/// A run of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRun {
    /// First block within the file.
    pub file_block: u64,
    /// Blocks.
    pub count: u64,
    /// First block on the device.
    pub home: BlockNo,
    /// Whether these blocks were allocated for it: they go back if the write fails.
    pub is_fresh: bool,
}

/// Homes for a dirty run, from [`Backing::place`] to [`Backing::written`].
#[derive(Debug)]
pub struct Placement {
    /// Ascending and without gaps, from the block that was asked for.
    pub runs: Vec<PlacedRun>,
}

/// Why blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They are written back; nothing follows at once.
    Writeback,
    /// The caller forces the journal as soon as they are written.
    Force,
}

/// The file behind a mapping; see the module's contract.
pub trait Backing: Send + Sync {
    /// Its number, for messages and order.
    fn inode(&self) -> InodeNo;

    /// Whether nothing of it stays in the cache once it is clean.
    fn drops(&self) -> bool {
        false
    }

    /// The homes of blocks `[block, block + count)`, or of a part of them from `block` on: ascending, without
    /// gaps or overlaps. What lies outside is clipped by the cache, for what is missing it asks again.
    fn map(&self, block: u64, count: u64) -> Result<Vec<Run>>;

    /// Sets space aside for `blocks` blocks without a home. With segments locked it is called as a thread
    /// that may not wait ([`quire_base::patience::at_once`]): what could be had by waiting is refused there,
    /// and the caller of the write settles it with nothing locked.
    fn reserve(&self, blocks: u64) -> Result<()>;

    /// Gives space set aside back.
    fn unreserve(&self, blocks: u64);

    /// Gives homes to the dirty blocks `[block, block + count)`, or to a part of them from `block` on.
    fn place(&self, block: u64, count: u64) -> Result<Placement>;

    /// The data of a placement is on the device (not flushed), or failed to get there.
    fn written(&self, placement: Placement, outcome: Result<()>) -> Result<()>;

    /// The blocks of a unit, a power of two, if all dirty blocks of a unit are to go into one record of the
    /// journal. None: blocks are written to their homes, each for itself.
    fn unit_blocks(&self) -> Option<u64> {
        None
    }

    /// Whether the first of these blocks is to go through the journal, though the file has no units, and how
    /// many from it on are alike. `few`: they are forced at once, and no more than a record takes. After an
    /// error they stay dirty: a write in place could be undone by a replay.
    fn goes_through_journal(&self, _block: u64, count: u64, _few: bool) -> Result<(bool, u64)> {
        Ok((false, count))
    }

    /// Puts blocks with their content into one record of the journal, gives homes to those that have none,
    /// and uses up what was reserved for these. They need no other write. Called with segments shared: it
    /// waits for nothing, and fails with `WouldBlock` where it would have to.
    fn journal(&self, _contents: &Contents<'_>) -> Result<()> {
        Err(Error::invalid("a file without a journal"))
    }

    /// Waits, with nothing locked, for what `place` or `journal` refused to wait for, to so many blocks.
    fn wait_for_room(&self, _blocks: u64) -> Result<()> {
        Ok(())
    }

    /// The size of the file in bytes, as readers see it.
    fn size(&self) -> u64;
}

/// The homes of blocks `[block, block + count)`, whatever number of answers that takes, checked and cut to
/// the range.
pub(crate) fn map_all(backing: &dyn Backing, block: u64, count: u64) -> Result<Vec<Run>> {
    let end = block + count;
    let mut next = block;
    let mut clipped: Vec<Run> = Vec::new();
    while next < end {
        let asked = next;
        for run in backing.map(next, end - next)? {
            let run_end = run.file_block.saturating_add(run.count);
            if run_end <= next || next >= end {
                continue;
            }
            if run.file_block > next {
                break;
            }
            let to = run_end.min(end);
            let home = run.home.offset(next - run.file_block);
            clipped.push(Run { file_block: next, count: to - next, home });
            next = to;
        }
        if next == asked {
            return Err(Error::corrupt(format!(
                "the map of inode {} has no answer for block {next} (asked for {count} from {block})",
                backing.inode()
            )));
        }
    }
    Ok(clipped)
}
