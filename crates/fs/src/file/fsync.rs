//! Durability of files: one, many, or the whole volume.
//!
//! Protocol of fsync (J4, J5): write back the file's dirty blocks and wait, those already in flight included; let a
//! truncate, or whoever else drops dirty blocks, finish; put attributes that are only in memory into the journal; force
//! the journal to the inode's last `Seq` (fdatasync: to the last one that reading the data back needs); flush the device
//! as far as the file's last completed data write.
//! Each step does nothing where there is nothing to do: fsync of a clean file is no I/O, fdatasync of an overwrite
//! is data and one flush.
//!
//! An asynchronous fsync is queued; a worker takes all that are queued, starts writing all of them back, waits for and
//! journals each, then makes one force and one flush for all of them, and completes them. A single one takes the way of
//! [`super::ahead`], as synchronous calls do.
//!
//! Errors: a failed data writeback sticks to the file until the blocks are written; the fsync says so, and the next
//! one does too. A shut-down volume fails every fsync at once.
//!
//! Neighbours: `journal` groups the forces; the cache writes back; [`super::backing`] stores the `Seq`.

use super::ahead::Forcing;
use crate::engine::Engine;
use crate::gate::GateState;
use crate::inode::{Inode, InodeRef};
use crate::transaction::Cost;
use quire_base::broken::{Broken, is_broken};
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, Seq};
use quire_cache::Mapping;

/// Called with the outcome of an asynchronous operation.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;

/// A queued fsync.
pub(crate) struct Pending {
    inode: InodeRef,
    datasync: bool,
    done: Completion,
}

/// Queued fsyncs that are served one by one: with more, writing all of them back first is better.
const ALONE_MAX: usize = 2;

/// How a force waits for the data beside it: some looks at once, then some with a pause; 3 ms in all, at most.
const DATA_ROUNDS_SHORT: u32 = 64;
const DATA_ROUNDS_MAX: u32 = 64 + 30;
const DATA_ROUND: Duration = Duration::from_micros(100);

/// Queued fsyncs that one force completes at most.
const BULK_MAX: usize = 4096;

/// Waits for whoever has the file to himself. A truncate drops dirty blocks from memory before its record is in the
/// journal: a file that looks clean then is neither written nor cut.
fn await_drops(inode: &Inode) {
    if inode.seen.is_exclusive() {
        drop(inode.gate.enter(GateState::Buffered));
    }
}

/// What of a file an fsync writes back, and the size that it promises.
struct Span {
    first: u64,
    last: u64,
    wanted: u64,
    unflushed: bool,
}

/// How far the journal and the device must be for an fsync to be true.
#[derive(Clone, Copy)]
struct Durable {
    seq: Seq,
    mark: u64,
}

impl Engine {
    /// Writes a file's dirty data back and waits.
    pub(crate) fn write_back_inode(&self, inode: &Inode) -> Result<()> {
        match inode.mapping.get() {
            Some(mapping) => mapping.write_back(0, u64::MAX),
            None => Ok(()),
        }
    }

    /// fsync, or with `datasync` fdatasync.
    pub(crate) fn fsync(self: &Arc<Engine>, inode: &InodeRef, datasync: bool) -> Result<()> {
        self.sync_range(inode, 0, u64::MAX, datasync)
    }

    /// fsync of what lies in a range of bytes.
    pub(crate) fn sync_range(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        len: u64,
        datasync: bool,
    ) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let durable = self.start_sync(inode, offset, len, datasync)?;
        self.make_durable(durable)
    }

    /// The part of an fsync before the force: data at the device, attributes in the journal.
    fn start_sync(&self, inode: &InodeRef, offset: u64, len: u64, datasync: bool) -> Result<Durable> {
        let span = self.span_to_sync(inode, offset, len)?;
        let written = match inode.mapping.get() {
            Some(mapping) => self.write_back_forced(inode, mapping, span.first, span.last, datasync),
            None => Ok(()),
        };
        written.and_then(|()| self.journal_written(inode, &span, datasync))
    }

    /// What an fsync has to write back.
    fn span_to_sync(&self, inode: &InodeRef, offset: u64, len: u64) -> Result<Span> {
        self.check_writable()?;
        let unflushed = is_broken(Broken::FsyncWithoutFlush)
            && inode.mapping.get().is_none_or(|mapping| mapping.is_clean());
        let end = offset.saturating_add(len);
        let wanted = end.min(inode.size());
        // Reading growth back needs everything before it, or the size on disk could not reach it (J6).
        let on_disk = inode.meta().record.size;
        let start = if end > on_disk { offset.min(on_disk) } else { offset };
        let (first, last) = (start / BLOCK_SIZE as u64, end.div_ceil(BLOCK_SIZE as u64));
        Ok(Span { first, last, wanted, unflushed })
    }

    /// When the data has been written back: what else the journal must have.
    fn journal_written(&self, inode: &InodeRef, span: &Span, datasync: bool) -> Result<Durable> {
        await_drops(inode);
        self.journal_attributes(inode, datasync)?;
        self.reach_size(inode, span.wanted, datasync)?;
        let seq = if datasync { &inode.datasync_seq } else { &inode.commit_seq };
        let mark = if span.unflushed { 0 } else { inode.data_mark.load(Ordering::Acquire) };
        Ok(Durable { seq: Seq(seq.load(Ordering::Acquire)), mark })
    }

    /// The part of many fsyncs before their force: all data is on its way before any of it is waited for.
    fn start_syncs(&self, pending: &[Pending]) -> Vec<Result<Durable>> {
        let spans: Vec<Result<Span>> =
            pending.iter().map(|pending| self.span_to_sync(&pending.inode, 0, u64::MAX)).collect();
        let mappings: Vec<Option<&Arc<Mapping>>> =
            pending.iter().map(|pending| pending.inode.mapping.get()).collect();
        let mut started =
            self.cache.start_write_back(mappings.iter().flatten().map(|mapping| &***mapping)).into_iter();
        let mut finish = |((pending, span), mapping): ((&Pending, Result<Span>), Option<&Arc<Mapping>>)| {
            let started = mapping.and_then(|_| started.next()).unwrap_or(Ok(()));
            let span = span?;
            if let Some(mapping) = mapping {
                mapping.wait_write_back(span.first, span.last)?;
            }
            started?;
            self.journal_written(&pending.inode, &span, pending.datasync)
        };
        pending.iter().zip(spans).zip(mappings.clone()).map(&mut finish).collect()
    }

    /// Writes back what will be forced. Where the record went ahead of the data, the journal is written beside it, and the
    /// flush behind the journal write covers both if the data has completed by then, for which it waits a little.
    fn write_back_forced(
        &self,
        inode: &Inode,
        mapping: &Mapping,
        first: u64,
        last: u64,
        datasync: bool,
    ) -> Result<()> {
        let forcing = Forcing::begin();
        let started = mapping.start_forced(first, last);
        let has_recorded = forcing.has_recorded();
        drop(forcing);
        let forced = match has_recorded && !is_broken(Broken::FsyncBeforeForce) {
            true => {
                let seq = if datasync { &inode.datasync_seq } else { &inode.commit_seq };
                let seq = Seq(seq.load(Ordering::Acquire));
                self.force_beside(seq, &|| self.await_data(mapping, first, last))
            }
            false => Ok(()),
        };
        mapping.wait_write_back(first, last).and(started).and(forced)
    }

    /// Waits for data to be written, but not for long: who finishes it may need journal space, and so the very force
    /// that waits here.
    fn await_data(&self, mapping: &Mapping, first: u64, last: u64) {
        let is_under_way = || mapping.first_unfinished(first).is_some_and(|block| block < last);
        if !self.options.threads {
            return;
        }
        for round in 0..DATA_ROUNDS_MAX {
            if !is_under_way() {
                break;
            }
            if round < DATA_ROUNDS_SHORT { thread::yield_now() } else { thread::sleep(DATA_ROUND) }
        }
    }

    /// Journals the size up to what is promised, as far as the file is as long still. A block before it that was dirtied
    /// again, or a run that finished out of order, may have kept it back; the gap is finished when its writeback
    /// returns, so this ends. Nor may somebody have the file to himself then ([`Engine::front`]): the caller does not.
    pub(crate) fn reach_size(&self, inode: &Inode, wanted: u64, datasync: bool) -> Result<()> {
        let Some(mapping) = inode.mapping.get() else { return Ok(()) };
        loop {
            let (on_disk, is_freed) = {
                let meta = inode.meta();
                (meta.record.size, meta.freed)
            };
            if is_freed || on_disk >= wanted.min(inode.size()) {
                return Ok(());
            }
            mapping.write_back(on_disk / BLOCK_SIZE as u64, wanted.div_ceil(BLOCK_SIZE as u64))?;
            let _permit = inode.gate.enter(GateState::Buffered);
            self.journal_attributes(inode, datasync)?;
        }
    }

    /// The force and the flush.
    fn make_durable(&self, durable: Durable) -> Result<()> {
        if !is_broken(Broken::FsyncBeforeForce) {
            self.force(durable.seq)?;
        }
        self.flush_data(durable.mark)
    }

    /// Puts times, and the size that data written back has earned, into the journal. With `datasync` only the size.
    pub(crate) fn journal_attributes(&self, inode: &Inode, datasync: bool) -> Result<()> {
        let lags = |on_disk: u64| {
            inode.mapping.get().is_some()
                && on_disk < inode.size()
                && self.front(inode, inode.size(), on_disk, 0..0) > on_disk
        };
        {
            let meta = inode.meta();
            let times = !datasync && (meta.dirty || inode.has_times());
            if !times && !lags(meta.record.size) {
                return Ok(());
            }
        }
        let mut transaction = self.begin(Cost::new(1, 128).critical())?;
        let mut meta = inode.meta();
        if meta.freed {
            return Ok(());
        }
        inode.fold_times(&mut meta);
        let mut record = meta.record.clone();
        if inode.mapping.get().is_some() && record.size < inode.size() {
            record.size = record.size.max(self.front(inode, inode.size(), record.size, 0..0));
        }
        let grew = record.size != meta.record.size;
        if !grew && !meta.dirty {
            return Ok(());
        }
        transaction.put_inode(inode.number, &record);
        if !grew {
            transaction.only_after(0);
        }
        let seq = transaction.commit()?;
        if grew {
            inode.committed_data(seq);
        } else {
            inode.committed(seq);
        }
        meta.record = record;
        meta.dirty = false;
        Ok(())
    }

    /// Queues an fsync; `done` is called by the worker that completes it.
    pub(crate) fn fsync_async(self: &Arc<Engine>, inode: &InodeRef, datasync: bool, done: Completion) {
        if !self.options.threads {
            return done(self.fsync(inode, datasync));
        }
        if let Err(done) = self.queue_fsync(inode.clone(), datasync, done) {
            done(self.fsync(inode, datasync));
        }
    }

    /// As [`Engine::fsync_async`] for a completion on a thread of the device, which cannot wait for the device.
    pub(crate) fn fsync_after_io(self: &Arc<Engine>, inode: InodeRef, datasync: bool, done: Completion) {
        if !self.options.threads {
            return done(self.fsync(&inode, datasync));
        }
        if let Err(done) = self.queue_fsync(inode, datasync, done) {
            done(Err(Error::new(ErrorKind::Shutdown, "the volume was closed before the data was durable")));
        }
    }

    /// Leaves an fsync to the syncers; gives the completion back if they are gone.
    fn queue_fsync(
        &self,
        inode: InodeRef,
        datasync: bool,
        done: Completion,
    ) -> std::result::Result<(), Completion> {
        let mut state = self.background.state.lock();
        if state.stop {
            return Err(done);
        }
        state.fsyncs.push_back(Pending { inode, datasync, done });
        self.background.wake_sync.notify_one();
        Ok(())
    }

    /// Completes fsyncs that were queued. False if there were none.
    pub(crate) fn sync_queued(self: &Arc<Engine>) -> bool {
        let pending: Vec<Pending> = {
            let mut state = self.background.state.lock();
            let count = state.fsyncs.len().min(BULK_MAX);
            state.fsyncs.drain(..count).collect()
        };
        if pending.is_empty() {
            return false;
        }
        let mut started = Vec::with_capacity(pending.len());
        let mut all = Durable { seq: Seq(0), mark: 0 };
        let outcomes = if pending.len() <= ALONE_MAX {
            pending.iter().map(|one| self.start_sync(&one.inode, 0, u64::MAX, one.datasync)).collect()
        } else {
            self.start_syncs(&pending)
        };
        for (Pending { inode, done, .. }, outcome) in pending.into_iter().zip(outcomes) {
            match outcome {
                Ok(durable) => {
                    all = Durable { seq: all.seq.max(durable.seq), mark: all.mark.max(durable.mark) };
                    started.push((inode, done));
                }
                Err(error) => done(Err(error)),
            }
        }
        let outcome = self.make_durable(all);
        for (inode, done) in started {
            drop(inode);
            done(outcome.clone());
        }
        true
    }

    /// Makes the whole volume durable (syncfs).
    pub(crate) fn sync(self: &Arc<Engine>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.check_writable()?;
        let growing: Vec<(InodeRef, u64)> = self
            .inodes
            .all()
            .into_iter()
            .map(|inode| {
                let size = inode.size();
                (inode, size)
            })
            .filter(|(inode, size)| inode.mapping.get().is_some() && inode.meta().record.size < *size)
            .collect();
        // Every file is tried; the first error is told.
        let mut outcome = self.cache.write_back_all();
        self.inodes.all().iter().for_each(|inode| await_drops(inode));
        outcome = outcome.and(self.journal_all_attributes());
        for (inode, size) in growing {
            outcome = outcome.and(self.reach_size(&inode, size, false));
        }
        outcome = outcome.and(self.force_all());
        outcome.and(self.flush_data(self.device.mark()))
    }

    /// Puts what is only in memory of any inode into the journal.
    pub(crate) fn journal_all_attributes(self: &Arc<Engine>) -> Result<()> {
        let mut outcome = Ok(());
        for inode in self.inodes.all() {
            outcome = outcome.and(self.journal_attributes(&inode, false));
        }
        outcome
    }

    /// Whether [`Engine::closed`] would write the file back.
    pub(crate) fn closing_waits(&self, inode: &InodeRef, wrote: bool) -> bool {
        wrote && self.options.auto_da_alloc && !self.read_only && inode.meta().emptied
    }

    /// A descriptor was closed. A file that was truncated to zero and rewritten is written back, so that a crash
    /// does not leave it empty (`auto_da_alloc`).
    pub(crate) fn closed(self: &Arc<Engine>, inode: &InodeRef, wrote: bool) {
        if !wrote || !self.options.auto_da_alloc || self.read_only {
            return;
        }
        let emptied = std::mem::take(&mut inode.meta().emptied);
        if emptied && let Err(error) = self.write_back_inode(inode) {
            tracing::warn!(%error, inode = %inode.number(), "write-back on close failed; fsync will tell");
        }
    }
}
