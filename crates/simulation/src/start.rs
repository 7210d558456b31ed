//! Starting a run, and what surrounds a simulated thread: its result, its panic.

use crate::Options;
use crate::report::Failure;
use crate::scheduler::{Ended, Me, Status, World, is_simulated};
use parking_lot::Mutex;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Once};

/// Stacks are reserved, not used: a run of many threads costs address space only.
const STACK_BYTES: usize = 8 << 20;

/// Runs `body` as thread 0 of a simulation and returns its value once every thread has ended.
///
/// Threads that still run when `body` returns are ended; that is no failure. After a failure that leaves
/// threads which cannot be unwound, they stay behind, parked for ever.
///
/// # Panics
/// On a simulated thread: a simulation does not run in another one.
#[track_caller]
pub fn run<T: Send>(options: &Options, body: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    assert!(!is_simulated(), "a simulation cannot run inside another one");
    watch_panics();
    let world = World::new(options.seed, options.step_limit);
    let me = world.add("main".into(), 0, Location::caller());
    let result = Arc::new(Mutex::new(None));
    let thread_body: Box<dyn FnOnce() -> Option<String> + Send + '_> = {
        let (me, result) = (me.clone(), result.clone());
        Box::new(move || {
            let (value, panic) = caught(&me, body);
            *result.lock() = value.ok();
            panic
        })
    };
    // SAFETY: the closure only lengthens its borrows in name. This function does not return before `drive`
    // does, and then thread 0 either has finished (and is joined below, so the closure and what it borrowed
    // are gone), or is parked for ever and never touches anything again.
    let thread_body: Box<dyn FnOnce() -> Option<String> + Send + 'static> =
        unsafe { std::mem::transmute(thread_body) };
    let thread = std::thread::Builder::new()
        .name("main".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            share_one_processor();
            live(&me, thread_body);
        })
        .expect("starting the first thread of a simulation");
    world.set_handle(0, thread.thread().clone());
    world.drive();
    let mut state = world.lock();
    let finished = state.threads[0].status == Status::Finished;
    let failure = state.failure.take();
    drop(state);
    if finished {
        // Its panics are caught inside.
        let _ = thread.join();
    }
    let value = result.lock().take();
    match (failure, value) {
        (None, Some(value)) => Ok(value),
        (Some(failure), _) => Err(failure),
        (None, None) => Err(Failure::Panicked("thread 'main' ended without a result".into())),
    }
}

/// The life of a simulated thread on its thread of the system. `body` returns what it panicked with, if it
/// did.
pub(super) fn live(me: &Me, body: impl FnOnce() -> Option<String>) {
    me.enter();
    let panic = if me.is_ended() {
        drop(body);
        None
    } else {
        body()
    };
    me.leave(panic);
}

/// Runs `f`, catching its panic; with a panic comes its description for the run's failure, if it is to be
/// one.
pub(super) fn caught<T>(me: &Me, f: impl FnOnce() -> T) -> (std::thread::Result<T>, Option<String>) {
    let result = catch_unwind(AssertUnwindSafe(f));
    let panic = result.as_ref().err().and_then(|payload| describe(me, &**payload));
    (result, panic)
}

/// What a panic said; None for the one that ends threads.
fn describe(me: &Me, payload: &(dyn Any + Send)) -> Option<String> {
    if payload.is::<Ended>() {
        return None;
    }
    let message = (payload.downcast_ref::<&str>().copied())
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a payload that is no text");
    let name = me.world.lock().threads[me.index].name.clone();
    let place = LAST_PANIC.take().map_or(String::new(), |place| format!(" at {place}"));
    Some(format!("thread {} '{name}' panicked{place}: {message}", me.index))
}

/// Keeps the current thread, and those that it will start, on the processor where it is: one thread of a run
/// works at a time, and the turn passes several times faster within a processor than across. Only an
/// optimisation, so a system that refuses is left alone.
fn share_one_processor() {
    #[cfg(target_os = "linux")]
    {
        let mut one = rustix::thread::CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        let _ = rustix::thread::sched_setaffinity(None, &one);
    }
}

thread_local! {
    static LAST_PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// Notes where simulated threads panic; the payload alone does not say.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if is_simulated() {
                LAST_PANIC.set(info.location().map(ToString::to_string));
            }
            before(info);
        }));
    });
}
