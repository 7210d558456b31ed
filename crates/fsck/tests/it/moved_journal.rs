//! A volume whose journal lies in its data space, since it was enlarged: no file may have blocks there.

use crate::common::{assert_clean, check, device, format_of, options, repair};
use quire::internals::repair::Session;
use quire::{ErrorKind, ResizeOptions};
use quire_base::InodeNo;
use quire_device::simulated::Image;
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_fsck::IssueKind;

/// A volume with a moved journal and a file, whose one extent, of 16 blocks, is put where `place` says of
/// the journal's first block and of the one behind its last.
fn with_extent_at(place: impl FnOnce(u64, u64) -> u64) -> Image {
    let backend = device(&format_of(8192));
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.write("file", [1; 16 * 4096]).unwrap();
    volume.close().unwrap();
    ResizeOptions::new().journal_bytes(4 << 20).resize_backend(backend.clone()).unwrap();
    assert_clean(&backend.visible(), "resized");
    let mut session = Session::open(backend.clone()).unwrap();
    let journal = session.superblock().journal();
    let mut found = None;
    let visit = &mut |key: Key, value: &[u8]| {
        if key.kind == KeyKind::Extent {
            found = Some((key, Extent::decode(key.offset, value).unwrap()));
        }
        std::ops::ControlFlow::Continue(())
    };
    session.tree().scan(Key::inode(InodeNo(2)), Key::MAX, visit).unwrap();
    let (key, mut extent) = found.expect("an extent");
    extent.disk_block.0 = place(journal.start.0, journal.end().0);
    session.put(key, &extent.encode());
    let mut record = None;
    session
        .tree()
        .get_with(Key::inode(InodeNo(key.object)), |value| {
            record = Some(InodeRecord::decode(value).unwrap());
        })
        .unwrap();
    assert_eq!(record.unwrap().blocks, 16);
    session.close().unwrap();
    backend.visible()
}

#[test]
fn no_file_reaches_into_the_journal() {
    for (what, place) in [
        ("inside", (|start, _| start + 100) as fn(u64, u64) -> u64),
        ("over its beginning", |start, _| start - 8),
        ("over its end", |_, end| end - 8),
    ] {
        let image = with_extent_at(place);
        let volume = options().open_backend(device(&image)).unwrap();
        let error = volume.read("file").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        drop(volume);
        let report = check(&image).unwrap();
        assert!(report.has(IssueKind::ExtentOutOfRange), "{what}: {:#?}", report.issues);
        let (report, after) = repair(&image);
        assert_eq!(report.exit_code(), 1, "{what}: {:#?}", report.issues);
        assert_clean(&after, what);
        let volume = options().open_backend(device(&after)).unwrap();
        assert_eq!(volume.read("file").unwrap().len(), 16 * 4096, "{what}");
        volume.close().unwrap();
    }
}
