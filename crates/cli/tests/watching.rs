//! A running mount watched and steered from outside: its numbers, `quire top`, the cache's limit, and who may
//! ask.

mod common;

use common::{Volume, can_mount, copy_program, has, quire, text};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn numbers(dir: &Path) -> String {
    let output = quire(&["ctl".as_ref(), "metrics".as_ref(), dir.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

fn number(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let value =
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    value.parse().unwrap()
}

fn cache_size(dir: &Path, size: &str) -> std::process::Output {
    quire(&["ctl".as_ref(), "cache-size".as_ref(), dir.as_os_str(), size.as_ref()])
}

/// The first commands of docs/watching.md as they stand, but for the places, the port, and a `top` that ends.
#[test]
fn the_page_runs_as_it_stands() {
    let name = "the_page_runs_as_it_stands";
    if !can_mount(name) || !common::has("curl", name) {
        return;
    }
    let page = include_str!("../../../docs/watching.md");
    let (_, rest) = page.split_once("```\n").unwrap();
    let (commands, _) = rest.split_once("```").unwrap();
    let volume = Volume::new("64M");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (image, dir) = (volume.image(), volume.mountpoint());
    let mut commands = commands.to_owned();
    let log = format!("metrics=9101,log={}", volume.path("../server.log").display());
    for (from, to) in [
        ("metrics=9101", log.as_str()),
        ("/srv/data.img", image.to_str().unwrap()),
        ("/srv/data", dir.to_str().unwrap()),
        ("9101", &port),
        ("quire top ", "quire top --once --interval=0.2 "),
    ] {
        assert!(commands.contains(from), "no {from} in\n{commands}");
        commands = commands.replace(from, to);
    }
    let function = "quire() { \"$QUIRE\" \"$@\"; }\n";
    // A file: the server would keep a pipe open.
    let output = tempfile::NamedTempFile::new().unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["60", "bash", "-euc", &format!("{function}{commands}")]).env("QUIRE", common::QUIRE);
    let file = output.reopen().unwrap();
    let status = shell.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
    let said = std::fs::read_to_string(output.path()).unwrap();
    let ended = quire(&["umount".as_ref(), dir.as_os_str()]);
    assert!(status.success(), "{said}");
    assert!(ended.status.success(), "{}", text(&ended));
    assert!(said.contains("quire_failed 0") && said.contains("cache_hit"), "{said}");
}

/// `quire top` took no notice that its reader had gone (`| head`), and asked the server for ever.
#[test]
fn top_ends_with_its_reader() {
    if !can_mount("top_ends_with_its_reader") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let mut top = Command::new(common::QUIRE);
    top.args(["top", "--interval=0.1"]).arg(volume.mountpoint()).stdout(std::process::Stdio::piped());
    let mut top = top.spawn().unwrap();
    let mut output = top.stdout.take().unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    drop(output);
    let started = std::time::Instant::now();
    let ended = loop {
        match top.try_wait().unwrap() {
            None if started.elapsed().as_secs() < 20 => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            ended => break ended,
        }
    };
    if ended.is_none() {
        top.kill().unwrap();
        top.wait().unwrap();
    }
    assert!(ended.expect("it went on").success());
}

/// Blocks that the host keeps for the image of a volume, in MiB.
fn host_mib(volume: &Volume) -> u64 {
    std::fs::metadata(volume.image()).unwrap().blocks() / 2048
}

#[test]
fn a_trim_gives_free_space_back_to_the_host() {
    if !can_mount("a_trim_gives_free_space_back_to_the_host") {
        return;
    }
    let mut volume = Volume::new("512M");
    volume.mount();
    let dir = volume.mountpoint();
    std::fs::write(dir.join("kept"), vec![7; 32 << 20]).unwrap();
    std::fs::write(dir.join("gone"), vec![8; 96 << 20]).unwrap();
    std::fs::File::open(&dir).and_then(|root| root.sync_all()).unwrap();
    quire(&["ctl".as_ref(), "sync".as_ref(), dir.as_os_str()]);
    let before = host_mib(&volume);
    assert!(before >= 128, "{before} MiB");
    std::fs::remove_file(dir.join("gone")).unwrap();
    // The file is freed behind the scenes.
    for _ in 0..200 {
        if rustix::fs::statvfs(&dir).unwrap().f_bfree * 4096 > 400 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let trimmed = quire(&["trim".as_ref(), "--rate=4G".as_ref(), dir.as_os_str()]);
    assert!(trimmed.status.success(), "{}", text(&trimmed));
    assert!(text(&trimmed).contains(" bytes) discarded"), "{}", text(&trimmed));
    let after = host_mib(&volume);
    assert!(after + 90 <= before, "{before} MiB, then {after}: {}", text(&trimmed));
    assert!(std::fs::read(dir.join("kept")).unwrap() == vec![7; 32 << 20]);
    // The rate did not count in a volume of one piece.
    let started = std::time::Instant::now();
    let trimmed = quire(&["trim".as_ref(), "--rate=200M".as_ref(), dir.as_os_str()]);
    assert!(trimmed.status.success(), "{}", text(&trimmed));
    assert!(started.elapsed() >= std::time::Duration::from_millis(1500), "{:?}", started.elapsed());
    let refused = quire(&["trim".as_ref(), "--rate=0".as_ref(), dir.as_os_str()]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    volume.unmount();
    let refused = quire(&["trim".as_ref(), dir.as_os_str()]);
    assert_eq!(refused.status.code(), Some(37), "{}", text(&refused));
}

/// `fstrim` got ENOTTY.
#[test]
fn fstrim_works_on_a_mount() {
    if !can_mount("fstrim_works_on_a_mount") || !has("fstrim", "fstrim_works_on_a_mount") {
        return;
    }
    let mut volume = Volume::new("128M");
    volume.mount();
    let dir = volume.mountpoint();
    std::fs::write(dir.join("kept"), vec![7; 8 << 20]).unwrap();
    let said = common::run(Command::new("fstrim").arg("--verbose").arg(&dir));
    let bytes = said.split('(').nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| (64 << 20..128 << 20).contains(&bytes)), "{said}");
    let part = common::run(Command::new("fstrim").args(["-v", "--offset=96M", "--length=1M"]).arg(&dir));
    let bytes = part.split('(').nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| bytes <= 1 << 20), "{part}");
    let behind = Command::new("fstrim").arg("--offset=1G").arg(&dir).output().unwrap();
    assert!(!behind.status.success(), "{}", text(&behind));
    // Another user may not.
    let other = ["--reuid=65534", "--clear-groups", "fstrim"];
    let refused = Command::new("setpriv").args(other).arg(&dir).output().unwrap();
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(std::fs::read(dir.join("kept")).unwrap() == vec![7; 8 << 20]);
    volume.unmount();
    volume.check();
}

#[test]
fn a_mount_is_watched_and_steered() {
    if !can_mount("a_mount_is_watched_and_steered") {
        return;
    }
    let mut volume = Volume::new("512M").with_options("cache_size=128M");
    volume.mount();
    let dir = volume.mountpoint();
    let file =
        std::fs::File::options().read(true).write(true).create_new(true).open(dir.join("busy")).unwrap();
    let block = vec![7; 1 << 16];
    (0..1024u64).for_each(|at| file.write_all_at(&block, at << 16).unwrap());
    file.sync_all().unwrap();
    let mut read = vec![0; 4096];
    (0..4096u64).for_each(|at| file.read_exact_at(&mut read, at << 12).unwrap());

    let seen = numbers(&dir);
    assert!(number(&seen, "quire_request_bytes_total{work=\"write\"}") >= f64::from(64 << 20));
    assert!(number(&seen, "quire_requests_total{work=\"read\"}") >= 1.0);
    assert!(number(&seen, "quire_request_seconds_count{work=\"sync\"}") >= 1.0);
    assert_eq!(number(&seen, "quire_cache_limit_bytes"), f64::from(128 << 20));
    assert!(number(&seen, "quire_device_data_write_bytes_total") >= f64::from(64 << 20));
    assert!(seen.contains("quire_busy_file_requests{inode="), "{seen}");

    // A lower limit holds at once, but for what is in use just then; one that cannot work changes nothing.
    assert!(cache_size(&dir, "16M").status.success());
    let used = number(&numbers(&dir), "quire_cache_used_bytes");
    assert!(used <= f64::from(16 << 20), "{used}");
    let refused = cache_size(&dir, "1M");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(
        text(&refused).contains("too small") && text(&refused).contains("at least"),
        "{}",
        text(&refused)
    );
    assert_eq!(number(&numbers(&dir), "quire_cache_limit_bytes"), f64::from(16 << 20));
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));

    // `top` shows what happens while it looks, with the name of a file that is open.
    let writing = std::thread::spawn(move || {
        for at in 0..20_000u64 {
            file.write_all_at(&[1; 4096], (at % 1024) << 12).unwrap();
        }
        file
    });
    let top = quire(&["top".as_ref(), "--once".as_ref(), "--interval=0.3".as_ref(), dir.as_os_str()]);
    let file = writing.join().unwrap();
    assert!(top.status.success(), "{}", text(&top));
    for part in ["requests", "cache", "journal", "busiest files", "cache_used_bytes "] {
        assert!(text(&top).contains(part), "no {part} in\n{}", text(&top));
    }
    drop(file);
    volume.unmount();
    let gone = quire(&["ctl".as_ref(), "metrics".as_ref(), dir.as_os_str()]);
    assert_eq!(gone.status.code(), Some(37), "{}", text(&gone));
}

/// The address of the socket that the server of a mount has in the abstract name space, where all can see it.
fn control_socket(dir: &Path) -> SocketAddr {
    let device = std::fs::metadata(dir).unwrap().dev();
    let name = format!("quire/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(table.lines().any(|line| line.ends_with(&format!(" @{name}"))), "no {name} in {table}");
    SocketAddr::from_abstract_name(name).unwrap()
}

#[test]
fn strangers_are_not_answered() {
    if !can_mount("strangers_are_not_answered") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    // The test's directory is the owner's alone; the socket is not protected by it.
    let directory = volume.mountpoint().parent().unwrap().to_owned();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    // A copy that anybody may run.
    let program = directory.join("quire");
    copy_program(&program);
    for request in [&["ctl", "metrics"][..], &["top", "--once"]] {
        let mut command = Command::new(&program);
        command.args(request).arg(volume.mountpoint()).uid(65534).gid(65534);
        let output = command.output().unwrap();
        assert!(
            output.status.code() == Some(38) && output.stdout.is_empty(),
            "{request:?}: {}",
            text(&output)
        );
        assert!(text(&output).contains("may ask the server"), "{request:?}: {}", text(&output));
    }
    // Nor with a program of the user's own: the server refuses it in words, before it reads the request.
    let socket = control_socket(&volume.mountpoint());
    let said = std::thread::spawn(move || {
        let stranger = rustix::process::Uid::from_raw(65534);
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
        let mut stream = UnixStream::connect_addr(&socket).unwrap();
        let mut said = String::new();
        // The request may come too late to be taken; what counts is what is said.
        let _ = stream.write_all(b"metrics\n");
        let _ = stream.read_to_string(&mut said);
        said
    });
    let said = said.join().unwrap();
    assert!(said.starts_with("error 38 ") && said.lines().count() == 1, "{said}");
    assert!(numbers(&volume.mountpoint()).contains("quire_cache_limit_bytes"));
    volume.unmount();
}

#[test]
fn numbers_are_served_over_http_where_asked_for() {
    if !can_mount("numbers_are_served_over_http_where_asked_for") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics.sock");
    let mut volume = Volume::new("64M").with_options(&format!("metrics={}", socket.display()));
    volume.mount();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let get = |path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\n# TYPE quire_cache_limit_bytes gauge\n"), "{answer}");
    assert!(get("/other").starts_with("HTTP/1.1 404"));
    // A silent client blocks the others for a bounded time, and a second mount takes a dead server's socket
    // over.
    volume.unmount();
    volume.mount();
    assert!(get("/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    volume.unmount();
    let refused = quire(&["mount", "-o", "metrics=0.0.0.0:9101", "a.img", "b"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("loopback"), "{}", text(&refused));
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{what}: it takes too long");
}

/// A volume with a bad copy of metadata is scrubbed while it is mounted, and closed clean.
#[test]
fn a_mount_is_scrubbed() {
    if !can_mount("a_mount_is_scrubbed") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let dir = volume.mountpoint();
    std::fs::write(dir.join("file"), vec![7; 3 << 20]).unwrap();
    (0..500).for_each(|n| std::fs::write(dir.join(format!("small-{n}")), b"text").unwrap());
    let scrub = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_quire")).arg("scrub").args(words).arg(&dir).output();
        let output = output.unwrap();
        let said = format!("{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap(), said)
    };
    let (code, said) = scrub(&["--status"]);
    assert!(code == 0 && said.contains("never scrubbed"), "{said}");
    let (code, said) = scrub(&["--data", "--rate", "100M"]);
    assert!(code == 0 && said.contains("of 501 files") && said.contains("; 0 bad copies"), "{said}");
    let (code, said) = scrub(&["--status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, status["state"].as_str(), &status["files"]), (0, Some("finished"), &501.into()));
    let (code, said) = scrub(&["--rate", "0"]);
    assert_eq!(code, 1, "{said}");
    // The volume remembers it.
    volume.unmount();
    volume.mount();
    let (code, said) = scrub(&["--status"]);
    assert!(code == 0 && said.contains("scrubbed (") && said.contains("of 501 files"), "{said}");

    // Slow enough to be met at work.
    let slow = Command::new(env!("CARGO_BIN_EXE_quire")).args(["scrub", "--rate", "1"]).arg(&dir).spawn();
    let mut slow = slow.unwrap();
    wait_until("it runs", || scrub(&["--status"]).1.contains("being scrubbed"));
    let (code, said) = scrub(&[]);
    assert!(code == 36 && said.contains("--stop ends it"), "{said}");
    assert_eq!(scrub(&["--stop"]).0, 0);
    assert!(slow.wait().unwrap().success());
    assert!(scrub(&["--status"]).1.contains("the scrub was stopped"));

    // The end of the mount interrupts it, and the next mount goes on; so does a server that was killed. It
    // says how much there is to read once the checkpoint that tells of it is durable: a server that is killed
    // before that leaves the scrub of before, which was stopped.
    let has_begun = || {
        let status: serde_json::Value = serde_json::from_str(&scrub(&["--status", "--json"]).1).unwrap();
        status["state"] == "running" && status["expected_bytes"].as_u64() > Some(0)
    };
    for kill in [false, true] {
        let slow = Command::new(env!("CARGO_BIN_EXE_quire")).args(["scrub", "--rate", "1"]).arg(&dir).spawn();
        let mut slow = slow.unwrap();
        wait_until("it has begun", has_begun);
        if kill {
            volume.kill();
        } else {
            volume.unmount();
        }
        slow.wait().unwrap();
        volume.mount();
        wait_until("it goes on", || scrub(&["--status"]).1.contains("being scrubbed"));
        assert_eq!(scrub(&["--stop"]).0, 0);
        wait_until("it is stopped", || scrub(&["--status"]).1.contains("the scrub was stopped"));
    }
    let (code, said) = scrub(&["--data", "--restart"]);
    assert!(code == 0 && said.contains("of 501 files"), "{said}");

    // The superblocks, under the server's hands. The checkpoint that says that a scrub has begun writes one
    // of them; the other one stays bad until the scrub comes to it.
    let image = std::fs::File::options().write(true).open(volume.image()).unwrap();
    [0, 8].into_iter().for_each(|block| image.write_all_at(&[0; 4096], block * 4096).unwrap());
    let (code, said) = scrub(&[]);
    assert!(code == 0 && !said.contains("; 0 bad copies"), "{said}");
    let numbers = numbers(&dir);
    assert_eq!(number(&numbers, "quire_tree_damaged_copies_total"), 0.0);
    volume.unmount();
    let checked = quire(&["fsck".as_ref(), volume.image().as_os_str()]);
    assert!(checked.status.success(), "{}", text(&checked));
    let elsewhere = quire(&["scrub".as_ref(), dir.as_os_str()]);
    assert_eq!(elsewhere.status.code(), Some(37), "{}", text(&elsewhere));
}

#[test]
fn a_frozen_mount_can_be_copied() {
    if !can_mount("a_frozen_mount_can_be_copied") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let dir = volume.mountpoint();
    let on_mount = |arguments: &[&str]| {
        quire(&arguments.iter().map(std::ffi::OsStr::new).chain([dir.as_os_str()]).collect::<Vec<_>>())
    };
    std::fs::write(dir.join("kept"), "before").unwrap();

    let frozen = on_mount(&["freeze", "--limit", "600"]);
    assert!(frozen.status.success(), "{}", text(&frozen));
    let writer = {
        let dir = dir.clone();
        std::thread::spawn(move || std::fs::write(dir.join("late"), "after"))
    };
    let again = on_mount(&["freeze"]);
    assert_eq!(again.status.code(), Some(36), "{}", text(&again));
    // A trim waited for the thaw, and with it the server's control socket: nobody could thaw the volume.
    let trim = on_mount(&["trim"]);
    assert_eq!(trim.status.code(), Some(36), "{}", text(&trim));
    assert!(text(&trim).contains("frozen"), "{}", text(&trim));
    let image = std::fs::read(volume.image()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(std::fs::read(dir.join("kept")).unwrap(), b"before", "reads go on");
    assert!(std::fs::read(volume.image()).unwrap() == image, "the image has changed");
    assert!(!writer.is_finished(), "a change did not wait");
    let thawed = on_mount(&["thaw"]);
    assert!(thawed.status.success(), "{}", text(&thawed));
    writer.join().unwrap().unwrap();

    let copy = volume.image().with_file_name("copy");
    std::fs::write(&copy, image).unwrap();
    let checked = quire(&["fsck".as_ref(), copy.as_os_str()]);
    assert!(checked.status.success(), "{}", text(&checked));

    let frozen = on_mount(&["freeze", "--limit", "1"]);
    assert!(frozen.status.success(), "{}", text(&frozen));
    // It waits until the volume thaws by itself.
    std::fs::write(dir.join("later"), "after").unwrap();
    // Also where a script tries it again.
    for _ in 0..2 {
        let late = on_mount(&["thaw"]);
        assert_eq!(late.status.code(), Some(32), "{}", text(&late));
        assert!(text(&late).contains("is not whole"), "{}", text(&late));
    }
    assert!(on_mount(&["freeze"]).status.success());
    assert!(on_mount(&["thaw"]).status.success());
    let never = on_mount(&["thaw"]);
    assert_eq!(never.status.code(), Some(37), "{}", text(&never));
    volume.unmount();
}

/// The thread that takes requests tried a small write itself, and waited in it for the thaw; so did every
/// read behind it. Later, 64 writes that waited held all threads of the pool, and what needed the device
/// waited behind them.
#[test]
fn reads_go_on_beside_a_write_to_a_frozen_volume() {
    if !can_mount("reads_go_on_beside_a_write_to_a_frozen_volume") {
        return;
    }
    for transport in common::TRANSPORTS {
        let mut volume = Volume::new("64M");
        volume.set_transport(transport);
        volume.mount();
        let dir = volume.mountpoint();
        std::fs::write(dir.join("cold"), [5; 100]).unwrap();
        volume.unmount();
        volume.mount();
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).create_new(true).open(dir.join("warm")).unwrap();
        // Cached, with its place on the device.
        file.write_all_at(&[1; 8192], 0).unwrap();
        file.sync_all().unwrap();
        let frozen = quire(&["freeze".as_ref(), dir.as_os_str()]);
        assert!(frozen.status.success(), "{}", text(&frozen));
        let writers: Vec<_> = (0..150)
            .map(|at| {
                let file = file.try_clone().unwrap();
                std::thread::spawn(move || file.write_all_at(&[2; 10], at * 50).unwrap())
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let (tell, told) = std::sync::mpsc::channel();
        let reader = {
            let dir = dir.clone();
            std::thread::spawn(move || {
                for number in 0..20 {
                    assert!(!dir.join(format!("no such name {number}")).exists());
                }
                let _ = tell.send(std::fs::read(dir.join("cold")).unwrap());
            })
        };
        let read = told.recv_timeout(std::time::Duration::from_secs(20));
        let are_waiting = writers.iter().any(|writer| !writer.is_finished());
        let thawed = quire(&["thaw".as_ref(), dir.as_os_str()]);
        reader.join().unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(thawed.status.success(), "{}", text(&thawed));
        assert_eq!(read.as_deref(), Ok(&[5; 100][..]), "{transport}: a read waits for the thaw");
        assert!(are_waiting, "{transport}: a frozen volume was written to");
        let mut seen = [0; 10];
        file.read_exact_at(&mut seen, 300).unwrap();
        assert_eq!(seen, [2; 10]);
        drop(file);
        volume.unmount();
    }
}

#[test]
fn snapshots_of_a_mount_are_taken_and_deleted_while_it_is_written() {
    let name = "snapshots_of_a_mount_are_taken_and_deleted_while_it_is_written";
    if !can_mount(name) {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.mount();
    let dir = volume.mountpoint();
    let snapshot = |action: &str, on: &Path, name: &[&str]| {
        let words = ["snapshot", action].map(std::ffi::OsStr::new);
        let name = name.iter().map(std::ffi::OsStr::new);
        let output = quire(&words.into_iter().chain([on.as_os_str()]).chain(name).collect::<Vec<_>>());
        (output.status.code().unwrap(), text(&output))
    };
    std::fs::write(dir.join("kept"), "before").unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (dir, stop) = (dir.clone(), stop.clone());
        std::thread::spawn(move || {
            let file = std::fs::File::create(dir.join("busy")).unwrap();
            for round in 0u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                file.write_all_at(&[round as u8; 8192], round % 50 * 4096).unwrap();
                file.sync_data().unwrap();
            }
        })
    };
    assert_eq!(snapshot("create", &dir, &["monday"]), (0, String::new()));
    std::fs::write(dir.join("kept"), "after").unwrap();
    // By the image, too.
    assert_eq!(snapshot("create", &volume.image(), &["of the image"]), (0, String::new()));
    let (code, said) = snapshot("create", &dir, &["monday"]);
    assert!(code == 37 && said.contains("exists"), "{code}: {said}");
    let (code, said) = snapshot("create", &dir, &["a/b"]);
    assert!(code == 1 && said.contains("a/b"), "{code}: {said}");
    let (code, said) = snapshot("list", &dir, &[]);
    assert!(code == 0 && said.contains("monday") && said.contains("of the image"), "{said}");
    let (code, said) = snapshot("rollback", &dir, &["of the image"]);
    assert!(code == 36 && said.contains("is mounted at"), "{code}: {said}");
    assert_eq!(snapshot("delete", &dir, &["of the image"]), (0, String::new()));
    assert_eq!(snapshot("delete", &dir, &["of the image"]).0, 37);
    let info = quire(&["info".as_ref(), dir.as_os_str()]);
    assert!(info.status.success() && text(&info).contains("mounted at"), "{}", text(&info));

    let frozen = quire(&["freeze".as_ref(), dir.as_os_str()]);
    assert!(frozen.status.success(), "{}", text(&frozen));
    let (code, said) = snapshot("create", &dir, &["tuesday"]);
    assert!(code == 36 && said.contains("frozen"), "{code}: {said}");
    assert!(quire(&["thaw".as_ref(), dir.as_os_str()]).status.success());

    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(std::fs::read(dir.join("kept")).unwrap(), b"after");
    volume.unmount();
    let checked = quire(&["fsck".as_ref(), volume.image().as_os_str()]);
    assert!(checked.status.success(), "{}", text(&checked));
    let monday = quire::VolumeOptions::new().read_only(true).snapshot("monday").open(volume.image()).unwrap();
    assert_eq!(monday.read("kept").unwrap(), b"before");
    monday.close().unwrap();
}
