//! What a server sets for its whole process: termination signals as events of a loop instead of handlers, its
//! part in the kernel's memory reclaim, and how soon its threads run.
//!
//! Protocol: [`block`] is called before the process starts its first thread, so that every thread inherits
//! the mask; [`wait`] then takes the signals one at a time on a thread of its own.

use quire_base::{Error, Result};
use std::time::Duration;

/// The signals that ask a server to stop.
const STOP: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// From the kernel's `linux/prctl.h`; the C library's bindings do not have it.
const PR_SET_IO_FLUSHER: i32 = 57;

fn stop_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset initialises it before it is read, and the signal numbers
    // are valid constants.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in STOP {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Keeps the stop signals (TERM, INT, HUP) pending in this thread and all threads it starts from now on.
pub fn block() {
    let set = stop_set();
    // SAFETY: `set` is initialised and lives through the call; the old mask is not asked for.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Tells the kernel that this process serves a file system: where memory is short, its allocations must not
/// wait for dirty pages of its own mount. For this thread and all threads it starts from now on; only with
/// the capability (root), since without it the kernel refuses.
pub fn serve_under_memory_pressure() {
    // SAFETY: a process-control call with plain numbers.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        tracing::debug!("not marked as an I/O flusher: {}", std::io::Error::last_os_error());
    }
}

/// The shortest turn that the kernel takes, in nanoseconds.
const TURN: u64 = 100_000;

/// How the kernel schedules the calling thread.
fn scheduled() -> Option<libc::sched_attr> {
    // SAFETY: all zeros are a value of this structure of numbers.
    let mut how: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the calling thread's own, into a structure of the size that is named.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut how, size, 0) };
    (read == 0).then_some(how)
}

/// Asks the kernel for short turns: for this thread and all threads it starts from now on. A thread that was
/// woken then runs before one that computes has had its whole turn. A program waits for each request, and on
/// a busy machine mostly for the server's turn. The server's share of the processors stays the same, so this
/// needs no privilege. Before Linux 6.12 it changes nothing.
pub fn run_soon() {
    // Whoever has given the server another policy knows better.
    let Some(mut how) = scheduled().filter(|how| how.sched_policy == libc::SCHED_OTHER as u32) else {
        return;
    };
    how.sched_runtime = TURN;
    // SAFETY: as above; the kernel only reads.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const how, 0) } != 0 {
        tracing::debug!("turns are as long as before: {}", std::io::Error::last_os_error());
    }
}

/// Waits so long at most; true as soon as a stop signal comes. Needs [`block`].
pub fn comes_within(limit: Duration) -> bool {
    let set = stop_set();
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the pointers are to initialised variables that live through the call, or null.
    unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &limit) > 0 }
}

/// Waits for the next stop signal and returns its number. Needs [`block`].
pub fn wait() -> Result<i32> {
    let set = stop_set();
    let mut signal = 0;
    // SAFETY: both pointers are to live, initialised variables.
    match unsafe { libc::sigwait(&set, &mut signal) } {
        0 => Ok(signal),
        number => Err(Error::os("waiting for a stop signal", &std::io::Error::from_raw_os_error(number))),
    }
}

/// A signal's name for messages.
pub fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_inherit_short_turns() {
        // In a thread of its own: the other tests keep their turns.
        let turns = || {
            let before = scheduled().expect("how it is scheduled").sched_runtime;
            run_soon();
            let inherited = std::thread::spawn(|| scheduled().map(|how| how.sched_runtime)).join();
            (before, inherited.expect("a thread").expect("how it is scheduled"))
        };
        match std::thread::spawn(turns).join().expect("a thread") {
            (0, _) => eprintln!("SKIPPED threads_inherit_short_turns: before Linux 6.12 all turns are alike"),
            (before, inherited) => assert!(before > TURN && inherited == TURN, "{before} {inherited}"),
        }
    }
}
