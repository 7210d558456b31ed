//! A look at a whole volume from outside: every name leads to its inode, every link count is the number of
//! names, every directory knows its parent, and there is no inode but those.

use quire::inodes::InodeRef;
use quire::{FileType, InodeNo, Volume};
use std::collections::BTreeMap;

/// Panics if names, link counts, parents and the number of inodes do not fit together. Nothing else uses the
/// volume.
#[track_caller]
pub fn check(volume: &Volume) {
    volume.drain_orphans();
    let mut counted: BTreeMap<InodeNo, u32> = BTreeMap::new();
    counted.insert(InodeNo::ROOT, 2);
    let mut ahead: Vec<InodeRef> = vec![volume.inodes().root()];
    while let Some(directory) = ahead.pop() {
        let mut entries = Vec::new();
        volume
            .inodes()
            .read_dir(&directory, 0, &mut |entry| {
                entries.push((entry.name.to_vec(), entry.inode, entry.kind, entry.cookie));
                true
            })
            .unwrap();
        assert!(entries.is_sorted_by(|a, b| a.3 < b.3), "cookies ascend");
        assert_eq!((entries[0].0.as_slice(), entries[0].1), (&b"."[..], directory.number()));
        assert_eq!(entries[1].0, b"..");
        assert_eq!(volume.inodes().lookup(&directory, b"..").unwrap().number(), entries[1].1);
        for (name, number, kind, _) in &entries[2..] {
            let inode = volume.inodes().lookup(&directory, name).unwrap();
            assert_eq!((inode.number(), inode.kind()), (*number, *kind));
            let attributes = volume.inodes().metadata(&inode);
            assert_eq!((attributes.ino(), attributes.file_type()), (*number, *kind));
            *counted.entry(*number).or_default() += 1;
            if *kind == FileType::Directory {
                assert_eq!(
                    volume.inodes().lookup(&inode, b"..").unwrap().number(),
                    directory.number(),
                    "the parent of {number}"
                );
                assert_eq!(counted[number], 1, "a directory with two names");
                *counted.get_mut(number).unwrap() = 2;
                *counted.get_mut(&directory.number()).unwrap() += 1;
                ahead.push(inode);
            }
        }
    }
    for (number, links) in &counted {
        let inode = volume.inodes().get(*number).unwrap();
        assert_eq!(volume.inodes().metadata(&inode).nlink(), *links, "links of inode {number}");
    }
    assert_eq!(volume.info().inodes, counted.len() as u64, "inodes");
}
