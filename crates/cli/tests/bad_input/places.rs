//! Images and mount points that are in use, are not there, may not be written, or are something else.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use super::support::*;
use crate::common::{Volume, can_mount, has, is_mounted, run, text};

#[test]
fn a_volume_that_is_open_already() {
    let _turn = turn();
    if !can_mount("a_volume_that_is_open_already") {
        return;
    }
    let volume = filled();
    let (image, dir) = (volume.image(), volume.mountpoint());
    let second = image.with_file_name("second");
    std::fs::create_dir(&second).unwrap();
    expect(&mount_here(&volume, ""), 0, &[]);
    let mounted_at = format!("mounted at {}", dir.display());
    for options in ["", "ro"] {
        expect(&mount(&volume, options, &image, &second), IN_USE, &["already open", &mounted_at]);
        expect(&mount(&volume, options, &image, &dir), IN_USE, &["already mounted at", "quire umount"]);
    }
    expect(&call!["fsck", image], FSCK_COULD_NOT_RUN, &["already open"]);
    expect(&call!["fsck", "--repair", image], FSCK_COULD_NOT_RUN, &["already open"]);
    expect(&call!["mkfs", "--force", image], IN_USE, &["already open"]);
    let plain = call!["mkfs", image];
    assert!([IN_USE, MISSING].map(Some).contains(&plain.status.code()), "{}", text(&plain));
    assert!(!is_mounted(&second));
    // The one that has it goes on.
    holds_files(&dir, 0..8);
    write_files(&dir, 8..10);
    unmount(&dir);
    volume.check();

    // Readers stand one another, not a writer.
    expect(&mount_here(&volume, "ro"), 0, &[]);
    expect(&mount(&volume, "ro", &image, &second), 0, &[]);
    holds_files(&second, 0..10);
    unmount(&second);
    expect(&mount(&volume, "", &image, &second), IN_USE, &["already open", &mounted_at]);
    expect(&call!["fsck", image], 0, &["clean"]);
    unmount(&dir);
}

#[test]
fn mkfs_leaves_an_open_image_its_length() {
    let _turn = turn();
    if !can_mount("mkfs_leaves_an_open_image_its_length") {
        return;
    }
    let volume = filled();
    let (image, dir) = (volume.image(), volume.mountpoint());
    expect(&mount_here(&volume, ""), 0, &[]);
    for size in ["32M", "64M", "128M"] {
        expect(&call!["mkfs", "--force", format!("--size={size}"), image], IN_USE, &["already open"]);
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 << 20, "after --size={size}");
    }
    holds_files(&dir, 0..8);
    unmount(&dir);
    volume.check();
}

#[test]
fn paths_through_a_file() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let below = volume.image().join("below");
    keeping(&volume.image(), || {
        expect(&mount(&volume, "", &volume.image(), &below), MISSING, &["mount point", "below"]);
        expect(&mount(&volume, "", &below, &volume.mountpoint()), MISSING, &["volume", "below"]);
        expect(&call!["mkfs", "--size=64M", below], MISSING, &["below"]);
        expect(&call!["umount", below], MISSING, &["below"]);
    });
}

#[test]
fn mount_points_that_are_none() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let image = volume.image();
    let at = |dir: &Path| keeping(&image, || mount(&volume, "", &image, dir));
    expect(&at(&volume.path("missing")), MISSING, &["mount point", "missing"]);
    let file = image.with_file_name("a file");
    std::fs::write(&file, "x").unwrap();
    expect(&at(&file), MISSING, &["mount point", "a file", "not a directory"]);
    expect(&at(Path::new("/proc")), IN_USE, &["already mounted at /proc", "another directory"]);
    expect(&call!["umount", volume.mountpoint()], MISSING, &["nothing is mounted at", "mnt"]);
    expect(&call!["umount", "--lazy", volume.mountpoint()], MISSING, &["nothing is mounted at"]);
    expect(&call!["umount", volume.path("missing")], MISSING, &["missing"]);
    expect(&call!["umount", "/proc"], MISSING, &["type proc"]);
    if !can_mount("mount_points_that_are_none (its second half)") {
        return;
    }
    let other = Volume::new("64M");
    expect(&mount_here(&other, ""), 0, &[]);
    expect(&at(&other.mountpoint()), IN_USE, &["already mounted at"]);
    // A mount that somebody works in stays, and says how to find out who.
    let user = std::fs::File::create(other.path("open")).unwrap();
    expect(&call!["umount", other.mountpoint()], IN_USE, &["in use", "--lazy"]);
    assert!(is_mounted(&other.mountpoint()));
    drop(user);
    unmount(&other.mountpoint());
    other.check();
}

/// Mounts `source`, which leads to a crashed volume's image but not to write it; reads, and changes nothing.
fn serves_read_only(volume: &Volume, options: &str, source: &Path, words: &[&str]) {
    let dir = volume.mountpoint();
    keeping(&volume.image(), || {
        expect(&mount(volume, options, source, &dir), 0, words);
        holds_files(&dir, 0..8);
        let denied = Some(Errno::ROFS.raw_os_error());
        assert_eq!(std::fs::write(dir.join("new"), "x").unwrap_err().raw_os_error(), denied);
        assert_eq!(std::fs::remove_file(dir.join("file1")).unwrap_err().raw_os_error(), denied);
        assert_eq!(std::fs::create_dir(dir.join("directory")).unwrap_err().raw_os_error(), denied);
        unmount(&dir);
        expect(&call!["fsck", source], 0, &["clean"]);
        assert!(live_journal(&volume.image()).len() >= 8, "it still has to be replayed");
    });
}

#[test]
fn a_read_only_image_is_replayed_in_memory() {
    let _turn = turn();
    if !can_mount("a_read_only_image_is_replayed_in_memory") {
        return;
    }
    let volume = crashed();
    let image = volume.image();
    serves_read_only(&volume, "ro", &image, &[]);

    let directory = image.with_file_name("read-only");
    std::fs::create_dir(&directory).unwrap();
    {
        let _bound = Attached::mount(image.parent().unwrap(), &directory, &["--bind"]);
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&directory));
        let bound = directory.join("volume.img");
        serves_read_only(&volume, "", &bound, &["may not be written", "mounted read-only"]);
        keeping(&image, || expect(&call!["mkfs", "--force", bound], FAILED, &["volume.img", "ead-only"]));
    }
    // Nothing was lost by all the looking.
    expect(&mount_here(&volume, ""), 0, &["recovered"]);
    holds_files(&volume.mountpoint(), 0..8);
    unmount(&volume.mountpoint());
    volume.check();
}

#[test]
fn a_read_only_device_is_replayed_in_memory() {
    let _turn = turn();
    let name = "a_read_only_device_is_replayed_in_memory";
    if !can_mount(name) || !has("losetup", name) {
        return;
    }
    let volume = crashed();
    let image = volume.image();
    let device = run(Command::new("losetup").args(["--read-only", "--find", "--show"]).arg(&image));
    let device = PathBuf::from(device.trim());
    let _attached = Attached::Loop(device.clone());
    serves_read_only(&volume, "ro", &device, &[]);
    serves_read_only(&volume, "", &device, &["may not be written", "mounted read-only"]);
    keeping(&image, || expect(&call!["mkfs", "--force", device], FAILED, &["ead-only"]));
}
