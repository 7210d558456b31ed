//! Making one file durable, or all: what has to happen, step by step.
//!
//! Protocol of fsync (J4, J5). When it is called it takes a snapshot: the size, and which blocks are dirty or
//! in writeback. That is what it covers; what is written later keeps nobody waiting. Then, in this order:
//! 1. its blocks are written ([`Event::Data`]);
//! 2. an operation that has the file to itself at that moment ends ([`Event::Exclusive`]): a truncate drops
//!    dirty blocks from memory before its record is in the journal, and a file that looks clean then is
//!    neither written nor cut;
//! 3. times, and the size that the data has earned, go into the journal;
//! 4. the journal is forced to the inode's last `Seq` (fdatasync: to the last one that reading the data back
//!    needs), and the device flushed as far as the file's last completed data write ([`Step::Force`]).
//!
//! Each step does nothing where there is nothing to do: fsync of a clean file is no I/O, fdatasync of an
//! overwrite is data and one flush. [`SyncSet::advance`] goes as far as it can without waiting for data or
//! for such an operation. Its driver waits for the [`Event`] that it returns, or is called back
//! ([`Event::call`]).
//!
//! The size (J6). When the blocks of the snapshot have been written, every byte up to the size that it saw
//! has been written, though some blocks may be dirty again. The fsync notes that in the inode
//! (`Meta::earned`), and the next one to journal the size takes it up to there: the fsync itself, or the
//! exclusive operation under way, before it opens the gate. So the wait for one such operation suffices,
//! however many follow. A cut since the snapshot (`Meta::cuts`) makes the promise void: the cut's own record
//! says how long the file is.
//!
//! Neighbours: [`super::fsync`] drives it; [`super::backing`] says how far the size may go;
//! `quire_cache::Snapshot`.

use super::sync_queue::Reached;
use crate::dirty_inodes::Owes;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::store::transaction::{Cost, Depends};
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, InodeNo, Result};
use quire_cache::{AtEnd, Purpose, Snapshot, SnapshotEnd};
use quire_format::key::Key;

/// What an fsync waits for next.
pub(crate) enum Step {
    Wait(Event),
    /// A force as far as this. Nothing else is missing.
    Force(Reached),
}

/// What an fsync waits for before its force.
pub(crate) enum Event {
    /// Blocks of its snapshot are written.
    Data(SnapshotEnd),
    /// The operation ends that has the file to itself, by its number in
    /// [`crate::size_sequence::SizeSequence`].
    Exclusive(InodeRef, u64),
}

impl Event {
    /// Has `call` called when that has happened; gives it back if it has already.
    pub(crate) fn call(self, call: AtEnd) -> Option<AtEnd> {
        match self {
            Event::Data(end) => end.call(call),
            Event::Exclusive(inode, number) => inode.size_sequence.call_at_end(number, call),
        }
    }
}

/// An fsync of one file under way.
struct FileSync {
    inode: InodeRef,
    data_only: bool,
    /// The size that it promises.
    wanted: u64,
    /// Cuts that the file has had before.
    cuts: u64,
    /// Until its blocks have been written.
    snapshot: Option<Snapshot>,
    is_written: bool,
    /// The operation that it waits for.
    exclusive: Option<u64>,
}

impl FileSync {
    /// Of bytes `[offset, offset + len)` of the contents, and of the attributes unless `data_only`.
    fn new(inode: &InodeRef, offset: u64, len: u64, data_only: bool) -> FileSync {
        let end = offset.saturating_add(len);
        let (on_disk, cuts) = {
            let meta = inode.meta();
            (meta.record.size, meta.cuts)
        };
        // Reading growth back needs everything before it, or the size on disk could not reach it (J6).
        let start = if end > on_disk { offset.min(on_disk) } else { offset };
        // Whole units of an untorn file: these are written together, and the size goes over all of one.
        let unit = inode.unit_blocks().unwrap_or(1);
        let first = start / BLOCK_SIZE as u64 / unit * unit;
        let last = end.div_ceil(BLOCK_SIZE as u64).next_multiple_of(unit);
        // After the cuts have been read: a size that a later cut takes back is not insisted on. A range that
        // ends before the file earns whole blocks: no size on disk ends where no write did.
        let wanted = last.saturating_mul(BLOCK_SIZE as u64).min(inode.size());
        let snapshot = inode.mapping.get().map(|mapping| mapping.snapshot(first, last));
        FileSync {
            inode: inode.clone(),
            data_only,
            wanted,
            cuts,
            snapshot,
            is_written: false,
            exclusive: None,
        }
    }

    /// Goes as far as it can; gives what it waits for then.
    fn advance(&mut self, engine: &Engine) -> Result<Step> {
        if let Some(snapshot) = &mut self.snapshot {
            if let Some(end) = snapshot.advance(true) {
                return Ok(Step::Wait(Event::Data(end)));
            }
            snapshot.outcome()?;
            self.snapshot = None;
        }
        if !self.is_written {
            self.is_written = true;
            let mut meta = self.inode.meta();
            if meta.cuts == self.cuts {
                meta.earned = meta.earned.max(self.wanted);
            }
            drop(meta);
            self.exclusive = self.inode.size_sequence.under_way();
        }
        loop {
            if let Some(number) =
                self.exclusive.filter(|number| self.inode.size_sequence.is_under_way(*number))
            {
                return Ok(Step::Wait(Event::Exclusive(self.inode.clone(), number)));
            }
            engine.journal_attributes(&self.inode, self.data_only)?;
            if self.has_size() {
                break;
            }
            // Another such operation has begun. It journals the size at its end.
            self.exclusive = self.inode.size_sequence.under_way();
        }
        let seq = if self.data_only { &self.inode.datasync_seq } else { &self.inode.commit_seq };
        let mark = self.inode.data_mark.load(Ordering::Acquire);
        Ok(Step::Force(Reached { seq: seq.load(Ordering::Acquire), mark }))
    }

    /// Whether the size on disk is what was promised, as far as the file is as long still.
    fn has_size(&self) -> bool {
        let meta = self.inode.meta();
        self.inode.mapping.get().is_none()
            || meta.freed
            || meta.cuts != self.cuts
            || meta.record.size >= self.wanted.min(self.inode.size())
    }
}

/// An fsync under way: of one file, or of all that have something to be made durable. Every file is tried,
/// whatever becomes of the others.
pub(crate) struct SyncSet {
    /// Files that need more than a force.
    left: Vec<FileSync>,
    /// Of the whole volume: attributes are journaled together, at the end.
    is_volume: bool,
    need: Reached,
    /// The first error.
    outcome: Result<()>,
}

impl SyncSet {
    /// fsync of bytes `[offset, offset + len)` of a file, and of its attributes unless `data_only`, as
    /// programs ask for it.
    pub(crate) fn fsync(inode: &InodeRef, offset: u64, len: u64, data_only: bool) -> SyncSet {
        inode.mapping.get().inspect(|mapping| mapping.note_forced());
        SyncSet::file(inode, offset, len, data_only)
    }

    /// The same for the engine's own purposes.
    pub(crate) fn file(inode: &InodeRef, offset: u64, len: u64, data_only: bool) -> SyncSet {
        let left = vec![FileSync::new(inode, offset, len, data_only)];
        SyncSet { left, is_volume: false, need: Reached::default(), outcome: Ok(()) }
    }

    /// syncfs.
    pub(crate) fn volume(engine: &Arc<Engine>) -> SyncSet {
        let mut numbers: Vec<InodeNo> =
            engine.cache.dirty_mappings().iter().map(|mapping| mapping.inode()).collect();
        // Only now: an operation that has dropped dirty blocks has marked its inode before.
        numbers.extend(engine.inodes.dirty.numbers(Owes::Times));
        numbers.sort_unstable();
        numbers.dedup();
        let left: Vec<FileSync> = numbers
            .into_iter()
            .filter_map(|number| engine.inodes.enter(number))
            .filter(|inode| engine.has_data_to_sync(inode))
            .map(|inode| FileSync::new(&inode, 0, u64::MAX, true))
            .collect();
        SyncSet { left, is_volume: true, need: Reached::default(), outcome: Ok(()) }
    }

    /// Starts writing what is dirty, for a caller who forces it right after. If that is little the calling
    /// thread writes it itself, or leaves it to the journal.
    pub(crate) fn start_here(&mut self) {
        self.snapshots().for_each(|snapshot| snapshot.start_here(Purpose::Force));
    }

    /// What is to be written, for [`quire_cache::Cache::start_snapshots`].
    pub(crate) fn snapshots(&mut self) -> impl Iterator<Item = &mut Snapshot> {
        self.left.iter_mut().filter_map(|file| file.snapshot.as_mut())
    }

    /// Blocks of a file that are to be written; `None` for the volume.
    pub(crate) fn blocks(&self) -> Option<u64> {
        let blocks = || self.left.iter().filter_map(|file| file.snapshot.as_ref()).map(Snapshot::len).sum();
        (!self.is_volume).then(blocks)
    }

    /// Goes as far as it can; gives what it waits for then. If it has to wait for several files it is that of
    /// the first one; the others go on when that has come.
    pub(crate) fn advance(&mut self, engine: &Arc<Engine>) -> Step {
        let mut first = None;
        self.left.retain_mut(|file| match file.advance(engine) {
            Ok(Step::Wait(event)) => {
                first.get_or_insert(event);
                true
            }
            Ok(Step::Force(need)) => {
                self.need = self.need.max(need);
                false
            }
            Err(error) => {
                note(&mut self.outcome, Err(error));
                false
            }
        });
        if let Some(event) = first {
            return Step::Wait(event);
        }
        if self.is_volume {
            note(&mut self.outcome, engine.journal_dirty_inodes(Owes::Times));
            match engine.store.journal() {
                Ok(journal) => {
                    self.need = Reached { seq: journal.head().0, mark: engine.store.device.mark() }
                }
                Err(error) => note(&mut self.outcome, Err(error)),
            }
        }
        Step::Force(self.need)
    }

    /// Waits for the event that [`SyncSet::advance`] has given.
    pub(crate) fn wait(&mut self, event: Event) {
        match event {
            // What has come of it is asked for by the next step.
            Event::Data(_) => self.snapshots().take(1).for_each(|snapshot| drop(snapshot.wait())),
            Event::Exclusive(inode, number) => inode.size_sequence.await_end(number),
        }
    }

    /// Everything but the force, waiting for each event.
    pub(crate) fn run(&mut self, engine: &Arc<Engine>) -> Reached {
        loop {
            match self.advance(engine) {
                Step::Force(need) => return need,
                Step::Wait(event) => self.wait(event),
            }
        }
    }

    /// What has come of it before its force.
    pub(crate) fn outcome(&mut self) -> Result<()> {
        std::mem::replace(&mut self.outcome, Ok(()))
    }
}

/// Keeps the first error.
fn note(outcome: &mut Result<()>, new: Result<()>) {
    if outcome.is_ok() {
        *outcome = new;
    }
}

impl Engine {
    /// Whether data of a file is to be written or waited for, or an operation that has it to itself.
    fn has_data_to_sync(&self, inode: &Inode) -> bool {
        let has_data = inode.mapping.get().is_some_and(|mapping| {
            !mapping.is_clean() || mapping.error().is_some() || inode.meta().record.size < inode.size()
        });
        // Last: what an exclusive operation has dropped looked clean.
        has_data || inode.size_sequence.under_way().is_some()
    }

    /// Writes a file's dirty data back, waits, and journals the size that this has earned: what the journal
    /// gets next is never there without it.
    pub(crate) fn write_back_inode(self: &Arc<Engine>, inode: &InodeRef) -> Result<()> {
        if inode.mapping.get().is_none() {
            return Ok(());
        }
        let mut file = SyncSet::file(inode, 0, u64::MAX, true);
        file.snapshots().for_each(|snapshot| snapshot.start_here(Purpose::Writeback));
        file.run(self);
        file.outcome()
    }

    /// Whether [`Engine::write_back_inode`] would have nothing to write or wait for now.
    pub(crate) fn has_nothing_to_write_back(&self, inode: &Inode) -> bool {
        let Some(mapping) = inode.mapping.get() else { return true };
        mapping.is_clean() && inode.meta().record.size >= inode.size()
    }

    /// Puts times, and the size that data written back has earned, into the journal. With `datasync` only the
    /// size.
    pub(crate) fn journal_attributes(&self, inode: &Inode, datasync: bool) -> Result<()> {
        {
            let meta = inode.meta();
            let times = !datasync && (meta.dirty || inode.has_times());
            if !times && self.earned_record(inode, &meta).size == meta.record.size {
                return Ok(());
            }
        }
        let mut transaction = self.store.begin(Cost::new(1, 128).critical())?;
        transaction.warm(&[Key::inode(inode.number)])?;
        let mut meta = inode.meta();
        if meta.freed {
            return Ok(());
        }
        inode.fold_times(&mut meta);
        let record = self.earned_record(inode, &meta);
        let grew = record.size != meta.record.size;
        if !grew && !meta.dirty {
            return Ok(());
        }
        transaction.put_inode(inode.number, &record);
        let depends = if grew { inode.written() } else { Depends::Nothing };
        let seq = transaction.commit(depends)?;
        if grew {
            inode.committed_data(seq);
        } else {
            inode.committed(seq);
        }
        meta.record = record;
        meta.dirty = false;
        Ok(())
    }
}
