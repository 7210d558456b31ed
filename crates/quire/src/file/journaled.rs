//! Data that goes through the journal (J8): units of untorn files, groups of writes, small new data that is
//! forced, and blocks whose recorded content a replay would put back.
//!
//! Protocol
//! 1. A thread that brings content holds the blocks' segments, so that records come in the order of the
//!    contents.
//! 2. Blocks without a home get one ([`FileData`]); blocks that exist keep theirs.
//! 3. One transaction carries everything: extents for new blocks, sizes, and the content of each block, by
//!    the block on disk where it belongs. It depends on no data of its own.
//! 4. Applying it tells the device ([`quire_device::RecordedBlocks`]): reads see the recorded content from
//!    then on, and homes are written behind the callers' backs, by checkpoints and by the committer.
//!
//! Content belongs to a disk block, not to a place in a file. So a record stays true when extents merge, or
//! move by collapse and insert; it is void when the block is freed or reads as zeros, in replay and live
//! alike ([`quire_format::record::no_longer_written`]).
//!
//! A block with a record that a replay would put back is written in no other way until the journal's tail has
//! passed the record: [`Inode::goes_through_journal`] sends writeback here, and direct writes go through the
//! cache. So a group on a file without units needs no further protocol, and neither does a change of the
//! property.
//!
//! Small new data. A record of new blocks or of a larger size must not become durable before the data (J1):
//! data, flush, record, flush. With the data in the record one flush makes both durable, and the calling
//! thread makes it with one write. That holds for an fsync, fdatasync or synchronous write of up to
//! [`quire_cache::RECORD_BLOCKS`] blocks; for more, a second write of the data costs more than a flush.
//! Writeback that nobody waits for takes the usual way, and so does all of a file whose layout somebody has a
//! lease of: the holder reads the device.
//!
//! Room. Content that waits for its home is in memory, at most [`Engine::homes_max`] bytes. A
//! writer that brings more has homes written first. A checkpoint needs no room in the journal for that, no
//! segment and no cached page: it makes room (J9), unless the device refuses a home.
//!
//! Neighbours: `quire_cache::Contents` from units; [`crate::group`] from groups; [`super::backing`] for all
//! other data.

use super::backing::keys_of_homes;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::inode::{Inode, MetaGuard};
use crate::store::transaction::{Cost, Depends, EXTENTS_PER_TRANSACTION, Transaction};
use quire_alloc::Funding;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, Seq};
use quire_cache::{Backing, Contents, Home};
use quire_format::extent::{Extent, FILE_BLOCKS_MAX, Run, carve, extents_of_run, overlay};
use quire_format::key::Key;
use std::ops::Range;

/// The most content that waits in memory for its home, and the least limit that is of use.
const HOMES_BYTES: u64 = 64 << 20;
const HOMES_BYTES_MIN: u64 = 2 << 20;

/// Blocks of a file with their places on disk, and with what they hold.
pub(crate) struct Piece {
    pub(crate) file_block: u64,
    pub(crate) home: Run,
    /// Its home is not that of a written extent so far.
    is_new: bool,
    pub(crate) bytes: Arc<[u8]>,
}

/// Content for one file, with its homes. What was allocated goes back, unless [`Engine::commit_data`] has
/// journaled it.
pub(crate) struct FileData<'a> {
    engine: &'a Engine,
    inode: &'a Inode,
    /// In the order of the file.
    pieces: Vec<Piece>,
    fresh: Vec<Run>,
    /// The size that the file has at least, once this is visible.
    pub(crate) grows_to: u64,
    /// The size that it gets, whatever it was.
    resized: Option<Resized>,
}

/// A file's new size, and what it costs.
struct Resized {
    size: u64,
    /// The block from which on nothing stays but what is written now; no more than the blocks of `size`.
    cut: u64,
    /// The extents between there and the new end, and those beyond.
    inside: Vec<Extent>,
    beyond: Vec<Extent>,
}

impl Resized {
    /// Whether more extents lie beyond the new size than one transaction frees.
    fn is_long(&self) -> bool {
        self.beyond.len() > EXTENTS_PER_TRANSACTION
    }

    /// The block from which on the transaction leaves extents alone.
    fn stays_from(&self) -> u64 {
        if self.is_long() { blocks_for(self.size) } else { FILE_BLOCKS_MAX }
    }

    /// The extents that the transaction frees, in whole or in part.
    fn freed(&self) -> impl Iterator<Item = &Extent> {
        self.inside.iter().chain(self.beyond.iter().filter(|_| !self.is_long()))
    }
}

impl<'a> FileData<'a> {
    pub(crate) fn new(engine: &'a Engine, inode: &'a Inode) -> FileData<'a> {
        FileData { engine, inode, pieces: Vec::new(), fresh: Vec::new(), grows_to: 0, resized: None }
    }

    /// Adds a run of blocks, behind those that it has; `copy` fills in what they hold. Blocks without a home
    /// take one from what was reserved for them.
    pub(crate) fn add(&mut self, first: u64, count: u64, copy: impl Fn(u64, &mut [u8])) -> Result<()> {
        let mut at = first;
        while at < first + count {
            for run in self.inode.map(at, first + count - at)? {
                let (homes, is_new) = match run.home {
                    Home::Written(home) => (vec![Run::new(home, run.count)], false),
                    Home::Unwritten(home) => (vec![Run::new(home, run.count)], true),
                    Home::Hole | Home::Shared(_) => (self.allocate(run.file_block, run.count)?, true),
                };
                for home in homes {
                    let mut bytes: Arc<[u8]> =
                        std::iter::repeat_n(0, home.blocks as usize * BLOCK_SIZE).collect();
                    copy(at, Arc::get_mut(&mut bytes).expect("nobody else has it yet"));
                    self.pieces.push(Piece { file_block: at, home, is_new, bytes });
                    at += home.blocks;
                }
            }
        }
        Ok(())
    }

    /// Gives the file another size; of what it holds beyond `keeps` nothing stays. The caller has it to
    /// itself.
    pub(crate) fn resize(&mut self, size: u64, keeps: u64) -> Result<()> {
        let (cut, end) = (blocks_for(keeps.min(size)), blocks_for(size));
        let inside = self.inode.read_extents(cut, end - cut, EXTENTS_PER_TRANSACTION + 1)?;
        if inside.len() > EXTENTS_PER_TRANSACTION {
            let text = "a group cuts a file and makes it longer again that is in too many pieces there";
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let beyond = self.inode.read_extents(end, FILE_BLOCKS_MAX - end, EXTENTS_PER_TRANSACTION + 1)?;
        self.resized = Some(Resized { size, cut, inside, beyond });
        Ok(())
    }

    /// Whether more extents lie beyond the new size than one transaction frees.
    pub(crate) fn frees_too_many(&self) -> bool {
        self.resized.as_ref().is_some_and(Resized::is_long)
    }

    /// The extents that the transaction frees, in whole or in part.
    fn freed(&self) -> impl Iterator<Item = &Extent> {
        self.resized.iter().flat_map(Resized::freed)
    }

    fn allocate(&mut self, block: u64, count: u64) -> Result<Vec<Run>> {
        let (engine, inode) = (self.engine, self.inode);
        let goal = engine.allocation_goal(inode, block)?;
        let mut reservation = inode.delayed.take(&engine.store.alloc, count);
        // All of them, in as many runs as it takes.
        let got = engine.store.alloc.allocate(Funding::Reserved(&mut reservation), goal, count, count);
        inode.delayed.put(reservation);
        let runs = got?;
        self.fresh.extend(&runs);
        if let Some(last) = runs.last() {
            *inode.placement_hint.lock() = (block + count, last.end().0);
        }
        Ok(runs)
    }

    /// Blocks in all.
    pub(crate) fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.home.blocks).sum()
    }

    /// Pieces whose homes are to be journaled.
    pub(crate) fn new_pieces(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.is_new).count()
    }

    /// Extents that a record puts in or takes out.
    fn new_extents(&self) -> usize {
        self.new_pieces() + self.freed().count()
    }

    /// Loads what journaling the new homes reads and writes. It stays while the transaction lives.
    pub(crate) fn warm(&self, transaction: &Transaction<'_>) -> Result<()> {
        let store = &self.engine.store;
        if let Some((_, range)) = self.resized_range() {
            self.inode.read_extents(range.start, range.end - range.start, usize::MAX)?;
            let keys = self.freed().map(|extent| Key::extent(self.inode.number, extent.file_block));
            transaction.warm(&keys.collect::<Vec<_>>())?;
            store.load_freed(transaction.ticket(), self.freed().map(Extent::run))?;
        }
        let (Some(first), Some(last)) = (self.pieces.first(), self.pieces.last()) else {
            return transaction.warm(&[Key::inode(self.inode.number)]);
        };
        if self.new_pieces() > 0 || self.resized.is_some() {
            let from = first.file_block.saturating_sub(1);
            let end = last.file_block + last.home.blocks;
            let found = self.inode.read_extents(from, end + 1 - from, usize::MAX)?;
            let moving = found.iter().filter(|extent| store.snapshots.moves(extent));
            let moving = moving.filter_map(|extent| extent.clip(first.file_block, end));
            store.load_freed(transaction.ticket(), moving.map(|extent| extent.run()))?;
        }
        let homes = self.pieces.iter().filter(|piece| piece.is_new).map(|piece| piece.home);
        transaction.warm(&keys_of_homes(self.inode, homes))
    }

    /// The blocks whose extents decide what becomes of those that a new size frees, if it frees some. One
    /// block more on either side finds the neighbours to merge with.
    fn resized_range(&self) -> Option<(&Resized, Range<u64>)> {
        let resized = self.resized.as_ref().filter(|resized| resized.freed().next().is_some())?;
        let new = self.pieces.iter().find(|piece| piece.is_new);
        let from = new.map_or(u64::MAX, |new| new.file_block).min(resized.cut).saturating_sub(1);
        let to = (resized.stays_from() + 1).min(FILE_BLOCKS_MAX);
        Some((resized, from..to.max(from)))
    }

    /// The extents around the new pieces as they are, and as they will be.
    fn plan(&self) -> Result<Replacement> {
        let (engine, inode) = (self.engine, self.inode);
        let new: Vec<Extent> = self
            .pieces
            .iter()
            .filter(|piece| piece.is_new)
            .flat_map(|piece| {
                extents_of_run(piece.file_block, piece.home, false, engine.store.snapshots.epoch())
            })
            .collect();
        let Some((resized, range)) = self.resized_range() else {
            return engine.store.plan_overlay(inode, &new);
        };
        let before = engine.store.extents_in(inode, range.start, range.end - range.start, usize::MAX)?;
        let mut kept = carve(&before, resized.cut, resized.stays_from());
        // Content that goes to where it was stays there.
        let in_place = self.pieces.iter().filter(|piece| !piece.is_new).flat_map(|piece| {
            let (first, end) = (piece.file_block.max(resized.cut), piece.file_block + piece.home.blocks);
            before.iter().filter_map(move |extent| extent.clip(first, end))
        });
        let in_place: Vec<Extent> = in_place.collect();
        kept = overlay(&kept, &in_place);
        let new = engine.store.snapshots.keep_births(&before, &new);
        Ok(Replacement::between(before, overlay(&kept, &new)))
    }
}

impl Drop for FileData<'_> {
    fn drop(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        match self.engine.store.alloc.cancel(&self.fresh) {
            Ok(returned) => self.inode.delayed.put(returned),
            Err(error) => tracing::error!(%error, "giving back the homes of blocks that were not journaled"),
        }
    }
}

/// What journaling content costs at most.
pub(crate) fn data_cost(files: &[FileData<'_>]) -> Cost {
    let pieces = files.iter().map(|file| file.pieces.len()).sum();
    let new = files.iter().map(FileData::new_extents).sum::<usize>();
    let blocks = files.iter().map(|file| file.blocks() as usize).sum();
    cost_of(files.len(), pieces, new, blocks)
}

fn cost_of(files: usize, pieces: usize, new: usize, blocks: usize) -> Cost {
    let extents = if new == 0 { 0 } else { 2 * new + 6 * files };
    Cost::new(2 * files, 160 * files).with_extents(extents).with_data(blocks, pieces).critical()
}

impl Engine {
    /// Bytes of content that may wait for their homes: in memory, and in half of the ring.
    pub(crate) fn homes_max(&self) -> u64 {
        let ring = self.store.superblock.journal_blocks * BLOCK_SIZE as u64;
        HOMES_BYTES.min(ring / 2).min((self.cache.limit_bytes() / 8).max(HOMES_BYTES_MIN))
    }

    /// Whether homes are to be written before more content is journaled.
    pub(crate) fn wants_homes(&self) -> bool {
        self.store.device.recorded().pending_bytes() > self.homes_max()
    }

    /// Writes homes, if more content waits for them than should. The caller holds neither segments nor a
    /// reservation.
    pub(crate) fn await_homes(&self) -> Result<()> {
        if self.wants_homes() { self.write_homes() } else { Ok(()) }
    }

    /// Writes the homes of everything recorded so far; their records stay needed until a checkpoint has
    /// passed them. What the device refuses is durable all the same, in the journal.
    pub(crate) fn write_homes(&self) -> Result<()> {
        self.store.write_homes_up_to(self.store.journal()?.head())
    }

    /// Whether a record has content of a run of file blocks that a replay would put back.
    pub(crate) fn has_recorded(&self, inode: &Inode, block: u64, count: u64) -> Result<bool> {
        let (first, alike) = self.recorded_first(inode, block, count)?;
        Ok(count > 0 && (first || alike < count))
    }

    /// Whether a record has such content of the first of these blocks, and how many from it on are alike.
    fn recorded_first(&self, inode: &Inode, block: u64, count: u64) -> Result<(bool, u64)> {
        let recorded = self.store.device.recorded();
        if recorded.is_empty() {
            return Ok((false, count));
        }
        let mut first = None;
        let mut at = block;
        while at < block + count {
            for run in inode.map(at, block + count - at)? {
                let (covered, alike) = match run.home {
                    Home::Written(home) => recorded.covers_first(home, run.count),
                    _ => (false, run.count),
                };
                if *first.get_or_insert(covered) != covered {
                    return Ok((!covered, at - block));
                }
                at = run.file_block + alike;
                if alike < run.count {
                    return Ok((covered, at - block));
                }
            }
        }
        Ok((first.unwrap_or(false), count))
    }

    /// Whether writeback of the first of these blocks goes through the journal, and how many from it on are
    /// alike: a record has content of theirs that a replay would put back, or they are `few`, forced, and
    /// need a record anyway, in a file without leases.
    pub(crate) fn must_journal(
        &self,
        inode: &Inode,
        block: u64,
        count: u64,
        few: bool,
    ) -> Result<(bool, u64)> {
        match few && !inode.marks.now().is_leased() && self.needs_record(inode, block, count)? {
            true => Ok((true, count)),
            false => self.recorded_first(inode, block, count),
        }
    }

    /// Whether writing these blocks changes the map or the size on disk.
    fn needs_record(&self, inode: &Inode, block: u64, count: u64) -> Result<bool> {
        if self.store.device.recorded().is_stuck() {
            // The device refuses homes. Data for new ones is not to fill the journal as well, and its file
            // hears of the error.
            return Ok(false);
        }
        let grows = || inode.meta().record.size < inode.size();
        let is_written = |run: &quire_cache::Run| matches!(run.home, Home::Written(_));
        Ok(grows() || !inode.map(block, count)?.iter().all(is_written))
    }

    /// Waits until there is room for a record with the content of so many blocks, of which `refused` may be
    /// new extents: one that was refused had them.
    pub(crate) fn await_data_room(&self, blocks: u64, refused: u64) -> Result<()> {
        self.await_homes()?;
        let (blocks, refused) = (blocks as usize, refused as usize);
        let new = blocks.min(EXTENTS_PER_TRANSACTION).max(refused);
        self.store.begin(cost_of(1, blocks.max(refused), new, blocks)).map(drop)
    }

    /// See [`Backing::journal`].
    pub(crate) fn journal_contents(&self, inode: &Inode, contents: &Contents<'_>) -> Result<()> {
        if self.wants_homes() {
            return Err(Error::new(ErrorKind::WouldBlock, "content waits for its homes"));
        }
        self.store.check_writable()?;
        let mut data = FileData::new(self, inode);
        for (first, count) in contents.runs() {
            data.add(first, count, |block, out| contents.copy(block, out))?;
        }
        let has_queued = inode.has_queued.swap(false, Ordering::AcqRel);
        let Some(transaction) = self.store.try_begin(data_cost(std::slice::from_ref(&data)), has_queued)
        else {
            inode.refused_extents.fetch_max(data.new_extents() as u64, Ordering::AcqRel);
            return Err(Error::new(ErrorKind::WouldBlock, "the journal has no room"));
        };
        data.warm(&transaction)?;
        self.commit_data(std::slice::from_mut(&mut data), transaction).map(drop)
    }

    /// Journals content of files, ascending by inode, in one transaction: its `Seq`. Every segment of the
    /// blocks is held, or the blocks are in writeback.
    pub(crate) fn commit_data(
        &self,
        files: &mut [FileData<'_>],
        mut transaction: Transaction<'_>,
    ) -> Result<Seq> {
        let mut metas: Vec<MetaGuard<'_>> = files.iter().map(|file| file.inode.meta()).collect();
        let mut changed = Vec::with_capacity(files.len());
        let mut depends = Depends::Nothing;
        for (file, meta) in files.iter().zip(&mut metas) {
            let inode = file.inode;
            let plan = file.plan()?;
            let gained = plan.blocks_gained();
            let done: Vec<Range<u64>> = file
                .pieces
                .iter()
                .map(|piece| piece.file_block..piece.file_block + piece.home.blocks)
                .collect();
            self.revoke_recorded(inode, &done);
            let size = inode.size().max(file.grows_to);
            let on_disk = match &file.resized {
                Some(resized) => resized.size,
                None => self.front(inode, meta, size, &done).max(file.grows_to).max(meta.record.size),
            };
            let mut record = None;
            if plan.len() > 0 || on_disk != meta.record.size || file.resized.is_some() {
                inode.fold_times(meta);
                let mut new = match file.resized {
                    Some(_) => self.with_size(&meta.record, on_disk),
                    None => meta.record.clone(),
                };
                new.blocks = new.blocks.saturating_add_signed(gained);
                new.size = on_disk;
                if on_disk > meta.record.size {
                    depends = depends.max(inode.written());
                }
                transaction.put_inode(inode.number, &new);
                self.change_extents(&mut transaction, inode, plan);
                record = Some(new);
            }
            changed.push(record);
        }
        for piece in files.iter().flat_map(|file| &file.pieces) {
            transaction.data(piece.home.start, piece.bytes.clone());
        }
        let with_extents = files.iter().zip(&changed).filter(|(_, record)| record.is_some());
        let with_extents = with_extents.map(|(file, _)| file.inode);
        let seq = self.store.commit_extents_of(with_extents, transaction, depends)?;
        for ((file, meta), record) in files.iter_mut().zip(&mut metas).zip(changed) {
            // What was promised to them is theirs now.
            let placed = std::mem::take(&mut file.fresh).iter().map(|run| run.blocks).sum();
            self.store.release_promised(&file.inode.delayed, placed);
            file.inode.committed_data(seq);
            if let Some(record) = record {
                meta.record = record;
                meta.dirty = false;
            }
            // Under all locks. Nobody may see the new record with the old size and raise it again, and a
            // thread that is told the size of one file is told those of the others.
            match file.resized {
                Some(Resized { size, .. }) => {
                    meta.emptied |= size == 0;
                    file.inode.set_size(meta, size);
                }
                // The group may have this file to itself for long, though another one is cut.
                None if file.grows_to > 0 => {
                    file.inode.size_sequence.settle(file.inode.size().max(file.grows_to));
                }
                None => {}
            }
        }
        drop(metas);
        if self.store.device.recorded().pending_bytes() > self.homes_max() / 2 {
            self.store.committer.want_homes();
        }
        Ok(seq)
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{} at {}", self.file_block, self.home.blocks, self.home.start)
    }
}
