//! The queue of asynchronous fsyncs under loom: lazy ones and those who force, withdrawal, room for one, batches, events, and
//! forces for many.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_sync_queue --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use quire::file::sync_queue::{Admitted, BATCHES_MAX, Reached, SYNCS_MAX, SyncQueue, Written};
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

type Queue = SyncQueue<u64, u64, u64>;

fn admit(queue: &Queue, what: u64) -> Option<u64> {
    match queue.admit(&mut vec![what]) {
        Admitted::Some(tickets) if !tickets.is_empty() => Some(tickets.start),
        _ => None,
    }
}

/// A day: a wait that only time would end is a wait for ever here, and loom says so.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

/// Who puts an fsync down to wait, and who forces at the same time and says so: a syncer hears of it, whatever the order.
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
            let mut served = queue.await_force(0, need, never(), 7, || Some(reached()), |_| false).is_some();
            while !served {
                let next = queue.next(1, || Some(reached()), || false).unwrap();
                assert!(next.written.is_empty());
                served = next.served == [7];
                assert!(!served || reached().covers(need), "served early");
            }
            forcer.join().unwrap();
        });
    }
}

/// Nobody will force any more: it is taken as due, for the syncer to find out why.
#[test]
fn a_failure_is_not_missed() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let failed = Arc::new(AtomicU64::new(0));
        let failing = {
            let (queue, failed) = (queue.clone(), failed.clone());
            thread::spawn(move || {
                failed.store(1, Ordering::Release);
                queue.look_again();
            })
        };
        let need = Reached { seq: 1, mark: 0 };
        let reached = || (failed.load(Ordering::Acquire) == 0).then(Reached::default);
        if queue.await_force(0, need, never(), 7, reached, |_| false).is_none() {
            while queue.next(1, reached, || false).unwrap().written.is_empty() {}
        }
        failing.join().unwrap();
    });
}

/// An fsync that is withdrawn ends once: with whoever withdraws it, or with the syncer. None is left to wait for ever: one
/// that was withdrawn while a syncer had it in hand was put down to wait afterwards.
#[test]
fn withdrawing_races_with_a_syncer() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let withdrawn = Arc::new(AtomicUsize::new(0));
        let ticket = admit(&queue, 7).unwrap();
        let syncer = {
            let (queue, withdrawn) = (queue.clone(), withdrawn.clone());
            thread::spawn(move || {
                let mut ended = 0;
                let next = queue.next_now(1, || Some(Reached::default()));
                for (ticket, what) in next.queued {
                    let need = Reached { seq: 1, mark: 0 };
                    let is_withdrawn = |_: &u64| withdrawn.load(Ordering::Acquire) == 1;
                    let reached = || Some(Reached::default());
                    if queue.await_force(ticket, need, never(), what, reached, is_withdrawn).is_some() {
                        ended += 1;
                        queue.ended(1);
                    }
                }
                ended
            })
        };
        withdrawn.store(1, Ordering::Release);
        let (queued, waiting) = queue.withdraw(ticket..ticket + 1);
        let ended = syncer.join().unwrap();
        assert_eq!(queued.len() + waiting.len() + ended, 1);
        assert_eq!(queue.counts(), Default::default());
    });
}

/// A waker that counts.
fn waker(count: &'static AtomicUsize) -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(|data| RawWaker::new(data, &TABLE), wake, wake, |_| {});
    fn wake(data: *const ()) {
        // SAFETY: the counter lives as long as the program.
        unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the table's functions need no more than the counter's address.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(count).cast(), &TABLE)) }
}

/// The room that one leaves is told to the first in line; if that is dropped at the same moment, to the second.
#[test]
fn news_of_room_is_passed_on() {
    assert_eq!(SYNCS_MAX, 1);
    model(|| {
        let queue = Arc::new(Queue::default());
        // As long as the process; a model is small.
        let wakes: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let ignored: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        admit(&queue, 1).unwrap();
        let first = queue.wait_for_room(None, &waker(ignored)).unwrap();
        let second = queue.wait_for_room(None, &waker(wakes)).unwrap();
        let dropping = {
            let queue = queue.clone();
            thread::spawn(move || queue.leave_line(first))
        };
        let next = queue.next(1, || Some(Reached::default()), || false).unwrap();
        queue.ended(next.queued.len());
        dropping.join().unwrap();
        assert_eq!(wakes.load(Ordering::Relaxed), 1, "the second in line sleeps for ever");
        assert!(queue.wait_for_room(Some(second), &waker(wakes)).is_none());
        assert!(admit(&queue, 2).is_some());
    });
}

/// Threads wait for room, too.
#[test]
fn a_thread_in_line_is_woken() {
    model(|| {
        let queue = Arc::new(Queue::default());
        admit(&queue, 1).unwrap();
        let waiting = {
            let queue = queue.clone();
            thread::spawn(move || queue.admit_waiting(2, true).unwrap())
        };
        let next = queue.next(1, || Some(Reached::default()), || false).unwrap();
        assert_eq!(next.queued.len(), 1);
        queue.ended(1);
        waiting.join().unwrap();
        let next = queue.next(1, || Some(Reached::default()), || false).unwrap();
        assert_eq!(next.queued[0].1, 2);
        queue.ended(1);
    });
}

/// So many batches have begun that a syncer sleeps although an fsync is queued. The end of one wakes it.
#[test]
fn the_end_of_a_batch_lets_the_next_begin() {
    model(|| {
        let queue = Arc::new(Queue::default());
        for number in 0..BATCHES_MAX as u64 {
            // Of threads that must not wait: there is room for one.
            queue.admit_waiting(number, false).unwrap();
            assert!(queue.next_now(1, || Some(Reached::default())).is_batch());
        }
        queue.admit_waiting(7, false).unwrap();
        assert!(!queue.next_now(1, || Some(Reached::default())).is_batch());
        let ending = {
            let queue = queue.clone();
            thread::spawn(move || queue.end_batch())
        };
        while queue.next(1, || Some(Reached::default()), || false).unwrap().queued.is_empty() {}
        ending.join().unwrap();
    });
}

/// Two syncers have something to be forced. Each is forced once, by whoever forces then, and no two force at a time.
#[test]
fn one_syncer_forces_for_all() {
    model(|| {
        let queue = Arc::new(Queue::default());
        let (forcing, forced) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let syncer = |what: u64| {
            let (queue, forcing, forced) = (queue.clone(), forcing.clone(), forced.clone());
            move || {
                let force = |written: Vec<Written<u64>>| {
                    if !written.is_empty() {
                        assert_eq!(forcing.fetch_add(1, Ordering::AcqRel), 0, "two force at a time");
                        forced.fetch_add(written.len(), Ordering::AcqRel);
                        forcing.fetch_sub(1, Ordering::AcqRel);
                        queue.end_force();
                    }
                };
                let need = Reached { seq: what, mark: 0 };
                force(queue.join_force(vec![Written { need, is_due: false, what }]));
                // What came while this one forced is taken by one of the two, the last time they look.
                force(queue.next_now(1, || Some(Reached::default())).written);
            }
        };
        let other = thread::spawn(syncer(1));
        syncer(2)();
        other.join().unwrap();
        assert_eq!(forced.load(Ordering::Acquire), 2);
    });
}

/// An fsync waits for an event, and the volume ends meanwhile: a syncer stays until the event has come.
#[test]
fn the_end_waits_for_what_is_armed() {
    model(|| {
        let queue = Arc::new(Queue::default());
        queue.admit_waiting(7, true).unwrap();
        assert_eq!(queue.next_now(1, || Some(Reached::default())).queued.len(), 1);
        queue.arm();
        queue.end_batch();
        let event = {
            let queue = queue.clone();
            thread::spawn(move || queue.resume(7))
        };
        let stopping = {
            let queue = queue.clone();
            thread::spawn(move || queue.stop())
        };
        let mut resumed = 0;
        while let Some(next) = queue.next(1, || Some(Reached::default()), || false) {
            if next.is_batch() {
                resumed += next.resumed.len();
                queue.ended(next.resumed.len());
                queue.end_batch();
            }
        }
        assert_eq!(resumed, 1);
        event.join().unwrap();
        stopping.join().unwrap();
    });
}
