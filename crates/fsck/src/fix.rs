//! What would mend the issues found: plain data, gathered by the phases of the check, carried out by
//! `repair`.
//!
//! Each fix is right on its own and leaves no more wrong than before; what it brings to light (an inode that
//! no directory names any more, a count that changed) the next round of the check finds and mends.
//!
//! Neighbours: [`crate::report::Findings`] holds them, [`crate::repair`] carries them out.

use quire_base::BlockNo;
use quire_format::extent::Run;
use quire_format::inode::{FileType, InodeRecord, MODE_TYPE_MASK};
use quire_format::key::{Key, KeyKind};
use std::collections::{BTreeMap, BTreeSet};

/// New values for fields of an inode's record; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) kind: Option<FileType>,
    pub(crate) nlink: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) blocks: Option<u64>,
    pub(crate) xattr_bytes: Option<u32>,
    pub(crate) parent: Option<u64>,
    pub(crate) flags: Option<u32>,
    pub(crate) rdev: Option<u64>,
    pub(crate) generation: Option<u64>,
}

impl Patch {
    pub(crate) fn apply(&self, record: &mut InodeRecord) {
        if let Some(kind) = self.kind {
            record.mode = record.mode & !MODE_TYPE_MASK | kind.to_mode();
            if kind != FileType::Directory {
                record.parent = 0;
            }
        }
        record.nlink = self.nlink.unwrap_or(record.nlink);
        record.size = self.size.unwrap_or(record.size);
        record.blocks = self.blocks.unwrap_or(record.blocks);
        record.xattr_bytes = self.xattr_bytes.unwrap_or(record.xattr_bytes);
        record.parent = self.parent.unwrap_or(record.parent);
        record.flags = self.flags.unwrap_or(record.flags);
        record.rdev = self.rdev.unwrap_or(record.rdev);
        record.generation = self.generation.unwrap_or(record.generation);
    }
}

/// An inode whose record is lost, but whose contents are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rebuild {
    pub(crate) inode: u64,
    /// What the contents, or else an entry that names it, say that it is.
    pub(crate) kind: Option<FileType>,
    /// What an entry that names it says of its generation.
    pub(crate) generation: Option<u64>,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) xattr_bytes: u32,
    /// An orphan slot or key names it, and no entry does.
    pub(crate) orphan: bool,
}

/// Blocks of a file that another file has as well: they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Relocation {
    pub(crate) inode: u64,
    pub(crate) file_block: u64,
    pub(crate) blocks: u64,
    pub(crate) disk_block: u64,
}

/// The true values of the superblock's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) free_blocks: u64,
    pub(crate) inodes: u64,
    pub(crate) next_inode: u64,
}

/// All fixes that one check came up with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixes {
    /// Any repair writes both superblocks anew, so opening and closing the volume is all it takes.
    pub(crate) superblocks: bool,
    /// Slot whose superblock must go, so that the volume opens with the other one.
    pub(crate) abandon_slot: Option<usize>,
    /// The pool's map or an orphan block must be written anew before the volume can be opened for writing.
    pub(crate) pool: bool,
    pub(crate) clear_error_flag: bool,
    /// Neither slot's first copy is there; the second copies are put in their place.
    pub(crate) restore_superblocks: bool,
    /// Bad copies of metadata: (the block of the good one, that of the bad one).
    pub(crate) copies: BTreeSet<(BlockNo, BlockNo)>,
    pub(crate) make_root: bool,
    pub(crate) drop_keys: Vec<Key>,
    /// First and last key of ranges to be dropped.
    pub(crate) drop_ranges: Vec<(Key, Key)>,
    pub(crate) patches: BTreeMap<u64, Patch>,
    pub(crate) rebuild: Vec<Rebuild>,
    /// Inodes whose extents overlap in the file.
    pub(crate) disentangle: Vec<u64>,
    pub(crate) relocate: Vec<Relocation>,
    /// File blocks that lose their disk blocks, since those are not theirs: (inode, first file block,
    /// blocks).
    pub(crate) punch: Vec<(u64, u64, u64)>,
    /// Values to be put in the place of damaged ones.
    pub(crate) rewrite: Vec<(Key, Vec<u8>)>,
    /// Entries to be put where their hash says: (directory, cookie).
    pub(crate) rehash: Vec<(u64, u64)>,
    /// Extended attributes to be put where their hash says: (inode, hash, disambiguator) as they are now.
    pub(crate) rehash_xattrs: Vec<(u64, u32, u16)>,
    /// Entries whose type is to be that of the inode: (directory, cookie, type).
    pub(crate) retype: Vec<(u64, u64, FileType)>,
    /// Inodes to be named in `lost+found`.
    pub(crate) lost: Vec<u64>,
    /// Orphan slots to be released.
    pub(crate) clear_slots: Vec<u32>,
    /// Inodes without links that need a slot.
    pub(crate) track: Vec<u64>,
    /// Blocks that the pool's map has, that nothing of the pool is in, and that are a file's: the pool loses
    /// them.
    pub(crate) release: Vec<Run>,
    /// Regions must be marked: blocks in use are free there, or the value is damaged.
    pub(crate) mark_used: bool,
    /// Regions may be cleared of what nothing uses.
    pub(crate) free_leaked: bool,
    /// The superblock's counters are wrong.
    pub(crate) counters: bool,
}

impl Fixes {
    /// The patch of an inode, to be added to.
    pub(crate) fn patch(&mut self, inode: u64) -> &mut Patch {
        self.patches.entry(inode).or_default()
    }

    /// Whether anything but the accounts (regions, counters) changes: they are settled when all else is.
    pub(crate) fn changes_contents(&self) -> bool {
        self.make_root
            || !(self.drop_keys.is_empty()
                && self.drop_ranges.is_empty()
                && self.patches.is_empty()
                && self.rebuild.is_empty()
                && self.disentangle.is_empty()
                && self.relocate.is_empty()
                && self.punch.is_empty()
                && self.rewrite.is_empty()
                && self.rehash.is_empty()
                && self.rehash_xattrs.is_empty()
                && self.retype.is_empty()
                && self.lost.is_empty()
                && self.clear_slots.is_empty()
                && self.track.is_empty())
    }

    /// Records are lost, or of another type than they say: what was found about names and links before these
    /// are mended is not to be acted on.
    pub(crate) fn names_unsettled(&self) -> bool {
        self.make_root || !self.rebuild.is_empty() || self.patches.values().any(|patch| patch.kind.is_some())
    }

    /// While extents change, an inode's count of blocks stays what it is: it tells whose extents to believe.
    pub(crate) fn keep_block_counts(&mut self) {
        if !(self.disentangle.is_empty() && self.punch.is_empty() && self.relocate.is_empty()) {
            self.patches.values_mut().for_each(|patch| patch.blocks = None);
            self.patches.retain(|_, patch| *patch != Patch::default());
        }
    }

    /// Leaves what rests on names and links to a later round.
    pub(crate) fn forget_names(&mut self) {
        for patch in self.patches.values_mut() {
            (patch.nlink, patch.parent) = (None, None);
        }
        self.patches.retain(|_, patch| *patch != Patch::default());
        self.lost.clear();
        self.track.clear();
        self.clear_slots.clear();
        self.retype.clear();
    }

    /// Whether regions or counters change.
    pub(crate) fn changes_accounts(&self) -> bool {
        self.mark_used || self.free_leaked || self.counters
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let raw = self.superblocks
            || self.restore_superblocks
            || self.pool
            || self.clear_error_flag
            || self.abandon_slot.is_some()
            || !self.copies.is_empty();
        !(raw || self.changes_contents() || self.changes_accounts())
    }
}

/// The first and the last key that an object can have.
pub(crate) const fn whole_object(object: u64) -> (Key, Key) {
    (Key::new(object, KeyKind::FreeSpace, 0), Key::new(object, KeyKind::Extent, u64::MAX))
}

/// A run of blocks for a message: "block 7" or "blocks 7 to 9".
pub(crate) fn blocks(run: Run) -> String {
    match run.blocks {
        1 => format!("block {}", run.start),
        _ => format!("blocks {} to {}", run.start, run.end().0.saturating_sub(1)),
    }
}
