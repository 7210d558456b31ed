//! Orphan slots under loom, with tiny blocks: claims, releases and a full table.

use loom::thread;
use quire::InodeNo;
use quire::internals::orphan::{OrphanSlots, SLOTS_PER_BLOCK};
use std::sync::Arc;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Two claims never get one slot, and a table with room refuses neither.
#[test]
fn claim_and_claim() {
    model(|| {
        let slots = Arc::new(OrphanSlots::new(1));
        let other = {
            let slots = slots.clone();
            thread::spawn(move || slots.claim(InodeNo(7)))
        };
        let mine = slots.claim(InodeNo(8));
        let other = other.join().unwrap();
        assert_eq!(SLOTS_PER_BLOCK, 2);
        assert!(mine.is_some() && other.is_some());
        assert_ne!(mine, other);
        assert!(slots.claim(InodeNo(9)).is_none(), "the table is full");
    });
}

/// A release that is applied while another thread searches gives its slot to somebody, once.
#[test]
fn claim_while_a_release_is_applied() {
    model(|| {
        let slots = Arc::new(OrphanSlots::new(1));
        let first = slots.claim(InodeNo(1)).unwrap();
        slots.apply_set(first, InodeNo(1));
        let second = slots.claim(InodeNo(2)).unwrap();
        slots.apply_set(second, InodeNo(2));
        let claimer = {
            let slots = slots.clone();
            thread::spawn(move || slots.claim(InodeNo(3)))
        };
        slots.apply_clear(first);
        let claimed = claimer.join().unwrap();
        assert!(claimed.is_none() || claimed == Some(first));
        // Whatever happened, exactly one more fits in all.
        let last = slots.claim(InodeNo(4));
        assert_eq!(last.is_some(), claimed.is_none());
        assert_eq!(slots.applied().len(), 1);
    });
}

/// A cancelled claim is free again for others.
#[test]
fn claim_and_cancel() {
    model(|| {
        let slots = Arc::new(OrphanSlots::new(1));
        let kept = slots.claim(InodeNo(1)).unwrap();
        let canceller = {
            let slots = slots.clone();
            thread::spawn(move || {
                if let Some(slot) = slots.claim(InodeNo(2)) {
                    slots.cancel(slot);
                }
            })
        };
        let other = slots.claim(InodeNo(3));
        canceller.join().unwrap();
        assert_ne!(other, Some(kept));
        assert_eq!(slots.claim(InodeNo(4)).is_some(), other.is_none());
    });
}
