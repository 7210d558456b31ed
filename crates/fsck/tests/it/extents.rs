//! Repairs of files with very many damaged extents.

use crate::common::editor::Editor;
use crate::common::{assert_clean, device, format_of, options, repair};
use quire::internals::repair::Session;
use quire_base::sync::Arc;
use quire_base::{BlockNo, InodeNo};
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::extent::{Extent, Run};
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use quire_format::region::{RegionMap, split_by_region};
use quire_fsck::{IssueKind, Options, check_backend};
use std::ops::ControlFlow;

/// Extents of each of the two files.
const EXTENTS: u64 = 3000;

/// Two files: the second one has extents of three blocks, the first one the middle block of each as well. By
/// its record the second has fewer blocks than that.
fn with_shared_middles() -> (Image, InodeNo) {
    let backend = device(&format_of(12 * EXTENTS));
    let volume = options().open_backend(backend.clone()).unwrap();
    let inode = |name: &str| {
        volume.write(name, "").unwrap();
        volume.metadata(name).unwrap().ino()
    };
    let (first, second) = (inode("first"), inode("second"));
    volume.close().unwrap();
    let mut session = Session::open(backend.clone()).unwrap();
    let all = Run::new(BlockNo(session.superblock().data_end.0 - 4 * EXTENTS), 4 * EXTENTS);
    for (region, start, blocks) in split_by_region(all) {
        let value = session.tree().get(Key::region(region)).unwrap();
        let mut map = value.map_or_else(RegionMap::new, |value| RegionMap::decode(&value).unwrap());
        map.add(start, blocks);
        session.set_region(region, &map);
    }
    for (inode, blocks) in [(first, EXTENTS), (second, 2 * EXTENTS)] {
        let record = session.tree().get(Key::inode(inode)).unwrap().unwrap();
        let record = InodeRecord::decode(&record).unwrap();
        let record = InodeRecord { blocks, size: EXTENTS * 4 * 4096, ..record };
        session.put(Key::inode(inode), &record.encode());
    }
    for at in 0..EXTENTS {
        let (file_block, disk_block) = (4 * at, all.start.offset(4 * at));
        // One that goes as a whole: it shifts all that is changed after it.
        let len = if at == 0 { 1 } else { 3 };
        let whole = Extent { file_block, disk_block, len, unwritten: false, birth: 0 };
        let middle = Extent { disk_block: disk_block.offset(u64::from(len / 2)), len: 1, ..whole };
        session.put(Key::extent(second, file_block), &whole.encode());
        session.put(Key::extent(first, file_block), &middle.encode());
        if session.pending() > 60 {
            session.commit().unwrap();
        }
    }
    session.close().unwrap();
    (backend.visible(), second)
}

fn extents(image: &Image, inode: InodeNo) -> Vec<Extent> {
    let session = Session::open(device(image)).unwrap();
    let (first, last) = (Key::extent(inode, 0), Key::extent(inode, u64::MAX));
    let mut all = Vec::new();
    let scan = &mut |key: Key, value: &[u8]| {
        all.push(Extent::decode(key.offset, value).unwrap());
        ControlFlow::Continue(())
    };
    session.tree().scan(first, last, scan).unwrap();
    all
}

/// The repair put the shortened head of an extent first and its tail after that, and a checkpoint could come
/// in between. A crash behind that left the tail in no file, and the next repair freed its blocks.
#[test]
fn a_repair_that_is_cut_off_loses_no_part_of_an_extent() {
    let (damaged, inode) = with_shared_middles();
    let backend = Arc::new(SimulatedBackend::from_image(damaged));
    let report = check_backend(backend.clone(), &Options { repair: true, ..Options::default() }).unwrap();
    assert!(report.exit_code() == 1 && report.has(IssueKind::ExtentShared), "{:?}", report.issues.last());
    let expected = extents(&backend.visible(), inode);
    assert_eq!(expected.len() as u64, 2 * (EXTENTS - 1));
    let (mut before, mut partial) = (None, 0);
    for at in 0..=backend.event_count() {
        let image = backend.crash_at(at, CrashPolicy::KeepAll).unwrap();
        let state = [0, 1].map(|slot| Editor::new(&image).superblock(slot).checkpoint);
        if before.replace(state) == Some(state) {
            continue;
        }
        partial += 1;
        let (report, after) = repair(&image);
        assert!(matches!(report.exit_code(), 0 | 1), "cut off at {at}: {:?}", report.summary);
        assert_clean(&after, &format!("cut off at {at}"));
        let left = extents(&after, inode);
        let lost = expected.iter().filter(|extent| !left.contains(extent)).collect::<Vec<_>>();
        assert!(lost.is_empty(), "cut off at {at}: {lost:?}");
    }
    assert!(partial > 6, "only {partial} checkpoints");
}
