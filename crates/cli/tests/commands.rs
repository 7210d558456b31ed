//! The program as people call it: background mounts, names it is called by, and every mistake with its own
//! message and exit code.

mod common;

use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{QUIRE, can_mount, has, quire, text};

/// A directory with a volume and a mount point; unmounts at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.dir()).unwrap();
        place
    }
    fn with_volume() -> Place {
        let place = Place::new();
        let made = quire(&[OsStr::new("mkfs"), OsStr::new("--size=64M"), place.image().as_os_str()]);
        assert!(made.status.success(), "{}", text(&made));
        place
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn image(&self) -> PathBuf {
        self.path("a.img")
    }
    fn dir(&self) -> PathBuf {
        self.path("mnt")
    }
    fn mount(&self, options: &str) -> Output {
        let log = format!("log={}", self.path("log").display());
        let list = if options.is_empty() { log } else { format!("{log},{options}") };
        quire(&[
            "mount".as_ref(),
            "-o".as_ref(),
            OsStr::new(&list),
            self.image().as_os_str(),
            self.dir().as_os_str(),
        ])
    }
    fn umount(&self) -> Output {
        quire(&[OsStr::new("umount"), self.dir().as_os_str()])
    }
    fn corrupt(&self, block: u64) {
        let file = std::fs::File::options().write(true).open(self.image()).unwrap();
        file.write_all_at(&[0xaa; 4096], block * 4096).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = quire(&[OsStr::new("umount"), OsStr::new("--lazy"), self.dir().as_os_str()]);
    }
}

fn expect(output: &Output, code: i32, words: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
}

#[test]
fn mounted_in_the_background_and_closed_by_umount() {
    if !can_mount("mounted_in_the_background_and_closed_by_umount") {
        return;
    }
    let place = Place::with_volume();
    for round in 0..3 {
        expect(&place.mount(""), 0, &[]);
        if round > 0 {
            assert_eq!(std::fs::read(place.path("mnt/file")).unwrap(), b"kept");
        }
        std::fs::write(place.path("mnt/file"), "kept").unwrap();
        expect(&place.umount(), 0, &[]);
        // Closed, not only unmounted: the very next look finds it clean.
        let info = quire(&[OsStr::new("info"), place.image().as_os_str()]);
        expect(&info, 0, &["clean"]);
    }
    assert!(std::fs::read_to_string(place.path("log")).unwrap().contains("is mounted on"));
}

/// A name that looked like a path was taken for the volume's: umount did not wait until the volume was
/// closed, a second mount of it waited for half a minute, and a dead server's mount was not cleared away.
#[test]
fn a_mount_shown_under_another_name() {
    if !can_mount("a_mount_shown_under_another_name") {
        return;
    }
    let place = Place::with_volume();
    for name in ["pool", "/by/another/name"] {
        expect(&place.mount(&format!("fsname={name}")), 0, &[]);
        assert!(std::fs::read_to_string("/proc/mounts").unwrap().contains(&format!("{name} ")));
        let _ = std::fs::create_dir(place.path("second"));
        let twice = quire(&["mount".as_ref(), place.image().as_os_str(), place.path("second").as_os_str()]);
        expect(&twice, 36, &["already open", &format!("mounted at {}", place.dir().display())]);
        std::fs::write(place.path("mnt/file"), "kept").unwrap();
        expect(&place.umount(), 0, &[]);
        expect(&quire(&[OsStr::new("info"), place.image().as_os_str()]), 0, &["clean"]);
    }
}

/// Where nobody collects ended processes (a container whose first process does not), umount waited for the
/// server's entry to leave the table of processes.
#[test]
fn an_ended_server_that_nobody_collects_is_not_waited_for() {
    if !can_mount("an_ended_server_that_nobody_collects_is_not_waited_for") {
        return;
    }
    // Servers become children of this process, which never looks at them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let place = Place::with_volume();
    expect(&place.mount(""), 0, &[]);
    expect(&place.umount(), 0, &[]);
    rustix::process::set_child_subreaper(None).unwrap();
}

/// A server was found by the mount point alone. While a detached mount was in use, commands for the volume
/// that was mounted there afterwards reached the old server, commands for the old volume reached the new one,
/// and `umount` waited for the old server's end.
#[test]
fn two_servers_of_one_mount_point_are_told_apart() {
    if !can_mount("two_servers_of_one_mount_point_are_told_apart") {
        return;
    }
    let place = Place::with_volume();
    let (old, new, dir) = (place.path("old.img"), place.image(), place.dir());
    std::fs::copy(&new, &old).unwrap();
    let log = format!("log={}", place.path("log").display());
    for options in [log.clone(), format!("{log},fsname=name")] {
        let mount = |image: &Path| {
            let words = ["mount", "-o", &options].map(OsStr::new);
            quire(&[&words[..], &[image.as_os_str(), dir.as_os_str()]].concat())
        };
        expect(&mount(&old), 0, &[]);
        let held = std::fs::File::create(place.path("mnt/held")).unwrap();
        expect(&quire(&[OsStr::new("umount"), OsStr::new("--lazy"), dir.as_os_str()]), 0, &[]);
        expect(&mount(&new), 0, &[]);
        let snapshot = |words: &[&str], of: &Path, name: &[&str]| {
            let words = [&["snapshot"], words].concat();
            let name = name.iter().map(OsStr::new);
            quire(&words.iter().map(OsStr::new).chain([of.as_os_str()]).chain(name).collect::<Vec<_>>())
        };
        expect(&snapshot(&["create"], &dir, &["of-the-new"]), 0, &[]);
        expect(&snapshot(&["list"], &new, &[]), 0, &["of-the-new"]);
        // It is open, and mounted nowhere that could be reached.
        expect(&snapshot(&["list"], &old, &[]), 36, &["open"]);
        let started = Instant::now();
        expect(&place.umount(), 0, &[]);
        assert!(started.elapsed() < Duration::from_secs(20), "it waited for the other server");
        let list = snapshot(&["list", "--json", "--no-space"], &new, &[]);
        expect(&list, 0, &["of-the-new"]);
        assert!(!text(&list).contains("bytes"), "{}", text(&list));
        expect(&snapshot(&["delete"], &new, &["of-the-new"]), 0, &[]);
        drop(held);
        while snapshot(&["list"], &old, &[]).status.code() == Some(36) {
            assert!(started.elapsed() < Duration::from_secs(60), "the old server lives on");
            std::thread::sleep(Duration::from_millis(50));
        }
        let list = snapshot(&["list", "--json"], &old, &[]);
        expect(&list, 0, &["[]"]);
    }
}

#[test]
fn a_stop_signal_unmounts_and_closes() {
    if !can_mount("a_stop_signal_unmounts_and_closes") {
        return;
    }
    let place = Place::with_volume();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Command::new(QUIRE)
            .args(["mount", "--foreground"])
            .args([place.image(), place.dir()])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let marker = place.path("mnt/marker");
        while std::fs::metadata(place.dir()).unwrap().ino_of_root() != 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::fs::write(&marker, "x").unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&server), signal).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!marker.exists(), "it is unmounted");
    }
}

trait Root {
    fn ino_of_root(&self) -> u64;
}
impl Root for std::fs::Metadata {
    fn ino_of_root(&self) -> u64 {
        std::os::unix::fs::MetadataExt::ino(self)
    }
}

#[test]
fn a_dead_server_is_cleared_away() {
    if !can_mount("a_dead_server_is_cleared_away") {
        return;
    }
    let place = Place::with_volume();
    expect(&place.mount(""), 0, &[]);
    let image = place.image();
    let pid = server_of(&image).expect("the server runs");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let error = || std::fs::metadata(place.dir()).err().and_then(|error| error.raw_os_error());
    // Requests that were under way are told otherwise (ECONNABORTED).
    let start = std::time::Instant::now();
    while error() != Some(rustix::io::Errno::NOTCONN.raw_os_error()) {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", error());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    expect(&place.umount(), 0, &[]);
    expect(&place.mount(""), 0, &[]);
    expect(&place.umount(), 0, &[]);
}

#[test]
fn a_supervised_server_is_started_again() {
    if !can_mount("a_supervised_server_is_started_again") {
        return;
    }
    // With a block device as the mount's source, and without.
    for more in ["", ",fsname=/another/name"] {
        supervised(more);
    }
}

fn supervised(more: &str) {
    let place = Place::with_volume();
    let log = format!("log={}{more}", place.path("log").display());
    let mount = [
        OsStr::new("mount"),
        OsStr::new("--supervise"),
        OsStr::new("-o"),
        OsStr::new(&log),
        place.image().as_os_str(),
        place.dir().as_os_str(),
    ]
    .map(OsStr::to_owned);
    // The process that watches failed without a word, and all that was said was that the server had ended.
    let no_log = format!("log={}", place.dir().display());
    let unlogged = mount.clone().map(|word| if word == *log { OsStr::new(&no_log).to_owned() } else { word });
    expect(&quire(&unlogged), 2, &["opening the log file"]);
    expect(&quire(&mount), 0, &[]);
    expect(&quire(&mount), 36, &["already mounted"]);
    std::fs::write(place.path("mnt/file"), "kept").unwrap();
    std::fs::File::open(place.path("mnt/file")).unwrap().sync_all().unwrap();
    for _ in 0..2 {
        let server = server_of(&place.image()).expect("the server runs");
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let start = std::time::Instant::now();
        let again = || server_of(&place.image()).is_some_and(|pid| pid != server);
        while !(again() && std::fs::read(place.path("mnt/file")).is_ok_and(|kept| kept == b"kept")) {
            assert!(start.elapsed() < std::time::Duration::from_secs(30), "not mounted again");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    expect(&place.umount(), 0, &[]);
    assert!(server_of(&place.image()).is_none());
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("is mounted again"), "{log}");
}

/// The background server of a volume.
fn server_of(image: &Path) -> Option<rustix::process::Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ours = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.contains(&b"--report".as_slice()) && words.contains(&image.as_os_str().as_encoded_bytes())
    };
    let found = processes
        .filter(|entry| ours(&std::fs::read(entry.path().join("cmdline")).unwrap_or_default()))
        .find_map(|entry| entry.file_name().to_str()?.parse().ok())?;
    rustix::process::Pid::from_raw(found)
}

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
        expect(&place.mount(""), 0, &["newest superblock"]);
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

/// `quire` with words and the image of a place.
fn on_image(place: &Place, words: &[&str], behind: &[&str]) -> Output {
    let words = words.iter().map(OsStr::new);
    let image = place.image();
    let line: Vec<&OsStr> =
        words.chain([image.as_os_str()]).chain(behind.iter().map(|word| OsStr::new(*word))).collect();
    quire(&line)
}

#[test]
fn volumes_are_resized_and_named_while_nobody_has_them_open() {
    let place = Place::with_volume();
    let larger = ["resize", "--size=128M", "--journal-size=4M"];
    let open = quire::Volume::open(place.image()).unwrap();
    expect(&on_image(&place, &larger, &[]), 36, &["already open"]);
    expect(&on_image(&place, &["label"], &["other"]), 36, &["already open"]);
    open.close().unwrap();
    expect(&on_image(&place, &larger, &[]), 0, &["volume of 128 MiB, journal 4 MiB"]);
    expect(&on_image(&place, &["resize", "--size=64M"], &[]), 1, &["cannot be made smaller"]);
    expect(&on_image(&place, &["resize", "--journal-size=64M"], &[]), 1, &["here 32 MiB"]);
    expect(&on_image(&place, &["resize", "--size=max", "--quiet"], &[]), 0, &[]);
    expect(
        &quire(&[OsStr::new("resize"), OsStr::new("-s1G"), place.dir().as_os_str()]),
        37,
        &["a directory"],
    );
    expect(&on_image(&place, &["label"], &["spare"]), 0, &[]);
    expect(&on_image(&place, &["label"], &[]), 0, &["spare"]);
    let uuid = "01234567-89ab-4cde-8f01-23456789abcd";
    expect(&on_image(&place, &["uuid"], &["01234567"]), 1, &["neither `new` nor a uuid"]);
    expect(&on_image(&place, &["uuid"], &[uuid]), 0, &[uuid]);
    expect(&on_image(&place, &["uuid"], &[]), 0, &[uuid]);
    expect(&on_image(&place, &["info"], &[]), 0, &["128 MiB", "spare", uuid]);
    let new = on_image(&place, &["uuid"], &["new"]);
    assert!(new.status.success() && !common::text(&new).contains(uuid));
    expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
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

#[test]
fn volumes_grow_while_nobody_has_them_open() {
    let place = Place::with_volume();
    let open = quire::Volume::open(place.image()).unwrap();
    expect(&on_image(&place, &["grow", "--size=128M"], &[]), 36, &["already open"]);
    open.close().unwrap();
    expect(&on_image(&place, &["grow", "--size=128M"], &[]), 0, &["volume of 128 MiB"]);
    expect(&on_image(&place, &["grow", "--size=64M"], &[]), 1, &["cannot be made smaller"]);
    std::fs::File::options().write(true).open(place.image()).unwrap().set_len(200 << 20).unwrap();
    expect(&on_image(&place, &["grow"], &[]), 0, &["volume of 200 MiB"]);
    expect(&quire(&[OsStr::new("grow"), place.dir().as_os_str()]), 37, &["a directory"]);
    expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
}

/// A mounted volume that is full grows while programs read and write it: what they get is what `df` says, and
/// what they have synced survives a kill of the server right after it.
#[test]
fn a_mounted_volume_grows() {
    use common::{TRANSPORTS, Volume, pattern};
    if !can_mount("a_mounted_volume_grows") {
        return;
    }
    const PIECE: usize = 1 << 20;
    let write = |path: &Path, seed: u64| -> std::io::Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::create(path)?;
        file.write_all(&pattern(seed, PIECE))?;
        file.sync_all()
    };
    let free = |dir: &Path| rustix::fs::statvfs(dir).map(|now| (now.f_blocks, now.f_bavail)).unwrap();
    for transport in TRANSPORTS {
        let mut volume = Volume::new("64M");
        volume.set_transport(transport);
        volume.mount();
        let dir = volume.mountpoint();
        let grow = |place: &Path, words: &[&str]| {
            let words = words.iter().map(OsStr::new);
            quire(&[OsStr::new("grow"), place.as_os_str()].into_iter().chain(words).collect::<Vec<_>>())
        };
        let mut written = 0;
        let mut fill = |limit: u64| loop {
            match write(&volume.path(&format!("f{written}")), written) {
                Ok(()) if written == limit => break true,
                Ok(()) => written += 1,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                    let _ = std::fs::remove_file(volume.path(&format!("f{written}")));
                    break false;
                }
            }
        };
        std::fs::write(volume.path("busy"), pattern(7, PIECE)).unwrap();
        assert!(!fill(u64::MAX));
        let before = free(&dir);
        // A reader and a writer that never stop, and never see an error.
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = std::fs::File::options().write(true).open(volume.path("busy")).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    file.write_all_at(&pattern(7, PIECE), 0).unwrap();
                    file.sync_data().unwrap();
                    assert!(std::fs::read(volume.path("f0")).unwrap() == pattern(0, PIECE));
                }
            });
            expect(&grow(&dir, &["--size=128M"]), 0, &["volume of 128 MiB"]);
            let after = free(&dir);
            assert_eq!(after.0 - before.0, (64 << 20) / 4096);
            assert!(after.1 - before.1 > (50 << 20) / 4096, "{before:?} {after:?}");
            assert!(!fill(u64::MAX));
            // By its image, which has grown from outside; what is in there once it fits.
            std::fs::File::options().write(true).open(volume.image()).unwrap().set_len(256 << 20).unwrap();
            expect(&grow(&volume.image(), &[]), 0, &["volume of 256 MiB"]);
            assert!(fill(200));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        expect(&grow(&dir, &["--size=200M"]), 1, &["cannot be made smaller"]);
        expect(&grow(&dir, &["--size=262160K"]), 1, &["at least 64 KiB"]);
        expect(&quire(&[OsStr::new("freeze"), dir.as_os_str()]), 0, &[]);
        expect(&grow(&dir, &["--size=512M"]), 36, &["frozen"]);
        expect(&quire(&[OsStr::new("thaw"), dir.as_os_str()]), 0, &[]);
        expect(&quire(&[OsStr::new("info"), dir.as_os_str()]), 0, &["256 MiB"]);
        volume.kill();
        volume.mount();
        for number in 0..200 {
            assert!(
                std::fs::read(volume.path(&format!("f{number}"))).unwrap() == pattern(number, PIECE),
                "f{number}"
            );
        }
        expect(&grow(&dir, &["--quiet"]), 0, &[]);
        volume.unmount();
        volume.check();
    }
}

/// A volume on a block device grows to what the device has become; the device that the mount has as its
/// source follows the next mount.
#[test]
fn a_mounted_volume_on_a_block_device_grows() {
    const NAME: &str = "a_mounted_volume_on_a_block_device_grows";
    if !can_mount(NAME) || !common::has("losetup", NAME) || !rustix::process::geteuid().is_root() {
        return;
    }
    struct Loop(PathBuf);
    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
        }
    }
    let place = Place::new();
    let below = std::fs::File::create(place.path("below")).unwrap();
    below.set_len(64 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(place.path("below")).output().unwrap();
    if !made.status.success() {
        eprintln!("SKIPPED: {NAME}: no loop device: {}", text(&made));
        return;
    }
    let device = Loop(String::from_utf8_lossy(&made.stdout).trim().into());
    expect(&quire(&[OsStr::new("mkfs"), device.0.as_os_str()]), 0, &[]);
    expect(&quire(&[OsStr::new("mount"), device.0.as_os_str(), place.dir().as_os_str()]), 0, &[]);
    let grow = |words: &[&str]| {
        let words = words.iter().map(OsStr::new);
        quire(&[OsStr::new("grow"), place.dir().as_os_str()].into_iter().chain(words).collect::<Vec<_>>())
    };
    expect(&grow(&["--size=128M"]), 1, &["has room for 64 MiB, 128 MiB were asked for"]);
    expect(&grow(&[]), 0, &["volume of 64 MiB"]);
    below.set_len(192 << 20).unwrap();
    common::run(Command::new("losetup").arg("--set-capacity").arg(&device.0));
    expect(&grow(&[]), 0, &["volume of 192 MiB"]);
    let bytes = common::pattern(3, 150 << 20);
    std::fs::write(place.dir().join("large"), &bytes).unwrap();
    expect(&place.umount(), 0, &[]);
    expect(&quire(&[OsStr::new("fsck"), device.0.as_os_str()]), 0, &[]);
    let volume = quire::VolumeOptions::new().read_only(true).open(&device.0).unwrap();
    assert!(volume.read("large").unwrap() == bytes);
    volume.close().unwrap();
}
