//! A host file system that is full.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use super::support::*;
use crate::common::{Volume, can_mount, has, is_mounted, pattern, run, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Kill,
    Unmount,
}

fn holds_big(volume: &Volume, numbers: &[u64]) {
    for &number in numbers {
        let found = std::fs::read(volume.path(&format!("big{number}")))
            .unwrap_or_else(|error| panic!("big{number} was fsynced: {error}"));
        assert!(found == pattern(number, 256 << 10), "big{number} has other bytes");
    }
}

/// A sparse image on a host file system that fills up: writes fail, what was fsynced is there when there is
/// space again.
fn on_a_full_host(kind: &str, ending: Ending) {
    eprintln!("{kind}, {ending:?}");
    let place = tempfile::Builder::new().prefix("quire-host-").tempdir().unwrap();
    let host_dir = place.path().join("host");
    std::fs::create_dir(&host_dir).unwrap();
    let disk = place.path().join("disk.img");
    let _host = if kind == "tmpfs" {
        Attached::mount(Path::new("none"), &host_dir, &["-t", "tmpfs", "-o", "size=96M"])
    } else {
        std::fs::File::create(&disk).unwrap().set_len(96 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&disk));
        Attached::mount(&disk, &host_dir, &["-o", "loop"])
    };
    let ballast = host_dir.join("ballast");
    std::fs::write(&ballast, pattern(9, 40 << 20)).unwrap();

    let mut volume = Volume::new("16M");
    let real = host_dir.join("volume.img");
    std::fs::remove_file(volume.image()).unwrap();
    expect(&call!["mkfs", "--quiet", "--size=512M", real], 0, &[]);
    std::os::unix::fs::symlink(&real, volume.image()).unwrap();

    match ending {
        Ending::Kill => drop(volume.mount()),
        Ending::Unmount => expect(&mount_here(&volume, ""), 0, &[]),
    }
    let write = |number: u64, bytes: &[u8]| -> std::io::Result<()> {
        let mut file = std::fs::File::create(volume.path(&format!("big{number}")))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    let (mut durable, mut failures) = (Vec::new(), 0);
    for number in 0..400 {
        match write(number, &pattern(number, 256 << 10)) {
            Ok(()) => durable.push(number),
            Err(error) => {
                let errno = Errno::from_io_error(&error).expect("an error of the system");
                let fits =
                    [Errno::NOSPC, Errno::IO].contains(&errno) || (failures > 0 && errno == Errno::ROFS);
                assert!(fits, "{error}");
                failures += 1;
                if failures == 5 {
                    break;
                }
            }
        }
    }
    assert!(failures > 0, "400 files of 256 KiB do not fit");
    assert!(durable.len() > 20, "only {} files fitted", durable.len());
    // It still serves what it has.
    holds_big(&volume, &durable);
    match ending {
        Ending::Unmount => {
            let output = call!["umount", volume.mountpoint()];
            assert!([0, FAILED, NO_SPACE].map(Some).contains(&output.status.code()), "{}", text(&output));
            let is_refused = output.status.code() == Some(NO_SPACE);
            assert_eq!(is_mounted(&volume.mountpoint()), is_refused, "{}", text(&output));
            if is_refused {
                // What is not on disk is given up.
                run(Command::new("umount").arg(volume.mountpoint()));
            }
            assert!(!is_mounted(&volume.mountpoint()));
        }
        Ending::Kill => volume.kill(),
    }
    std::fs::remove_file(&ballast).unwrap();
    volume.check();
    volume.mount();
    holds_big(&volume, &durable);
    write_files(&volume.mountpoint(), 0..8);
    holds_files(&volume.mountpoint(), 0..8);
    volume.unmount();
    volume.check();
}

#[test]
fn a_full_host_disk_loses_nothing_that_was_fsynced() {
    let _turn = turn();
    let name = "a_full_host_disk_loses_nothing_that_was_fsynced";
    if !can_mount(name) {
        return;
    }
    for ending in [Ending::Kill, Ending::Unmount] {
        on_a_full_host("tmpfs", ending);
        if has("mkfs.ext4", name) {
            on_a_full_host("ext4", ending);
        }
    }
}

#[test]
fn mkfs_on_a_full_host_disk() {
    let _turn = turn();
    if !can_mount("mkfs_on_a_full_host_disk") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let _host = Attached::mount(Path::new("none"), place.path(), &["-t", "tmpfs", "-o", "size=1M"]);
    let image = place.path().join("a.img");
    expect(&call!["mkfs", "--size=64M", "--journal-size=2M", image], NO_SPACE, &["a.img", "space"]);
    // A half-made volume is no volume.
    if image.exists() {
        expect(&call!["info", image], NOT_A_VOLUME, &["holds no Quire volume"]);
    }
}

/// A salvage into a full file system left the file that did not fit cut short, went on, and said that all
/// that can be read was copied. Nor did it notice what the host could not write behind the copy.
#[test]
fn a_salvage_ends_where_its_target_is_full() {
    let _turn = turn();
    let name = "a_salvage_ends_where_its_target_is_full";
    if !can_mount(name) {
        return;
    }
    let source = Volume::new("64M");
    let opened = quire::Volume::open(source.image()).unwrap();
    for number in 0..5 {
        opened.write(format!("big{number}"), pattern(number, 5 << 20)).unwrap();
    }
    opened.close().unwrap();
    let place = tempfile::Builder::new().prefix("quire-host-").tempdir().unwrap();
    let (host, late) = (place.path().join("host"), place.path().join("late"));
    std::fs::create_dir(&host).unwrap();
    std::fs::create_dir(&late).unwrap();
    let _host = Attached::mount(Path::new("none"), &host, &["-t", "tmpfs", "-o", "size=16M"]);
    let out = host.join("out");
    expect(&call!["salvage", source.image(), out], NO_SPACE, &["ended at /big", "is not whole", "more room"]);
    let copied = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(copied.collect::<Vec<_>>(), vec![5 << 20; 3], "a file was cut short");
    // One with room for the copy, on a disk that has none.
    if has("mkfs.ext4", name) {
        let disk = host.join("disk.img");
        std::fs::remove_dir_all(&out).unwrap();
        std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&disk));
        let _late = Attached::mount(&disk, &late, &["-o", "loop"]);
        let failed = call!["salvage", source.image(), late.join("out")];
        // The kernel may call it an I/O error.
        assert!([FAILED, NO_SPACE].map(Some).contains(&failed.status.code()), "{}", text(&failed));
        assert!(text(&failed).contains("when all was made durable"), "{}", text(&failed));
    }
}
