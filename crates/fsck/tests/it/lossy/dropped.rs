//! What the rounds of a repair drop or cannot give back, in a volume whose nodes can all be read.

use super::*;
use crate::common::editor::{Editor, Location};
use quire_format::dirent::Entry;
use quire_format::extent::Extent;
use quire_format::inode::FileType;
use quire_format::key::KeyKind;
use quire_format::region::RegionMap;
use quire_fsck::{Loss, Salvaged};

/// Extents with data of files that have a name, the older inode first.
fn written(editor: &Editor) -> Vec<(Location, Extent)> {
    let named: BTreeSet<u64> = editor
        .of_kind(KeyKind::Entry)
        .iter()
        .map(|at| Entry::decode(&editor.value(at)).unwrap().inode.0)
        .collect();
    let mut extents: Vec<(Location, Extent)> = editor
        .of_kind(KeyKind::Extent)
        .into_iter()
        .filter(|at| named.contains(&at.key.object))
        .map(|at| (at, Extent::decode(at.key.offset, &editor.value(&at)).unwrap()))
        .filter(|(_, extent)| !extent.unwritten)
        .collect();
    extents.sort_by_key(|(at, _)| at.key);
    extents
}

fn salvaged(image: &Image) -> Salvaged {
    let backend = Arc::new(SimulatedBackend::from_image(image.clone()));
    let directory = tempfile::tempdir().unwrap();
    let salvaged = quire_fsck::salvage_backend(backend.clone(), directory.path(), None).unwrap();
    assert_eq!(backend.event_count(), 0, "a salvage writes nothing");
    salvaged
}

fn tells(losses: &[Loss], inode: u64) -> bool {
    losses.iter().any(|loss| {
        loss.inode == Some(inode) && loss.path.as_ref().is_some_and(|path| !path.starts_with("/lost+found"))
    })
}

/// An extent's value could not be read, and all nodes could. The plain repair, which comes first, dropped the
/// extent, and its losses were listed nowhere: a salvage said that all was copied as it is, and the list of
/// losses was empty, though a file read as zeros there.
#[test]
fn what_a_plain_repair_drops_is_listed() {
    let mut editor = Editor::new(&closed());
    let (extent, _) = written(&editor)[0];
    editor.set_value(&extent, &vec![0xff; extent.len]);
    let is_other =
        |entry: Entry<'_>| entry.file_type == FileType::Regular && entry.inode.0 != extent.key.object;
    let entry = editor
        .find(|at| at.key.kind == KeyKind::Entry && Entry::decode(&editor.value(at)).is_ok_and(is_other));
    editor.set_value(&entry, &vec![0xff; entry.len]);

    let salvaged = salvaged(&editor.image);
    assert!(!salvaged.is_complete());
    assert!(tells(&salvaged.losses, extent.key.object), "{:#?}", salvaged.losses);
    let in_directory =
        |loss: &Loss| loss.inode == Some(entry.key.object) && loss.what == "a name in it is lost";
    assert!(salvaged.losses.iter().any(in_directory), "{:#?}", salvaged.losses);
    let (report, _) =
        repaired(&Arc::new(Sectors::new(device(&editor.image), BTreeSet::new())), "an extent's value");
    assert_eq!(report.losses, salvaged.losses);
}

/// Two files had the same block, and there was no way to copy it: no block was free, or the map of used
/// blocks was lost, so that none counted as free, or the block could not be read. The repair that may lose
/// data ended with a bare error, and a salvage copied nothing at all.
#[test]
fn what_cannot_be_copied_becomes_a_hole() {
    let mut editor = Editor::new(&closed());
    let extents = written(&editor);
    let ((older, first), (younger, second)) = (extents[0], *extents.last().unwrap());
    assert!(older.key.object < younger.key.object);
    editor.set_value(&younger, &Extent { disk_block: first.disk_block, ..second }.encode());
    let shared = editor.image.clone();
    for region in 0..BLOCKS / 4096 {
        let mut all = RegionMap::new();
        all.set_used(0, 4096).unwrap();
        editor.put(Key::region(region), &all.encode().unwrap());
    }
    let full = editor.image.clone();
    let mut editor = Editor::new(&shared);
    let space = editor.key(Key::region(0)).node;
    editor.image.edit(space, |block| block[1000] ^= 1);
    let unreadable = BTreeSet::from([first.disk_block.0]);
    let cases = [
        ("a full volume", full, BTreeSet::new()),
        ("a lost map of used blocks", editor.image, BTreeSet::new()),
        ("an unreadable block", shared, unreadable),
    ];
    for (what, image, unreadable) in cases {
        let damaged = Arc::new(Sectors::new(device(&image), unreadable.clone()));
        let report = check_backend(damaged.clone(), &LOSSY).unwrap();
        assert_eq!(report.exit_code(), 1, "{what}: {:#?}", report.issues.last());
        let clean = check_backend(damaged, &Options::default()).unwrap();
        assert!(clean.issues.is_empty(), "{what}: {:#?}", clean.issues);
        assert!(tells(&report.losses, younger.key.object), "{what}: {:#?}", report.losses);
        let directory = tempfile::tempdir().unwrap();
        let backend = Arc::new(Sectors::new(device(&image), unreadable));
        let salvaged = quire_fsck::salvage_backend(backend, directory.path(), None).unwrap();
        assert!(!salvaged.is_complete() && salvaged.files > 50, "{what}: {salvaged:#?}");
    }
}
