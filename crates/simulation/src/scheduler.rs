//! The state of a run, and how the turn passes.

use crate::ending::Ending;
use crate::report::{Failure, Recent, Step, report};
use crate::strategy::Chooser;
use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use std::cell::OnceCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Virtual time that thread 0 may wait without a limit of its own, while others only answer timers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// One yield in so many lets time pass to the next timer.
const YIELDS_A_TIMER: u64 = 64;

pub(crate) type Place = &'static Location<'static>;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Point,
    Lock,
    Read,
    Write,
    Try,
    Unlock,
    Wait,
    Notify,
    Yield,
    Spin,
    Sleep,
    Park,
    Unpark,
    Join,
    Start,
    End,
    Atomic,
}

impl Kind {
    pub fn text(self) -> &'static str {
        match self {
            Kind::Point => "point",
            Kind::Lock => "lock",
            Kind::Read => "lock shared",
            Kind::Write => "lock exclusively",
            Kind::Try => "try to lock",
            Kind::Unlock => "unlock",
            Kind::Wait => "wait",
            Kind::Notify => "notify",
            Kind::Yield => "yield",
            Kind::Spin => "spin",
            Kind::Sleep => "sleep",
            Kind::Park => "park",
            Kind::Unpark => "unpark",
            Kind::Join => "join",
            Kind::Start => "start a thread",
            Kind::End => "end",
            Kind::Atomic => "atomic operation",
        }
    }

    /// Whether the thread cannot get on until others have done something.
    pub fn lets_others_on(self) -> bool {
        matches!(self, Kind::Yield | Kind::Spin)
    }
}

/// How a lock is held or wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Mutex,
    Read,
    Write,
}

impl Mode {
    pub fn text(self) -> &'static str {
        match self {
            Mode::Mutex => "a Mutex",
            Mode::Read => "an RwLock shared",
            Mode::Write => "an RwLock exclusively",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Mode::Mutex => Kind::Lock,
            Mode::Read => Kind::Read,
            Mode::Write => Kind::Write,
        }
    }
}

/// What a blocked thread waits for. Addresses only say which waits are for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Lock(usize, Mode),
    Condvar(usize),
    Join(usize),
    Scope(usize),
    Sleep,
    Park,
}

impl Wait {
    pub fn text(self, state: &State) -> String {
        match self {
            Wait::Lock(address, mode) => {
                let holders: Vec<String> = (state.threads.iter().enumerate())
                    .flat_map(|(index, slot)| slot.held.iter().map(move |held| (index, held)))
                    .filter(|(_, held)| held.address == address)
                    .map(|(index, held)| format!("{index} since {}", held.location))
                    .collect();
                format!("{} (held by {})", mode.text(), holders.join(", "))
            }
            Wait::Condvar(_) => "a notification".into(),
            Wait::Join(thread) => format!("the end of {thread}"),
            Wait::Scope(_) => "the end of its scoped threads".into(),
            Wait::Sleep => "time to pass".into(),
            Wait::Park => "an unpark".into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Runnable,
    Blocked(Wait),
    Finished,
}

pub(crate) struct Held {
    pub address: usize,
    pub mode: Mode,
    pub location: Place,
}

/// What the scheduler knows of a thread.
pub(crate) struct Slot {
    pub name: String,
    pub status: Status,
    pub deadline: Option<Duration>,
    /// Whether the last wait ended by its deadline.
    pub timed_out: bool,
    pub location: Place,
    pub since: Duration,
    pub since_step: u64,
    pub held: Vec<Held>,
    /// An unpark that came before its park.
    pub unparked: bool,
    /// Blocked while unwinding: may not be made to unwind.
    pub unwinding: bool,
    /// The scope it was started in; 0 for none.
    pub scope: usize,
    /// Shall unwind at its next point.
    pub ended: Arc<AtomicBool>,
    /// To wake the system's thread; set before the first turn.
    pub handle: Option<std::thread::Thread>,
}

pub(crate) struct State {
    pub threads: Vec<Slot>,
    pub now: Duration,
    pub steps: u64,
    pub step_limit: u64,
    pub chooser: Chooser,
    pub entropy: Rng,
    pub fingerprint: u64,
    pub recent: Recent,
    pub kept: Option<Vec<Step>>,
    pub failure: Option<Failure>,
    pub ending: Option<Ending>,
    /// Nobody will run again: all have finished, or the rest is abandoned.
    pub over: bool,
    /// When thread 0 last had the turn.
    main_ran: Duration,
    last_kind: Kind,
    scratch: Vec<usize>,
}

/// A run.
pub(crate) struct World {
    state: Mutex<State>,
    /// The thread that has the turn.
    turn: AtomicUsize,
    /// The thread that called `run`.
    caller: std::thread::Thread,
}

/// The current thread as part of its run.
#[derive(Clone)]
pub(crate) struct Me {
    pub world: Arc<World>,
    pub index: usize,
    ended: Arc<AtomicBool>,
}

thread_local! {
    static ME: OnceCell<Me> = const { OnceCell::new() };
}

pub(crate) fn me() -> Option<Me> {
    ME.try_with(|me| me.get().cloned()).ok().flatten()
}

pub(crate) fn is_simulated() -> bool {
    ME.try_with(|me| me.get().is_some()).unwrap_or(false)
}

/// The payload that ends a thread of a run that is over.
pub(crate) struct Ended;

const NOBODY: usize = usize::MAX;

impl State {
    fn new(seed: u64, step_limit: u64) -> State {
        State {
            threads: Vec::new(),
            now: Duration::ZERO,
            steps: 0,
            step_limit,
            chooser: Chooser::new(seed, step_limit),
            entropy: Rng::with_seed(seed ^ 0x5851_F42D_4C95_7F2D),
            fingerprint: 0,
            recent: Recent::default(),
            kept: None,
            failure: None,
            ending: None,
            over: false,
            main_ran: Duration::ZERO,
            last_kind: Kind::Start,
            scratch: Vec::new(),
        }
    }

    /// Counts a step of `thread`.
    pub fn step(&mut self, thread: usize, kind: Kind, location: Place) {
        self.steps += 1;
        self.last_kind = kind;
        let place = u64::from(location.line()) << 16 ^ u64::from(location.column());
        let what = (location.file().len() as u64) << 40 ^ place ^ (thread as u64) << 52 ^ (kind as u64) << 46;
        self.fingerprint = (self.fingerprint.rotate_left(5) ^ what).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let slot = &mut self.threads[thread];
        slot.location = location;
        slot.since = self.now;
        slot.since_step = self.steps;
        let step = Step { thread, kind, location };
        self.recent.push(step);
        if let Some(kept) = &mut self.kept {
            kept.push(step);
        }
    }

    /// Records why the run fails, unless it has failed already or is only being wound up.
    pub fn fail(&mut self, failure: impl FnOnce(&State) -> Failure) {
        if self.ending.is_none() {
            self.failure = Some(failure(self));
            self.begin_ending();
        }
    }

    /// Makes every thread runnable that waits for what `is_it` says; returns how many.
    pub fn wake(&mut self, is_it: impl Fn(Wait) -> bool) -> usize {
        let mut count = 0;
        for slot in &mut self.threads {
            if let Status::Blocked(wait) = slot.status
                && is_it(wait)
            {
                slot.status = Status::Runnable;
                count += 1;
            }
        }
        count
    }

    fn waiters(&self, is_it: impl Fn(Wait) -> bool) -> Vec<usize> {
        (0..self.threads.len())
            .filter(|index| matches!(self.threads[*index].status, Status::Blocked(wait) if is_it(wait)))
            .collect()
    }

    fn is_scope_open(&self, scope: usize) -> bool {
        self.threads.iter().any(|slot| slot.scope == scope && slot.status != Status::Finished)
    }

    /// Lets time pass to the next timer; false if there is none.
    fn pass_time(&mut self) -> bool {
        let blocked = |slot: &&mut Slot| matches!(slot.status, Status::Blocked(_));
        let next = self.threads.iter_mut().filter(blocked).filter_map(|slot| slot.deadline).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        for slot in self.threads.iter_mut().filter(blocked) {
            if slot.deadline.is_some_and(|deadline| deadline <= self.now) {
                slot.status = Status::Runnable;
                slot.timed_out = true;
            }
        }
        true
    }

    /// Whether thread 0 waits for what does not seem to come.
    fn is_stuck(&self) -> bool {
        let main = &self.threads[0];
        matches!(main.status, Status::Blocked(_))
            && main.deadline.is_none()
            && self.now > self.main_ran + PATIENCE
    }

    /// The thread that runs next, `last` having run; None when none ever will.
    fn choose(&mut self, last: usize) -> Option<usize> {
        if last == 0 {
            self.main_ran = self.now;
        }
        if self.ending.is_none() && self.steps > self.step_limit {
            self.fail(|state| Failure::StepLimit(report(state)));
        }
        if self.last_kind.lets_others_on() && self.chooser.one_in(YIELDS_A_TIMER) {
            self.pass_time();
        }
        if !self.hurry_ending() {
            return None;
        }
        loop {
            let mut runnable = std::mem::take(&mut self.scratch);
            runnable.clear();
            let can_run = |index: &usize| self.threads[*index].status == Status::Runnable;
            runnable.extend((0..self.threads.len()).filter(can_run));
            let chosen = (!runnable.is_empty())
                .then(|| self.chooser.choose(&runnable, last, self.last_kind, self.steps));
            self.scratch = runnable;
            if chosen.is_some() {
                return chosen;
            }
            if self.threads.iter().all(|slot| slot.status == Status::Finished) {
                return None;
            }
            if self.ending.is_none() {
                if self.is_stuck() || !self.pass_time() {
                    self.fail(|state| Failure::Deadlock(report(state)));
                }
            } else if !self.pass_time() && !self.end_next() {
                return None;
            }
        }
    }
}

impl World {
    pub fn new(seed: u64, step_limit: u64) -> Arc<World> {
        Arc::new(World {
            state: Mutex::new(State::new(seed, step_limit)),
            turn: AtomicUsize::new(NOBODY),
            caller: std::thread::current(),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a thread, which can run once [`World::set_handle`] was called; returns it as it will see itself.
    pub fn add(self: &Arc<World>, name: String, scope: usize, location: Place) -> Me {
        let mut state = self.lock();
        let ended = Arc::new(AtomicBool::new(false));
        let index = state.threads.len();
        let (since, since_step) = (state.now, state.steps);
        state.chooser.thread_started();
        state.threads.push(Slot {
            name,
            status: Status::Runnable,
            deadline: None,
            timed_out: false,
            location,
            since,
            since_step,
            held: Vec::new(),
            unparked: false,
            unwinding: false,
            scope,
            ended: ended.clone(),
            handle: None,
        });
        if let Some(ending) = &mut state.ending {
            ending.add(index);
        }
        Me { world: self.clone(), index, ended }
    }

    pub fn set_handle(&self, index: usize, handle: std::thread::Thread) {
        self.lock().threads[index].handle = Some(handle);
    }

    /// Gives the turn to thread 0 of a new run and waits for the run's end.
    pub fn drive(&self) {
        self.give_turn(&self.lock(), 0);
        while !self.lock().over {
            std::thread::park();
        }
    }

    fn give_turn(&self, state: &State, next: usize) {
        self.turn.store(next, Ordering::Release);
        if let Some(handle) = &state.threads[next].handle {
            handle.unpark();
        }
    }

    fn end_run(&self, state: &mut State) {
        state.over = true;
        self.turn.store(NOBODY, Ordering::Release);
        self.caller.unpark();
    }
}

impl Me {
    /// Makes the current thread of the system this simulated thread, and waits for its first turn.
    pub fn enter(&self) {
        ME.with(|me| {
            let _ = me.set(self.clone());
        });
        self.await_turn();
    }

    /// Whether the thread shall not go on.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn await_turn(&self) {
        while self.world.turn.load(Ordering::Acquire) != self.index {
            std::thread::park();
        }
    }

    /// Unwinds if the thread has been ended, unless it is unwinding already.
    pub fn unwind_if_ended(&self) {
        if self.is_ended() && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(Ended));
        }
    }

    /// Passes the turn on, and returns when it comes back.
    fn pass(&self, mut state: MutexGuard<'_, State>) {
        match state.choose(self.index) {
            Some(next) if next == self.index => {}
            Some(next) => {
                self.world.give_turn(&state, next);
                drop(state);
                self.await_turn();
            }
            None => {
                self.world.end_run(&mut state);
                drop(state);
                // Abandoned: the turn never comes back.
                self.await_turn();
            }
        }
    }

    pub fn now(&self) -> Duration {
        self.world.lock().now
    }

    /// A place where the turn may pass, and where an ended thread unwinds.
    pub fn point(&self, kind: Kind, location: Place) {
        self.quiet_point(kind, location);
        self.unwind_if_ended();
    }

    /// As [`Me::point`], but never unwinds: for destructors.
    pub fn quiet_point(&self, kind: Kind, location: Place) {
        let mut state = self.world.lock();
        state.step(self.index, kind, location);
        self.pass(state);
    }

    /// Waits until woken or until `limit` has passed; true if the time ran out.
    pub fn block(&self, kind: Kind, wait: Wait, limit: Option<Duration>, location: Place) -> bool {
        let mut state = self.world.lock();
        state.step(self.index, kind, location);
        let deadline = limit.and_then(|limit| state.now.checked_add(limit));
        let slot = &mut state.threads[self.index];
        slot.status = Status::Blocked(wait);
        slot.deadline = deadline;
        slot.timed_out = false;
        slot.unwinding = std::thread::panicking();
        self.pass(state);
        self.unwind_if_ended();
        let mut state = self.world.lock();
        let slot = &mut state.threads[self.index];
        slot.deadline = None;
        slot.timed_out
    }

    /// Takes a lock: `attempt` succeeds when it is free.
    pub fn acquire<G>(
        &self,
        address: usize,
        mode: Mode,
        location: Place,
        mut attempt: impl FnMut() -> Option<G>,
    ) -> G {
        self.point(mode.kind(), location);
        self.reacquire(address, mode, location, &mut attempt)
    }

    /// As [`Me::acquire`], without the point before.
    pub fn reacquire<G>(
        &self,
        address: usize,
        mode: Mode,
        location: Place,
        attempt: &mut impl FnMut() -> Option<G>,
    ) -> G {
        loop {
            if let Some(guard) = self.attempt(address, mode, location, attempt) {
                return guard;
            }
            self.block(mode.kind(), Wait::Lock(address, mode), None, location);
        }
    }

    /// Takes a lock if it is free.
    pub fn try_acquire<G>(
        &self,
        address: usize,
        mode: Mode,
        location: Place,
        mut attempt: impl FnMut() -> Option<G>,
    ) -> Option<G> {
        self.point(Kind::Try, location);
        self.attempt(address, mode, location, &mut attempt)
    }

    fn attempt<G>(
        &self,
        address: usize,
        mode: Mode,
        location: Place,
        attempt: &mut impl FnMut() -> Option<G>,
    ) -> Option<G> {
        let mut state = self.world.lock();
        // As the real lock has it: readers do not pass a writer that waits.
        if mode == Mode::Read && !state.waiters(|wait| wait == Wait::Lock(address, Mode::Write)).is_empty() {
            return None;
        }
        let guard = attempt()?;
        state.threads[self.index].held.push(Held { address, mode, location });
        Some(guard)
    }

    /// Notes that a lock was let go, and wakes who waits for it. The turn passes only if `passes`, and if
    /// somebody waited.
    pub fn release(&self, address: usize, mode: Mode, passes: bool) {
        let mut state = self.world.lock();
        let held = &mut state.threads[self.index].held;
        let mut location = None;
        if let Some(index) = held.iter().rposition(|held| held.address == address && held.mode == mode) {
            location = Some(held.swap_remove(index).location);
        }
        let woken = state.wake(|wait| matches!(wait, Wait::Lock(at, _) if at == address));
        if woken > 0
            && passes
            && let Some(location) = location
        {
            state.step(self.index, Kind::Unlock, location);
            self.pass(state);
        }
    }

    /// Wakes one or all of those who wait on a condition variable; returns how many.
    pub fn notify(&self, address: usize, all: bool, location: Place) -> usize {
        self.point(Kind::Notify, location);
        let mut state = self.world.lock();
        let waiters = state.waiters(|wait| wait == Wait::Condvar(address));
        if waiters.is_empty() {
            return 0;
        }
        let woken = if all { &waiters[..] } else { &waiters[state.chooser.below(waiters.len())..][..1] };
        for index in woken {
            state.threads[*index].status = Status::Runnable;
        }
        woken.len()
    }

    /// Waits for the end of every thread of a scope. Does not unwind: those threads borrow from this one.
    pub fn wait_for_scope(&self, scope: usize, location: Place) {
        loop {
            let mut state = self.world.lock();
            if !state.is_scope_open(scope) {
                return;
            }
            state.step(self.index, Kind::Join, location);
            state.threads[self.index].status = Status::Blocked(Wait::Scope(scope));
            self.pass(state);
        }
    }

    /// The thread's end: wakes who joins it and passes the turn on for good.
    pub fn leave(&self, panic: Option<String>) {
        let mut state = self.world.lock();
        let location = state.threads[self.index].location;
        state.step(self.index, Kind::End, location);
        state.threads[self.index].status = Status::Finished;
        let scope = state.threads[self.index].scope;
        state.wake(|wait| wait == Wait::Join(self.index));
        if !state.is_scope_open(scope) {
            state.wake(|wait| wait == Wait::Scope(scope));
        }
        match panic {
            Some(text) => state.fail(|_| Failure::Panicked(text)),
            None if self.index == 0 => state.begin_ending(),
            None => {}
        }
        match state.choose(self.index) {
            Some(next) => self.world.give_turn(&state, next),
            None => self.world.end_run(&mut state),
        }
    }
}
