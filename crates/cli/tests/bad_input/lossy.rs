//! A volume with a lost tree node, through the program: a dry run and a salvage change nothing, and a repair
//! ends with a clean volume.

use std::path::Path;
use std::process::Command;

use quire_format::key::KeyKind;
use quire_format::node::{NodePage, NodeRef};

use super::support::*;
use crate::common::{QUIRE, Volume, text};

const INTACT: i32 = 0;

/// Damages both copies of the last leaf that has names of the root directory.
fn lose_names(volume: &Volume) {
    let image = volume.image();
    let superblock =
        (0..2).map(|slot| superblock(&image, slot)).max_by_key(|found| found.checkpoint).unwrap();
    let mut pending = vec![superblock.root];
    let mut leaf: Option<NodeRef> = None;
    while let Some(at) = pending.pop() {
        let page = NodePage::decode(&read_block(&image, at.block.0), superblock.volume_id(), &at).unwrap();
        if at.level > 0 {
            pending.extend((0..page.count()).map(|entry| page.child(entry)));
        } else if (0..page.count())
            .all(|entry| page.key(entry).object == 1 && page.key(entry).kind == KeyKind::Entry)
        {
            leaf = Some(at);
        }
    }
    let leaf = leaf.expect("a leaf has names only");
    leaf.place().copies().for_each(|at| drop(flip(&image, at.0)));
}

/// Files below a directory.
fn files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

fn filled() -> Volume {
    let volume = Volume::new("64M");
    let opened = quire::VolumeOptions::new().open(volume.image()).unwrap();
    for number in 0..400 {
        opened.write(format!("a-file-with-a-name-of-some-length-{number}"), file_bytes(number % 8)).unwrap();
    }
    opened.create_dir("deep").unwrap();
    opened.write("deep/kept", "as it was").unwrap();
    opened.close().unwrap();
    volume
}

#[test]
fn what_is_left_of_a_damaged_volume() {
    let _turn = turn();
    let volume = filled();
    let image = volume.image();
    let out = image.with_file_name("out");
    keeping(&image, || {
        expect(&call!["salvage", image, out], INTACT, &["401 files"]);
        expect(&call!["fsck", "--repair", "--lossy", "--dry-run", image], INTACT, &[]);
        let again = call!["salvage", image, out];
        assert!(!again.status.success() && text(&again).contains("out"), "{}", text(&again));
    });
    assert_eq!(std::fs::read(out.join("deep/kept")).unwrap(), b"as it was");
    assert_eq!(std::fs::read(out.join("a-file-with-a-name-of-some-length-7")).unwrap(), file_bytes(7));
    std::fs::remove_dir_all(&out).unwrap();

    lose_names(&volume);
    keeping(&image, || {
        expect(&call!["fsck", image], FSCK_LEFT, &["node-damaged"]);
        let dry = call!["fsck", "--repair", "--lossy", "--dry-run", image];
        expect(&dry, FSCK_LEFT, &["lost", "lost+found"]);
        let json = call!["fsck", "--repair", "--lossy", "--dry-run", "--json", image];
        let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert!(report["losses"].as_array().is_some_and(|losses| !losses.is_empty()), "{}", text(&json));
        expect(&call!["salvage", image, out], DAMAGED, &["files", "lost"]);
        expect(&call!["fsck", "--dry-run", image], FSCK_USAGE, &["--repair"]);
    });
    // Every file is there, under its name or in lost+found.
    let nameless = std::fs::read_dir(out.join("lost+found")).unwrap().count();
    assert!(nameless > 0, "names were lost");
    assert_eq!(files(&out), 401);

    expect(&call!["fsck", "--repair", "--lossy", image], FSCK_REPAIRED, &["lost"]);
    keeping(&image, || expect(&call!["fsck", image], INTACT, &[]));
    let opened = quire::VolumeOptions::new().open(&image).unwrap();
    opened.write("written-after-the-repair", "anything").unwrap();
    let names = opened.read_dir("lost+found").unwrap().count();
    assert_eq!(names, nameless);
    opened.close().unwrap();
    expect(&call!["fsck", image], INTACT, &[]);
}

/// A salvage holds a descriptor for each directory above the one that it copies. Below some thousand of them,
/// it had none left, and left out all that lies deeper.
#[test]
fn a_salvage_of_deep_directories_uses_the_descriptors_that_it_may() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let opened = quire::Volume::open(volume.image()).unwrap();
    let deep = "d/".repeat(300);
    opened.create_dir_all(&deep).unwrap();
    opened.write(format!("{deep}/file"), "kept").unwrap();
    opened.close().unwrap();
    let out = volume.image().with_file_name("out");
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -S -n 256 && exec \"$0\" salvage \"$1\" \"$2\"", QUIRE]);
    expect(&few.arg(volume.image()).arg(&out).output().unwrap(), INTACT, &["1 files, 300 directories"]);
    assert_eq!(std::fs::read_to_string(out.join(deep).join("file")).unwrap(), "kept");
}
