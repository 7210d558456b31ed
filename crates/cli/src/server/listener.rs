//! The server's side of the control socket, and its numbers over HTTP.
//!
//! One client at a time is answered on the socket, but for streams and what walks through space or waits for
//! the device, which have threads of their own; with `-o metrics=` the numbers are also served over HTTP,
//! to programs that can reach the loopback port or may open the socket.
//!
//! Neighbours: [`crate::control`] says what is spoken; the other modules here do what is asked for;
//! [`crate::exposition`] writes the numbers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use quire::Volume;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, Result};
use quire_fuse::MountEntry;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::freezing::Freezing;
use super::scrubbing::Scrubbing;
use super::sending::Sending;
use super::tasks::ServerTasks;
use super::{room, snapshots};
use crate::control::{LINE_MAX, PATIENCE, address, is_trusted, limit};
use crate::exit::{Failure, Outcome};
use crate::exposition;
use crate::mount_options::MetricsTarget;

/// What strangers are told.
const REFUSAL: &str = "error 38 only root and the user who mounted may ask the server of a mount\n";
/// How long an address may be in use by a server that ends.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// After an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The control socket of a mount.
pub struct ControlSocket(Option<Arc<UnixListener>>);

impl ControlSocket {
    /// Serves the control socket of a mount, before a program can have seen anything of it.
    pub fn serve(volume: &Volume, entry: &MountEntry) -> ControlSocket {
        let listener = ControlSocket::listen(volume, entry);
        // The mount is of use without it.
        let warn = |error: &Error| tracing::warn!("no control socket for {}: {error}", entry.dir.display());
        ControlSocket(listener.inspect_err(warn).ok())
    }

    fn listen(volume: &Volume, entry: &MountEntry) -> Result<Arc<UnixListener>> {
        let listener = address(entry).and_then(|address| bind(|| UnixListener::bind_addr(&address)));
        let listener = Arc::new(listener.map_err(|error| Error::os("listening", &error))?);
        let (volume, asked, listening) = (volume.clone(), Asked::default(), listener.clone());
        asked.scrubbing.go_on(&volume);
        spawn("quire-control", move || control(&listening, &volume, &asked))?;
        Ok(listener)
    }

    /// Answers nobody any more: the next mount may have the same device number.
    pub fn close(self) {
        if let Some(listener) = self.0 {
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
    }
}

/// Serves the numbers over HTTP, where asked for, until the process ends.
pub fn serve_metrics(volume: &Volume, metrics: Option<&MetricsTarget>) -> Result<()> {
    let Some(target) = metrics else { return Ok(()) };
    let volume = volume.clone();
    match target {
        MetricsTarget::Port(address) => {
            let listener = bind(|| TcpListener::bind(address))
                .map_err(|error| Error::os(format!("serving metrics at {address}"), &error))?;
            spawn("quire-metrics", move || {
                each(listener.incoming(), |stream| {
                    let _ = http(Within::patience(stream), Within::patience(stream), &volume);
                });
            })
        }
        MetricsTarget::Socket(path) => {
            let failed = |error: std::io::Error| {
                Error::os(format!("serving metrics at the socket {}", path.display()), &error)
            };
            let listener = bind(|| bind_private(path)).map_err(failed)?;
            spawn("quire-metrics", move || {
                each(listener.incoming(), |stream| {
                    let _ = http(Within::patience(stream), Within::patience(stream), &volume);
                });
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

/// What the server does at the request of others, and goes on with meanwhile.
#[derive(Default)]
struct Asked {
    scrubbing: Scrubbing,
    freezing: Freezing,
    tasks: ServerTasks,
    sending: Sending,
    /// Answers that end whatever their readers do: streams that stand still do not use them up.
    answering: Sending,
    /// Lists of snapshots that wait for the device alone: long answers do not use them up.
    listing: Sending,
}

/// Serves connections until the socket is shut down. An accept that fails, as where no descriptor is left, is
/// tried again after a pause.
fn each<S>(incoming: impl Iterator<Item = std::io::Result<S>>, serve: impl Fn(&S)) {
    for stream in incoming {
        match stream {
            Ok(stream) => serve(&stream),
            // What a socket says that was shut down.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn control(listener: &UnixListener, volume: &Volume, asked: &Asked) {
    each(listener.incoming(), |stream| {
        if !is_trusted(stream) {
            // Said without listening first. It fits into the socket's buffer, so nobody waits.
            let _ = limit(stream).and_then(|()| (&*stream).write_all(REFUSAL.as_bytes()));
            return;
        }
        if let Err(error) = limit(stream).and_then(|()| hear(stream, volume, asked)) {
            tracing::debug!("a control connection: {error}");
        }
    });
}

/// Answers one request, or starts a thread that does.
fn hear(mut stream: &UnixStream, volume: &Volume, asked: &Asked) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    let line = line.trim().to_owned();
    let connection = stream.try_clone()?;
    let started = match line.split_once(' ') {
        Some(("send", request)) => asked.sending.start(request, volume, connection),
        // They walk through space, or wait for the device.
        Some(("snapshot", what @ ("list" | "progress")) | (what @ "trim", _)) => {
            let volume = volume.clone();
            let answering = if what == "progress" { &asked.listing } else { &asked.answering };
            answering.run(move || {
                let text = told(match line.split_once(' ') {
                    Some(("trim", part)) => room::trim(part, &volume),
                    Some((_, "progress")) => snapshots::list_without_space(&volume),
                    _ => snapshots::list_with_space(&volume),
                });
                if let Err(error) = (&connection).write_all(text.as_bytes()) {
                    tracing::debug!("a control connection: {error}");
                }
            })
        }
        _ => return stream.write_all(told(answer(&line, volume, asked)).as_bytes()),
    };
    started.or_else(|failure| stream.write_all(told(Err(failure)).as_bytes()))
}

fn answer(line: &str, volume: &Volume, asked: &Asked) -> Outcome<String> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("metrics", "") => Ok(exposition::text(volume, quire_fuse::meters())),
        // All of them: which are busy in the time between two readings, only the reader knows.
        ("metrics", "files") => {
            let meters = quire_fuse::meters();
            Ok(exposition::text_with(volume, meters, &meters.sampled()))
        }
        ("cache-size", bytes) => match bytes.parse() {
            Ok(bytes) => volume.set_cache_bytes(bytes).map(|()| String::new()).map_err(Failure::from),
            Err(_) => Err(Failure::usage(format!("'{bytes}' is not a number of bytes"))),
        },
        ("access-times", "keep") => told_to_keep(volume, true),
        ("access-times", "note") => told_to_keep(volume, false),
        ("grow", wanted) => room::grow(wanted, volume, &asked.tasks),
        ("info", "") => room::info(volume),
        ("snapshot", what) => snapshots::answer(what, volume, &asked.tasks),
        ("task", number) => match number.parse() {
            Ok(number) => asked.tasks.answer(number),
            Err(_) => Err(Failure::usage(format!("'{number}' is not the number of a task"))),
        },
        ("scrub", what) => asked.scrubbing.answer(what, volume),
        ("freeze", what) => asked.freezing.answer(what, volume),
        _ => Err(Failure::usage("the server does not know this request")),
    }
}

fn told_to_keep(volume: &Volume, keep: bool) -> Outcome<String> {
    volume.keep_access_times(keep);
    Ok(String::new())
}

fn told(outcome: Outcome<String>) -> String {
    match outcome {
        Ok(text) => format!("ok\n{text}"),
        Err(failure) => format!("error {} {}\n", failure.code, failure.message.replace('\n', " ")),
    }
}

/// A connection that ends when its time is over, however slowly the other side reads and writes.
struct Within<'a, S> {
    stream: &'a S,
    end: Instant,
}

impl<'a, S: AsFd> Within<'a, S> {
    fn patience(stream: &'a S) -> Within<'a, S> {
        Within { stream, end: Instant::now() + PATIENCE }
    }

    fn limit(&self, direction: Timeout) -> std::io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(self.stream, direction, Some(left))?)
    }
}

impl<S: AsFd> Read for Within<'_, S>
where
    for<'s> &'s S: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Recv)?;
        (&mut &*self.stream).read(buffer)
    }
}

impl<S: AsFd> Write for Within<'_, S>
where
    for<'s> &'s S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Send)?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::sync::Mutex;

    use quire_base::BlockNo;
    use quire_device::{Backend, Io, IoClass, MemoryBackend};
    use rustix::io::Errno;

    use super::*;

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

    /// A process without a free descriptor kept a processor busy with accepts that failed.
    #[test]
    fn an_accept_that_fails_is_tried_again_after_a_pause() {
        let fails = || Err(Errno::MFILE.into());
        let ends = [fails(), fails(), Ok(()), Err(std::io::ErrorKind::InvalidInput.into()), Ok(())];
        let (served, started) = (Cell::new(0), Instant::now());
        each(ends.into_iter(), |()| served.set(served.get() + 1));
        assert_eq!(served.get(), 1);
        assert!(started.elapsed() >= 2 * ACCEPT_PAUSE);
    }

    /// Memory that discards, reads and takes requests while a lock is free.
    struct Stalling(MemoryBackend, Mutex<()>);

    impl Backend for Stalling {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }
        fn name(&self) -> String {
            self.0.name()
        }
        fn is_read_only(&self) -> bool {
            self.0.is_read_only()
        }
        fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
            let _turn = self.1.lock().unwrap();
            self.0.read(class, at, buf)
        }
        fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
            self.0.write(class, at, buf)
        }
        fn flush(&self) -> Result<()> {
            self.0.flush()
        }
        fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
            let _turn = self.1.lock().unwrap();
            self.0.discard(at, count)
        }
        fn submit(&self, class: IoClass, ios: Vec<Io>) {
            let _turn = self.1.lock().unwrap();
            self.0.submit(class, ios);
        }
    }

    /// Answers requests for a volume until the listener is closed.
    fn serve(what: &str, volume: &Volume) -> (SocketAddr, Arc<UnixListener>, std::thread::JoinHandle<()>) {
        let name = format!("quire-test-{what}-{}", std::process::id());
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let listener = Arc::new(UnixListener::bind_addr(&name).unwrap());
        let (listening, served) = (listener.clone(), volume.clone());
        let thread = std::thread::spawn(move || control(&listening, &served, &Asked::default()));
        (name, listener, thread)
    }

    /// A connection on which a request was made.
    fn ask(name: &SocketAddr, request: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect_addr(name).unwrap();
        limit(&stream).unwrap();
        stream.write_all(request).unwrap();
        stream
    }

    /// The whole answer.
    fn read(mut stream: UnixStream) -> std::io::Result<String> {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    }

    /// While a device took its time for a discard of a trim, no other request was answered: a freeze that had
    /// begun, and a snapshot that was taken, passed for failures.
    #[test]
    fn a_trim_keeps_nobody_waiting() {
        let backend = Arc::new(Stalling(MemoryBackend::new(16384), Mutex::new(())));
        quire::FormatOptions::new().format_backend(backend.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(backend.clone()).unwrap();
        let (name, listener, thread) = serve("trim", &volume);
        let stalls = backend.1.lock().unwrap();
        let trim = ask(&name, b"trim 0 67108864\n");
        let info = read(ask(&name, b"info\n"));
        drop(stalls);
        assert!(info.unwrap().starts_with("ok\n"));
        assert!(read(trim).unwrap().starts_with("ok\n"));
        ControlSocket(Some(listener)).close();
        thread.join().unwrap();
        volume.close().unwrap();
    }

    /// A list of snapshots whose metadata was not in memory waited for the device on the thread that answers
    /// all: a slow device kept every other command from its answer.
    #[test]
    fn a_list_without_space_keeps_nobody_waiting() {
        let backend = Arc::new(Stalling(MemoryBackend::new(65536), Mutex::new(())));
        quire::FormatOptions::new().format_backend(backend.clone()).unwrap();
        let open = || {
            let options = quire::VolumeOptions::new().cache_bytes(16 << 20).node_cache_bytes(1 << 20);
            options.open_backend(backend.clone()).unwrap()
        };
        let volume = open();
        for number in 0..200 {
            volume.take_snapshot(&format!("{number:0200}")).unwrap();
        }
        for number in 0..20_000 {
            volume.write(format!("{number:0100}"), "").unwrap();
        }
        volume.close().unwrap();
        let volume = open();
        // Other nodes take the place of those that the opening has read.
        for entry in volume.read_dir("/").unwrap() {
            entry.unwrap().metadata().unwrap();
        }
        let (name, listener, thread) = serve("list", &volume);
        let stalls = backend.1.lock().unwrap();
        let list = ask(&name, b"snapshot progress\n");
        let info = read(ask(&name, b"info\n"));
        drop(stalls);
        assert!(info.unwrap().starts_with("ok\n"));
        assert!(read(list).unwrap().starts_with("ok\n"));
        ControlSocket(Some(listener)).close();
        thread.join().unwrap();
        volume.close().unwrap();
    }

    /// Streams whose readers stood still used up what the server had for all long answers: a list of
    /// snapshots, and a trim, were refused until these readers went on.
    #[test]
    fn streams_that_stand_still_refuse_no_list() {
        let backend = Arc::new(MemoryBackend::new(16384));
        quire::FormatOptions::new().format_backend(backend.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(backend).unwrap();
        volume.write("file", vec![7; 8 << 20]).unwrap();
        volume.take_snapshot("s").unwrap();
        let (name, listener, thread) = serve("streams", &volume);
        let ask = |request: &[u8]| {
            let mut stream = UnixStream::connect_addr(&name).unwrap();
            limit(&stream).unwrap();
            stream.write_all(request).unwrap();
            let mut outcome = [0; 2];
            stream.read_exact(&mut outcome).unwrap();
            (&outcome == b"ok", stream)
        };
        // As many as the server sends at a time.
        let send = || ask(b"send {\"name\":\"s\"}\n");
        let streams: Vec<_> = std::iter::repeat_with(send).take_while(|(is_sent, _)| *is_sent).collect();
        assert!(!streams.is_empty());
        assert!(ask(b"snapshot list\n").0);
        drop(streams);
        ControlSocket(Some(listener)).close();
        thread.join().unwrap();
        volume.close().unwrap();
    }

    /// A server that was closing its volume went on answering at its address, which the next mount may have.
    #[test]
    fn a_closed_control_socket_leaves_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        quire::FormatOptions::new().size(64 << 20).format(&path).unwrap();
        let volume = Volume::open(&path).unwrap();
        let name = SocketAddr::from_abstract_name(format!("quire-test-{}", std::process::id())).unwrap();
        let listener = Arc::new(UnixListener::bind_addr(&name).unwrap());
        let (listening, served) = (listener.clone(), volume.clone());
        let thread = std::thread::spawn(move || control(&listening, &served, &Asked::default()));
        let mut stream = UnixStream::connect_addr(&name).unwrap();
        stream.write_all(b"info\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("ok\n") && answer.ends_with(" rw\n"), "{answer}");
        ControlSocket(Some(listener)).close();
        assert!(UnixStream::connect_addr(&name).is_err());
        thread.join().unwrap();
        UnixListener::bind_addr(&name).unwrap();
        volume.close().unwrap();
    }
}
