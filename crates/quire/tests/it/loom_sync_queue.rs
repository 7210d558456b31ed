//! The queue of asynchronous fsyncs under loom: lazy ones and the threads that force, withdrawal, room,
//! events, and forces for many.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_sync_queue --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use quire::internals::sync_queue::{Queued, Reached, SYNCS_MAX, SyncQueue, Task};
use quire_base::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// An fsync: its number, and whether it is lazy and withdrawn.
#[derive(Clone)]
struct Fsync {
    number: u64,
    is_lazy: bool,
    withdrawn: Arc<AtomicBool>,
}

impl Queued for Fsync {
    /// A day: a wait that only time would end is a wait for ever here, and loom says so.
    fn until(&self) -> Option<Instant> {
        self.is_lazy.then(|| Instant::now() + Duration::from_secs(86_400))
    }
    fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }
}

fn now(number: u64) -> Fsync {
    Fsync { number, is_lazy: false, withdrawn: Arc::new(AtomicBool::new(false)) }
}

fn lazy(number: u64) -> Fsync {
    Fsync { is_lazy: true, ..now(number) }
}

type Queue = SyncQueue<Fsync>;

/// Nothing has been forced.
fn nothing() -> Result<Reached> {
    Ok(Reached::default())
}

const NEED: Reached = Reached { seq: 1, mark: 0 };

/// A lazy fsync begins to wait, and another thread forces at the same time and tells: a syncer hears of it,
/// whatever the order.
#[test]
fn a_force_that_serves_is_not_missed() {
    for (needs_seq, needs_mark) in [(1, 0), (0, 1), (1, 1)] {
        model(move || {
            let queue = Arc::new(Queue::default());
            let (seq, mark) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let forcer = {
                let (queue, seq, mark) = (queue.clone(), seq.clone(), mark.clone());
                thread::spawn(move || {
                    let reached =
                        || Reached { seq: seq.load(Ordering::Acquire), mark: mark.load(Ordering::Acquire) };
                    seq.store(1, Ordering::Release);
                    if needs_mark == 1 {
                        queue.forced(reached);
                        mark.store(1, Ordering::Release);
                    }
                    queue.forced(reached);
                })
            };
            let reached = || Reached { seq: seq.load(Ordering::Acquire), mark: mark.load(Ordering::Acquire) };
            let need = Reached { seq: needs_seq, mark: needs_mark };
            queue.await_force(vec![(need, lazy(7))]);
            let task = queue.next(1, || Ok(reached()), || false).unwrap();
            assert!(matches!(task, Task::End(ended) if ended.len() == 1 && ended[0].1.is_ok()));
            assert!(reached().covers(need), "served early");
            forcer.join().unwrap();
        });
    }
}

/// Nobody will force any more: the lazy fsync ends with the error.
#[test]
fn a_failure_is_not_missed() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let failed = Arc::new(AtomicBool::new(false));
        let failing = {
            let (queue, failed) = (queue.clone(), failed.clone());
            thread::spawn(move || {
                failed.store(true, Ordering::Release);
                queue.look_again();
            })
        };
        let reached = || match failed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Shutdown, "failed")),
            false => nothing(),
        };
        queue.await_force(vec![(NEED, lazy(7))]);
        let task = queue.next(1, reached, || false).unwrap();
        assert!(matches!(task, Task::End(ended) if ended.len() == 1 && ended[0].1.is_err()));
        failing.join().unwrap();
    });
}

/// An fsync that is withdrawn while a syncer has it in hand waits for no force afterwards: it would wait for
/// ever.
#[test]
fn withdrawing_races_with_a_syncer() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let fsync = lazy(7);
        queue.ask([fsync.clone()], false).ok().unwrap();
        let syncer = {
            let queue = queue.clone();
            thread::spawn(move || {
                loop {
                    match queue.next(1, nothing, || false).unwrap() {
                        Task::Advance(fsyncs) => {
                            queue.await_force(fsyncs.into_iter().map(|fsync| (NEED, fsync)).collect());
                        }
                        Task::End(ended) => return queue.ended(ended.len()),
                        Task::Force(_) | Task::Besides => unreachable!(),
                    }
                }
            })
        };
        fsync.withdrawn.store(true, Ordering::Relaxed);
        queue.withdrawn(1);
        syncer.join().unwrap();
        assert_eq!(queue.counts(), Default::default());
    });
}

/// A thread that waits for room is woken.
#[test]
fn a_thread_in_line_is_woken() {
    model(|| {
        let queue = Arc::new(Queue::default());
        queue.ask((0..SYNCS_MAX as u64).map(now).collect::<Vec<_>>(), true).ok().unwrap();
        let waiting = {
            let queue = queue.clone();
            thread::spawn(move || queue.ask([now(9)], true).ok().unwrap())
        };
        let task = queue.next(usize::MAX, nothing, || false).unwrap();
        assert!(matches!(task, Task::Advance(fsyncs) if fsyncs.len() == SYNCS_MAX));
        queue.ended(1);
        waiting.join().unwrap();
        let task = queue.next(usize::MAX, nothing, || false).unwrap();
        assert!(matches!(task, Task::Advance(fsyncs) if fsyncs[0].number == 9));
    });
}

/// Two syncers serve fsyncs until the end. One forces at a time; what comes meanwhile is begun and forced
/// after that; each ends once, and both syncers leave.
#[test]
fn two_syncers_serve_everything() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let (forcing, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let syncer = || {
            let (queue, forcing, count) = (queue.clone(), forcing.clone(), ended.clone());
            move || {
                while let Some(task) = queue.next(1, nothing, || false) {
                    match task {
                        Task::Advance(fsyncs) => {
                            queue.await_force(fsyncs.into_iter().map(|fsync| (NEED, fsync)).collect());
                        }
                        Task::Force(need) => {
                            assert_eq!(forcing.fetch_add(1, Ordering::AcqRel), 0, "two force at a time");
                            forcing.fetch_sub(1, Ordering::AcqRel);
                            let ended = queue.end_force(&Ok(need)).len();
                            count.fetch_add(ended, Ordering::AcqRel);
                            queue.ended(ended);
                        }
                        Task::End(_) | Task::Besides => unreachable!(),
                    }
                }
            }
        };
        let other = thread::spawn(syncer());
        queue.ask([now(1)], false).ok().unwrap();
        queue.ask([now(2)], false).ok().unwrap();
        queue.stop();
        syncer()();
        other.join().unwrap();
        assert_eq!(ended.load(Ordering::Acquire), 2);
        assert_eq!(queue.counts(), Default::default());
    });
}

/// While a force is under way and a second one is wanted nothing is begun. A syncer that sleeps so is woken
/// at the end of the force.
#[test]
fn what_gathers_goes_on_after_the_force() {
    model(|| {
        let queue = Arc::new(Queue::default());
        queue.await_force(vec![(NEED, now(1))]);
        assert!(matches!(queue.next(1, nothing, || false), Some(Task::Force(_))));
        let further = Reached { seq: 2, mark: 0 };
        queue.await_force(vec![(further, now(2))]);
        queue.ask([now(3)], false).ok().unwrap();
        assert!(matches!(queue.next(1, nothing, || true), Some(Task::Besides)));
        let forcing = {
            let queue = queue.clone();
            thread::spawn(move || assert_eq!(queue.end_force(&Ok(NEED)).len(), 1))
        };
        assert!(matches!(queue.next(1, nothing, || false), Some(Task::Force(to)) if to == further));
        forcing.join().unwrap();
        assert!(matches!(queue.next(1, nothing, || false), Some(Task::Advance(_))));
    });
}

/// An fsync waits for an event, and the volume ends meanwhile: a syncer stays until the event has come.
#[test]
fn the_end_waits_for_what_is_armed() {
    model(|| {
        let queue = Arc::new(Queue::default());
        queue.ask([now(7)], true).ok().unwrap();
        assert!(matches!(queue.next(1, nothing, || false), Some(Task::Advance(_))));
        queue.arm();
        let event = {
            let queue = queue.clone();
            thread::spawn(move || queue.resume(now(7)))
        };
        let stopping = {
            let queue = queue.clone();
            thread::spawn(move || queue.stop())
        };
        let mut resumed = 0;
        while let Some(task) = queue.next(1, nothing, || false) {
            let Task::Advance(fsyncs) = task else { unreachable!() };
            resumed += fsyncs.len();
            queue.ended(fsyncs.len());
        }
        assert_eq!(resumed, 1);
        event.join().unwrap();
        stopping.join().unwrap();
    });
}
