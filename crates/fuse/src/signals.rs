//! Termination signals as events of a loop instead of handlers.
//!
//! Protocol: [`block`] is called before the process starts its first thread, so that every thread inherits
//! the mask; [`wait`] then takes the signals one at a time on a thread of its own.

use quire_base::{Error, Result};

/// The signals that ask a server to stop.
const STOP: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

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
