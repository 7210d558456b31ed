//! `quire bench` and `quire probe` as programs: files that they write, what they leave behind, what they say.

mod common;

use common::{QUIRE, can_mount, copy_program, text};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn bench(dir: &Path, line: &str) -> Command {
    let mut command = Command::new(QUIRE);
    command.arg("bench").args(line.split(' ')).arg("--dir").arg(dir).stdin(Stdio::null());
    command
}

fn json(file: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().count() == 0
}

/// Nothing is mounted in the directory, and no loop device holds a file of it.
fn assert_nothing_left(dir: &Path) {
    let name = dir.display().to_string();
    assert!(is_empty(dir), "files are left in {name}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&name), "a mount is left in {name}");
    for device in std::fs::read_dir("/sys/block").unwrap().flatten() {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        assert!(!file.contains(&name), "{:?} is left", device.file_name());
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(&name), "process {:?} is left", process.file_name());
    }
}

#[test]
fn a_mount_and_a_kernel_file_system_are_measured_and_taken_down() {
    if !can_mount("a_mount_and_a_kernel_file_system_are_measured_and_taken_down") {
        return;
    }
    let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = out.path().join("out.json");
    let line = "mixed --engines quire,mount,fuse-null,ext4 --seconds 0.5 --size 8m --readers 2 --writers 2";
    let output = bench(work.path(), line).arg("--json").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let results = json(&file)["results"].clone();
    for (n, name) in ["quire", "mount", "fuse-null", "ext4"].into_iter().enumerate() {
        assert_eq!(results[n]["engine"], name);
        match results[n]["status"].as_str().unwrap() {
            "ok" => assert!(results[n]["read_mib_s"].as_f64().unwrap() > 0.0),
            // Containers may have no loop devices.
            status => assert!(status == "skipped" && name == "ext4", "{}", results[n]),
        }
    }
    assert_eq!(results[1]["torn_reads"], 0);
    assert_nothing_left(work.path());
}

#[test]
fn tails_and_many_files_are_measured_on_mounts() {
    if !can_mount("tails_and_many_files_are_measured_on_mounts") {
        return;
    }
    let tail = [
        "idle_p50_us",
        "idle_p99_us",
        "idle_max_us",
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
        "append_fsync_max_us",
        "bulk_mib_s",
        "append_mib_s",
        "deletes_s",
        "creates_s",
    ];
    let scale = ["create_first_s", "create_last_s", "stat_s", "delete_s", "rss_max_mib"];
    for (line, figures) in [
        (
            "tail --engines mount,mount@discard,ext4,xfs --rounds 1 --seconds 0.5 --size 8m --files 2",
            &tail[..],
        ),
        ("scale --engines mount,ext4,xfs --files 20000 --cache 64m", &scale[..]),
    ] {
        let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = out.path().join("out.json");
        let output = bench(work.path(), line).arg("--json").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        for result in json(&file)["results"].as_array().unwrap() {
            match result["status"].as_str().unwrap() {
                "ok" => {
                    // On a slow disk a disturber may get nothing done in so short a time.
                    for figure in figures {
                        assert!(result[figure].as_f64().is_some_and(|n| n >= 0.0), "{figure}: {result}");
                    }
                }
                // Containers may have no loop devices.
                status => {
                    let engine = result["engine"].as_str().unwrap();
                    assert!(status == "skipped" && !engine.starts_with("mount"), "{result}");
                }
            }
        }
        assert_nothing_left(work.path());
    }
}

#[test]
fn untorn_writes_and_groups_are_measured_on_mounts() {
    if !can_mount("untorn_writes_and_groups_are_measured_on_mounts") {
        return;
    }
    let figures = ["p50_us", "p99_us", "bytes_written", "device_bytes_written", "write_amplification"];
    for (line, headline) in [
        ("untorn --engines mount@untorn=8k,mount,xfs@atomic,xfs --rounds 1 --seconds 0.5 --size 8m", "iops"),
        ("untorn --engines xfs@atomic,btrfs@atomic --rounds 1 --seconds 0.1 --size 8m --bs 12k", "iops"),
        ("group --engines mount,xfs,ext4,btrfs --seconds 0.5 --size 8m --threads 2", "commits_s"),
    ] {
        let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = out.path().join("out.json");
        let output = bench(work.path(), line).arg("--json").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        for result in json(&file)["results"].as_array().unwrap() {
            let engine = result["engine"].as_str().unwrap();
            match result["status"].as_str().unwrap() {
                "ok" => {
                    for figure in figures.iter().chain([&headline]) {
                        assert!(result[figure].as_f64().is_some_and(|n| n > 0.0), "{figure}: {result}");
                    }
                    assert!(!line.contains("12k"), "12k is no power of two: {result}");
                }
                // Containers may have no loop devices, kernels no untorn direct writes.
                status => {
                    assert!(status == "skipped" && !engine.starts_with("mount"), "{result}");
                    assert!(!result["why"].as_str().unwrap().is_empty(), "{result}");
                }
            }
        }
        assert_nothing_left(work.path());
    }
}

#[test]
fn a_signal_leaves_nothing_behind() {
    if !can_mount("a_signal_leaves_nothing_behind") {
        return;
    }
    for (engine, signal) in [("mount", Signal::INT), ("ext4", Signal::TERM), ("quire", Signal::INT)] {
        let work = tempfile::tempdir().unwrap();
        let line = format!("mixed --engines {engine} --seconds 600 --size 8m");
        let child = bench(work.path(), &line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(5));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let start = Instant::now();
        let output: Output = child.wait_with_output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
        // 0: skipped, where there are no loop devices.
        let code = output.status.code();
        assert!(code == Some(130) || (engine == "ext4" && code == Some(0)), "{engine}: {}", text(&output));
        assert_nothing_left(work.path());
    }
}

#[test]
fn an_ordinary_user_is_told_what_was_skipped_and_why() {
    let (work, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = out.path().join("out.json");
    // A program that everybody may run, in a directory that everybody may write.
    let program = out.path().join("quire");
    copy_program(&program);
    for path in [work.path(), out.path(), program.as_path()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new(&program);
    command.args(["bench", "creat", "--engines", "quire@device=memory,xfs,ext4,btrfs,raw", "--ops", "50"]);
    command.arg("--dir").arg(work.path()).arg("--json").arg(&file).stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let results = json(&file)["results"].clone();
    assert_eq!(results[0]["status"], "ok");
    for n in 1..=3 {
        assert_eq!(results[n]["status"], "skipped", "{}", results[n]);
        assert!(results[n]["why"].as_str().unwrap().contains("needs root"), "{}", results[n]);
    }
    assert_eq!(results[4]["why"], "the bare image has no files");
    assert!(text(&output).contains("xfs: skipped: xfs on a loop device needs root"));
    assert_nothing_left(work.path());
}

#[test]
fn wrong_calls_are_told_apart() {
    let work = tempfile::tempdir().unwrap();
    for (line, code, part) in [
        ("mixed --engines zfs", 1, "there is no engine 'zfs'"),
        ("mixed --bs 5", 1, "multiple of 8"),
        ("dirty --folio 48k", 1, "power of two"),
        ("creat --readers 2", 1, "--readers"),
        ("sideways", 1, "sideways"),
        ("mixed --size 1000t", 32, "MiB of room"),
    ] {
        let output = bench(work.path(), line).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
        assert!(text(&output).contains(part), "{line}: {}", text(&output));
        assert!(is_empty(work.path()));
    }
    let output = Command::new(QUIRE).args(["bench", "creat", "--dir", "/nowhere/at/all"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn a_probe_of_a_mount_finds_nothing() {
    if !can_mount("a_probe_of_a_mount_finds_nothing") {
        return;
    }
    let mut volume = common::Volume::new("1G");
    volume.mount();
    let probe = |options: &[&str], untorn: serde_json::Value| {
        let output = Command::new(QUIRE)
            .args(["probe", "--seconds", "0.5", "--json"])
            .args(options)
            .arg(volume.mountpoint())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["promises"]["untorn"], untorn);
        for finding in report["findings"].as_array().unwrap() {
            // Starvation depends on the machine's load, too. The kernel writes mapped pages as a whole.
            let name = finding["name"].as_str().unwrap();
            if !name.ends_with("starvation") && !name.ends_with("_same_page") {
                assert_eq!(finding["answer"], "no", "{finding}");
            }
        }
    };
    probe(&[], serde_json::json!({ "directory": null, "file": null }));
    let set = Command::new(QUIRE).args(["set", "untorn=8k"]).arg(volume.mountpoint()).output().unwrap();
    assert!(set.status.success(), "{}", text(&set));
    probe(&["--direct-load"], serde_json::json!({ "directory": "8k", "file": "8k" }));
}
