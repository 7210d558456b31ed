//! Groups of writes: to one or several files, visible at once, and durable as a whole or not at all.
//!
//! A group collects bytes in memory; nobody but its owner sees them. Its commit locks every block that the
//! group writes, puts all of it into one record of the journal, and only then into the cache. So a reader
//! sees all of the group or nothing, and so does a crash.
//!
//! Order of a commit
//! 1. the gates of the files, buffered, by inode; then the size locks of those that grow;
//! 2. what a file that grows has unwritten is written back: the size on disk rises over nothing else;
//! 3. `quire_cache::write_group` loads and locks; with the locks held the transaction is only tried for, as
//!    the lock order has it. Without room the commit releases everything, waits for room, and starts 3 over;
//! 4. [`Engine::commit_data`]; then the contents and the sizes become visible, and the locks go;
//! 5. the journal is forced, if the caller wants it now.
//!
//! A group that sets sizes has its files to itself meanwhile: gates exclusively, and writeback held off. What
//! lies beyond a smaller size is dropped when the record is in the journal, and nothing can fail any more.
//! Too many extents for one transaction are freed behind it, as a logged operation.
//!
//! Untorn files. A group takes whole units, so that its record has what plain writes have left dirty in them:
//! no crash leaves a unit with the group and without a write that came before. The size of such a file is
//! locked.
//!
//! Limits. All of a group goes into one record, so it has at most [`Engine::group_bytes_max`] bytes of
//! blocks. A write that would pass that is refused when it is made, with an error of kind `TooLarge`; the
//! group stays as it was.
//!
//! Neighbours: [`crate::file::journaled`] journals; [`crate::group_handle`] has groups for programs,
//! [`crate::inodes`] those for front ends.

use crate::engine::Engine;
use crate::file::fsync::Completion;
use crate::file::journaled::{FileData, data_cost};
use crate::file::range_end;
use crate::file::syncing::{Durability, SyncOptions, Syncing};
use crate::gate::GateState;
use crate::inode::InodeRef;
use crate::inodes::{Inodes, IoFlags};
use quire_base::sync::Arc;
use quire_base::sync::time::Duration;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result, Seq};
use quire_cache::{Composed, GroupPart, WritebackHold, write_group};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes of blocks that a group has on a volume whose journal takes them.
const GROUP_BYTES: u64 = 2 << 20;
/// Bytes of a record that are not for content of blocks: extents and attributes.
const GROUP_MARGIN: u64 = 64 << 10;

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
}

/// A group's bytes for one file.
struct Collected {
    inode: InodeRef,
    /// By offset, apart.
    ranges: BTreeMap<u64, Vec<u8>>,
    /// The size, if the group has set one; nothing lies beyond it.
    size: Option<u64>,
}

impl Collected {
    fn new(inode: &InodeRef) -> Collected {
        Collected { inode: inode.clone(), ranges: BTreeMap::new(), size: None }
    }

    /// The end of the last byte written, or the size that was set.
    fn end(&self) -> u64 {
        let written = self.ranges.last_key_value().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        self.size.unwrap_or(written)
    }

    /// The size as the group's owner sees it.
    fn seen_size(&self) -> u64 {
        self.size.unwrap_or(self.inode.size().max(self.end()))
    }

    /// Blocks that it writes, whole units.
    fn blocks(&self) -> u64 {
        let unit = unit_of(&self.inode);
        let (mut blocks, mut seen) = (0, 0);
        for (at, bytes) in &self.ranges {
            let from = at / BLOCK_SIZE as u64 / unit * unit;
            let to = blocks_for(at + bytes.len() as u64).next_multiple_of(unit);
            blocks += to.saturating_sub(from.max(seen));
            seen = to.max(seen);
        }
        blocks
    }

    /// Takes out what lies beyond `size`.
    fn cut(&mut self, size: u64) {
        self.ranges.split_off(&size);
        if let Some((at, bytes)) = self.ranges.iter_mut().next_back() {
            bytes.truncate((size - at) as usize);
        }
    }

    /// Blocks that `[start, end)` adds to those that are written already, if those of a unit all count.
    fn new_blocks(&self, start: u64, end: u64) -> u64 {
        let unit = unit_of(&self.inode);
        let block = BLOCK_SIZE as u64;
        let (first, last) = (start / block / unit * unit, blocks_for(end).next_multiple_of(unit));
        let mut new = last - first;
        let mut seen = first;
        let before = self.ranges.range(..first * block).next_back();
        for (at, bytes) in before.into_iter().chain(self.ranges.range(first * block..)) {
            let from = at / block / unit * unit;
            let to = blocks_for(at + bytes.len() as u64).next_multiple_of(unit);
            if from >= last {
                break;
            }
            let (from, to) = (from.max(seen), to.min(last));
            if from < to {
                new -= to - from;
                seen = to;
            }
        }
        new
    }

    /// Puts bytes over what is there.
    fn insert(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let before = self.ranges.range(..=offset).next_back().map(|(at, bytes)| (*at, bytes.len() as u64));
        if let Some((at, len)) = before
            && at + len >= offset
        {
            // Overlaps or touches: it grows, or is written over.
            let bytes = self.ranges.get_mut(&at).expect("it was found");
            let from = (offset - at) as usize;
            let over = (bytes.len() - from).min(data.len());
            bytes[from..from + over].copy_from_slice(&data[..over]);
            bytes.extend_from_slice(&data[over..]);
            self.cut_behind(at, end.max(at + len));
        } else {
            self.cut_behind(offset, end);
            self.ranges.insert(offset, data.to_vec());
        }
    }

    /// Takes what `[start, end)` covers out of the ranges that begin behind `start`.
    fn cut_behind(&mut self, start: u64, end: u64) {
        let covered: Vec<u64> = self.ranges.range(start + 1..end).map(|(at, _)| *at).collect();
        for at in covered {
            let bytes = self.ranges.remove(&at).expect("it was found");
            let rest = end - at;
            if (bytes.len() as u64) > rest {
                self.ranges.insert(end, bytes[rest as usize..].to_vec());
            }
        }
    }

    /// Zeros for the rest of the block in which the file ends from now on.
    fn tail(&self) -> Option<(u64, Vec<u8>)> {
        let size = self.size.filter(|size| *size < self.inode.size())?;
        let len = size.next_multiple_of(BLOCK_SIZE as u64) - size;
        (len > 0).then(|| (size, vec![0; len as usize]))
    }

    /// Lays what the group has over what a read from `offset` gave.
    fn overlay(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let before = self.ranges.range(..offset).next_back();
        for (at, bytes) in before.into_iter().chain(self.ranges.range(offset..end)) {
            let (low, high) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
            if low < high {
                let part = &bytes[(low - at) as usize..(high - at) as usize];
                out[(low - offset) as usize..(high - offset) as usize].copy_from_slice(part);
            }
        }
    }
}

/// An fsync of a file's records alone. A group is one record, so any of its files will do, and what plain
/// writes have left dirty there is no part of it.
fn of_record(durability: Durability) -> SyncOptions {
    SyncOptions::new().data_only(true).range(0, 0).durability(durability)
}

/// Blocks of the file's unit, or 1.
fn unit_of(inode: &InodeRef) -> u64 {
    inode.unit_blocks().unwrap_or(1)
}

impl InodeGroup {
    pub(crate) fn new(inodes: Inodes) -> InodeGroup {
        InodeGroup { inodes, files: BTreeMap::new() }
    }

    /// Adds a write to the group. `TooLarge` if the group would have more bytes of blocks than one takes
    /// ([`Inodes::group_bytes_max`]): it stays as it was.
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
        let file = self.file(inode);
        if let Some(gap) = gap {
            file.insert(gap.start, &vec![0; (gap.end - gap.start) as usize]);
        }
        file.insert(offset, data);
        file.size = file.size.map(|size| size.max(end));
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
        let file = self.file(inode);
        if let Some(gap) = gap {
            file.insert(gap.start, &vec![0; (gap.end - gap.start) as usize]);
        }
        file.cut(size);
        file.size = Some(size);
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

    /// An error if the group would get too large with `[start, end)` of a file.
    fn check_room(&self, inode: &InodeRef, start: u64, end: u64) -> Result<()> {
        let nothing = Collected::new(inode);
        let new = self.files.get(&inode.number()).unwrap_or(&nothing).new_blocks(start, end);
        let blocks = self.files.values().map(Collected::blocks).sum::<u64>() + new;
        self.inodes.engine().check_group_size(blocks)
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
        let seq = engine.retry_without_space(|| engine.commit_group(&files))?;
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

impl Engine {
    /// Bytes of blocks that a group may have.
    pub(crate) fn group_bytes_max(&self) -> u64 {
        let record = self.journal.as_ref().map_or(0, |journal| journal.payload_max() as u64);
        GROUP_BYTES.min(record.saturating_sub(GROUP_MARGIN)) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    fn check_group_size(&self, blocks: u64) -> Result<()> {
        let (bytes, most) = (blocks * BLOCK_SIZE as u64, self.group_bytes_max());
        if bytes <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "a group of {} KiB in blocks: this volume takes {} KiB at once (see: quire mkfs --journal-size)",
                bytes / 1024,
                most / 1024
            ),
        ))
    }

    fn commit_group(self: &Arc<Engine>, files: &[&Collected]) -> Result<Seq> {
        if files.iter().any(|file| file.size.is_some()) {
            return self.commit_alone(files, files);
        }
        let _permits: Vec<_> = files.iter().map(|file| file.inode.gate.enter(GateState::Buffered)).collect();
        // The size cannot shrink while the permit is held.
        let growing: Vec<bool> = files.iter().map(|file| file.end() > file.inode.size()).collect();
        let _sizes: Vec<_> = files
            .iter()
            .zip(&growing)
            .filter(|(file, grows)| **grows || file.inode.unit_blocks().is_some())
            .map(|(file, _)| file.inode.size_lock.lock())
            .collect();
        for (file, _) in files.iter().zip(&growing).filter(|(_, grows)| **grows) {
            self.settle_group_growth(file)?;
        }
        self.write_and_journal(files, false)
    }

    /// Puts on disk what a group's larger size would show.
    fn settle_group_growth(&self, file: &Collected) -> Result<()> {
        let inode = &file.inode;
        // All gaps below the last range; those between ranges, too.
        if let Some(at) = file.ranges.keys().next_back().filter(|at| **at > inode.size()) {
            self.expose(inode, *at)?;
        }
        let on_disk = inode.meta().record.size / BLOCK_SIZE as u64;
        inode.mapping().write_back(on_disk, blocks_for(file.end()))
    }

    /// As [`Engine::commit_group`], with all files to itself: it enters the gates of `rest`, and then goes
    /// on.
    fn commit_alone(self: &Arc<Engine>, files: &[&Collected], rest: &[&Collected]) -> Result<Seq> {
        if let [first, rest @ ..] = rest {
            return self.exclusively(&first.inode, || self.commit_alone(files, rest));
        }
        for file in files {
            let inode = &file.inode;
            if file.end() > inode.size() {
                self.settle_group_growth(file)?;
                self.settle_growth(inode, file.end())?;
            } else if file.size.is_some() {
                let on_disk = inode.meta().record.size / BLOCK_SIZE as u64;
                inode.mapping().write_back(on_disk, blocks_for(file.end()))?;
            }
        }
        let holds: Vec<WritebackHold<'_>> =
            files.iter().map(|file| file.inode.mapping().hold_writeback(0, u64::MAX)).collect();
        let seq = self.write_and_journal(files, true)?;
        for (file, hold) in files.iter().zip(&holds).filter(|(file, _)| file.size.is_some()) {
            hold.discard(blocks_for(file.end()), u64::MAX);
        }
        self.device.recorded().await_batch();
        Ok(seq)
    }

    fn write_and_journal(self: &Arc<Engine>, files: &[&Collected], alone: bool) -> Result<Seq> {
        let growing: Vec<bool> = files.iter().map(|file| file.end() > file.inode.size()).collect();
        // A block that is cut in the middle is zeroed behind the new end.
        let tails: Vec<Option<(u64, Vec<u8>)>> = files.iter().map(|file| file.tail()).collect();
        let parts: Vec<GroupPart<'_>> = files
            .iter()
            .zip(&tails)
            .map(|(file, tail)| GroupPart {
                mapping: file.inode.mapping(),
                ranges: file
                    .ranges
                    .iter()
                    .map(|(at, bytes)| (*at, &bytes[..]))
                    .chain(tail.iter().map(|(at, bytes)| (*at, &bytes[..])))
                    .collect(),
                unit: unit_of(&file.inode),
                blocks: blocks_for(file.inode.size().min(file.size.unwrap_or(u64::MAX))),
            })
            .collect();
        let blocks = parts.iter().flat_map(GroupPart::runs).map(|(first, end)| end - first).sum();
        // A unit may have become larger since the writes were collected.
        self.check_group_size(blocks)?;
        loop {
            let mut committed = None;
            let written = write_group(
                &parts,
                &mut |composed| {
                    committed = Some(self.journal_group(files, &growing, composed)?);
                    Ok(())
                },
                &mut || {
                    for file in files {
                        // A size that was set is in the inode since its record is in the journal.
                        if file.size.is_none() {
                            file.inode.raise_size(file.end());
                        }
                        file.inode.touch_written();
                    }
                },
            );
            match (written, committed) {
                (Err(error), None) if error.kind() == ErrorKind::WouldBlock => {
                    self.await_data_room(blocks)?
                }
                (Err(error), _) => return Err(error),
                (Ok(()), committed) => {
                    let (seq, logged) = committed.expect("it was journaled");
                    debug_assert!(alone || logged.is_empty());
                    for (at, id, operation) in logged {
                        self.run_logged_live(&files[at].inode, id, operation)?;
                    }
                    return Ok(seq);
                }
            }
        }
    }

    /// Everything is locked: waits for nothing.
    fn journal_group(
        &self,
        files: &[&Collected],
        growing: &[bool],
        composed: &[Composed<'_>],
    ) -> Result<(Seq, Logged)> {
        let full = || Error::new(ErrorKind::WouldBlock, "the journal has no room");
        if self.wants_homes() {
            return Err(full());
        }
        let mut data = Vec::with_capacity(files.len());
        for ((file, grows), composed) in files.iter().zip(growing).zip(composed) {
            let mut one = FileData::new(self, &file.inode);
            for (first, count) in composed.runs() {
                one.add(first, count, |block, out| composed.copy(block, out))?;
            }
            match file.size {
                Some(size) => one.resize(size)?,
                // Otherwise what lies below the end may not be on disk yet.
                None => one.grows_to = if *grows { file.end() } else { 0 },
            }
            data.push(one);
        }
        let mut transaction = self.try_begin(data_cost(&data)).ok_or_else(full)?;
        let mut logged = Logged::new();
        for (at, one) in data.iter().enumerate() {
            one.warm(&transaction)?;
            if one.frees_too_many() {
                let (inode, size) = (&files[at].inode, files[at].end());
                let id = self.new_logged_id();
                let operation = self.logged_operation(
                    inode,
                    LoggedKind::Truncate,
                    blocks_for(size),
                    FILE_BLOCKS_MAX,
                    size,
                );
                transaction.warm(&[Key::logged(id)])?;
                transaction.put(Key::logged(id), &operation.encode());
                logged.push((at, id, operation));
            }
        }
        self.commit_data(&mut data, transaction).map(|seq| (seq, logged))
    }
}

/// Truncates that are to be finished: the number of the file in its group, the operation and its id.
type Logged = Vec<(usize, u64, LoggedOp)>;
