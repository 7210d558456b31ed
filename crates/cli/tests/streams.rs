//! `quire send` and `quire receive` as people call them.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{QUIRE, Volume, can_mount, pattern, text};

fn quire(directory: &Path, arguments: &[&str], input: Option<&str>, output: Option<&str>) -> Output {
    let mut command = Command::new(QUIRE);
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).stderr(Stdio::piped());
    if let Some(input) = input {
        command.stdin(File::open(directory.join(input)).unwrap());
    }
    match output {
        Some(output) => command.stdout(File::create(directory.join(output)).unwrap()),
        None => command.stdout(Stdio::piped()),
    };
    command.spawn().unwrap().wait_with_output().unwrap()
}

fn expect(done: &Output, code: i32, words: &[&str]) {
    let all = text(done);
    assert_eq!(done.status.code(), Some(code), "{all}");
    words.iter().for_each(|word| assert!(all.contains(word), "{word:?} is not in: {all}"));
}

#[test]
fn a_volume_is_sent_and_received() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    let write = |name: &str, bytes: &[u8]| {
        let volume = quire::Volume::open(place.path().join("a.img")).unwrap();
        volume.write(name, bytes).unwrap();
        volume.close().unwrap();
    };
    for image in ["a.img", "b.img"] {
        expect(&run(&["mkfs", "--size=64M", image]), 0, &[]);
    }
    write("large", &vec![7; 5 << 20]);
    expect(&run(&["snapshot", "create", "a.img", "monday"]), 0, &[]);
    write("note", b"later");
    expect(&run(&["snapshot", "create", "a.img", "tuesday"]), 0, &[]);

    let send =
        |arguments: &[&str], to: &str| quire(place.path(), &[&["send"], arguments].concat(), None, Some(to));
    let receive = |from: &str| quire(place.path(), &["receive", "b.img"], Some(from), None);
    expect(&send(&["a.img", "sunday"], "none"), 37, &["sunday"]);
    expect(&send(&["a.img"], "none"), 1, &["NAME"]);
    let sent = send(&["a.img", "monday"], "whole");
    expect(&sent, 0, &[]);
    assert_eq!(text(&sent), "", "nothing is shown in a pipe");
    expect(&send(&["--from", "monday", "a.img", "tuesday"], "changes"), 0, &[]);
    expect(&send(&["--from", "tuesday", "a.img", "monday"], "none"), 1, &["not older"]);

    // What came behind the first stream was dropped, and the command succeeded.
    let joined = ["whole", "changes"].map(|part| std::fs::read(place.path().join(part)).unwrap()).concat();
    std::fs::write(place.path().join("joined"), &joined).unwrap();
    expect(&run(&["mkfs", "--size=64M", "c.img"]), 0, &[]);
    expect(&quire(place.path(), &["receive", "c.img"], Some("joined"), None), 0, &[]);
    expect(&run(&["snapshot", "list", "c.img"]), 0, &["monday", "tuesday"]);
    std::fs::write(place.path().join("joined"), [joined, vec![b'x'; 4096]].concat()).unwrap();
    expect(&run(&["mkfs", "--force", "--size=64M", "c.img"]), 0, &[]);
    expect(&quire(place.path(), &["receive", "c.img"], Some("joined"), None), 1, &["not a stream"]);

    expect(&receive("changes"), 1, &["does not have"]);
    expect(&run(&["receive", "--resume-token", "b.img"]), 37, &["no unfinished receive"]);
    let whole = std::fs::read(place.path().join("whole")).unwrap();
    std::fs::write(place.path().join("part"), &whole[..3 << 20]).unwrap();
    expect(&receive("part"), 32, &["cut off", "quire send --resume", "quire receive --abort /"]);
    expect(&receive("whole"), 36, &["unfinished receive of \"monday\""]);
    expect(&run(&["fsck", "b.img"]), 0, &[]);
    expect(&run(&["snapshot", "create", "b.img", "mine"]), 36, &["unfinished receive"]);
    let shown = run(&["receive", "--resume-token", "b.img"]);
    expect(&shown, 0, &["\"monday\""]);
    let token = String::from_utf8(shown.stdout).unwrap();
    expect(&send(&["--resume", token.trim(), "a.img"], "rest"), 0, &[]);
    let rest = std::fs::metadata(place.path().join("rest")).unwrap().len();
    assert!(rest < whole.len() as u64 * 2 / 3, "{rest} bytes are sent again");
    expect(&receive("rest"), 0, &[]);

    std::fs::write(place.path().join("part"), &std::fs::read(place.path().join("changes")).unwrap()[..900])
        .unwrap();
    expect(&receive("part"), 32, &["cut off"]);
    expect(&run(&["receive", "--abort", "b.img"]), 0, &[]);
    expect(&run(&["receive", "--abort", "b.img"]), 37, &["no unfinished receive"]);
    expect(&receive("changes"), 0, &[]);
    expect(&run(&["fsck", "b.img"]), 0, &[]);
    expect(&run(&["snapshot", "list", "b.img"]), 0, &["monday", "tuesday"]);
    let volume = quire::VolumeOptions::new().read_only(true).open(place.path().join("b.img")).unwrap();
    assert_eq!(volume.read("note").unwrap(), b"later");
    assert_eq!(volume.read("large").unwrap(), vec![7; 5 << 20]);
}

/// A mounted volume is sent while it changes: whole, then what has changed; a command that goes away in the
/// middle and one that stands still hold up neither the next stream nor the unmount.
#[test]
fn a_mounted_volume_is_sent() {
    if !can_mount("a_mounted_volume_is_sent") {
        return;
    }
    let mut volume = Volume::new("128M");
    volume.mount();
    let mount = volume.mountpoint().to_str().unwrap().to_owned();
    let place = tempfile::tempdir().unwrap();
    let send =
        |arguments: &[&str], to: &str| quire(place.path(), &[&["send"], arguments].concat(), None, Some(to));
    std::fs::write(volume.path("large"), pattern(1, 20 << 20)).unwrap();
    expect(&send(&[&mount, "monday"], "none"), 37, &["monday"]);
    expect(&quire(place.path(), &["snapshot", "create", &mount, "monday"], None, None), 0, &[]);
    std::fs::write(volume.path("note"), "later").unwrap();
    std::fs::write(volume.path("large"), pattern(2, 20 << 20)).unwrap();
    expect(&send(&[&mount, "monday"], "whole"), 0, &[]);

    let stalled = || {
        let mut command = Command::new(QUIRE);
        command.args(["send", "--quiet", &mount, "monday"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut first = [0; 512];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first[..8], b"QuireStr");
        child
    };
    let mut gone = stalled();
    gone.kill().unwrap();
    gone.wait().unwrap();
    let mut stands_still = stalled();
    expect(
        &quire(place.path(), &["snapshot", "delete", &mount, "monday"], None, None),
        36,
        &["open for reading"],
    );
    expect(&quire(place.path(), &["snapshot", "create", &mount, "tuesday"], None, None), 0, &[]);
    expect(&send(&["--from", "monday", &mount, "tuesday"], "changes"), 0, &[]);
    volume.unmount();
    stands_still.kill().unwrap();
    stands_still.wait().unwrap();
    volume.check();

    expect(&quire(place.path(), &["mkfs", "--size=128M", "copy.img"], None, None), 0, &[]);
    let contents = |from: &str, seed, names: &[&str]| {
        expect(&quire(place.path(), &["receive", "copy.img"], Some(from), None), 0, &[]);
        let copy = quire::VolumeOptions::new().read_only(true).open(place.path().join("copy.img")).unwrap();
        let found: Vec<_> = copy.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(found.len(), names.len(), "{found:?}");
        assert!(copy.read("large").unwrap() == pattern(seed, 20 << 20));
    };
    contents("whole", 1, &["large"]);
    contents("changes", 2, &["large", "note"]);
}

/// A copy on "another machine" follows a mounted volume, also over a connection that breaks in the middle.
#[test]
fn a_volume_is_replicated() {
    if !can_mount("a_volume_is_replicated") {
        return;
    }
    let mut volume = Volume::new("128M");
    volume.mount();
    let mount = volume.mountpoint().to_str().unwrap().to_owned();
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    // As ssh does it: the words behind the host are a line for a shell. If asked, the next stream breaks, or
    // the connection does when everything has arrived.
    let rsh = place.path().join("rsh");
    let script = "#!/bin/sh\nshift\ncase \"$*\" in *\"'receive' '--quiet'\"*) [ -e cut ] && rm cut && \
                  exec sh -c \"head --bytes=3000000 | $*\"; [ -e lose ] && rm lose && { sh -c \"$*\"; exit 255; };; \
                  esac\nexec sh -c \"$*\"\n";
    std::fs::write(&rsh, script).unwrap();
    std::fs::set_permissions(&rsh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let replicate = || {
        let options = ["--once", "--metrics", "lag.prom", "--remote-program", QUIRE];
        let ends = ["--rsh", rsh.to_str().unwrap(), &mount, "other:copy.img"];
        run(&[&["replicate"], &options[..], &ends[..]].concat())
    };
    let copied = |name: &str| {
        let copy = quire::VolumeOptions::new().read_only(true).open(place.path().join("copy.img")).unwrap();
        copy.read(name).unwrap()
    };
    let silent = run(&["replicate", "--once", "--rsh", "false", &mount, "other:copy.img"]);
    expect(&silent, 32, &["false ended with exit status: 1 and said nothing"]);
    expect(&replicate(), 37, &["other:copy.img"]);
    expect(&run(&["mkfs", "--size=128M", "copy.img"]), 0, &[]);
    std::fs::write(volume.path("large"), pattern(1, 8 << 20)).unwrap();
    expect(&run(&["snapshot", "create", &mount, "mine"]), 0, &[]);
    expect(&replicate(), 0, &["replica-00000001 is on other:copy.img"]);
    assert!(copied("large") == pattern(1, 8 << 20));
    let metrics = || std::fs::read_to_string(place.path().join("lag.prom")).unwrap();
    let labels = format!("{{source=\"{mount}\",target=\"other:copy.img\"}}");
    let says = |line: &str| metrics().contains(&line.replace(' ', &format!("{labels} ")));
    assert!(says("quire_replication_failing 0"), "{}", metrics());

    std::fs::write(volume.path("large"), pattern(2, 8 << 20)).unwrap();
    std::fs::write(volume.path("note"), "second").unwrap();
    std::fs::write(place.path().join("cut"), "").unwrap();
    expect(&replicate(), 32, &["cut off"]);
    assert!(says("failing 1") && says("breaks_total 1"), "{}", metrics());
    // A source that is not there says nothing about its snapshots: what had been received was given up.
    volume.unmount();
    expect(&replicate(), 37, &["send at"]);
    volume.mount();
    std::fs::write(volume.path("note"), "third").unwrap();
    expect(&replicate(), 0, &["going on with the stream that broke", "replica-00000003 is on"]);
    assert!(copied("large") == pattern(2, 8 << 20));
    assert_eq!(copied("note"), b"third");
    let names = |volume: &str| {
        let list = run(&["snapshot", "list", "--json", volume]);
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let all = list["snapshots"].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mount), ["mine", "replica-00000002", "replica-00000003"]);
    assert_eq!(names("copy.img"), ["replica-00000002", "replica-00000003"]);

    // The snapshot had arrived, and was deleted at the source: the copy followed no more.
    std::fs::write(volume.path("note"), "fourth").unwrap();
    std::fs::write(place.path().join("lose"), "").unwrap();
    expect(&replicate(), 0, &["all the same", "replica-00000004 is on"]);
    assert_eq!(names(&mount), ["mine", "replica-00000003", "replica-00000004"]);
    assert_eq!(copied("note"), b"fourth");

    // While somebody read an old snapshot, no round succeeded, and the numbers said that the copy failed.
    let read = std::fs::File::open(volume.path(".snapshots/replica-00000003/note")).unwrap();
    expect(&replicate(), 0, &["replica-00000003", "the snapshot stays for now", "replica-00000005 is on"]);
    assert!(says("failing 0"), "{}", metrics());
    assert_eq!(names(&mount), ["mine", "replica-00000003", "replica-00000004", "replica-00000005"]);
    drop(read);
    let kept = (0..20).find_map(|_| {
        expect(&replicate(), 0, &[]);
        Some(names(&mount)).filter(|names| names.len() == 3)
    });
    let kept = kept.expect("the old snapshot is deleted when nobody reads it any more");

    // The copy was written to: it is no copy any more, and stays as it is.
    let copy = quire::Volume::open(place.path().join("copy.img")).unwrap();
    copy.write("note", b"mine").unwrap();
    copy.close().unwrap();
    // However often that is refused, no snapshot is left of it.
    for _ in 0..3 {
        expect(&replicate(), 1, &["receive at other:copy.img"]);
    }
    assert_eq!(names(&mount), kept);
    assert_eq!(copied("note"), b"mine");
    for name in &kept[1..] {
        run(&["snapshot", "delete", &mount, name]);
    }
    expect(&replicate(), 32, &["no snapshot replica-NUMBER in common"]);
    volume.unmount();
    volume.check();
}

/// A connection that says more than a pipe holds stopped the stream for ever, as nobody read that before the
/// end.
#[test]
fn a_talkative_connection_is_listened_to() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    for image in ["a.img", "copy.img"] {
        expect(&run(&["mkfs", "--size=64M", image]), 0, &[]);
    }
    let source = quire::Volume::open(place.path().join("a.img")).unwrap();
    source.write("large", pattern(1, 1 << 20)).unwrap();
    source.close().unwrap();
    let rsh = place.path().join("rsh");
    let script = "#!/bin/sh\nshift\nhead --bytes=200000 /dev/zero | tr '\\0' x >&2\nexec sh -c \"$*\"\n";
    std::fs::write(&rsh, script).unwrap();
    std::fs::set_permissions(&rsh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["--once", "--remote-program", QUIRE, "--rsh", rsh.to_str().unwrap()];
    let run_out = ["60", QUIRE, "replicate"].iter().chain(&options).chain(&["a.img", "other:copy.img"]);
    let done = Command::new("timeout").args(run_out).current_dir(place.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", done.status);
}

/// A target that has the same numbers, and is the copy of another volume: the round deleted the source's
/// snapshots before the receiver said so, and the right copy followed no more.
#[test]
fn a_wrong_target_costs_the_source_nothing() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    for image in ["a.img", "b.img", "other.img", "copy.img"] {
        expect(&run(&["mkfs", "--size=64M", image]), 0, &[]);
    }
    expect(&run(&["replicate", "--once", "other.img", "b.img"]), 0, &[]);
    for _ in 0..2 {
        expect(&run(&["replicate", "--once", "a.img", "copy.img"]), 0, &[]);
    }
    expect(&run(&["replicate", "--once", "a.img", "b.img"]), 32, &["no snapshot replica-NUMBER in common"]);
    expect(&run(&["snapshot", "list", "a.img"]), 0, &["replica-00000001", "replica-00000002"]);
    expect(&run(&["replicate", "--once", "a.img", "copy.img"]), 0, &["replica-00000003 is on copy.img"]);
}

/// A volume that was named as its own copy had everything on it, so each round succeeded, and copied nothing.
#[test]
fn a_volume_is_no_copy_of_itself() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    expect(&run(&["mkfs", "--size=64M", "a.img"]), 0, &[]);
    std::os::unix::fs::symlink("a.img", place.path().join("link")).unwrap();
    for target in ["a.img", "link"] {
        expect(&run(&["replicate", "--once", "a.img", target]), 1, &["a.img and", "are one volume"]);
    }
    let list = run(&["snapshot", "list", "--json", "a.img"]);
    expect(&list, 0, &["[]"]);
}

/// The mount of a snapshot shows no snapshots. The advice was to make the copy anew, which was good.
#[test]
fn the_mount_of_a_snapshot_is_no_source() {
    if !can_mount("the_mount_of_a_snapshot_is_no_source") {
        return;
    }
    let mut volume = Volume::new("64M").with_options("snapshot=replica-00000001");
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    let (image, mount) = (volume.image(), volume.mountpoint());
    let (image, mount) = (image.to_str().unwrap(), mount.to_str().unwrap());
    expect(&run(&["mkfs", "--size=64M", "copy.img"]), 0, &[]);
    expect(&run(&["replicate", "--once", image, "copy.img"]), 0, &[]);
    volume.mount();
    for source in [image, mount] {
        let refused = run(&["replicate", "--once", source, "copy.img"]);
        expect(&refused, 32, &["mount the volume itself"]);
        assert!(!text(&refused).contains("mkfs"), "{}", text(&refused));
    }
    volume.unmount();
    expect(&run(&["replicate", "--once", image, "copy.img"]), 0, &["replica-00000002 is on copy.img"]);
}

/// A snapshot of the name that was to be sent, half deleted at the target: the target refused the name, that
/// counted as success, and the numbers said that the copy was up to date.
#[test]
fn a_half_deleted_snapshot_of_the_target_is_no_copy() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| quire(place.path(), arguments, None, None);
    for image in ["a.img", "copy.img"] {
        expect(&run(&["mkfs", "--size=64M", image]), 0, &[]);
    }
    let replicate = || run(&["replicate", "--once", "a.img", "copy.img"]);
    for _ in 0..2 {
        expect(&replicate(), 0, &[]);
    }
    let copy = quire::VolumeOptions::new().threads(false).open(place.path().join("copy.img")).unwrap();
    copy.delete_snapshot_later("replica-00000002").unwrap();
    copy.close().unwrap();
    expect(&run(&["snapshot", "delete", "a.img", "replica-00000002"]), 0, &[]);
    let done = replicate();
    expect(&done, 0, &["replica-00000003 is on copy.img"]);
    assert!(!text(&done).contains("all the same"), "{}", text(&done));
    let list = run(&["snapshot", "list", "--json", "copy.img"]);
    expect(&list, 0, &["replica-00000003"]);
}
