//! The scheduler itself: what it excludes, wakes, finds and repeats.

#![cfg(all(feature = "simulation", not(any(loom, shuttle))))]

use quire_base::simulation::{self, Failure, Options, run};
use quire_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_base::sync::time::Instant;
use quire_base::sync::{Arc, Condvar, Mutex, OnceLock, RwLock, thread};
use std::collections::BTreeSet;
use std::time::Duration;

fn options(seed: u64) -> Options {
    Options { seed, step_limit: 100_000 }
}

#[test]
fn a_mutex_excludes_and_without_one_updates_get_lost() {
    let mut lost = 0;
    for seed in 0..100 {
        let (with, without) = run(&options(seed), || {
            let counter = Mutex::new(0);
            let racy = AtomicU32::new(0);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..5 {
                            let mut guard = counter.lock();
                            let seen = *guard;
                            simulation::point();
                            *guard = seen + 1;
                            drop(guard);
                            let seen = racy.load(Ordering::Relaxed);
                            simulation::point();
                            racy.store(seen + 1, Ordering::Relaxed);
                        }
                    });
                }
            });
            (counter.into_inner(), racy.into_inner())
        })
        .unwrap();
        assert_eq!(with, 15);
        lost += u32::from(without < 15);
    }
    assert!(lost > 20, "only {lost} of 100 schedules lost an update");
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut shared = false;
    for seed in 0..50 {
        shared |= run(&options(seed), || {
            let lock = RwLock::new(0);
            let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
            thread::scope(|scope| {
                for number in 0..4 {
                    let (lock, inside, most) = (&lock, &inside, &most);
                    scope.spawn(move || {
                        for _ in 0..4 {
                            if number == 0 {
                                let mut value = lock.write();
                                assert_eq!(inside.load(Ordering::Relaxed), 0);
                                simulation::point();
                                assert_eq!(inside.load(Ordering::Relaxed), 0);
                                *value += 1;
                            } else {
                                let value = lock.read();
                                let now = inside.fetch_add(1, Ordering::Relaxed) + 1;
                                most.fetch_max(now, Ordering::Relaxed);
                                let seen = *value;
                                simulation::point();
                                assert_eq!(seen, *value);
                                inside.fetch_sub(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            assert_eq!(*lock.read(), 4);
            most.into_inner() > 1
        })
        .unwrap();
    }
    assert!(shared);
}

#[test]
fn a_queue_between_threads_loses_nothing() {
    for seed in 0..100 {
        let sum = run(&options(seed), || {
            let queue = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        let mut sum = 0;
                        loop {
                            let mut items = queue.0.lock();
                            while items.is_empty() {
                                queue.1.wait(&mut items);
                            }
                            match items.pop().unwrap() {
                                0 => return sum,
                                item => sum += item,
                            }
                        }
                    })
                })
                .collect();
            for item in (1..=20).chain([0, 0]) {
                // The zeros go underneath, so that what came before is taken first.
                let mut items = queue.0.lock();
                if item == 0 {
                    items.insert(0, 0)
                } else {
                    items.push(item)
                }
                drop(items);
                queue.1.notify_one();
            }
            takers.into_iter().map(|taker| taker.join().unwrap()).sum::<u32>()
        });
        assert_eq!(sum, Ok(210));
    }
}

#[test]
fn time_passes_when_nobody_can_run_and_costs_none() {
    let real = std::time::Instant::now();
    let passed = run(&options(1), || {
        let start = Instant::now();
        let (lock, never) = (Mutex::new(()), Condvar::new());
        let mut guard = lock.lock();
        assert!(never.wait_for(&mut guard, Duration::from_secs(3600)).timed_out());
        thread::sleep(Duration::from_secs(60));
        thread::park_timeout(Duration::from_secs(1));
        start.elapsed()
    });
    assert_eq!(passed, Ok(Duration::from_secs(3661)));
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_notification_comes_before_the_time_is_out() {
    for seed in 0..50 {
        run(&options(seed), || {
            let shared = Arc::new((Mutex::new(false), Condvar::new()));
            let other = shared.clone();
            let handle = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                *other.0.lock() = true;
                other.1.notify_all();
            });
            let mut told = shared.0.lock();
            while !*told {
                assert!(!shared.1.wait_for(&mut told, Duration::from_secs(9)).timed_out());
            }
            drop(told);
            handle.join().unwrap();
            assert_eq!(simulation::now(), Duration::from_millis(5));
        })
        .unwrap();
    }
}

#[test]
fn polling_for_what_a_timer_brings_ends() {
    for seed in 0..20 {
        run(&options(seed), || {
            let done = Arc::new(AtomicU32::new(0));
            let other = done.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(1));
                other.store(1, Ordering::Release);
            });
            while done.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
        })
        .unwrap();
    }
}

/// Two locks taken in both orders, beside a thread that wakes every 10 ms.
fn two_locks(seed: u64) -> Result<(), Failure> {
    run(&options(seed), || {
        let locks = Arc::new((Mutex::new(()), Mutex::new(())));
        thread::Builder::new()
            .name("ticker".into())
            .spawn(|| {
                loop {
                    thread::sleep(Duration::from_millis(10));
                }
            })
            .unwrap();
        let other = locks.clone();
        let handle = thread::Builder::new()
            .name("backwards".into())
            .spawn(move || {
                let _second = other.1.lock();
                let _first = other.0.lock();
            })
            .unwrap();
        let first = locks.0.lock();
        let second = locks.1.lock();
        drop((first, second));
        handle.join().unwrap();
    })
}

#[test]
fn a_deadlock_is_reported_with_names_and_places() {
    let mut found = 0;
    for seed in 0..60 {
        match two_locks(seed) {
            Ok(()) => {}
            Err(Failure::Deadlock(report)) => {
                found += 1;
                assert!(report.contains("'backwards' waits for a Mutex (held by 0 since"), "{report}");
                assert!(report.contains("simulation.rs:"), "{report}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!((5..60).contains(&found), "{found} of 60");
}

#[test]
fn a_livelock_is_reported() {
    let outcome = run(&Options { seed: 3, step_limit: 5_000 }, || {
        let flag = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while flag.load(Ordering::Acquire) == 0 {
                    quire_base::sync::spin_loop();
                }
            });
        });
    });
    let Err(Failure::StepLimit(report)) = outcome else { panic!("{outcome:?}") };
    assert!(report.contains("spin at"), "{report}");
}

/// A workload with every kind of operation; what it returns depends on the schedule.
fn mixed(seed: u64) -> (u64, u64, Duration, Vec<u32>) {
    run(&options(seed), || {
        let order = Mutex::new(Vec::new());
        let (table, cell) = (RwLock::new(0), OnceLock::new());
        let wake = Condvar::new();
        thread::scope(|scope| {
            for number in 0..4 {
                let (order, table, cell, wake) = (&order, &table, &cell, &wake);
                scope.spawn(move || {
                    for round in 0..6 {
                        let mut order = order.lock();
                        order.push(number * 10 + round);
                        if round % 2 == 0 {
                            wake.wait_for(&mut order, Duration::from_millis(u64::from(number)));
                        }
                        drop(order);
                        wake.notify_one();
                        *table.write() += *cell.get_or_init(|| {
                            thread::yield_now();
                            number
                        });
                        simulation::point();
                        let _seen = *table.read();
                    }
                });
            }
        });
        (simulation::fingerprint(), simulation::steps(), simulation::now(), order.into_inner())
    })
    .unwrap()
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let first = mixed(seed);
        assert_eq!(first, mixed(seed), "seed {seed}");
        seen.insert(first.3);
    }
    assert!(seen.len() > 90, "{} schedules from 100 seeds", seen.len());
}

#[test]
fn a_panic_fails_the_run_with_name_and_place() {
    let outcome = run(&options(0), || {
        let handle = thread::Builder::new().name("unlucky".into()).spawn(|| panic!("so be it")).unwrap();
        let _ = handle.join();
        thread::sleep(Duration::from_secs(1));
    });
    let Err(Failure::Panicked(text)) = outcome else { panic!("{outcome:?}") };
    assert!(
        text.contains("'unlucky'") && text.contains("so be it") && text.contains("simulation.rs:"),
        "{text}"
    );
    let outcome: Result<(), _> = run(&options(0), || panic!("main"));
    assert!(matches!(outcome, Err(Failure::Panicked(text)) if text.contains("main")));
}

#[test]
fn a_run_inside_a_run_is_refused() {
    let outcome = run(&options(0), || run(&options(1), || ()));
    assert!(matches!(outcome, Err(Failure::Panicked(text)) if text.contains("inside another")));
}

/// Ends by joining a thread that must still be able to answer.
struct Service {
    shared: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<thread::JoinHandle<()>>,
    closed: Arc<AtomicU64>,
}

impl Service {
    fn start(closed: &Arc<AtomicU64>) -> Service {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let mut stop = other.0.lock();
            while !*stop {
                other.1.wait(&mut stop);
            }
        });
        Service { shared, thread: Some(thread), closed: closed.clone() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        *self.shared.0.lock() = true;
        self.shared.1.notify_all();
        self.thread.take().unwrap().join().unwrap();
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn destructors_that_need_other_threads_still_work_when_a_run_has_failed() {
    for seed in 0..30 {
        let closed = Arc::new(AtomicU64::new(0));
        let outcome = run(&options(seed), || {
            let _service = Service::start(&closed);
            let (lock, never) = (Mutex::new(()), Condvar::new());
            thread::scope(|scope| {
                scope.spawn(|| never.wait(&mut lock.lock()));
                scope.spawn(|| never.wait(&mut lock.lock()));
            });
        });
        assert!(matches!(outcome, Err(Failure::Deadlock(_))), "{outcome:?}");
        assert_eq!(closed.load(Ordering::Relaxed), 1);
    }
}

/// Its destructor waits for what never comes.
struct Stubborn(Mutex<()>, Condvar);

impl Drop for Stubborn {
    fn drop(&mut self) {
        let mut guard = self.0.lock();
        loop {
            self.1.wait(&mut guard);
        }
    }
}

#[test]
fn threads_that_cannot_be_ended_are_left_behind() {
    for seed in 0..10 {
        let outcome = run(&options(seed), || {
            let _stubborn = Stubborn(Mutex::new(()), Condvar::new());
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _another = Stubborn(Mutex::new(()), Condvar::new());
                    panic!("first");
                });
            });
        });
        // The panicking thread waits in its destructor: the run ends by the deadlock.
        assert!(matches!(outcome, Err(Failure::Deadlock(_))), "{outcome:?}");
    }
}

#[test]
fn threads_left_when_the_body_returns_are_ended() {
    let value = run(&options(0), || {
        thread::spawn(|| {
            loop {
                thread::sleep(Duration::from_secs(1));
            }
        });
        thread::spawn(thread::park);
        7
    });
    assert_eq!(value, Ok(7));
}

#[test]
fn unparks_are_not_lost() {
    for seed in 0..50 {
        run(&options(seed), || {
            let handle = thread::spawn(thread::park);
            handle.thread().unpark();
            handle.join().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn ordinary_threads_use_the_real_locks() {
    assert!(!simulation::is_active());
    let (lock, wake) = (Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            *lock.lock() += 1;
            wake.notify_one();
        });
        let mut value = lock.lock();
        while *value == 0 {
            wake.wait(&mut value);
        }
    });
    let start = Instant::now();
    thread::sleep(Duration::from_millis(2));
    assert!(start.elapsed() >= Duration::from_millis(2));
}

/// `cargo test --release -p quire-base --features simulation -- --ignored --nocapture speed`
#[test]
#[ignore = "a measurement"]
fn speed() {
    for threads in [1, 4] {
        let start = std::time::Instant::now();
        let steps = run(&Options { seed: 0, step_limit: u64::MAX }, || {
            let lock = Mutex::new(0);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| (0..100_000).for_each(|_| *lock.lock() += 1));
                }
            });
            simulation::steps()
        });
        println!("{threads} threads: {:.0} steps/s", steps.unwrap() as f64 / start.elapsed().as_secs_f64());
    }
}
