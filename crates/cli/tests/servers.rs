//! The servers of mounts from their start to their end: in the background, supervised, beside one another,
//! killed.

mod common;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use common::place::{Place, expect};
use common::{QUIRE, can_mount, quire, text};

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

/// A server ended with the first message that its log did not take: one full disk of logs, and every mount
/// was gone. Any user can have it write messages.
#[test]
fn a_full_log_ends_no_server() {
    if !can_mount("a_full_log_ends_no_server") {
        return;
    }
    let place = Place::with_volume();
    let words = [OsStr::new("mount"), OsStr::new("-o"), OsStr::new("log=/dev/full")];
    let mounted = quire(&[&words[..], &[place.image().as_os_str(), place.dir().as_os_str()]].concat());
    expect(&mounted, 0, &[]);
    let file = place.path("mnt/file");
    std::fs::write(&file, "kept").unwrap();
    let refused = rustix::fs::setxattr(&file, "user.quire.untorn", b"bogus", rustix::fs::XattrFlags::empty());
    assert_eq!(refused, Err(rustix::io::Errno::INVAL));
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    expect(&place.umount(), 0, &[]);
}

/// The server gets a log file's whole path among the options. A comma in the working directory made another
/// option of its end.
#[test]
fn a_log_in_a_directory_with_a_comma_is_refused() {
    if !can_mount("a_log_in_a_directory_with_a_comma_is_refused") {
        return;
    }
    let place = Place::with_volume();
    let odd = place.path("a,ro");
    std::fs::create_dir(&odd).unwrap();
    let mut mount = Command::new(QUIRE);
    mount.args(["mount", "-o", "log=log"]).arg(place.image()).arg(place.dir()).current_dir(&odd);
    expect(&mount.output().unwrap(), 1, &["a,ro/log cannot stand among mount options", "-o log=FILE"]);
}

/// A misspelt path of a log made directories, in the root if need be.
#[test]
fn a_log_in_no_directory_is_refused() {
    if !can_mount("a_log_in_no_directory_is_refused") {
        return;
    }
    let place = Place::with_volume();
    let log = format!("log={}", place.path("misspelt/log").display());
    let words = ["mount", "-o", &log].map(OsStr::new);
    let refused = quire(&[&words[..], &[place.image().as_os_str(), place.dir().as_os_str()]].concat());
    expect(&refused, 2, &["opening the log file", "choose another with -o log=FILE"]);
    assert!(!place.path("misspelt").exists());
}

/// A server in the foreground took `-o log=`, and wrote to its terminal all the same.
#[test]
fn a_server_in_the_foreground_writes_to_the_log_that_was_named() {
    if !can_mount("a_server_in_the_foreground_writes_to_the_log_that_was_named") {
        return;
    }
    let place = Place::with_volume();
    let log = place.path("log");
    let mut server = in_foreground(&place, &format!("log={}", log.display()));
    expect(&place.umount(), 0, &[]);
    assert!(server.wait().unwrap().success());
    let log = std::fs::read_to_string(log).unwrap_or_default();
    assert!(log.contains("is mounted on"), "{log}");
}

/// A name that looked like a path was taken for the volume's: umount did not wait until the volume was
/// closed, a second mount of it waited for half a minute, and a dead server's mount was not cleared away.
/// `quire info` of the mount did not say which volume it is.
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
        // `quire backup` asks the mount which volume that is.
        let about = quire(&["info".as_ref(), "--json".as_ref(), place.dir().as_os_str()]);
        expect(&about, 0, &["\"uuid\"", "\"block_size\": 4096", "\"blocks\": 16384"]);
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
            .stderr(Stdio::null())
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

/// A server in the foreground that has mounted.
fn in_foreground(place: &Place, options: &str) -> std::process::Child {
    let mut server = Command::new(QUIRE)
        .args(["mount", "--foreground", "-o", options])
        .args([place.image(), place.dir()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while std::fs::metadata(place.dir()).unwrap().ino_of_root() != 1 {
        assert_eq!(server.try_wait().unwrap(), None, "the server has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// The lock of a server that was killed beside a slow device outlived it, and each new server gave up after
/// half a second: systemd started five of them, and then no more.
#[test]
fn a_lock_that_outlives_its_server_is_waited_for() {
    if !can_mount("a_lock_that_outlives_its_server_is_waited_for") {
        return;
    }
    let place = Place::with_volume();
    let held = std::fs::File::open(place.image()).unwrap();
    held.lock().unwrap();
    let refused = quire(&[
        OsStr::new("mount"),
        OsStr::new("--foreground"),
        place.image().as_os_str(),
        place.dir().as_os_str(),
    ]);
    expect(&refused, 36, &["already open"]);
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        drop(held);
    });
    let mut server = in_foreground(&place, "wait=30");
    holder.join().unwrap();
    // A volume that is mounted will not be free soon.
    std::fs::create_dir(place.path("second")).unwrap();
    let words = ["mount", "--foreground", "-o", "wait=3600"].map(OsStr::new);
    let twice = quire(&[&words[..], &[place.image().as_os_str(), place.path("second").as_os_str()]].concat());
    expect(&twice, 36, &[&format!("mounted at {}", place.dir().display())]);
    expect(&place.umount(), 0, &[]);
    assert!(server.wait().unwrap().success());
}

/// A mount that waited for a lock heard no signal until the wait was over.
#[test]
fn a_mount_that_waits_for_a_lock_can_be_stopped() {
    if !can_mount("a_mount_that_waits_for_a_lock_can_be_stopped") {
        return;
    }
    let place = Place::with_volume();
    let held = std::fs::File::open(place.image()).unwrap();
    held.lock().unwrap();
    let waits = Command::new(QUIRE)
        .args(["mount", "--foreground", "-o", "wait=30"])
        .args([place.image(), place.dir()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", waits.id());
    let is_blocked = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        u64::from_str_radix(mask, 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    while !is_blocked() {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&waits), Signal::TERM).unwrap();
    expect(&waits.wait_with_output().unwrap(), 36, &["the mount was stopped while it waited"]);
    drop(held);
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

/// The words that mount a volume under supervision, of which the fourth names the log.
fn supervising(place: &Place, more: &str) -> [OsString; 6] {
    let log = format!("log={}{more}", place.path("log").display());
    let words = ["mount", "--supervise", "-o", &log].map(OsString::from);
    let [mount, supervise, option, log] = words;
    [mount, supervise, option, log, place.image().into(), place.dir().into()]
}

fn supervised(more: &str) {
    let place = Place::with_volume();
    let mount = supervising(&place, more);
    let log = mount[3].clone();
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

/// A server that was killed after its mount had been taken out of the tree was started again: the volume that
/// somebody had unmounted was mounted anew.
#[test]
fn what_was_unmounted_is_not_mounted_again() {
    if !can_mount("what_was_unmounted_is_not_mounted_again") {
        return;
    }
    let place = Place::with_volume();
    expect(&quire(&supervising(&place, "")), 0, &[]);
    let held = std::fs::File::create(place.path("mnt/held")).unwrap();
    expect(&quire(&[OsStr::new("umount"), OsStr::new("--lazy"), place.dir().as_os_str()]), 0, &[]);
    let server = server_of(&place.image()).expect("it serves what is open");
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    let start = std::time::Instant::now();
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    while !log().contains("after its mount was gone") {
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(held);
    assert!(server_of(&place.image()).is_none());
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(place.dir().to_str().unwrap()));
    expect(&place.mount(""), 0, &[]);
    expect(&place.umount(), 0, &[]);
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
