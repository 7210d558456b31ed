//! An fsync under way: what is to be made durable and how soon, and a future that tells when it is.
//!
//! The future needs no runtime: syncers of the volume do the work, it only waits to be woken.
//! [`Syncing::wait`] is for threads. Its fsyncs are queued when it is made, and each tells the [`Promise`]
//! when it has ended.
//!
//! Dropping the future withdraws its fsyncs: what has not begun never does, and what waits for a force of
//! others stops waiting. Nothing is promised of a withdrawn fsync, and no other one is affected: data that
//! was written stays written, records that were journaled stay, and a file whose data could not be written
//! says so to the next fsync.
//!
//! Neighbours: [`super::fsync`] makes and serves them; [`super::sync_queue`] is what they stand in.

use super::fsync::SyncQueue;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// How soon an fsync forces the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At once.
    #[default]
    Now,
    /// It writes the data at once, and then waits for a force that somebody else makes. If there was none
    /// within this time it makes one itself.
    Lazy(Duration),
}

/// What an fsync makes durable, and how soon: at first everything of a file, at once.
///
/// ```
/// # use quire::{FormatOptions, OpenOptions, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// use quire::{Durability, SyncOptions};
/// use std::time::Duration;
///
/// let log = OpenOptions::new().append(true).create(true).open(&volume, "log")?;
/// log.append(b"record")?;
/// // With the next force that anybody makes, at the latest in a fifth of a second.
/// let lazy = Durability::Lazy(Duration::from_millis(200));
/// let syncing = log.sync_with_async(&SyncOptions::new().data_only(true).durability(lazy));
/// syncing.wait()?; // or .await
/// # drop(log);
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncOptions {
    pub(crate) data_only: bool,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) durability: Durability,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions::new()
    }
}

impl SyncOptions {
    /// Contents, attributes and name, at once (fsync).
    pub const fn new() -> SyncOptions {
        SyncOptions { data_only: false, offset: 0, len: u64::MAX, durability: Durability::Now }
    }

    /// Only what reading the contents back needs (fdatasync).
    #[must_use]
    pub fn data_only(mut self, data_only: bool) -> SyncOptions {
        self.data_only = data_only;
        self
    }

    /// Of the contents only bytes `[offset, offset + len)`; with a file that has grown, what lies before them
    /// from the end that is durable, or reading them back could not reach them.
    #[must_use]
    pub fn range(mut self, offset: u64, len: u64) -> SyncOptions {
        (self.offset, self.len) = (offset, len);
        self
    }

    /// How soon.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> SyncOptions {
        self.durability = durability;
        self
    }
}

/// What the fsyncs of a future and the future share.
pub(crate) struct Promise {
    state: Mutex<PromiseState>,
    ended: Condvar,
    /// Nobody will hear of it.
    withdrawn: AtomicBool,
}

struct PromiseState {
    /// Fsyncs that have not ended.
    left: usize,
    /// Ok, or the first error.
    outcome: Result<()>,
    waker: Option<Waker>,
}

impl Promise {
    pub(crate) fn new(left: usize) -> Arc<Promise> {
        let state = PromiseState { left, outcome: Ok(()), waker: None };
        Arc::new(Promise {
            state: Mutex::new(state),
            ended: Condvar::new(),
            withdrawn: AtomicBool::new(false),
        })
    }

    /// One of its fsyncs has ended.
    pub(crate) fn end(&self, outcome: Result<()>) {
        let mut state = self.state.lock();
        if state.outcome.is_ok() {
            state.outcome = outcome;
        }
        state.left -= 1;
        if state.left == 0 {
            let waker = state.waker.take();
            drop(state);
            self.ended.notify_all();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }
}

/// Fsyncs under way, as a future that needs no runtime; [`Syncing::wait`] is for threads. The outcome is the
/// first error of the fsyncs that it stands for.
///
/// They begin when this is made. Dropping it withdraws what has not begun; nothing is promised of that then,
/// and data that was written stays written.
#[must_use = "an fsync that is not waited for promises nothing, and is withdrawn when this is dropped"]
pub struct Syncing {
    queue: Arc<SyncQueue>,
    promise: Arc<Promise>,
}

impl Syncing {
    pub(crate) fn new(queue: Arc<SyncQueue>, promise: Arc<Promise>) -> Syncing {
        Syncing { queue, promise }
    }

    /// Waits on this thread. Not for completions of other fsyncs, whose thread does the work.
    pub fn wait(self) -> Result<()> {
        let mut state = self.promise.state.lock();
        while state.left > 0 {
            self.promise.ended.wait(&mut state);
        }
        state.outcome.clone()
    }

    /// Whether it has ended, so that waiting for it does not wait.
    pub fn is_over(&self) -> bool {
        self.promise.state.lock().left == 0
    }
}

/// What an fsync is told that came too late.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Shutdown, "the volume was closed before the data was durable")
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.promise.state.lock();
        if state.left == 0 {
            return Poll::Ready(state.outcome.clone());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        let (left, waker) = {
            let mut state = self.promise.state.lock();
            (state.left, state.waker.take())
        };
        // Wakers are programs' code.
        drop(waker);
        if left > 0 {
            self.promise.withdrawn.store(true, Ordering::Relaxed);
            self.queue.withdrawn(left);
        }
    }
}

impl std::fmt::Debug for Syncing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Syncing ({} fsyncs to end)", self.promise.state.lock().left)
    }
}
