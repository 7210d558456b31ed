//! Threads that start together, run until a time or until they are done, and stop together.

use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Trouble, failed};
use crate::progress::Progress;
use crate::sample::Latency;
use quire_base::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

/// How often the main thread looks at the clock and at Ctrl-C.
const TICK: Duration = Duration::from_millis(20);

/// What surrounds a run.
pub struct Surroundings<'a> {
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// What is shown meanwhile.
    pub progress: &'a Progress,
}

/// What a thread sees of the others.
pub struct Stage {
    stop: Arc<AtomicBool>,
    /// When that was.
    stopped: OnceLock<Instant>,
    barrier: Barrier,
    done: AtomicU64,
}

impl Stage {
    /// Whether to stop. Cheap enough for every operation.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks all to stop: for a thread whose end is everybody's.
    pub fn end(&self) {
        self.stopped.get_or_init(Instant::now);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Adds to what the progress line shows.
    pub fn advance(&self, operations: u64) {
        self.done.fetch_add(operations, Ordering::Relaxed);
    }
}

/// What operations took, and how many ended before the stop: of one that ends after it the latency is kept,
/// as it may be the longest, but it is none of those that the measured time had.
#[derive(Default)]
pub struct Timed {
    /// Of all.
    pub latency: Latency,
    /// How many ended in time.
    pub operations: u64,
}

impl Timed {
    /// Adds an operation that has just ended.
    pub fn record(&mut self, time: Duration, stage: &Stage) {
        self.latency.record(time);
        self.operations += u64::from(!stage.is_over());
    }
}

/// A count of what ends before the stop, for callbacks, which outlive the borrow of a stage.
#[derive(Clone, Default)]
pub struct InTime {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl InTime {
    /// Nothing yet.
    pub fn of(stage: &Stage) -> InTime {
        InTime { stop: stage.stop.clone(), count: Arc::default() }
    }

    /// Something has ended.
    pub fn add(&self) {
        if !self.stop.load(Ordering::Relaxed) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How much.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// When a stage ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After a time.
    Elapsed(Duration),
    /// When all threads are done; the number is what the progress line counts to.
    Done(u64),
}

/// One thread's work: called with the stage after all threads have come to the start.
pub type Part<'a, T> = Box<dyn FnOnce(&Stage) -> Result<T> + Send + 'a>;

/// Runs the parts, one thread each; gives what they returned and the time from the common start to the end
/// (the moment of the stop, or the moment the last thread was done). A part that fails stops all.
pub fn drive<'a, T: Send>(
    surroundings: &Surroundings<'_>,
    until: Until,
    parts: Vec<Part<'a, T>>,
) -> Outcome<(Vec<T>, Duration)> {
    let count = parts.len();
    let stage = Stage {
        stop: Arc::default(),
        stopped: OnceLock::new(),
        barrier: Barrier::new(count + 1),
        done: AtomicU64::new(0),
    };
    let running = AtomicUsize::new(count);
    let stage = &stage;
    let running = &running;
    let (outcomes, elapsed) = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|part| {
                scope.spawn(move || {
                    let leave = Leave(running);
                    stage.barrier.wait();
                    let began = Instant::now();
                    let outcome = part(stage);
                    if outcome.is_err() {
                        stage.end();
                    }
                    let ended = Instant::now();
                    drop(leave);
                    (outcome, began, ended)
                })
            })
            .collect();
        stage.barrier.wait();
        let start = Instant::now();
        watch(surroundings, until, stage, running, start);
        stage.end();
        let stopped = *stage.stopped.get_or_init(Instant::now);
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let end = match until {
            Until::Elapsed(_) => stopped,
            Until::Done(_) => joined.iter().flatten().map(|&(_, _, ended)| ended).max().unwrap_or(stopped),
        };
        // The thread that watches may come late: on a busy machine the others can be done before it looks at
        // the clock.
        let start = joined.iter().flatten().map(|&(_, began, _)| began).min().unwrap_or(start).min(start);
        (joined, end - start)
    });
    surroundings.interrupt.check()?;
    let mut results = Vec::with_capacity(count);
    for outcome in outcomes {
        match outcome {
            Ok((outcome, _, _)) => results.push(outcome.map_err(Trouble::Failed)?),
            Err(_) => return Err(failed("a thread of the driver panicked")),
        }
    }
    Ok((results, elapsed))
}

/// Counts a thread out, also when it panics.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn watch(
    surroundings: &Surroundings<'_>,
    until: Until,
    stage: &Stage,
    running: &AtomicUsize,
    start: Instant,
) {
    loop {
        let elapsed = start.elapsed();
        if running.load(Ordering::SeqCst) == 0 || stage.is_over() || surroundings.interrupt.is_raised() {
            return;
        }
        let pause = match until {
            Until::Elapsed(limit) if elapsed >= limit => return,
            Until::Elapsed(limit) => {
                surroundings.progress.at(elapsed.as_millis() as u64, limit.as_millis() as u64);
                TICK.min(limit - elapsed)
            }
            Until::Done(expected) => {
                surroundings.progress.at(stage.done.load(Ordering::Relaxed), expected);
                TICK
            }
        };
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_base::Error;

    fn surroundings<'a>(interrupt: &'a Interrupt, progress: &'a Progress) -> Surroundings<'a> {
        Surroundings { interrupt, progress }
    }

    #[test]
    fn a_time_limit_stops_all() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let spin = || -> Part<'static, u64> {
            Box::new(|stage| {
                let mut n = 0;
                while !stage.is_over() {
                    n += 1;
                    std::thread::yield_now();
                }
                Ok(n)
            })
        };
        let limit = Duration::from_millis(30);
        let (counts, elapsed) =
            drive(&surroundings(&interrupt, &progress), Until::Elapsed(limit), vec![spin(), spin()]).unwrap();
        assert!(counts.iter().all(|&n| n > 0));
        assert!(elapsed >= limit);
    }

    /// The watching thread looks every 20 ms. That time was taken for the stop, though a thread had ended the
    /// stage long before, and rates came out too low.
    #[test]
    fn a_stage_that_a_thread_ends_is_as_long_as_that_took() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let watcher_is_asleep = TICK / 4;
        let ends: Part<'_, Instant> = Box::new(move |stage| {
            std::thread::sleep(watcher_is_asleep);
            stage.end();
            Ok(Instant::now())
        });
        let begun = Instant::now();
        let hour = Until::Elapsed(Duration::from_secs(3600));
        let (ended, elapsed) = drive(&surroundings(&interrupt, &progress), hour, vec![ends]).unwrap();
        assert!(elapsed >= watcher_is_asleep && elapsed <= ended[0] - begun, "{elapsed:?}");
    }

    #[test]
    fn what_ends_after_the_stop_is_timed_and_not_counted() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let part: Part<'_, (Timed, u64)> = Box::new(|stage| {
            let (mut timed, in_time) = (Timed::default(), InTime::of(stage));
            for time in [1, 2] {
                timed.record(Duration::from_millis(time), stage);
                in_time.add();
                stage.end();
            }
            Ok((timed, in_time.count()))
        });
        let hour = Until::Elapsed(Duration::from_secs(3600));
        let (did, _) = drive(&surroundings(&interrupt, &progress), hour, vec![part]).unwrap();
        let (timed, in_time) = &did[0];
        assert_eq!((timed.latency.count(), timed.operations, *in_time), (2, 1, 1));
    }

    #[test]
    fn a_failure_a_panic_and_an_interrupt_end_the_stage() {
        let (interrupt, progress) = (Interrupt::none(), Progress::hidden());
        let wait: fn(&Stage) -> Result<()> = |stage| {
            while !stage.is_over() {
                std::thread::yield_now();
            }
            Ok(())
        };
        let hour = Until::Elapsed(Duration::from_secs(3600));
        let bad = vec![Box::new(wait) as Part<'_, ()>, Box::new(|_: &Stage| Err(Error::invalid("no")))];
        assert!(matches!(drive(&surroundings(&interrupt, &progress), hour, bad), Err(Trouble::Failed(_))));
        let panics: Vec<Part<'_, ()>> = vec![Box::new(|_: &Stage| panic!("for the test"))];
        assert!(matches!(drive(&surroundings(&interrupt, &progress), hour, panics), Err(Trouble::Failed(_))));
        interrupt.raise();
        let waits = vec![Box::new(wait) as Part<'_, ()>];
        assert!(matches!(
            drive(&surroundings(&interrupt, &progress), hour, waits),
            Err(Trouble::Interrupted)
        ));
    }
}
