//! A damaged orphan block: a mount says so and skips it, frees what the others name and loses nothing else;
//! fsck finds what it named, and after a repair the next mount frees that, too.

use crate::common::editor::Editor;
use crate::common::*;
use quire::inodes::{Create, IoFlags};
use quire::internals::repair::Session;
use quire_base::shard;
use quire_base::sync::Arc;
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_fsck::IssueKind;

/// Orphans that each of the two blocks names.
const EACH: u64 = 6;

/// A volume closed with orphans in both of its orphan blocks, and nothing about them in the journal.
fn with_orphans() -> Image {
    let backend = device(&format());
    let volume = options().open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let mut held = Vec::new();
    for number in 0..2 * EACH {
        // The shard decides in which block a slot is looked for first.
        shard::set(number as usize % 2);
        let name = format!("file-{number}");
        let file = volume.inodes().create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
        volume.inodes().write_at(&file, &[number as u8 + 1; 20_000], 0, IoFlags::empty()).unwrap();
        volume.inodes().fsync(&file, false).unwrap();
        volume.inodes().remove_file(&root, name.as_bytes()).unwrap();
        held.push(file);
    }
    volume.sync().unwrap();
    let crashed = device(&backend.crash(CrashPolicy::LoseAll));
    drop(held);
    Session::open(crashed.clone()).unwrap().close().unwrap();
    crashed.visible()
}

/// The image with one orphan block that does not check.
fn damaged(image: &Image, index: usize) -> Image {
    let mut editor = Editor::new(image);
    let (_, page) = editor.manifest(editor.newest());
    assert_eq!(page.orphans.len(), 2);
    editor.image.edit(page.orphans[index].block, |block| block[100] ^= 1);
    editor.image
}

/// Mounts, frees what can be freed, and makes a file; gives what it is then, and damaged blocks, orphans
/// found and freed.
fn mounted(backend: &Arc<SimulatedBackend>) -> (usize, usize, u64) {
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.drain_orphans();
    let root = volume.inodes().root();
    if volume.inodes().lookup(&root, b"later").is_err() {
        let file = volume.inodes().create(&root, b"later", &Create::file(0o600)).unwrap();
        volume.inodes().write_at(&file, &[9; 9000], 0, IoFlags::empty()).unwrap();
    }
    let told = volume.recovery();
    let told = (told.damaged_orphan_blocks, told.orphans, volume.metrics()["orphans_freed_total"]);
    volume.close().unwrap();
    told
}

/// fsck finds the inodes that nothing names any more; gives how many.
fn untracked(image: &Image) -> u64 {
    let report = check(image).unwrap();
    for issue in &report.issues {
        // The older checkpoint has the same orphan blocks.
        let expected = matches!(
            issue.code,
            IssueKind::OrphanBlockDamaged | IssueKind::OlderCheckpointDamaged | IssueKind::OrphanUntracked
        );
        assert!(expected, "{:#?}", report.issues);
    }
    report.issues.iter().filter(|issue| issue.code == IssueKind::OrphanUntracked).count() as u64
}

#[test]
fn what_a_damaged_block_named_is_found_and_nothing_else_is_lost() {
    let original = with_orphans();
    let whole = device(&original);
    assert_eq!(mounted(&whole), (0, 2 * EACH as usize, 2 * EACH));
    let free = check(&whole.visible()).unwrap().summary.free_blocks;

    for index in 0..2 {
        let image = damaged(&original, index);
        assert!(check(&image).unwrap().has(IssueKind::OrphanBlockDamaged));
        assert_eq!(untracked(&image), EACH);
        let backend = device(&image);
        assert_eq!(mounted(&backend), (1, EACH as usize, EACH));
        assert_eq!(untracked(&backend.visible()), EACH, "after a mount that could not know them");

        let (report, repaired) = repair(&backend.visible());
        assert_eq!(report.exit_code(), 1, "{:#?}", report.issues);
        assert_clean(&repaired, "after the repair");
        let backend = device(&repaired);
        assert_eq!(mounted(&backend), (0, EACH as usize, EACH));
        assert_clean(&backend.visible(), "after the mount that frees them");
        assert_eq!(check(&backend.visible()).unwrap().summary.free_blocks, free);
    }
}

/// The same with a crash after every event of the mount that meets the damage, up to its end.
#[test]
fn crashes_of_a_mount_that_meets_a_damaged_block() {
    let image = damaged(&with_orphans(), 1);
    let backend = Arc::new(SimulatedBackend::from_image(image));
    mounted(&backend);
    for event in 0..=backend.event_count() {
        let seed = event as u64;
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Power { seed }] {
            let crashed = backend.crash_at(event, policy).unwrap();
            assert_eq!(untracked(&crashed), EACH, "after event {event}, {policy:?}");
            let again = device(&crashed);
            let (_, _, freed) = mounted(&again);
            assert!(freed <= EACH, "{freed} were freed");
            assert_eq!(untracked(&again.visible()), EACH, "recovered after event {event}, {policy:?}");
        }
    }
}
