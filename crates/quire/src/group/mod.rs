//! Groups of writes: to one or several files, visible at once, and durable as a whole or not at all.
//!
//! Nobody but its owner sees what a group collects. There are two ways to commit one, and in both a reader
//! sees all of the group or nothing, and so does a crash:
//! * [`commit`]: one record of the journal has everything that the blocks are to hold. One flush, and the
//!   bytes are written twice. Such a group is in memory until it is committed.
//! * [`exchange`], for what no record takes comfortably: the content goes to fresh blocks, and then one
//!   transaction gives these to the files. Two flushes, and the bytes are written once. The content leaves
//!   the memory as it comes ([`streamed`]), so the free space bounds such a group, and files are held only
//!   for the exchange.
//!
//! Untorn files. A group takes whole units, so that it has what plain writes have left dirty in them: no
//! crash leaves a unit with the group and without a write that came before.
//!
//! Sizes. A group that has cut a file remembers the lowest size: whatever the file holds beyond it at the
//! commit is gone, also where the group has made the file longer again. Zeros go only into blocks that the
//! group writes in part, the rest becomes a hole.
//!
//! Limits. A write that would pass one is refused when it is made, with an error of kind `TooLarge`, or
//! `NoSpace` if there are not as many free blocks as the group is to write; the group stays as it was. See
//! [`InodeGroup::admit`]. What only the commit can know, it refuses before anything has changed: that the
//! files are in so many pieces that one transaction does not exchange them, or that the transaction finds no
//! room.
//!
//! Neighbours: [`collected`] has a group's bytes for one file; [`crate::group_handle`] has groups for
//! programs, [`crate::inodes`] those for front ends.

mod collected;
mod commit;
mod exchange;
mod pieces;
mod streamed;

use crate::engine::Engine;
use crate::file::IoFlags;
use crate::file::fsync::Completion;
use crate::file::fsync::Target;
use crate::file::range_end;
use crate::file::syncing::{Durability, SyncOptions, Syncing};
use crate::inode::InodeRef;
use crate::open_volume::OpenVolume;
use collected::Collected;
use exchange::Buffer;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::Duration;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, patience};
use std::collections::BTreeMap;

/// The most bytes of blocks that a group has in a record, on a volume whose journal takes them.
const RECORD_BYTES: u64 = 2 << 20;
/// Bytes of a record that are not for content of blocks: extents and attributes.
const RECORD_MARGIN: u64 = 64 << 10;
/// Bytes that a large group has in memory before it streams what it can.
const STREAM_BYTES: u64 = 4 << 20;
/// As much, for tests whose records are small.
const STREAM_BYTES_MIN: u64 = 16 << 10;
/// Bytes that enter a large group at once.
const CHUNK_BYTES: usize = 1 << 20;
/// What groups of a volume may have in memory together, if half of its cache is less.
const ALL_GROUPS_BYTES_MIN: u64 = 16 << 20;
/// Runs of blocks that a group of more than a record has, at most: the files' own extents count too.
const EXCHANGE_RUNS: usize = exchange::EXTENTS_MAX / 4;
/// Files of a group that may each take as many blocks ahead as are streamed at once; more files take less.
const FILES_AHEAD: u64 = 4;
/// The part of the free blocks that a file takes ahead at most.
const FREE_AHEAD: u64 = 64;
/// Bytes of a large group's record for each of its files.
const FILE_BYTES: usize = 1024;
/// Files that a group has at most: a commit may hold all of them, on a level of the stack each.
const FILES_MAX: usize = 512;

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

/// A group of writes, by inode; from [`Inodes::atomic`](crate::inodes::Inodes::atomic). Dropping it discards
/// it. See [`Group`](crate::Group).
pub struct InodeGroup {
    volume: Arc<OpenVolume>,
    files: BTreeMap<InodeNo, Collected>,
    /// Bytes of [`Engine::group_memory`] that are this group's.
    charged: u64,
    /// Bytes in memory from which on the group streams again.
    stream_from: u64,
    /// Why the group cannot be committed any more: streaming has failed.
    failed: Option<Error>,
}

/// An fsync of a file's records alone. A group is one record, so any of its files will do, and what plain
/// writes have left dirty there is no part of it.
fn of_record(durability: Durability) -> SyncOptions {
    SyncOptions::new().data_only(true).range(0, 0).durability(durability)
}

impl InodeGroup {
    pub(crate) fn new(volume: Arc<OpenVolume>) -> InodeGroup {
        InodeGroup { volume, files: BTreeMap::new(), charged: 0, stream_from: 0, failed: None }
    }

    /// Adds a write to the group. `TooLarge` or `NoSpace` if the group would pass a limit: it stays as it
    /// was.
    pub fn write_at(&mut self, inode: &InodeRef, data: &[u8], offset: u64) -> Result<()> {
        self.check_file(inode)?;
        let end = range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.volume.engine.store.check_writable()?;
        self.admit(inode, offset, end)?;
        let inserted = self.insert(inode, offset, data);
        if let Err(error) = &inserted {
            // A part of the write may be in it.
            self.failed.get_or_insert_with(|| error.clone());
        }
        inserted?;
        self.file(inode).reach(end);
        Ok(())
    }

    /// Sets a file's size: what lies beyond is gone, what is gained reads as zeros. What lies beyond is
    /// decided when the group is committed: what others have written there by then is gone, too, also if the
    /// group makes the file longer again. `TooLarge` if the group would have too many files.
    pub fn set_len(&mut self, inode: &InodeRef, size: u64) -> Result<()> {
        self.check_file(inode)?;
        range_end(size, 0)?;
        self.volume.engine.store.check_writable()?;
        self.check_count(inode)?;
        self.file(inode).resize(size)
    }

    /// An error unless the inode is a regular file of the group's volume.
    pub(crate) fn check_file(&self, inode: &InodeRef) -> Result<()> {
        inode.check_regular()?;
        inode.check_volume(&self.volume.engine)
    }

    /// An error if the group has as many files as it takes, and this is none of them.
    fn check_count(&self, inode: &InodeRef) -> Result<()> {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&inode.number()) {
            let text = format!("a group of more than {FILES_MAX} files");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(())
    }

    fn file(&mut self, inode: &InodeRef) -> &mut Collected {
        self.files.entry(inode.number()).or_insert_with(|| Collected::new(inode))
    }

    /// An error if the group would pass a limit with `[start, end)` of a file. A large group takes the
    /// blocks.
    fn admit(&mut self, inode: &InodeRef, start: u64, end: u64) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.check_count(inode)?;
        let engine = self.volume.engine.clone();
        let number = inode.number();
        let is_new = !self.files.contains_key(&number);
        let with = self.file(inode).blocks_with(start, end);
        let admitted = self.admit_blocks(&engine, number, with, end - start);
        if admitted.is_err() {
            self.release_surplus();
            if is_new {
                self.files.remove(&number);
            }
        }
        admitted
    }

    /// As [`InodeGroup::admit`]: the file will have `with` blocks, and `bytes` bytes come.
    fn admit_blocks(&mut self, engine: &Engine, number: InodeNo, with: u64, bytes: u64) -> Result<()> {
        let (mut blocks, mut runs) = (with, 1);
        for (other, file) in &self.files {
            let (file_blocks, file_runs) = file.counts();
            blocks += if *other == number { 0 } else { file_blocks };
            runs += file_runs;
        }
        if self.is_large(blocks) {
            self.admit_large(engine, number, with, blocks, runs)?;
            self.stream_if_over(bytes.min(CHUNK_BYTES as u64))?;
        }
        let memory = self.memory() + pieces::memory(1, bytes.min(engine.stream_bytes()));
        if memory > self.charged {
            engine.charge_group(memory - self.charged)?;
            self.charged = memory;
        }
        Ok(())
    }

    /// Takes the blocks of a large group: so many in as many runs, `with` of them a file's.
    fn admit_large(
        &mut self,
        engine: &Engine,
        number: InodeNo,
        with: u64,
        blocks: u64,
        runs: usize,
    ) -> Result<()> {
        // From here on it may wait for the device, in the middle of what it does.
        patience::check("a large group's blocks")?;
        engine.check_places(blocks, runs, self.files.len())?;
        // Many files together do not take much more ahead than a few, and none empties a small volume.
        let most = engine.stream_bytes() / BLOCK_SIZE as u64;
        let share = most * FILES_AHEAD / (self.files.len() as u64).max(FILES_AHEAD);
        let ahead = share.min(engine.store.alloc.free_blocks() / FREE_AHEAD);
        for (other, file) in &mut self.files {
            let blocks = if *other == number { with } else { file.counts().0 };
            file.streamed.ensure(blocks, ahead)?;
        }
        Ok(())
    }

    /// Gives back blocks that were taken for what then did not enter the group.
    fn release_surplus(&mut self) {
        let is_large = self.is_large(self.files.values().map(|file| file.counts().0).sum());
        for file in self.files.values_mut() {
            let blocks = if is_large { file.counts().0 } else { 0 };
            file.streamed.release_beyond(blocks);
        }
    }

    /// Whether a group of so many blocks goes to fresh blocks.
    fn is_large(&self, blocks: u64) -> bool {
        blocks * BLOCK_SIZE as u64 > self.volume.engine.group_to_journal()
            || self.files.values().any(|file| file.streamed.blocks() > 0)
    }

    /// Bytes that the group has in memory.
    fn memory(&self) -> u64 {
        self.files.values().map(|file| file.pieces.memory()).sum()
    }

    /// Puts bytes into the group, which has admitted them.
    fn insert(&mut self, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<()> {
        for (at, chunk) in (offset..).step_by(CHUNK_BYTES).zip(data.chunks(CHUNK_BYTES)) {
            self.file(inode).insert(at, chunk);
            let blocks = self.files.values().map(|file| file.counts().0).sum();
            if self.is_large(blocks) {
                self.stream_if_over(0)?;
            }
        }
        Ok(())
    }

    /// Streams if `more` bytes in memory were too many.
    fn stream_if_over(&mut self, more: u64) -> Result<()> {
        let most = self.volume.engine.stream_bytes();
        if self.memory() + more > most.max(self.stream_from) {
            let engine = self.volume.engine.clone();
            // A volume that is closed is another process's.
            let _change = engine.begin_change()?;
            self.stream()?;
            // What stays can only be streamed when more of its blocks has come.
            self.stream_from = self.memory() + most;
        }
        Ok(())
    }

    /// Writes all whole blocks to fresh ones; a change of the volume is under way.
    fn stream(&mut self) -> Result<()> {
        let buffer = Buffer::new(&self.volume.engine)?;
        let mut memory = buffer.memory.lock();
        let streamed = self.files.values_mut().try_for_each(|file| file.stream(&mut memory));
        self.failed = streamed.as_ref().err().cloned();
        streamed
    }

    /// Reads what the group's owner sees: the file, with the group's writes over it.
    pub fn read_at(&self, inode: &InodeRef, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_file(inode)?;
        let mut read = self.volume.engine.read(inode, offset, out, IoFlags::empty())?;
        let Some(file) = self.files.get(&inode.number()) else { return Ok(read) };
        // Without a size of the group's, the file ends where it did for the read: it may have grown since.
        let end = file.size.unwrap_or(file.end().max(offset.saturating_add(read as u64)));
        let end = end.min(offset.saturating_add(out.len() as u64));
        let len = end.saturating_sub(offset) as usize;
        read = read.min(len).min(file.keeps().saturating_sub(offset) as usize);
        out[read..len].fill(0);
        file.overlay(offset, &mut out[..len])?;
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
    pub fn commit(mut self, commit: Commit) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let engine = self.volume.engine.clone();
        let moving = engine.begin_moving_files(self.files.values().map(|file| &**file.inode))?;
        let is_large = self.is_large(self.files.values().map(|file| file.counts().0).sum());
        if is_large {
            self.stream()?;
        }
        self.files.values_mut().for_each(|file| file.streamed.release_beyond(0));
        let files: Vec<&Collected> = self.files.values().collect();
        for file in &files {
            engine.clear_privileges(&file.inode)?;
        }
        let seq = engine.commit_group(&files, is_large)?;
        let syncing = match commit {
            Commit::Now => return engine.store.force(seq),
            Commit::Ordered => return Ok(()),
            Commit::Lazy(within) => {
                let how = of_record(Durability::Lazy(within));
                engine.start_syncing(vec![Target::File(files[0].inode.clone(), how)])
            }
        };
        // It waits for others, who may wait for the changes under way to end.
        drop((moving, self));
        syncing.wait()
    }

    /// As [`InodeGroup::commit`], but the caller waits for no force: `done` gets the outcome, on a thread of
    /// the volume, which it must not keep waiting, or before this returns. Many commits under way share
    /// forces.
    pub fn commit_then(self, commit: Commit, done: Completion) {
        let volume = self.volume.clone();
        match self.commit_to_force(commit) {
            Ok(Some((file, how))) => volume.engine.fsync_async(&file, &how, done),
            outcome => done(outcome.map(drop)),
        }
    }

    /// As [`InodeGroup::commit_then`], as a future. On an error nothing has changed.
    pub fn commit_async(self, commit: Commit) -> Result<Syncing> {
        let volume = self.volume.clone();
        let forced = self.commit_to_force(commit)?;
        Ok(volume
            .engine
            .start_syncing(forced.map(|(file, how)| Target::File(file, how)).into_iter().collect()))
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

impl std::fmt::Debug for InodeGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "group over {} files, {} bytes in memory", self.files.len(), self.memory())
    }
}

impl Drop for InodeGroup {
    fn drop(&mut self) {
        self.volume.engine.group_memory.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

impl Engine {
    /// Bytes of blocks that a group may have, or a unit, to go into one record of the journal.
    pub(crate) fn group_record_bytes(&self) -> u64 {
        let record = self.store.journal.as_ref().map_or(0, |journal| journal.payload_max() as u64);
        RECORD_BYTES.min(record.saturating_sub(RECORD_MARGIN)) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    /// Bytes of blocks that a group may have, as the volume is now.
    pub(crate) fn group_bytes_max(&self) -> u64 {
        (self.store.alloc.free_blocks() * BLOCK_SIZE as u64).max(self.group_record_bytes())
    }

    /// Bytes of blocks up to which a group goes into a record.
    fn group_to_journal(&self) -> u64 {
        let record = self.group_record_bytes();
        self.store.options.group_record_bytes.map_or(record, |bytes| bytes.min(record))
    }

    /// Bytes that a large group has in memory before it streams.
    fn stream_bytes(&self) -> u64 {
        (2 * self.group_to_journal()).clamp(STREAM_BYTES_MIN, STREAM_BYTES)
    }

    fn all_groups_bytes(&self) -> u64 {
        (self.cache.limit_bytes() / 2).max(ALL_GROUPS_BYTES_MIN)
    }

    /// An error if a large group may not be in so many places, or in so many files: its record would be
    /// larger than the journal takes.
    fn check_places(&self, blocks: u64, runs: usize, files: usize) -> Result<()> {
        let files_max = self.store.journal.as_ref().map_or(0, |journal| journal.payload_max() / FILE_BYTES);
        let (what, count, most) = match () {
            () if runs > EXCHANGE_RUNS => ("places", runs, EXCHANGE_RUNS),
            () if files > files_max => ("files", files, files_max),
            () => return Ok(()),
        };
        let text = format!(
            "a group of {} KiB in {count} {what}: of more than {} KiB this volume takes {most} {what} at once \
             (see: quire mkfs --journal-size)",
            blocks * BLOCK_SIZE as u64 / 1024,
            self.group_to_journal() / 1024
        );
        Err(Error::new(ErrorKind::TooLarge, text))
    }

    /// Counts bytes that a group has in memory.
    fn charge_group(&self, bytes: u64) -> Result<()> {
        let most = self.all_groups_bytes();
        let charge = |held: u64| held.checked_add(bytes).filter(|held| *held <= most);
        match self.group_memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge) {
            Ok(_) => Ok(()),
            Err(held) => Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "the groups of this volume have {} KiB in memory, and {} KiB more would pass the limit of {} \
                     KiB",
                    held / 1024,
                    bytes.div_ceil(1024),
                    most / 1024
                ),
            )),
        }
    }
}
