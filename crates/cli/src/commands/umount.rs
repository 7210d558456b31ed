//! `quire umount`: returns when the volume is closed, so that it may be copied, checked or mounted again at
//! once. A volume that is mounted elsewhere, too, stays open: then it says so, and returns.
//!
//! It has everything written back first. The kernel unmounts whatever becomes of that, and nobody would hear
//! of data that the host's disk has no room for: so without room the volume stays mounted. Other errors are
//! told when it is closed.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use quire_base::{Error, ErrorKind};
use quire_fuse::MountEntry;
use quire_fuse::mount::{self, Unmount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arguments::Umount;
use crate::commands::freeze;
use crate::exit::{self, FAILED, Failure, Outcome};
use crate::{control, image};

/// How long the closing of a volume may take before the command gives up waiting (not closing).
const PATIENCE: Duration = Duration::from_secs(600);
/// When a server that may hang is mentioned.
const HINT_AFTER: Duration = Duration::from_secs(60);

/// Unmounts.
pub fn run(arguments: &Umount) -> Outcome {
    let dir = mount::resolve(&arguments.dir)?;
    let Some(entry) = mount::mounted_at(&dir)? else {
        return Err(Failure::new(exit::MISSING, format!("nothing is mounted at {}", dir.display())));
    };
    if !entry.is_quire() {
        return Err(Failure::new(
            exit::MISSING,
            format!("{} is a mount of type {}, not a Quire volume", dir.display(), entry.kind),
        ));
    }
    if arguments.lazy {
        return Ok(mount::unmount(&dir, Unmount::Detach)?);
    }
    // Before the unmount: the server may be gone before it could be looked for.
    let server = control::server_of(&entry);
    let process = server.and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok());
    let slow = || eprintln!("quire: waiting until everything is on disk");
    let patient = talk_meanwhile(&entry, server, slow);
    let written = write_back(&dir)?;
    let unmounted = mount::unmount(&dir, Unmount::Plain);
    drop(patient);
    unmounted?;
    if let Some(place) = still_mounted(&entry)? {
        eprintln!("quire: {} is unmounted; its volume stays open, as it is mounted {place}", dir.display());
        return match written {
            Written::Not(error) => Err(not_on_disk(&dir, &error)),
            Written::All | Written::Unknown => Ok(()),
        };
    }
    let closed = match process {
        Some(process) => image::wait_until(|| has_ended(&process), PATIENCE, slow),
        None => image::wait_until_closed(&entry.source, PATIENCE, slow),
    };
    if !closed {
        return Err(Failure::new(
            exit::BUSY,
            format!("{} is unmounted, but {} is still open", dir.display(), entry.source.display()),
        ));
    }
    match written {
        Written::Not(error) => Err(not_on_disk(&dir, &error)),
        Written::All if !entry.flags().read_only && image::was_left_open(&entry.source) => Err(Failure::new(
            FAILED,
            format!(
                "{} is unmounted, but closing {} failed: what nobody synced may be lost, and the next mount recovers the \
                 volume; the server's log says why",
                dir.display(),
                entry.source.display()
            ),
        )),
        Written::All | Written::Unknown => Ok(()),
    }
}

/// What became of all that was written to a mount.
enum Written {
    /// It was written back, as far as the kernel reaches the server.
    All,
    /// Not all of it was, for this reason.
    Not(Error),
    /// Nothing was written back: the volume is frozen, or its server does not answer any more.
    Unknown,
}

fn not_on_disk(dir: &Path, error: &Error) -> Failure {
    Failure::new(
        FAILED,
        format!(
            "{} is unmounted, but not all that was written there is on disk: {error}; the server's log may say more",
            dir.display()
        ),
    )
}

/// Where else the file system of an unmounted mount is mounted: somebody may have bound it, or a directory in
/// it, to another place. Its server lives on with that.
fn still_mounted(entry: &MountEntry) -> Outcome<Option<String>> {
    let others = mount::mounts()?;
    if let Some(other) = others.iter().find(|other| other.device == entry.device && other.is_quire()) {
        return Ok(Some(format!("at {}", other.dir.display())));
    }
    let lives = entry.connection().is_some_and(|connection| connection.exists());
    Ok(lives.then(|| "in another mount namespace".into()))
}

/// Has everything written back. A frozen volume has nothing to write, and a dead server
/// writes nothing. One that cannot be asked whether it is frozen, as it is busy or another user's, writes
/// back all the same.
fn write_back(dir: &Path) -> Outcome<Written> {
    if freeze::check_thawed(dir).is_err_and(|failure| failure.code == exit::BUSY) {
        return Ok(Written::Unknown);
    }
    match mount::sync(dir) {
        Ok(()) => Ok(Written::All),
        Err(error) if error.kind() == ErrorKind::NoSpace => Err(Failure::new(
            exit::NO_SPACE,
            format!(
                "{} stays mounted: there is no room for what was written to it ({error}); make room where the image lies and \
                 try again, or give up what is not on disk: quire umount --lazy",
                dir.display()
            ),
        )),
        Err(error) if error.os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(Written::Unknown),
        Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Shutdown) => Ok(Written::Not(error)),
        Err(_) => Ok(Written::Unknown),
    }
}

/// Whether a process has ended, be it that its parent has not looked at it yet.
fn has_ended(process: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ends, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Says what is waited for, until it is dropped: an unmount may wait until the server has closed the volume.
fn talk_meanwhile(
    entry: &MountEntry,
    server: Option<Pid>,
    slow: impl FnOnce() + Send + 'static,
) -> Sender<()> {
    let (sender, dropped) = channel::<()>();
    let server = server.map(|server| format!("kill -9 {}", server.as_raw_nonzero()));
    let connection = entry.connection().unwrap_or_default();
    let give_up = server.unwrap_or_else(|| format!("echo 1 >{}/abort", connection.display()));
    // Ends with the sender, and with the process.
    std::thread::spawn(move || {
        let waits = |time| dropped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        if waits(Duration::from_secs(2)) {
            slow();
        }
        if waits(HINT_AFTER) {
            eprintln!(
                "quire: still waiting; `{give_up}` gives a server up that hangs: what was not synced is lost then, and \
                 the next mount recovers the volume"
            );
        }
    });
    sender
}
