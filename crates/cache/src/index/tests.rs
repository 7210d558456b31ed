//! The index against an ordered map, and pins against removals.

use super::*;
use crate::folio::Folio;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64 as Counter};

const OWNER: u64 = 7;

/// Headers that live as long as the test's process, where a search for leaks sees them.
fn header(order: Order) -> FolioRef {
    static KEPT: std::sync::Mutex<Vec<FolioRef>> = std::sync::Mutex::new(Vec::new());
    let header = FolioRef::new(Box::leak(Folio::boxed(order, crate::marks::Mark::default())));
    KEPT.lock().unwrap().push(header);
    header
}

fn born(folio: FolioRef, start: u64) -> FolioRef {
    folio.begin(OWNER, start, NonNull::dangling(), 0, 0);
    folio
}

fn setup() -> (Index, NodeSlab, Budget) {
    (Index::default(), NodeSlab::default(), Budget::new(1 << 30))
}

#[test]
fn agrees_with_an_ordered_map() {
    let mut random = quire_base::random::Random::seeded(11);
    for round in 0..60 {
        let (index, nodes, budget) = setup();
        let mut model: BTreeMap<u64, FolioRef> = BTreeMap::new();
        let bits = 3 + round % 48;
        for _ in 0..120 {
            let order = random.below(10) as Order;
            let at = (random.below(1 << bits) >> order) << order;
            let end = at + (1 << order);
            let overlaps =
                model.iter().any(|(start, folio)| *start < end && at < start + u64::from(folio.blocks()));
            match random.below(4) {
                3 => {
                    let large = |folio: &FolioRef| folio.order() >= 6;
                    let victim = model.range(at..).find(|(_, folio)| large(folio)).map(|(s, f)| (*s, *f));
                    if let Some((start, folio)) = victim {
                        let order = folio.order() - 4;
                        let keep = random.below(0xffff) + 1;
                        let part = |number: u64| born(header(order), start + (number << order));
                        let kept = (0..16).filter(|number| keep >> number & 1 != 0);
                        let parts: Vec<FolioRef> = kept.map(part).collect();
                        assert!(!index.replace(start, folio, &parts, &nodes, &budget, || false));
                        assert!(index.replace(start, folio, &parts, &nodes, &budget, || true));
                        assert!(!index.replace(start, folio, &parts, &nodes, &budget, || true));
                        model.remove(&start);
                        model.extend(parts.iter().map(|part| (part.start(), *part)));
                    }
                }
                0 | 1 => {
                    let folio = born(header(order), at);
                    assert_eq!(index.insert(folio, &nodes, &budget).is_some(), !overlaps);
                    if !overlaps {
                        model.insert(at, folio);
                    }
                }
                _ => {
                    let victim = model.range(at..).next().map(|(start, folio)| (*start, *folio));
                    if let Some((start, folio)) = victim {
                        assert!(!index.remove_if(start, folio, &nodes, || false));
                        assert!(!index.remove_if(start, header(0), &nodes, || true));
                        assert!(index.remove_if(start, folio, &nodes, || true));
                        assert!(!index.remove_if(start, folio, &nodes, || true));
                        model.remove(&start);
                    }
                }
            }
            let (low, high) = (random.below(1 << bits), random.below(1 << bits));
            let (low, high) = (low.min(high), low.max(high) + 1);
            let mut pins = Pins::new();
            let missing = index.pin(OWNER, low, high, &mut pins);
            let wanted: Vec<_> = model
                .iter()
                .filter(|(start, folio)| **start < high && low < **start + u64::from(folio.blocks()))
                .collect();
            assert_eq!(
                pins.iter().map(|pin| pin.start()).collect::<Vec<_>>(),
                wanted.iter().map(|w| *w.0).collect::<Vec<_>>()
            );
            let covered: u64 = wanted
                .iter()
                .map(|(start, folio)| (**start + u64::from(folio.blocks())).min(high) - (**start).max(low))
                .sum();
            assert_eq!(missing, high - low - covered);
            assert_eq!(index.missing(low, high), missing);
            assert_eq!(index.is_free(low, high), wanted.is_empty());
            let mut found = SmallVec::new();
            assert_eq!(index.look_up(low, high, &mut found), missing == 0);
            assert_eq!(index.len(), model.len());
        }
        for (start, folio) in model {
            assert!(index.remove_if(start, folio, &nodes, || true));
        }
        assert!(index.root.load(Ordering::Relaxed).is_null(), "no node is left");
    }
}

/// A remover that finds no pin and a pinner that believes its pin must never both win, and a folio that stays
/// is never missed.
#[test]
fn pins_and_removals_exclude_each_other() {
    let (index, nodes, budget) = setup();
    let folio = header(2);
    let inside = Counter::new(0);
    let stop = AtomicBool::new(false);
    let steady = born(header(3), 64);
    index.insert(steady, &nodes, &budget).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut pins = Pins::new();
                    index.pin(OWNER, 0, 4, &mut pins);
                    if !pins.is_empty() {
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert!(pins[0].is(OWNER, 0));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                    pins.clear();
                    assert_eq!(index.pin(OWNER, 66, 67, &mut pins), 0, "a folio that stays was missed");
                }
            });
        }
        for _ in 0..30_000 {
            drop(index.insert(born(folio, 0), &nodes, &budget).unwrap());
            while !index.remove_if(0, folio, &nodes, || folio.pins() == 0) {
                index.remove_if(64, steady, &nodes, || false);
                std::hint::spin_loop();
            }
            assert_eq!(inside.load(Ordering::SeqCst), 0, "removed under a pin");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
