//! What a server sets for its whole process: termination signals as events of a loop instead of handlers, and
//! its part in the kernel's memory reclaim.
//!
//! Protocol: [`block`] is called before the process starts its first thread, so that every thread inherits
//! the mask; [`wait`] then takes the signals one at a time on a thread of its own.

use quire_base::{Error, Result};

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
