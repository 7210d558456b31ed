//! A group that goes to fresh blocks, in a file whose growth is not on disk yet: every crash of the commit,
//! with every subset of the unflushed writes, and torn ones.
//!
//! The exchange raises the size on disk. Whatever lies below that size must have reached the disk before.

use super::every_crash;
use quire::inodes::{Create, IoFlags};
use quire::{Commit, FormatOptions};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::SimulatedBackend;
use sim::image;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// The crashes of a group that writes `bytes` at `at` of a file with `grown` unwritten bytes; gives how many
/// there were, and the first that is wrong.
fn crashes(grown: usize, at: usize, bytes: usize) -> (u64, Option<String>) {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(1).clock(image::clock());
    format.format_backend(device.clone()).unwrap();
    let options = || image::options().group_record_bytes(0);
    let volume = options().open_backend(device.clone()).unwrap();
    let file = volume.inodes().create(&volume.inodes().root(), b"file", &Create::file(0o644)).unwrap();
    volume.sync().unwrap();
    volume.inodes().write_at(&file, &vec![1; grown], 0, IoFlags::empty()).unwrap();
    let from = device.event_count();
    let mut group = volume.inodes().atomic();
    group.write_at(&file, &vec![2; bytes], at as u64).unwrap();
    group.commit(Commit::Now).unwrap();
    let mut wanted = vec![1; grown];
    wanted.resize(grown.max(at + bytes), 0);
    wanted[at..at + bytes].fill(2);
    every_crash::look_at(&device, from, (8, 4), &mut |image| {
        let volume = options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        let found = volume.read("file").unwrap();
        let has_group = found.get(at) == Some(&2);
        let is_whole = found.len() == wanted.len() || found.len().is_multiple_of(BLOCK);
        let is_right = match has_group {
            true => is_whole && found.len() >= at + bytes && found == wanted[..found.len()],
            false => is_whole && found.iter().all(|byte| *byte == 1),
        };
        if is_right { Ok(()) } else { Err(format!("{} bytes", found.len())) }
    })
}

const GROUPS: [(usize, usize, usize); 4] = [
    (5 * BLOCK, 3 * BLOCK + 7, 10),
    (5 * BLOCK + 9, BLOCK, BLOCK),
    (3 * BLOCK, 4 * BLOCK, 20),
    (100, 50, 10),
];

#[test]
fn every_crash_shows_what_was_written() {
    let looked: u64 = mistakes::with(None, || {
        let each = GROUPS.map(|(grown, at, bytes)| {
            let (images, wrong) = crashes(grown, at, bytes);
            assert!(wrong.is_none(), "{bytes} bytes at {at}, {grown} unwritten: {wrong:?}");
            images
        });
        each.iter().sum()
    });
    println!("{looked} images");
    assert!(looked > 100, "only {looked} images");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn unwritten_growth_is_seen() {
    let mistake = Mistake::ExchangeOverUnwrittenGrowth;
    let (grown, at, bytes) = GROUPS[0];
    let wrong = mistakes::with(Some(mistake), || crashes(grown, at, bytes).1);
    println!("{mistake:?}: {wrong:?}");
    assert!(wrong.is_some(), "{mistake:?} is not found");
}
