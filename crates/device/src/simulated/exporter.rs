//! A server between a volume and a simulated device, whose connections break at random, and which may lose
//! what was not flushed when one does.
//!
//! It admits one connection at a time, and only when all requests of the one before have ended: what
//! [`crate::reconnecting`] needs of a server. A break comes when a request arrives, or instead of an answer:
//! the requests under way may or may not be carried out, and nobody hears of them. The number of breaks is
//! bounded, so every run ends.
//!
//! Invariants: all chance is the seed's; a request is answered once; nothing is answered under the lock.

use super::{CrashPolicy, SimulatedBackend};
use crate::aligned::AlignedBuf;
use crate::backend::{Backend, Io, IoClass, IoOp, Segment};
use crate::reconnecting::{
    Answer, Answered, Connector, Failure, Ownership, Properties, ReconnectingBackend, Request, Session,
};
use quire_base::random::Random;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, Condvar, Mutex, thread};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use std::collections::{BTreeMap, VecDeque};

/// How often connections break, and what a break costs.
#[derive(Clone, Copy, Debug)]
pub struct Breaks {
    /// Decides everything.
    pub seed: u64,
    /// Breaks in all.
    pub count: u32,
    /// One request in so many meets one.
    pub one_in: u64,
    /// Of so many breaks, one loses what was not flushed; 0: none.
    pub loses_one_in: u64,
}

/// See the module's documentation.
pub struct Exporter {
    server: Arc<Server>,
    worker: Option<thread::JoinHandle<()>>,
}

struct Server {
    device: Arc<SimulatedBackend>,
    breaks: Breaks,
    state: Mutex<State>,
    /// A request has ended, or the server's thread has something to do.
    changed: Condvar,
}

struct State {
    random: Random,
    /// Number of the newest connection, and whether it is up.
    connection: u64,
    is_up: bool,
    breaks: u32,
    lost_power: u32,
    next_id: u64,
    /// Requests of the connection that is up.
    unanswered: BTreeMap<u64, Answered>,
    /// Requests that the device has, of whatever connection.
    under_way: usize,
    /// What the server's thread has yet to do, as flushes and discards may block their caller: connection,
    /// number and request.
    blocking: VecDeque<(u64, u64, Request)>,
    is_stopping: bool,
}

impl Exporter {
    /// Starts a server of `device`.
    pub fn start(device: Arc<SimulatedBackend>, breaks: Breaks) -> Exporter {
        let state = State {
            random: Random::seeded(breaks.seed),
            connection: 0,
            is_up: false,
            breaks: 0,
            lost_power: 0,
            next_id: 0,
            unanswered: BTreeMap::new(),
            under_way: 0,
            blocking: VecDeque::new(),
            is_stopping: false,
        };
        let server = Arc::new(Server { device, breaks, state: Mutex::new(state), changed: Condvar::new() });
        let worker = server.clone();
        let worker = thread::Builder::new().name("exporter".into()).spawn(move || worker.work());
        Exporter { server, worker: Some(worker.expect("a thread")) }
    }

    /// A client of it, which reconnects within `patience`.
    pub fn client(&self, patience: Option<Duration>) -> Result<Arc<ReconnectingBackend>> {
        self.owner(patience, None)
    }

    /// The same, of an owner whose mark is on the device.
    pub fn owner(
        &self,
        patience: Option<Duration>,
        ownership: Option<Ownership>,
    ) -> Result<Arc<ReconnectingBackend>> {
        let connector = ToServer(self.server.clone());
        let session = connector.connect(Duration::from_secs(1))?;
        let properties = Properties {
            name: "simulated server".into(),
            blocks: self.server.device.blocks(),
            is_read_only: false,
            patience,
            ownership,
        };
        ReconnectingBackend::new(properties, Box::new(connector), session).map(Arc::new)
    }

    /// Connections that broke so far.
    pub fn breaks(&self) -> u32 {
        self.server.state.lock().breaks
    }

    /// How often the device lost what was not flushed.
    pub fn power_losses(&self) -> u32 {
        self.server.state.lock().lost_power
    }
}

impl Drop for Exporter {
    /// Requests that come later break the connection.
    fn drop(&mut self) {
        self.server.state.lock().is_stopping = true;
        self.server.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

struct ToServer(Arc<Server>);

impl Connector for ToServer {
    fn connect(&self, limit: Duration) -> Result<Arc<dyn Session>> {
        let server = &self.0;
        let refuse = |why: &str| Err(Error::new(ErrorKind::Io, format!("simulated server: {why}")));
        let mut state = server.state.lock();
        if state.connection > 0 && state.random.one_in(3) {
            return refuse("connection refused");
        }
        // Those of the old connection end first.
        while state.under_way > 0 {
            if server.changed.wait_for(&mut state, limit).timed_out() {
                return refuse("it is still busy with an earlier connection");
            }
        }
        assert!(!state.is_up, "a second connection beside the first");
        let loses = server.breaks.loses_one_in;
        if state.connection > 0 && loses > 0 && state.random.one_in(loses) {
            state.lost_power += 1;
            let policy = CrashPolicy::Power { seed: state.random.next_u64() };
            // Nothing is under way, and nothing can begin while the lock is held.
            server.device.lose_power(policy);
        }
        state.connection += 1;
        state.is_up = true;
        Ok(Arc::new(Connection { server: server.clone(), number: state.connection }))
    }
}

struct Connection {
    server: Arc<Server>,
    number: u64,
}

impl Session for Connection {
    fn submit(&self, request: Request, answered: Answered) {
        self.server.take(self.number, request, answered);
    }

    fn blocks(&self) -> u64 {
        self.server.device.blocks()
    }

    fn close(&self) {
        let mut state = self.server.state.lock();
        let unanswered = if state.connection == self.number { state.go_down() } else { Vec::new() };
        drop(state);
        answer_broken(unanswered);
    }
}

impl State {
    fn go_down(&mut self) -> Vec<Answered> {
        self.is_up = false;
        std::mem::take(&mut self.unanswered).into_values().collect()
    }

    /// Whether the connection breaks now.
    fn breaks(&mut self, breaks: &Breaks) -> bool {
        if self.breaks >= breaks.count || !self.random.one_in(breaks.one_in) {
            return false;
        }
        self.breaks += 1;
        true
    }
}

fn broken() -> Failure {
    Failure::Broken(Error::new(ErrorKind::Io, "simulated server: the connection broke"))
}

fn answer_broken(unanswered: Vec<Answered>) {
    for answered in unanswered {
        answered(Err(broken()));
    }
}

impl Server {
    fn take(self: &Arc<Server>, connection: u64, request: Request, answered: Answered) {
        let mut state = self.state.lock();
        if state.connection != connection || !state.is_up || state.is_stopping {
            drop(state);
            return answered(Err(broken()));
        }
        state.next_id += 1;
        let id = state.next_id;
        state.unanswered.insert(id, answered);
        let (mut unanswered, mut is_carried_out) = (Vec::new(), true);
        if state.breaks(&self.breaks) {
            unanswered = state.go_down();
            is_carried_out = state.random.one_in(2);
        }
        if is_carried_out {
            state.under_way += 1;
            if matches!(request, Request::Flush | Request::Trim { .. }) {
                state.blocking.push_back((connection, id, request.clone()));
                self.changed.notify_all();
            }
        }
        drop(state);
        answer_broken(unanswered);
        if is_carried_out {
            self.carry_out(connection, id, request);
        }
    }

    fn carry_out(self: &Arc<Server>, connection: u64, id: u64, request: Request) {
        let server = self.clone();
        let ended = move |answer| server.ended(connection, id, answer);
        match request {
            Request::Flush | Request::Trim { .. } => {}
            Request::Read { class, offset, length } => {
                let mut buffer = AlignedBuf::zeroed(length);
                // SAFETY: `done` owns the buffer, and nobody else uses it.
                let segment = unsafe { Segment::new(buffer.as_mut_ptr(), length) };
                let done = move |outcome: Result<()>| ended(outcome.map(|()| Some(buffer)));
                self.transfer(class, IoOp::Read, offset, segment, Box::new(done));
            }
            Request::Write { class, offset, data } => {
                // SAFETY: `done` shares the data, which nobody changes.
                let segment = unsafe { Segment::new(data.as_ptr().cast_mut(), data.len()) };
                let done = move |outcome: Result<()>| {
                    drop(data);
                    ended(outcome.map(|()| None));
                };
                self.transfer(class, IoOp::Write, offset, segment, Box::new(done));
            }
            Request::Zeroes { class, offset, length } => {
                let zeros = AlignedBuf::zeroed(length);
                // SAFETY: `done` owns the zeros.
                let segment = unsafe { Segment::new(zeros.as_ptr().cast_mut(), length) };
                let done = move |outcome: Result<()>| {
                    drop(zeros);
                    ended(outcome.map(|()| None));
                };
                self.transfer(class, IoOp::Write, offset, segment, Box::new(done));
            }
        }
    }

    fn transfer(&self, class: IoClass, op: IoOp, offset: u64, segment: Segment, done: crate::Done) {
        self.device.submit(class, vec![Io { op, at: block(offset), segments: vec![segment], done }]);
    }

    /// A request has ended at the device.
    fn ended(&self, connection: u64, id: u64, outcome: Result<Option<AlignedBuf>>) {
        let answer: Answer = outcome.map_err(Failure::Refused);
        let mut state = self.state.lock();
        state.under_way -= 1;
        self.changed.notify_all();
        if state.connection != connection || !state.is_up {
            return;
        }
        let mut unanswered = Vec::new();
        if state.breaks(&self.breaks) {
            unanswered = state.go_down();
        }
        let answered = state.unanswered.remove(&id);
        drop(state);
        answer_broken(unanswered);
        if let Some(answered) = answered {
            answered(answer);
        }
    }

    /// The server's thread.
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let (connection, id, request) = loop {
                if let Some(next) = state.blocking.pop_front() {
                    break next;
                }
                if state.is_stopping {
                    return;
                }
                self.changed.wait(&mut state);
            };
            drop(state);
            let outcome = match request {
                Request::Trim { offset, length } => {
                    self.device.discard(block(offset), length / BLOCK_SIZE as u64)
                }
                _ => self.device.flush(),
            };
            self.ended(connection, id, outcome.map(|()| None));
        }
    }
}

fn block(offset: u64) -> BlockNo {
    BlockNo(offset / BLOCK_SIZE as u64)
}
