//! The repair that may lose data, with a leaf lost in both copies of which an older version can still be
//! read: every crash of it, and the mistakes that it could make.

use crate::images::newest;
use quire::FormatOptions;
use quire_base::simulation::mistakes::{self, Mistake};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use quire_format::node::NodePage;
use quire_fsck::{Options, check_backend};
use sim::image;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCKS: u64 = 8192;
const LOSSY: Options<'_> = Options { repair: true, lossy: true, dry_run: false, progress: None };

/// A volume with a leaf lost, and what its files held before that.
fn damaged() -> (Image, BTreeMap<String, Vec<u8>>) {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(5).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = image::options().open_backend(backend.clone()).unwrap();
    let mut files = BTreeMap::new();
    for round in 0..3 {
        for number in (0..300).filter(|number| round == 0 || number % 7 == round) {
            let name = format!("file-{number}");
            let bytes = format!("{round} {number} ").repeat(30 + number * round).into_bytes();
            volume.write(&name, &bytes).unwrap();
            files.insert(name, bytes);
        }
        for number in (0..300).filter(|number| round > 0 && number % 7 == round + 3) {
            let name = format!("file-{number}");
            volume.remove_file(&name).unwrap();
            files.remove(&name);
        }
        volume.drain_orphans();
        volume.checkpoint().unwrap();
    }
    volume.close().unwrap();
    let mut image = backend.visible();
    let superblock = newest(&image);
    let mut all = Vec::new();
    for at in 0..BLOCKS {
        let mut block = [0; BLOCK_SIZE];
        image.read(BlockNo(at), &mut block);
        all.extend(NodePage::recognise(&block, superblock.volume_id(), BlockNo(at)));
    }
    let mut live = superblock.roots().to_vec();
    let mut next = 0;
    while next < live.len() {
        let page = &all.iter().find(|found| found.0 == live[next]).unwrap().1;
        let children = if page.level() > 0 { page.count() } else { 0 };
        live.extend((0..children).map(|at| page.child(at)).collect::<Vec<_>>());
        next += 1;
    }
    let older = |at: &quire_format::node::NodeRef| {
        let bounds = all.iter().find(|found| found.0 == *at).unwrap().1.bounds();
        all.iter().any(|found| found.1.bounds() == bounds && found.0.generation < at.generation)
    };
    let lost = live.iter().rev().find(|at| at.level == 0 && older(at)).expect("a leaf has an older version");
    lost.place().copies().for_each(|at| image.edit(at, |block| block[600] ^= 4));
    (image, files)
}

/// What is wrong with the outcome of a repair, if something is.
fn judge(image: &Image, files: &BTreeMap<String, Vec<u8>>) -> Option<String> {
    let backend = Arc::new(SimulatedBackend::from_image(image.clone()));
    let report = check_backend(backend.clone(), &LOSSY).unwrap();
    if report.exit_code() > 1 {
        return Some(format!("it is not mended: {:?}", report.issues.last()));
    }
    let volume = image::options().open_backend(backend).unwrap();
    let mut wrong = None;
    for entry in volume.read_dir("/").unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if name == "lost+found" {
            continue;
        }
        let found = volume.read(&name).unwrap();
        let path = format!("/{name}");
        let told = report.losses.iter().any(|loss| loss.path.as_deref() == Some(&path));
        if files.get(&name) != Some(&found) && !told {
            wrong = Some(format!("{name} is wrong, and nothing tells"));
        }
    }
    volume.close().unwrap();
    wrong
}

/// All crashes of a repair: a checkpoint that it has published is whole. Gives what is wrong first.
fn crashes(image: &Image) -> Option<String> {
    let before = newest(image).checkpoint;
    let backend = Arc::new(SimulatedBackend::from_image(image.clone()));
    check_backend(backend.clone(), &LOSSY).unwrap();
    for event in 0..=backend.event_count() {
        // Of the first checkpoint that it publishes, more: little else lies in the device's cache then.
        let first = newest(&backend.crash_at(event, CrashPolicy::KeepAll).unwrap()).checkpoint == before + 1;
        for seed in 0..if first { 60 } else { 3 } {
            let crashed = backend.crash_at(event, CrashPolicy::Power { seed }).unwrap();
            if newest(&crashed).checkpoint == before {
                continue;
            }
            let device = Arc::new(SimulatedBackend::from_image(crashed));
            let report = check_backend(device, &Options::default()).unwrap();
            let broken = |code: &str| ["node-damaged", "pool-manifest-damaged"].contains(&code);
            if let Some(issue) = report.issues.iter().find(|issue| broken(issue.code.as_str())) {
                return Some(format!("after event {event}: {issue}"));
            }
        }
    }
    None
}

#[test]
fn the_repair_is_right_after_every_crash() {
    mistakes::with(None, || {
        let (image, files) = damaged();
        assert_eq!(judge(&image, &files), None);
        assert_eq!(crashes(&image), None);
    });
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn each_mistake_of_the_repair_is_found() {
    let (image, files) = mistakes::with(None, damaged);
    for mistake in [Mistake::StaleLeafTaken, Mistake::OldSpaceKept] {
        let wrong = mistakes::with(Some(mistake), || judge(&image, &files));
        assert!(wrong.is_some(), "{mistake:?} is not found");
    }
    let wrong = mistakes::with(Some(Mistake::RepairPublishedUnflushed), || crashes(&image));
    assert!(wrong.is_some(), "a checkpoint published without a flush is not found");
}
