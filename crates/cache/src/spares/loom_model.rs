//! Every interleaving of a thread that keeps and takes spare folios with one of another shard that is short
//! of memory: no folio has two users, none is lost, and the limit holds.

use super::*;
use crate::budget::Budget;
use crate::folio::Folio;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use quire_base::sync::Arc;

/// Such that a spare folio of each shard is allowed.
const LIMIT: u64 = SHARE * SHARDS as u64 * BLOCK_COST;
/// What is left for folios: one.
const FREE: u64 = BLOCK_COST;

struct Scene {
    spares: Spares,
    budget: Budget,
    in_use: AtomicBool,
}

impl Scene {
    fn begin(&self) {
        assert!(!self.in_use.swap(true, Ordering::Relaxed), "two users");
        assert!(self.budget.used() <= self.budget.limit());
    }

    fn end(&self) {
        assert!(self.in_use.swap(false, Ordering::Relaxed));
    }

    /// As a reclaim that finds nothing to drop, for a block.
    fn take_back(&self) -> bool {
        if !self.budget.try_charge(FREE) {
            self.spares.drain().for_each(|_| self.budget.uncharge(FREE));
            return self.budget.try_charge(FREE);
        }
        true
    }
}

#[test]
fn loom_spare_folios_have_one_user_and_are_not_lost() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let scene =
            Scene { spares: Spares::default(), budget: Budget::new(LIMIT), in_use: AtomicBool::new(false) };
        // All but one block, and the sliver for nodes, is somebody's; the block is the keeper's.
        scene.budget.charge_over(LIMIT - LIMIT / 32 - FREE);
        assert!(scene.budget.try_charge(FREE) && !scene.budget.try_charge(1));
        let scene = Arc::new(scene);
        let folio = FolioRef::new(Box::leak(Folio::boxed(0, crate::marks::Mark::default())));
        let other = scene.clone();
        let keeper = thread::spawn(move || {
            other.begin();
            other.end();
            assert!(other.spares.keep(0, folio, LIMIT).is_none());
            let taken = other.spares.take(0);
            if taken.is_some() {
                other.begin();
                other.end();
                assert!(other.spares.keep(0, folio, LIMIT).is_none());
            }
        });
        if scene.take_back() {
            scene.begin();
            scene.end();
            scene.budget.uncharge(FREE);
        }
        keeper.join().unwrap();
        assert!(scene.take_back(), "a spare folio was lost");
        assert!(!scene.spares.has_one(0));
    });
}
