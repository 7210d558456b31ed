//! Operations that are kept back, and the end of a volume, under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_admission --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use quire_base::admission::Admission;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The work of an operation that was begun is seen by the thread that has refused further ones; one that
/// comes later does nothing.
#[test]
fn what_was_begun_has_ended_when_others_are_refused() {
    check(|| {
        let volume = Arc::new((Admission::default(), AtomicUsize::new(0)));
        let operation = {
            let volume = volume.clone();
            thread::spawn(move || {
                quire_base::shard::set(1);
                let Some(admitted) = volume.0.enter() else { return 0 };
                volume.1.fetch_add(1, Ordering::Relaxed);
                let number = admitted.into_number();
                drop(volume.0.resume(number));
                1
            })
        };
        volume.0.refuse();
        let seen = volume.1.load(Ordering::Relaxed);
        assert_eq!(seen, operation.join().unwrap(), "an operation went on behind the last sync");
    });
}

/// Nothing goes on while operations are kept back, a second part of what was admitted included; afterwards
/// all of them do.
#[test]
fn nothing_goes_on_while_operations_are_kept_back() {
    check(|| {
        let volume = Arc::new((Admission::default(), AtomicUsize::new(0)));
        let operation = {
            let volume = volume.clone();
            thread::spawn(move || {
                quire_base::shard::set(1);
                let admitted = volume.0.enter().expect("nobody refuses");
                let another = admitted.another();
                volume.1.fetch_add(1, Ordering::Relaxed);
                drop(admitted);
                volume.1.fetch_add(1, Ordering::Relaxed);
                drop(another);
            })
        };
        assert!(volume.0.hold());
        let seen = volume.1.load(Ordering::Relaxed);
        assert!(seen == 0 || seen == 2, "an operation is under way");
        thread::yield_now();
        assert_eq!(volume.1.load(Ordering::Relaxed), seen, "an operation went on");
        volume.0.release();
        operation.join().unwrap();
    });
}

/// One that was kept back is turned away when the volume closes.
#[test]
fn what_is_kept_back_is_refused_at_the_end() {
    check(|| {
        let volume = Arc::new(Admission::default());
        assert!(volume.hold());
        let operation = {
            let volume = volume.clone();
            thread::spawn(move || {
                quire_base::shard::set(1);
                volume.enter().is_none()
            })
        };
        volume.refuse();
        volume.release();
        assert!(operation.join().unwrap(), "an operation was admitted behind the end");
    });
}
