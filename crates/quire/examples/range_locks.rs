//! What the range lock of direct I/O costs while other requests are under way.
//!
//! `cargo run --release -p quire-fs --example range_locks -- [MILLISECONDS]`
//!
//! *Apart*: one thread, then two, lock and unlock ranges that nobody else uses, while a number of disjoint
//! ranges are held, as by asynchronous requests under way. *Waiting*: besides, threads in pairs take turns on
//! one range for each pair. Figures are nanoseconds from call to call, for each thread.

use quire::internals::range_lock::RangeLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LENGTH: u64 = 4096;
/// A figure is the least of so many: other programs run as well.
const SLICES: u64 = 20;

/// Locks and unlocks range number `at` until `over`.
fn turns(lock: &RangeLock, at: u64, over: &AtomicBool, counted: &AtomicU64) {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        drop(lock.lock(at * LENGTH, (at + 1) * LENGTH, true));
        count += 1;
    }
    counted.fetch_add(count, Ordering::Relaxed);
}

/// Nanoseconds of a turn of each of `threads`, beside `held` ranges and `pairs` of threads that wait for one
/// another.
fn measure(held: u64, threads: u64, pairs: u64, time: Duration) -> f64 {
    let lock = RangeLock::new();
    let tickets: Vec<_> =
        (0..held).map(|at| lock.lock(2 * at * LENGTH, (2 * at + 1) * LENGTH, true).into_ticket()).collect();
    let (over, counted, beside) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let free = 2 * held;
    std::thread::scope(|scope| {
        for at in 0..threads {
            let (lock, over, counted) = (&lock, &over, &counted);
            scope.spawn(move || turns(lock, free + at, over, counted));
        }
        for at in 0..2 * pairs {
            let (lock, over, beside) = (&lock, &over, &beside);
            scope.spawn(move || turns(lock, free + threads + at / 2, over, beside));
        }
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
    });
    tickets.into_iter().for_each(|ticket| drop(lock.resume(ticket)));
    let all = if threads > 0 { (&counted, threads) } else { (&beside, 2 * pairs) };
    time.as_nanos() as f64 * all.1 as f64 / all.0.load(Ordering::Relaxed) as f64
}

fn main() {
    let millis = std::env::args().nth(1).map_or(500, |text| text.parse().expect("a number of milliseconds"));
    let time = Duration::from_millis(millis / SLICES);
    println!("{:>6} {:>12} {:>12} {:>12} {:>12}", "held", "1 apart", "2 apart", "4 waiting", "16 waiting");
    for held in [0, 64, 1024] {
        let turn = |threads, pairs| {
            (0..SLICES).map(|_| measure(held, threads, pairs, time)).fold(f64::INFINITY, f64::min)
        };
        println!(
            "{held:>6} {:>12.0} {:>12.0} {:>12.0} {:>12.0}",
            turn(1, 0),
            turn(2, 0),
            turn(0, 2),
            turn(0, 8)
        );
    }
}
