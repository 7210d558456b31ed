//! Direct I/O on an image file or block device; asynchronous through an io_uring.
//!
//! Synchronous reads, writes and flushes are system calls on the O_DIRECT descriptor in the calling thread: no
//! other thread is involved, so they cost what the device costs. Requests given to `submit` go through
//! `queue`: one enter for a batch, one completion thread that runs their `done`.
//!
//! Memory that is not aligned is bounced. Requests in flight when the backend is dropped complete first.
//!
//! Neighbours: [`super::file`] takes over where the host refuses io_uring or O_DIRECT.

mod queue;
mod request;

use super::open::OpenMode;
use super::target::Target;
use crate::backend::{Backend, Io, IoClass};
use queue::Queue;
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, Error, Result};
use request::Request;
use std::path::Path;

/// See the module's documentation.
pub struct UringBackend {
    queue: Arc<Queue>,
    completion: Option<thread::JoinHandle<()>>,
}

impl UringBackend {
    /// Opens and locks the image file or block device at `path`, for reading and writing. Fails where
    /// [`super::open_image`] would fall back.
    pub fn open(path: &Path) -> Result<UringBackend> {
        UringBackend::new(Target::open(path, OpenMode::ReadWrite)?).map_err(|(_, error)| error)
    }

    /// Takes over `target`, or gives it back (without O_DIRECT) with the reason.
    pub(super) fn new(mut target: Target) -> Result<UringBackend, (Target, Error)> {
        if let Err(error) = target.go_direct() {
            return Err((target, error));
        }
        let ring = match queue::make_ring() {
            Ok(ring) => ring,
            Err(e) => {
                let error = Error::os("setting up io_uring", &e);
                return Err((target.into_ordinary(), error));
            }
        };
        let queue = Arc::new(Queue::new(target, ring));
        let runner = queue.clone();
        let thread = thread::Builder::new().name("quire-io".into()).spawn(move || runner.run());
        match thread {
            Ok(completion) => Ok(UringBackend { queue, completion: Some(completion) }),
            Err(e) => {
                let error = Error::os("starting the completion thread", &e);
                match Arc::into_inner(queue) {
                    Some(queue) => Err((queue.into_target().into_ordinary(), error)),
                    None => unreachable!("the thread that had the other reference never started"),
                }
            }
        }
    }

    fn target(&self) -> &Target {
        self.queue.target()
    }
}

impl Backend for UringBackend {
    fn blocks(&self) -> u64 {
        self.target().blocks()
    }

    fn name(&self) -> String {
        self.target().name().into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, _class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.target().read(at, buf)
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.target().write(at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.target().flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.target().discard(at, count)
    }

    fn submit(&self, _class: IoClass, ios: Vec<Io>) {
        let mut requests = Vec::with_capacity(ios.len());
        for io in ios {
            match self.target().check(&io) {
                Ok(()) => requests.extend(Request::new(io)),
                Err(error) => (io.done)(Err(error)),
            }
        }
        self.queue.submit(requests);
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        let wakes = self.queue.stop();
        let Some(completion) = self.completion.take() else { return };
        // The last owner may be a `done` on the completion thread itself, which then ends when it can.
        let is_own = completion.thread().id() == thread::current().id();
        if wakes && !is_own && completion.join().is_err() {
            tracing::error!("the completion thread panicked");
        }
    }
}
