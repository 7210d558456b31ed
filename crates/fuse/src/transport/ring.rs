//! FUSE over io_uring (Linux 6.14 and later, where the module parameter `enable_uring` is on).
//!
//! The kernel keeps a queue for each possible CPU; a program's request goes to the queue of the CPU that it
//! runs on. Each queue is served by one thread, pinned to that CPU, with an io_uring of its own:
//!
//! ```text
//!   REGISTER(entry)  ->  kernel: available -> filled with a request -> completion
//!                                                                          |
//!   COMMIT_AND_FETCH(entry: reply inside)  <-  answered in place  <--------+
//!           ^                                      |
//!           +--- queue thread <- finished list <- a worker, for what must wait
//! ```
//!
//! An *entry* is one request's memory ([`super::buffer`]): headers in the first page, payload behind. It is
//! the kernel's from submission to completion, then the exchange's, which may move to another thread, then
//! the queue thread's, which commits the reply and asks for the next request in the same submission. All
//! commits of a round are one system call.
//!
//! * [`queue`]: one queue and its thread.
//! * [`command`]: the submissions.
//! * [`wait`]: what keeps a CPU awake while requests come in quick succession.
//!
//! Invariants: only a queue's thread touches its io_uring. A queue thread never waits for anything but
//! requests. Of a queue's entries at most half are held by requests that wait: it registers more when they
//! are, up to [`queue::ENTRIES_MAX`]. Forgets and INIT never come through the ring ([`super::device`] stays
//! open beside it).

pub mod command;
pub mod queue;
pub mod wait;

use std::path::Path;

use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use super::device::Channel;
use super::{Ends, Handler};
use crossbeam_channel::{Receiver, Sender, bounded};
use queue::Queue;
use wait::Activity;

/// The module's switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What stands in the way of the ring when the kernel does not offer it.
pub fn why_not_offered() -> &'static str {
    if !Path::new(SWITCH).exists() {
        "this kernel has no FUSE over io_uring (Linux 6.14 and later have)"
    } else {
        "switched off; on: echo 1 > /sys/module/fuse/parameters/enable_uring"
    }
}

/// Has the kernel offer the ring to later mounts, if this process may. The parameter, which kernels come with
/// switched off, only permits servers to ask for the ring.
pub fn switch_on() {
    let is_off = std::fs::read(SWITCH).is_ok_and(|now| now.starts_with(b"N"));
    if is_off && std::fs::write(SWITCH, "Y").is_ok() {
        tracing::info!(
            "the kernel's FUSE over io_uring was switched off; switched on for all later mounts ({SWITCH})"
        );
    }
}

/// CPUs that the kernel may ever have, each of which needs a queue.
fn possible_cpus() -> Result<usize> {
    let path = "/sys/devices/system/cpu/possible";
    let list = std::fs::read_to_string(path).map_err(|error| Error::os(format!("reading {path}"), &error))?;
    count_list(list.trim())
        .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("{path} is not understood: {list}")))
}

/// `0-3,8-9` has six.
fn count_list(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (1..=65_536).contains(&count).then_some(count)
}

/// What a queue's thread is told once the kernel has answered.
struct Go;

/// Queue threads that have an io_uring and memory each and wait to be started: made before the kernel is told
/// that the ring will be used, since afterwards there is no way back for requests already sent.
pub struct Prepared {
    threads: Vec<Waiting>,
}

struct Waiting {
    go: Sender<Go>,
    registered: Receiver<Result<()>>,
}

impl Prepared {
    /// Starts the threads and makes their rings, for requests of up to `request_max` bytes of data; fails if
    /// the system does not allow it (io_uring switched off or filtered, a limit reached, no memory). Threads
    /// that serve say through `ends` how that ended.
    pub fn new<H: Handler>(
        channel: &Arc<Channel>,
        handler: &Arc<H>,
        ends: &Ends,
        request_max: usize,
    ) -> Result<Prepared> {
        let count = possible_cpus()?;
        let mut threads = Vec::with_capacity(count);
        let activity = Activity::new(count);
        for number in 0..count {
            let (go, told) = bounded(1);
            let (register, registered) = bounded(1);
            let (made, rings) = bounded(1);
            let (channel, handler, activity) = (channel.clone(), handler.clone(), activity.clone());
            let ends = ends.clone();
            let body = move || {
                let mut queue = match Queue::new(number, &channel, activity, request_max) {
                    Ok(queue) => queue,
                    Err(error) => return drop(made.send(Err(error))),
                };
                let _ = made.send(Ok(()));
                // Dropped without a word: the ring is not used.
                let Ok(Go) = told.recv() else { return };
                let outcome = queue.register();
                let usable = outcome.is_ok();
                let _ = register.send(outcome);
                if usable {
                    ends.say(|| queue.serve(&handler));
                }
            };
            thread::Builder::new()
                .name(format!("quire-ring-{number}"))
                .spawn(body)
                .map_err(|error| Error::os("starting a thread for a ring queue", &error))?;
            let ended = || Err(Error::new(ErrorKind::Io, "a ring queue's thread ended before it began"));
            rings.recv().unwrap_or_else(|_| ended())?;
            threads.push(Waiting { go, registered });
        }
        Ok(Prepared { threads })
    }

    /// Registers all queues; returns how many there are. On an error the kernel has gone back to `/dev/fuse`
    /// by itself.
    pub fn start(self) -> Result<usize> {
        let count = self.threads.len();
        let mut outcome = Ok(());
        for Waiting { go, registered } in self.threads {
            let ended = || Error::new(ErrorKind::Io, "a ring queue's thread ended before it was registered");
            let _ = go.send(Go);
            outcome = outcome.and(registered.recv().unwrap_or_else(|_| Err(ended())));
        }
        outcome.map(|()| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("0-1"), Some(2));
        assert_eq!(count_list("0-3,8-9"), Some(6));
        for wrong in ["", "3-1", "a", "0-", "0-99999999999999999999", "0-18446744073709551615"] {
            assert_eq!(count_list(wrong), None, "{wrong}");
        }
    }
}
