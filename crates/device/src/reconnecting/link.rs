//! The connection's state, and what happens to requests while it is up, broken, or gone.
//!
//! Protocol. A request is first *waiting*, then *in flight* with the session, then answered.
//!
//! 1. One thread at a time sends: it moves requests from waiting to in flight under the lock, and submits
//!    them without it. Threads that find a sender leave theirs to it. So an answer that comes within `submit`
//!    does not send again from inside.
//!    Requests of the owner's mark wait for nothing but a connection, and their thread sends nothing else:
//!    were they late, another process would take the device for nobody's. One flush at a time is with the
//!    session: the medium tells an error once, and another flush beside the one that hears of it would count
//!    as if nothing had been lost. Requests behind a flush that waits go on.
//! 2. A completed write is kept (if there will be a reconnection) until a flush that was submitted after its
//!    completion succeeds. Beats of the owner's mark are not: other processes look only whether the beat has
//!    changed.
//! 3. The first broken request of a session breaks the link: the generation moves on, so that later answers
//!    of that session are not heard, and everything in flight goes back to the front of the line.
//! 4. The link's own thread then closes the session, and makes another (`recovery`) or gives up: the link is
//!    gone, every request is answered with the reason, and so is every later one.
//!
//! Invariants: a request's `done` runs once; nothing is submitted under the lock; a session is closed before
//! another one is made; requests that are not in flight of the present generation are not answered by a
//! session.

use super::Properties;
use super::kept::Kept;
use super::ownership::Ownership;
use super::protocol::{Answer, Connector, Failure, Request, Session};
use crate::aligned::AlignedBuf;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result, Uptime};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that requests and kept writes hold before submitters wait.
pub const MEMORY_MAX: usize = 64 << 20;
/// Kept bytes at which the layer flushes by itself.
const KEPT_BYTES_FLUSH: usize = MEMORY_MAX / 2;
/// Kept writes, however small, at which it does.
const KEPT_WRITES_FLUSH: usize = 16_384;
/// Requests with a session at a time.
const IN_FLIGHT_MAX: usize = 256;

thread_local! {
    /// Whether this thread runs a `done`, which waits for nothing.
    static IN_DONE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread may wait for other requests.
pub(super) fn may_wait() -> bool {
    !IN_DONE.get() && quire_base::patience::may_wait()
}

/// Takes the outcome of a request; a read has bytes.
pub(super) type Outcome = Box<dyn FnOnce(Result<Option<AlignedBuf>>) + Send>;

/// A request on its way.
pub(super) struct Pending {
    pub(super) request: Request,
    /// Of a flush: the kept writes that it covers, set when it is sent.
    covers: u64,
    /// Whether it belongs to the owner's mark: it waits for nothing, and no failed flush refuses it.
    is_of_mark: bool,
    done: Outcome,
}

impl Pending {
    pub(super) fn new(request: Request, done: Outcome) -> Pending {
        Pending { request, covers: 0, is_of_mark: false, done }
    }

    pub(super) fn of_mark(request: Request, done: Outcome) -> Pending {
        Pending { is_of_mark: true, ..Pending::new(request, done) }
    }

    fn is_flush(&self) -> bool {
        matches!(self.request, Request::Flush)
    }

    fn finish(self, outcome: Result<Option<AlignedBuf>>) {
        struct Before(bool);
        impl Drop for Before {
            fn drop(&mut self) {
                IN_DONE.set(self.0);
            }
        }
        let _before = Before(IN_DONE.replace(true));
        let done = self.done;
        if catch_unwind(AssertUnwindSafe(move || done(outcome))).is_err() {
            tracing::error!("a completion callback panicked");
        }
    }
}

/// The connection.
pub(super) enum Link {
    Up(Arc<dyn Session>),
    /// Broken for this reason; the session is still to be closed, or a new one to be made.
    Broken(Arc<dyn Session>, Error),
    /// There will be no other.
    Gone(Error),
}

/// What the lock protects.
pub(super) struct State {
    pub(super) link: Link,
    /// Moves on when a session breaks.
    generation: u64,
    waiting: VecDeque<Pending>,
    /// Those of the owner's mark that wait; they go before the others.
    waiting_of_mark: VecDeque<Pending>,
    in_flight: BTreeMap<u64, Pending>,
    next_id: u64,
    /// Memory of requests that are waiting or in flight.
    moving_bytes: usize,
    pub(super) kept: Kept,
    /// A flush failed: what it lost is not known, so nothing may be changed any more.
    failed: Option<Error>,
    is_sending: bool,
    /// Whether a flush is with the session.
    has_flush: bool,
    /// Whether a flush that nobody asked for is on its way.
    is_flushing: bool,
    /// Submitters that wait for memory.
    short_of_room: usize,
    pub(super) is_stopping: bool,
    /// The owner's mark is being taken away, the last thing before the end: not worth a reconnection.
    pub(super) is_releasing: bool,
    /// When the last beat was sent that has been answered; or the mark, before the first.
    pub(super) last_beat: Option<Uptime>,
    /// The device is another's, or may be by now.
    pub(super) superseded: Option<Error>,
}

impl State {
    /// Whether nothing waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.waiting_of_mark.is_empty() && self.in_flight.is_empty()
    }

    fn refusal(&self, pending: &Pending) -> Option<Error> {
        match (&self.link, &self.failed, &pending.request) {
            (Link::Gone(error), ..) => Some(error.clone()),
            (_, Some(_), Request::Read { .. }) | (_, None, _) => None,
            // The device remains this owner's, which reads on.
            (_, Some(_), _) if pending.is_of_mark => None,
            (_, Some(error), _) => Some(error.clone()),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        let held = self.moving_bytes + self.kept.bytes();
        held == 0 || held + bytes <= MEMORY_MAX
    }

    /// Takes the next request out of the line that may go to the session.
    fn next(&mut self) -> Option<Pending> {
        if let Some(pending) = self.waiting_of_mark.pop_front() {
            return Some(pending);
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let may_go = |pending: &Pending| !self.has_flush || !pending.is_flush();
        let at = self.waiting.iter().position(may_go)?;
        self.waiting.remove(at)
    }

    fn push(&mut self, pending: Pending) {
        self.moving_bytes += pending.request.memory();
        self.line_of(&pending).push_back(pending);
    }

    fn line_of(&mut self, pending: &Pending) -> &mut VecDeque<Pending> {
        if pending.is_of_mark { &mut self.waiting_of_mark } else { &mut self.waiting }
    }

    /// Notes that a request goes to the session; gives its number and what to submit.
    fn depart(&mut self, mut pending: Pending) -> (u64, Request) {
        if pending.is_flush() {
            pending.covers = self.kept.covered_by_a_flush();
            self.has_flush = true;
        }
        self.next_id += 1;
        let request = pending.request.clone();
        self.in_flight.insert(self.next_id, pending);
        (self.next_id, request)
    }
}

/// The connection with all that belongs to it; shared by the backend, the link's thread and requests.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) connector: Box<dyn Connector>,
    /// Nothing is written, nor flushed: the server may not offer flushes.
    pub(super) is_read_only: bool,
    /// How long a reconnection may take; without, the first break is the end.
    pub(super) patience: Option<Duration>,
    pub(super) ownership: Option<Ownership>,
    pub(super) state: Mutex<State>,
    /// For the link's thread: the session broke, or stopping is complete.
    pub(super) changed: Condvar,
    /// For submitters: memory has come back.
    room: Condvar,
}

impl Shared {
    pub(super) fn new(
        properties: &Properties,
        connector: Box<dyn Connector>,
        session: Arc<dyn Session>,
    ) -> Shared {
        let state = State {
            link: Link::Up(session),
            generation: 0,
            waiting: VecDeque::new(),
            waiting_of_mark: VecDeque::new(),
            in_flight: BTreeMap::new(),
            next_id: 0,
            moving_bytes: 0,
            kept: Kept::default(),
            failed: None,
            is_sending: false,
            has_flush: false,
            is_flushing: false,
            short_of_room: 0,
            is_stopping: false,
            is_releasing: false,
            last_beat: properties.ownership.as_ref().map(|ownership| ownership.written),
            superseded: None,
        };
        Shared {
            name: properties.name.clone(),
            connector,
            is_read_only: properties.is_read_only,
            patience: properties.patience,
            ownership: properties.ownership.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Takes a request in and sends it, now or when there is a connection. Waits for memory if the thread may
    /// wait.
    pub(super) fn start(self: &Arc<Shared>, pending: Pending) {
        let bytes = pending.request.memory();
        let mut state = self.state.lock();
        loop {
            if let Some(error) = state.refusal(&pending) {
                drop(state);
                return pending.finish(Err(error));
            }
            if pending.is_of_mark || state.has_room(bytes) || !may_wait() {
                break;
            }
            state.short_of_room += 1;
            if self.flush_by_itself(&mut state) {
                drop(state);
                self.send();
                state = self.state.lock();
            } else {
                self.room.wait(&mut state);
            }
            state.short_of_room -= 1;
        }
        if pending.is_of_mark {
            self.lose_if_unsure(&mut state);
        }
        if let Link::Up(session) = &state.link
            && pending.is_of_mark
        {
            // The beat's thread is not to become the sender of everybody's.
            let (session, generation) = (session.clone(), state.generation);
            state.moving_bytes += bytes;
            let (id, request) = state.depart(pending);
            drop(state);
            return self.submit(&session, generation, id, request);
        }
        state.push(pending);
        drop(state);
        self.send();
    }

    fn submit(self: &Arc<Shared>, session: &Arc<dyn Session>, generation: u64, id: u64, request: Request) {
        let shared = self.clone();
        session.submit(request, Box::new(move |answer| shared.answered(generation, id, answer)));
    }

    /// Whether a write that completes is kept until a flush has covered it.
    fn keeps(&self, state: &State) -> bool {
        self.patience.is_some() && state.failed.is_none()
    }

    /// Starts a flush if too much is kept; says whether. It still has to be sent.
    fn flush_by_itself(&self, state: &mut State) -> bool {
        let kept = &state.kept;
        let wanted = kept.bytes() >= KEPT_BYTES_FLUSH
            || kept.len() >= KEPT_WRITES_FLUSH
            || (state.short_of_room > 0 && kept.bytes() > 0);
        if !wanted || state.is_flushing {
            return false;
        }
        state.is_flushing = true;
        // Its outcome is dealt with where that of every flush is.
        state.push(Pending::new(Request::Flush, Box::new(|_| {})));
        true
    }

    /// Sends what waits, as far as the session takes it.
    pub(super) fn send(self: &Arc<Shared>) {
        let mut state = self.state.lock();
        if state.is_sending {
            return;
        }
        state.is_sending = true;
        self.lose_if_unsure(&mut state);
        while let Link::Up(session) = &state.link {
            let session = session.clone();
            let mut batch = Vec::new();
            while let Some(pending) = state.next() {
                batch.push(state.depart(pending));
            }
            if batch.is_empty() {
                break;
            }
            let generation = state.generation;
            drop(state);
            for (id, request) in batch {
                self.submit(&session, generation, id, request);
            }
            state = self.state.lock();
            self.lose_if_unsure(&mut state);
        }
        state.is_sending = false;
    }

    /// Loses a device that may be another's by now.
    fn lose_if_unsure(&self, state: &mut State) {
        if matches!(state.link, Link::Up(_)) && self.sure_for(state) == Some(Duration::ZERO) {
            self.lose(state, self.unsure());
        }
    }

    /// Takes the answer to a request.
    fn answered(self: &Arc<Shared>, generation: u64, id: u64, answer: Answer) {
        let mut state = self.state.lock();
        if state.generation != generation {
            // The session broke, and the request is in line again.
            return;
        }
        let outcome = match answer {
            Ok(bytes) => Ok(bytes),
            Err(Failure::Refused(error)) => Err(error),
            Err(Failure::Broken(error)) => return self.broke(&mut state, error),
        };
        let Some(pending) = state.in_flight.remove(&id) else { return };
        state.moving_bytes -= pending.request.memory();
        let mut refused = Vec::new();
        match (&pending.request, &outcome) {
            (Request::Flush, Ok(_)) => state.kept.flushed(pending.covers),
            (Request::Flush, Err(error)) => {
                state.failed.get_or_insert_with(|| error.clone());
                state.kept.clear();
                while let Some(at) = state.waiting.iter().position(Pending::is_flush) {
                    refused.extend(state.waiting.remove(at));
                }
            }
            // A mark that has lost beats is still its owner's, and the next beat differs from it.
            (request, Ok(_))
                if request.overwrites().is_some() && !pending.is_of_mark && self.keeps(&state) =>
            {
                state.kept.push(request.clone());
            }
            _ => {}
        }
        if pending.is_flush() {
            (state.is_flushing, state.has_flush) = (false, false);
        }
        self.flush_by_itself(&mut state);
        if state.short_of_room > 0 {
            self.room.notify_all();
        }
        if state.is_stopping && state.is_idle() {
            self.changed.notify_all();
        }
        let failed = state.failed.clone();
        drop(state);
        pending.finish(outcome);
        if let Some(error) = failed {
            refused.into_iter().for_each(|flush| flush.finish(Err(error.clone())));
        }
        self.send();
    }

    /// The session broke: everything in flight is in line again, in its order.
    fn broke(&self, state: &mut State, error: Error) {
        let Link::Up(session) = &state.link else { return };
        state.link = Link::Broken(session.clone(), error);
        state.generation += 1;
        state.has_flush = false;
        while let Some((_, pending)) = state.in_flight.pop_last() {
            state.line_of(&pending).push_front(pending);
        }
        self.changed.notify_all();
    }

    /// Breaks the connection, as a failure of it would, and waits for the next one; gives that. Call it with
    /// little unflushed.
    pub(super) fn connect_anew(self: &Arc<Shared>, why: Error) -> Result<Arc<dyn Session>> {
        let mut state = self.state.lock();
        self.broke(&mut state, why);
        loop {
            match &state.link {
                Link::Up(session) => return Ok(session.clone()),
                Link::Gone(error) => return Err(error.clone()),
                Link::Broken(..) => self.room.wait(&mut state),
            }
        }
    }

    /// There will be no connection any more: answers everything with the reason.
    pub(super) fn give_up(&self, error: Error) {
        tracing::error!(%error, "the device is gone");
        let mut state = self.state.lock();
        state.link = Link::Gone(error.clone());
        state.kept.clear();
        state.moving_bytes = 0;
        let mut unanswered = std::mem::take(&mut state.waiting);
        unanswered.append(&mut state.waiting_of_mark);
        debug_assert!(state.in_flight.is_empty(), "a session broke with everything in flight");
        self.room.notify_all();
        drop(state);
        for pending in unanswered {
            pending.finish(Err(error.clone()));
        }
    }

    /// There is a new session, to which everything kept has been written again and flushed. It is closed
    /// again if the device was lost meanwhile.
    pub(super) fn is_up(self: &Arc<Shared>, session: Arc<dyn Session>) {
        let mut state = self.state.lock();
        if let Some(error) = state.superseded.take() {
            drop(state);
            session.close();
            return self.give_up(error);
        }
        state.kept.clear();
        state.link = Link::Up(session);
        self.room.notify_all();
        drop(state);
        self.send();
    }

    /// Whether the backend was dropped and nobody waits for an answer, the owner's mark apart.
    pub(super) fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.is_releasing || (state.is_stopping && state.is_idle())
    }

    /// Has the link's thread end when nothing is under way.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// Whether there will be no connection any more.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state.lock().link, Link::Gone(_))
    }

    /// The device is another's, or may be by now: this is its end. A link that is broken already is gone when
    /// it would be up again.
    pub(super) fn lose(&self, state: &mut State, error: Error) {
        state.superseded = Some(error.clone());
        self.broke(state, error);
    }

    /// The error of a link that is gone.
    pub(super) fn gone(&self, why: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorKind::Io,
            format!(
                "{}: {why}. The volume takes no more changes. See that the server runs and can be reached, then unmount \
                 and mount again: everything that an fsync has confirmed is there",
                self.name
            ),
        )
    }
}
