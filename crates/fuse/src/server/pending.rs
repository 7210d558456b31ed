//! Requests that wait, and callers that are killed meanwhile.
//!
//! A request that is handed to another thread, or waits for durability, is kept here until it is answered.
//! When a signal reaches its caller, the kernel sends an interrupt. A local file system lets no signal but a
//! deadly one end an `fsync` or a `write`, and programs count on it; so only the request of a caller that is
//! being killed is given up, with `EINTR`, and the process goes at once instead of waiting for a slow device.
//! What the request began goes on. A RELEASE is never given up: nobody else would end the open file.
//!
//! Protocol. The exchange is in a slot; the one that takes it out answers it: the thread that does the work,
//! or the watcher. Interrupts are looked at by a watcher, one job of the pool at a time, at once and then
//! every
//! [`INTERVAL`]: a caller may be killed after a first, harmless signal, of which the kernel would not tell
//! again. It ends when no watched request waits.
//!
//! A request that makes the whole volume durable (`syncfs`, `sync`) is watched from the start
//! ([`Pending::bound`]): the machine's every `sync` waits for it. It is given up with `ETIMEDOUT` when the
//! device completes nothing for a stated time.
//!
//! Invariants: each exchange is answered once. An interrupt that comes before its request is known is looked
//! at twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quire_base::sync::{Arc, Mutex};

use crate::protocol::abi::opcode;
use crate::transport::Exchange;

const SHARDS: usize = 16;
/// Time between two looks at callers that were interrupted.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// A waiting request, whatever its transport.
trait Waits: Send + Sync {
    /// Whether it was answered.
    fn is_over(&self) -> bool;
    /// The thread that asks, as the kernel numbers it; zero if the request is done whatever becomes of it.
    fn caller(&self) -> u32;
    /// Answers with an error number, if nobody has answered.
    fn give_up(&self, number: i32);
}

struct Slot<E> {
    exchange: Mutex<Option<E>>,
    caller: u32,
}

impl<E: Exchange> Waits for Slot<E> {
    fn is_over(&self) -> bool {
        self.exchange.lock().is_none()
    }
    fn caller(&self) -> u32 {
        self.caller
    }
    fn give_up(&self, number: i32) {
        let taken = self.exchange.lock().take();
        if let Some(exchange) = taken {
            exchange.reply(Err(number));
        }
    }
}

/// The right to answer a request, unless it is given up first.
pub(super) struct Ticket<E> {
    unique: u64,
    slot: Arc<Slot<E>>,
}

impl<E: Exchange> Ticket<E> {
    /// Whether the request has been answered, or given up.
    pub(super) fn is_over(&self) -> bool {
        self.slot.is_over()
    }
}

/// A request that is watched.
struct Watched {
    unique: u64,
    /// It was looked at before.
    seen: bool,
    bound: Option<Bound>,
}

/// How long a request waits for a device that does nothing.
struct Bound {
    patience: Duration,
    since: Instant,
    /// What the device had done then.
    progress: u64,
}

impl Bound {
    /// Whether the device has done nothing for so long; else looks from now on.
    fn is_over(&mut self, progress: impl FnOnce() -> u64) -> bool {
        if self.since.elapsed() < self.patience {
            return false;
        }
        let progress = progress();
        if progress == self.progress {
            return true;
        }
        (self.since, self.progress) = (Instant::now(), progress);
        false
    }
}

type Shard = Mutex<HashMap<u64, Arc<dyn Waits>>>;

/// See the module's documentation.
pub(super) struct Pending {
    shards: [Shard; SHARDS],
    /// What the watcher looks at; there is a watcher while it is not empty.
    watched: Mutex<Vec<Watched>>,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())), watched: Mutex::default() }
    }
}

impl Pending {
    fn shard(&self, unique: u64) -> &Shard {
        // The kernel counts in twos.
        &self.shards[(unique / 2) as usize % SHARDS]
    }

    /// Keeps a request while it waits.
    pub(super) fn add<E: Exchange>(&self, exchange: E) -> Ticket<E> {
        let header = exchange.message().header().unwrap_or_default();
        let caller = if header.opcode == opcode::RELEASE { 0 } else { header.pid };
        let slot = Arc::new(Slot { exchange: Mutex::new(Some(exchange)), caller });
        self.shard(header.unique).lock().insert(header.unique, slot.clone());
        Ticket { unique: header.unique, slot }
    }

    /// The request again, to be answered; `None` if it was given up.
    pub(super) fn take<E: Exchange>(&self, ticket: Ticket<E>) -> Option<E> {
        let gone = self.shard(ticket.unique).lock().remove(&ticket.unique);
        drop(gone);
        ticket.slot.exchange.lock().take()
    }

    /// Notes an interrupt; true if the caller is to start a watcher.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        self.watch(Watched { unique, seen: false, bound: None })
    }

    /// Bounds the time of a request to `patience` without progress of the device, which has done `progress`
    /// so far; true if the caller is to start a watcher.
    pub(super) fn bound<E>(&self, ticket: &Ticket<E>, patience: Duration, progress: u64) -> bool {
        let bound = Bound { patience, since: Instant::now(), progress };
        self.watch(Watched { unique: ticket.unique, seen: true, bound: Some(bound) })
    }

    fn watch(&self, watched: Watched) -> bool {
        let mut all = self.watched.lock();
        all.push(watched);
        all.len() == 1
    }

    /// One look at all that is watched; false if nothing is left to be watched, and the watcher ends.
    /// `progress`: what the device has done.
    pub(super) fn look(&self, is_dying: impl Fn(u32) -> bool, progress: impl Fn() -> u64) -> bool {
        let mut all = self.watched.lock();
        all.retain_mut(|watched| {
            let waiting = self.shard(watched.unique).lock().get(&watched.unique).cloned();
            let Some(waiting) = waiting else { return !std::mem::replace(&mut watched.seen, true) };
            if waiting.is_over() {
                return false;
            }
            if let Some(bound) = &mut watched.bound {
                if bound.is_over(&progress) {
                    tracing::error!(
                        "sync: the device has completed nothing for {} s; the call fails, and what it was to make \
                         durable may be lost in a crash",
                        bound.patience.as_secs()
                    );
                    waiting.give_up(libc::ETIMEDOUT);
                    return false;
                }
                return true;
            }
            if is_dying(waiting.caller()) {
                waiting.give_up(libc::EINTR);
                return false;
            }
            true
        });
        !all.is_empty()
    }
}

/// Whether a thread has a deadly signal pending.
pub(super) fn is_dying(thread: u32) -> bool {
    // Zero: of another process namespace.
    thread != 0
        && std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| kill_pends(&status))
}

/// Whether `SIGKILL`, which stands for any signal that ends the process, is among the pending ones of a
/// `/proc/PID/status`.
fn kill_pends(status: &str) -> bool {
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & 1 << (libc::SIGKILL - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::InHeader;
    use crate::protocol::request::Message;
    use crate::transport::Outcome;
    use zerocopy::IntoBytes;

    #[derive(Clone, Default)]
    struct Answers(Arc<Mutex<Vec<(u64, Outcome)>>>);

    struct Asked {
        message: Vec<u8>,
        unique: u64,
        answers: Answers,
    }

    impl Asked {
        fn new(unique: u64, pid: u32, answers: &Answers) -> Asked {
            Asked::of(opcode::FSYNC, unique, pid, answers)
        }

        fn of(opcode: u32, unique: u64, pid: u32, answers: &Answers) -> Asked {
            let header = InHeader { len: 40, opcode, unique, pid, ..InHeader::default() };
            Asked { message: header.as_bytes().to_vec(), unique, answers: answers.clone() }
        }
    }

    impl Exchange for Asked {
        const MAY_WAIT: bool = false;
        fn message(&self) -> Message<'_> {
            Message::Whole(&self.message)
        }
        fn room(&mut self) -> &mut [u8] {
            &mut []
        }
        fn reply(self, outcome: Outcome) {
            self.answers.0.lock().push((self.unique, outcome));
        }
        fn no_reply(self) {}
    }

    #[test]
    fn only_who_is_killed_is_given_up() {
        let (pending, answers) = (Pending::default(), Answers::default());
        let killed = pending.add(Asked::new(2, 100, &answers));
        let signalled = pending.add(Asked::new(4, 200, &answers));
        let quiet = pending.add(Asked::new(6, 100, &answers));
        assert!(pending.interrupt(2), "the first starts a watcher");
        assert!(!pending.interrupt(4));
        assert!(pending.look(|caller| caller == 100, || 0), "one is still watched");
        assert_eq!(*answers.0.lock(), [(2, Err(libc::EINTR))]);
        assert!(pending.take(killed).is_none());
        pending.take(signalled).expect("it goes on").reply(Ok(0));
        pending.take(quiet).expect("nobody interrupted it").reply(Ok(0));
        assert!(
            pending.look(|_| true, || 0) | !pending.look(|_| true, || 0),
            "what is gone is looked at once more at most"
        );
        assert_eq!(answers.0.lock().len(), 3);
        assert!(pending.interrupt(8), "the watcher had ended");
    }

    /// The RELEASE of a program that was killed meanwhile was answered and not done, so that the file stayed
    /// open until the end of the mount.
    #[test]
    fn a_release_is_never_given_up() {
        let (pending, answers) = (Pending::default(), Answers::default());
        let release = pending.add(Asked::of(opcode::RELEASE, 2, 100, &answers));
        assert!(pending.interrupt(2));
        assert!(pending.look(|caller| caller == 100, || 0));
        pending.take(release).expect("it is still to be done").reply(Ok(0));
        assert_eq!(*answers.0.lock(), [(2, Ok(0))]);
    }

    #[test]
    fn an_interrupt_may_come_before_its_request() {
        let (pending, answers) = (Pending::default(), Answers::default());
        assert!(pending.interrupt(2));
        assert!(pending.look(|_| true, || 0), "once more");
        let late = pending.add(Asked::new(2, 100, &answers));
        assert!(!pending.look(|_| true, || 0));
        assert_eq!(*answers.0.lock(), [(2, Err(libc::EINTR))]);
        assert!(pending.take(late).is_none());
        pending.interrupt(4);
        assert!(
            pending.look(|_| true, || 0) && !pending.look(|_| true, || 0),
            "one that never comes is forgotten"
        );
    }

    #[test]
    fn only_a_device_that_does_nothing_ends_a_bounded_request() {
        let (pending, answers) = (Pending::default(), Answers::default());
        let ticket = pending.add(Asked::new(2, 100, &answers));
        let patience = Duration::from_millis(20);
        assert!(pending.bound(&ticket, patience, 7), "it starts a watcher");
        assert!(pending.look(|_| false, || 7), "not yet");
        std::thread::sleep(patience);
        assert!(pending.look(|_| false, || 8), "the device works");
        assert!(pending.look(|_| false, || 8), "the time starts anew");
        std::thread::sleep(patience);
        assert!(!pending.look(|_| false, || 8));
        assert_eq!(*answers.0.lock(), [(2, Err(libc::ETIMEDOUT))]);
        assert!(pending.take(ticket).is_none());
        let ticket = pending.add(Asked::new(4, 100, &answers));
        assert!(pending.bound(&ticket, patience, 8));
        pending.take(ticket).expect("in time").reply(Ok(0));
        assert!(!pending.look(|_| true, || 8), "what was answered is not watched");
    }

    #[test]
    fn deadly_signals() {
        assert!(kill_pends("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(kill_pends("SigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n"));
        assert!(!kill_pends(
            "SigPnd:\t0000000000000200\nShdPnd:\t0000000000004000\nSigIgn:\t0000000000000100\n"
        ));
        assert!(!kill_pends("SigPnd:\tfast\n"));
        assert!(!is_dying(0) && !is_dying(std::process::id()));
    }
}
