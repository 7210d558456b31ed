//! The program as people call it: the names that it is called by, what its commands say, and every mistake
//! with its own message and exit code.

mod common;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::place::{Place, expect, on_image};
use common::{QUIRE, can_mount, has, quire, text};

/// Paths that are not UTF-8 made JSON panic, and `mount` wait for the end of the mount.
#[test]
fn paths_need_not_be_utf8() {
    if !can_mount("paths_need_not_be_utf8") || !has("unshare", "paths_need_not_be_utf8") {
        return;
    }
    // In a name space of its own: others read the mount table as text.
    let script = r#"
set -eu
cd "$1"
quire=$2 odd=$(printf '\377')
mv a.img "a$odd.img"
mkdir "d$odd" "state$odd"
trap '"$quire" umount "d$odd"' EXIT
XDG_STATE_HOME=$PWD/state$odd timeout 60 "$quire" mount "a$odd.img" "d$odd"
echo x >"d$odd/f$odd"
"$quire" info --json --mount "d$odd"
"$quire" lease --json "d$odd/f$odd"
"#;
    let place = Place::with_volume();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "bash", "-c", script, "sh"]);
    let done = shell.arg(place.0.path()).arg(QUIRE).output().unwrap();
    expect(&done, 0, &["d\u{fffd}", "f\u{fffd}", "a\u{fffd}.img"]);
}

/// What could not be printed was no failure.
#[test]
fn a_full_output_is_a_failure() {
    let place = Place::with_volume();
    let image = place.image();
    let call = |words: &[&str], code: i32| {
        let mut command = Command::new(QUIRE);
        command.args(words).stdout(std::fs::File::create("/dev/full").unwrap());
        expect(&command.output().unwrap(), code, &["standard output"]);
    };
    let image = image.to_str().unwrap();
    call(&["snapshot", "list", "--json", image], 2);
    call(&["info", image], 2);
    call(&["completions", "bash"], 2);
    call(&["fsck", image], 8);
}

#[test]
fn mistakes_before_anything_is_mounted() {
    let place = Place::with_volume();
    let other = |image: &Path| quire(&["mount".as_ref(), image.as_os_str(), place.dir().as_os_str()]);
    expect(&other(Path::new("/nonexistent.img")), 37, &["does not exist", "quire mkfs"]);
    expect(&other(Path::new("/dev/null")), 33, &["neither an image file nor"]);
    expect(&other(place.0.path()), 37, &["is a directory"]);
    std::fs::write(place.path("text"), "no volume").unwrap();
    expect(&other(&place.path("text")), 33, &["holds no Quire volume"]);
    expect(&place.mount("fastplease"), 1, &["'fastplease'"]);
    let onto = |dir: &Path| quire(&["mount".as_ref(), place.image().as_os_str(), dir.as_os_str()]);
    expect(&onto(Path::new("/nonexistent")), 37, &["mount point /nonexistent"]);
    expect(&onto(&place.path("text")), 37, &["is not a directory"]);
    expect(&onto(Path::new("/proc")), 36, &["already mounted at /proc"]);
    expect(&quire(&["umount".as_ref(), place.dir().as_os_str()]), 37, &["nothing is mounted"]);
    expect(&quire(&["umount", "/proc"]), 37, &["type proc"]);
    expect(&quire(&["frobnicate"]), 1, &["frobnicate"]);
    expect(&quire(&["fsck"]), 16, &[]);
    expect(&quire(&["fsck".as_ref(), place.path("text").as_os_str()]), 8, &[]);
    let mkfs = |words: &[&str]| {
        let image = place.image();
        quire(
            &[
                &[OsStr::new("mkfs")],
                words.iter().map(OsStr::new).collect::<Vec<_>>().as_slice(),
                &[image.as_os_str()],
            ]
            .concat(),
        )
    };
    expect(&mkfs(&[]), 37, &["already holds", "--force"]);
    expect(&mkfs(&["--size=lots"]), 1, &["not a size"]);
    let label = format!("--label={}", "x".repeat(65));
    expect(&mkfs(&["--force", &label]), 1, &["label"]);
    expect(&quire(&["info".as_ref(), place.image().as_os_str()]), 0, &["clean"]);
}

/// Images were once made with the mode 0644: on a system of many users all could read what was in them, past
/// the permissions of the files.
#[test]
fn images_are_for_their_owner_alone() {
    let place = Place::with_volume();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.image()), 0o600);
    let open = place.path("open.img");
    std::fs::write(&open, "").unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let made = quire(&["mkfs".as_ref(), "--size=32M".as_ref(), open.as_os_str()]);
    expect(&made, 0, &["warning", "0644", "chmod 600"]);
    assert_eq!(mode(&open), 0o644, "what was there keeps its mode");
}

#[test]
fn damaged_volumes() {
    let place = Place::with_volume();
    if can_mount("damaged_volumes") {
        expect(&place.mount(""), 0, &[]);
        expect(&place.mount(""), 36, &["already mounted"]);
        std::fs::create_dir(place.path("second")).unwrap();
        let twice = quire(&["mount".as_ref(), place.image().as_os_str(), place.path("second").as_os_str()]);
        expect(&twice, 36, &["already open", "mounted at"]);
        std::fs::write(place.path("mnt/file"), "kept").unwrap();
        expect(&place.umount(), 0, &[]);
        // A second copy of a superblock serves as the first does.
        place.corrupt(0);
        expect(&place.mount(""), 0, &["first copy of a superblock"]);
        assert_eq!(std::fs::read(place.path("mnt/file")).unwrap(), b"kept");
        expect(&place.umount(), 0, &[]);
        // One superblock is enough.
        let size = std::fs::metadata(place.image()).unwrap().len();
        place.corrupt(0);
        place.corrupt(size / 4096 - 16);
        expect(&place.mount(""), 0, &["the other one was taken"]);
        assert_eq!(std::fs::read(place.path("mnt/file")).unwrap(), b"kept");
        expect(&place.umount(), 0, &[]);
        let image = std::fs::File::options().write(true).open(place.image()).unwrap();
        image.set_len(size / 2).unwrap();
        expect(&place.mount(""), 35, &["truncated"]);
        image.set_len(size).unwrap();
    }
    place.corrupt(0);
    place.corrupt(8);
    let output = quire(&["info".as_ref(), place.image().as_os_str()]);
    assert!(matches!(output.status.code(), Some(33 | 35)), "{}", text(&output));
}

#[test]
fn an_image_that_may_not_be_written_is_mounted_read_only() {
    if !can_mount("an_image_that_may_not_be_written_is_mounted_read_only") {
        return;
    }
    let place = Place::with_volume();
    expect(&place.mount("ro"), 0, &[]);
    let refused = std::fs::write(place.path("mnt/file"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    expect(&place.umount(), 0, &[]);
}

/// At boot a network brings some volumes later than their mounts are asked for: those are waited for, not for
/// ever.
#[test]
fn volumes_behind_a_network_may_come_late() {
    let directory = tempfile::tempdir().unwrap();
    let (image, made) = (directory.path().join("late.img"), directory.path().join("made.img"));
    assert!(quire(&["mkfs".as_ref(), "--size=64M".as_ref(), made.as_os_str()]).status.success());
    // `-f`: everything but the mount itself.
    let mount = |options: &str| {
        let mut command = Command::new(QUIRE);
        command.arg0("mount.quire").arg(&image).arg(directory.path()).args(["-f", "-o", options]);
        let started = Instant::now();
        (command.output().unwrap(), started.elapsed())
    };
    let (absent, took) = mount("wait=1");
    expect(&absent, 32, &["does not exist"]);
    assert!(took >= Duration::from_secs(1), "{took:?}");
    expect(&mount("rw").0, 32, &["does not exist"]);
    let coming = std::thread::spawn({
        let image = image.clone();
        move || {
            std::thread::sleep(Duration::from_millis(500));
            std::fs::rename(made, image).unwrap();
        }
    });
    let (late, took) = mount("_netdev,noatime");
    coming.join().unwrap();
    assert!(late.status.success() && took >= Duration::from_millis(400), "{took:?} {}", text(&late));
}

#[test]
fn by_the_names_of_the_mount_helpers() {
    if !can_mount("by_the_names_of_the_mount_helpers") {
        return;
    }
    let place = Place::with_volume();
    let call = |name: &str, arguments: &[&OsStr]| {
        let link = place.path(name);
        if !link.exists() {
            std::os::unix::fs::symlink(QUIRE, &link).unwrap();
        }
        Command::new(link).args(arguments).output().unwrap()
    };
    let (image, dir) = (place.image(), place.dir());
    let log = format!("rw,noauto,x-test,log={}", place.path("log").display());
    let words: Vec<&OsStr> =
        vec![image.as_os_str(), dir.as_os_str(), "-n".as_ref(), "-v".as_ref(), "-o".as_ref(), log.as_ref()];
    for name in ["mount.quire", "mount.fuse.quire"] {
        expect(&call(name, &words), 0, &["mounted on"]);
        expect(&call(name, &words), 32, &["already mounted"]);
        expect(&call("umount.quire", &[dir.as_os_str()]), 0, &[]);
    }
    // umount(8) with -f passes it on, and it cuts the server off.
    expect(&place.mount(""), 0, &[]);
    let open = std::fs::File::create(dir.join("file")).unwrap();
    expect(&call("umount.fuse.quire", &[dir.as_os_str(), "-f".as_ref()]), 32, &["busy"]);
    open.metadata().unwrap_err();
    drop(open);
    expect(&call("umount.fuseblk.quire", &[dir.as_os_str()]), 0, &[]);
    let wrong = [image.as_os_str(), dir.as_os_str(), "-o".as_ref(), "bogus".as_ref()];
    expect(&call("mount.quire", &wrong), 1, &["'bogus'"]);
    let fake =
        [image.as_os_str(), dir.as_os_str(), "-f".as_ref(), "-s".as_ref(), "-o".as_ref(), "bogus".as_ref()];
    expect(&call("mount.quire", &fake), 0, &[]);
    expect(&call("mount.quire", &[image.as_os_str()]), 1, &["SOURCE DIR"]);
    let second = place.path("b.img");
    expect(&call("mkfs.quire", &["--size=32M".as_ref(), second.as_os_str()]), 0, &["32 MiB"]);
    expect(&call("fsck.quire", &["-a".as_ref(), second.as_os_str()]), 0, &["clean"]);
}

#[test]
fn properties_of_what_is_on_a_mount() {
    if !can_mount("properties_of_what_is_on_a_mount") {
        return;
    }
    let place = Place::with_volume();
    expect(&place.mount(""), 0, &[]);
    let call = |words: &str| {
        let words = words.split(' ').map(|word| match word.strip_prefix("mnt") {
            Some(rest) => format!("{}{rest}", place.dir().display()),
            None => word.to_owned(),
        });
        quire(&words.collect::<Vec<_>>())
    };
    std::fs::create_dir_all(place.path("mnt/db/old")).unwrap();
    std::fs::write(place.path("mnt/db/old/file"), "x").unwrap();
    std::os::unix::fs::symlink("old", place.path("mnt/db/link")).unwrap();
    expect(&call("get mnt/db"), 0, &["untorn=off cache=keep", "/mnt/db"]);
    expect(&call("set untorn=8k mnt/db"), 0, &[]);
    std::fs::write(place.path("mnt/db/new"), "x").unwrap();
    let lacking = call("get -r --require untorn=8k mnt/db");
    expect(&lacking, 32, &["2 of 4 files and directories lack untorn=8k", "db/old/file", "db/old\n"]);
    assert!(!text(&lacking).contains("db/new"), "{}", text(&lacking));
    expect(&call("set -r untorn=16k cache=drop mnt/db"), 0, &[]);
    expect(&call("get --recursive --require untorn=8k --require cache=drop mnt/db"), 0, &[]);
    expect(
        &call("get mnt/db/old/file mnt/db/link"),
        0,
        &["untorn=16k cache=drop", "db/old/file", "db/old\n"],
    );
    expect(&call("get --require cache=keep mnt/db/new"), 32, &["1 of 1 file or directory lack cache=keep"]);
    expect(&call("set untorn=off cache=keep mnt/db/new"), 0, &[]);
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("had untorn=16k and has untorn=off"), "{log}");
    // A path with `=` in it was taken for a setting, also where it said that it was none.
    std::fs::write(place.path("mnt/db/a=b"), "x").unwrap();
    expect(&call("set untorn=8k mnt/db/a=b"), 0, &[]);
    expect(&call("get --require untorn=8k mnt/db/a=b"), 0, &[]);

    // Elsewhere the same attributes mean nothing.
    expect(&call("get /tmp"), 37, &["not on a mount of a Quire volume"]);
    expect(&call("set untorn=8k /tmp"), 37, &["not on a mount"]);
    expect(&call("set untorn=9k mnt/db"), 1, &["9216 bytes", "power of two"]);
    expect(&call("set mnt/db mnt/db/new"), 1, &["usage: quire set"]);
    expect(&call("get mnt/none"), 37, &["mnt/none"]);
    std::fs::create_dir(place.path("mnt/db/other")).unwrap();
    let other = place.path("mnt/db/other");
    rustix::mount::mount("none", &other, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    expect(
        &call("get -r --require untorn=16k mnt/db"),
        32,
        &["another file system is mounted there", "db/new"],
    );
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).unwrap();
    expect(&place.umount(), 0, &[]);
}

/// Detaches a mount when dropped.
struct Detached(std::path::PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// An unmount succeeded without a word though the host's disk had no room for what had been written: half of
/// a file was gone, and only the log said so. It did so again where the server could not be asked whether it
/// was frozen, as from another network name space.
#[test]
fn an_unmount_that_would_lose_data_is_refused() {
    if !can_mount("an_unmount_that_would_lose_data_is_refused") || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let host = place.path("host");
    std::fs::create_dir(&host).unwrap();
    common::run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24M", "tmpfs"]).arg(&host));
    let _gone = Detached(host.clone());
    let call = |line: &str| {
        let arguments = line.split(' ');
        Command::new(QUIRE).args(arguments).current_dir(place.0.path()).output().unwrap()
    };
    expect(&call("mkfs --quiet --size 64M host/x.img"), 0, &[]);
    expect(&call("mount -o log=log host/x.img mnt"), 0, &[]);
    let content = common::pattern(5, 40 << 20);
    std::fs::write(place.path("mnt/file"), &content).unwrap();
    let stays = ["mnt stays mounted", "make room where the image lies", "--lazy"];
    expect(&call("umount mnt"), 39, &stays);
    assert!(common::is_mounted(&place.path("mnt")));
    let mut apart = Command::new("unshare");
    apart.args(["--net", QUIRE, "umount", "mnt"]).current_dir(place.0.path());
    expect(&apart.output().unwrap(), 39, &stays);
    assert!(common::is_mounted(&place.path("mnt")));
    common::run(Command::new("mount").args(["-o", "remount,size=200M"]).arg(&host));
    expect(&call("umount mnt"), 0, &[]);
    expect(&call("mount -o log=log host/x.img mnt"), 0, &[]);
    assert!(std::fs::read(place.path("mnt/file")).unwrap() == content);
    expect(&call("umount mnt"), 0, &[]);
}

/// An unmount whose server could not close the volume exited with 0: only the server's log had the error.
#[test]
fn an_unmount_tells_that_the_volume_was_not_closed() {
    if !can_mount("an_unmount_tells_that_the_volume_was_not_closed") {
        return;
    }
    let place = Place::new();
    let host = place.path("host");
    std::fs::create_dir(&host).unwrap();
    common::run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24M", "tmpfs"]).arg(&host));
    let _gone = Detached(host.clone());
    let call =
        |line: &str| Command::new(QUIRE).args(line.split(' ')).current_dir(place.0.path()).output().unwrap();
    expect(&call("mkfs --quiet --size 64M host/x.img"), 0, &[]);
    expect(&call("mount -o log=log,commit=3600 host/x.img mnt"), 0, &[]);
    for number in 0..2000 {
        std::fs::write(place.path(&format!("mnt/{number}")), "").unwrap();
    }
    // All is in the journal then. The last checkpoint needs blocks of the host that it does not have.
    expect(&call("ctl sync mnt"), 0, &[]);
    let _ = std::fs::write(host.join("filler"), vec![1; 24 << 20]);
    expect(&call("umount mnt"), 32, &["mnt is unmounted, but closing", "the next mount recovers"]);
    std::fs::remove_file(host.join("filler")).unwrap();
    expect(&call("mount -o log=log host/x.img mnt"), 0, &["recovered"]);
    assert!(place.path("mnt/1999").exists());
    expect(&call("umount mnt"), 0, &[]);
}

/// What the kernel keeps may find no room in the volume. An unmount was refused for it, with advice for a
/// host that is full, although it was lost already.
#[test]
fn an_unmount_tells_what_the_kernel_gave_up() {
    if !can_mount("an_unmount_tells_what_the_kernel_gave_up") {
        return;
    }
    let place = Place::new();
    let call = |line: &str| {
        let arguments = line.split(' ');
        Command::new(QUIRE).args(arguments).current_dir(place.0.path()).output().unwrap()
    };
    expect(&call("mkfs --quiet --size 64M x.img"), 0, &[]);
    expect(&call("mount -o log=log,cache=writeback x.img mnt"), 0, &[]);
    let mut file = std::fs::File::create(place.path("mnt/file")).unwrap();
    // A writer that the kernel holds back may be told itself.
    let _ = std::io::Write::write_all(&mut file, &common::pattern(5, 100 << 20));
    drop(file);
    let said = ["mnt is unmounted, but not all", "the kernel gave pages up", "No space left"];
    expect(&call("umount mnt"), 32, &said);
    assert!(!common::is_mounted(&place.path("mnt")));
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert_eq!(log.matches("the kernel gives up what was written").count(), 1, "{log}");
    expect(&call("fsck x.img"), 0, &[]);
    expect(&call("mount -o log=log,cache=writeback x.img mnt"), 0, &[]);
    std::fs::remove_file(place.path("mnt/file")).unwrap();
    std::fs::write(place.path("mnt/other"), "x").unwrap();
    expect(&call("umount mnt"), 0, &[]);
}

#[test]
fn the_first_command() {
    if !can_mount("the_first_command") {
        return;
    }
    let place = Place::new();
    let up = || {
        Command::new(QUIRE)
            .args(["up", "mnt"])
            .current_dir(place.0.path())
            .env("XDG_STATE_HOME", place.0.path())
            .output()
            .unwrap()
    };
    expect(&up(), 0, &["Made quire.img", "torn reads, 4k, buffered", "Try:", "umount"]);
    expect(&up(), 0, &["already mounted", "Try:"]);
    std::fs::write(place.path("mnt/file"), "x").unwrap();
    expect(&place.umount(), 0, &[]);
    expect(&up(), 0, &["quire.img is mounted"]);
    assert_eq!(std::fs::read(place.path("mnt/file")).unwrap(), b"x");
    expect(&place.umount(), 0, &[]);
}

#[test]
fn dumps_are_readable_and_json() {
    let place = Place::with_volume();
    let dump = |json: bool, part: &[&str]| {
        let image = place.image();
        let mut words = vec![OsStr::new("dump")];
        if json {
            words.push(OsStr::new("--json"));
        }
        words.push(image.as_os_str());
        words.extend(part.iter().map(OsStr::new));
        quire(&words)
    };
    expect(&dump(false, &["superblock"]), 0, &["slot 0", "slot 1", "block_count"]);
    let zeros = place.path("zeros");
    std::fs::write(&zeros, [0; 1 << 20]).unwrap();
    expect(
        &quire(&["dump".as_ref(), zeros.as_os_str(), "superblock".as_ref()]),
        33,
        &["slot 1: no Quire volume"],
    );
    expect(&dump(false, &["tree"]), 0, &["Inode"]);
    expect(&dump(false, &["journal"]), 0, &["0 records"]);
    expect(&dump(false, &["inode", "1"]), 0, &["inode 1"]);
    expect(&dump(false, &["inode", "99"]), 37, &["no inode 99"]);
    for part in [&["superblock"][..], &["tree"], &["inode", "1"]] {
        let output = dump(true, part);
        expect(&output, 0, &[]);
        let lines = String::from_utf8(output.stdout).unwrap();
        let whole = serde_json::from_str::<serde_json::Value>(&lines).is_ok();
        assert!(whole || lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }
}

#[test]
fn snapshots_are_taken_read_and_rolled_back_to() {
    let place = Place::with_volume();
    let write = |text: &str| {
        let volume = quire::Volume::open(place.image()).unwrap();
        volume.write("note", text).unwrap();
        expect(&on_image(&place, &["snapshot", "create"], &["late"]), 36, &["already open"]);
        volume.close().unwrap();
    };
    write("first");
    expect(&on_image(&place, &["snapshot", "create"], &["monday"]), 0, &[]);
    expect(&on_image(&place, &["snapshot", "create"], &["monday"]), 37, &["monday", "exists"]);
    expect(&on_image(&place, &["snapshot", "create"], &["a/b"]), 1, &["a/b"]);
    write("second");
    expect(&on_image(&place, &["snapshot", "create"], &["tuesday"]), 0, &[]);
    write("third");
    expect(&on_image(&place, &["snapshot", "list"], &[]), 0, &["monday", "tuesday", "alone"]);
    let names = on_image(&place, &["snapshot", "list", "--no-space"], &[]);
    expect(&names, 0, &["monday", "tuesday"]);
    assert!(!text(&names).contains("alone") && !text(&names).contains("held"), "{}", text(&names));
    // `info` took a lock for this, which kept mounts and repairs from opening the volume meanwhile.
    let locked = std::fs::File::open(place.image()).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    expect(&on_image(&place, &["info"], &[]), 0, &["snapshots only"]);
    drop(locked);
    let read = |name: &str| {
        let volume = quire::VolumeOptions::new().read_only(true).snapshot(name).open(place.image()).unwrap();
        let text = volume.read_to_string("note").unwrap();
        assert!(volume.write("note", "other").is_err(), "a snapshot takes no changes");
        volume.close().unwrap();
        text
    };
    assert_eq!((read("monday"), read("tuesday")), ("first".into(), "second".into()));
    expect(&on_image(&place, &["snapshot", "rollback"], &["monday"]), 1, &["newest"]);
    expect(&on_image(&place, &["snapshot", "delete"], &["wednesday"]), 37, &["wednesday"]);
    expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
    expect(&on_image(&place, &["snapshot", "rollback"], &["tuesday"]), 0, &[]);
    let volume = quire::Volume::open(place.image()).unwrap();
    assert_eq!(volume.read_to_string("note").unwrap(), "second");
    volume.close().unwrap();
    for name in ["monday", "tuesday"] {
        expect(&on_image(&place, &["snapshot", "delete"], &[name]), 0, &[]);
        expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
    }
    expect(&on_image(&place, &["snapshot", "list", "--json"], &[]), 0, &["[]"]);
}
