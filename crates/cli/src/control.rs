//! A way to talk to the server behind a mount, beside the mount itself: the commands' side, and what both
//! sides agree on.
//!
//! A Unix socket in Linux' abstract name space, named after the mount's device number: no two mounts have the
//! same at a time, whatever their mount points, and a mount keeps it for its life. The socket leaves no file
//! behind when a server dies, and answers even when the file system does not. Each end asks the kernel who
//! the other is: the server answers root and its own user, the client believes root and its own user.
//!
//! ```text
//!   client  metrics [files] | info | cache-size BYTES | access-times keep|note | scrub ... | trim BYTE
//!           freeze ... | snapshot ... | grow ... | task NUMBER
//!           send ... (whose answer goes on: [`crate::frames`])
//!   server  ok, and the answer's lines | error CODE MESSAGE
//! ```
//!
//! Limits: a line of [`LINE_MAX`] bytes, [`PATIENCE`] for each read and write.
//!
//! Neighbours: [`crate::server::listener`] answers; [`crate::task`] waits for what takes a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use quire_base::size;
use quire_fuse::MountEntry;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

use crate::exit::{self, Failure, Outcome};
use crate::places;

/// Longest line or request that is read.
pub const LINE_MAX: u64 = 8192;
/// How long the other side may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The socket's name for a mount.
pub fn address(entry: &MountEntry) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("quire/{}", entry.device))
}

fn connect(entry: &MountEntry) -> std::io::Result<UnixStream> {
    UnixStream::connect_addr(&address(entry)?)
}

/// The process that serves a mount; `None` if none answers, or one of a user who did not mount it.
pub fn server_of(entry: &MountEntry) -> Option<Pid> {
    let peer = socket_peercred(connect(entry).ok()?).ok()?;
    let user = peer.uid.as_raw();
    let me = rustix::process::geteuid().as_raw();
    (user == 0 || user == me || entry.user() == Some(user)).then_some(peer.pid)
}

/// Whether the other end is root or this user.
pub fn is_trusted(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == me)
}

/// Sets [`PATIENCE`] for both directions.
pub fn limit(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Sends a request to the server behind a mount point.
pub fn open(dir: &Path, request: &str) -> Outcome<UnixStream> {
    let entry = places::mounted(dir)?;
    let stream = connect(&entry).map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Failure::new(
            exit::MISSING,
            format!("no Quire server of this system answers for {}", dir.display()),
        ),
        _ => talking(dir, &error),
    })?;
    if !is_trusted(&stream) {
        // Not even root believes it: what another user's program answers may be anything.
        let owner = socket_peercred(&stream).map(|peer| peer.uid.as_raw());
        let owner = owner.map_or_else(|_| "another user".into(), |uid| format!("user {uid}"));
        return Err(Failure::new(
            exit::NOT_PERMITTED,
            format!("the server of {} belongs to {owner}: run this as that user", dir.display()),
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
    read_answer(dir, &open(dir, request)?)
}

/// The same for a request whose answer takes as long as it takes.
pub fn ask_patiently(dir: &Path, request: &str) -> Outcome<String> {
    let stream = open(dir, request)?;
    stream.set_read_timeout(None).map_err(|error| talking(dir, &error))?;
    read_answer(dir, &stream)
}

fn read_answer(dir: &Path, stream: &UnixStream) -> Outcome<String> {
    let mut answer = BufReader::new(stream);
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
