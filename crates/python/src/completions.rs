//! Fsyncs that an event loop waits for, without a thread each. The durability of a group of writes is one,
//! too.
//!
//! ```text
//!   the loop's thread                              a thread of the library
//!   begin: starts the fsync, keeps its future
//!          and the loop's                          wakes: notes the number; first of a batch: eventfd
//!   drain: <- the eventfd is readable
//!          takes the numbers, settles the futures
//! ```
//!
//! The library's threads touch a list and the eventfd, never the interpreter: a Python program that holds its
//! lock slows no fsync of others. A number is added under the list's lock, and the thread that finds the list
//! empty writes to the eventfd after that; `drain` first reads the eventfd and then takes the whole list. So
//! a number is in the list only while a write to the eventfd is to come or to be read.
//!
//! Neighbours: `python/quire/_aio.py` has one of these for each event loop.

use crate::error::{OrRaise, exception};
use crate::file::NativeFile;
use crate::group::NativeGroup;
use crate::of_process::OfProcess;
use crate::volume::NativeVolume;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use quire::{SyncOptions, Syncing};
use quire_base::sync::{Arc, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

/// What the library's threads and the loop share.
struct Mailbox {
    /// Numbers of fsyncs that may have ended.
    woken: Mutex<Vec<u64>>,
    event: OwnedFd,
}

/// Wakes one fsync.
struct Ticket {
    mailbox: Arc<Mailbox>,
    number: u64,
}

impl Wake for Ticket {
    fn wake(self: std::sync::Arc<Self>) {
        let first = {
            let mut woken = self.mailbox.woken.lock();
            woken.push(self.number);
            woken.len() == 1
        };
        if first {
            // Fails only if the counter would overflow, and then it is readable.
            let _ = rustix::io::write(&self.mailbox.event, &1u64.to_ne_bytes());
        }
    }
}

#[derive(Default)]
struct Pending {
    next: u64,
    begun: HashMap<u64, (Syncing, Py<PyAny>)>,
}

/// The fsyncs of one event loop.
#[pyclass(frozen, module = "quire._native")]
pub struct Completions {
    mailbox: Arc<Mailbox>,
    pending: OfProcess<Mutex<Pending>>,
}

/// The outcome of an fsync, if it has ended; else it will wake `waker`.
fn poll(syncing: &mut Syncing, waker: &Waker) -> Option<quire::Result<()>> {
    match Pin::new(syncing).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

impl Completions {
    fn waker(&self, number: u64) -> Waker {
        Waker::from(std::sync::Arc::new(Ticket { mailbox: self.mailbox.clone(), number }))
    }

    /// Keeps an fsync and the future that its end settles; gives its number. None if it has ended already.
    fn keep(&self, mut syncing: Syncing, future: Py<PyAny>) -> PyResult<Option<u64>> {
        let mut pending = self.pending.get()?.lock();
        let number = pending.next;
        pending.next += 1;
        match poll(&mut syncing, &self.waker(number)) {
            Some(outcome) => outcome.or_raise().map(|()| None),
            None => {
                pending.begun.insert(number, (syncing, future));
                Ok(Some(number))
            }
        }
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Completions> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| PyOSError::new_err((error.raw_os_error(), "creating an eventfd")))?;
        let mailbox = Arc::new(Mailbox { woken: Mutex::new(Vec::new()), event });
        Ok(Completions { mailbox, pending: OfProcess::new(Mutex::default()) })
    }

    /// The descriptor that is readable when [`Completions::drain`] has something to do.
    fn fileno(&self) -> i32 {
        self.mailbox.event.as_raw_fd()
    }

    /// Begins to make a file durable.
    fn sync_file(
        &self,
        py: Python<'_>,
        file: &NativeFile,
        data_only: bool,
        future: Py<PyAny>,
    ) -> PyResult<Option<u64>> {
        let file = file.open_file()?;
        let syncing = py.detach(|| file.sync_with_async(&SyncOptions::new().data_only(data_only)));
        self.keep(syncing, future)
    }

    /// Begins to make files of one volume durable, together.
    fn sync_files(
        &self,
        py: Python<'_>,
        volume: &NativeVolume,
        files: Vec<PyRef<'_, NativeFile>>,
        data_only: bool,
        future: Py<PyAny>,
    ) -> PyResult<Option<u64>> {
        let volume = volume.open_volume()?;
        let files = files.iter().map(|file| file.open_file()).collect::<PyResult<Vec<_>>>()?;
        let options = SyncOptions::new().data_only(data_only);
        let syncing = py.detach(|| volume.sync_files_async(files.iter().map(Arc::as_ref), &options));
        self.keep(syncing, future)
    }

    /// Begins to make a volume durable.
    fn sync_volume(&self, py: Python<'_>, volume: &NativeVolume, future: Py<PyAny>) -> PyResult<Option<u64>> {
        let volume = volume.open_volume()?;
        let syncing = py.detach(|| volume.sync_async());
        self.keep(syncing, future)
    }

    /// Commits a group, and begins to make it durable.
    fn commit_group(&self, py: Python<'_>, group: &NativeGroup, future: Py<PyAny>) -> PyResult<Option<u64>> {
        // In a process that was forked off the group stays as it is.
        self.pending.get()?;
        let syncing = group.commit_async(py)?;
        self.keep(syncing, future)
    }

    /// Gives an fsync up whose future was cancelled.
    fn withdraw(&self, number: u64) -> PyResult<()> {
        let given_up = self.pending.get()?.lock().begun.remove(&number);
        drop(given_up);
        Ok(())
    }

    /// Settles the futures of what has ended.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let pending = self.pending.get()?;
        // Nonblocking: there may be nothing to read after a batch that an earlier call took.
        let _ = rustix::io::read(&self.mailbox.event, &mut [0; 8]);
        let woken = std::mem::take(&mut *self.mailbox.woken.lock());
        let mut ended = Vec::with_capacity(woken.len());
        {
            let mut pending = pending.lock();
            for number in woken {
                let Some((syncing, _)) = pending.begun.get_mut(&number) else { continue };
                if let Some(outcome) = poll(syncing, &self.waker(number))
                    && let Some((_, future)) = pending.begun.remove(&number)
                {
                    ended.push((outcome, future));
                }
            }
        }
        for (outcome, future) in ended {
            settle(py, future.bind(py), outcome)?;
        }
        Ok(())
    }
}

/// Tells a future of an event loop its outcome; one that was cancelled needs none.
fn settle(py: Python<'_>, future: &Bound<'_, PyAny>, outcome: quire::Result<()>) -> PyResult<()> {
    static NAMES: PyOnceLock<[Py<pyo3::types::PyString>; 3]> = PyOnceLock::new();
    let [done, set_result, set_exception] = NAMES.get_or_init(py, || {
        ["done", "set_result", "set_exception"].map(|name| pyo3::types::PyString::new(py, name).unbind())
    });
    if future.call_method0(done)?.is_truthy()? {
        return Ok(());
    }
    match outcome {
        Ok(()) => future.call_method1(set_result, (py.None(),))?,
        Err(error) => future.call_method1(set_exception, (exception(&error),))?,
    };
    Ok(())
}
