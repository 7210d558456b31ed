//! The list of completions under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-capi --test it loom_completions --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use quire_capi::completions::{Completions, Signal};

/// What a poller sees of the descriptor.
#[derive(Default)]
struct Flag(AtomicBool);

impl Signal for Flag {
    fn raise(&self) {
        assert!(!self.0.swap(true, Ordering::SeqCst), "raised twice");
    }
    fn lower(&self) {
        assert!(self.0.swap(false, Ordering::SeqCst), "lowered twice");
    }
}

/// Two requests end while two threads reap: each completion is reaped once, nobody sleeps for ever, and the
/// signal is down in the end.
#[test]
fn each_completion_is_reaped_once_and_the_signal_follows() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let list = Arc::new(Completions::new(Flag::default()));
        list.begin();
        list.begin();
        let ending = {
            let list = list.clone();
            thread::spawn(move || {
                list.end(1);
                list.end(2);
            })
        };
        let reaping = {
            let list = list.clone();
            thread::spawn(move || list.reap(1, 1, None))
        };
        let mut reaped = list.reap(2, 2, None);
        reaped.extend(reaping.join().unwrap());
        ending.join().unwrap();
        reaped.extend(list.reap(0, 2, None));
        reaped.sort_unstable();
        assert_eq!(reaped, [1, 2]);
        assert!(!list.signal().0.load(Ordering::SeqCst), "the signal says that there is something");
    });
}

/// While something is left, the signal stays up.
#[test]
fn the_signal_is_up_while_something_is_left() {
    loom::model(|| {
        let list = Arc::new(Completions::new(Flag::default()));
        list.begin();
        list.begin();
        let ending = {
            let list = list.clone();
            thread::spawn(move || list.end(2))
        };
        list.end(1);
        assert_eq!(list.reap(1, 1, None).len(), 1);
        ending.join().unwrap();
        assert!(list.signal().0.load(Ordering::SeqCst), "a poller would sleep on what is there");
        list.drain();
        assert_eq!(list.reap(1, 1, None).len(), 1);
        assert!(!list.signal().0.load(Ordering::SeqCst));
    });
}
