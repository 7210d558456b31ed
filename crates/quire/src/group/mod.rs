//! Groups of writes: to one or several files, visible at once, and durable as a whole or not at all.
//!
//! A group collects bytes in memory; nobody but its owner sees them. There are two ways to commit one, and in
//! both a reader sees all of the group or nothing, and so does a crash:
//! * [`commit`]: one record of the journal has everything that the blocks are to hold. One flush, and the
//!   bytes are written twice.
//! * [`exchange`], for what no record takes comfortably: the content goes to fresh blocks, and then one
//!   transaction gives these to the files. Two flushes, and the bytes are written once.
//!
//! Untorn files. A group takes whole units, so that it has what plain writes have left dirty in them: no
//! crash leaves a unit with the group and without a write that came before.
//!
//! Limits. A write that would pass one is refused when it is made, with an error of kind `TooLarge`; the
//! group stays as it was. See [`Engine::check_group`]. What only the commit can know, it refuses before
//! anything has changed: that the volume has no room for the fresh blocks, or that the files are in so many
//! pieces that one transaction does not exchange them.
//!
//! Neighbours: [`collected`] has a group's bytes for one file; [`crate::group_handle`] has groups for
//! programs, [`crate::inodes`] those for front ends.

mod collected;
mod commit;
mod exchange;

use crate::engine::Engine;
use crate::file::fsync::Completion;
use crate::file::range_end;
use crate::file::syncing::{Durability, SyncOptions, Syncing};
use crate::inode::InodeRef;
use crate::inodes::{Inodes, IoFlags};
use collected::Collected;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::Duration;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes of blocks that a group has in a record, on a volume whose journal takes them.
const RECORD_BYTES: u64 = 2 << 20;
/// Bytes of a record that are not for content of blocks: extents and attributes.
const RECORD_MARGIN: u64 = 64 << 10;
/// The most bytes of blocks that a group has.
const GROUP_BYTES: u64 = 256 << 20;
/// What large groups of a volume may have in memory together, if half of its cache is less.
const ALL_GROUPS_BYTES_MIN: u64 = 16 << 20;
/// Extents that one exchange takes out and puts in, at most. The metadata pool has to have room for the
/// worst that this many changes can do to the tree.
const EXCHANGE_EXTENTS: usize = 2048;
/// Runs of blocks that a group of more than a record has, at most: the files' own extents count too.
const EXCHANGE_RUNS: usize = EXCHANGE_EXTENTS / 4;

/// How durable a group is when its commit returns. It is atomic in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// It survives a crash.
    #[default]
    Now,
    /// It survives a crash: the commit waits for a force that somebody else makes, and makes one itself if
    /// there was none within this time.
    Lazy(Duration),
    /// It is durable with the next force that anybody makes, and not without what was committed before it. A
    /// crash before that undoes all of it.
    Ordered,
}

/// A group of writes, by inode; from [`Inodes::atomic`]. Dropping it discards it. See
/// [`Group`](crate::Group).
pub struct InodeGroup {
    inodes: Inodes,
    files: BTreeMap<InodeNo, Collected>,
    /// Bytes of [`Engine::group_memory`] that are this group's.
    charged: u64,
}

/// An fsync of a file's records alone. A group is one record, so any of its files will do, and what plain
/// writes have left dirty there is no part of it.
fn of_record(durability: Durability) -> SyncOptions {
    SyncOptions::new().data_only(true).range(0, 0).durability(durability)
}

impl InodeGroup {
    pub(crate) fn new(inodes: Inodes) -> InodeGroup {
        InodeGroup { inodes, files: BTreeMap::new(), charged: 0 }
    }

    /// Adds a write to the group. `TooLarge` if the group would pass a limit ([`Inodes::group_bytes_max`]):
    /// it stays as it was.
    pub fn write_at(&mut self, inode: &InodeRef, data: &[u8], offset: u64) -> Result<()> {
        self.check_file(inode)?;
        let end = range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.inodes.engine().check_writable()?;
        let gap = self.gap(inode, offset);
        let start = gap.clone().map_or(offset, |gap| gap.start.min(offset));
        self.check_room(inode, start, end)?;
        self.file(inode).write(gap, offset, data);
        Ok(())
    }

    /// Sets a file's size: what lies beyond is gone, what is gained reads as zeros. `TooLarge` as in
    /// [`InodeGroup::write_at`], if the group has cut the file already and now makes it longer again.
    pub fn set_len(&mut self, inode: &InodeRef, size: u64) -> Result<()> {
        self.check_file(inode)?;
        range_end(size, 0)?;
        self.inodes.engine().check_writable()?;
        let gap = self.gap(inode, size);
        if let Some(gap) = &gap {
            self.check_room(inode, gap.start, gap.end)?;
        }
        self.file(inode).resize(gap, size);
        Ok(())
    }

    /// An error unless the inode is a regular file of the group's volume.
    pub(crate) fn check_file(&self, inode: &InodeRef) -> Result<()> {
        inode.check_regular()?;
        if Arc::ptr_eq(&**inode.engine, self.inodes.engine()) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::CrossDevice,
            format!("inode {} is on another volume than the group", inode.number()),
        ))
    }

    fn file(&mut self, inode: &InodeRef) -> &mut Collected {
        self.files.entry(inode.number()).or_insert_with(|| Collected::new(inode))
    }

    /// What the file holds between the end that the group gave it and `end`, and what has to read as zeros.
    fn gap(&self, inode: &InodeRef, end: u64) -> Option<Range<u64>> {
        let size = self.files.get(&inode.number())?.size?;
        // Up to the end of a block: what lies there on disk, behind the file's end, may be anything.
        let held = inode.size().next_multiple_of(BLOCK_SIZE as u64);
        (size < end.min(held)).then(|| size..end.min(held))
    }

    /// An error if the group would pass a limit with `[start, end)` of a file.
    fn check_room(&mut self, inode: &InodeRef, start: u64, end: u64) -> Result<()> {
        let engine = self.inodes.engine().clone();
        let number = inode.number();
        let (mut blocks, mut runs) = (0, 1);
        for (_, file) in self.files.iter().filter(|(other, _)| **other != number) {
            let (file_blocks, file_runs) = file.counts();
            blocks += file_blocks;
            runs += file_runs;
        }
        match self.files.get(&number) {
            Some(file) => {
                blocks += file.blocks_with(start, end);
                runs += file.counts().1;
            }
            None => blocks += Collected::new(inode).blocks_with(start, end),
        }
        engine.check_group(blocks, runs)?;
        let bytes = blocks * BLOCK_SIZE as u64;
        if bytes > engine.group_record_bytes() && bytes > self.charged {
            engine.charge_group(bytes - self.charged)?;
            self.charged = bytes;
        }
        Ok(())
    }

    /// Reads what the group's owner sees: the file, with the group's writes over it.
    pub fn read_at(&self, inode: &InodeRef, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_file(inode)?;
        let mut read = self.inodes.read_at(inode, out, offset, IoFlags::empty())?;
        let Some(file) = self.files.get(&inode.number()) else { return Ok(read) };
        let end = file.seen_size().min(offset.saturating_add(out.len() as u64));
        let len = end.saturating_sub(offset) as usize;
        read = read.min(len);
        out[read..len].fill(0);
        file.overlay(offset, &mut out[..len]);
        Ok(len)
    }

    /// The size of a file as the group's owner sees it.
    pub fn size(&self, inode: &InodeRef) -> u64 {
        self.files.get(&inode.number()).map_or_else(|| inode.size(), Collected::seen_size)
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Makes all writes visible at once, and durable as `commit` says. On an error nothing has changed,
    /// unless the volume has failed: then a crash decides, and leaves all of the group or nothing.
    pub fn commit(self, commit: Commit) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let engine = self.inodes.engine().clone();
        let _change = engine.begin_change()?;
        let files: Vec<&Collected> = self.files.values().collect();
        for file in &files {
            engine.clear_privileges(&file.inode)?;
        }
        let seq = engine.commit_group(&files)?;
        match commit {
            Commit::Now => engine.force(seq),
            Commit::Ordered => Ok(()),
            Commit::Lazy(within) => {
                let how = of_record(Durability::Lazy(within));
                self.inodes.fsync_async(&files[0].inode, &how).wait()
            }
        }
    }

    /// As [`InodeGroup::commit`], but the caller waits for no force: `done` gets the outcome, on a thread of
    /// the volume, which it must not keep waiting, or before this returns. Many commits under way share
    /// forces.
    pub fn commit_then(self, commit: Commit, done: Completion) {
        let inodes = self.inodes.clone();
        match self.commit_to_force(commit) {
            Ok(Some((file, how))) => inodes.fsync_then(&file, &how, done),
            outcome => done(outcome.map(drop)),
        }
    }

    /// As [`InodeGroup::commit_then`], as a future. On an error nothing has changed.
    pub fn commit_async(self, commit: Commit) -> Result<Syncing> {
        let inodes = self.inodes.clone();
        Ok(match self.commit_to_force(commit)? {
            Some((file, how)) => inodes.fsync_async(&file, &how),
            None => inodes.fsync_many_async([], &SyncOptions::new()),
        })
    }

    /// Commits without a force; gives what is to be made durable by one.
    fn commit_to_force(self, commit: Commit) -> Result<Option<(InodeRef, SyncOptions)>> {
        let durability = match commit {
            Commit::Now => Some(Durability::Now),
            Commit::Lazy(within) => Some(Durability::Lazy(within)),
            Commit::Ordered => None,
        };
        let file = self.files.values().next().map(|file| file.inode.clone());
        self.commit(Commit::Ordered)?;
        Ok(file.zip(durability.map(of_record)))
    }
}

impl Drop for InodeGroup {
    fn drop(&mut self) {
        self.inodes.engine().group_memory.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

impl Engine {
    /// Bytes of blocks that a group may have, or a unit, to go into one record of the journal.
    pub(crate) fn group_record_bytes(&self) -> u64 {
        let record = self.journal.as_ref().map_or(0, |journal| journal.payload_max() as u64);
        RECORD_BYTES.min(record.saturating_sub(RECORD_MARGIN)) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    /// Bytes of blocks that a group may have.
    pub(crate) fn group_bytes_max(&self) -> u64 {
        let large = GROUP_BYTES.min(self.all_groups_bytes()) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        large.max(self.group_record_bytes())
    }

    fn all_groups_bytes(&self) -> u64 {
        (self.cache.limit_bytes() / 2).max(ALL_GROUPS_BYTES_MIN)
    }

    /// An error if a group may not have so many blocks, in so many runs.
    fn check_group(&self, blocks: u64, runs: usize) -> Result<()> {
        let (bytes, record, most) =
            (blocks * BLOCK_SIZE as u64, self.group_to_journal(), self.group_bytes_max());
        let kib = bytes / 1024;
        if bytes > most {
            let text =
                format!("a group of {kib} KiB in blocks: this volume takes {} KiB at once", most / 1024);
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        if bytes > record && runs > EXCHANGE_RUNS {
            let text = format!(
                "a group of {kib} KiB in {runs} places: of more than {} KiB this volume takes {EXCHANGE_RUNS} \
                 places at once (see: quire mkfs --journal-size)",
                record / 1024
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(())
    }

    /// Counts bytes that a large group has in memory.
    fn charge_group(&self, bytes: u64) -> Result<()> {
        let most = self.all_groups_bytes();
        let charge = |held: u64| held.checked_add(bytes).filter(|held| *held <= most);
        match self.group_memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge) {
            Ok(_) => Ok(()),
            Err(held) => Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "large groups hold {} KiB in memory already, and {} KiB more would pass the limit of {} KiB",
                    held / 1024,
                    bytes / 1024,
                    most / 1024
                ),
            )),
        }
    }
}
