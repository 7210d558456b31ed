//! Direct I/O on an image file or block device; asynchronous through io_uring.
//!
//! Synchronous reads, writes and flushes are system calls on the O_DIRECT descriptor in the calling thread:
//! no other thread is involved, so they cost what the device costs. Requests given to `submit` go through one
//! of several rings (`queue`): one enter for a batch, and one completion thread for each ring, which runs
//! their `done`.
//!
//! A batch goes to the ring of the CPU that submits it, so that few CPUs meet on a lock. There is a ring for
//! every two CPUs: with more, a completion thread is woken for fewer completions at a time, and two CPUs lose
//! more by that (5 switches between threads for a random write that is written back, where one ring has 3)
//! than by the lock. A completion thread submits to its own ring and never waits for room. Requests of
//! different rings complete in any order, as those of one ring do.
//!
//! Memory that is not aligned is bounced. Requests in flight when the backend is dropped complete first.
//!
//! Neighbours: [`super::file`] takes over where the host refuses io_uring or O_DIRECT.

mod queue;
mod request;

use super::mode::OpenMode;
use super::target::Target;
use crate::backend::{Backend, Io, IoClass, Segment};
use io_uring::IoUring;
use queue::Queue;
use quire_base::sync::{Arc, thread};
use quire_base::{BlockNo, Error, Result};
use request::Request;
use std::cell::Cell;
use std::path::Path;

/// CPUs that share a ring.
const RING_CPUS: usize = 2;
/// Rings at most, on machines with more CPUs.
const RINGS_MAX: usize = 8;

thread_local! {
    /// The ring whose completion thread this is.
    static OWN_RING: Cell<Option<usize>> = const { Cell::new(None) };
}

/// See the module's documentation.
pub struct UringBackend {
    target: Arc<Target>,
    rings: Vec<Ring>,
}

/// A ring and its completion thread.
struct Ring {
    queue: Arc<Queue>,
    completion: Option<thread::JoinHandle<()>>,
}

impl Ring {
    fn start(target: &Arc<Target>, ring: IoUring, number: usize) -> Result<Ring> {
        let queue = Arc::new(Queue::new(target.clone(), ring));
        let runner = queue.clone();
        let run = move || {
            OWN_RING.set(Some(number));
            runner.run();
        };
        let completion = thread::Builder::new()
            .name(format!("quire-io-{number}"))
            .spawn(run)
            .map_err(|error| Error::os("starting a completion thread", &error))?;
        Ok(Ring { queue, completion: Some(completion) })
    }
}

impl UringBackend {
    /// Opens and locks the image file or block device at `path`, for reading and writing. Fails where
    /// [`super::open_image`] would fall back.
    pub fn open(path: &Path) -> Result<UringBackend> {
        UringBackend::new(Target::open(path, OpenMode::ReadWrite)?).map_err(|(_, error)| error)
    }

    /// As [`UringBackend::open`], with so many rings (at least one), whatever the number of CPUs.
    pub fn open_with_rings(path: &Path, rings: usize) -> Result<UringBackend> {
        let target = Target::open(path, OpenMode::ReadWrite)?;
        UringBackend::with_rings(target, rings.max(1)).map_err(|(_, error)| error)
    }

    /// Takes over `target`, or gives it back (without O_DIRECT) with the reason.
    pub(super) fn new(target: Target) -> Result<UringBackend, (Target, Error)> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        UringBackend::with_rings(target, (cpus / RING_CPUS).clamp(1, RINGS_MAX))
    }

    fn with_rings(mut target: Target, wanted: usize) -> Result<UringBackend, (Target, Error)> {
        if let Err(error) = target.go_direct() {
            return Err((target, error));
        }
        let target = Arc::new(target);
        let mut rings = Vec::new();
        for number in 0..wanted {
            let started = queue::make_ring()
                .map_err(|error| Error::os("setting up io_uring", &error))
                .and_then(|ring| Ring::start(&target, ring, number));
            match started {
                Ok(ring) => rings.push(ring),
                Err(error) if rings.is_empty() => match Arc::into_inner(target) {
                    Some(target) => return Err((target.into_ordinary(), error)),
                    None => unreachable!("a ring that was not started keeps nothing"),
                },
                Err(error) => {
                    // Fewer do as well.
                    tracing::debug!(volume = target.name(), %error, rings = number, "no more rings");
                    break;
                }
            }
        }
        Ok(UringBackend { target, rings })
    }

    /// The ring for a batch of this thread.
    fn ring(&self) -> &Queue {
        let rings = self.rings.len();
        let number = match OWN_RING.get() {
            Some(number) => number,
            None if rings == 1 => 0,
            None => quire_base::shard::processor(),
        };
        &self.rings[number % rings].queue
    }
}

impl Backend for UringBackend {
    fn blocks(&self) -> u64 {
        self.target.blocks()
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.target.grow(blocks)
    }

    fn name(&self) -> String {
        self.target.name().into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, _class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.target.read(at, buf)
    }

    fn read_scattered(&self, _class: IoClass, at: BlockNo, segments: &[Segment]) -> Result<()> {
        self.target.read_scattered(at, segments)
    }

    fn write(&self, _class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.target.write(at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.target.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.target.discard(at, count)
    }

    fn submit(&self, _class: IoClass, ios: Vec<Io>) {
        let mut requests = Vec::with_capacity(ios.len());
        for io in ios {
            match self.target.check(&io) {
                Ok(()) => requests.extend(Request::new(io)),
                Err(error) => (io.done)(Err(error)),
            }
        }
        self.ring().submit(requests, OWN_RING.get().is_none());
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        // The last owner may be a `done` on a completion thread. That waits for no thread, itself included:
        // all end when they can, and the last one closes the descriptor.
        let may_wait = OWN_RING.get().is_none();
        let mut have_all_woken = true;
        let stopped: Vec<_> =
            self.rings.iter_mut().map(|ring| (ring.queue.stop(), ring.completion.take())).collect();
        for (wakes, completion) in stopped {
            have_all_woken &= wakes;
            let Some(completion) = completion.filter(|_| wakes && may_wait) else { continue };
            if completion.join().is_err() {
                tracing::error!("a completion thread panicked");
            }
        }
        if !have_all_woken {
            // The thread of a broken ring may never wake, and keeps the descriptor open.
            self.target.unlock();
        }
    }
}
