//! Operations and the end of a volume under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_changes --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use quire::internals::changes::Changes;

/// The work of an operation that was begun is seen by the thread that has refused further ones; one that
/// comes later does nothing.
#[test]
fn what_was_begun_has_ended_when_others_are_refused() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let volume = Arc::new((Changes::default(), AtomicUsize::new(0)));
        let operation = {
            let volume = volume.clone();
            thread::spawn(move || {
                quire_base::shard::set(1);
                let Some(change) = volume.0.begin() else { return 0 };
                volume.1.fetch_add(1, Ordering::Relaxed);
                let number = change.into_number();
                drop(volume.0.resume(number));
                1
            })
        };
        volume.0.refuse();
        let seen = volume.1.load(Ordering::Relaxed);
        assert_eq!(seen, operation.join().unwrap(), "an operation went on behind the last sync");
    });
}
