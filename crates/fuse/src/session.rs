//! The life of a mount: attach, negotiate with the kernel, serve, stop in order.
//!
//! ```text
//!   Session::mount      mount point attached, first request (INIT) answered: usable
//!   Session::run        session threads answer until the mount is gone
//!     SIGTERM/INT/HUP -> plain unmount
//!                          in use -> detached from the tree; programs that still have files open get a
//!                                    grace period, then every request is refused (ENOTCONN)
//!                          another mount over it -> stays in the tree, with the same grace period
//!     DESTROY         -> requests are refused; answered at the very end, so that umount waits until then
//!     then: pool drained, volume closed (everything on disk, clean flag)
//! ```
//!
//! DESTROY comes on mounts whose source is a block device, after the last request of any program. The kernel
//! may still have RELEASEs under way: all files count as closed. The thread of [`Session::run`] closes the
//! volume, no thread that receives requests does, and nothing that [`Session::run`] waits for waits for
//! DESTROY: see [`crate::mount`].
//!
//! A process that serves a mount maps no file of that mount. A fault on such a mapping holds the lock of the
//! process's address space while it waits for the server, and the server needs that lock now and then.
//!
//! Invariants: the volume is closed after the last request has been answered, or after requests are refused;
//! a mount whose attaching fails half-way leaves no dead mount point behind.

use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use quire::Volume;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::mount::{self, MountEntry, MountFlags, Unmount};
use crate::operations::snapshots::ShowSnapshots;
use crate::operations::{CacheMode, Operations};
use crate::server::{Answer, Event, Facts, Promise, Server};
use crate::signals;
use crate::transport::{Choice, Handler, ring};

/// How long programs may go on with files they have open on a mount that was asked to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How long a session waits for its threads after it has answered DESTROY.
const FAREWELL: Duration = Duration::from_secs(10);
/// The minor version of the protocol from which the kernel passes `syncfs` on for block devices (Linux 6.18).
const SYNCFS_MINOR: u32 = 45;
/// How long a sync of the whole volume waits for a device that completes nothing.
pub const SYNC_PATIENCE: Duration = Duration::from_secs(60);

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
    /// How long `syncfs` and `sync` wait for a device that completes nothing; `None`: [`SYNC_PATIENCE`].
    pub sync_patience: Option<Duration>,
    /// Whether the root shows the volume's snapshots.
    pub snapshots: ShowSnapshots,
}

/// Receiving threads for this machine: enough that a few may wait for the device, few enough to stay warm.
pub fn default_threads() -> usize {
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    (cpus * 4).clamp(4, 32)
}

/// Both ends of a session's events.
pub(crate) struct Events {
    pub(crate) sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    pub(crate) fn new() -> Events {
        let (sender, receiver) = unbounded();
        Events { sender, receiver }
    }

    /// Waits until the threads that receive requests have ended.
    fn wait_for_threads(&self) {
        let start = Instant::now();
        while let Ok(event) = self.receiver.recv_timeout(FAREWELL.saturating_sub(start.elapsed())) {
            if let Event::Ended(_) = event {
                return;
            }
        }
    }
}

/// How a session ended.
pub(crate) enum End {
    /// The mount is gone and every request was answered.
    Unmounted,
    /// The mount is gone, and its unmount waits for this answer.
    Destroyed(Answer),
    /// Programs kept the detached mount busy beyond the grace period: session threads are still there.
    Forced,
}

/// Takes a mount away for a stop signal.
fn unmount_for_signal(ours: &MountEntry) {
    let outcome = match mount::unmount_in_child(ours, Unmount::Plain) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            tracing::warn!(
                "{} is in use: detached; open files work for {} s more",
                ours.dir.display(),
                GRACE.as_secs()
            );
            mount::unmount_in_child(ours, Unmount::Detach)
        }
        outcome => outcome,
    };
    if let Err(error) = outcome {
        // Gone already (its end is about to be reported), or not ours to unmount.
        tracing::warn!("{error}");
    }
}

/// Serves until the mount is gone, or a stop signal has been dealt with.
pub(crate) fn run_until_stopped<H: Handler>(
    connection: Connection<H>,
    ours: &MountEntry,
    events: &Events,
) -> Result<End> {
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map(drop)
            .map_err(|error| Error::os(format!("starting the thread {name}"), &error))
    };
    let sender = events.sender.clone();
    start("quire-session", Box::new(move || drop(sender.send(Event::Ended(connection.run())))))?;
    let sender = events.sender.clone();
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
    let dir = &ours.dir;
    let mut deadline = None;
    loop {
        let event = match deadline {
            None => events.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => events.receiver.recv_timeout(Instant::saturating_duration_since(&at, Instant::now())),
        };
        match event {
            Ok(Event::Ended(Ok(()))) => return Ok(End::Unmounted),
            Ok(Event::Ended(Err(error))) => {
                return Err(error.context(format!("serving {}", dir.display())));
            }
            Ok(Event::Destroy(answer)) => return Ok(End::Destroyed(answer)),
            Ok(Event::Signal(signal)) if deadline.is_none() => {
                tracing::info!("{}: unmounting {}", signals::name(signal), dir.display());
                deadline = Some(Instant::now() + GRACE);
                // Not here: the unmount may wait until this thread has closed the volume.
                let (sender, ours) = (events.sender.clone(), ours.clone());
                start(
                    "quire-unmount",
                    Box::new(move || {
                        unmount_for_signal(&ours);
                        let _ = sender.send(Event::Unmounted);
                    }),
                )?;
            }
            // Programs that hold a detached mount have the whole time.
            Ok(Event::Unmounted) => deadline = Some(Instant::now() + GRACE),
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
    entry: MountEntry,
    events: Events,
    facts: Facts,
    /// Why `syncfs` does not reach the server.
    no_syncfs: Option<String>,
}

impl Session {
    /// Mounts an open volume at `dir`. When this returns, the mount is usable and requests queue in the
    /// kernel until [`Session::run`].
    ///
    /// As root it switches the kernel's ring on, unless `options` ask for `/dev/fuse`.
    pub fn mount(volume: Volume, dir: &Path, options: &ServeOptions) -> Result<Session> {
        let dir = mount::resolve(dir)?;
        let threads = options.threads.unwrap_or_else(default_threads).max(1);
        let operations =
            Operations::new(volume.clone(), options.cache, options.flags.sync, options.snapshots);
        // One thread at least stays with the device.
        let promise = match &options.flags {
            flags if flags.sync => Promise::All,
            flags if flags.dir_sync => Promise::Names,
            _ => Promise::Nothing,
        };
        let patience = options.sync_patience.unwrap_or(SYNC_PATIENCE);
        let events = Events::new();
        let server = Server::new(operations, threads - 1, promise, patience, events.sender.clone());
        let server = Arc::new(server);
        // A thread that has the kernel drop pages waits there for READs of them, and cannot be killed. If the
        // server is killed then, the thread keeps the connection open, and nobody answers the READ. An abort
        // of the connection ends that on `/dev/fuse`, but not on the ring (seen on Linux 6.18).
        let transport = match (options.cache, options.transport) {
            (CacheMode::Auto, Choice::Auto) => Choice::Device,
            (CacheMode::Auto, Choice::Ring) => {
                return Err(Error::invalid(
                    "cache=auto goes with transport=dev only: on the ring, pages that the kernel keeps may be waited \
                     for without end",
                ));
            }
            (_, transport) => transport,
        };
        if transport != Choice::Device {
            ring::switch_on();
        }
        let attached = mount::mount(&dir, &options.flags)?;
        let connection = Connection::open(attached.device, server.clone(), threads, transport)
            .inspect_err(|_| mount::abandon(&attached.entry))?;
        let no_syncfs = attached.not_block.or_else(|| {
            (connection.minor() < SYNCFS_MINOR)
                .then(|| "this kernel does not pass them on; Linux 6.18 does".into())
        });
        let facts = Facts {
            transport: connection.transport().to_owned(),
            syncfs: match &no_syncfs {
                None => "reaches the server".into(),
                Some(why) => format!("does not reach the server ({why}); quire ctl sync does the same"),
            },
        };
        server.set_facts(facts.clone());
        Ok(Session { connection, server, volume, entry: attached.entry, events, facts, no_syncfs })
    }

    /// The mount.
    pub fn entry(&self) -> &MountEntry {
        &self.entry
    }

    /// How requests travel: `ring`, or `dev` with the reason why not the ring.
    pub fn transport(&self) -> &str {
        &self.facts.transport
    }

    /// Why `syncfs` and `sync` do not reach the server; `None` if they do.
    pub fn no_syncfs(&self) -> Option<&str> {
        self.no_syncfs.as_deref()
    }

    /// Serves until the mount is gone or a stop signal came, then closes the volume.
    ///
    /// Stop signals must have been blocked ([`signals::block`]) before the process started any thread. Errors
    /// are those of serving, else those of closing.
    pub fn run(self) -> Result<()> {
        self.run_then(|| ())
    }

    /// As [`Session::run`]; calls `gone` when the mount is gone, before it closes the volume. From then on
    /// the kernel may give the mount's device number to another one.
    pub fn run_then(self, gone: impl FnOnce()) -> Result<()> {
        let Session { connection, server, volume, entry, events, .. } = self;
        let dir = &entry.dir;
        let end = run_until_stopped(connection, &entry, &events);
        gone();
        match &end {
            Ok(End::Unmounted) => {}
            Ok(End::Destroyed(_)) => server.refuse(),
            Ok(End::Forced) => {
                tracing::warn!(
                    "programs still use {}: their requests are refused from now on",
                    dir.display()
                );
                server.refuse();
            }
            Err(_) => {
                // Nobody serves any more: what is left of the mount must not hold programs.
                server.refuse();
                mount::abandon(&entry);
            }
        }
        // A change may wait for a thaw.
        volume.inodes().thaw();
        server.finish();
        server.operations().forget_everything();
        let closed = volume.close();
        tracing::info!("{} closed", dir.display());
        let served = end.map(|end| {
            if let End::Destroyed(answer) = end {
                answer();
                events.wait_for_threads();
            }
        });
        served.and(closed)
    }
}
