//! Durability of files: one, many, or the whole volume.
//!
//! Protocol of fsync (J4, J5): write back the file's dirty blocks and wait, those already in flight included; let a
//! truncate, or whoever else drops dirty blocks, finish; put attributes that are only in memory into the journal; force
//! the journal to the inode's last `Seq` (fdatasync: to the last one that reading the data back needs); flush the device
//! as far as the file's last completed data write.
//! Each step does nothing where there is nothing to do: fsync of a clean file is no I/O, fdatasync of an overwrite
//! is data and one flush.
//!
//! An asynchronous fsync is queued ([`super::sync_queue`]); a syncer takes all that are queued, starts writing all of them
//! back, waits for and journals each, then makes one force and one flush for all of them, and completes them. A single one
//! takes the way of [`super::ahead`], as synchronous calls do. A lazy one is left to wait for a force that others make;
//! when the first of those that wait has its time up, one force is made for all of them.
//!
//! No fsync enters a gate: a direct write that is to be durable holds it until its own fsync has ended, and the syncers
//! would wait in line behind one that waits for them.
//!
//! Errors: a failed data writeback sticks to the file until the blocks are written; the fsync says so, and the next
//! one does too. A shut-down volume fails every fsync at once.
//!
//! Neighbours: `journal` groups the forces; the cache writes back; [`super::backing`] stores the `Seq`;
//! [`super::syncing`] is what asynchronous callers hold.

use super::ahead::Forcing;
use super::sync_queue::{self, Next, Reached};
use super::syncing::{Durability, Promise, SyncOptions, Syncing, closed};
use crate::dirty_inodes::Owes;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::transaction::{Cost, Depends};
use quire_base::broken::{Broken, is_broken};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, Result, Seq};
use quire_cache::Mapping;

/// Called with the outcome of an asynchronous operation.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;

/// What asynchronous fsyncs wait in.
pub(crate) type SyncQueue = sync_queue::SyncQueue<Pending, Done>;

/// What is to be made durable.
pub(crate) enum Target {
    File(InodeRef, SyncOptions),
    Volume,
}

/// A queued fsync.
pub(crate) struct Pending {
    target: Target,
    /// Until when it may wait for the force of somebody else.
    until: Option<Instant>,
    done: Done,
}

impl Pending {
    pub(crate) fn new(target: Target, done: Done) -> Pending {
        let within = match &target {
            Target::File(_, SyncOptions { durability: Durability::Lazy(within), .. }) => Some(*within),
            _ => None,
        };
        let until = within.filter(|within| !within.is_zero()).map(|within| {
            // A time that no clock will show is no bound.
            let now = Instant::now();
            now.checked_add(within.min(LAZY_MAX)).unwrap_or(now)
        });
        Pending { target, until, done }
    }
}

/// Who hears of the outcome.
pub(crate) enum Done {
    Call(Completion),
    Promise(Arc<Promise>),
}

impl Done {
    fn is_withdrawn(&self) -> bool {
        matches!(self, Done::Promise(promise) if promise.is_withdrawn())
    }

    /// Tells the outcome. A callback that panics, or a waker that does, stays alone with it.
    fn end(self, outcome: Result<()>) {
        sync_queue::contained("the callback of an fsync", move || match self {
            Done::Call(done) => done(outcome),
            Done::Promise(promise) => promise.end(outcome),
        });
    }
}

/// The longest that a lazy fsync waits, whatever it asks for: a day.
const LAZY_MAX: Duration = Duration::from_secs(86_400);

/// Queued fsyncs that are served one by one: with more, writing all of them back first is better.
const ALONE_MAX: usize = 2;

/// How a force waits for the data beside it: some looks at once, then some with a pause; 3 ms in all, at most.
const DATA_ROUNDS_SHORT: u32 = 64;
const DATA_ROUNDS_MAX: u32 = 64 + 30;
const DATA_ROUND: Duration = Duration::from_micros(100);

/// Queued fsyncs that one force completes at most.
const BULK_MAX: usize = 4096;

/// What of a file an fsync writes back, and the size that it promises.
struct Span {
    first: u64,
    last: u64,
    wanted: u64,
    unflushed: bool,
}

impl Engine {
    /// Writes a file's dirty data back, waits, and journals the size that this has earned: what the journal gets next is
    /// never there without it.
    pub(crate) fn write_back_inode(&self, inode: &Inode) -> Result<()> {
        let Some(mapping) = inode.mapping.get() else { return Ok(()) };
        let size = inode.size();
        mapping.write_back(0, u64::MAX)?;
        self.reach_size(inode, size, true)
    }

    /// Whether [`Engine::write_back_inode`] would have nothing to write or wait for now.
    pub(crate) fn has_nothing_to_write_back(&self, inode: &Inode) -> bool {
        let Some(mapping) = inode.mapping.get() else { return true };
        mapping.is_clean() && inode.meta().record.size >= inode.size()
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
    fn start_sync(&self, inode: &InodeRef, offset: u64, len: u64, datasync: bool) -> Result<Reached> {
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
    fn journal_written(&self, inode: &InodeRef, span: &Span, datasync: bool) -> Result<Reached> {
        // A truncate drops dirty blocks from memory before its record is in the journal: a file that looks clean then is
        // neither written nor cut.
        inode.seen.await_shared();
        self.journal_attributes(inode, datasync)?;
        self.reach_size(inode, span.wanted, datasync)?;
        let seq = if datasync { &inode.datasync_seq } else { &inode.commit_seq };
        let mark = if span.unflushed { 0 } else { inode.data_mark.load(Ordering::Acquire) };
        Ok(Reached { seq: seq.load(Ordering::Acquire), mark })
    }

    /// The part of many fsyncs before their force: all data is on its way before any of it is waited for.
    fn start_syncs(&self, files: &[(&InodeRef, &SyncOptions)]) -> Vec<Result<Reached>> {
        let spans: Vec<Result<Span>> =
            files.iter().map(|(inode, how)| self.span_to_sync(inode, how.offset, how.len)).collect();
        let mappings: Vec<Option<&Arc<Mapping>>> =
            files.iter().map(|(inode, _)| inode.mapping.get()).collect();
        let dirty = spans.iter().zip(&mappings).filter_map(|(span, mapping)| {
            let span = span.as_ref().ok()?;
            mapping.map(|mapping| (&**mapping, span.first, span.last))
        });
        let mut started = self.cache.start_write_back(dirty).into_iter();
        // The last one first: when that has been written most others have, and this thread sleeps once, not once for each.
        for (span, mapping) in spans.iter().zip(&mappings).rev() {
            if let (Ok(span), Some(mapping)) = (span, mapping) {
                // What went wrong is asked for below.
                let _ = mapping.wait_write_back(span.first, span.last);
            }
        }
        let mut outcomes = Vec::with_capacity(files.len());
        for (((inode, how), span), mapping) in files.iter().zip(spans).zip(mappings) {
            let finish = |span: Span| {
                if let Some(mapping) = mapping {
                    let started = started.next().unwrap_or(Ok(()));
                    mapping.wait_write_back(span.first, span.last).and(started)?;
                }
                self.journal_written(inode, &span, how.data_only)
            };
            outcomes.push(span.and_then(finish));
        }
        outcomes
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
    /// returns, so this ends. So may somebody who has the file to himself ([`Engine::front`]): the caller does not, and waits
    /// for him. Not in the gate, which a direct write that is to be durable holds while it waits for this.
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
            inode.seen.await_shared();
            self.journal_attributes(inode, datasync)?;
        }
    }

    /// The force and the flush.
    fn make_durable(&self, need: Reached) -> Result<()> {
        if !is_broken(Broken::FsyncBeforeForce) {
            self.force(Seq(need.seq))?;
        }
        self.flush_data(need.mark)
    }

    /// How far journal and device are; `None` if they will get no further.
    fn reached(&self) -> Option<Reached> {
        let journal = self.journal().ok()?;
        Some(Reached { seq: journal.durable().0, mark: self.device.flushed_mark() })
    }

    /// To be called when something may have become durable: lazy fsyncs may be waiting for it.
    pub(crate) fn forced(&self) {
        self.background.syncs.forced(|| self.reached().unwrap_or_default());
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
        let depends = if grew { Depends::DataOf(inode) } else { Depends::Nothing };
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

    /// Queues an fsync; `done` is called by the syncer that completes it.
    pub(crate) fn fsync_async(self: &Arc<Engine>, inode: &InodeRef, how: &SyncOptions, done: Completion) {
        let pending = Pending::new(Target::File(inode.clone(), how.clone()), Done::Call(done));
        let refused = match self.has_syncers() {
            true => self.background.syncs.admit_waiting(pending, patience::may_wait()).err(),
            false => Some(pending),
        };
        refused.into_iter().for_each(|pending| self.sync_here(pending));
    }

    /// As [`Engine::fsync_async`] for a completion on a thread of the device, which cannot wait for the device.
    pub(crate) fn fsync_after_io(self: &Arc<Engine>, inode: InodeRef, datasync: bool, done: Completion) {
        let target = Target::File(inode, SyncOptions::new().data_only(datasync));
        let pending = Pending::new(target, Done::Call(done));
        if !self.has_syncers() {
            return self.sync_here(pending);
        }
        if let Err(Pending { target, done, .. }) = self.background.syncs.admit_waiting(pending, false) {
            drop(target);
            done.end(Err(closed()));
        }
    }

    /// Begins fsyncs that end together.
    pub(crate) fn start_syncing(self: &Arc<Engine>, targets: Vec<Target>) -> Syncing {
        let promise = Promise::new(targets.len());
        let mut pending: Vec<Pending> =
            targets.into_iter().map(|target| Pending::new(target, Done::Promise(promise.clone()))).collect();
        if !self.has_syncers() {
            pending.drain(..).for_each(|pending| self.sync_here(pending));
        }
        Syncing::begin(self.background.syncs.clone(), promise, pending)
    }

    /// Without threads, and on a volume where there is nothing to do, the caller does it.
    fn has_syncers(&self) -> bool {
        self.options.threads && !self.read_only
    }

    fn sync_here(self: &Arc<Engine>, pending: Pending) {
        let Pending { target, done, .. } = pending;
        let outcome = match &target {
            Target::File(inode, how) => self.sync_range(inode, how.offset, how.len, how.data_only),
            Target::Volume => self.sync(),
        };
        drop(target);
        done.end(outcome);
    }

    /// The life of a syncer.
    pub(crate) fn serve_syncs(self: &Arc<Engine>) {
        SyncQueue::enlist();
        let syncs = &self.background.syncs;
        let has_released = || !self.background.state.lock().released.is_empty();
        while let Some(next) = syncs.next(BULK_MAX, || self.reached(), has_released) {
            self.drop_released();
            self.serve(next);
        }
        self.drop_released();
    }

    fn serve(self: &Arc<Engine>, next: Next<Pending, Done>) {
        let syncs = &self.background.syncs;
        syncs.ended(next.served.len());
        self.counters.lazy_syncs_served.add(next.served.len() as u64);
        next.served.into_iter().for_each(|done| done.end(Ok(())));
        if !next.due.is_empty() {
            let outcome = self.make_durable(next.due_need);
            self.counters.lazy_syncs_due.add(next.due.len() as u64);
            syncs.ended(next.due.len());
            next.due.into_iter().for_each(|done| done.end(outcome.clone()));
        }
        let (lazy, urgent): (Vec<_>, Vec<_>) =
            next.queued.into_iter().partition(|(_, pending)| pending.until.is_some());
        if urgent.len() > ALONE_MAX {
            // The force of these serves the lazy ones, too.
            return self.sync_queued(urgent.into_iter().chain(lazy).collect());
        }
        for queued in [urgent, lazy] {
            if !queued.is_empty() {
                self.sync_queued(queued);
            }
        }
    }

    /// Makes what was queued durable, but for lazy ones, which are left to wait.
    fn sync_queued(self: &Arc<Engine>, queued: Vec<(u64, Pending)>) {
        let syncs = &self.background.syncs;
        let files: Vec<(&InodeRef, &SyncOptions)> = queued
            .iter()
            .filter_map(|(_, pending)| match &pending.target {
                Target::File(inode, how) => Some((inode, how)),
                Target::Volume => None,
            })
            .collect();
        let is_lazy = queued.iter().any(|(_, pending)| pending.until.is_some());
        let outcomes: Vec<Result<Reached>> = if files.len() <= ALONE_MAX && !is_lazy {
            files
                .iter()
                .map(|(inode, how)| self.start_sync(inode, how.offset, how.len, how.data_only))
                .collect()
        } else {
            self.start_syncs(&files)
        };
        drop(files);
        let mut outcomes = outcomes.into_iter();
        let (mut urgent, mut lazy, mut volumes) = (Vec::with_capacity(queued.len()), Vec::new(), Vec::new());
        let mut need = Reached::default();
        let mut ended = 0;
        for (ticket, Pending { target, until, done }) in queued {
            let Target::File(inode, _) = target else {
                volumes.push(done);
                continue;
            };
            drop(inode);
            match (outcomes.next().unwrap_or(Ok(Reached::default())), until) {
                (Ok(reached), Some(until)) => lazy.push((ticket, reached, until, done)),
                (Ok(reached), None) => {
                    need = need.max(reached);
                    urgent.push(done);
                }
                (Err(error), _) => {
                    ended += 1;
                    done.end(Err(error));
                }
            }
        }
        ended += urgent.len() + volumes.len();
        if !urgent.is_empty() {
            let outcome = self.make_durable(need);
            urgent.into_iter().for_each(|done| done.end(outcome.clone()));
        }
        if !volumes.is_empty() {
            let outcome = self.sync();
            volumes.into_iter().for_each(|done| done.end(outcome.clone()));
        }
        for (ticket, need, until, done) in lazy {
            let back = syncs.await_force(ticket, need, until, done, || self.reached(), Done::is_withdrawn);
            if let Some(done) = back {
                let is_served = self.reached().is_some_and(|reached| reached.covers(need));
                let outcome = if is_served || done.is_withdrawn() { Ok(()) } else { self.make_durable(need) };
                ended += 1;
                self.counters.lazy_syncs_served.add(u64::from(outcome.is_ok()));
                done.end(outcome);
            }
        }
        syncs.ended(ended);
    }

    /// Makes the whole volume durable (syncfs).
    pub(crate) fn sync(self: &Arc<Engine>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.check_writable()?;
        let growing: Vec<(InodeRef, u64)> = self
            .inodes
            .all_dirty()
            .into_iter()
            .map(|inode| {
                let size = inode.size();
                (inode, size)
            })
            .filter(|(inode, size)| inode.mapping.get().is_some() && inode.meta().record.size < *size)
            .collect();
        // Every file is tried; the first error is told.
        let mut outcome = self.cache.write_back_all();
        // Only now: an operation that dropped dirty blocks before they were written back has marked its inode before.
        self.inodes.all_dirty().iter().for_each(|inode| inode.seen.await_shared());
        outcome = outcome.and(self.journal_dirty_inodes(Owes::Times));
        for (inode, size) in growing {
            outcome = outcome.and(self.reach_size(&inode, size, false));
        }
        outcome = outcome.and(self.force_all());
        outcome.and(self.flush_data(self.device.mark()))
    }

    /// A descriptor was closed. A file that was truncated to zero and rewritten is written back, so that a crash
    /// does not leave it empty (`auto_da_alloc`). Fails only where the thread may not wait for that.
    pub(crate) fn closed(self: &Arc<Engine>, inode: &InodeRef, wrote: bool) -> Result<()> {
        if !wrote || !self.options.auto_da_alloc || self.read_only {
            return Ok(());
        }
        let mut meta = inode.meta();
        if !meta.emptied {
            return Ok(());
        }
        patience::check("the file to be written back")?;
        meta.emptied = false;
        drop(meta);
        if let Err(error) = self.write_back_inode(inode) {
            tracing::warn!(%error, inode = %inode.number(), "write-back on close failed; fsync will tell");
        }
        Ok(())
    }
}
