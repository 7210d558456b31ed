//! The gate under loom: every interleaving of a few entries.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use quire::internals::gate::{Gate, GateState};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Two holders of different states never overlap, and nobody is left waiting.
fn pair(first: GateState, second: GateState) {
    model(move || {
        let shared = Arc::new((Gate::new(), AtomicUsize::new(0)));
        let run = |state: GateState, mark: usize| {
            let shared = shared.clone();
            move || {
                let _permit = shared.0.enter(state);
                // Each holder sees nobody of the other kind, before and after it shows itself.
                let other = 1 - mark;
                assert_eq!((shared.1.fetch_add(1 << (8 * mark), Ordering::SeqCst) >> (8 * other)) & 0xff, 0);
                shared.1.fetch_sub(1 << (8 * mark), Ordering::SeqCst);
            }
        };
        let thread = thread::spawn(run(first, 0));
        run(second, 1)();
        thread.join().unwrap();
        assert!(shared.0.try_enter(GateState::Exclusive).is_some(), "the gate is open again");
    });
}

#[test]
fn buffered_and_direct() {
    pair(GateState::Buffered, GateState::Direct);
}

#[test]
fn exclusive_and_none() {
    pair(GateState::Exclusive, GateState::None);
}

#[test]
fn exclusive_and_exclusive() {
    pair(GateState::Exclusive, GateState::Exclusive);
}

/// A gate that is sharded for one state: its holders in shards, its newcomers, and those who close it exclude
/// each other, and nobody is left waiting.
fn sharded_pair(second: GateState) {
    model(move || {
        let shared = Arc::new((Gate::new(), AtomicUsize::new(0)));
        let first = shared.0.enter(GateState::Buffered);
        shared.0.spread();
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _permit = shared.0.enter(GateState::Buffered);
                assert_eq!(shared.1.fetch_add(1, Ordering::SeqCst) >> 8, 0);
                shared.1.fetch_sub(1, Ordering::SeqCst);
            })
        };
        drop(first);
        {
            let _permit = shared.0.enter(second);
            assert_eq!(shared.1.fetch_add(1 << 8, Ordering::SeqCst) & 0xff, 0);
            shared.1.fetch_sub(1 << 8, Ordering::SeqCst);
        }
        thread.join().unwrap();
        assert!(shared.0.try_enter(GateState::Exclusive).is_some(), "the gate is open again");
    });
}

#[test]
fn sharded_and_direct() {
    sharded_pair(GateState::Direct);
}

#[test]
fn sharded_and_exclusive() {
    sharded_pair(GateState::Exclusive);
}

/// Three threads, two of which share: the hand-over wakes both.
#[test]
fn a_hand_over_wakes_all_that_share() {
    model(|| {
        let shared = Arc::new((Gate::new(), AtomicUsize::new(0)));
        let held = shared.0.enter(GateState::Exclusive);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let _permit = shared.0.enter(GateState::Buffered);
                    assert_eq!(shared.1.load(Ordering::SeqCst), 1, "entered while exclusive was held");
                })
            })
            .collect();
        shared.1.store(1, Ordering::SeqCst);
        drop(held);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// What one holder wrote under the gate, the next one of another state sees.
#[test]
fn passing_the_gate_publishes() {
    model(|| {
        let shared = Arc::new((Gate::new(), loom::cell::UnsafeCell::new(0u32)));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _permit = shared.0.enter(GateState::Exclusive);
                // SAFETY: exclusive: nobody else is in; loom checks exactly that.
                shared.1.with_mut(|value| unsafe { *value += 1 });
            })
        };
        {
            let _permit = shared.0.enter(GateState::Exclusive);
            // SAFETY: as above.
            shared.1.with_mut(|value| unsafe { *value += 1 });
        }
        writer.join().unwrap();
        let _permit = shared.0.enter(GateState::Buffered);
        // SAFETY: nobody writes any more.
        shared.1.with(|value| assert_eq!(unsafe { *value }, 2));
    });
}
