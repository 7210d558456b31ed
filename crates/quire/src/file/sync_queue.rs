//! Asynchronous fsyncs, from the call to the outcome: what the syncers do next.
//!
//! Protocol. An fsync is *asked* for. A syncer takes it and begins it ([`Task::Advance`]). If it has to wait
//! for its data, or for an exclusive operation on its file, it is *armed*: the event puts it back
//! ([`SyncQueue::resume`]) and no syncer waits. When nothing but a force is missing, it waits for one that
//! goes as far as it needs ([`SyncQueue::await_force`]). Any force serves it. For those
//! that are to be durable now a syncer forces at once ([`Task::Force`]), one syncer at a time. Lazy ones wait
//! until their time is up; the force that is made then goes as far as all of them need.
//!
//! Group commit. While a syncer forces and others wait for the next force, nothing is begun: what comes
//! gathers, and shares the force after that. If the device never returns from a flush, the syncers fill the
//! journal no further. With [`GATHER_ARMED`] or more armed, a force waits for more fsyncs to join it, but not
//! longer than [`GATHER_MAX`].
//!
//! Forces of others. The queue publishes the lowest needs ([`Lowest`]), fences, and reads how far the journal
//! and the device are. A thread that has forced fences, and reads the lowest needs ([`SyncQueue::forced`]).
//! One of the two sees the other. So a served fsync ends at once, and a force that serves nobody costs its
//! thread two loads. While a syncer forces, nothing is published: the syncer looks afterwards.
//!
//! Withdrawal. An fsync carries a flag. One that waits for a force leaves as soon as a syncer looks; one that
//! was only asked for ends when it is taken, or earlier if many are withdrawn; others end when they are taken
//! the next time.
//!
//! Invariants:
//! * at most [`SYNCS_MAX`] have begun and not ended; the others stand in line, in the order in which they
//!   were asked for;
//! * a syncer holds nothing, and no force is marked as under way by it, when it tells outcomes: a callback
//!   may close the volume;
//! * syncers stay until everything that was asked for has ended.
//!
//! Shared lines: the lock and what it protects, by all threads that ask asynchronously and by the syncers;
//! the line of the lowest needs, read by every force, written only while fsyncs wait for a force.
//!
//! Neighbours: [`super::syncing`] is the future, [`super::fsync`] the syncers' work.

pub use crate::store::Reached;
use quire_base::Result;
use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::thread::{self, ThreadId};

/// Fsyncs that have begun and not ended at most: about 16 MiB with what they hold.
#[cfg(not(loom))]
pub const SYNCS_MAX: usize = 65_536;
/// Few under a model checker.
#[cfg(loom)]
pub const SYNCS_MAX: usize = 1;

/// With so many armed a force waits for more to join it.
const GATHER_ARMED: usize = 64;
/// How long it waits at most.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// What the queue asks of an fsync.
pub trait Queued {
    /// Until when it waits for a force that others make; `None`: it is to be forced now.
    fn until(&self) -> Option<Instant>;
    /// Whether nobody wants its outcome any more.
    fn is_withdrawn(&self) -> bool;
}

/// Fsyncs and what has come of their force.
pub type Ended<F> = Vec<(F, Result<()>)>;

/// What a syncer does next.
#[derive(Debug)]
pub enum Task<F> {
    /// Tells the outcomes, and [`SyncQueue::ended`].
    End(Ended<F>),
    /// Forces as far as this, and calls [`SyncQueue::end_force`].
    Force(Reached),
    /// Begins these or goes on with them, and leaves each to [`SyncQueue::arm`] or
    /// [`SyncQueue::await_force`].
    Advance(Vec<F>),
    /// What the caller of [`SyncQueue::next`] has besides.
    Besides,
}

struct State<F> {
    /// The end of the volume: nothing is accepted, and nothing waits for the forces of others.
    stop: bool,
    /// To be begun, the oldest first.
    asked: VecDeque<F>,
    /// Begun, and what they waited for is over.
    resumed: Vec<F>,
    /// Begun, and waiting for an event.
    armed: usize,
    /// Written: nothing but a force is missing, as far as this.
    unforced: Vec<(Reached, F)>,
    /// How far the next force of a syncer goes, if one is wanted.
    wanted: Option<Reached>,
    /// Until when it waits for more to join it, if many are armed.
    gather_until: Option<Instant>,
    /// A syncer forces.
    is_forcing: bool,
    /// When the first lazy one has its time up.
    due: Option<Instant>,
    /// A syncer is to look through `unforced`: some may be served or withdrawn, or nothing will serve them
    /// any more.
    look: bool,
    /// Asked for and not ended.
    under_way: usize,
    /// Withdrawn since a syncer has looked through `asked`.
    withdrawn: usize,
    /// Threads that wait for room.
    sleepers: usize,
    /// The threads that serve the queue: they make the room, so they do not wait for it.
    syncers: Vec<ThreadId>,
}

/// The lowest needs of those that wait for a force: of the journal where it has not come as far, else of the
/// device. The largest number: nobody waits.
#[repr(align(128))]
struct Lowest {
    seq: AtomicU64,
    mark: AtomicU64,
}

/// See the module's documentation.
pub struct SyncQueue<F> {
    lowest: Lowest,
    state: Mutex<State<F>>,
    work: Condvar,
    room: Condvar,
}

impl<F> Default for SyncQueue<F> {
    fn default() -> SyncQueue<F> {
        SyncQueue {
            lowest: Lowest { seq: AtomicU64::new(u64::MAX), mark: AtomicU64::new(u64::MAX) },
            state: Mutex::new(State {
                stop: false,
                asked: VecDeque::new(),
                resumed: Vec::new(),
                armed: 0,
                unforced: Vec::new(),
                wanted: None,
                gather_until: None,
                is_forcing: false,
                due: None,
                look: false,
                under_way: 0,
                withdrawn: 0,
                sleepers: 0,
                syncers: Vec::new(),
            }),
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Asked for and not ended, but for those in line.
    pub under_way: usize,
    /// Of these: waiting for a force that others make.
    pub waiting: usize,
    /// Fsyncs beyond [`SYNCS_MAX`], and threads that wait for room.
    pub in_line: usize,
}

impl<F: Queued> SyncQueue<F> {
    /// Queues fsyncs; gives them back if the volume is being closed. With `may_wait` it waits for room first,
    /// but not on a syncer, which makes the room.
    pub fn ask<I: IntoIterator<Item = F>>(&self, fsyncs: I, may_wait: bool) -> Result<(), I> {
        let mut state = self.state.lock();
        let may_wait = |state: &State<F>| may_wait && !state.syncers.contains(&thread::current().id());
        while state.under_way >= SYNCS_MAX && !state.stop && may_wait(&state) {
            state.sleepers += 1;
            self.room.wait(&mut state);
            state.sleepers -= 1;
        }
        if state.stop {
            return Err(fsyncs);
        }
        let before = state.asked.len();
        state.asked.extend(fsyncs);
        state.under_way += state.asked.len() - before;
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// The calling thread is a syncer, to its end.
    pub fn enlist(&self) {
        self.state.lock().syncers.push(thread::current().id());
    }

    /// Waits for something to do; `None` at the end, when nothing is left. At most `most` fsyncs are advanced
    /// at a time. `reached` says how far journal and device are, or why they will get no further; `besides`,
    /// whether there is something else to do.
    pub fn next(
        &self,
        most: usize,
        reached: impl Fn() -> Result<Reached>,
        besides: impl Fn() -> bool,
    ) -> Option<Task<F>> {
        let mut state = self.state.lock();
        loop {
            let task = self.take(&mut state, most, &reached);
            if task.is_some() {
                if state.has_task() {
                    self.work.notify_one();
                }
                return task;
            }
            if besides() {
                return Some(Task::Besides);
            }
            if state.stop && state.armed == 0 && !state.has_more() {
                self.work.notify_all();
                return None;
            }
            match state.due.into_iter().chain(state.gather_until).min() {
                Some(until) => {
                    self.work.wait_for(&mut state, until.saturating_duration_since(Instant::now()));
                }
                None => self.work.wait(&mut state),
            }
        }
    }

    fn take(
        &self,
        state: &mut State<F>,
        most: usize,
        reached: &impl Fn() -> Result<Reached>,
    ) -> Option<Task<F>> {
        if std::mem::take(&mut state.look) {
            let ended = self.look(state, reached);
            if !ended.is_empty() {
                return Some(Task::End(ended));
            }
        }
        if let Some(need) = state.begin_force() {
            self.publish(state, Reached::default());
            return Some(Task::Force(need));
        }
        let advanced = state.begin(most);
        (!advanced.is_empty()).then_some(Task::Advance(advanced))
    }

    /// Takes out what has been served or withdrawn, and publishes what the others need.
    fn look(&self, state: &mut State<F>, reached: &impl Fn() -> Result<Reached>) -> Ended<F> {
        let mut ended = state.take_withdrawn();
        loop {
            let now = reached();
            state.take_served(&now, &mut ended);
            self.publish(state, now.unwrap_or_default());
            fence(Ordering::SeqCst);
            if !self.may_serve(reached().unwrap_or_default()) {
                return ended;
            }
        }
    }

    fn publish(&self, state: &State<F>, reached: Reached) {
        let mut lowest = Reached { seq: u64::MAX, mark: u64::MAX };
        for (need, _) in state.unforced.iter().filter(|_| !state.is_forcing) {
            if reached.seq < need.seq {
                lowest.seq = lowest.seq.min(need.seq);
            } else {
                lowest.mark = lowest.mark.min(need.mark);
            }
        }
        for (word, lowest) in [(&self.lowest.seq, lowest.seq), (&self.lowest.mark, lowest.mark)] {
            if word.load(Ordering::Relaxed) != lowest {
                word.store(lowest, Ordering::Relaxed);
            }
        }
    }

    fn lowest(&self) -> Reached {
        let Lowest { seq, mark } = &self.lowest;
        Reached { seq: seq.load(Ordering::Relaxed), mark: mark.load(Ordering::Relaxed) }
    }

    /// Whether the lowest need of either kind is met.
    fn may_serve(&self, reached: Reached) -> bool {
        let lowest = self.lowest();
        reached.seq >= lowest.seq || reached.mark >= lowest.mark
    }

    /// Journal and device have come as far as `reached`: wakes a syncer if that may serve one that waits.
    pub fn forced(&self, reached: impl FnOnce() -> Reached) {
        fence(Ordering::SeqCst);
        if self.lowest() != (Reached { seq: u64::MAX, mark: u64::MAX }) && self.may_serve(reached()) {
            self.look_again();
        }
    }

    /// Has a syncer look at those that wait.
    pub fn look_again(&self) {
        self.state.lock().look = true;
        self.work.notify_one();
    }

    /// So many have been withdrawn: their flags are set.
    pub fn withdrawn(&self, count: usize) {
        self.state.lock().withdrawn += count;
        self.look_again();
    }

    /// Wakes a syncer, for what it has besides.
    pub fn wake(&self) {
        drop(self.state.lock());
        self.work.notify_one();
    }

    /// One that a syncer had in hand waits for an event, which will [`SyncQueue::resume`] it.
    pub fn arm(&self) {
        self.state.lock().armed += 1;
    }

    /// What an armed one waited for is over.
    pub fn resume(&self, resumed: F) {
        let mut state = self.state.lock();
        state.armed -= 1;
        state.resumed.push(resumed);
        let wakes = state.resumed.len() == 1;
        drop(state);
        if wakes {
            self.work.notify_one();
        }
    }

    /// Leaves what a syncer had in hand to wait for a force. The syncer is to call [`SyncQueue::next`], which
    /// looks whether some are served already.
    pub fn await_force(&self, written: Vec<(Reached, F)>) {
        let mut state = self.state.lock();
        for (need, fsync) in &written {
            match fsync.until() {
                None => state.want(*need),
                Some(until) => state.due = Some(state.due.map_or(until, |due| due.min(until))),
            }
        }
        state.look |= !written.is_empty();
        state.unforced.extend(written);
    }

    /// The caller has forced as far as this, or failed: what has ended with that.
    pub fn end_force(&self, outcome: &Result<Reached>) -> Ended<F> {
        let mut ended = Vec::new();
        let mut state = self.state.lock();
        state.is_forcing = false;
        state.take_served(outcome, &mut ended);
        // What is left has published no needs meanwhile.
        state.look |= !state.unforced.is_empty();
        let wakes = state.has_task();
        drop(state);
        if wakes {
            self.work.notify_one();
        }
        ended
    }

    /// So many that a syncer had in hand have ended.
    pub fn ended(&self, count: usize) {
        let mut state = self.state.lock();
        state.under_way -= count;
        let wakes = state.sleepers > 0 && state.under_way < SYNCS_MAX;
        drop(state);
        if wakes {
            self.room.notify_all();
        }
    }

    /// Nothing is accepted from now on; what has been is seen to at once.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        let under_way = state.under_way.min(SYNCS_MAX);
        Counts {
            under_way,
            waiting: state.unforced.iter().filter(|(_, fsync)| fsync.until().is_some()).count(),
            in_line: state.under_way - under_way + state.sleepers,
        }
    }
}

impl<F: Queued> State<F> {
    /// Whether anything is left to do but for what is armed or in a syncer's hands.
    fn has_more(&self) -> bool {
        !self.asked.is_empty() || !self.resumed.is_empty() || !self.unforced.is_empty()
    }

    /// Whether what comes is to gather, for the force after next.
    fn is_gathering(&self) -> bool {
        self.is_forcing && self.wanted.is_some() && !self.stop
    }

    /// Whether another syncer would find something to do.
    fn has_task(&self) -> bool {
        let may_advance = !self.asked.is_empty() || !self.resumed.is_empty();
        self.look || !self.is_gathering() && (self.wanted.is_some() || may_advance)
    }

    /// Has a syncer force as far as this.
    fn want(&mut self, need: Reached) {
        self.wanted = Some(self.wanted.unwrap_or_default().max(need));
    }

    /// How far a force is to go that begins now. It waits a little for those that would join it, if there are
    /// many.
    fn begin_force(&mut self) -> Option<Reached> {
        if self.stop || self.due.is_some_and(|due| due <= Instant::now()) {
            self.due = None;
            if let Some(all) = self.unforced.iter().map(|(need, _)| *need).reduce(Reached::max) {
                self.want(all);
            }
        }
        if self.wanted.is_none() || self.is_forcing {
            return None;
        }
        if !self.stop && self.armed >= GATHER_ARMED {
            let now = Instant::now();
            if *self.gather_until.get_or_insert(now + GATHER_MAX) > now {
                return None;
            }
        }
        self.gather_until = None;
        self.is_forcing = true;
        self.wanted.take()
    }

    /// What is to be begun or gone on with.
    fn begin(&mut self, most: usize) -> Vec<F> {
        if self.is_gathering() {
            return Vec::new();
        }
        let resumed = self.resumed.len().min(most);
        let mut begun: Vec<F> = self.resumed.drain(..resumed).collect();
        let room = SYNCS_MAX.saturating_sub(self.under_way - self.asked.len());
        let asked = self.asked.len().min(most - resumed).min(room);
        begun.extend(self.asked.drain(..asked));
        begun
    }

    /// What has been withdrawn of `asked`, if it is worth a look.
    fn take_withdrawn(&mut self) -> Ended<F> {
        if self.withdrawn <= self.asked.len() / 8 {
            return Vec::new();
        }
        self.withdrawn = 0;
        let (withdrawn, asked): (VecDeque<F>, _) = self.asked.drain(..).partition(F::is_withdrawn);
        self.asked = asked;
        withdrawn.into_iter().map(|fsync| (fsync, Ok(()))).collect()
    }

    /// Takes those that wait for no more than this; all of them if there will be no further force.
    fn take_served(&mut self, reached: &Result<Reached>, ended: &mut Ended<F>) {
        let is_over = |(need, fsync): &mut (Reached, F)| {
            reached.as_ref().map_or(true, |reached| reached.covers(*need)) || fsync.is_withdrawn()
        };
        let outcome = reached.as_ref().map(|_| ()).map_err(Clone::clone);
        ended.extend(self.unforced.extract_if(.., is_over).map(|(_, fsync)| (fsync, outcome.clone())));
        self.due = self.unforced.iter().filter_map(|(_, fsync)| fsync.until()).min();
        if self.unforced.is_empty() {
            (self.wanted, self.gather_until) = (None, None);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    impl Queued for usize {
        fn until(&self) -> Option<Instant> {
            None
        }
        fn is_withdrawn(&self) -> bool {
            false
        }
    }

    /// Ten thousand files made durable together took 150 journal writes: each few whose data had been written
    /// were forced at once, since nothing waits for the slowest file any more.
    #[test]
    fn a_force_waits_a_little_for_the_many_that_would_join_it() {
        let queue: SyncQueue<usize> = SyncQueue::default();
        let next = |queue: &SyncQueue<usize>| queue.next(usize::MAX, || Ok(Reached::default()), || true);
        let need = Reached { seq: 1, mark: 0 };
        queue.ask(0..2 * GATHER_ARMED, false).unwrap();
        assert!(matches!(next(&queue), Some(Task::Advance(all)) if all.len() == 2 * GATHER_ARMED));
        (0..GATHER_ARMED).for_each(|_| queue.arm());
        queue.await_force(vec![(need, 1)]);
        assert!(matches!(next(&queue), Some(Task::Besides)), "others are about to join");
        (0..GATHER_ARMED).for_each(|number| queue.resume(number));
        queue.await_force(vec![(need, 2)]);
        assert!(matches!(next(&queue), Some(Task::Force(to)) if to == need), "nobody else is");
        assert_eq!(queue.end_force(&Ok(need)).len(), 2);
        assert!(matches!(next(&queue), Some(Task::Advance(all)) if all.len() == GATHER_ARMED));
        (0..GATHER_ARMED).for_each(|_| queue.arm());
        queue.await_force(vec![(need, 3)]);
        let waited = queue.next(usize::MAX, || Ok(Reached::default()), || false);
        assert!(matches!(waited, Some(Task::Force(_))), "the time is up");
    }
    /// A completion runs on a syncer. If it asks for another fsync it must not wait for room, which syncers
    /// make.
    #[test]
    fn a_syncer_does_not_wait_for_room() {
        let queue: SyncQueue<usize> = SyncQueue::default();
        queue.enlist();
        queue.ask(0..SYNCS_MAX, true).unwrap();
        queue.ask([SYNCS_MAX], true).unwrap();
        assert_eq!(queue.counts().in_line, 1);
    }
}
