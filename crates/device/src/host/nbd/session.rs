//! Requests and answers of one connection, through libnbd's asynchronous calls.
//!
//! Protocol. A submitter hands a request to libnbd in pieces no longer than the server takes, each with a
//! callback; libnbd sends what the socket takes at once. One thread polls the socket: it has libnbd read
//! answers, and send what did not fit. libnbd runs callbacks under its handle's lock, from whatever call of
//! ours; so a callback only notes its piece in `ended`, and the polling thread does the rest. An eventfd
//! wakes that thread when libnbd has something left to send, when a piece ended in a submitter's call, and to
//! close.
//!
//! The session is over when the connection is, when a request waits and nothing has been answered for too
//! long, when one request has been overtaken by others for much too long, or when it is closed. A server that
//! answers is at work: a flush may take its time, and many requests share a slow link. The polling thread
//! then marks it closed, so that no more calls are made, cuts the socket, and answers everything left with
//! `Broken`.
//!
//! Invariants: memory that libnbd reads or fills belongs to `outstanding`, and is dropped only when all
//! pieces have ended, or by the polling thread after it has marked the session closed; libnbd is asked to
//! issue requests only under the lock and while the session is not closed.

use super::handle::{Export, Handle};
use super::library::{Completion, DIRECTION_READ, DIRECTION_WRITE, FLAG_NO_HOLE};
use crate::aligned::AlignedBuf;
use crate::reconnecting::{Answered, Failure, Request, Session};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, Mutex, thread};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Longest trim or write of zeros; these carry no data.
const EMPTY_BYTES_MAX: u64 = 1 << 30;
/// A request may wait for so many times as long, if others are answered meanwhile.
const OVERTAKEN_FACTOR: u32 = 10;
/// What stands for the data where a server has no writes of zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// How often the polling thread looks for requests that wait too long.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(super) struct NbdSession {
    inner: Arc<Inner>,
    poller: Mutex<Option<thread::JoinHandle<()>>>,
}

struct Inner {
    name: String,
    handle: Handle,
    export: Export,
    answer_limit: Duration,
    wake: OwnedFd,
    state: Mutex<State>,
    ended: Arc<Ended>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// Somebody asked for the end.
    is_closing: bool,
    next_id: u64,
    outstanding: BTreeMap<u64, Outstanding>,
    /// When the last answer came.
    heard: Option<Instant>,
}

/// A request that libnbd has.
struct Outstanding {
    request: Request,
    /// What a read fills.
    buffer: Option<AlignedBuf>,
    pieces: usize,
    failure: Option<Failure>,
    since: Instant,
    answered: Answered,
}

/// Pieces that have ended, with libnbd's error number (0: none).
type Ended = Mutex<Vec<(u64, c_int)>>;

/// What a callback gets.
struct Piece {
    ended: Arc<Ended>,
    id: u64,
}

/// libnbd's word that a request has ended.
unsafe extern "C" fn piece_ended(user_data: *mut c_void, error: *mut c_int) -> c_int {
    // SAFETY: `user_data` is a `Piece` that `free_piece` has not freed; `error` points to a number.
    unsafe {
        let piece = &*user_data.cast::<Piece>();
        piece.ended.lock().push((piece.id, *error));
    }
    // The command needs no further attention.
    1
}

unsafe extern "C" fn free_piece(user_data: *mut c_void) {
    // SAFETY: from `Box::into_raw`, and libnbd frees it once.
    drop(unsafe { Box::from_raw(user_data.cast::<Piece>()) });
}

impl NbdSession {
    /// Takes over a handle that is connected.
    pub(super) fn start(
        name: &str,
        handle: Handle,
        export: Export,
        answer_limit: Duration,
    ) -> Result<NbdSession> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::os("making an eventfd", &error.into()))?;
        let inner = Arc::new(Inner {
            name: name.into(),
            handle,
            export,
            answer_limit,
            wake,
            state: Mutex::default(),
            ended: Arc::default(),
        });
        let runner = inner.clone();
        let poller = thread::Builder::new()
            .name("quire-nbd".into())
            .spawn(move || runner.run())
            .map_err(|error| Error::os("starting the thread of an NBD connection", &error))?;
        Ok(NbdSession { inner, poller: Mutex::new(Some(poller)) })
    }
}

impl Session for NbdSession {
    fn blocks(&self) -> u64 {
        self.inner.export.bytes / BLOCK_SIZE as u64
    }

    fn submit(&self, request: Request, answered: Answered) {
        let inner = &self.inner;
        match request {
            Request::Trim { .. } if !inner.export.can_trim => {
                let error = Error::new(ErrorKind::Unsupported, "the export does not discard");
                return answered(Err(Failure::Refused(error)));
            }
            _ => {}
        }
        let buffer = match &request {
            Request::Read { length, .. } => match AlignedBuf::try_zeroed(*length) {
                Ok(buffer) => Some(buffer),
                Err(error) => return answered(Err(Failure::Refused(error))),
            },
            _ => None,
        };
        let mut state = inner.state.lock();
        if state.is_closed {
            drop(state);
            return answered(Err(inner.broken("the connection is closed")));
        }
        state.next_id += 1;
        let id = state.next_id;
        let mut outstanding =
            Outstanding { request, buffer, pieces: 0, failure: None, since: Instant::now(), answered };
        inner.issue(id, &mut outstanding);
        if outstanding.pieces == 0 {
            drop(state);
            let failure = outstanding.failure.unwrap_or_else(|| inner.broken("nothing was sent"));
            (outstanding.answered)(Err(failure));
            return inner.wake_up();
        }
        state.outstanding.insert(id, outstanding);
        drop(state);
        // SAFETY: the handle is valid.
        let direction = unsafe { (inner.handle.library.aio_get_direction)(inner.handle.raw) };
        if direction & DIRECTION_WRITE != 0 || !inner.ended.lock().is_empty() || inner.handle.is_over() {
            inner.wake_up();
        }
    }

    fn close(&self) {
        self.inner.state.lock().is_closing = true;
        self.inner.wake_up();
        if let Some(poller) = self.poller.lock().take()
            && poller.thread().id() != thread::current().id()
            && poller.join().is_err()
        {
            tracing::error!("the thread of an NBD connection panicked");
        }
    }
}

impl Drop for NbdSession {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn broken(&self, why: &str) -> Failure {
        Failure::Broken(Error::new(ErrorKind::Io, format!("{}: {why}", self.name)))
    }

    fn wake_up(&self) {
        // Fails only if the counter is full: then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Hands all pieces of a request to libnbd; the first that it refuses ends that.
    fn issue(&self, id: u64, outstanding: &mut Outstanding) {
        let (library, raw) = (self.handle.library, self.handle.raw);
        let (offset, length, step) = match &outstanding.request {
            Request::Read { offset, length, .. } => {
                (*offset, *length as u64, self.export.request_bytes_max as u64)
            }
            Request::Write { offset, data, .. } => {
                (*offset, data.len() as u64, self.export.request_bytes_max as u64)
            }
            Request::Zeroes { offset, length, .. } => {
                let step = self.export.request_bytes_max.min(ZEROS.len()) as u64;
                (*offset, *length as u64, if self.export.can_zero { EMPTY_BYTES_MAX } else { step })
            }
            Request::Trim { offset, length } => (*offset, *length, EMPTY_BYTES_MAX),
            Request::Flush => (0, 1, 1),
        };
        let mut done = 0;
        while done < length {
            let count = step.min(length - done);
            let piece = Box::new(Piece { ended: self.ended.clone(), id });
            let completion = Completion {
                callback: piece_ended,
                user_data: Box::into_raw(piece).cast(),
                free: free_piece,
            };
            let at = offset + done;
            // SAFETY: the handle is valid. The memory has `length` bytes, belongs to `outstanding`, and so
            // lives until all pieces have ended (the module's invariant); `ZEROS` has a step's. libnbd frees
            // the piece, also when it refuses the request.
            let cookie = unsafe {
                match &mut outstanding.request {
                    Request::Read { .. } => {
                        let buffer = outstanding.buffer.as_mut().expect("a read has a buffer");
                        let to = buffer.as_mut_ptr().add(done as usize).cast();
                        (library.aio_pread)(raw, to, count as usize, at, completion, 0)
                    }
                    Request::Write { data, .. } => {
                        let from = data.as_ptr().add(done as usize).cast();
                        (library.aio_pwrite)(raw, from, count as usize, at, completion, 0)
                    }
                    Request::Zeroes { .. } if !self.export.can_zero => {
                        (library.aio_pwrite)(raw, ZEROS.as_ptr().cast(), count as usize, at, completion, 0)
                    }
                    Request::Zeroes { .. } => (library.aio_zero)(raw, count, at, completion, FLAG_NO_HOLE),
                    Request::Trim { .. } => (library.aio_trim)(raw, count, at, completion, 0),
                    Request::Flush => (library.aio_flush)(raw, completion, 0),
                }
            };
            if cookie == -1 {
                let error = library.error(format_args!("a request to {}", self.name));
                let failure =
                    if self.handle.is_over() { Failure::Broken(error) } else { Failure::Refused(error) };
                outstanding.failure = Some(failure);
                return;
            }
            outstanding.pieces += 1;
            done += count;
        }
    }

    /// The polling thread.
    fn run(&self) {
        let why = loop {
            if let Some(why) = self.over() {
                break why;
            }
            self.wait();
            self.take_ended();
        };
        let mut state = self.state.lock();
        state.is_closed = true;
        let is_orderly = state.is_closing && state.outstanding.is_empty();
        let left = std::mem::take(&mut state.outstanding);
        drop(state);
        // SAFETY: the handle is valid, and so is a descriptor that it names.
        unsafe {
            let (library, raw) = (self.handle.library, self.handle.raw);
            if is_orderly && !self.handle.is_over() {
                (library.aio_disconnect)(raw, 0);
            }
            let fd = (library.aio_get_fd)(raw);
            if fd >= 0 {
                libc::shutdown(fd, libc::SHUT_RDWR);
            }
        }
        for outstanding in left.into_values() {
            (outstanding.answered)(Err(self.broken(&why)));
        }
    }

    /// Why the session is over, if it is.
    fn over(&self) -> Option<String> {
        if self.handle.is_over() {
            return Some("the connection broke".into());
        }
        let state = self.state.lock();
        if state.is_closing {
            return Some("the connection was closed".into());
        }
        // Numbers grow with time.
        let since = state.outstanding.values().next()?.since;
        let waits = since.elapsed();
        let is_silent = state.heard.unwrap_or(since).max(since).elapsed() >= self.answer_limit;
        (is_silent || waits >= self.answer_limit.saturating_mul(OVERTAKEN_FACTOR))
            .then(|| format!("no answer to a request for {} s", waits.as_secs()))
    }

    /// Sleeps until the socket or somebody wants something, and has libnbd do its part.
    fn wait(&self) {
        let (library, raw) = (self.handle.library, self.handle.raw);
        // SAFETY: the handle is valid.
        let (fd, direction) = unsafe { ((library.aio_get_fd)(raw), (library.aio_get_direction)(raw)) };
        if fd < 0 {
            return;
        }
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, direction & DIRECTION_READ != 0);
        wanted.set(PollFlags::OUT, direction & DIRECTION_WRITE != 0);
        // SAFETY: only this thread ends the connection's descriptor: libnbd closes it with the handle, or in
        // a call that finds the connection broken, and then the number may be another's; poll looks, no more.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut fds = [PollFd::new(&socket, wanted), PollFd::new(&self.wake, PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: LOOK_INTERVAL.as_secs() as i64, tv_nsec: 0 };
        if let Err(error) = rustix::event::poll(&mut fds, Some(&limit))
            && error != rustix::io::Errno::INTR
        {
            tracing::warn!(device = self.name, %error, "waiting for a socket");
            thread::sleep(Duration::from_millis(10));
        }
        let (socket, woken) = (fds[0].revents(), !fds[1].revents().is_empty());
        if woken {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        let ends = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        // SAFETY: the handle is valid. What may be done now is asked again: a submitter may have changed it.
        unsafe {
            let direction = (library.aio_get_direction)(raw);
            if direction & DIRECTION_READ != 0 && socket.intersects(PollFlags::IN | ends) {
                (library.aio_notify_read)(raw);
            } else if direction & DIRECTION_WRITE != 0 && socket.intersects(PollFlags::OUT | ends) {
                (library.aio_notify_write)(raw);
            }
        }
    }

    /// Answers requests of which all pieces have ended.
    fn take_ended(&self) {
        let pieces = std::mem::take(&mut *self.ended.lock());
        if pieces.is_empty() {
            return;
        }
        let mut complete = Vec::new();
        let mut state = self.state.lock();
        state.heard = Some(Instant::now());
        for (id, number) in pieces {
            let Some(outstanding) = state.outstanding.get_mut(&id) else { continue };
            outstanding.pieces -= 1;
            if number != 0 {
                let is_broken = matches!(number, libc::ENOTCONN | libc::ESHUTDOWN | libc::EPIPE);
                let reason = std::io::Error::from_raw_os_error(number);
                let error = Error::os(format_args!("a request to {}", self.name), &reason);
                let failure = if is_broken { Failure::Broken(error) } else { Failure::Refused(error) };
                outstanding.failure.get_or_insert(failure);
            }
            if outstanding.pieces == 0 {
                complete.extend(state.outstanding.remove(&id));
            }
        }
        drop(state);
        for Outstanding { buffer, failure, answered, .. } in complete {
            answered(failure.map_or(Ok(buffer), Err));
        }
    }
}
