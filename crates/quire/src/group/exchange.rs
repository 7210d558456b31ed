//! Groups that no record of the journal takes: to fresh blocks, which then are exchanged with the old ones.
//!
//! Blocks that the group has as a whole have been written before ([`super::streamed`]), most of them while
//! the group was collected. What is left is in memory: parts of blocks.
//!
//! Order of a commit. The group has all of its files to itself (gates exclusively, sequences odd, size
//! locks), and growth that had not reached the disk has been written back.
//! 1. Fresh blocks for the edges, which are what else the group touches, whole units, are allocated. No
//!    record names them, so whatever happens until 5 leaves nothing behind.
//! 2. What the edges are to hold is composed, from the files as the cache has them and from the group's
//!    bytes, and written.
//! 3. Writeback is held off the files, the extents as they will be are planned, the transaction reserves, and
//!    what it changes is loaded. This is the last that can fail.
//! 4. The old blocks leave the cache, dirty ones too: the fresh blocks have their content.
//! 5. One transaction for all files exchanges extents and sets sizes. It depends on the data of 2 and on what
//!    was streamed, so a force flushes, writes the record, and flushes again. Old blocks are free when the
//!    record is durable (J2).
//! 6. Holds and gates open, and readers find the new blocks.
//!
//! Why a crash leaves all or nothing: all that shows the fresh blocks, sizes included, is in one record, and
//! that record is never durable before them (J1). Why an fsync after the group is not torn from it: the
//! record's `Seq` is the files' own before the gates open (J5). A write in place that follows goes to the
//! fresh blocks; if a crash takes the record back, nobody looks there.
//!
//! Why 3 comes before 4, and writeback is held before the transaction reserves: [`crate::file::prepared`].
//! Recorded content of old blocks is void with the record that frees them ([`crate::file::journaled`]); its
//! batch of homes is awaited before writeback goes on.
//!
//! Neighbours: [`super::commit`] enters the gates and settles growth.

use super::collected::Collected;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::file::backing::keys_of_homes;
use crate::inode::{Inode, InodeRef, MetaGuard};
use crate::store::transaction::{Cost, Depends, EXTENTS_PER_TRANSACTION, Transaction};
use quire_alloc::{Funding, SpaceReservation};
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Mutex};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, Seq};
use quire_cache::{GroupPart, Room, WritebackHold};
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::{EXTENT_BLOCKS_MAX, Extent, FILE_BLOCKS_MAX, Run, carve, extents_of_run, overlay};
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use rangemap::RangeSet;
use std::ops::Range;

/// Extents that one exchange takes out and puts in, at most. The metadata pool has to have room for the
/// worst that this many changes can do to the tree.
pub(super) const EXTENTS_MAX: usize = 2048;

/// Bytes that are composed and written at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Memory to compose in, charged to the cache.
pub(super) struct Buffer<'a> {
    pub(super) memory: Mutex<AlignedBuf>,
    _room: Room<'a>,
}

impl<'a> Buffer<'a> {
    /// Waits for memory: the caller holds nothing.
    pub(super) fn new(engine: &'a Engine) -> Result<Buffer<'a>> {
        let room = engine.cache.room_for_buffer(PIECE_BYTES)?;
        let bytes = room.bytes() as usize / BLOCK_SIZE * BLOCK_SIZE;
        Ok(Buffer { memory: Mutex::new(AlignedBuf::try_zeroed(bytes.max(BLOCK_SIZE))?), _room: room })
    }
}

/// A file of a group, with fresh blocks. These go back, unless the exchange has been journaled.
struct Fresh<'a> {
    engine: &'a Engine,
    file: &'a Collected,
    part: &'a GroupPart<'a>,
    /// Everything that the group writes: first block and end, ascending.
    runs: RangeSet<u64>,
    /// Where fresh blocks belong in the file, ascending: all of them, and those of the edges.
    extents: Vec<Extent>,
    edges: Vec<Extent>,
    /// The blocks of the edges.
    blocks: Vec<Run>,
}

/// What becomes of a file's extents.
#[derive(Default)]
struct Plan {
    replacement: Replacement,
    /// More extents lie beyond a smaller size than one transaction frees: they are freed behind it, as a
    /// logged operation of this id.
    cut_behind: Option<u64>,
}

/// A truncate that is to be finished: the file, the id of the operation, and the operation.
type CutBehind<'a> = (&'a InodeRef, u64, LoggedOp);

impl Plan {
    fn all(&self) -> impl Iterator<Item = &Extent> {
        self.replacement.removed.iter().chain(&self.replacement.inserted)
    }
}

impl<'a> Fresh<'a> {
    fn inode(&self) -> &'a InodeRef {
        &self.file.inode
    }

    fn new(engine: &'a Engine, file: &'a Collected, part: &'a GroupPart<'a>) -> Fresh<'a> {
        let runs = file.runs_now(part);
        Fresh { engine, file, part, runs, extents: Vec::new(), edges: Vec::new(), blocks: Vec::new() }
    }

    /// What the group touches and has not as a whole: it has no fresh blocks yet.
    fn edge_runs(&self) -> Vec<Range<u64>> {
        self.runs.iter().flat_map(|run| self.file.streamed.gaps(run)).collect()
    }

    /// Takes blocks for the edges.
    fn allocate(&mut self, reservation: &mut SpaceReservation<'_>) -> Result<()> {
        let runs = self.edge_runs();
        if let Some(first) = runs.first() {
            let goal = self.engine.allocation_goal(self.inode(), first.start)?;
            let mut missing: u64 = runs.iter().map(|run| run.end - run.start).sum();
            while missing > 0 {
                let want = missing.min(u64::from(EXTENT_BLOCKS_MAX));
                // All of them: in one run if there is one, else in as many as it takes.
                let got =
                    self.engine.store.alloc.allocate(Funding::Reserved(reservation), goal, want, want)?;
                missing -= got.iter().map(|run| run.blocks).sum::<u64>();
                self.blocks.extend(got);
            }
        }
        let mut blocks = self.blocks.iter().copied();
        let mut rest = Run::new(quire_base::BlockNo(0), 0);
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                if rest.blocks == 0 {
                    rest = blocks.next().expect("as many blocks as the runs have");
                }
                let count = rest.blocks.min(run.end - at);
                let birth = self.engine.store.snapshots.epoch();
                self.edges.extend(extents_of_run(at, Run::new(rest.start, count), false, birth));
                rest = Run::new(rest.start.offset(count), rest.blocks - count);
                at += count;
            }
        }
        self.extents = self.file.streamed.extents().chain(self.edges.iter().cloned()).collect();
        self.extents.sort_unstable_by_key(|extent| extent.file_block);
        Ok(())
    }

    /// Writes what the edges are to hold.
    fn write(&self, buffer: &mut [u8]) -> Result<()> {
        for extent in &self.edges {
            let (mut at, end) = (extent.file_block, extent.file_end());
            while at < end {
                let count = ((buffer.len() / BLOCK_SIZE) as u64).min(end - at);
                let piece = &mut buffer[..count as usize * BLOCK_SIZE];
                self.compose(at, piece)?;
                let home = extent.disk_block.offset(at - extent.file_block);
                self.engine.store.device.write(IoClass::Data, home, piece)?;
                at += count;
            }
        }
        // What has been written, streamed blocks too, is below the mark now; the record names it.
        self.inode().data_mark.fetch_max(self.engine.store.device.mark(), Ordering::AcqRel);
        Ok(())
    }

    /// What blocks of one run, from `first` on, are to hold.
    fn compose(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let (start, end) = (first * BLOCK_SIZE as u64, first * BLOCK_SIZE as u64 + out.len() as u64);
        if !self.part.covers(start, end) {
            // As far as the file goes and the group keeps it; zeros behind that.
            out.fill(0);
            let own = self.inode().size().min(self.file.keeps());
            self.part.mapping.read(start, out, &|| own)?;
        }
        self.part.overlay(start, out);
        Ok(())
    }

    /// The extents as they are and as they will be. The file's writeback is held off, or this is a first
    /// look.
    fn plan(&self) -> Result<Plan> {
        let inode = self.inode();
        // One block more on either side finds the neighbours to merge with.
        let first = self.extents.first().map(|extent| extent.file_block.saturating_sub(1));
        let last = self.extents.last().map_or(0, |extent| extent.file_end() + 1);
        let Some(size) = self.file.size else {
            let Some(first) = first else { return Ok(Plan::default()) };
            let before = inode.read_extents(first, last - first, usize::MAX)?;
            let after = overlay(&before, &self.extents);
            return Ok(Plan { replacement: Replacement::between(before, after), cut_behind: None });
        };
        // What lies behind the cut goes with the exchange, and what lies behind the end as well, or behind
        // it.
        let (cut, end) = (blocks_for(self.file.keeps()), blocks_for(size));
        let beyond = inode.read_extents(end, FILE_BLOCKS_MAX - end, EXTENTS_PER_TRANSACTION + 1)?;
        let is_long = beyond.len() > EXTENTS_PER_TRANSACTION;
        let cut_behind = is_long.then(|| self.engine.new_logged_id());
        let first = first.unwrap_or(u64::MAX).min(cut.saturating_sub(1));
        let last = if is_long { last.max(end) } else { FILE_BLOCKS_MAX };
        let before = inode.read_extents(first, last.saturating_sub(first), usize::MAX)?;
        let left_behind = if is_long { end } else { FILE_BLOCKS_MAX };
        let kept = carve(&before, cut, left_behind);
        Ok(Plan { replacement: Replacement::between(before, overlay(&kept, &self.extents)), cut_behind })
    }

    /// The keys that the exchange changes.
    fn keys(&self, plan: &Plan) -> Vec<Key> {
        let number = self.inode().number;
        let mut keys = keys_of_homes(self.inode(), plan.all().map(Extent::run));
        keys.extend(plan.all().map(|extent| Key::extent(number, extent.file_block)));
        keys.extend(plan.cut_behind.map(Key::logged));
        keys
    }

    /// Takes the blocks that the group writes, and those that it cuts off, out of the cache.
    fn discard(&self, hold: &WritebackHold<'_>) {
        for run in self.runs.iter() {
            hold.discard(run.start, run.end);
        }
        if self.file.size.is_some() {
            hold.discard(blocks_for(self.file.keeps()), u64::MAX);
        }
    }

    /// The size on disk after the exchange, over what has been written back.
    fn size_on_disk(&self, before: u64) -> u64 {
        self.file.size.or(self.file.earns(before)).unwrap_or(before)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if !self.blocks.is_empty()
            && let Err(error) = self.engine.store.alloc.cancel(&self.blocks)
        {
            tracing::error!(%error, "giving back the blocks of a group that was not committed");
        }
    }
}

impl Engine {
    /// Commits a group by way of fresh blocks. The caller has all files to itself, and has settled their
    /// growth.
    pub(super) fn exchange_group(
        self: &Arc<Engine>,
        files: &[&Collected],
        buffer: &Buffer<'_>,
    ) -> Result<Seq> {
        let fillers: Vec<_> = files.iter().map(|file| file.cut_filler()).collect();
        let parts: Vec<GroupPart<'_>> =
            files.iter().zip(&fillers).map(|(file, fillers)| file.part(fillers)).collect();
        let mut fresh: Vec<Fresh<'_>> =
            files.iter().zip(&parts).map(|(file, part)| Fresh::new(self, file, part)).collect();
        let edges = fresh.iter().flat_map(Fresh::edge_runs).map(|run| run.end - run.start).sum();
        let mut reservation = self.store.alloc.reserve(edges)?;
        fresh.iter_mut().try_for_each(|file| file.allocate(&mut reservation))?;
        // What is read here stays in memory, so that writeback is not held off for it.
        let _early = self.store.tree.ticket();
        check_extents(&fresh.iter().map(Fresh::plan).collect::<Result<Vec<_>>>()?)?;
        {
            let mut memory = buffer.memory.lock();
            fresh.iter().try_for_each(|file| file.write(&mut memory))?;
        }
        let holds: Vec<WritebackHold<'_>> =
            files.iter().map(|file| file.inode.mapping().hold_writeback(0, u64::MAX)).collect();
        let plans = fresh.iter().map(Fresh::plan).collect::<Result<Vec<_>>>()?;
        let extents = check_extents(&plans)?;
        let mut keys: Vec<Key> = fresh.iter().zip(&plans).flat_map(|(file, plan)| file.keys(plan)).collect();
        keys.sort_unstable();
        keys.dedup();
        // Each key counts once, whereas `with_extents` expects every extent in regions of its own.
        let cost =
            Cost { keys: keys.len(), ..Cost::new(3 * files.len(), 256 * files.len()).with_extents(extents) };
        let transaction = self.store.begin(cost).map_err(|error| match error.kind() {
            ErrorKind::NoSpace if extents > EXTENTS_PER_TRANSACTION => too_many(extents),
            // It would be larger than a record of this journal.
            ErrorKind::Invalid => too_many(extents),
            _ => error,
        })?;
        transaction.warm(&keys)?;
        let freed = plans.iter().flat_map(|plan| plan.replacement.removed.iter().map(Extent::run));
        self.store.load_freed(transaction.ticket(), freed)?;
        fresh.iter().zip(&holds).for_each(|(file, hold)| file.discard(hold));
        let exchanged = self.swap_extents(&mut fresh, plans, transaction).and_then(|(seq, logged)| {
            for (inode, id, operation) in logged {
                self.run_logged_live(inode, id, operation)?;
            }
            Ok(seq)
        });
        // As in `Prepared::apply`: a home that is being written may be one of the old blocks.
        self.store.device.recorded().await_batch();
        drop(holds);
        exchanged.map_err(|error| self.store.shut_down(&error))
    }

    /// The transaction. Nothing that it touches is in the cache any more, so an error is one of the volume.
    fn swap_extents<'a>(
        &self,
        files: &mut [Fresh<'a>],
        plans: Vec<Plan>,
        mut transaction: Transaction<'_>,
    ) -> Result<(Seq, Vec<CutBehind<'a>>)> {
        let inodes: Vec<&'a InodeRef> = files.iter().map(Fresh::inode).collect();
        let mut metas: Vec<MetaGuard<'_>> = inodes.iter().map(|inode| inode.meta()).collect();
        let mut records = Vec::with_capacity(files.len());
        let mut logged = Vec::new();
        for ((file, meta), plan) in files.iter().zip(&mut metas).zip(plans) {
            let inode = file.inode();
            inode.fold_times(meta);
            let mut record = self.with_size(&meta.record, file.size_on_disk(meta.record.size));
            record.blocks = record.blocks.saturating_add_signed(plan.replacement.blocks_gained());
            if let Some(id) = plan.cut_behind {
                let size = file.file.end();
                let first = blocks_for(size);
                let operation =
                    self.logged_operation(inode, LoggedKind::Truncate, first, FILE_BLOCKS_MAX, size);
                transaction.put(Key::logged(id), &operation.encode());
                logged.push((inode, id, operation));
            }
            transaction.put_inode(inode.number, &record);
            self.change_extents(&mut transaction, inode, plan.replacement);
            records.push(record);
        }
        let depends = inodes.iter().map(|inode| inode.written()).max().unwrap_or(Depends::Nothing);
        let changed = inodes.iter().map(|inode| -> &Inode { inode });
        let seq = self.store.commit_extents_of(changed, transaction, depends)?;
        for ((file, meta), record) in files.iter_mut().zip(&mut metas).zip(records) {
            let inode = file.inode();
            if let Some(extent) = file.extents.last() {
                *inode.placement_hint.lock() = (extent.file_end(), extent.disk_end().0);
            }
            file.blocks.clear();
            file.file.streamed.taken();
            inode.committed_data(seq);
            meta.emptied |= file.file.size == Some(0);
            meta.dirty = false;
            meta.record = record;
            // Under the lock, and for all files: whoever asks for a size sees all of the group or nothing.
            let size = file.file.size.unwrap_or_else(|| inode.size().max(file.file.end()));
            inode.set_size(meta, size);
        }
        Ok((seq, logged))
    }
}

/// The number of extents that plans change; an error if they are too many for one transaction.
fn check_extents(plans: &[Plan]) -> Result<usize> {
    let extents = plans.iter().map(|plan| plan.replacement.len()).sum();
    if extents <= EXTENTS_MAX { Ok(extents) } else { Err(too_many(extents)) }
}

fn too_many(extents: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "a group would change {extents} extents, more than this volume changes at once: its files, or \
             the free space, are in too many pieces"
        ),
    )
}
