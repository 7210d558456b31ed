//! A superblock slot that holds a superblock of long ago.

use crate::common::editor::Editor;
use crate::common::*;
use crate::repair::{walk, walk_volume};
use quire::FormatOptions;
use quire_base::BLOCK_SIZE;
use quire_base::sync::Arc;
use quire_device::simulated::SimulatedBackend;
use quire_format::superblock::{SLOT_BLOCKS, Superblock, far_slots};
use quire_fsck::IssueKind;

/// A device lost writes: those of one superblock slot, so that the slot named a checkpoint of long ago, and
/// those of the first copies of some nodes. What such a block still had was a good copy to the old
/// superblock, and the newest node's second copy a bad one: a repair wrote the old bytes over it, and the
/// node was lost.
#[test]
fn copies_that_only_an_old_superblock_names_are_not_mended() {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(7).metadata_copies(2).format_backend(backend.clone()).unwrap();
    backend.stop_recording();
    let volume = options().open_backend(backend.clone()).unwrap();
    drop(populate(&volume));
    let mut old = Vec::new();
    for round in 0..150_usize {
        for number in 0..20 + round % 7 * 9 {
            volume.write(format!("round-{}-{number}", round % 5), vec![round as u8; 100]).unwrap();
        }
        for number in (0..20).step_by(1 + round % 3) {
            let _ = volume.remove_file(format!("round-{}-{number}", (round + 2) % 5));
        }
        volume.checkpoint().unwrap();
        if round % 10 == 0 {
            old.push(backend.visible());
        }
    }
    let contents = walk_volume(&volume);
    volume.close().unwrap();
    let newest = backend.visible();
    let number = |slot: usize| {
        let mut block = [0; BLOCK_SIZE];
        newest.read(SLOT_BLOCKS[slot], &mut block);
        Superblock::decode(&block).unwrap().checkpoint
    };
    let slot = usize::from(number(1) < number(0));
    let first_copies: Vec<_> = Editor::new(&newest).nodes().iter().map(|node| node.block).collect();
    let mut noticed = 0;
    for (round, old) in old.iter().enumerate() {
        let mut image = newest.clone();
        for at in [SLOT_BLOCKS[slot], far_slots(BLOCKS)[slot]] {
            image.set(at, old.get(at).cloned());
        }
        for at in &first_copies {
            image.set(*at, old.get(*at).cloned());
        }
        let (report, after) = repair(&image);
        assert!(report.exit_code() <= 1, "round {round}: {:#?}", report.issues);
        noticed += u32::from(report.has(IssueKind::OlderCheckpointDamaged));
        assert_clean(&after, &format!("round {round}"));
        assert_eq!(walk(&after), contents, "round {round}");
    }
    assert!(noticed > 3, "{noticed}");
}
