//! Every interleaving of a pin and a removal, or a split: at most one of them wins, and a folio that stays is
//! not missed.

use super::*;
use crate::folio::Folio;
use loom::thread;
use quire_base::sync::Arc;

const OWNER: u64 = 7;

struct Scene {
    index: Index,
    nodes: NodeSlab,
    budget: Budget,
    folio: FolioRef,
}

fn scene(start: u64) -> Arc<Scene> {
    let scene = Scene {
        index: Index::default(),
        nodes: NodeSlab::default(),
        budget: Budget::new(1 << 30),
        folio: FolioRef::new(Box::leak(Folio::boxed(0, crate::marks::Mark::default()))),
    };
    scene.folio.begin(OWNER, start, NonNull::dangling(), 0, 0);
    drop(scene.index.insert(scene.folio, &scene.nodes, &scene.budget));
    Arc::new(scene)
}

/// The pinner's and the remover's claims to one folio, in the root word and in a node.
#[test]
fn loom_a_pin_and_a_removal_do_not_both_win() {
    for start in [0, 1] {
        loom::model(move || {
            let scene = scene(start);
            let other = scene.clone();
            let remover = thread::spawn(move || {
                let folio = other.folio;
                other.index.remove_if(start, folio, &other.nodes, || folio.pins() == 0)
            });
            let mut pins = Pins::new();
            let missing = scene.index.pin(OWNER, start, start + 1, &mut pins);
            let removed = remover.join().unwrap();
            assert!(!(removed && missing == 0), "removed under a pin");
            assert_eq!(pins.len() as u64, 1 - missing);
        });
    }
}

/// A remover that is refused hides the folio from nobody who must see it.
#[test]
fn loom_a_refused_removal_hides_nothing() {
    loom::model(|| {
        let scene = scene(1);
        let other = scene.clone();
        let remover = thread::spawn(move || other.index.remove_if(1, other.folio, &other.nodes, || false));
        let mut pins = Pins::new();
        assert_eq!(scene.index.pin(OWNER, 1, 2, &mut pins), 0, "a folio that stays was missed");
        assert!(!remover.join().unwrap());
    });
}

/// A header and a node that go to another place while a pinner is on its way are not taken for the old ones.
#[test]
fn loom_recycling_does_not_deceive() {
    loom::model(|| {
        let scene = scene(1);
        let other = scene.clone();
        let mover = thread::spawn(move || {
            let folio = other.folio;
            let moved = other.index.remove_if(1, folio, &other.nodes, || folio.pins() == 0);
            if moved {
                folio.begin(OWNER, 65, NonNull::dangling(), 0, 0);
                drop(other.index.insert(folio, &other.nodes, &other.budget));
            }
            moved
        });
        let mut pins = Pins::new();
        scene.index.pin(OWNER, 1, 2, &mut pins);
        let found = pins.first().map(|pin| pin.start());
        assert!(found.is_none() || found == Some(1), "another place's folio was pinned");
        let moved = mover.join().unwrap();
        assert!(!(moved && found.is_some()));
    });
}

/// A block of a part that is kept has a folio at every moment of a split, for every reader; one that is given
/// back has the whole, pinned in time, or none.
#[test]
fn loom_a_split_leaves_no_gap() {
    for start in [0, 64] {
        for asked in [4, 0] {
            loom::model(move || {
                let born = |order, at| {
                    let folio = FolioRef::new(Box::leak(Folio::boxed(order, crate::marks::Mark::default())));
                    folio.begin(OWNER, at, NonNull::dangling(), 0, 0);
                    folio
                };
                let index = Arc::new((Index::default(), NodeSlab::default(), Budget::new(1 << 30)));
                let (whole, part) = (born(6, start), born(2, start + 4));
                drop(index.0.insert(whole, &index.1, &index.2));
                let other = index.clone();
                let splitter = thread::spawn(move || {
                    let (index, nodes, budget) = &*other;
                    index.replace(start, whole, &[part], nodes, budget, || whole.pins() == 0)
                });
                let mut pins = Pins::new();
                let missing = index.0.pin(OWNER, start + asked, start + asked + 1, &mut pins);
                let found = pins.first().map(|pin| pin.folio());
                let split = splitter.join().unwrap();
                match found {
                    Some(folio) if folio == whole => assert!(!split, "split under a pin"),
                    Some(folio) => assert!(split && folio == part && asked == 4),
                    None => assert!(split && asked == 0 && missing == 1, "a kept block was missed"),
                }
            });
        }
    }
}
