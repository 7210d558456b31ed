//! Fsyncs that somebody has asked for and nobody waits for in a call, from their admission to their end.
//!
//! Protocol. An fsync is *admitted* if there is room, and gets a ticket. A syncer takes what is queued as a *batch*
//! ([`SyncQueue::next`]) and starts it. An fsync that then waits for data, or for an exclusive operation on its file, is
//! *armed*: the event puts it back into the queue ([`SyncQueue::resume`]), and no syncer waits for it. What needs nothing
//! but a force *joins* those that do ([`SyncQueue::join_force`]): one syncer at a time forces, for all that have joined
//! before it began. Lazy ones *await* the journal's and the device's being as far as they need, until their time is up.
//! Whoever forces says so afterwards ([`SyncQueue::forced`]); if that may have served one that waits, a syncer is woken and
//! takes those served. When the first of them has its time up, the one force that is due serves every one of them.
//!
//! At most [`BATCHES_MAX`] batches are begun and not ended. So while the device is slow, what comes gathers in the queue and
//! shares the next force; and if it never returns, syncers do not fill the journal with records of fsyncs that cannot end.
//! A batch ends when each of its fsyncs has ended, is armed, or awaits the force of others.
//!
//! In bulk a force is not made for the first few: while [`GATHER_ARMED`] or more are armed it waits for them, but not longer
//! than [`GATHER_MAX`]. Meanwhile what was armed goes on, whatever the number of batches.
//!
//! Who puts an fsync down to wait and who forces do not meet on the lock: the one says what is the least that anybody
//! waits for, fences, and looks how far things are; the other has moved them, fences, and looks at the least. One of the two
//! sees the other, so no wait that a force has served lasts until its time is up.
//!
//! Invariants:
//! * at most [`SYNCS_MAX`] are admitted and not ended, but for those of threads that must not wait;
//! * what is withdrawn leaves at once, whether it is queued or waits; what a syncer has begun ends there;
//! * a future that was told of room and is dropped before it took it passes the news on;
//! * syncers stay until everything that was admitted has ended.
//!
//! Shared lines: the lock and what it protects, by all who ask asynchronously and the syncers; the line of the least,
//! read by every force, written only where lazy ones come and go.
//!
//! Neighbours: [`super::syncing`] is the future, [`super::fsync`] the syncers' work.

use quire_base::sync::atomic::{AtomicU64, Ordering, fence};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Condvar, Mutex, MutexGuard, SIMULATED};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Fsyncs that are admitted and not ended at most: about 16 MiB with what they hold.
#[cfg(not(loom))]
pub const SYNCS_MAX: usize = 65_536;
/// Few under a model checker.
#[cfg(loom)]
pub const SYNCS_MAX: usize = 1;

/// Batches that are begun and not ended at most: one is forced while the next one is started.
pub const BATCHES_MAX: usize = 2;

/// With so many armed a force waits for more to join it.
const GATHER_ARMED: usize = 64;
/// How long it does at most.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// How far journal and device are, or must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The journal is durable up to here.
    pub seq: u64,
    /// Everything that had completed at this mark of the device has been flushed.
    pub mark: u64,
}

impl Reached {
    /// Whether nothing that `need` asks for is missing.
    pub fn covers(self, need: Reached) -> bool {
        self.seq >= need.seq && self.mark >= need.mark
    }

    /// What covers both.
    #[must_use]
    pub fn max(self, other: Reached) -> Reached {
        Reached { seq: self.seq.max(other.seq), mark: self.mark.max(other.mark) }
    }
}

/// One that needs nothing but a force.
#[derive(Debug)]
pub struct Written<A> {
    /// As far as this.
    pub need: Reached,
    /// It has waited for a force of others until its time was up.
    pub is_due: bool,
    /// What is left of it.
    pub what: A,
}

/// One that waits for a force.
struct Waiting<A> {
    need: Reached,
    until: Instant,
    what: A,
}

/// What a syncer does next. All of it may be empty.
#[derive(Debug)]
pub struct Next<Q, R, A> {
    /// To be begun, in the order in which it was asked for.
    pub queued: Vec<(u64, Q)>,
    /// Begun before: what it waited for is over.
    pub resumed: Vec<R>,
    /// Durable by now.
    pub served: Vec<A>,
    /// To be forced by this syncer, which calls [`SyncQueue::end_force`] then.
    pub written: Vec<Written<A>>,
}

impl<Q, R, A> Next<Q, R, A> {
    /// Whether it has a batch in it, which [`SyncQueue::end_batch`] ends.
    pub fn is_batch(&self) -> bool {
        !self.queued.is_empty() || !self.resumed.is_empty()
    }
}

struct State<Q, R, A> {
    /// The end of the volume: nothing is admitted, nothing waits for others.
    stop: bool,
    /// A syncer is to look through those that wait: some may be served, or nothing will serve them any more.
    look: bool,
    tickets: u64,
    queued: BTreeMap<u64, Q>,
    /// Begun, and to be gone on with.
    resumed: Vec<R>,
    /// Begun, and waiting for an event.
    armed: usize,
    /// Begun and not ended.
    batches: usize,
    /// To be forced.
    written: Vec<Written<A>>,
    /// A syncer forces.
    is_forcing: bool,
    /// Nobody forces `written` before this time, unless few are armed.
    gather_until: Option<Instant>,
    waiting: BTreeMap<u64, Waiting<A>>,
    /// Those that wait, by what they need next: the journal (`Seq`, mark, ticket), or, if it is as far, only the device
    /// (0, mark, ticket).
    by_need: BTreeSet<(u64, u64, u64)>,
    /// No later than when the first of them has its time up.
    due: Option<Instant>,
    /// Admitted and not ended.
    under_way: usize,
    /// Futures that wait for room, by their place in that line.
    for_room: BTreeMap<u64, Waker>,
    /// Threads that wait for room.
    sleepers: usize,
}

/// Where those begin that wait for the journal.
const JOURNAL: (u64, u64, u64) = (1, 0, 0);

/// The least that anybody waits for; nobody: the largest number.
#[repr(align(128))]
struct Least {
    seq: AtomicU64,
    mark: AtomicU64,
}

/// See the module's documentation. `Q` is what is queued, `R` what has begun, `A` what is left of it when it is written.
pub struct SyncQueue<Q, R, A> {
    least: Least,
    state: Mutex<State<Q, R, A>>,
    work: Condvar,
    room: Condvar,
}

std::thread_local! {
    static IS_SYNCER: Cell<bool> = const { Cell::new(false) };
}

impl<Q, R, A> Default for SyncQueue<Q, R, A> {
    fn default() -> SyncQueue<Q, R, A> {
        SyncQueue {
            least: Least { seq: AtomicU64::new(u64::MAX), mark: AtomicU64::new(u64::MAX) },
            state: Mutex::new(State {
                stop: false,
                look: false,
                tickets: 0,
                queued: BTreeMap::new(),
                resumed: Vec::new(),
                armed: 0,
                batches: 0,
                written: Vec::new(),
                is_forcing: false,
                gather_until: None,
                waiting: BTreeMap::new(),
                by_need: BTreeSet::new(),
                due: None,
                under_way: 0,
                for_room: BTreeMap::new(),
                sleepers: 0,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admitted and not ended.
    pub under_way: usize,
    /// Of these: waiting for a force that others make.
    pub waiting: usize,
    /// Futures and threads in line for room.
    pub in_line: usize,
}

/// What has come of asking to be admitted.
#[derive(Debug, PartialEq, Eq)]
pub enum Admitted {
    /// So many, with these tickets; the rest has to wait for room.
    Some(Range<u64>),
    /// The volume is being closed.
    Closed,
}

impl<Q, R, A> SyncQueue<Q, R, A> {
    /// Admits from the front of `asked` (last in the vector) what there is room for.
    pub fn admit(&self, asked: &mut Vec<Q>) -> Admitted {
        let mut state = self.state.lock();
        if state.stop {
            return Admitted::Closed;
        }
        let count = asked.len().min(SYNCS_MAX.saturating_sub(state.under_way));
        let first = state.tickets;
        for _ in 0..count {
            state.take_in(asked.pop().expect("counted"));
        }
        let taken = first..state.tickets;
        drop(state);
        if count > 0 {
            self.work.notify_one();
        }
        Admitted::Some(taken)
    }

    /// Admits one. Waits for room, but not on a thread that must not, and not on a syncer, which makes the room. Gives it
    /// back if the volume is being closed.
    pub fn admit_waiting(&self, asked: Q, may_wait: bool) -> Result<(), Q> {
        let mut state = self.state.lock();
        while may_wait && !IS_SYNCER.get() && state.under_way >= SYNCS_MAX && !state.stop {
            state.sleepers += 1;
            self.room.wait(&mut state);
            state.sleepers -= 1;
        }
        if state.stop {
            return Err(asked);
        }
        state.take_in(asked);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Puts a future in line for room, unless there is some: its place, which [`SyncQueue::leave_line`] takes back. A future
    /// that was in line keeps its place, unless it had been told of room.
    pub fn wait_for_room(&self, place: Option<u64>, waker: &Waker) -> Option<u64> {
        let mut state = self.state.lock();
        let place = place.filter(|place| state.for_room.remove(place).is_some());
        if state.stop || state.under_way < SYNCS_MAX {
            return None;
        }
        let place = place.unwrap_or(state.tickets);
        state.tickets += 1;
        state.for_room.insert(place, waker.clone());
        Some(place)
    }

    /// Waits until there is room, or never will be.
    pub fn sleep_for_room(&self) {
        let mut state = self.state.lock();
        while state.under_way >= SYNCS_MAX && !state.stop && !IS_SYNCER.get() {
            state.sleepers += 1;
            self.room.wait(&mut state);
            state.sleepers -= 1;
        }
    }

    /// The calling thread is a syncer.
    pub fn enlist() {
        IS_SYNCER.set(true);
    }

    /// Takes a future out of the line. If it had been told of room, the next one is told.
    pub fn leave_line(&self, place: u64) {
        let mut state = self.state.lock();
        if state.for_room.remove(&place).is_some() {
            return;
        }
        let told = state.next_in_line();
        drop(state);
        wake_each(told);
    }

    /// Takes back what has not ended and is not in a syncer's hands.
    pub fn withdraw(&self, tickets: Range<u64>) -> (Vec<Q>, Vec<A>) {
        let mut state = self.state.lock();
        let queued: Vec<u64> = state.queued.range(tickets.clone()).map(|(ticket, _)| *ticket).collect();
        let queued: Vec<Q> = queued.into_iter().filter_map(|ticket| state.queued.remove(&ticket)).collect();
        let waiting: Vec<u64> = state.waiting.range(tickets).map(|(ticket, _)| *ticket).collect();
        let waiting: Vec<A> =
            waiting.into_iter().filter_map(|ticket| state.unwait(ticket)).map(|one| one.what).collect();
        self.say_least(&state);
        self.ended_locked(state, queued.len() + waiting.len());
        (queued, waiting)
    }

    /// So many that a syncer had in hand have ended.
    pub fn ended(&self, count: usize) {
        if count > 0 {
            self.ended_locked(self.state.lock(), count);
        }
    }

    fn ended_locked(&self, mut state: MutexGuard<'_, State<Q, R, A>>, count: usize) {
        state.under_way -= count;
        let told = if count > 0 { state.next_in_line() } else { Vec::new() };
        let wakes = count > 0 && state.sleepers > 0 && state.under_way < SYNCS_MAX;
        drop(state);
        if wakes {
            self.room.notify_all();
        }
        wake_each(told);
    }

    /// Leaves one that a syncer had in hand to wait for a force that others make, until its time is up. `reached` says how
    /// far things are, `None` if they will get no further. Gives it back if it need not wait, must not as the volume is being
    /// closed or has failed, or has been withdrawn (whoever withdraws says so first, and looks into the queue then).
    pub fn await_force(
        &self,
        ticket: u64,
        need: Reached,
        until: Instant,
        what: A,
        reached: impl Fn() -> Option<Reached>,
        is_withdrawn: impl Fn(&A) -> bool,
    ) -> Option<A> {
        let mut state = self.state.lock();
        let Some(now) = reached() else { return Some(what) };
        if state.stop || now.covers(need) || is_withdrawn(&what) {
            return Some(what);
        }
        let is_first = state.due.is_none_or(|due| until < due);
        if is_first {
            state.due = Some(until);
        }
        let seq = if now.seq < need.seq { need.seq } else { 0 };
        state.by_need.insert((seq, need.mark, ticket));
        state.waiting.insert(ticket, Waiting { need: Reached { seq, mark: need.mark }, until, what });
        self.say_least(&state);
        fence(Ordering::SeqCst);
        if self.may_serve(reached().unwrap_or_default()) {
            state.look = true;
        }
        let wakes = is_first || state.look;
        drop(state);
        if wakes {
            // Another syncer may sleep with a later time in mind.
            self.work.notify_one();
        }
        None
    }

    fn say_least(&self, state: &State<Q, R, A>) {
        let seq = state.by_need.range(JOURNAL..).next().map_or(u64::MAX, |(seq, ..)| *seq);
        let mark = state.by_need.range(..JOURNAL).next().map_or(u64::MAX, |(_, mark, _)| *mark);
        for (word, least) in [(&self.least.seq, seq), (&self.least.mark, mark)] {
            if word.load(Ordering::Relaxed) != least {
                word.store(least, Ordering::Relaxed);
            }
        }
    }

    /// Journal and device have come as far as `reached`: wakes a syncer if that may serve one that waits.
    pub fn forced(&self, reached: impl FnOnce() -> Reached) {
        fence(Ordering::SeqCst);
        if (self.least() != Reached { seq: u64::MAX, mark: u64::MAX }) && self.may_serve(reached()) {
            self.look_again();
        }
    }

    fn least(&self) -> Reached {
        Reached { seq: self.least.seq.load(Ordering::Relaxed), mark: self.least.mark.load(Ordering::Relaxed) }
    }

    /// Whether anybody waits for no more than this in one of the two.
    fn may_serve(&self, reached: Reached) -> bool {
        let least = self.least();
        reached.seq >= least.seq || reached.mark >= least.mark
    }

    /// Has a syncer look at those that wait.
    pub fn look_again(&self) {
        self.state.lock().look = true;
        self.work.notify_one();
    }

    /// Wakes a syncer, for what it has besides.
    pub fn wake(&self) {
        drop(self.state.lock());
        self.work.notify_one();
    }

    /// Waits for something to do; `None` at the end, when nothing is left. At most `most` fsyncs make a batch. `reached` says
    /// how far things are, `None` if they will get no further; `besides`, whether there is something else to do.
    pub fn next(
        &self,
        most: usize,
        reached: impl Fn() -> Option<Reached>,
        besides: impl Fn() -> bool,
    ) -> Option<Next<Q, R, A>> {
        let mut state = self.state.lock();
        loop {
            let is_due = state.is_due();
            if state.look || is_due || state.may_begin() || state.may_force() || besides() {
                break;
            }
            if state.stop {
                if !state.waiting.is_empty() {
                    break;
                }
                if state.armed == 0 && !state.has_batch() && state.written.is_empty() {
                    return None;
                }
            }
            match state.due.into_iter().chain(state.gather_until).min() {
                Some(due) => {
                    self.work.wait_for(&mut state, due.saturating_duration_since(Instant::now()));
                }
                None => self.work.wait(&mut state),
            }
        }
        Some(self.take(&mut state, most, reached))
    }

    /// As [`SyncQueue::next`], without waiting.
    pub fn next_now(&self, most: usize, reached: impl Fn() -> Option<Reached>) -> Next<Q, R, A> {
        self.take(&mut self.state.lock(), most, reached)
    }

    fn take(
        &self,
        state: &mut State<Q, R, A>,
        most: usize,
        reached: impl Fn() -> Option<Reached>,
    ) -> Next<Q, R, A> {
        let mut next =
            Next { queued: Vec::new(), resumed: Vec::new(), served: Vec::new(), written: Vec::new() };
        if state.may_begin() {
            let resumed = state.resumed.len().min(most);
            next.resumed.extend(state.resumed.drain(..resumed));
            while next.resumed.len() + next.queued.len() < most
                && let Some(queued) = state.queued.pop_first()
            {
                next.queued.push(queued);
            }
            state.batches += 1;
        }
        let all_are_due = state.stop || state.is_due();
        if std::mem::take(&mut state.look) || all_are_due {
            loop {
                let Some(now) = reached() else {
                    state.take_due();
                    break;
                };
                state.take_served(now, &mut next.served);
                // Who waited for the journal may wait for the device now: that is news to those who flush.
                self.say_least(state);
                fence(Ordering::SeqCst);
                if !self.may_serve(reached().unwrap_or_default()) {
                    break;
                }
            }
        }
        if all_are_due {
            state.take_due();
        }
        self.say_least(state);
        if state.may_force() {
            next.written = state.begin_force();
        }
        if state.stop {
            self.work.notify_all();
        } else if state.may_begin() {
            // What is left is another syncer's.
            self.work.notify_one();
        }
        next
    }

    /// One that a syncer had in hand waits for an event, which will [`SyncQueue::resume`] it.
    pub fn arm(&self) {
        self.state.lock().armed += 1;
    }

    /// What an armed one waited for is over.
    pub fn resume(&self, resumed: R) {
        let mut state = self.state.lock();
        state.armed -= 1;
        state.resumed.push(resumed);
        let wakes = state.resumed.len() == 1 || state.stop;
        drop(state);
        if wakes {
            self.work.notify_one();
        }
    }

    /// A batch has ended.
    pub fn end_batch(&self) {
        let mut state = self.state.lock();
        state.batches -= 1;
        let wakes = state.has_batch();
        drop(state);
        if wakes {
            self.work.notify_one();
        }
    }

    /// Adds some that need a force. Gives back all there are if nobody forces: the caller forces then, and calls
    /// [`SyncQueue::end_force`]. Else those who force now see to them next.
    pub fn join_force(&self, written: Vec<Written<A>>) -> Vec<Written<A>> {
        let mut state = self.state.lock();
        state.written.extend(written);
        if state.may_force() { state.begin_force() } else { Vec::new() }
    }

    /// The caller has forced.
    pub fn end_force(&self) {
        let mut state = self.state.lock();
        state.is_forcing = false;
        let (stop, wakes) = (state.stop, !state.written.is_empty());
        drop(state);
        if stop {
            self.work.notify_all();
        } else if wakes {
            self.work.notify_one();
        }
    }

    /// Nothing is admitted from now on; what has been is seen to at once.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        let told = std::mem::take(&mut state.for_room);
        drop(state);
        self.work.notify_all();
        self.room.notify_all();
        wake_each(told.into_values());
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            under_way: state.under_way,
            waiting: state.waiting.len(),
            in_line: state.for_room.len() + state.sleepers,
        }
    }
}

/// Runs what a caller has left, on a thread that serves others as well: a panic is reported and stays alone.
pub(super) fn contained(what: &str, left: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(left)) {
        if SIMULATED {
            // The scheduler ends threads so.
            resume_unwind(panic);
        }
        tracing::error!("{what} panicked");
    }
}

/// Tells futures of room: every one, whatever the wakers of others do.
fn wake_each(told: impl IntoIterator<Item = Waker>) {
    told.into_iter().for_each(|waker| contained("the waker of an fsync", || waker.wake()));
}

impl<Q, R, A> State<Q, R, A> {
    fn take_in(&mut self, asked: Q) {
        self.queued.insert(self.tickets, asked);
        self.tickets += 1;
        self.under_way += 1;
    }

    /// Futures to be told of room: as many as there is room for. The caller wakes them, without the lock.
    fn next_in_line(&mut self) -> Vec<Waker> {
        let room = SYNCS_MAX.saturating_sub(self.under_way);
        let mut told = Vec::new();
        while told.len() < room
            && let Some((_, waker)) = self.for_room.pop_first()
        {
            told.push(waker);
        }
        told
    }

    /// Whether anything is to be begun or gone on with.
    fn has_batch(&self) -> bool {
        !self.queued.is_empty() || !self.resumed.is_empty()
    }

    fn may_begin(&self) -> bool {
        self.has_batch() && (self.batches < BATCHES_MAX || self.stop || self.gather_until.is_some())
    }

    /// Whether a force is to begin. Begins to wait for those that would join it, if there are many.
    fn may_force(&mut self) -> bool {
        if self.written.is_empty() || self.is_forcing {
            return false;
        }
        if self.stop || self.armed < GATHER_ARMED {
            return true;
        }
        let now = Instant::now();
        *self.gather_until.get_or_insert(now + GATHER_MAX) <= now
    }

    /// What is to be forced; the caller forces it.
    fn begin_force(&mut self) -> Vec<Written<A>> {
        self.is_forcing = true;
        self.gather_until = None;
        std::mem::take(&mut self.written)
    }

    /// Whether one that waits has its time up.
    fn is_due(&mut self) -> bool {
        let Some(due) = self.due else { return false };
        let now = Instant::now();
        if due > now {
            return false;
        }
        // The first one may have gone.
        self.due = self.waiting.values().map(|waiting| waiting.until).min();
        self.due.is_some_and(|due| due <= now)
    }

    fn unwait(&mut self, ticket: u64) -> Option<Waiting<A>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.by_need.remove(&(waiting.need.seq, waiting.need.mark, ticket));
        Some(waiting)
    }

    /// Takes those that wait for no more than this.
    fn take_served(&mut self, reached: Reached, served: &mut Vec<A>) {
        while let Some(&(seq, mark, ticket)) = self.by_need.range(JOURNAL..).next()
            && seq <= reached.seq
        {
            self.by_need.remove(&(seq, mark, ticket));
            self.by_need.insert((0, mark, ticket));
            self.waiting.entry(ticket).and_modify(|waiting| waiting.need.seq = 0);
        }
        while let Some(&(_, mark, ticket)) = self.by_need.range(..JOURNAL).next()
            && mark <= reached.mark
        {
            served.extend(self.unwait(ticket).map(|waiting| waiting.what));
        }
    }

    /// Has all that wait forced.
    fn take_due(&mut self) {
        self.by_need.clear();
        self.due = None;
        let waiting = std::mem::take(&mut self.waiting).into_values();
        self.written.extend(waiting.map(|Waiting { need, what, .. }| Written { need, is_due: true, what }));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn written(what: usize) -> Vec<Written<usize>> {
        vec![Written { need: Reached::default(), is_due: false, what }]
    }

    /// Ten thousand files made durable together took 150 journal writes: each few whose data had been written were forced at
    /// once, since nothing waits for the slowest file any more.
    #[test]
    fn a_force_waits_a_little_for_the_many_that_would_join_it() {
        let queue: SyncQueue<usize, usize, usize> = SyncQueue::default();
        (0..GATHER_ARMED).for_each(|_| queue.arm());
        assert!(queue.join_force(written(1)).is_empty(), "others are about to join");
        (0..GATHER_ARMED).for_each(|n| queue.resume(n));
        assert_eq!(queue.join_force(written(2)).len(), 2, "nobody else is");
        queue.end_force();
        let reached = || Some(Reached::default());
        assert_eq!(queue.next_now(usize::MAX, reached).resumed.len(), GATHER_ARMED);
        (0..GATHER_ARMED).for_each(|_| queue.arm());
        assert!(queue.join_force(written(3)).is_empty());
        let next = queue.next(usize::MAX, reached, || false).expect("the volume is open");
        assert_eq!(next.written.len(), 1, "the time is up");
    }
}
