//! Durability of files: who asks for it, and who does it.
//!
//! [`super::file_sync`] has the steps. A synchronous caller does it itself and waits for each
//! step. An asynchronous fsync is queued ([`super::sync_queue`]) for the *syncers*. These two threads start
//! work and wait for nothing but the journal and the flush. An fsync that waits for data, or for an exclusive
//! operation on its file, goes on when it is called back. So neither a large file nor a long truncate keeps
//! others waiting, and each fsync ends when its own need is met. Up to [`ALONE_MAX`] small ones at a time are
//! started as synchronous ones are, which is quicker: the syncer writes a single request itself.
//!
//! No fsync enters a gate: a direct write that is to be durable holds it until its own fsync has ended, and
//! the syncers would wait in line behind one that waits for them.
//!
//! Errors: a failed data writeback sticks to the file until the blocks are written; the fsync says so, and
//! the next one does too. A shut-down volume fails every fsync at once.
//!
//! Neighbours: `journal` groups the forces; the cache writes back; [`super::backing`] stores the `Seq`;
//! [`super::syncing`] is what asynchronous callers hold.

use super::file_sync::{Event, Step, SyncSet};
use super::sync_queue::{self, Ended, Queued, Task};
use super::syncing::{Durability, Promise, SyncOptions, Syncing, closed};
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::store::{ForceWaiters, Reached};
use quire_base::patience;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, SIMULATED};
use quire_base::{Result, Seq};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Called with the outcome of an asynchronous operation.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;

/// What asynchronous fsyncs wait in.
pub(crate) type SyncQueue = sync_queue::SyncQueue<Fsync>;

/// What is to be made durable.
pub(crate) enum Target {
    File(InodeRef, SyncOptions),
    Volume,
}

/// The receiver of the outcome.
pub(crate) enum Done {
    Call(Completion),
    Promise(Arc<Promise>),
}

/// An asynchronous fsync.
pub(crate) struct Fsync {
    stage: Stage,
    /// Until when it may wait for the force of somebody else.
    until: Option<Instant>,
    done: Done,
}

enum Stage {
    Asked(Target),
    Begun(Box<SyncSet>),
    /// Nothing but a force is missing; what went wrong before.
    Written(Result<()>),
}

impl Queued for Fsync {
    fn until(&self) -> Option<Instant> {
        self.until
    }

    fn is_withdrawn(&self) -> bool {
        matches!(&self.done, Done::Promise(promise) if promise.is_withdrawn())
    }
}

impl Fsync {
    fn new(target: Target, done: Done) -> Fsync {
        let until = match &target {
            Target::File(_, SyncOptions { durability: Durability::Lazy(within), .. })
                if !within.is_zero() =>
            {
                // A time that no clock will show is no bound.
                let now = Instant::now();
                Some(now.checked_add((*within).min(LAZY_MAX)).unwrap_or(now))
            }
            _ => None,
        };
        Fsync { stage: Stage::Asked(target), until, done }
    }

    /// Tells the outcome, on a thread that serves others as well: a callback that panics, or a waker that
    /// does, stays alone with it.
    fn end(self, forced: Result<()>) {
        let Fsync { stage, done, .. } = self;
        let outcome = match stage {
            Stage::Written(outcome) => outcome.and(forced),
            // The file goes before anybody hears.
            begun @ (Stage::Asked(_) | Stage::Begun(_)) => {
                drop(begun);
                forced
            }
        };
        let tell = move || match done {
            Done::Call(done) => done(outcome),
            Done::Promise(promise) => promise.end(outcome),
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(tell)) {
            if SIMULATED {
                // The scheduler ends threads so.
                resume_unwind(panic);
            }
            tracing::error!("the callback of an fsync panicked");
        }
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

/// Synchronous calls: the caller waits for each step.
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
        self.sync_here(|| {
            let mut file = SyncSet::fsync(inode, offset, len, datasync);
            file.start_here();
            file
        })
    }

    /// Makes the whole volume durable (syncfs).
    pub(crate) fn sync(self: &Arc<Engine>) -> Result<()> {
        self.sync_here(|| self.whole_volume())
    }

    /// Writes back whatever is dirty, and journals what inodes owe, without a force.
    pub(crate) fn write_back(self: &Arc<Engine>) -> Result<()> {
        let mut volume = self.whole_volume();
        volume.run(self);
        volume.outcome()
    }

    fn whole_volume(self: &Arc<Engine>) -> SyncSet {
        let mut volume = SyncSet::volume(self);
        self.cache.start_snapshots(volume.snapshots());
        volume
    }

    fn sync_here(self: &Arc<Engine>, start: impl FnOnce() -> SyncSet) -> Result<()> {
        if self.store.read_only {
            return Ok(());
        }
        self.store.check_writable()?;
        let mut set = start();
        let need = set.run(self);
        // What has been written is forced, whatever has become of the rest.
        let forced = self.make_durable(need);
        set.outcome().and(forced)
    }

    /// The force and the flush.
    fn make_durable(&self, need: Reached) -> Result<()> {
        if need == Reached::default() {
            return Ok(());
        }
        self.store.force(Seq(need.seq))?;
        self.store.flush_data(need.mark)
    }

    /// A descriptor was closed. A file that was truncated to zero and rewritten is written back, so that a
    /// crash does not leave it empty (`auto_da_alloc`). Fails only where the thread may not wait for that.
    pub(crate) fn closed(self: &Arc<Engine>, inode: &InodeRef, wrote: bool) -> Result<()> {
        if !wrote || !self.store.options.auto_da_alloc || self.store.read_only {
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

/// Asynchronous calls. Without threads, and on a volume where there is nothing to do, the caller does it.
impl Engine {
    /// Queues an fsync; `done` is called by the syncer that completes it.
    pub(crate) fn fsync_async(self: &Arc<Engine>, inode: &InodeRef, how: &SyncOptions, done: Completion) {
        let fsync = Fsync::new(Target::File(inode.clone(), how.clone()), Done::Call(done));
        match inode.check_volume(self) {
            Ok(()) => self.ask([fsync], patience::may_wait()),
            Err(error) => fsync.end(Err(error)),
        }
    }

    /// As [`Engine::fsync_async`] for a completion on a thread of the device, which cannot wait for the
    /// device.
    pub(crate) fn fsync_after_io(self: &Arc<Engine>, inode: InodeRef, datasync: bool, done: Completion) {
        let target = Target::File(inode, SyncOptions::new().data_only(datasync));
        self.ask([Fsync::new(target, Done::Call(done))], false);
    }

    /// Begins fsyncs that end together.
    pub(crate) fn start_syncing(self: &Arc<Engine>, targets: Vec<Target>) -> Syncing {
        let promise = Promise::new(targets.len());
        let mut fsyncs = Vec::with_capacity(targets.len());
        for target in targets {
            let checked = match &target {
                Target::File(inode, _) => inode.check_volume(self),
                Target::Volume => Ok(()),
            };
            let fsync = Fsync::new(target, Done::Promise(promise.clone()));
            match checked {
                Ok(()) => fsyncs.push(fsync),
                Err(error) => fsync.end(Err(error)),
            }
        }
        self.ask(fsyncs, false);
        Syncing::new(self.syncs.clone(), promise)
    }

    fn ask(self: &Arc<Engine>, fsyncs: impl IntoIterator<Item = Fsync>, may_wait: bool) {
        if !self.store.options.threads || self.store.read_only {
            for fsync in fsyncs {
                let outcome = match &fsync.stage {
                    Stage::Asked(Target::File(inode, how)) => {
                        self.sync_range(inode, how.offset, how.len, how.data_only)
                    }
                    _ => self.sync(),
                };
                fsync.end(outcome);
            }
        } else if let Err(refused) = self.syncs.ask(fsyncs, may_wait) {
            refused.into_iter().for_each(|fsync| fsync.end(Err(closed())));
        }
    }
}

impl ForceWaiters for SyncQueue {
    fn forced(&self, reached: &dyn Fn() -> Reached) {
        self.forced(reached);
    }
    fn shut_down(&self) {
        self.look_again();
    }
}

/// The syncers.
impl Engine {
    /// The life of a syncer.
    pub(crate) fn serve_syncs(self: &Arc<Engine>) {
        let syncs = &self.syncs;
        syncs.enlist();
        let has_released = || !self.released.is_empty();
        while let Some(task) = syncs.next(BULK_MAX, || self.store.reached(), has_released) {
            self.released.drop_all();
            match task {
                Task::End(ended) => self.end_syncs(ended),
                Task::Force(need) => {
                    let outcome = self.make_durable(need).map(|()| need);
                    self.end_syncs(syncs.end_force(&outcome));
                }
                Task::Advance(fsyncs) => self.advance_syncs(fsyncs),
                Task::Besides => {}
            }
        }
        self.released.drop_all();
    }

    /// Begins fsyncs, or goes on with them.
    fn advance_syncs(self: &Arc<Engine>, fsyncs: Vec<Fsync>) {
        let (withdrawn, mut fsyncs): (Vec<_>, Vec<_>) = fsyncs.into_iter().partition(Fsync::is_withdrawn);
        self.end_syncs(withdrawn.into_iter().map(|fsync| (fsync, Ok(()))).collect());
        self.begin_syncs(&mut fsyncs);
        let mut written = Vec::with_capacity(fsyncs.len());
        for mut fsync in fsyncs {
            let Stage::Begun(set) = &mut fsync.stage else { continue };
            match set.advance(self) {
                Step::Wait(event) => self.resume_after(event, fsync),
                Step::Force(need) => {
                    fsync.stage = Stage::Written(set.outcome());
                    written.push((need, fsync));
                }
            }
        }
        self.syncs.await_force(written);
    }

    /// Starts what was asked for: all data is on its way before any of it is waited for.
    fn begin_syncs(self: &Arc<Engine>, fsyncs: &mut [Fsync]) {
        let mut begun: Vec<&mut SyncSet> = Vec::with_capacity(fsyncs.len());
        let mut is_alone = true;
        for Fsync { stage, until, .. } in fsyncs {
            let set = match &*stage {
                Stage::Asked(Target::File(inode, how)) => {
                    SyncSet::fsync(inode, how.offset, how.len, how.data_only)
                }
                Stage::Asked(Target::Volume) => SyncSet::volume(self),
                Stage::Begun(_) | Stage::Written(_) => continue,
            };
            is_alone &= until.is_none() && set.blocks().is_some_and(|blocks| blocks <= SMALL_BLOCKS);
            *stage = Stage::Begun(Box::new(set));
            if let Stage::Begun(set) = stage {
                begun.push(set);
            }
        }
        if is_alone && begun.len() <= ALONE_MAX {
            begun.into_iter().for_each(SyncSet::start_here);
        } else {
            self.cache.start_snapshots(begun.into_iter().flat_map(SyncSet::snapshots));
        }
    }

    /// Goes on with an fsync after an event.
    fn resume_after(&self, event: Event, fsync: Fsync) {
        let syncs = self.syncs.clone();
        syncs.arm();
        if let Some(resume) = event.call(Box::new(move || syncs.resume(fsync))) {
            resume();
        }
    }

    /// Tells outcomes. Nobody hears of one before all of them have left the queue: a callback may take its
    /// time, or close the volume.
    fn end_syncs(&self, ended: Ended<Fsync>) {
        if ended.is_empty() {
            return;
        }
        let now = Instant::now();
        for (fsync, _) in ended.iter().filter(|(fsync, outcome)| outcome.is_ok() && !fsync.is_withdrawn()) {
            match fsync.until {
                Some(until) if until <= now => self.counters.lazy_syncs_due.add(1),
                Some(_) => self.counters.lazy_syncs_served.add(1),
                None => {}
            }
        }
        self.syncs.ended(ended.len());
        ended.into_iter().for_each(|(fsync, outcome)| fsync.end(outcome));
    }
}
