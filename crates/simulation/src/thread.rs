//! `std::thread` as far as the engine and its harnesses use it: simulated on simulated threads, the system's
//! elsewhere.
//!
//! Neighbours: `quire_base::sync::thread` is this module when the feature `simulation` is on.

use crate::scheduler::{Kind, Me, Place, Status, Wait, World, me};
use crate::start::{caught, live};
use parking_lot::Mutex;
use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread as system;
use std::time::Duration;

pub use std::thread::{AccessError, LocalKey, Result, ThreadId, panicking};

/// Processors that a simulated machine has.
const PROCESSORS: NonZero<usize> = NonZero::new(4).unwrap();

/// How many threads can run at once.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    if me().is_some() { Ok(PROCESSORS) } else { system::available_parallelism() }
}

/// A handle of a thread.
#[derive(Clone)]
pub struct Thread {
    system: system::Thread,
    simulated: Option<(Arc<World>, usize)>,
}

impl Thread {
    /// Tells threads of the process apart; two runs of one seed may differ in it.
    pub fn id(&self) -> ThreadId {
        self.system.id()
    }

    /// The name it was given.
    pub fn name(&self) -> Option<&str> {
        self.system.name()
    }

    /// Lets its present or next [`park`] return.
    #[track_caller]
    pub fn unpark(&self) {
        let Some((world, index)) = &self.simulated else {
            return self.system.unpark();
        };
        if let Some(me) = me() {
            me.point(Kind::Unpark, Location::caller());
        }
        let slot = &mut world.lock().threads[*index];
        slot.unparked = true;
        if slot.status == Status::Blocked(Wait::Park) {
            slot.status = Status::Runnable;
        }
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.system.fmt(f)
    }
}

/// The current thread.
pub fn current() -> Thread {
    Thread { system: system::current(), simulated: me().map(|me| (me.world, me.index)) }
}

/// Lets others run.
#[track_caller]
pub fn yield_now() {
    match me() {
        Some(me) => me.point(Kind::Yield, Location::caller()),
        None => system::yield_now(),
    }
}

/// Lets others run, in a loop that waits for one of them without a lock.
#[track_caller]
pub fn spin_loop() {
    match me() {
        Some(me) => me.point(Kind::Spin, Location::caller()),
        None => std::hint::spin_loop(),
    }
}

/// Waits for `time` to pass.
#[track_caller]
pub fn sleep(time: Duration) {
    match me() {
        Some(me) => {
            me.block(Kind::Sleep, Wait::Sleep, Some(time), Location::caller());
        }
        None => system::sleep(time),
    }
}

/// Waits for an unpark.
#[track_caller]
pub fn park() {
    match me() {
        Some(me) => park_simulated(&me, None, Location::caller()),
        None => system::park(),
    }
}

/// Waits for an unpark, at most for `limit`.
#[track_caller]
pub fn park_timeout(limit: Duration) {
    match me() {
        Some(me) => park_simulated(&me, Some(limit), Location::caller()),
        None => system::park_timeout(limit),
    }
}

fn park_simulated(me: &Me, limit: Option<Duration>, location: Place) {
    me.point(Kind::Park, location);
    let came_before = std::mem::take(&mut me.world.lock().threads[me.index].unparked);
    if !came_before {
        me.block(Kind::Park, Wait::Park, limit, location);
        me.world.lock().threads[me.index].unparked = false;
    }
}

type Packet<T> = Arc<Mutex<Option<Result<T>>>>;

/// A simulated thread that may be joined.
struct Simulated<T> {
    world: Arc<World>,
    index: usize,
    thread: Thread,
    packet: Packet<T>,
}

impl<T> Simulated<T> {
    fn join(self, location: Place) -> Result<T> {
        if let Some(me) = me() {
            me.point(Kind::Join, location);
            while !self.is_finished() {
                me.block(Kind::Join, Wait::Join(self.index), None, location);
            }
        }
        let result = self.packet.lock().take();
        result.unwrap_or_else(|| Err(Box::new("the thread was ended with its simulation")))
    }

    fn is_finished(&self) -> bool {
        self.world.lock().threads[self.index].status == Status::Finished
    }
}

/// A thread added to the run of `me`: how it sees itself, where its result will be, and what it has to run.
fn prepare<T: Send, F: FnOnce() -> T + Send>(
    me: &Me,
    name: Option<String>,
    scope: usize,
    f: F,
    location: Place,
) -> (Me, Packet<T>, impl FnOnce() + Send + use<T, F>) {
    let child = me.world.add(name.unwrap_or_default(), scope, location);
    let packet: Packet<T> = Arc::new(Mutex::new(None));
    let body = {
        let (me, packet) = (child.clone(), packet.clone());
        move || {
            live(&me, || {
                let (result, panic) = caught(&me, f);
                *packet.lock() = Some(result);
                // Its last reference is the handle's, or goes here, while the thread still has its turn.
                drop(packet);
                panic
            });
        }
    };
    (child, packet, body)
}

/// After the system's thread of `child` was started, or was not.
fn started<T>(
    me: &Me,
    child: &Me,
    packet: Packet<T>,
    outcome: io::Result<system::Thread>,
    location: Place,
) -> io::Result<Simulated<T>> {
    let thread = match outcome {
        Ok(thread) => thread,
        Err(error) => {
            me.world.lock().threads[child.index].status = Status::Finished;
            return Err(error);
        }
    };
    me.world.set_handle(child.index, thread.clone());
    me.point(Kind::Start, location);
    let thread = Thread { system: thread, simulated: Some((me.world.clone(), child.index)) };
    Ok(Simulated { world: me.world.clone(), index: child.index, thread, packet })
}

/// The right to wait for a thread's result.
pub struct JoinHandle<T>(Handle<T>);

enum Handle<T> {
    System(system::JoinHandle<T>, Thread),
    Simulated(Simulated<T>),
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end; an error is the payload of its panic.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        match self.0 {
            Handle::System(handle, _) => handle.join(),
            Handle::Simulated(simulated) => simulated.join(Location::caller()),
        }
    }

    /// Its thread.
    pub fn thread(&self) -> &Thread {
        match &self.0 {
            Handle::System(_, thread) => thread,
            Handle::Simulated(simulated) => &simulated.thread,
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Handle::System(handle, _) => handle.is_finished(),
            Handle::Simulated(simulated) => simulated.is_finished(),
        }
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinHandle({:?})", self.thread())
    }
}

/// How a thread is to be.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    stack_bytes: Option<usize>,
}

impl Builder {
    /// A thread without a name, of the usual stack.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Gives it a name.
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Sets its stack in bytes.
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_bytes = Some(bytes);
        self
    }

    fn system(&self) -> system::Builder {
        let mut builder = system::Builder::new();
        if let Some(name) = &self.name {
            builder = builder.name(name.clone());
        }
        if let Some(bytes) = self.stack_bytes {
            builder = builder.stack_size(bytes);
        }
        builder
    }

    /// Starts it; an error is the system's.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let system = self.system();
        let Some(me) = me() else {
            let handle = system.spawn(f)?;
            let thread = Thread { system: handle.thread().clone(), simulated: None };
            return Ok(JoinHandle(Handle::System(handle, thread)));
        };
        let location = Location::caller();
        let (child, packet, body) = prepare(&me, self.name, 0, f, location);
        let outcome = system.spawn(body).map(|handle| handle.thread().clone());
        started(&me, &child, packet, outcome, location)
            .map(|simulated| JoinHandle(Handle::Simulated(simulated)))
    }

    /// Starts it within `scope`; an error is the system's.
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let system = self.system();
        let Some(me) = me() else {
            let handle = system.spawn_scoped(&scope.0, f)?;
            let thread = Thread { system: handle.thread().clone(), simulated: None };
            return Ok(ScopedJoinHandle(ScopedHandle::System(handle, thread)));
        };
        let location = Location::caller();
        let (child, packet, body) = prepare(&me, self.name, scope.key(), f, location);
        let outcome = system.spawn_scoped(&scope.0, body).map(|handle| handle.thread().clone());
        started(&me, &child, packet, outcome, location)
            .map(|simulated| ScopedJoinHandle(ScopedHandle::Simulated(simulated)))
    }
}

/// Starts a thread.
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(f).expect("starting a thread")
}

/// Threads that end before what they borrow does.
#[repr(transparent)]
pub struct Scope<'scope, 'env: 'scope>(system::Scope<'scope, 'env>);

impl<'scope, 'env> Scope<'scope, 'env> {
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Starts a thread in the scope.
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Builder::new().spawn_scoped(self, f).expect("starting a thread")
    }
}

/// The right to wait for a scoped thread's result.
pub struct ScopedJoinHandle<'scope, T>(ScopedHandle<'scope, T>);

enum ScopedHandle<'scope, T> {
    System(system::ScopedJoinHandle<'scope, T>, Thread),
    Simulated(Simulated<T>),
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread's end; an error is the payload of its panic.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        match self.0 {
            ScopedHandle::System(handle, _) => handle.join(),
            ScopedHandle::Simulated(simulated) => simulated.join(Location::caller()),
        }
    }

    /// Its thread.
    pub fn thread(&self) -> &Thread {
        match &self.0 {
            ScopedHandle::System(_, thread) => thread,
            ScopedHandle::Simulated(simulated) => &simulated.thread,
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            ScopedHandle::System(handle, _) => handle.is_finished(),
            ScopedHandle::Simulated(simulated) => simulated.is_finished(),
        }
    }
}

/// Runs `f`, and returns when every thread that was started in its scope has ended.
#[track_caller]
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let location = Location::caller();
    system::scope(|inner| {
        // SAFETY: `Scope` is a transparent wrapper of the system's scope; the lifetimes are the argument's.
        let scope: &Scope<'_, 'env> = unsafe { &*std::ptr::from_ref(inner).cast() };
        let Some(me) = me() else { return f(scope) };
        let result = catch_unwind(AssertUnwindSafe(|| f(scope)));
        me.wait_for_scope(scope.key(), location);
        let value = result.unwrap_or_else(|payload| resume_unwind(payload));
        me.unwind_if_ended();
        value
    })
}
