//! Work in the background: checkpoints before the journal runs short, freeing of orphans and of deleted
//! snapshots, queued fsyncs, and the periodic commit that bounds what an unsynced crash can lose.
//!
//! Threads, each asleep until there is work: the *committer* (checkpoints, homes of journaled data, periodic
//! commit), the *reaper*, the *syncers*, and where freed blocks are discarded the *discarder*, which works
//! while nobody forces. The cache has threads of its own. Without threads
//! ([`crate::VolumeOptions::threads`]) the caller runs [`Engine::background_step`], which does one round of
//! all of it.
//!
//! Neighbours: [`crate::store::checkpoint`], [`crate::reaper`], [`crate::file::fsync`].

use crate::dirty_inodes::Owes;
use crate::engine::Engine;
use crate::store::Due;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, Mutex, thread};
use quire_base::{Error, ErrorKind, Result};

/// The threads of an open volume.
#[derive(Default)]
pub(crate) struct Threads(Mutex<Vec<thread::JoinHandle<()>>>);

impl Threads {
    pub(crate) fn start(&self, engine: &Arc<Engine>) -> Result<()> {
        type Body = fn(&Arc<Engine>);
        let mut bodies: Vec<(&str, Body)> = vec![
            ("quire-commit", committer),
            ("quire-reap", reaper),
            ("quire-sync-0", syncer),
            ("quire-sync-1", syncer),
        ];
        if engine.store.options.discard {
            bodies.push(("quire-discard", discarder));
        }
        let mut handles = self.0.lock();
        for (name, body) in bodies {
            let engine = engine.clone();
            let handle = thread::Builder::new().name(name.to_owned()).spawn(move || body(&engine)).map_err(
                |error| Error::new(ErrorKind::NoMemory, format!("starting thread {name}: {error}")),
            )?;
            handles.push(handle);
        }
        Ok(())
    }

    /// Tells the threads to stop and waits for them.
    pub(crate) fn stop(&self, engine: &Engine) {
        engine.released.close();
        engine.store.committer.stop();
        engine.reaper.stop();
        engine.syncs.stop();
        engine.store.discarder.stop();
        for handle in std::mem::take(&mut *self.0.lock()) {
            // The last handle of a volume may be dropped by a completion that one of these threads runs.
            if handle.thread().id() != thread::current().id() {
                // A thread that panicked has told so itself.
                let _ = handle.join();
            }
        }
    }
}

/// Between two commits that memory asks for, and behind what has failed.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

fn committer(engine: &Arc<Engine>) {
    let interval = Duration::from_secs(u64::from(engine.store.options.commit_seconds.max(1)));
    let mut last_commit = Instant::now();
    let mut next_commit = last_commit + interval;
    loop {
        let early = last_commit + COMMIT_PAUSE;
        let Some(Due { checkpoint, homes, commit }) = engine.store.committer.next(next_commit, early) else {
            return;
        };
        if engine.store.check_writable().is_err() {
            // Shut down: nothing left to do but wait for the end.
            next_commit = Instant::now() + interval;
            continue;
        }
        // Homes first: a checkpoint that somebody else has just written may be needed no more.
        let homes = !homes || report(engine.write_homes(), "writing recorded content home");
        let checkpoint = !checkpoint || report(engine.store.background_checkpoint(), "checkpoint");
        if !(homes && checkpoint) {
            // Each commit asks for it again, many times a second.
            thread::sleep(COMMIT_PAUSE);
        }
        if commit {
            // Lazy times stay in memory; a size does not, whose data may long have been written.
            report(engine.journal_dirty_inodes(Owes::Due), "periodic commit of attributes");
            report(engine.store.force_all(), "periodic commit");
            if engine.store.device.recorded().is_stuck() {
                report(engine.write_homes(), "writing recorded content home");
            }
            engine.retry_failed();
            report(engine.store.heal().map(drop), "writing damaged metadata anew");
            report(engine.store.shrink_pool(), "giving back a part of the metadata pool");
            engine.store.discard_later();
            last_commit = Instant::now();
            next_commit = last_commit + interval;
        }
    }
}

/// How long the reaper waits for more before it falls asleep.
const REAPER_NAP: Duration = Duration::from_millis(2);

fn reaper(engine: &Arc<Engine>) {
    // What a crash left stays as it is on a volume that takes no more changes.
    while engine.reaper.next(|| engine.store.failure().is_some()) {
        // A thread that queues wakes only a reaper that sleeps: while orphans keep coming it naps, and finds
        // many at a time.
        while engine.reap_one() {
            while engine.reap_one() {}
            engine.reaper.nap(REAPER_NAP);
        }
        engine.reaper.nap(engine.sweep_behind());
    }
}

fn syncer(engine: &Arc<Engine>) {
    engine.serve_syncs();
}

fn discarder(engine: &Arc<Engine>) {
    engine.store.serve_discards();
}

/// Whether it succeeded.
fn report(outcome: Result<()>, what: &str) -> bool {
    outcome.inspect_err(|error| tracing::warn!(%error, "{what} failed")).is_ok()
}

impl Engine {
    /// Asks once more for what failed: orphans to be freed, and deletions of snapshots.
    fn retry_failed(&self) {
        self.reaper.queue_failed();
        if self.store.snapshots.any_deleted() {
            self.reaper.want_sweep();
        }
    }

    /// One round of background work, for callers that run without threads.
    pub(crate) fn background_step(self: &Arc<Engine>) -> Result<()> {
        self.cache.background_step();
        self.released.drop_all();
        self.retry_failed();
        while self.reap_one() {}
        self.sweep_behind();
        let due = self.store.committer.take();
        if due.homes {
            self.write_homes()?;
        }
        if due.checkpoint {
            self.store.background_checkpoint()?;
        }
        self.store.heal()?;
        self.store.shrink_pool()
    }
}
