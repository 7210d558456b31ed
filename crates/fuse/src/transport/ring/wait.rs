//! How the ring waits: its threads sleep at once, and one more thread keeps a CPU awake while there is much
//! to do.
//!
//! A queue's thread runs on the CPU of the programs that it serves. It must get out of their way as soon as
//! it has replied, and a switch between two threads of one CPU is cheap; so it never spins. (Nor does it
//! offer its CPU with `sched_yield`: since Linux 6.18 that forfeits a whole slice to any program that
//! computes.) What costs is waking a CPU that has halted, most of all in a virtual machine, and the scheduler
//! does that at each reply: it moves the woken program to an idle CPU. The *keeper* prevents it: while
//! requests come in quick succession it runs at the lowest priority on a CPU that would be idle otherwise, so
//! that programs stay where they are.
//!
//! It adapts: it starts after [`BURST`] requests of which none was [`QUIET`] after the one before, ends when
//! no request came for that long, and if others want its CPU for more than a part of the time ([`Losses`]) it
//! gives up for a while. (The engine's own threads want it now and then, for some tenths of a millisecond; to
//! go for that would leave the CPU to halt most of the time.) An idle mount, or one with a request now and
//! then, never starts it. On a machine with many CPUs there is always another idle one: beyond [`CPUS_MAX`]
//! there is no keeper.
//!
//! A thread that has had requests in quick succession for [`BUSY`] pauses for [`PAUSE`]. All programs that it
//! serves wait then, and whatever else is runnable gets the CPU. Else the kernel (seen with Linux 6.18) may
//! hand a CPU to and fro between such a thread and its programs for many seconds, and let nothing else run
//! there. The block layer's workers are among what does not run, so that no write of any program ends.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, thread};

/// Requests in quick succession that start the keeper.
const BURST: u64 = 64;
/// A pause that ends a succession.
const QUIET: Duration = Duration::from_micros(200);
/// So long a queue's thread serves requests in quick succession...
const BUSY: Duration = Duration::from_millis(5);
/// ...before it pauses so long, and as much longer as timers are late.
pub const PAUSE: Duration = Duration::from_micros(50);
/// How exactly the last request is noted: a line that all threads read is written no more often.
const GRAIN: Duration = Duration::from_micros(20);
/// A gap in the keeper's own running that means that others had its CPU.
const TAKEN: Duration = Duration::from_micros(100);
/// Of so much time...
const WINDOW: Duration = Duration::from_millis(10);
/// ...others may have had so much, else they want the CPU...
const LOSS_MAX: Duration = Duration::from_millis(2);
/// ...and the keeper stays away so long.
const AWAY: Duration = Duration::from_millis(50);
/// Largest machine with a keeper.
const CPUS_MAX: usize = 4;
/// The keeper's priority, the lowest.
const NICE: i32 = 19;

/// What the threads of a mount know of each other's requests.
#[derive(Debug)]
pub struct Activity {
    start: Instant,
    /// Nanoseconds since `start` of the last request, roughly.
    last: AtomicU64,
    /// The keeper runs, or stays away.
    busy: AtomicBool,
    ended: AtomicBool,
    keeper: OnceLock<thread::Thread>,
}

/// One queue's part in it. Times are nanoseconds since `start`.
#[derive(Debug, Default)]
pub struct Burst {
    /// Requests in quick succession, of whatever queue.
    count: u64,
    /// When the queue had its last request.
    last: u64,
    /// When the queue last paused, or began after a longer gap.
    rested: u64,
}

impl Burst {
    /// Notes requests of the queue; whether its thread should pause.
    fn is_pause_due(&mut self, now: u64) -> bool {
        let had_gap = now - std::mem::replace(&mut self.last, now) > nanos(QUIET);
        let is_due = !had_gap && now - self.rested > nanos(BUSY);
        if had_gap || is_due {
            self.rested = now;
        }
        is_due
    }
}

impl Activity {
    /// With a keeper, on a machine that one helps.
    pub fn new(cpus: usize) -> Arc<Activity> {
        let activity = Arc::new(Activity {
            start: Instant::now(),
            last: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            keeper: OnceLock::new(),
        });
        if (2..=CPUS_MAX).contains(&cpus) {
            let keeping = activity.clone();
            let keeper = thread::Builder::new().name("quire-keeper".into()).spawn(move || keeping.keep());
            match keeper {
                Ok(keeper) => drop(activity.keeper.set(keeper.thread().clone())),
                Err(error) => tracing::debug!("no keeper: {error}"),
            }
        }
        activity
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Notes that a queue has taken `count` requests; whether its thread should pause when it has answered
    /// them.
    pub fn note(&self, burst: &mut Burst, count: usize) -> bool {
        let now = self.now();
        // Relaxed, here and below: hints.
        let since = now.saturating_sub(self.last.load(Ordering::Relaxed));
        if since > nanos(GRAIN) {
            self.last.store(now, Ordering::Relaxed);
        }
        burst.count = if since > nanos(QUIET) { 0 } else { burst.count + count as u64 };
        if burst.count >= BURST && !self.busy.load(Ordering::Relaxed) {
            burst.count = 0;
            if !self.busy.swap(true, Ordering::Relaxed)
                && let Some(keeper) = self.keeper.get()
            {
                keeper.unpark();
            }
        }
        burst.is_pause_due(now)
    }

    /// Ends the keeper.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// The keeper's life.
    fn keep(&self) {
        // Fails only where priorities may not be changed at all; then it competes for its CPU, and gives up
        // soon.
        let _ = rustix::process::nice(NICE);
        while !self.ended.load(Ordering::Relaxed) {
            if !self.busy.load(Ordering::Relaxed) {
                thread::park();
                continue;
            }
            if !self.stay_awake() {
                thread::park_timeout(AWAY);
            }
            self.busy.store(false, Ordering::Relaxed);
        }
    }

    /// Runs until no request has come for a while; false if others want the CPU.
    fn stay_awake(&self) -> bool {
        let mut before = self.now();
        let mut losses = Losses::since(before);
        loop {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            let now = self.now();
            if losses.are_too_many(before, now) {
                return false;
            }
            if self.ended.load(Ordering::Relaxed)
                || now.saturating_sub(self.last.load(Ordering::Relaxed)) > nanos(QUIET)
            {
                return true;
            }
            before = now;
        }
    }
}

/// What the keeper lost of its CPU to others, window by window.
struct Losses {
    window: u64,
    lost: u64,
}

impl Losses {
    fn since(start: u64) -> Losses {
        Losses { window: start, lost: 0 }
    }

    /// Notes that the keeper ran at `before` and runs `now` (nanoseconds); whether it lost too much.
    fn are_too_many(&mut self, before: u64, now: u64) -> bool {
        if before - self.window > nanos(WINDOW) {
            *self = Losses::since(before);
        }
        let gap = now - before;
        if gap > nanos(TAKEN) {
            self.lost += gap;
        }
        self.lost > nanos(LOSS_MAX)
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen programs that read and wrote one file kept the CPUs for themselves and the threads that served
    /// them. Nothing was written to the disk for ten seconds and more, and eight of the programs waited for
    /// that.
    #[test]
    fn a_busy_queue_pauses_now_and_then() {
        let pauses = |gap: Duration| {
            let mut burst = Burst::default();
            (1..=1000).filter(|n| burst.is_pause_due(n * nanos(gap))).count()
        };
        assert_eq!(pauses(Duration::from_micros(50)), 9);
        assert_eq!(pauses(Duration::from_micros(201)), 0);
    }

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_request_now_and_then_starts_nothing() {
        let activity = Activity::new(2);
        let mut burst = Burst::default();
        for _ in 0..2 * BURST {
            thread::sleep(QUIET * 2);
            activity.note(&mut burst, 1);
            assert!(!activity.busy.load(Ordering::Relaxed));
        }
        activity.end();
    }

    #[test]
    fn a_burst_starts_the_keeper_and_quiet_ends_it() {
        let activity = Activity::new(2);
        let mut burst = Burst::default();
        wait_for(|| {
            activity.note(&mut burst, BURST as usize);
            activity.busy.load(Ordering::Relaxed)
        });
        wait_for(|| !activity.busy.load(Ordering::Relaxed));
        activity.end();
    }

    /// The keeper went for 50 ms whenever it had lost its CPU for 0.1 ms, as it does to the threads of the
    /// engine at every few files that are made: so it was hardly ever there.
    #[test]
    fn short_losses_are_borne_and_long_ones_are_not() {
        let ms = 1_000_000;
        let mut losses = Losses::since(0);
        let mut before = 0;
        for step in 1..1000u64 {
            // A twentieth of a millisecond each, and 0.3 ms for others every 5 ms.
            let now = before + if step.is_multiple_of(100) { 3 * ms / 10 } else { ms / 20 };
            assert!(!losses.are_too_many(before, now), "step {step}");
            before = now;
        }
        assert!(losses.are_too_many(before, before + 3 * ms), "a program that computes");
        let mut losses = Losses::since(before);
        let often = (0..10).any(|_| {
            let now = before + ms / 2;
            let many = losses.are_too_many(before, now);
            before = now + ms / 20;
            many
        });
        assert!(often, "half a millisecond again and again");
    }

    #[test]
    fn large_machines_have_none() {
        assert!(Activity::new(CPUS_MAX + 1).keeper.get().is_none());
        assert!(Activity::new(1).keeper.get().is_none());
    }
}
