//! The owner's mark of a device that others can reach as well: raised while the device is open, looked at
//! before anything is written over a new connection, and taken away at the end.
//!
//! Protocol. Whoever opens the device writes its mark ([`OwnerMark`]) first (`host::owner`). From then on
//!
//! 1. a thread reads the mark at each beat. It finds its own and raises the beat; or it finds another one or
//!    none, and then the volume has been taken over: the link is gone from that moment on.
//!    Others take an owner for gone whose beat stands still. So the link is gone as well when no beat has
//!    been answered for the time that the owner is sure of, whatever holds them up. That time passes also
//!    while the machine is suspended, and it is looked at before anything is sent: programs may run again
//!    before the thread does;
//! 2. a new connection is used only after the mark was read over it and found to be the own one. Otherwise
//!    writes that were kept would overwrite those of the new owner;
//! 3. the end writes zeros over a mark that is still the own one. A connection that is not up leaves it.
//!
//! Step 2 is exact only if the server serves one connection at a time: then nobody writes between the look
//! and the writes.
//!
//! Step 1 is always late, by a beat at most. It ends one of two owners that a server let go on, and not
//! always the former one. A beat of the former owner may be on its way when the new owner writes its mark,
//! and land on top of it: then it is the new owner that finds another's mark, and lets go. The former one has
//! let go by then if nobody took the volume from it before its time was over; else it goes on alone. Either
//! way no two of them go on.

use super::link::{Link, Outcome, Pending, Shared, State};
use super::protocol::{Failure, Request, Session};
use super::recovery::ask_session;
use crate::aligned::AlignedBuf;
use crate::backend::IoClass;
use quire_base::clock::Clock;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, Condvar, Mutex, thread};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, Uptime};
use quire_format::owner::{OWNER_BLOCK, OwnerMark};
use std::collections::BTreeSet;

/// Where the mark lies.
const AT: u64 = OWNER_BLOCK * BLOCK_SIZE as u64;

/// Owners whose devices this process has open.
static OPEN_HERE: std::sync::Mutex<BTreeSet<u64>> = std::sync::Mutex::new(BTreeSet::new());

/// A mark that has been written, and how often its beat is raised.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// As it was written.
    pub mark: OwnerMark,
    /// Just before it was written.
    pub written: Uptime,
    /// Time between two beats.
    pub interval: Duration,
    /// Time after a beat for which the owner is sure of the device: less than others wait.
    pub sure: Duration,
}

/// Whether this process has the device of that owner open.
pub fn is_open_here(owner: u64) -> bool {
    open_here().contains(&owner)
}

fn open_here() -> std::sync::MutexGuard<'static, BTreeSet<u64>> {
    OPEN_HERE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The request for the mark's block.
pub fn read_mark() -> Request {
    Request::Read { class: IoClass::Metadata, offset: AT, length: BLOCK_SIZE }
}

/// The request that writes a mark, or the absence of one.
pub fn write_mark(mark: Option<&OwnerMark>) -> Request {
    let mut data = AlignedBuf::blocks(1);
    if let Some(mark) = mark {
        data.copy_from_slice(&mark.encode());
    }
    Request::Write { class: IoClass::Metadata, offset: AT, data: Arc::new(data) }
}

/// The mark in the answer to [`read_mark`].
pub fn mark_in(bytes: Option<&AlignedBuf>) -> Result<Option<OwnerMark>> {
    let block = bytes.and_then(|bytes| <&[u8; BLOCK_SIZE]>::try_from(&bytes[..]).ok());
    OwnerMark::decode(block.ok_or_else(super::wrong_length)?)
}

/// Who it is, for messages.
pub fn describe(mark: &OwnerMark) -> String {
    let ago = Clock::System.now().seconds().saturating_sub(mark.seen.seconds()).max(0);
    format!("process {} ({}) on {}, last seen {ago} s ago", mark.pid, mark.program, mark.host)
}

impl Shared {
    /// The time for which the device is surely this owner's, counted from its last beat. `None` for a device
    /// without a mark.
    pub(super) fn sure_for(&self, state: &State) -> Option<Duration> {
        let (ownership, last) = (self.ownership.as_ref()?, state.last_beat?);
        Some(ownership.sure.saturating_sub(last.elapsed()))
    }

    /// The error of a device that may be another's.
    pub(super) fn unsure(&self) -> Error {
        let seconds = self.ownership.as_ref().map_or(0, |ownership| ownership.sure.as_secs());
        self.letting_go(format_args!(
            "the beat of the owner's mark could not be raised for {seconds} s, so another process may take the volume \
             over"
        ))
    }

    fn letting_go(&self, why: impl std::fmt::Display) -> Error {
        let text = format!(
            "{}: {why}. This process lets go of it: unmount it here; what no fsync has confirmed is lost",
            self.name
        );
        Error::new(ErrorKind::Io, text)
    }

    /// The error of a device that is another's, if the mark says so.
    fn superseded(&self, ownership: &Ownership, found: Result<Option<OwnerMark>>) -> Option<Error> {
        let who = match found {
            Ok(Some(mark)) if mark.owner == ownership.mark.owner => return None,
            Ok(Some(mark)) => format!("{} has taken the volume over", describe(&mark)),
            Ok(None) => "another process has opened the volume and closed it again".into(),
            Err(error) => error.to_string(),
        };
        Some(self.letting_go(who))
    }

    /// Looks over a new session whether the device is still this owner's.
    pub(super) fn check_owner(&self, session: &Arc<dyn Session>, limit: Duration) -> Result<(), Failure> {
        let Some(ownership) = &self.ownership else { return Ok(()) };
        // A block that cannot be read now says nothing about its owner.
        let bytes = ask_session(session, read_mark(), limit).map_err(|failure| match failure {
            Failure::Refused(error) | Failure::Broken(error) => Failure::Broken(error),
        })?;
        self.superseded(ownership, mark_in(bytes.as_ref()))
            .map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }
}

/// The thread of the beat; dropped, it takes the mark away, and then has the link stop.
pub(super) struct Heart {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Heart {
    pub(super) fn start(shared: Arc<Shared>, ownership: Ownership) -> Result<Heart> {
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        open_here().insert(ownership.mark.owner);
        let (runner, stopped) = (shared, stop.clone());
        let thread = thread::Builder::new().name("quire-owner".into()).spawn(move || {
            let owner = ownership.mark.owner;
            if beat(&runner, ownership.clone(), &stopped) {
                runner.release(&ownership);
            }
            open_here().remove(&owner);
            // The link's thread serves the backend until that is dropped.
            let mut is_told = stopped.0.lock();
            while !*is_told {
                stopped.1.wait(&mut is_told);
            }
            drop(is_told);
            runner.stop();
        });
        let thread = thread.map_err(|error| Error::os("starting the thread of an owner's mark", &error))?;
        Ok(Heart { stop, thread: Some(thread) })
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && super::link::may_wait()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an owner's mark panicked");
        }
    }
}

/// Raises the beat until it is told to stop. False if the mark is another's, or the link is gone.
fn beat(shared: &Arc<Shared>, ownership: Ownership, stop: &(Mutex<bool>, Condvar)) -> bool {
    let mut mark = ownership.mark.clone();
    loop {
        let mut stopped = stop.0.lock();
        if !*stopped {
            stop.1.wait_for(&mut stopped, ownership.interval);
        }
        if *stopped {
            return true;
        }
        drop(stopped);
        match shared.ask_for_mark(read_mark()) {
            Ok(bytes) => {
                if let Some(error) = shared.superseded(&ownership, mark_in(bytes.as_ref())) {
                    shared.lose(&mut shared.state.lock(), error);
                    return false;
                }
            }
            Err(_) if shared.is_gone() => return false,
            // A block that cannot be read now says nothing about its owner.
            Err(error) => {
                tracing::warn!(%error, "reading the owner's mark");
                continue;
            }
        }
        (mark.beat, mark.seen) = (mark.beat + 1, Clock::System.now());
        let sent = Uptime::now();
        match shared.ask_for_mark(write_mark(Some(&mark))) {
            Ok(_) => shared.state.lock().last_beat = Some(sent),
            Err(error) => tracing::warn!(%error, "raising the beat of the owner's mark"),
        }
    }
}

impl Shared {
    /// Takes the mark away, if it is still this owner's and the connection is up.
    fn release(self: &Arc<Shared>, ownership: &Ownership) {
        // Requests under way end first; a volume that was closed has none.
        loop {
            let mut state = self.state.lock();
            match state.link {
                Link::Gone(_) => return,
                _ if !state.is_idle() => {}
                Link::Broken(..) => return,
                Link::Up(_) => {
                    state.is_releasing = true;
                    break;
                }
            }
            drop(state);
            thread::sleep(Duration::from_millis(5));
        }
        // A failed flush does not keep the mark: every request of this owner has been answered, and waiting
        // tells a successor nothing about what the flush has lost.
        let released = self.ask_for_mark(read_mark()).and_then(|bytes| {
            match self.superseded(ownership, mark_in(bytes.as_ref())) {
                Some(error) => Err(error),
                None => self.ask_for_mark(write_mark(None)).and_then(|_| self.ask_for_mark(Request::Flush)),
            }
        });
        if let Err(error) = released {
            tracing::warn!(%error, "the owner's mark may stay on the device");
        }
    }

    /// Sends a request and waits for its outcome, which comes within bounded time.
    pub(super) fn ask(self: &Arc<Shared>, request: Request) -> Result<Option<AlignedBuf>> {
        self.ask_with(|done| Pending::new(request, done))
    }

    fn ask_for_mark(self: &Arc<Shared>, request: Request) -> Result<Option<AlignedBuf>> {
        self.ask_with(|done| Pending::of_mark(request, done))
    }

    fn ask_with(self: &Arc<Shared>, pending: impl FnOnce(Outcome) -> Pending) -> Result<Option<AlignedBuf>> {
        type Slot = (Mutex<Option<Result<Option<AlignedBuf>>>>, Condvar);
        let slot: Arc<Slot> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |outcome| {
            *filled.0.lock() = Some(outcome);
            filled.1.notify_all();
        });
        self.start(pending(done));
        let mut outcome = slot.0.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            slot.1.wait(&mut outcome);
        }
    }
}
