//! A way to talk to the server behind a mount, beside the mount itself.
//!
//! A Unix socket in Linux' abstract name space, named after the mount point: it leaves no file behind when a
//! server dies, and answers even when the file system does not. Each end asks the kernel who the other is:
//! the server answers root and its own user, the client believes root and its own user.
//!
//! ```text
//!   client  metrics | info | cache-size BYTES | scrub ... | trim BYTE | freeze ... | snapshot ... | grow ...
//!           task NUMBER | send ... (whose answer goes on: [`crate::sending`])
//!   server  ok, and the answer's lines | error CODE MESSAGE
//! ```
//!
//! With `-o metrics=` the numbers are also served over HTTP, to programs that can reach the loopback port or
//! may open the socket.
//!
//! Limits: one client at a time, a line of [`LINE_MAX`] bytes, [`PATIENCE`] for each read and write.
//! Neighbours: [`crate::exposition`] writes the numbers, [`crate::commands::ctl`] and
//! [`crate::commands::top`] ask.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire::Volume;
use quire_base::sync::thread;
use quire_base::{Error, Result};
use rustix::net::sockopt::socket_peercred;

use crate::commands::{grow, info, trim};
use crate::exit::{self, Failure, Outcome};
use crate::exposition;
use crate::freezing::Freezing;
use crate::scrubbing::Scrubbing;
use crate::sending::Sending;
use crate::server_task::ServerTasks;
use crate::snapshotting;
use quire_base::size;

/// Longest line or request that is read.
const LINE_MAX: u64 = 8192;
/// What strangers are told.
const REFUSAL: &str = "error 38 only root and the user who mounted may ask the server of a mount\n";
/// How long the other side may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an address may be in use by a server that ends.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// Where the numbers are served over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsTarget {
    /// A port of the loopback interface.
    Port(SocketAddr),
    /// A Unix socket, for its owner.
    Socket(PathBuf),
}

impl MetricsTarget {
    /// Parses `PORT`, `ADDRESS:PORT` with a loopback address, or the absolute path of a socket.
    pub fn parse(text: &str) -> std::result::Result<MetricsTarget, String> {
        if text.starts_with('/') {
            return Ok(MetricsTarget::Socket(text.into()));
        }
        let address = match text.parse::<u16>() {
            Ok(port) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
            Err(_) => text.parse::<SocketAddr>(),
        };
        match address {
            Ok(address) if address.ip().is_loopback() && address.port() != 0 => {
                Ok(MetricsTarget::Port(address))
            }
            Ok(_) => Err(format!("metrics={text}: only a port of the loopback address is served")),
            Err(_) => Err(format!(
                "metrics={text}: the choices are a port, as in metrics=9101 or metrics=127.0.0.1:9101, and the \
                 absolute path of a socket"
            )),
        }
    }
}

/// The socket's name for a mount point: its path, hashed where it is long (FNV-1a), as the name has 107
/// bytes.
fn address(dir: &Path) -> std::io::Result<UnixAddress> {
    let path = dir.as_os_str().as_encoded_bytes();
    let hash = path
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let tail = &path[path.len().saturating_sub(64)..];
    let mut name = format!("quire/{hash:016x}").into_bytes();
    name.extend_from_slice(tail);
    UnixAddress::from_abstract_name(name)
}

fn is_trusted(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == me)
}

/// Serves the control socket, and the numbers where asked for, until the process ends.
pub fn serve(volume: &Volume, dir: &Path, metrics: Option<&MetricsTarget>) -> Result<()> {
    match address(dir).and_then(|address| bind(|| UnixListener::bind_addr(&address))) {
        Ok(listener) => {
            let (volume, asked) = (volume.clone(), Asked::default());
            asked.scrubbing.go_on(&volume);
            spawn("quire-control", move || control(&listener, &volume, &asked))?;
        }
        // The mount is of use without it.
        Err(error) => tracing::warn!("no control socket for {}: {error}", dir.display()),
    }
    let Some(target) = metrics else { return Ok(()) };
    let volume = volume.clone();
    match target {
        MetricsTarget::Port(address) => {
            let listener = bind(|| TcpListener::bind(address))
                .map_err(|error| Error::os(format!("serving metrics at {address}"), &error))?;
            spawn("quire-metrics", move || {
                for stream in listener.incoming().flatten() {
                    let limits = stream
                        .set_read_timeout(Some(PATIENCE))
                        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                    let _ = limits.and_then(|()| http(&stream, &stream, &volume));
                }
            })
        }
        MetricsTarget::Socket(path) => {
            let failed = |error: std::io::Error| {
                Error::os(format!("serving metrics at the socket {}", path.display()), &error)
            };
            let listener = bind(|| bind_private(path)).map_err(failed)?;
            spawn("quire-metrics", move || {
                for stream in listener.incoming().flatten() {
                    let _ = limit(&stream).and_then(|()| http(&stream, &stream, &volume));
                }
            })
        }
    }
}

/// Binds an address that the last server of the mount may have for a moment more: unmounting waits for the
/// volume, not for the end of the process.
fn bind<T>(bind: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
    let start = Instant::now();
    loop {
        match bind() {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && start.elapsed() < ENDING_PATIENCE =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map(drop)
        .map_err(|error| Error::os(format!("starting the thread {name}"), &error))
}

/// A socket that its owner alone may open, in the place of one that no one serves any more. Anything else
/// that is there stays: connecting to a file that is no socket is refused just as well.
fn bind_private(path: &Path) -> std::io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    listener
}

fn limit(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// What the server does at the request of others, and goes on with meanwhile.
#[derive(Default)]
struct Asked {
    scrubbing: Scrubbing,
    freezing: Freezing,
    tasks: ServerTasks,
    sending: Sending,
}

fn control(listener: &UnixListener, volume: &Volume, asked: &Asked) {
    for stream in listener.incoming().flatten() {
        if !is_trusted(&stream) {
            // Said without listening first. It fits into the socket's buffer, so nobody waits.
            let _ = limit(&stream).and_then(|()| (&stream).write_all(REFUSAL.as_bytes()));
            continue;
        }
        let done = limit(&stream).and_then(|()| {
            let mut line = String::new();
            BufReader::new((&stream).take(LINE_MAX)).read_line(&mut line)?;
            let outcome = match line.trim().strip_prefix("send ") {
                Some(request) => match asked.sending.start(request, volume, stream.try_clone()?) {
                    // The thread that sends answers.
                    Ok(()) => return Ok(()),
                    Err(failure) => Err(failure),
                },
                None => answer(line.trim(), volume, asked),
            };
            (&stream).write_all(told(outcome).as_bytes())
        });
        if let Err(error) = done {
            tracing::debug!("a control connection: {error}");
        }
    }
}

fn answer(line: &str, volume: &Volume, asked: &Asked) -> Outcome<String> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("metrics", "") => Ok(exposition::text(volume, quire_fuse::meters())),
        ("cache-size", bytes) => match bytes.parse() {
            Ok(bytes) => volume.set_cache_bytes(bytes).map(|()| String::new()).map_err(Failure::from),
            Err(_) => Err(Failure::usage(format!("'{bytes}' is not a number of bytes"))),
        },
        ("trim", from) => trim::answer(from, volume),
        ("grow", wanted) => grow::answer(wanted, volume, &asked.tasks),
        ("info", "") => info::answer(volume),
        ("snapshot", what) => snapshotting::answer(what, volume, &asked.tasks),
        ("task", number) => match number.parse() {
            Ok(number) => asked.tasks.answer(number),
            Err(_) => Err(Failure::usage(format!("'{number}' is not the number of a task"))),
        },
        ("scrub", what) => asked.scrubbing.answer(what, volume),
        ("freeze", what) => asked.freezing.answer(what, volume),
        _ => Err(Failure::usage("the server does not know this request")),
    }
}

fn told(outcome: Outcome<String>) -> String {
    match outcome {
        Ok(text) => format!("ok\n{text}"),
        Err(failure) => format!("error {} {}\n", failure.code, failure.message.replace('\n', " ")),
    }
}

/// One request over HTTP.
fn http(from: impl Read, mut to: impl Write, volume: &Volume) -> std::io::Result<()> {
    let mut lines = BufReader::new(from.take(LINE_MAX)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The rest of the head, so that the connection is not reset over what was not read.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let (status, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/" | "/metrics", _] => ("200 OK", exposition::text(volume, quire_fuse::meters())),
        ["GET", ..] => ("404 Not Found", "the numbers are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    write!(
        to,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request to the server behind a mount point (an absolute path without symbolic links).
pub fn open(dir: &Path, request: &str) -> Outcome<UnixStream> {
    let stream = address(dir).and_then(|address| UnixStream::connect_addr(&address)).map_err(|error| {
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Failure::new(
                37,
                format!("no Quire server of this system answers for {}: is it mounted?", dir.display()),
            ),
            _ => talking(dir, &error),
        }
    })?;
    if !is_trusted(&stream) {
        return Err(Failure::new(
            38,
            format!(
                "the server of {} belongs to another user: only that user and root may ask it",
                dir.display()
            ),
        ));
    }
    limit(&stream).map_err(|error| talking(dir, &error))?;
    // The server refuses an unauthorized program before it reads anything: then the request may fail, and the
    // answer says why.
    let sent = (&stream).write_all(format!("{request}\n").as_bytes());
    match sent {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(talking(dir, &error)),
        _ => Ok(stream),
    }
}

fn talking(dir: &Path, error: &std::io::Error) -> Failure {
    Failure::system(format!("asking the server of {}", dir.display()), error)
}

/// Reads the first line of an answer: what the server refuses is an error.
pub fn read_verdict(dir: &Path, answer: &mut impl BufRead) -> Outcome {
    let mut line = String::new();
    let read = answer.take(LINE_MAX).read_line(&mut line);
    if !line.starts_with("error ") {
        read.map_err(|error| talking(dir, &error))?;
    }
    match line.trim_end() {
        "ok" => Ok(()),
        line if line.starts_with("error ") => {
            let (code, message) = line["error ".len()..].split_once(' ').unwrap_or_default();
            Err(Failure::new(code.parse().unwrap_or(exit::FAILED), message))
        }
        _ => Err(Failure::new(exit::FAILED, format!("the server of {} did not answer", dir.display()))),
    }
}

/// Asks the server behind a mount point.
pub fn ask(dir: &Path, request: &str) -> Outcome<String> {
    let stream = open(dir, request)?;
    let mut answer = BufReader::new(&stream);
    read_verdict(dir, &mut answer)?;
    let mut text = String::new();
    answer.read_to_string(&mut text).map_err(|error| talking(dir, &error))?;
    Ok(text)
}

/// Sets the limit of the cache behind a mount point.
pub fn set_cache_size(dir: &Path, bytes: u64) -> Outcome {
    ask(dir, &format!("cache-size {bytes}")).map(drop).map_err(|failure| Failure {
        message: format!("cache-size {}: {}", size::show(bytes), failure.message),
        ..failure
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_ports_and_absolute_paths() {
        let port = |text: &str| MetricsTarget::Port(text.parse().unwrap());
        assert_eq!(MetricsTarget::parse("9101"), Ok(port("127.0.0.1:9101")));
        assert_eq!(MetricsTarget::parse("[::1]:9101"), Ok(port("[::1]:9101")));
        assert_eq!(MetricsTarget::parse("/run/q.sock"), Ok(MetricsTarget::Socket("/run/q.sock".into())));
        for text in ["0.0.0.0:9101", "10.0.0.1:80", "0", "q.sock", "70000", "localhost:80"] {
            assert!(MetricsTarget::parse(text).is_err(), "{text}");
        }
    }

    /// A file that is no socket refuses connections like a socket that no one serves: `-o metrics=FILE`
    /// deleted it, even the volume's own image.
    #[test]
    fn only_a_socket_gives_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "kept").unwrap();
        assert!(bind_private(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        let socket = directory.path().join("socket");
        drop(bind_private(&socket).unwrap());
        let serving = bind_private(&socket).expect("nobody serves it");
        assert!(bind_private(&socket).is_err(), "somebody serves it");
        drop(serving);
    }

    #[test]
    fn names_of_sockets_fit_and_differ() {
        let long = PathBuf::from(format!("/{}", "a".repeat(4000)));
        let other = PathBuf::from(format!("/b{}", "a".repeat(3999)));
        let name = |dir: &Path| address(dir).unwrap().as_abstract_name().unwrap().to_vec();
        assert_ne!(name(&long), name(&other));
        assert_ne!(name(Path::new("/a")), name(Path::new("/b")));
    }
}
