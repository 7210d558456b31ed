//! `quire lease` on a mount: what it prints, what becomes of it when the file is cut, and when it is killed.

mod common;

use common::{Volume, can_mount, quire, run, text};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A command that holds a lease, once it has printed.
fn holder(file: &Path) -> Child {
    let mut child = Command::new(common::QUIRE)
        .args(["lease", "--hold", "600", "--json"])
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("extents"), "{line}");
    child
}

fn number(volume: &Volume, name: &str) -> u64 {
    let numbers = run(Command::new(common::QUIRE).args(["ctl", "metrics"]).arg(volume.mountpoint()));
    let line = numbers.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| {
        panic!("no {name} in\n{numbers}");
    });
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_lease_is_printed_held_and_returned() {
    if !can_mount("a_lease_is_printed_held_and_returned") {
        return;
    }
    let mut volume = Volume::new("64M").with_options("lease_timeout=600");
    volume.mount();
    let path = volume.path("file");
    fs::write(&path, [7; 3 * 4096]).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(5 * 4096).unwrap();
    let shown = quire(&["lease".as_ref(), "--json".as_ref(), path.as_os_str()]);
    assert!(shown.status.success(), "{}", text(&shown));
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["size"], &shown["extents"][1]["kind"]), (&(5 * 4096).into(), &"hole".into()));
    let at = shown["extents"][0]["device"].as_u64().unwrap();
    let mut bytes = [0; 3 * 4096];
    File::open(volume.image()).unwrap().read_exact_at(&mut bytes, at).unwrap();
    assert_eq!(bytes, [7; 3 * 4096]);
    let people = quire(&["lease".as_ref(), "--range".as_ref(), "0-4k".as_ref(), path.as_os_str()]);
    assert!(text(&people).contains(&at.to_string()) && !text(&people).contains("hole"), "{}", text(&people));

    // A pipe without a writer kept the command waiting, and the mount busy.
    run(Command::new("mkfifo").arg(volume.path("pipe")));
    let refused = quire(&["lease".as_ref(), volume.path("pipe").as_os_str()]);
    assert_eq!(refused.status.code(), Some(37), "{}", text(&refused));

    // It hears of the truncate, and returns the lease: the truncate goes on.
    let held = holder(&path);
    assert_eq!(number(&volume, "quire_leases_held"), 1);
    let top = quire(&[
        "top".as_ref(),
        "--once".as_ref(),
        "--interval=0.1".as_ref(),
        volume.mountpoint().as_os_str(),
    ]);
    assert!(text(&top).contains("leases_held"), "{}", text(&top));
    fs::write(&path, b"short").unwrap();
    let ended = held.wait_with_output().unwrap();
    assert!(ended.status.success() && text(&ended).contains("recalled"), "{}", text(&ended));
    // Killed, it returns the lease, too.
    let mut held = holder(&path);
    held.kill().unwrap();
    held.wait().unwrap();
    fs::write(&path, b"shorter").unwrap();
    assert_eq!(number(&volume, "quire_leases_held"), 0);
    assert_eq!(number(&volume, "quire_leases_revoked_total"), 0);

    let elsewhere = quire(&["lease", "/proc/version"]);
    assert!(
        !elsewhere.status.success() && text(&elsewhere).contains("not on a mount"),
        "{}",
        text(&elsewhere)
    );
    volume.unmount();
}
