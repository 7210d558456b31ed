//! Bad copies of metadata that snapshots have: a scrub or a repair mends them where they lie.

use crate::common::editor::Editor;
use crate::common::*;
use crate::repair::walk_volume;
use quire::{FormatOptions, ScrubOptions, ScrubReport, Volume};
use quire_base::BlockNo;
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::Device;
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::key::{Key, KeyKind};
use quire_format::place::Place;
use quire_format::snapshot::Snapshot;
use quire_fsck::IssueKind;
use quire_tree::{PoolState, Tree, TreeLimits};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

fn name(number: u32) -> String {
    format!("many/file-{number:04}-of-a-directory")
}

/// A volume with two snapshots, which have nodes in common with each other and with the volume, and nodes of
/// their own; closed in order.
fn with_snapshots() -> Image {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(7).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    drop(populate(&volume));
    volume.create_dir("many").unwrap();
    (0..1500).for_each(|n| volume.write(name(n), "").unwrap());
    volume.take_snapshot("first").unwrap();
    (0..300).for_each(|n| volume.remove_file(name(n)).unwrap());
    volume.take_snapshot("second").unwrap();
    (300..600).for_each(|n| volume.remove_file(name(n)).unwrap());
    volume.close().unwrap();
    backend.visible()
}

/// The manifest's pages, the orphan blocks and the nodes of a snapshot, in this order.
fn places(image: &Image, number: u32) -> Vec<Place> {
    let editor = Editor::new(image);
    let snapshot = Snapshot::decode(&editor.value(&editor.key(Key::snapshot(number)))).unwrap();
    let (superblock, device) = (snapshot.superblock, Device::new(device(image)));
    let volume = superblock.volume_id();
    let pool = PoolState::load(&device, volume, superblock.manifest, superblock.block_count).unwrap();
    let mut places: Vec<Place> = pool.places().collect();
    assert!(places.len() > 1, "orphan blocks, too");
    let limits = TreeLimits { cache_nodes: 1000, dirty_nodes: 1000 };
    let tree = Tree::open(device, volume, superblock.roots(), pool, limits).unwrap();
    tree.walk(&mut |at, _| {
        places.push(at.place());
        Ok(())
    })
    .unwrap();
    places
}

/// The places of both snapshots.
fn all_places(image: &Image) -> Vec<Place> {
    let all: BTreeSet<[BlockNo; 2]> =
        [1, 2].iter().flat_map(|n| places(image, *n)).map(|place| [place.block, place.twin]).collect();
    all.into_iter().map(|[block, twin]| Place { block, twin }).collect()
}

/// One copy of each of these is bad then.
fn damage(image: &Image, places: &[Place], seed: u64) -> Image {
    let mut random = Random::seeded(seed);
    let mut damaged = image.clone();
    for place in places {
        let at = if random.one_in(2) { place.block } else { place.twin };
        damaged.edit(at, |block| block[100] ^= 1);
    }
    damaged
}

fn scrub(volume: &Volume) -> ScrubReport {
    volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Two checkpoints behind a scrub, fsck must find nothing.
fn assert_scrubbed(volume: Volume, backend: &SimulatedBackend, what: &str) {
    volume.checkpoint().unwrap();
    volume.checkpoint().unwrap();
    assert_clean(&backend.visible(), what);
    volume.close().unwrap();
    assert_clean(&backend.visible(), what);
}

/// A scrub wrote a node, or a page of the manifest, of which one copy was bad to another place, and left the
/// bad copy to the snapshot that named it, too; what only snapshots had was not read at all.
#[test]
fn a_scrub_mends_what_snapshots_have() {
    let image = with_snapshots();
    assert_clean(&image, "made");
    let all = all_places(&image);
    let live: BTreeSet<BlockNo> = Editor::new(&image).nodes().iter().map(|node| node.block).collect();
    let (shared, own): (Vec<Place>, Vec<Place>) = all.iter().partition(|place| live.contains(&place.block));
    assert!(shared.len() > 10 && own.len() > 10, "{} shared, {} of their own", shared.len(), own.len());
    let backend = device(&image);
    let volume = options().open_backend(backend).unwrap();
    let clean = scrub(&volume);
    assert_eq!((clean.damaged, clean.lost.len()), (0, 0), "{clean:#?}");
    let first = walk_volume(&volume.open_snapshot("first").unwrap());
    volume.close().unwrap();

    let manifest = &places(&image, 1)[..1];
    let orphans = &places(&image, 2)[1..2];
    for (what, places) in
        [("shared", &shared[..]), ("own", &own), ("manifest", manifest), ("orphans", orphans), ("all", &all)]
    {
        let damaged = damage(&image, places, places.len() as u64);
        let backend = device(&damaged);
        let read_only = options().read_only(true).open_backend(backend.clone()).unwrap();
        let report = scrub(&read_only);
        assert!(report.damaged > 0 && report.healed == 0 && report.is_good(), "{what}: {report:#?}");
        read_only.close().unwrap();
        let after = backend.visible();
        assert!((0..BLOCKS).all(|at| after.get(BlockNo(at)) == damaged.get(BlockNo(at))));

        let volume = options().open_backend(backend.clone()).unwrap();
        let report = scrub(&volume);
        assert!(report.healed > 0 && report.is_good(), "{what}: {report:#?}");
        assert_eq!(report.damaged, report.healed, "{what}");
        let again = scrub(&volume);
        assert_eq!((again.damaged, again.lost.len()), (0, 0), "{what}: {again:#?}");
        assert_eq!(walk_volume(&volume.open_snapshot("first").unwrap()), first, "{what}");
        assert_scrubbed(volume, &backend, what);
    }
}

/// The same, of the two copies of which both are bad: the scrub says which snapshot has lost something.
#[test]
fn a_scrub_names_the_snapshot_that_has_lost_metadata() {
    let mut image = with_snapshots();
    let root = Snapshot::decode(&Editor::new(&image).value(&Editor::new(&image).key(Key::snapshot(1))));
    let root = root.unwrap().superblock.root;
    [root.block, root.twin].into_iter().for_each(|at| image.edit(at, |block| block[100] ^= 1));
    let volume = options().open_backend(device(&image)).unwrap();
    let report = scrub(&volume);
    assert_eq!((report.lost.len(), report.damaged), (1, 0), "{report:#?}");
    assert!(report.lost[0].starts_with("snapshot \"first\": tree node"), "{report:#?}");
    volume.close().unwrap();
}

/// fsck called a snapshot damaged beyond repair when one of the two copies of its metadata was bad.
#[test]
fn a_repair_mends_what_snapshots_have() {
    let image = with_snapshots();
    let damaged = damage(&image, &all_places(&image), 5);
    let report = check(&damaged).unwrap();
    assert!(!report.issues.is_empty());
    assert!(report.issues.iter().all(|issue| issue.code == IssueKind::CopyDamaged), "{:#?}", report.issues);
    let (_, mended) = repair(&damaged);
    assert_clean(&mended, "repaired");
}

/// The power goes at moments of a scrub that mends: all is there, in one copy at least.
#[test]
fn a_crash_while_snapshots_are_mended_loses_nothing() {
    let image = with_snapshots();
    let own = all_places(&image);
    let backend = Arc::new(SimulatedBackend::from_image(damage(&image, &own, 6)));
    let volume = options().open_backend(backend.clone()).unwrap();
    let first = walk_volume(&volume.open_snapshot("first").unwrap());
    assert!(scrub(&volume).healed > 0);
    let end = backend.event_count();
    for event in (0..=end).step_by(1 + end / 40) {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::Power { seed: event as u64 }] {
            let crashed = device(&backend.crash_at(event, policy).unwrap());
            let volume = options().open_backend(crashed.clone()).unwrap();
            let found = walk_volume(&volume.open_snapshot("first").unwrap());
            assert_eq!(found, first, "after event {event} of {end}, {policy:?}");
            assert!(scrub(&volume).is_good());
            assert_scrubbed(volume, &crashed, "scrubbed after a crash");
        }
    }
}

/// A snapshot is deleted while a scrub reads it, and other metadata takes its blocks: what is in them is no
/// damage, and is not overwritten.
#[test]
fn a_deletion_in_the_middle_of_a_scrub_is_no_damage() {
    let image = with_snapshots();
    let only: Vec<Place> = {
        let second: BTreeSet<BlockNo> = places(&image, 2).iter().map(|place| place.block).collect();
        places(&image, 1).into_iter().filter(|place| !second.contains(&place.block)).collect()
    };
    let (damaged, mut reused) = (damage(&image, &only, 7), false);
    for moment in 0.. {
        let backend = device(&damaged);
        let volume = options().open_backend(backend.clone()).unwrap();
        let mut calls = 0;
        let report = {
            let mut watch = |_: &ScrubReport| {
                calls += 1;
                if calls == moment {
                    volume.delete_snapshot("first").unwrap();
                    for round in 0..60 {
                        volume.write("many/again", [round]).unwrap();
                        let of_this_round = (600 + u32::from(round)..1500).step_by(60);
                        of_this_round.for_each(|n| volume.remove_file(name(n)).unwrap());
                        volume.checkpoint().unwrap();
                    }
                    let now = backend.visible();
                    reused |= only.iter().any(|place| now.get(place.block) != damaged.get(place.block));
                }
                ControlFlow::Continue(())
            };
            volume.scrub(&ScrubOptions::new(), &mut watch).unwrap()
        };
        assert!(report.is_good(), "call {moment}: {report:#?}");
        assert_scrubbed(volume, &backend, &format!("deleted at call {moment}"));
        if moment > calls {
            assert_eq!(Editor::new(&backend.visible()).of_kind(KeyKind::Snapshot).len(), 2);
            assert!(reused);
            break;
        }
    }
}
