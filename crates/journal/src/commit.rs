//! Group commit: many threads want the stream durable, one of them does it for all.
//!
//! Protocol. Who finds neither his target durable nor a leader becomes the leader; everyone else joins a group and
//! sleeps. The leader *departs*: under the lock it snaps the target (everything appended so far) and closes the
//! forming group, so that later callers form the next one. Then it writes, without the lock. When it *lands*, it wakes
//! all of its group and one of the next, which leads that. Groups alternate between two condition variables: there is
//! one in flight and one forming, never more.
//!
//! Invariants:
//! * one leader at a time: writes land in order, and `durable` covers every write before it;
//! * everyone in a group in flight has a target at or below the snapped one;
//! * a forming group that has sleepers has a leader to wake it: one in flight, or one just woken.
//!
//! Neighbours: [`crate::journal`] is the [`Writer`]; [`crate::stream`] is what is made durable.

use crate::failure::Failure;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};

/// Does the work of a leader.
pub trait Writer {
    /// What [`Writer::depart`] leaves for [`Writer::write`] to do first.
    type Departed;
    /// Closes the stream at a block's end at or behind `wanted`: that end. Quick: runs under the group's lock.
    fn depart(&self, wanted: u64) -> (u64, Self::Departed);
    /// Makes `from..to` durable.
    fn write(&self, from: u64, to: u64, departed: Self::Departed) -> Result<()>;
    /// Called once for each write that landed, with the number of forces it served.
    fn served(&self, members: u64);
    /// Something failed, or panicked: everyone must hear of it.
    fn shut_down(&self, error: Error);
}

struct State {
    /// Somebody writes.
    leading: bool,
    /// The furthest target asked for so far.
    wanted: u64,
    /// The newest snapped target.
    snapped: u64,
    /// Number of the group that is forming; the one before it is in flight, or has landed.
    forming: u64,
    /// Sleepers that joined each group.
    members: [u64; 2],
}

/// See the module's documentation.
pub struct GroupCommit {
    state: Mutex<State>,
    landed: [Condvar; 2],
    durable: AtomicU64,
}

impl GroupCommit {
    /// Everything up to `durable` is.
    pub fn new(durable: u64) -> GroupCommit {
        GroupCommit {
            state: Mutex::new(State {
                leading: false,
                wanted: durable,
                snapped: durable,
                forming: 0,
                members: [0; 2],
            }),
            landed: [Condvar::new(), Condvar::new()],
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
            if state.leading {
                let group = if target <= state.snapped { state.forming - 1 } else { state.forming };
                let side = (group % 2) as usize;
                if joined != Some(group) {
                    joined = Some(group);
                    state.members[side] += 1;
                }
                self.landed[side].wait(&mut state);
                continue;
            }
            state.leading = true;
            let (to, departed) = writer.depart(state.wanted);
            let side = (state.forming % 2) as usize;
            state.snapped = to;
            state.forming += 1;
            drop(state);

            let mut bracket = Bracket { writer, armed: true };
            let written = writer.write(self.durable(), to, departed);
            bracket.armed = false;
            if let Err(error) = &written {
                writer.shut_down(error.clone());
            }

            state = self.state.lock();
            state.leading = false;
            let members = std::mem::take(&mut state.members[side]);
            if written.is_ok() && !failure.is_set() {
                self.durable.store(to, Ordering::Release);
                // The leader may have slept in this very group before it led it.
                let own = if joined == Some(state.forming - 1) { 0 } else { 1 };
                writer.served(members + own);
            }
            self.landed[side].notify_all();
            self.landed[1 - side].notify_one();
        }
    }

    /// Wakes everyone, after a failure was set.
    pub fn wake_all(&self) {
        let _state = self.state.lock();
        self.landed[0].notify_all();
        self.landed[1].notify_all();
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
