//! Inodes whose record says the wrong type.

use crate::common::editor::Editor;
use crate::common::{closed, device, format};
use crate::repair::{mend, walk};
use quire::FileType;
use quire::internals::repair::Session;
use quire_base::InodeNo;
use quire_format::dirent::Entry;
use quire_format::extent::Extent;
use quire_format::inode::{InodeRecord, MODE_TYPE_MASK};
use quire_format::key::{Key, KeyKind};
use quire_fsck::IssueKind;

/// The record of a file with three names said that it was a socket. The repair made it a file again, but of
/// no bytes, since no socket has a size. As a directory, it lost two of its names as well, since a directory
/// has one.
#[test]
fn an_inode_that_becomes_what_its_contents_are_keeps_its_size_and_names() {
    let original = Editor::new(&closed());
    let before = walk(&original.image);
    for (name, right) in [(&b"linked"[..], FileType::Regular), (b"long", FileType::Symlink)] {
        let entry = original.find(|at| {
            at.key.kind == KeyKind::Entry && Entry::decode(&original.value(at)).unwrap().name == name
        });
        let inode = Entry::decode(&original.value(&entry)).unwrap().inode;
        let at = original.key(Key::inode(inode));
        let record = InodeRecord::decode(&original.value(&at)).unwrap();
        assert_eq!(record.file_type(), right);
        // The record of a link of so many bytes does not even decode.
        let types = [
            FileType::Regular,
            FileType::Directory,
            FileType::Socket,
            FileType::Fifo,
            FileType::BlockDevice,
            FileType::CharDevice,
        ];
        for wrong in types.into_iter().filter(|wrong| *wrong != right) {
            let mut editor = Editor::new(&original.image);
            let mode = record.mode & !MODE_TYPE_MASK | wrong.to_mode();
            editor.set_value(&at, &InodeRecord { mode, ..record.clone() }.encode());
            let what = format!("{right:?} that says {wrong:?}");
            let (report, after) = mend(&editor.image, &what);
            assert!(report.has(IssueKind::InodeContentWrong), "{what}: {:#?}", report.issues);
            assert!(walk(&after) == before, "{what}");
        }
    }
}

/// The check called an empty root that an extent had got into a file without a name, and wanted to make one
/// of it.
#[test]
fn an_empty_root_with_an_extent_stays_a_directory() {
    let backend = device(&format());
    let mut session = Session::open(backend.clone()).unwrap();
    let (epoch, data) = (session.superblock().epoch, session.superblock().data_start);
    let extent = Extent { file_block: 0, disk_block: data, len: 1, unwritten: false, birth: epoch };
    session.put(Key::extent(InodeNo::ROOT, 0), &extent.encode());
    session.commit().unwrap();
    session.close().unwrap();
    let (report, after) = mend(&backend.visible(), "a root with an extent");
    assert!(report.has(IssueKind::InodeContentWrong), "{:#?}", report.issues);
    assert!(!report.has(IssueKind::InodeUnreachable), "{:#?}", report.issues);
    assert!(walk(&after).is_empty());
}
