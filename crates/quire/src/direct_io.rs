//! A direct read or write under way, as a future.
//!
//! Neighbours: [`crate::File`] starts them; `file::direct_async` does them, and calls back.

use crate::file::direct_async::BufferDone;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, Result};
use quire_device::AlignedBuf;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// How many bytes were read or written, and the buffer.
type Ended = (Result<usize>, AlignedBuf);

#[derive(Default)]
struct State {
    ended: Option<Ended>,
    /// It has ended, and perhaps given its outcome.
    is_over: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    over: Condvar,
}

/// A direct read or write under way: gives its outcome and the buffer back.
///
/// It began when it was made, and needs no runtime: a thread of the device ends it. [`DirectIo::wait`] is for
/// threads. Dropping it does not stop the request; the buffer is freed when that has ended.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// use quire::{AlignedBuf, OpenOptions};
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "table")?;
/// let (written, buffer) = file.write_direct_async(AlignedBuf::copy_of(&[7; 8192]), 0).wait();
/// assert_eq!(written?, 8192);
/// let first = file.read_direct_async(AlignedBuf::zeroed(4096), 0); // both are under way
/// let second = file.read_direct_async(AlignedBuf::zeroed(4096), 4096);
/// assert_eq!((first.wait().1[0], second.wait().1[0]), (7, 7));
/// # drop((file, buffer));
/// # volume.close()
/// # }
/// ```
#[must_use = "the outcome of a request is what its future gives"]
pub struct DirectIo {
    shared: Arc<Shared>,
}

impl DirectIo {
    /// Calls `begin` with what ends the request.
    pub(crate) fn start(begin: impl FnOnce(BufferDone)) -> DirectIo {
        let shared = Arc::new(Shared::default());
        let request = shared.clone();
        begin(Box::new(move |buffer, outcome| {
            let mut state = request.state.lock();
            state.ended = Some((outcome, buffer));
            state.is_over = true;
            let waker = state.waker.take();
            drop(state);
            request.over.notify_all();
            waker.into_iter().for_each(Waker::wake);
        }));
        DirectIo { shared }
    }

    /// One that was refused.
    pub(crate) fn over(buffer: AlignedBuf, error: Error) -> DirectIo {
        DirectIo::start(|done| done(buffer, Err(error)))
    }

    /// Waits on this thread, which must not be one that ends requests.
    ///
    /// Panics if the future has given its outcome.
    pub fn wait(self) -> (Result<usize>, AlignedBuf) {
        let mut state = self.shared.state.lock();
        loop {
            match state.take() {
                Some(ended) => return ended,
                None => self.shared.over.wait(&mut state),
            }
        }
    }

    /// Whether it has ended, so that waiting for it does not wait.
    pub fn is_over(&self) -> bool {
        self.shared.state.lock().is_over
    }
}

impl State {
    /// The outcome, once; `None` while the request is under way.
    fn take(&mut self) -> Option<Ended> {
        let ended = self.ended.take();
        assert!(ended.is_some() || !self.is_over, "a DirectIo gives its outcome once, and has given it");
        ended
    }
}

impl Future for DirectIo {
    type Output = (Result<usize>, AlignedBuf);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.lock();
        if let Some(ended) = state.take() {
            return Poll::Ready(ended);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for DirectIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectIo({})", if self.is_over() { "over" } else { "under way" })
    }
}
