//! The system's threads. Those of a [`Builder`] take no signals.
//!
//! A signal to a process goes to any thread that does not block it. Threads of a library would take signals
//! that the program keeps for a thread of its own, as one that waits in `sigwait`, and a handler would run
//! on their stacks. So they start with all signals blocked, but for those that a fault of the thread itself
//! causes: the kernel delivers these in any case, and a handler that reports them is to run.

use std::io;
pub use std::thread::*;

/// Signals that a fault of a thread causes.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// As [`std::thread::Builder`], for threads that take no signals.
#[derive(Debug)]
pub struct Builder(std::thread::Builder);

impl Builder {
    /// A thread with no name.
    #[expect(clippy::new_without_default, reason = "the builder of std has none")]
    pub fn new() -> Builder {
        Builder(std::thread::Builder::new())
    }

    /// Gives the thread a name.
    pub fn name(self, name: String) -> Builder {
        Builder(self.0.name(name))
    }

    /// Starts the thread.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let _blocked = Blocked::begin();
        self.0.spawn(body)
    }
}

/// While it lives the calling thread takes no signals: a thread starts with the mask of the one that starts
/// it.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn begin() -> Blocked {
        // SAFETY: sets of signals are plain data. Each call fills the set that it is given, or reads one that
        // is full, and with these arguments none fails.
        unsafe {
            let (mut blocked, mut before) = std::mem::zeroed();
            libc::sigfillset(&raw mut blocked);
            for fault in FAULTS {
                libc::sigdelset(&raw mut blocked, fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
            Blocked { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a full set; the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calling thread blocks a signal.
    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: sets of signals are plain data; the call fills the one that it is given.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    #[test]
    fn a_thread_takes_the_signals_of_its_own_faults_alone() {
        let thread = Builder::new().name("quire-test".into());
        let seen = thread.spawn(|| [libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGSEGV].map(blocks));
        assert_eq!(seen.unwrap().join().unwrap(), [true, true, true, false]);
        assert!(!blocks(libc::SIGTERM), "the caller's mask is as it was");
    }
}
