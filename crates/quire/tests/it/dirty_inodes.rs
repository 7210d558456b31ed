//! The periodic commit and `sync` looked at every inode in memory, and gave each changed one a transaction of
//! its own: with a hundred thousand files in memory, several seconds of a processor every five seconds, for
//! nothing. Counted here, not timed.

use crate::common::{BLOCK, file, new_volume};
use quire::Volume;
use quire::inodes::{InodeRef, IoFlags};

fn looks(volume: &Volume) -> u64 {
    volume.metrics()["attribute_looks_total"]
}

/// So many files of a block each, all of it durable.
fn files(volume: &Volume, count: usize) -> Vec<InodeRef> {
    let files: Vec<InodeRef> = (0..count).map(|n| file(volume, &format!("f{n}"))).collect();
    for file in &files {
        volume.inodes().write_at(file, &[1; BLOCK], 0, IoFlags::empty()).unwrap();
    }
    volume.sync().unwrap();
    files
}

#[test]
fn a_sync_looks_at_dirty_inodes_only() {
    let (_device, volume) = new_volume(8192);
    let files = files(&volume, 300);
    let before = looks(&volume);
    volume.sync().unwrap();
    assert_eq!(looks(&volume), before, "nothing has changed");
    volume.inodes().write_at(&files[7], &[2; BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    assert_eq!(looks(&volume), before + 1);
}

#[test]
fn inodes_share_transactions() {
    let (_device, volume) = new_volume(8192);
    let files = files(&volume, 300);
    for file in &files {
        volume.inodes().write_at(file, &[2; BLOCK], 0, IoFlags::empty()).unwrap();
    }
    // Overwrites in place leave times to the journal, and nothing else.
    let before = volume.metrics()["transactions_total"];
    volume.sync().unwrap();
    let transactions = volume.metrics()["transactions_total"] - before;
    assert!((5..=6).contains(&transactions), "{transactions} transactions for the times of 300 files");
}

#[test]
fn a_removed_file_leaves_the_list() {
    let (_device, volume) = new_volume(8192);
    let before = looks(&volume);
    for n in 0..100 {
        let name = format!("f{n}");
        volume.inodes().write_at(&file(&volume, &name), &[1; BLOCK], 0, IoFlags::empty()).unwrap();
        volume.inodes().remove_file(&volume.inodes().root(), name.as_bytes()).unwrap();
    }
    volume.drain_orphans();
    volume.sync().unwrap();
    assert!(looks(&volume) - before <= 2, "only the directory is left");
}
