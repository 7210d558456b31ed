//! Exports of nbdkit as devices. Where nbdkit or libnbd is missing, the tests say that they are skipped.

use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind};
use quire_device::{AlignedBuf, Backend, Io, IoClass, IoOp, OpenMode, Segment, create_image, open_image};
use quire_format::owner::{OWNER_BLOCK, OwnerMark};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// A server of one export on a socket in a directory of its own; killed when dropped.
struct Nbdkit {
    child: Child,
    socket: PathBuf,
    arguments: Vec<String>,
}

impl Nbdkit {
    /// None where there is no nbdkit, or no libnbd to reach it.
    fn start(directory: &Path, arguments: &[&str]) -> Option<Nbdkit> {
        let missing = open_image(Path::new("nbd+unix:///?socket=/nonexistent/socket"), OpenMode::ReadOnly);
        if missing.err().is_some_and(|error| error.kind() == ErrorKind::Unsupported) {
            eprintln!("SKIPPED: libnbd.so.0 is missing (package libnbd0)");
            return None;
        }
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let socket = directory.join("socket");
        let child = spawn(&socket, &arguments)?;
        Some(Nbdkit { child, socket, arguments })
    }

    fn address(&self, parameters: &str) -> PathBuf {
        format!("nbd+unix:///?socket={}{parameters}", self.socket.display()).into()
    }

    fn open(&self, parameters: &str) -> Arc<dyn Backend> {
        open_image(&self.address(parameters), OpenMode::ReadWrite).unwrap()
    }

    fn refusal(&self) -> Error {
        open_image(&self.address(""), OpenMode::ReadWrite).err().expect("it is refused")
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }

    fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.socket, &self.arguments).unwrap();
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts nbdkit and waits for its socket.
fn spawn(socket: &Path, arguments: &[String]) -> Option<Child> {
    let started = Command::new("nbdkit")
        .args(["--foreground", "--exit-with-parent", "--unix"])
        .arg(socket)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            eprintln!("SKIPPED: nbdkit cannot be started ({error})");
            return None;
        }
    };
    let start = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "nbdkit {arguments:?} ended at once");
        assert!(start.elapsed() < LIMIT, "nbdkit {arguments:?} opens no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(child)
}

/// Makes the export look like a volume: only one has an owner's mark.
fn mkfs(server: &Nbdkit) {
    let mut block = AlignedBuf::blocks(1);
    block[..8].copy_from_slice(b"QUIRE\0FS");
    let backend = server.open("");
    backend.write(IoClass::Metadata, BlockNo(0), &block).unwrap();
    backend.flush().unwrap();
}

fn mark(server: &Nbdkit) -> Option<OwnerMark> {
    let look = open_image(&server.address(""), OpenMode::Look).unwrap();
    OwnerMark::decode(read(&*look, OWNER_BLOCK, 1)[..].try_into().unwrap()).unwrap()
}

fn directory() -> tempfile::TempDir {
    // Paths of sockets are short.
    tempfile::Builder::new().prefix("quire-nbd").tempdir_in("/tmp").unwrap()
}

fn pattern(at: u64, blocks: usize, seed: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::blocks(blocks);
    for (index, block) in buf.chunks_mut(BLOCK_SIZE).enumerate() {
        block.fill(seed.wrapping_mul(31).wrapping_add((at as u8).wrapping_add(index as u8)) | 1);
    }
    buf
}

fn read(backend: &dyn Backend, at: u64, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::blocks(blocks);
    backend.read(IoClass::Data, BlockNo(at), &mut buf).unwrap();
    buf
}

#[test]
fn writes_reads_flushes_and_discards() {
    let directory = directory();
    let Some(server) = Nbdkit::start(directory.path(), &["memory", "64M"]) else { return };
    let backend = server.open("");
    assert_eq!(backend.blocks(), 64 << 20 >> 12);
    let data = pattern(100, 1000, 1);
    backend.write(IoClass::Data, BlockNo(100), &data).unwrap();
    backend.flush().unwrap();
    assert!(*read(&*backend, 100, 1000) == *data);
    backend.discard(BlockNo(100), 8).unwrap();
    assert!(read(&*backend, 100, 8).iter().all(|byte| *byte == 0), "nbdkit's memory forgets what is trimmed");
    backend.write(IoClass::Data, BlockNo(200), &vec![0; 64 * BLOCK_SIZE]).unwrap();
    assert!(read(&*backend, 200, 64).iter().all(|byte| *byte == 0));
    assert!(backend.read(IoClass::Data, BlockNo(64 << 8), &mut vec![0; BLOCK_SIZE]).is_err());
    drop(backend);
    // A volume is as large as the export unless a size says less.
    assert_eq!(create_image(&server.address(""), 1 << 20, false).unwrap().blocks(), 64 << 8);
    assert_eq!(create_image(&server.address(""), 65 << 20, false).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn many_requests_are_in_flight() {
    let directory = directory();
    let arguments = ["--filter=delay", "memory", "64M", "delay-write=20ms"];
    let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
    let backend = server.open("");
    let (sender, ended) = channel();
    let start = Instant::now();
    for at in 0..160 {
        let mut buf = pattern(at, 1, 3);
        // SAFETY: `done` owns the buffer.
        let segments = vec![unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) }];
        let sender = sender.clone();
        let done = Box::new(move |outcome| {
            drop(buf);
            let _ = sender.send(outcome);
        });
        backend.submit(IoClass::Data, vec![Io { op: IoOp::Write, at: BlockNo(at), segments, done }]);
    }
    for _ in 0..160 {
        ended.recv_timeout(LIMIT).unwrap().unwrap();
    }
    // nbdkit works on 16 requests of a connection at a time: one by one it were more than 3.2 s.
    assert!(start.elapsed() < Duration::from_millis(1600), "{:?}", start.elapsed());
    for at in 0..160 {
        assert!(*read(&*backend, at, 1) == *pattern(at, 1, 3));
    }
}

/// A flush of much data took longer than an answer may: a connection that worked was broken.
#[test]
fn a_long_flush_breaks_no_connection() {
    let directory = directory();
    let arguments = [
        "eval",
        "thread_model=echo parallel",
        "get_size=echo 1048576",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        "flush=sleep 7",
    ];
    let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
    let backend = server.open("&answer=3&connections=1");
    let flush = std::thread::spawn({
        let backend = backend.clone();
        move || backend.flush()
    });
    while !flush.is_finished() {
        read(&*backend, 0, 1);
        std::thread::sleep(Duration::from_millis(100));
    }
    flush.join().unwrap().unwrap();
}

/// The last of many requests on a slow link waited longer than an answer may: a connection that worked was
/// broken.
#[test]
fn a_slow_link_is_not_a_broken_one() {
    let directory = directory();
    // A quarter of a MiB in a second, and two MiB.
    let Some(server) = Nbdkit::start(directory.path(), &["--filter=rate", "memory", "64M", "rate=2M"]) else {
        return;
    };
    let backend = server.open("&answer=2&connections=1");
    let writers: Vec<_> = (0..64)
        .map(|number| {
            let backend = backend.clone();
            std::thread::spawn(move || backend.write(IoClass::Data, BlockNo(8 * number), &pattern(0, 8, 1)))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
}

/// A server without writes of zeros was sent zeros from memory of each request's own, which nothing bounded.
#[test]
fn zeros_take_no_memory_where_the_server_wants_them_as_data() {
    let directory = directory();
    let log = directory.path().join("log");
    let file = format!("logfile={}", log.display());
    let arguments = ["--filter=nozero", "--filter=log", "memory", "64M", &file];
    let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
    let backend = server.open("");
    backend.write(IoClass::Data, BlockNo(8), &pattern(8, 1000, 3)).unwrap();
    std::fs::write(&log, "").unwrap();
    backend.write(IoClass::Data, BlockNo(9), &vec![0; 998 * BLOCK_SIZE]).unwrap();
    let zeros = read(&*backend, 9, 998);
    assert!(zeros.iter().all(|byte| *byte == 0));
    assert!(*read(&*backend, 8, 1) == *pattern(8, 1, 3));
    assert!(*read(&*backend, 1007, 1) == *pattern(1007, 1, 3));
    let text = std::fs::read_to_string(&log).unwrap();
    let writes: Vec<&str> = text.lines().filter(|line| line.contains(" Write id=")).collect();
    assert!(writes.len() == 63, "{text}");
}

/// The connections that nbdkit's log has requests of.
fn connections_in(log: &Path) -> std::collections::BTreeSet<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let writes = text.lines().filter(|line| line.contains("Write id="));
    let number = |line: &str| line.split("connection=").nth(1)?.split_whitespace().next().map(str::to_owned);
    writes.filter_map(number).collect()
}

/// Requests go over several connections where the server can serve that, and over as many as the address
/// says at most.
#[test]
fn requests_are_spread_over_connections() {
    for (filters, parameters, expected) in [
        (&["--filter=log"][..], "", 4),
        (&["--filter=log"], "&connections=2", 2),
        (&["--filter=log", "--filter=multi-conn"], "", 1),
    ] {
        let directory = directory();
        let log = directory.path().join("log");
        let file = format!("logfile={}", log.display());
        let mut arguments = filters.to_vec();
        arguments.extend(["memory", "64M", &file]);
        if expected == 1 {
            arguments.push("multi-conn-mode=disable");
        }
        let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
        let backend = server.open(parameters);
        for at in 0..16 {
            backend.write(IoClass::Data, BlockNo(at), &pattern(at, 1, 9)).unwrap();
        }
        backend.flush().unwrap();
        for at in 0..16 {
            assert!(*read(&*backend, at, 1) == *pattern(at, 1, 9));
        }
        drop(backend);
        assert_eq!(connections_in(&log).len(), expected, "{filters:?} {parameters}");
    }
}

#[test]
fn requests_respect_the_servers_sizes() {
    let directory = directory();
    let sizes = |least: &str, most: &str| {
        Nbdkit::start(
            directory.path(),
            &[
                "--filter=blocksize-policy",
                "memory",
                "64M",
                &format!("blocksize-minimum={least}"),
                "blocksize-preferred=64K",
                &format!("blocksize-maximum={most}"),
                "blocksize-error-policy=error",
            ],
        )
    };
    let Some(server) = sizes("4096", "64K") else { return };
    let backend = server.open("");
    let data = pattern(3, 1001, 5);
    backend.write(IoClass::Data, BlockNo(3), &data).unwrap();
    assert!(*read(&*backend, 3, 1001) == *data);
    drop((backend, server));
    let Some(server) = sizes("64K", "1M") else { return };
    let error = server.refusal();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no requests smaller than 65536 bytes"), "{error}");
}

#[test]
fn what_cannot_be_a_device_is_refused_with_a_reason() {
    let directory = directory();
    let Some(server) = Nbdkit::start(directory.path(), &["--readonly", "memory", "1M"]) else { return };
    assert_eq!(server.refusal().kind(), ErrorKind::ReadOnly);
    let reader = open_image(&server.address(""), OpenMode::ReadOnly).unwrap();
    assert!(reader.is_read_only());
    assert!(read(&*reader, 0, 1).iter().all(|byte| *byte == 0));
    assert_eq!(reader.flush().unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(reader);
    drop(server);
    let eval = ["eval", "get_size=echo 1048576", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null"];
    let Some(server) = Nbdkit::start(directory.path(), &eval) else { return };
    let error = server.refusal();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no flush"), "{error}");
    let nobody = PathBuf::from(format!("nbd+unix:///?socket={}/nobody", directory.path().display()));
    let error = open_image(&nobody, OpenMode::ReadWrite).err().unwrap();
    assert!(error.to_string().contains("nobody"), "{error}");
    let odd = open_image(Path::new("nbd://h/?reconnect=x"), OpenMode::ReadWrite).err().unwrap();
    assert_eq!(odd.kind(), ErrorKind::Invalid);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let directory = directory();
    let arguments = ["--filter=delay", "memory", "1M", "delay-write=20"];
    let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
    let backend = server.open("&answer=1");
    let start = Instant::now();
    let error = backend.write(IoClass::Data, BlockNo(0), &pattern(0, 1, 1)).unwrap_err();
    assert!(error.to_string().contains("no answer"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(backend);
    // Nor does one that accepts connections and says nothing hold a mount up.
    let silent = directory.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let address = PathBuf::from(format!("nbd+unix:///?socket={}&answer=1", silent.display()));
    let start = Instant::now();
    assert!(open_image(&address, OpenMode::ReadWrite).is_err());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// A server of one connection hangs up while its last one ends. Where it did so at once, libnbd called that a
/// wrong call of its own (EINVAL), and the volume was not opened, though the next connection was admitted.
#[test]
fn a_server_that_hangs_up_at_first_is_asked_again() {
    let directory = directory();
    let Some(server) = Nbdkit::start(directory.path(), &["memory", "64M"]) else { return };
    for turn in 0..5 {
        let (front, link) = (directory.path().join(format!("front{turn}")), directory.path().join("link"));
        let listener = std::os::unix::net::UnixListener::bind(&front).unwrap();
        std::os::unix::fs::symlink(&server.socket, &link).unwrap();
        let address = PathBuf::from(format!("nbd+unix:///?socket={}", front.display()));
        let busy = std::thread::spawn(move || {
            for _ in 0..5 {
                drop(listener.accept().unwrap());
            }
            std::fs::rename(link, front).unwrap();
        });
        let opened = open_image(&address, OpenMode::ReadWrite);
        assert_eq!(opened.map(|backend| backend.blocks()).unwrap(), 64 << 20 >> 12);
        busy.join().unwrap();
    }
}

#[test]
fn a_server_killed_in_the_middle_comes_back_and_nothing_is_lost() {
    let directory = directory();
    let image = directory.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let Some(mut server) = Nbdkit::start(directory.path(), &["file", image.to_str().unwrap()]) else {
        return;
    };
    let backend = server.open("&reconnect=20");
    let (sender, flushed) = channel();
    let writer = std::thread::spawn({
        let backend = backend.clone();
        move || {
            for at in 0..600 {
                backend.write(IoClass::Data, BlockNo(at), &pattern(at, 1, 7)).unwrap();
                if at % 10 == 9 {
                    backend.flush().unwrap();
                    sender.send(at).unwrap();
                }
            }
        }
    });
    for _ in 0..3 {
        flushed.recv_timeout(LIMIT).unwrap();
        server.restart();
    }
    while let Ok(at) = flushed.recv_timeout(LIMIT) {
        assert!(at < 600);
    }
    writer.join().unwrap();
    drop(backend);
    let bytes = std::fs::read(&image).unwrap();
    for at in 0..600 {
        let block = &bytes[at as usize * BLOCK_SIZE..][..BLOCK_SIZE];
        assert!(*block == *pattern(at, 1, 7), "block {at}");
    }
}

#[test]
fn a_server_that_is_gone_fails_everything_soon() {
    let directory = directory();
    for (parameters, seconds) in [("", 2), ("&reconnect=1", 8)] {
        let Some(mut server) = Nbdkit::start(directory.path(), &["memory", "1M"]) else { return };
        let backend = server.open(parameters);
        backend.write(IoClass::Data, BlockNo(1), &pattern(1, 1, 1)).unwrap();
        server.kill();
        let start = Instant::now();
        let error = backend.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("See that the server runs"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(seconds), "{:?}", start.elapsed());
        let start = Instant::now();
        backend.read(IoClass::Data, BlockNo(1), &mut vec![0; BLOCK_SIZE]).unwrap_err();
        drop(backend);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

/// An export that has grown is found to be larger by a new connection, and keeps what was written before. A
/// server that came back with the export as small as it was at first was taken for the same device, and
/// requests behind its end failed one by one.
#[test]
fn an_export_that_has_grown() {
    let directory = directory();
    let image = directory.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(16 << 20).unwrap();
    let Some(mut server) = Nbdkit::start(directory.path(), &["file", image.to_str().unwrap()]) else {
        return;
    };
    let backend = server.open("&reconnect=5");
    backend.write(IoClass::Data, BlockNo(5), &pattern(5, 1, 3)).unwrap();
    let error = backend.grow(8192).unwrap_err();
    assert!(error.to_string().contains("the server reports 16 MiB to a new connection"), "{error}");
    file.set_len(32 << 20).unwrap();
    backend.grow(8192).unwrap();
    assert_eq!(backend.blocks(), 8192);
    backend.write(IoClass::Data, BlockNo(8191), &pattern(8191, 1, 4)).unwrap();
    backend.flush().unwrap();
    for (at, seed) in [(5, 3), (8191, 4)] {
        assert!(read(&*backend, at, 1)[..] == pattern(at, 1, seed)[..], "block {at}");
    }
    server.kill();
    file.set_len(16 << 20).unwrap();
    server.restart();
    let error = backend.read(IoClass::Data, BlockNo(5), &mut vec![0; BLOCK_SIZE]).unwrap_err();
    assert!(error.to_string().contains("another export"), "{error}");
    drop(backend);
    // Without reconnecting there is no new connection.
    let error = server.open("").grow(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("unmount, and mount again"), "{error}");
}

#[test]
fn a_volume_names_its_owner_while_it_is_open() {
    let directory = directory();
    let image = directory.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let Some(mut server) = Nbdkit::start(directory.path(), &["file", image.to_str().unwrap()]) else {
        return;
    };
    // What is no volume yet keeps all its bytes.
    let other = pattern(1, 1, 9);
    server.open("").write(IoClass::Data, BlockNo(1), &other).unwrap();
    assert!(*read(&*server.open(""), 1, 1) == *other);
    mkfs(&server);
    let owner = server.open("&reconnect=30");
    let found = mark(&server).expect("a mark");
    assert_eq!((found.pid, found.silence), (std::process::id(), 190));
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let error = open_image(&server.address(""), mode).err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&format!("process {}", found.pid)), "{error}");
    }
    drop(owner);
    assert_eq!(mark(&server), None, "an owner that ends in order leaves none");
    // The operator's word counts. The owner before finds out when it connects again.
    let first = server.open("&reconnect=30");
    first.write(IoClass::Data, BlockNo(100), &pattern(100, 1, 1)).unwrap();
    let second = server.open("&takeover&reconnect=30");
    second.write(IoClass::Data, BlockNo(100), &pattern(100, 1, 2)).unwrap();
    second.flush().unwrap();
    server.restart();
    let error = first.flush().unwrap_err();
    assert!(error.to_string().contains("has taken the volume over"), "{error}");
    second.flush().unwrap();
    assert!(*read(&*second, 100, 1) == *pattern(100, 1, 2));
    drop(first);
    assert!(mark(&server).is_some(), "the mark of another stays");
    // An owner that lost its server leaves its mark, which its process knows to be stale.
    let third = {
        drop(second);
        server.open("")
    };
    server.kill();
    assert!(third.flush().is_err());
    drop(third);
    server.restart();
    assert!(mark(&server).is_some());
    drop(server.open(""));
    assert_eq!(mark(&server), None);
}

/// Two threads opened a volume at the same moment, before either had written its mark, or one while the other
/// had no beat yet and so passed for dead: both wrote to it until the next beat.
#[test]
fn of_two_openings_at_the_same_moment_one_succeeds() {
    let directory = directory();
    let arguments = ["--filter=delay", "memory", "64M", "delay-write=500ms"];
    let Some(server) = Nbdkit::start(directory.path(), &arguments) else { return };
    mkfs(&server);
    // The second looks while the first one's mark is on its way, and its own comes after the first has looked
    // again.
    let openings: Vec<_> = (0..2)
        .map(|number| {
            let address = server.address("");
            std::thread::spawn(move || {
                std::thread::sleep(number * Duration::from_millis(250));
                open_image(&address, OpenMode::ReadWrite)
            })
        })
        .collect();
    let opened: Vec<_> = openings.into_iter().map(|opening| opening.join().unwrap()).collect();
    let refused: Vec<_> = opened.iter().filter_map(|opened| opened.as_ref().err()).collect();
    assert!(refused.len() == 1 && refused[0].kind() == ErrorKind::Busy, "{refused:?}");
}

/// Certificates of a test's own, made by openssl; false where it is missing.
fn make_certificates(directory: &Path) -> bool {
    let openssl = |arguments: &str| {
        let ended = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(directory)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
        ended.is_ok_and(|status| status.success())
    };
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=Authority -keyout ca-key.pem -out ca-cert.pem",
    ) && openssl("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server-key.pem -out server.csr")
        && openssl(
            "x509 -req -in server.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile names -out server-cert.pem",
        )
}

#[test]
fn tls_carries_requests_and_checks_the_server() {
    let directory = directory();
    let (good, other) = (directory.path().join("good"), directory.path().join("other"));
    for place in [&good, &other] {
        std::fs::create_dir(place).unwrap();
        if !make_certificates(place) {
            eprintln!("SKIPPED: openssl is missing, which makes the certificates (package openssl)");
            return;
        }
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new("nbdkit")
        .args(["--foreground", "--exit-with-parent", "--ipaddr=127.0.0.1", "--tls=require"])
        .arg(format!("--port={port}"))
        .arg(format!("--tls-certificates={}", good.display()))
        .args(["memory", "64M"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: nbdkit cannot be started");
        return;
    };
    let address = |scheme: &str, certificates: &Path| -> PathBuf {
        format!("{scheme}://localhost:{port}/?tls-certificates={}&answer=5", certificates.display()).into()
    };
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    let outcome = std::panic::catch_unwind(|| {
        let backend = match open_image(&address("nbds", &good), OpenMode::ReadWrite) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return eprintln!("SKIPPED: libnbd.so.0 is missing, or knows no TLS ({error})");
            }
            opened => opened.unwrap(),
        };
        let data = pattern(5, 300, 4);
        backend.write(IoClass::Data, BlockNo(5), &data).unwrap();
        backend.flush().unwrap();
        assert!(*read(&*backend, 5, 300) == *data);
        drop(backend);
        let error = open_image(&address("nbds", &other), OpenMode::ReadOnly).err();
        assert!(error.is_some(), "a server whose certificate another authority signed is refused");
        let plain: PathBuf = format!("nbd://localhost:{port}/?answer=5").into();
        assert!(open_image(&plain, OpenMode::ReadOnly).is_err(), "this server wants TLS");
    });
    let _ = child.kill();
    let _ = child.wait();
    outcome.unwrap();
}
