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

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, RecvTimeoutError};
use fuser::{Config, Filesystem, InitFlags, KernelConfig, SessionACL};
use quire::Volume;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, ErrorKind, Result};

use crate::fuser_server::{Server, Shared};
use crate::mount::{self, MountFlags, Unmount};
use crate::operations::{CacheMode, Operations};
use crate::signals;

/// How long programs may go on with files they have open on a mount that was asked to stop.
const GRACE: Duration = Duration::from_secs(10);
/// Largest request in bytes that is asked for: what the engine writes as one cached batch. The kernel has a
/// limit of its own (`fs.fuse.max_pages_limit`), usually the same.
const REQUEST_MAX: u32 = 1 << 20;
/// Asynchronous requests (readahead, asynchronous direct I/O, writes of mapped pages) the kernel may have
/// outstanding.
const BACKGROUND_MAX: u16 = 128;

/// How a volume is served.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// Who caches file data.
    pub cache: CacheMode,
    /// The kernel's part of the options.
    pub flags: MountFlags,
    /// Threads that receive requests; `None` chooses by the number of CPUs.
    pub threads: Option<usize>,
}

/// What is asked of the transport when the kernel introduces itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transport {
    /// POSIX ACLs are kept by the volume and checked by the kernel.
    pub acl: bool,
    /// The volume clears set-user-id and set-group-id bits itself.
    pub kill_privileges: bool,
    /// Directories are read with the attributes of what they name.
    pub read_directory_plus: bool,
}

/// Chooses what to use of what the kernel offers.
pub(crate) fn negotiate(config: &mut KernelConfig, transport: &Transport) {
    let wanted = [
        (InitFlags::FUSE_ASYNC_READ, true),
        (InitFlags::FUSE_BIG_WRITES, true),
        (InitFlags::FUSE_MAX_PAGES, true),
        (InitFlags::FUSE_ASYNC_DIO, true),
        (InitFlags::FUSE_PARALLEL_DIROPS, true),
        (InitFlags::FUSE_DO_READDIRPLUS, transport.read_directory_plus),
        (InitFlags::FUSE_READDIRPLUS_AUTO, transport.read_directory_plus),
        (InitFlags::FUSE_NO_OPENDIR_SUPPORT, true),
        (InitFlags::FUSE_CACHE_SYMLINKS, true),
        (InitFlags::FUSE_EXPORT_SUPPORT, true),
        (InitFlags::FUSE_ATOMIC_O_TRUNC, true),
        // Pages of shared mappings beside direct I/O on the same file.
        (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, true),
        // Nobody changes files behind the kernel's back, so cached pages die only by the kernel's own hand.
        (InitFlags::FUSE_EXPLICIT_INVAL_DATA, true),
        (InitFlags::FUSE_HAS_IOCTL_DIR, true),
        // The volume applies the umask, since a default ACL of the folder takes its place.
        (InitFlags::FUSE_DONT_MASK, transport.acl),
        (InitFlags::FUSE_POSIX_ACL, transport.acl),
        (InitFlags::FUSE_HANDLE_KILLPRIV_V2, transport.kill_privileges),
    ];
    for (flag, wish) in wanted {
        if wish && config.add_capabilities(flag).is_err() {
            tracing::debug!("this kernel does not offer {flag:?}");
        }
    }
    let pages: u32 = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(256);
    let _ = config.set_max_write(pages.saturating_mul(4096).clamp(128 << 10, REQUEST_MAX));
    let _ = config.set_max_background(BACKGROUND_MAX);
    // The smallest unit is the default (1 ns); a larger readahead than offered is refused by the kernel.
}

/// Receiving threads for this machine: enough that a few may wait for the device, few enough to stay warm.
pub fn default_threads() -> usize {
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    (cpus * 4).clamp(4, 32)
}

/// Starts the protocol on a descriptor from [`mount::mount`]: answers the kernel's INIT.
pub(crate) fn attach<F: Filesystem>(server: F, device: OwnedFd, threads: usize) -> Result<fuser::Session<F>> {
    let mut config = Config::default();
    config.n_threads = Some(threads.max(1));
    // Each thread with a descriptor of its own, where the device may be opened again (not by a user on
    // systems that give /dev/fuse to root only).
    config.clone_fd =
        threads > 1 && std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    // Who may use the mount is the kernel's decision, by allow_other.
    fuser::Session::from_fd(server, device, SessionACL::All, config)
        .map_err(|error| Error::os("starting the FUSE protocol with the kernel", &error))
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
pub(crate) fn run_until_stopped<F: Filesystem>(session: fuser::Session<F>, dir: &Path) -> Result<End> {
    enum Event {
        Ended(std::io::Result<()>),
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
    start("quire-session", Box::new(move || drop(ended.send(Event::Ended(session.run())))))?;
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
                return Err(Error::os(format!("serving {}", dir.display()), &error));
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
    fuser: fuser::Session<Server>,
    shared: Arc<Shared>,
    volume: Volume,
    dir: PathBuf,
}

impl Session {
    /// Mounts an open volume at `dir`. When this returns, the mount is usable and requests queue in the
    /// kernel until [`Session::run`].
    pub fn mount(volume: Volume, dir: &Path, options: &ServeOptions) -> Result<Session> {
        let dir = mount::resolve(dir)?;
        let threads = options.threads.unwrap_or_else(default_threads);
        let operations = Operations::new(volume.clone(), options.cache);
        let shared = Arc::new(Shared::new(operations, threads));
        let device = mount::mount(&dir, &options.flags)?;
        let fuser = attach(Server::new(shared.clone()), device, threads)
            .inspect_err(|_| drop(mount::unmount(&dir, Unmount::Detach)))?;
        Ok(Session { fuser, shared, volume, dir })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Serves until the mount is gone or a stop signal came, then closes the volume.
    ///
    /// Stop signals must have been blocked ([`signals::block`]) before the process started any thread. Errors
    /// are those of serving, else those of closing.
    pub fn run(self) -> Result<()> {
        let Session { fuser, shared, volume, dir } = self;
        let end = run_until_stopped(fuser, &dir);
        if matches!(end, Ok(End::Forced)) {
            tracing::warn!("programs still use {}: their requests are refused from now on", dir.display());
            shared.refuse();
        }
        shared.background().finish();
        shared.operations().forget_everything();
        let closed = volume.close();
        tracing::info!("{} closed", dir.display());
        end.map(drop).and(closed)
    }
}
