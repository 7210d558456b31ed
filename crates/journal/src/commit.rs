//! Group commit: many threads want the stream durable, few of them do it for all.
//!
//! Protocol. A thread that finds its target neither durable nor on its way, and no write in flight, becomes a
//! leader; everyone else joins a group and sleeps. A leader *departs*: under the lock it snaps the target
//! (everything appended so far) and closes the forming group, so that later callers form the next one. Then
//! it writes, without the lock. While writes are in flight another leader departs only if that is worth a
//! write of its own ([`Writer::is_worthwhile`]); else the next group grows. A write that *lands* before an
//! earlier one waits for it: `durable` moves over the landed front of the queue only, and with it the groups
//! wake, and one of the forming group, which may lead that.
//!
//! Invariants:
//! * `durable` covers every write before it, whatever order they landed in;
//! * writes in flight cover neighbouring ranges, in the order of their departure;
//! * everyone in a group in flight has a target at or below the target snapped for it;
//! * a forming group that has sleepers has somebody to wake it: a write in flight, or one just woken.
//!
//! Neighbours: [`crate::journal`] is the [`Writer`]; [`crate::stream`] is what is made durable.

use crate::failure::Failure;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};
use std::collections::VecDeque;

/// Writes in flight at most.
#[cfg(not(any(loom, shuttle)))]
pub const FLIGHTS: usize = 4;
/// Writes in flight at most: few under a model checker.
#[cfg(any(loom, shuttle))]
pub const FLIGHTS: usize = 2;

/// Groups with sleepers: those in flight, and the forming one.
const GROUPS: usize = FLIGHTS + 1;

/// Does the work of a leader.
pub trait Writer {
    /// What [`Writer::depart`] leaves for [`Writer::write`] to do first.
    type Departed;
    /// Whether a write from `snapped` on is worth making while others are in flight. Under the group's lock.
    fn is_worthwhile(&self, snapped: u64) -> bool;
    /// Closes the stream at a block's end at or behind `wanted`: that end. Quick: runs under the group's
    /// lock.
    fn depart(&self, wanted: u64) -> (u64, Self::Departed);
    /// Makes `from..to` durable by itself; everything up to `durable` is. Several may run at a time.
    fn write(&self, from: u64, to: u64, durable: u64, departed: Self::Departed) -> Result<()>;
    /// `from..to` and all before it is durable: called once for each write, in order, with the number of
    /// forces that it served. Quick: runs under the group's lock.
    fn landed(&self, from: u64, to: u64, members: u64);
    /// Something failed, or panicked: everyone must hear of it.
    fn shut_down(&self, error: Error);
}

/// A write on its way.
struct Flight {
    /// Its group's number.
    group: u64,
    from: u64,
    to: u64,
    landed: bool,
}

struct State {
    /// Writes that have departed and are not counted durable yet, in order.
    flights: VecDeque<Flight>,
    /// The furthest target asked for so far.
    wanted: u64,
    /// The newest snapped target.
    snapped: u64,
    /// Number of the group that is forming.
    forming: u64,
    /// Forces that joined each group.
    members: [u64; GROUPS],
}

/// See the module's documentation.
pub struct GroupCommit {
    state: Mutex<State>,
    woken: [Condvar; GROUPS],
    durable: AtomicU64,
}

fn side(group: u64) -> usize {
    (group % GROUPS as u64) as usize
}

impl GroupCommit {
    /// Everything up to `durable` is.
    pub fn new(durable: u64) -> GroupCommit {
        GroupCommit {
            state: Mutex::new(State {
                flights: VecDeque::with_capacity(FLIGHTS),
                wanted: durable,
                snapped: durable,
                forming: 0,
                members: [0; GROUPS],
            }),
            woken: std::array::from_fn(|_| Condvar::new()),
            durable: AtomicU64::new(durable),
        }
    }

    /// Durable up to here; the end of a block.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns when `target` is durable, or with the first failure.
    pub fn force<W: Writer>(&self, target: u64, failure: &Failure, writer: &W) -> Result<()> {
        let mut joined = None;
        let mut state = self.state.lock();
        loop {
            failure.check()?;
            if self.durable() >= target {
                return Ok(());
            }
            state.wanted = state.wanted.max(target);
            let under_way = state.flights.iter().find(|flight| flight.to >= target);
            let group = under_way.map_or(state.forming, |flight| flight.group);
            let leads = under_way.is_none()
                && match state.flights.len() {
                    0 => true,
                    FLIGHTS => false,
                    _ => writer.is_worthwhile(state.snapped),
                };
            if joined != Some(group) {
                joined = Some(group);
                state.members[side(group)] += 1;
            }
            if !leads {
                self.woken[side(group)].wait(&mut state);
                continue;
            }
            let from = state.snapped;
            let (to, departed) = writer.depart(state.wanted);
            state.snapped = to;
            state.forming += 1;
            state.flights.push_back(Flight { group, from, to, landed: false });
            drop(state);

            let mut bracket = Bracket { writer, armed: true };
            let written = writer.write(from, to, self.durable(), departed);
            bracket.armed = false;
            if let Err(error) = &written {
                writer.shut_down(error.clone());
            }
            state = self.state.lock();
            if written.is_ok() && !failure.is_set() {
                self.land(&mut state, group, writer);
            }
        }
    }

    /// Marks a group's write as landed, and counts the landed front of the queue as durable.
    fn land<W: Writer>(&self, state: &mut State, group: u64, writer: &W) {
        for flight in &mut state.flights {
            if flight.group == group {
                flight.landed = true;
            }
        }
        while state.flights.front().is_some_and(|flight| flight.landed) {
            let Some(flight) = state.flights.pop_front() else { break };
            let members = std::mem::take(&mut state.members[side(flight.group)]);
            writer.landed(flight.from, flight.to, members);
            self.durable.fetch_max(flight.to, Ordering::AcqRel);
            self.woken[side(flight.group)].notify_all();
        }
        self.woken[side(state.forming)].notify_one();
    }

    /// Wakes everyone, after a failure was set.
    pub fn wake_all(&self) {
        let _state = self.state.lock();
        for condition in &self.woken {
            condition.notify_all();
        }
    }
}

/// Shuts down if the leader panics: its group would sleep for ever.
struct Bracket<'a, W: Writer> {
    writer: &'a W,
    armed: bool,
}

impl<W: Writer> Drop for Bracket<'_, W> {
    fn drop(&mut self) {
        if self.armed {
            self.writer
                .shut_down(Error::new(ErrorKind::Shutdown, "a thread panicked while it wrote the journal"));
        }
    }
}
