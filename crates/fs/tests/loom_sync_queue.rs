//! The queue of asynchronous fsyncs under loom: lazy ones and those who force, withdrawal, room for one.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire --test loom_sync_queue --release`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use quire::file::sync_queue::{Admitted, Reached, SYNCS_MAX, SyncQueue};
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

type Queue = SyncQueue<u64, u64>;

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
                assert!(next.due.is_empty());
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
            while queue.next(1, reached, || false).unwrap().due != [7] {}
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
