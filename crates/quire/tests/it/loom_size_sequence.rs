//! Size and exclusive sequence under loom: every interleaving of an operation that moves the size in steps,
//! or the contents piece by piece, with those who look.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_size_sequence --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quire::internals::size_sequence::{OddSequence, SizeSequence};
use quire_cache::park::Parking;
use quire_cache::segment::SegmentLock;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A write of two pieces moves the size twice, a truncate behind it once more: callers see none of the steps,
/// and never go back.
#[test]
fn the_settled_size_moves_from_operation_to_operation() {
    model(|| {
        let size_sequence = Arc::new(SizeSequence::new(1));
        let writer = {
            let size_sequence = size_sequence.clone();
            thread::spawn(move || {
                {
                    let _odd = OddSequence::new(&size_sequence);
                    size_sequence.raise_size(2);
                    size_sequence.raise_size(3);
                }
                let _odd = OddSequence::new(&size_sequence);
                size_sequence.set_size(0);
            })
        };
        let order = [1, 3, 0];
        let place = |size: u64| order.iter().position(|known| *known == size).expect("no step in between");
        let first = place(size_sequence.settled_size());
        let second = place(size_sequence.settled_size());
        assert!(first <= second, "the size went back");
        writer.join().unwrap();
        assert_eq!(size_sequence.settled_size(), 0);
    });
}

/// The size that an operation ends with is told before its steps are over, and from then on.
#[test]
fn a_settled_size_stays() {
    model(|| {
        let size_sequence = Arc::new(SizeSequence::new(4));
        let writer = {
            let size_sequence = size_sequence.clone();
            thread::spawn(move || {
                let _odd = OddSequence::new(&size_sequence);
                size_sequence.settle(1);
                size_sequence.set_size(1);
            })
        };
        let (first, second) = (size_sequence.settled_size(), size_sequence.settled_size());
        assert!(matches!((first, second), (4, 4) | (4, 1) | (1, 1)), "{first}, then {second}");
        writer.join().unwrap();
        assert_eq!(size_sequence.settled_size(), 1);
    });
}

/// Extending writes raise the size without an exclusive operation.
#[test]
fn sizes_raised_by_two_writers_are_both_there() {
    model(|| {
        let size_sequence = Arc::new(SizeSequence::new(0));
        let other = size_sequence.clone();
        let writer = thread::spawn(move || other.raise_size(5));
        size_sequence.raise_size(3);
        let size = size_sequence.settled_size();
        assert!(size == 3 || size == 5);
        writer.join().unwrap();
        assert_eq!(size_sequence.settled_size(), 5);
    });
}

struct File {
    size_sequence: SizeSequence,
    parking: Parking,
    segments: [SegmentLock; 2],
    data: [AtomicU64; 2],
}

/// A write longer than a batch changes one segment after the other, each with its own lock: an optimistic
/// read of both sees all of it or nothing.
#[test]
fn an_exclusive_operation_is_not_seen_in_pieces() {
    model(|| {
        let file = Arc::new(File {
            size_sequence: SizeSequence::new(2),
            parking: Parking::new(1),
            segments: [SegmentLock::new(), SegmentLock::new()],
            data: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let writer = {
            let file = file.clone();
            thread::spawn(move || {
                let _odd = OddSequence::new(&file.size_sequence);
                for (segment, data) in file.segments.iter().zip(&file.data) {
                    segment.lock(&file.parking);
                    data.store(1, Ordering::Relaxed);
                    segment.unlock(&file.parking);
                }
            })
        };
        let view = file.size_sequence.view();
        if view.exclusive_sequence % 2 == 0 {
            let versions: Vec<_> = file.segments.iter().map(SegmentLock::version).collect();
            let copy: Vec<u64> = file.data.iter().map(|data| data.load(Ordering::Relaxed)).collect();
            loom::sync::atomic::fence(Ordering::Acquire);
            let unchanged = (file.segments.iter().zip(&versions))
                .all(|(segment, version)| version.is_some_and(|version| segment.unchanged(version)));
            if unchanged && file.size_sequence.view() == view {
                assert_eq!(copy[0], copy[1], "half of an operation");
            }
        }
        writer.join().unwrap();
    });
}

/// An exclusive operation drops a dirty block before its record is in the journal. A look at the dirty
/// blocks that is to say how far the size on disk may go (`Engine::front`) misses the block, or says that it
/// may not be trusted.
#[test]
fn a_look_beside_an_exclusive_operation_sees_no_drop() {
    model(|| {
        let file = Arc::new((SizeSequence::new(2), AtomicU64::new(1)));
        let dropping = {
            let file = file.clone();
            thread::spawn(move || {
                let _odd = OddSequence::new(&file.0);
                file.1.fetch_and(0, Ordering::SeqCst);
            })
        };
        let (size_sequence, dirty) = &*file;
        if let Some(view) = size_sequence.shared_view() {
            let is_dirty = dirty.load(Ordering::Acquire) != 0;
            // Even again: the operation was over, its record in the journal, before the look.
            assert!(
                is_dirty || !size_sequence.is_still(view) || view == 2,
                "a dropped block was taken for a written one"
            );
        }
        dropping.join().unwrap();
    });
}

/// An fsync that finds a file clean since a truncate has just dropped what was dirty goes on when that one's
/// record is in the journal. It waits for no later operation, and is woken whatever comes after.
#[test]
fn who_waits_for_an_exclusive_operation_finds_its_record() {
    model(|| {
        let file = Arc::new((SizeSequence::new(2), AtomicU64::new(1), AtomicU64::new(0)));
        let dropping = {
            let file = file.clone();
            thread::spawn(move || {
                let (size_sequence, dirty, record) = &*file;
                {
                    let _odd = OddSequence::new(size_sequence);
                    dirty.store(0, Ordering::Release);
                    record.store(1, Ordering::Relaxed);
                }
                let _odd = OddSequence::new(size_sequence);
                record.store(2, Ordering::Relaxed);
            })
        };
        let (size_sequence, dirty, record) = &*file;
        if dirty.load(Ordering::Acquire) == 0 {
            if let Some(number) = size_sequence.under_way() {
                size_sequence.await_end(number);
            }
            assert!(record.load(Ordering::Relaxed) >= 1, "neither the block nor the record");
        }
        dropping.join().unwrap();
    });
}

/// Several wait for one operation.
#[test]
fn all_who_wait_for_an_exclusive_operation_are_woken() {
    model(|| {
        let file = Arc::new((SizeSequence::new(2), AtomicU64::new(0)));
        let odd = OddSequence::new(&file.0);
        let waits = |file: Arc<(SizeSequence, AtomicU64)>| {
            thread::spawn(move || {
                file.0.await_end(1);
                assert_eq!(file.1.load(Ordering::Relaxed), 1);
            })
        };
        let waiting = [waits(file.clone()), waits(file.clone())];
        file.1.store(1, Ordering::Relaxed);
        drop(odd);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// An fsync that waits for no thread is called back, once, when the record is in the journal; or it sees that
/// itself.
#[test]
fn what_is_to_be_called_at_the_end_is_called_once() {
    model(|| {
        let file = Arc::new((SizeSequence::new(2), AtomicU64::new(0), AtomicU64::new(0)));
        let odd = OddSequence::new(&file.0);
        let waiting = {
            let file = file.clone();
            thread::spawn(move || {
                let called = {
                    let file = file.clone();
                    Box::new(move || {
                        assert_eq!(file.1.load(Ordering::Relaxed), 1, "called before the record");
                        file.2.fetch_add(1, Ordering::Relaxed);
                    })
                };
                if let Some(call) = file.0.call_at_end(1, called) {
                    call();
                }
            })
        };
        file.1.store(1, Ordering::Relaxed);
        drop(odd);
        waiting.join().unwrap();
        assert_eq!(file.2.load(Ordering::Relaxed), 1);
    });
}
