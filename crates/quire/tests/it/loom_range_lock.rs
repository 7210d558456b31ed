//! The range lock of direct I/O under loom: conflicting ranges exclude one another, go on in the order of
//! arrival, and nobody sleeps for ever.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_range_lock --release`

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicI32, Ordering};
use loom::thread;
use quire::internals::range_lock::{RangeLock, RangeTicket};

/// Bytes of the file.
const BYTES: usize = 3;

#[derive(Default)]
struct File {
    lock: RangeLock,
    /// Users of each byte: readers count up, writers far down.
    users: [AtomicI32; BYTES],
    /// Ranges in the order in which they were granted.
    granted: Mutex<Vec<(RangeTicket, bool)>>,
}

impl File {
    /// Uses `start..end`, and gives it back as a completion does.
    fn transfer(&self, start: usize, end: usize, exclusive: bool) {
        let range = self.lock.lock(start as u64, end as u64, exclusive);
        let share = if exclusive { -100 } else { 1 };
        for users in &self.users[start..end] {
            let before = users.fetch_add(share, Ordering::Relaxed);
            assert!(if exclusive { before == 0 } else { before >= 0 }, "used by others");
        }
        let ticket = range.into_ticket();
        self.granted.lock().unwrap().push((ticket, exclusive));
        for users in &self.users[start..end] {
            users.fetch_sub(share, Ordering::Relaxed);
        }
        drop(self.lock.resume(ticket));
    }
}

fn race(transfers: &'static [(usize, usize, bool)], look: impl Fn(&File) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let file = Arc::new(File::default());
        let others: Vec<_> = transfers[1..]
            .iter()
            .map(|&(start, end, exclusive)| {
                let file = file.clone();
                thread::spawn(move || file.transfer(start, end, exclusive))
            })
            .collect();
        let (start, end, exclusive) = transfers[0];
        file.transfer(start, end, exclusive);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(file.granted.lock().unwrap().len(), transfers.len());
        look(&file);
    });
}

/// The one in the middle conflicts with both others, which do not with each other: it is woken by the last of
/// the two.
#[test]
fn a_range_waits_for_all_that_overlap_it() {
    race(&[(0, 1, true), (2, 3, true), (0, 3, true)], |_| {});
    race(&[(0, 2, false), (1, 3, false), (1, 2, true)], |_| {});
}

/// A reader that comes behind a waiting writer does not overtake it, although it could share with the reader
/// before both.
#[test]
fn conflicting_ranges_go_on_in_the_order_of_arrival() {
    race(&[(0, 2, false), (0, 2, true), (0, 2, false)], |file| {
        let granted = file.granted.lock().unwrap();
        for (at, (later, exclusive)) in granted.iter().enumerate() {
            for (earlier, was_exclusive) in &granted[..at] {
                assert!(earlier < later || !exclusive && !was_exclusive, "overtaken");
            }
        }
    });
}
