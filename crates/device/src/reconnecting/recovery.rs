//! The link's thread: it closes a session that broke, makes another, and brings it up to date.
//!
//! Order, for a device that may have lost whatever no flush covered:
//!
//! 1. The old session is closed before a new one is asked for: a server that admits one connection, or ends
//!    the requests of a lost one first, has then nothing of the old one ahead.
//! 2. The device is still this owner's, by its mark ([`super::ownership`]); else the link is gone.
//! 3. Everything kept is written again, in the order of its completion where it overlaps.
//! 4. A flush, unless the device is only read. Only now is anything of it durable, whatever an earlier flush
//!    might have begun to do.
//! 5. What was in flight or waiting goes on. It was never acknowledged, so it may come after.
//!
//! All of it takes no longer than the patience that the address grants, nor than the owner is sure of the
//! device; then the link is gone. It goes as well when that time is over while a session is up.

use super::link::{Link, Shared};
use super::protocol::{Answer, Failure, Request, Session};
use crate::aligned::AlignedBuf;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, Condvar, Mutex, thread};
use quire_base::{Error, ErrorKind, Uptime};

/// Writes that are written again at a time.
const WINDOW: usize = 64;
/// Longest wait for one attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Shortest and longest pause between attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// The link's thread, until the backend is dropped and nothing is under way.
pub(super) fn run(shared: &Arc<Shared>) {
    loop {
        let mut state = shared.state.lock();
        let (session, error) = loop {
            match &state.link {
                Link::Broken(session, error) => break (session.clone(), Some(error.clone())),
                Link::Gone(_) if state.is_stopping => return,
                Link::Up(session) if state.is_stopping && state.is_idle() => {
                    break (session.clone(), None);
                }
                Link::Up(_) => match shared.sure_for(&state) {
                    None => shared.changed.wait(&mut state),
                    Some(Duration::ZERO) => shared.lose(&mut state, shared.unsure()),
                    Some(left) => drop(shared.changed.wait_for(&mut state, left)),
                },
                Link::Gone(_) => shared.changed.wait(&mut state),
            }
        };
        drop(state);
        session.close();
        let Some(error) = error else { return };
        let superseded = shared.state.lock().superseded.take();
        if let Some(error) = superseded {
            shared.give_up(error);
            continue;
        }
        match shared.patience {
            None => shared.give_up(shared.gone(format_args!(
                "the connection broke ({error}), and the address does not ask for reconnecting (reconnect=SECONDS)"
            ))),
            Some(patience) => reconnect(shared, patience, error),
        }
    }
}

fn reconnect(shared: &Arc<Shared>, patience: Duration, broken: Error) {
    tracing::warn!(device = shared.name, error = %broken, "the connection broke; reconnecting");
    let start = Instant::now();
    let sure_for = || shared.sure_for(&shared.state.lock()).unwrap_or(Duration::MAX);
    let left = || patience.saturating_sub(start.elapsed()).min(sure_for());
    let mut last = broken;
    let mut pause = PAUSES[0];
    while !left().is_zero() {
        if shared.is_abandoned() {
            break;
        }
        match shared.connector.connect(left().min(CONNECT_LIMIT)) {
            Ok(session) => match bring_up(shared, &session, left()) {
                Ok(count) => {
                    tracing::warn!(
                        device = shared.name,
                        count,
                        "reconnected; unflushed writes written again"
                    );
                    return shared.is_up(session);
                }
                Err(Failure::Broken(error)) => {
                    session.close();
                    last = error;
                }
                Err(Failure::Refused(error)) => {
                    session.close();
                    return shared.give_up(error);
                }
            },
            Err(error) => last = error,
        }
        thread::sleep(pause.min(left()));
        pause = (pause * 2).min(PAUSES[1]);
    }
    if sure_for().is_zero() {
        return shared.give_up(shared.unsure());
    }
    shared.give_up(shared.gone(format_args!(
        "the connection broke and could not be made again within {} s ({last})",
        patience.as_secs()
    )));
}

/// Makes a new session fit to go on with; returns how many writes that took. Refused is the end.
fn bring_up(shared: &Shared, session: &Arc<dyn Session>, limit: Duration) -> Result<usize, Failure> {
    let start = Uptime::now();
    shared.check_owner(session, limit)?;
    write_again(shared, session, limit.saturating_sub(start.elapsed())).map_err(|failure| match failure {
        Failure::Refused(error) => Failure::Refused(shared.gone(format_args!(
            "after reconnecting, what no flush had covered could not be written again: {error}"
        ))),
        broken => broken,
    })
}

/// Writes everything that is kept once more, and flushes; returns how many writes.
fn write_again(shared: &Shared, session: &Arc<dyn Session>, limit: Duration) -> Result<usize, Failure> {
    let start = Uptime::now();
    let left = || limit.saturating_sub(start.elapsed());
    let kept = shared.state.lock().kept.writes();
    let mut window: Vec<(u64, u64)> = Vec::new();
    let mut round = Round::start();
    for write in &kept {
        let Some((from, to)) = write.overwrites() else { continue };
        if window.len() == WINDOW || window.iter().any(|(start, end)| from < *end && *start < to) {
            round.wait(left())?;
            (window, round) = (Vec::new(), Round::start());
        }
        if left().is_zero() {
            // The machine may have been suspended, and the volume be another's.
            return Err(too_late());
        }
        window.push((from, to));
        round.submit(session, write.clone());
    }
    round.wait(left())?;
    if !shared.is_read_only {
        ask_session(session, Request::Flush, left())?;
    }
    Ok(kept.len())
}

fn too_late() -> Failure {
    Failure::Broken(Error::new(ErrorKind::Io, "no answer within the time for reconnecting"))
}

/// Sends one request over a session that nothing else uses yet, and waits for its answer.
pub fn ask_session(session: &Arc<dyn Session>, request: Request, limit: Duration) -> Answer {
    let round = Round::start();
    round.submit(session, request);
    round.wait(limit)
}

/// Requests that are waited for together.
struct Round(Arc<(Mutex<Progress>, Condvar)>);

#[derive(Default)]
struct Progress {
    outstanding: usize,
    failure: Option<Failure>,
    /// Bytes of the last read.
    bytes: Option<AlignedBuf>,
}

impl Round {
    fn start() -> Round {
        Round(Arc::default())
    }

    fn submit(&self, session: &Arc<dyn Session>, request: Request) {
        self.0.0.lock().outstanding += 1;
        let inner = self.0.clone();
        let answered = move |answer: Answer| {
            let mut progress = inner.0.lock();
            progress.outstanding -= 1;
            match answer {
                Ok(bytes) => progress.bytes = bytes,
                Err(failure) => drop(progress.failure.get_or_insert(failure)),
            }
            inner.1.notify_all();
        };
        session.submit(request, Box::new(answered));
    }

    /// Waits for all answers; returns the bytes of the last one.
    fn wait(self, limit: Duration) -> Answer {
        let start = Instant::now();
        let mut progress = self.0.0.lock();
        while progress.outstanding > 0 {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(too_late());
            }
            self.0.1.wait_for(&mut progress, left);
        }
        let bytes = progress.bytes.take();
        progress.failure.take().map_or(Ok(bytes), Err)
    }
}
