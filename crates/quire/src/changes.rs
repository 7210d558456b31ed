//! Operations that change the volume, counted, so that closing it can refuse new ones and wait for those
//! under way.
//!
//! Protocol. An operation counts itself in, in a shard of its own, and then looks whether the volume is being
//! closed. The closing thread says so first and then waits for each shard to be empty. One of the two sees
//! the other. So what has returned `Ok` ended before the last sync of a clean close, or was never begun. Work
//! of the engine itself (writeback, commits, the reaper) is not counted: it goes on until its threads are
//! stopped.
//!
//! Shared lines: each shard, by the threads that use it; `is_closing`, read by all and written once.
//!
//! Neighbours: every operation begins with [`Engine::begin_change`]; [`crate::volume`] closes.

use crate::engine::Engine;
use quire_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result, shard};

#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

/// See the module's documentation.
#[derive(Default)]
pub struct Changes {
    shards: [Shard; shard::SHARDS],
    is_closing: AtomicBool,
    waiting: Mutex<()>,
    ended: Condvar,
}

/// Between what a thread says and what it looks at. Sequentially consistent accesses need it under loom only,
/// which takes them for less.
fn settle() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    }
}

/// An operation under way.
#[must_use]
pub struct Change<'a> {
    changes: &'a Changes,
    shard: usize,
}

impl Changes {
    /// Counts an operation in; `None` if the volume is being closed.
    pub fn begin(&self) -> Option<Change<'_>> {
        let shard = shard::current();
        self.shards[shard].0.fetch_add(1, Ordering::SeqCst);
        settle();
        let change = Change { changes: self, shard };
        (!self.is_closing.load(Ordering::SeqCst)).then_some(change)
    }

    /// The operation that [`Change::into_number`] gave the number of.
    pub fn resume(&self, shard: usize) -> Change<'_> {
        Change { changes: self, shard }
    }

    /// Refuses operations from now on, and waits for those under way.
    pub fn refuse(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        settle();
        let mut waiting = self.waiting.lock();
        for shard in &self.shards {
            while shard.0.load(Ordering::SeqCst) > 0 {
                self.ended.wait(&mut waiting);
            }
        }
    }
}

impl Change<'_> {
    /// Lets it go on without the guard, until [`Changes::resume`].
    pub fn into_number(self) -> usize {
        let shard = self.shard;
        std::mem::forget(self);
        shard
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.changes.shards[self.shard].0.fetch_sub(1, Ordering::SeqCst);
        settle();
        if self.changes.is_closing.load(Ordering::SeqCst) {
            drop(self.changes.waiting.lock());
            self.changes.ended.notify_all();
        }
    }
}

impl Engine {
    /// Begins an operation that changes the volume; an error if that takes none: it is read-only, shut down,
    /// or being closed. The operation is under way until the value is dropped.
    pub(crate) fn begin_change(&self) -> Result<Change<'_>> {
        self.check_writable()?;
        self.changes.begin().ok_or_else(|| Error::new(ErrorKind::Shutdown, "the volume is being closed"))
    }
}
