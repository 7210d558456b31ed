//! The life of a mount: attach, negotiate with the kernel, serve, stop in order.
//!
//! ```text
//!   Session::mount      mount point attached, first request (INIT) answered: usable
//!   Session::run        session threads answer until the mount is gone
//!     SIGTERM/INT/HUP -> plain unmount
//!                          in use -> detached from the tree; programs that still have files open get a
//!                                    grace period, then every request is refused (ENOTCONN)
//!     then: pool drained, volume closed (everything on disk, clean flag)
//! ```
//!
//! Invariants: the volume is closed after the last request has been answered, or after requests are refused;
//! a mount whose attaching fails half-way leaves no dead mount point behind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{self as channel, RecvTimeoutError};
use quire::Volume;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::mount::{self, MountFlags, Unmount};
use crate::operations::{CacheMode, Operations};
use crate::server::Server;
use crate::signals;
use crate::transport::{Choice, Handler};

/// How long programs may go on with files they have open on a mount that was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// How a volume is served.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// Who caches file data.
    pub cache: CacheMode,
    /// The kernel's part of the options.
    pub flags: MountFlags,
    /// How requests travel.
    pub transport: Choice,
    /// Threads that receive requests from `/dev/fuse`; `None` chooses by the number of CPUs.
    pub threads: Option<usize>,
}

/// Receiving threads for this machine: enough that a few may wait for the device, few enough to stay warm.
pub fn default_threads() -> usize {
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    (cpus * 4).clamp(4, 32)
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The mount is gone and every request was answered.
    Unmounted,
    /// Programs kept the detached mount busy beyond the grace period: session threads are still there.
    Forced,
}

/// Serves until the mount is gone, or a stop signal has been dealt with.
pub(crate) fn run_until_stopped<H: Handler>(connection: Connection<H>, dir: &Path) -> Result<End> {
    enum Event {
        Ended(Result<()>),
        Signal(i32),
    }
    let (sender, events) = channel::unbounded();
    let ended = sender.clone();
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(|error| Error::os(format!("starting the thread {name}"), &error))
    };
    start("quire-session", Box::new(move || drop(ended.send(Event::Ended(connection.run())))))?;
    start(
        "quire-signals",
        Box::new(move || {
            while let Ok(signal) = signals::wait() {
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        }),
    )?;
    let mut deadline = None;
    loop {
        let event = match deadline {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => events.recv_timeout(Instant::saturating_duration_since(&at, Instant::now())),
        };
        match event {
            Ok(Event::Ended(Ok(()))) => return Ok(End::Unmounted),
            Ok(Event::Ended(Err(error))) => {
                return Err(error.context(format!("serving {}", dir.display())));
            }
            Ok(Event::Signal(signal)) if deadline.is_none() => {
                tracing::info!("{}: unmounting {}", signals::name(signal), dir.display());
                match mount::unmount(dir, Unmount::Plain) {
                    Ok(()) => deadline = Some(Instant::now() + GRACE),
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        tracing::warn!(
                            "{} is in use: detached; open files work for {} s more",
                            dir.display(),
                            GRACE.as_secs()
                        );
                        if let Err(error) = mount::unmount(dir, Unmount::Detach) {
                            tracing::warn!("{error}");
                        }
                        deadline = Some(Instant::now() + GRACE);
                    }
                    Err(error) => {
                        // Gone already (its end is about to be reported), or not ours to unmount.
                        tracing::warn!("{error}");
                        deadline = Some(Instant::now() + GRACE);
                    }
                }
            }
            Ok(Event::Signal(_)) | Err(RecvTimeoutError::Timeout) => return Ok(End::Forced),
            Err(RecvTimeoutError::Disconnected) => return Ok(End::Unmounted),
        }
    }
}

/// A volume on a mount point.
pub struct Session {
    connection: Connection<Server>,
    server: Arc<Server>,
    volume: Volume,
    dir: PathBuf,
}

impl Session {
    /// Mounts an open volume at `dir`. When this returns, the mount is usable and requests queue in the
    /// kernel until [`Session::run`].
    pub fn mount(volume: Volume, dir: &Path, options: &ServeOptions) -> Result<Session> {
        let dir = mount::resolve(dir)?;
        let threads = options.threads.unwrap_or_else(default_threads).max(1);
        let operations = Operations::new(volume.clone(), options.cache);
        // One thread at least stays with the device.
        let sync_names = options.flags.sync || options.flags.dir_sync;
        let server = Arc::new(Server::new(operations, threads - 1, sync_names));
        let device = mount::mount(&dir, &options.flags)?;
        let connection = Connection::open(device, server.clone(), threads, options.transport)
            .inspect_err(|_| drop(mount::unmount(&dir, Unmount::Detach)))?;
        server.set_transport(connection.transport());
        Ok(Session { connection, server, volume, dir })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How requests travel: `ring`, or `dev` with the reason why not the ring.
    pub fn transport(&self) -> &str {
        self.connection.transport()
    }

    /// Serves until the mount is gone or a stop signal came, then closes the volume.
    ///
    /// Stop signals must have been blocked ([`signals::block`]) before the process started any thread. Errors
    /// are those of serving, else those of closing.
    pub fn run(self) -> Result<()> {
        let Session { connection, server, volume, dir } = self;
        let end = run_until_stopped(connection, &dir);
        if matches!(end, Ok(End::Forced)) {
            tracing::warn!("programs still use {}: their requests are refused from now on", dir.display());
            server.refuse();
        }
        if end.is_err() {
            // Nobody serves any more: what is left of the mount must not hold programs.
            server.refuse();
            let _ = mount::unmount(&dir, Unmount::Detach);
        }
        server.background().finish();
        server.operations().forget_everything();
        let closed = volume.close();
        tracing::info!("{} closed", dir.display());
        end.map(drop).and(closed)
    }
}
