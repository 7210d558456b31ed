//! Root's mounts have a loop device as their source, so that `syncfs` and `sync` reach the server and
//! `umount` waits for it: what they promise, and what happens to them when a mount is busy, or its server
//! dead or stuck.
//!
//! `QUIRE_ROUNDS=100 cargo test -p quire-cli --test block_mounts` repeats what has to hold every time so
//! often.

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{TRANSPORTS, Volume, can_mount, is_mounted, pattern, quire, text};
use rustix::process::{Pid, Signal, kill_process};
use testkit::RingSwitch;

/// Rounds of each kind.
fn rounds() -> u64 {
    std::env::var("QUIRE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

fn can_mount_block(test: &str) -> bool {
    let control = Path::new("/dev/loop-control").exists();
    if !control {
        eprintln!("\n*** SKIPPED {test}: needs loop devices ***\n");
    }
    control && can_mount(test)
}

/// Loop devices over an image.
fn loops_over(image: &Path) -> Vec<PathBuf> {
    let is_over = |device: &PathBuf| {
        let backing = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        backing.trim_end() == image.to_str().unwrap()
    };
    std::fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path()).filter(is_over).collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// At once; but a program that another test of this process is just starting has all its descriptors until it
/// runs.
fn wait_until_no_loop_is_left(volume: &Volume) {
    wait_until("a loop device is left", || loops_over(&volume.image()).is_empty());
}

/// What nothing but umount(8) does: no helper, no words with the server.
fn umount(volume: &Volume, flag: &str) -> Output {
    let mut command = Command::new("umount");
    command.arg("--internal-only");
    if !flag.is_empty() {
        command.arg(flag);
    }
    command.arg(volume.mountpoint()).env("LC_ALL", "C").output().unwrap()
}

/// Unmounts what is not in use, but perhaps by a program that another test of this process is just starting.
fn umount_well(volume: &Volume, flag: &str) {
    let start = Instant::now();
    loop {
        let done = umount(volume, flag);
        if done.status.success() {
            return;
        }
        assert!(text(&done).contains("busy") && start.elapsed() < Duration::from_secs(10), "{}", text(&done));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The very next look finds a closed volume.
fn assert_closed(volume: &Volume) {
    let info = quire(&["info".as_ref(), volume.image().as_os_str()]);
    assert!(text(&info).contains("clean"), "{}", text(&info));
    volume.check();
}

fn signal(volume: &Volume, signal: Signal) {
    let server = volume.server_id().unwrap().try_into().ok().and_then(Pid::from_raw).unwrap();
    kill_process(server, signal).unwrap();
}

fn has_syncfs(volume: &Volume) -> bool {
    let info = quire(&["info".as_ref(), "--mount".as_ref(), volume.mountpoint().as_os_str()]);
    let there = text(&info).contains("syncfs           reaches the server");
    if !there {
        eprintln!("\n*** SKIPPED: {} ***\n", text(&info));
    }
    there
}

/// `sync` and `syncfs` returned at once and had done nothing: a FUSE server is not told of them, unless its
/// mount's source is a block device.
#[test]
fn what_was_synced_survives_a_killed_server() {
    if !can_mount_block("what_was_synced_survives_a_killed_server") {
        return;
    }
    // Nothing becomes durable by itself.
    for options in ["commit=3600", "commit=3600,cache=writeback"] {
        what_was_synced_survives(Volume::new("256M").with_options(options));
    }
}

fn what_was_synced_survives(mut volume: Volume) {
    let mut lost = 0;
    volume.mount();
    for round in 0..2 * rounds() {
        if round == 0 && !has_syncfs(&volume) {
            return;
        }
        let data = pattern(round, 1 + (round as usize * 7919) % 300_000);
        let path = volume.path(&format!("file{round}"));
        let mut file = File::create(&path).unwrap();
        let (beginning, end) = data.split_at(data.len() / 2);
        file.write_all(beginning).and_then(|()| file.write_all(end)).unwrap();
        if round % 2 == 0 {
            rustix::fs::syncfs(&file).unwrap();
        } else {
            rustix::fs::sync();
        }
        std::fs::write(volume.path("late"), data.len().to_string()).unwrap();
        volume.crash();
        drop(file);
        volume.clear();
        wait_until_no_loop_is_left(&volume);
        volume.set_transport(TRANSPORTS[(round / 2) as usize % 2]);
        volume.mount();
        assert!(std::fs::read(&path).is_ok_and(|found| found == data), "round {round}: it was synced");
        let late = std::fs::read_to_string(volume.path("late")).unwrap_or_default();
        lost += u64::from(late != data.len().to_string());
        std::fs::remove_file(&path).unwrap();
    }
    assert!(lost > 0, "nothing was ever lost: the test tests nothing");
    volume.unmount();
    volume.check();
}

/// `quire umount` of a mount that was bound elsewhere waited ten minutes for a server that rightly went on.
#[test]
fn a_mount_that_is_bound_elsewhere() {
    if !can_mount_block("a_mount_that_is_bound_elsewhere") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    std::fs::create_dir(volume.path("inside")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (mountpoint, bound) = (volume.mountpoint(), elsewhere.path().to_path_buf());
    let bind = |from: &Path| {
        let done = Command::new("mount").arg("--bind").args([from, &bound]).status().unwrap();
        assert!(done.success());
    };
    let unmount = |place: &Path| quire(&["umount".as_ref(), place.as_os_str()]);
    bind(&volume.path("inside"));
    for (first, second) in [(&bound, &mountpoint), (&mountpoint, &bound)] {
        let said = unmount(first);
        assert!(said.status.success(), "{}", text(&said));
        let still = format!("mounted at {}", second.display());
        assert!(text(&said).contains(&still), "{}", text(&said));
        if *first == bound {
            bind(&volume.path("inside"));
        }
    }
    std::fs::write(bound.join("file"), "there").unwrap();
    let said = unmount(&bound);
    assert!(said.status.success() && !text(&said).contains("still"), "{}", text(&said));
    assert_closed(&volume);
    wait_until_no_loop_is_left(&volume);
}

/// `umount` returned while the server still wrote: a check or a copy of the image at once met an open volume.
#[test]
fn umount_returns_when_the_volume_is_closed() {
    if !can_mount_block("umount_returns_when_the_volume_is_closed") {
        return;
    }
    let mut volume = Volume::new("256M");
    for round in 0..rounds() {
        volume.set_transport(TRANSPORTS[round as usize % 2]);
        volume.mount();
        let data = pattern(round, 3_000_000);
        std::fs::write(volume.path("file"), &data).unwrap();
        // The kernel tells of its close after the unmount, or never.
        let mut unlinked = File::create(volume.path("unlinked")).unwrap();
        unlinked.write_all(&data).unwrap();
        std::fs::remove_file(volume.path("unlinked")).unwrap();
        drop(unlinked);
        umount_well(&volume, "");
        assert_closed(&volume);
        wait_until_no_loop_is_left(&volume);
        volume.wait_for_end();
    }
}

#[test]
fn a_busy_mount() {
    if !can_mount_block("a_busy_mount") {
        return;
    }
    for transport in TRANSPORTS {
        let mut volume = Volume::new("64M");
        volume.set_transport(transport);
        volume.mount();
        let mut file = File::create(volume.path("file")).unwrap();
        let refused = umount(&volume, "");
        assert!(!refused.status.success() && text(&refused).contains("busy"), "{}", text(&refused));
        let refused = quire(&["umount".as_ref(), volume.mountpoint().as_os_str()]);
        assert_eq!(refused.status.code(), Some(36), "{}", text(&refused));
        file.write_all(b"still there").unwrap();
        assert!(umount(&volume, "--lazy").status.success());
        assert!(!is_mounted(&volume.mountpoint()));
        file.write_all(b", and still").unwrap();
        assert_eq!(loops_over(&volume.image()).len(), 1);
        drop(file);
        volume.wait_for_end();
        wait_until_no_loop_is_left(&volume);
        assert_closed(&volume);
        volume.mount();
        assert_eq!(std::fs::read(volume.path("file")).unwrap(), b"still there, and still");
        // A stop signal: what is open works for a while, then the server ends.
        let file = File::open(volume.path("file")).unwrap();
        signal(&volume, Signal::TERM);
        wait_until("it stays mounted", || !is_mounted(&volume.mountpoint()));
        drop(file);
        volume.wait_for_end();
        assert_closed(&volume);
        wait_until_no_loop_is_left(&volume);
    }
}

fn start_umount(volume: &Volume) -> Child {
    Command::new("umount")
        .arg("--internal-only")
        .arg(volume.mountpoint())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn connection(volume: &Volume) -> PathBuf {
    let dir = volume.mountpoint();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str()).unwrap();
    let (major, minor) = line.split(' ').nth(2).unwrap().split_once(':').unwrap();
    let number = major.parse::<u64>().unwrap() << 20 | minor.parse::<u64>().unwrap();
    Path::new("/sys/fs/fuse/connections").join(number.to_string())
}

#[test]
fn a_server_that_is_dead_or_stuck() {
    if !can_mount_block("a_server_that_is_dead_or_stuck") {
        return;
    }
    for transport in TRANSPORTS {
        let mut volume = Volume::new("64M").with_options("commit=3600");
        volume.set_transport(transport);
        // Dead.
        volume.mount();
        std::fs::write(volume.path("file"), "x").unwrap();
        volume.crash();
        assert_eq!(loops_over(&volume.image()).len(), 1, "the dead mount has it");
        umount_well(&volume, "");
        wait_until_no_loop_is_left(&volume);
        volume.check();
        // Dead while it is in use.
        volume.mount();
        let file = File::create(volume.path("open")).unwrap();
        volume.crash();
        assert!(!umount(&volume, "").status.success());
        assert!(umount(&volume, "--lazy").status.success());
        volume.mount();
        assert_eq!(
            loops_over(&volume.image()).len(),
            2,
            "the dead mount has one until its last file is closed"
        );
        drop(file);
        wait_until("a loop device is left", || loops_over(&volume.image()).len() == 1);
        // Stuck: the unmount waits. Killed meanwhile, the server lets it go on.
        let mut waiting = {
            signal(&volume, Signal::STOP);
            start_umount(&volume)
        };
        std::thread::sleep(Duration::from_millis(300));
        assert!(waiting.try_wait().unwrap().is_none(), "it returned although nothing was closed");
        volume.crash();
        assert!(waiting.wait().unwrap().success());
        wait_until_no_loop_is_left(&volume);
        volume.check();
        // Stuck, and given up.
        volume.mount();
        let abort = connection(&volume).join("abort");
        if abort.exists() {
            std::fs::write(volume.path("late"), "x").unwrap();
            signal(&volume, Signal::STOP);
            let mut waiting = start_umount(&volume);
            std::thread::sleep(Duration::from_millis(300));
            std::fs::write(&abort, "1").unwrap();
            // On the ring the kernel gives a request back to the server before it ends it.
            signal(&volume, Signal::CONT);
            assert!(waiting.wait().unwrap().success());
            // It closes the volume in order.
            volume.wait_for_end();
            assert_closed(&volume);
            volume.mount();
            assert_eq!(std::fs::read(volume.path("late")).unwrap(), b"x");
        }
        umount_well(&volume, "--force");
        volume.wait_for_end();
        assert_closed(&volume);
    }
}

#[test]
fn remounted_read_only_and_back() {
    if !can_mount_block("remounted_read_only_and_back") {
        return;
    }
    let remount = |volume: &Volume, how: &str| {
        let done = Command::new("mount")
            .args(["--internal-only", "-o", &format!("remount,{how}")])
            .arg(volume.mountpoint())
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        done.status.success()
    };
    let mut volume = Volume::new("64M").with_options("commit=3600");
    volume.mount();
    let mut file = File::create(volume.path("file")).unwrap();
    file.write_all(b"one").unwrap();
    assert!(!remount(&volume, "ro"), "a file is open for writing");
    drop(file);
    wait_until("it is not remounted", || remount(&volume, "ro"));
    let refused = std::fs::write(volume.path("other"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    // What was written before is durable then.
    let synced = has_syncfs(&volume);
    volume.crash();
    volume.clear();
    volume.mount();
    assert!(!synced || std::fs::read(volume.path("file")).unwrap() == b"one");
    assert!(remount(&volume, "ro") && remount(&volume, "rw"));
    // As mount(8) has its helper do it, with all options that fstab has.
    let helped = |options: &str| {
        let (image, dir) = (volume.image(), volume.mountpoint());
        quire(&["mount".as_ref(), image.as_os_str(), dir.as_os_str(), "-o".as_ref(), options.as_ref()])
    };
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = std::fs::FileTimes::new().set_accessed(long_ago);
    File::options().write(true).open(volume.path("file")).unwrap().set_times(times).unwrap();
    assert!(helped("noatime,commit=7,remount,ro").status.success());
    // The server noted when what a read-only mount has was read, and wrote that to the device.
    std::fs::read(volume.path("file")).unwrap();
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(volume.mountpoint().to_str().unwrap())).unwrap();
    assert!(line.contains(" ro,noatime,"), "{line}");
    // What was not named went back to the default.
    assert!(helped("remount,rw,nosuid,noexec").status.success());
    assert!(helped("remount,ro").status.success());
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(volume.mountpoint().to_str().unwrap())).unwrap();
    assert!(line.contains(" ro,nosuid,noexec,noatime,"), "{line}");
    assert!(helped("remount,rw,exec").status.success());
    let refused = helped("remount,dirsync");
    assert!(text(&refused).contains("from the start of a mount"), "{}", text(&refused));
    std::fs::write(volume.path("other"), "x").unwrap();
    volume.unmount();
    let mut volume = volume.with_options("ro");
    volume.mount();
    assert_eq!(std::fs::metadata(volume.path("file")).unwrap().accessed().unwrap(), long_ago);
    assert!(!remount(&volume, "rw"), "the server takes no changes");
    assert_eq!(std::fs::read(volume.path("other")).unwrap(), b"x");
    volume.unmount();
    // Without a block device the kernel knows nothing of that.
    let mut volume = volume.with_options("ro,fsname=name");
    volume.mount();
    let (image, dir) = (volume.image(), volume.mountpoint());
    let refused = quire(&["mount".as_ref(), image.as_os_str(), dir.as_os_str(), "-oremount,rw".as_ref()]);
    assert!(text(&refused).contains("was mounted read-only"), "{}", text(&refused));
    volume.unmount();
    volume.check();
}

/// Kernels come with the ring switched off, and nearly nobody knew that it can be switched on.
#[test]
fn a_mount_of_roots_switches_the_ring_on() {
    if !can_mount_block("a_mount_of_roots_switches_the_ring_on") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, dir, log) =
        (directory.path().join("image"), directory.path().join("mnt"), directory.path().join("log"));
    std::fs::create_dir(&dir).unwrap();
    assert!(quire(&["mkfs".as_ref(), "--size=64M".as_ref(), image.as_os_str()]).status.success());
    // How the requests of such a mount travel, and what the log has gained.
    let mount = |transport: &str| {
        let _ = std::fs::remove_file(&log);
        let list = format!("transport={transport},log={}", log.display());
        let words = ["mount".as_ref(), "-o".as_ref(), list.as_ref(), image.as_os_str(), dir.as_os_str()];
        let mounted = quire(&words);
        assert!(mounted.status.success(), "{}", text(&mounted));
        let info = text(&quire(&["info".as_ref(), "--mount".as_ref(), dir.as_os_str()]));
        assert!(quire(&["umount".as_ref(), dir.as_os_str()]).status.success());
        let transport = info.lines().find_map(|line| line.strip_prefix("transport        "));
        (transport.unwrap_or(&info).to_owned(), std::fs::read_to_string(&log).unwrap())
    };
    let line = "switched on for all later mounts";
    // Another program may mount at the same time.
    for attempt in 0.. {
        let Some(_off) = RingSwitch::off() else {
            eprintln!("\n*** SKIPPED: this kernel has no ring ***\n");
            return;
        };
        let (transport, log) = mount("dev");
        assert!(transport.starts_with("dev (asked for)") && !log.contains(line), "{transport}\n{log}");
        let stayed_off = !RingSwitch::is_on();
        let (transport, log) = mount("auto");
        assert!(transport == "ring" && RingSwitch::is_on(), "{transport}\n{log}");
        if stayed_off && log.contains(line) {
            let (_, log) = mount("auto");
            assert!(!log.contains(line), "{log}");
            return;
        }
        assert!(attempt < 5, "{log}");
    }
}

#[test]
fn where_syncfs_does_not_reach_the_server() {
    if !can_mount_block("where_syncfs_does_not_reach_the_server") {
        return;
    }
    for transport in TRANSPORTS {
        let mut volume = Volume::new("64M").with_options("commit=3600,fsname=pool");
        volume.set_transport(transport);
        volume.mount();
        assert!(loops_over(&volume.image()).is_empty());
        let line = "syncfs and sync do not reach this mount (its source is a name: fsname=)";
        wait_until(line, || volume.log_text().contains(line));
        let info = quire(&["info".as_ref(), "--mount".as_ref(), volume.mountpoint().as_os_str()]);
        // The name says nothing of the volume.
        let line = "syncfs           does not reach the server (its source is a name: fsname=)";
        assert!(text(&info).contains(line), "{}", text(&info));
        let mut file = File::create(volume.path("file")).unwrap();
        file.write_all(b"one").unwrap();
        let sync = || quire(&["ctl".as_ref(), "sync".as_ref(), volume.mountpoint().as_os_str()]);
        assert!(sync().status.success(), "{}", text(&sync()));
        volume.crash();
        drop(file);
        volume.clear();
        volume.mount();
        assert_eq!(std::fs::read(volume.path("file")).unwrap(), b"one");
        volume.unmount();
        let nowhere = quire(&["ctl".as_ref(), "sync".as_ref(), volume.mountpoint().as_os_str()]);
        assert_eq!(nowhere.status.code(), Some(37), "{}", text(&nowhere));
        volume.check();
    }
}
