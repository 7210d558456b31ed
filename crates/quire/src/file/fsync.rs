//! Durability of files: who asks for it, and who does it.
//!
//! What has to happen is in [`super::file_sync`]. A synchronous caller does it itself and waits for each step. An
//! asynchronous fsync is queued ([`super::sync_queue`]) for the *syncers*. These two threads start work and wait for nothing
//! but the journal and the flush. An fsync that waits for data, or for an exclusive operation on its file, goes on when it is
//! called back. So neither a large file nor a long truncate keeps others waiting, and a batch is not held up by its slowest
//! file. All that are ready share a force. Up to [`ALONE_MAX`] small ones at a time are started as synchronous ones are,
//! which is quicker: the syncer writes a single request itself. A lazy one is left to wait for a force that others make;
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

use super::file_sync::{FileSync, Step, VolumeSync};
use super::sync_queue::{self, Next, Reached, Written};
use super::syncing::{Durability, Promise, SyncOptions, Syncing, closed};
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::broken::{Broken, is_broken};
use quire_base::patience;
use quire_base::sync::Arc;
use quire_base::sync::time::{Duration, Instant};
use quire_base::{Result, Seq};

/// Called with the outcome of an asynchronous operation.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;

/// What asynchronous fsyncs wait in.
pub(crate) type SyncQueue = sync_queue::SyncQueue<Pending, Begun, Done>;

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

/// An fsync that has begun.
pub(crate) struct Begun {
    ticket: u64,
    sync: Sync,
    until: Option<Instant>,
    done: Done,
    /// Until it waits for something else than a force.
    batch: Option<Arc<Batch>>,
}

enum Sync {
    File(FileSync),
    Volume(VolumeSync),
}

impl Sync {
    fn advance(&mut self, engine: &Arc<Engine>) -> Result<Step> {
        match self {
            Sync::File(file) => file.advance(engine),
            Sync::Volume(volume) => volume.advance(engine),
        }
    }

    /// Whether a syncer may write its data itself.
    fn is_small(&self) -> bool {
        matches!(self, Sync::File(file) if file.blocks() <= SMALL_BLOCKS)
    }

    /// Waits until a step is over.
    fn wait(&mut self, step: Step) {
        match self {
            Sync::File(file) => file.wait(step),
            Sync::Volume(volume) => volume.wait(step),
        }
    }
}

/// What a syncer has taken at a time; ends with its last fsync.
pub(crate) struct Batch(Arc<SyncQueue>);

impl Drop for Batch {
    fn drop(&mut self) {
        self.0.end_batch();
    }
}

/// Who hears of the outcome.
pub(crate) struct Done {
    to: Asker,
    /// What went wrong before the force.
    outcome: Result<()>,
    batch: Option<Arc<Batch>>,
}

enum Asker {
    Call(Completion),
    Promise(Arc<Promise>),
}

impl Done {
    fn call(done: Completion) -> Done {
        Done { to: Asker::Call(done), outcome: Ok(()), batch: None }
    }

    fn promise(promise: Arc<Promise>) -> Done {
        Done { to: Asker::Promise(promise), outcome: Ok(()), batch: None }
    }

    fn is_withdrawn(&self) -> bool {
        matches!(&self.to, Asker::Promise(promise) if promise.is_withdrawn())
    }

    /// Tells the outcome. A callback that panics, or a waker that does, stays alone with it.
    fn end(self, outcome: Result<()>) {
        let outcome = self.outcome.and(outcome);
        let to = self.to;
        sync_queue::contained("the callback of an fsync", move || match to {
            Asker::Call(done) => done(outcome),
            Asker::Promise(promise) => promise.end(outcome),
        });
    }
}

/// The longest that a lazy fsync waits, whatever it asks for: a day.
const LAZY_MAX: Duration = Duration::from_secs(86_400);

/// Fsyncs that are started as synchronous ones are: with more, writing all of them together is better.
const ALONE_MAX: usize = 2;

/// Blocks up to which a syncer writes a file's data itself, if they are one request.
const SMALL_BLOCKS: u64 = 16;

/// Fsyncs that a syncer takes at a time at most.
const BULK_MAX: usize = 4096;

impl Engine {
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
        self.check_writable()?;
        let mut file = FileSync::new(inode, offset, len, datasync);
        file.start_here();
        let need = file.run(self)?;
        self.make_durable(need)
    }

    /// Makes the whole volume durable (syncfs).
    pub(crate) fn sync(self: &Arc<Engine>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.check_writable()?;
        let mut volume = VolumeSync::start(self);
        let need = volume.run(self)?;
        // What has been written is forced, whatever has become of the rest.
        let forced = self.make_durable(need);
        volume.outcome().and(forced)
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

    /// Queues an fsync; `done` is called by the syncer that completes it.
    pub(crate) fn fsync_async(self: &Arc<Engine>, inode: &InodeRef, how: &SyncOptions, done: Completion) {
        let pending = Pending::new(Target::File(inode.clone(), how.clone()), Done::call(done));
        let refused = match self.has_syncers() {
            true => self.background.syncs.admit_waiting(pending, patience::may_wait()).err(),
            false => Some(pending),
        };
        refused.into_iter().for_each(|pending| self.sync_here(pending));
    }

    /// As [`Engine::fsync_async`] for a completion on a thread of the device, which cannot wait for the device.
    pub(crate) fn fsync_after_io(self: &Arc<Engine>, inode: InodeRef, datasync: bool, done: Completion) {
        let target = Target::File(inode, SyncOptions::new().data_only(datasync));
        let pending = Pending::new(target, Done::call(done));
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
            targets.into_iter().map(|target| Pending::new(target, Done::promise(promise.clone()))).collect();
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

    fn serve(self: &Arc<Engine>, next: Next<Pending, Begun, Done>) {
        let syncs = &self.background.syncs;
        let batch = next.is_batch().then(|| Arc::new(Batch(syncs.clone())));
        self.counters.lazy_syncs_served.add(next.served.len() as u64);
        syncs.ended(next.served.len());
        next.served.into_iter().for_each(|done| done.end(Ok(())));
        self.force_written(next.written);
        let mut begun = next.resumed;
        begun.iter_mut().for_each(|begun| begun.batch = batch.clone());
        begun.extend(self.begin_syncs(next.queued, &batch));
        drop(batch);
        let mut written = Vec::with_capacity(begun.len());
        let mut failed = Vec::new();
        for mut begun in begun {
            loop {
                match begun.sync.advance(self) {
                    Ok(Step::Force(need)) => self.end_or_await(begun, need, &mut written),
                    Ok(step) if is_broken(Broken::SyncerWaitsForData) => {
                        begun.sync.wait(step);
                        continue;
                    }
                    Ok(step) => self.arm(begun, step),
                    Err(error) => failed.push((begun.done, error)),
                }
                break;
            }
        }
        syncs.ended(failed.len());
        failed.into_iter().for_each(|(done, error)| done.end(Err(error)));
        self.force_written(syncs.join_force(written));
    }

    /// Starts what was queued: all data is on its way before any of it is waited for.
    fn begin_syncs(
        self: &Arc<Engine>,
        queued: Vec<(u64, Pending)>,
        batch: &Option<Arc<Batch>>,
    ) -> Vec<Begun> {
        let mut begun = Vec::with_capacity(queued.len());
        for (ticket, Pending { target, until, done }) in queued {
            let sync = match &target {
                Target::File(inode, how) => {
                    Sync::File(FileSync::new(inode, how.offset, how.len, how.data_only))
                }
                Target::Volume => Sync::Volume(VolumeSync::start(self)),
            };
            begun.push(Begun { ticket, sync, until, done, batch: batch.clone() });
        }
        let is_alone = begun.len() <= ALONE_MAX
            && begun.iter().all(|begun| begun.until.is_none() && begun.sync.is_small());
        let files = begun.iter_mut().filter_map(|begun| match &mut begun.sync {
            Sync::File(file) => Some(file),
            Sync::Volume(_) => None,
        });
        if is_alone {
            files.for_each(FileSync::start_here);
        } else {
            self.cache.start_snapshots(files.filter_map(FileSync::snapshot));
        }
        begun
    }

    /// Goes on with an fsync when a step is over.
    fn arm(self: &Arc<Engine>, mut begun: Begun, step: Step) {
        begun.batch = None;
        let syncs = self.background.syncs.clone();
        let call = match &begun.sync {
            Sync::File(file) => file.at_end(step),
            Sync::Volume(volume) => volume.at_end(step),
        };
        syncs.arm();
        if let Some(call) = call(Box::new(move || syncs.resume(begun))) {
            call();
        }
    }

    /// An fsync needs nothing but a force: it is added to `written`, or, if it is lazy, left to wait for others' force.
    fn end_or_await(&self, begun: Begun, need: Reached, written: &mut Vec<Written<Done>>) {
        let syncs = &self.background.syncs;
        let Begun { ticket, sync, until, mut done, batch } = begun;
        if let Sync::Volume(mut volume) = sync {
            done.outcome = volume.outcome();
        }
        let Some(until) = until else {
            done.batch = batch;
            return written.push(Written { need, is_due: false, what: done });
        };
        drop(batch);
        let back = syncs.await_force(ticket, need, until, done, || self.reached(), Done::is_withdrawn);
        let Some(done) = back else { return };
        if done.is_withdrawn() || self.reached().is_some_and(|reached| reached.covers(need)) {
            self.counters.lazy_syncs_served.add(1);
            syncs.ended(1);
            done.end(Ok(()));
        } else {
            written.push(Written { need, is_due: true, what: done });
        }
    }

    /// One force for all of these, and for those that join meanwhile the next one.
    fn force_written(&self, written: Vec<Written<Done>>) {
        if written.is_empty() {
            return;
        }
        let syncs = &self.background.syncs;
        let need = written.iter().fold(Reached::default(), |need, one| need.max(one.need));
        let outcome = self.make_durable(need);
        let due = written.iter().filter(|one| one.is_due).count();
        self.counters.lazy_syncs_due.add(due as u64);
        syncs.ended(written.len());
        let mut ended: Vec<Done> = written.into_iter().map(|one| one.what).collect();
        // Their batches end before anybody hears of it: a callback may take its time, or close the volume.
        ended.iter_mut().for_each(|done| done.batch = None);
        syncs.end_force();
        ended.into_iter().for_each(|done| done.end(outcome.clone()));
    }

    /// A descriptor was closed. A file that was truncated to zero and rewritten is written back, so that a crash
    /// does not leave it empty (`auto_da_alloc`). Fails only where the thread may not wait for that.
    pub(crate) fn closed(self: &Arc<Engine>, inode: &InodeRef, wrote: bool) -> Result<()> {
        if !wrote || !self.options.auto_da_alloc || self.read_only {
            return Ok(());
        }
        let emptied = inode.meta().emptied;
        if !emptied {
            return Ok(());
        }
        patience::check("the file to be written back")?;
        inode.meta().emptied = false;
        if let Err(error) = self.write_back_inode(inode) {
            tracing::warn!(%error, inode = %inode.number(), "write-back on close failed; fsync will tell");
        }
        Ok(())
    }
}
