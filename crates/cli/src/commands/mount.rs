//! `quire mount`: in the foreground, or through a server in the background ([`crate::server`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire::Volume;
use quire_base::{ErrorKind, Result};
use quire_device::NbdAddress;
use quire_fuse::{MountEntry, Session, mount, signals};

use super::umount;
use crate::arguments::Mount;
use crate::exit::{Failure, Outcome};
use crate::mount_options::{LogTarget, MountOptions};
use crate::server::{self, Report};
use crate::{control, image, logging, notify};

/// How long a mount waits for a server that is closing the volume after an unmount.
const CLOSING_PATIENCE: Duration = Duration::from_secs(30);

/// Arguments that have been looked at.
pub struct Checked {
    /// The volume's absolute path.
    pub volume: PathBuf,
    /// The mount point's absolute path.
    pub dir: PathBuf,
    /// The parsed options.
    pub options: MountOptions,
}

/// Looks at everything that can be wrong before a server is started.
pub fn check(arguments: &Mount) -> Outcome<Checked> {
    let options = MountOptions::parse(&arguments.options).map_err(Failure::usage)?;
    let volume = find(&arguments.volume, options.patience())?;
    let dir = mount::resolve(&arguments.dir)?;
    if let Some(entry) = mount::mounted_at(&dir)? {
        return Err(Failure::new(
            36,
            format!(
                "{} is already mounted at {}; unmount it first (`quire umount {}`), or choose another directory",
                entry.source.display(),
                dir.display(),
                dir.display()
            ),
        ));
    }
    if !dir.is_dir() {
        return Err(Failure::new(37, format!("mount point {} is not a directory", dir.display())));
    }
    // Not a volume, or of a newer format: said without starting anything.
    image::newest_superblock(&volume)?;
    Ok(Checked { volume, dir, options })
}

/// The volume's absolute path. One that a network brings may come later than its mount is asked for: until
/// then there is no such file, or a block device of size 0.
fn find(volume: &Path, patience: Duration) -> Outcome<PathBuf> {
    let start = Instant::now();
    loop {
        let found = image::find(volume);
        if found.as_deref().is_ok_and(image::is_connected) || start.elapsed() >= patience {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Mounts.
pub fn run(arguments: &Mount) -> Outcome {
    if arguments.report {
        return serve_and_report(arguments);
    }
    if arguments.watch {
        return super::supervise::run(arguments);
    }
    if let Ok(options) = MountOptions::parse(&arguments.options)
        && options.remount
    {
        return remount(arguments, &options);
    }
    let checked = check(arguments)?;
    if arguments.foreground {
        return serve_here(&checked);
    }
    for note in in_background(&checked, &arguments.options, arguments.supervise)? {
        eprintln!("quire: {note}");
    }
    Ok(())
}

/// Changes what the kernel does on a mount. mount(8) gives all options of the mount, those that cannot change
/// included.
fn remount(arguments: &Mount, options: &MountOptions) -> Outcome {
    let root = rustix::process::geteuid().is_root();
    let entry = super::mounted(&arguments.dir)?;
    Ok(mount::remount(&entry, &options.flags(arguments.volume.as_os_str(), root))?)
}

/// Mounts through a server in the background; returns its notes.
pub fn in_background(checked: &Checked, options: &[String], supervise: bool) -> Outcome<Vec<String>> {
    let log = match &checked.options.log {
        LogTarget::Standard => Some(logging::standard_file(&checked.volume)),
        LogTarget::File(path) => Some(path.clone()),
        LogTarget::Syslog => None,
    };
    // The server works in the root directory.
    let mut options = options.to_vec();
    if let LogTarget::File(path) = &checked.options.log
        && path.is_relative()
    {
        let path =
            std::path::absolute(path).map_err(|error| Failure::system("finding the log file", &error))?;
        options.push(format!("log={}", path.display()));
    }
    server::start(&checked.volume, &checked.dir, &options, log.as_deref(), supervise)
}

fn serve_here(checked: &Checked) -> Outcome {
    signals::block();
    signals::serve_under_memory_pressure();
    logging::to_terminal();
    server::abort_on_panic();
    let (session, notes) = open_and_mount(checked)?;
    for note in notes {
        tracing::info!("{note}");
    }
    say_mounted(checked, &session);
    notify::ready();
    Ok(session.run()?)
}

fn serve_and_report(arguments: &Mount) -> Outcome {
    server::detach();
    signals::block();
    signals::serve_under_memory_pressure();
    let started = check(arguments).and_then(|checked| {
        let log = logging::to_target(&checked.options.log, &checked.volume)?;
        server::abort_on_panic();
        let (session, notes) = open_and_mount(&checked)?;
        Ok((checked, log, session, notes))
    });
    let (checked, log, session, notes) = match started {
        Ok(started) => started,
        Err(failure) => {
            tracing::error!("{failure}");
            server::report(&Report::Failed { code: failure.code, message: failure.message.clone() });
            return Err(failure);
        }
    };
    for note in &notes {
        tracing::info!("{note}");
    }
    say_mounted(&checked, &session);
    server::report(&Report::Ready { log, notes });
    let outcome = session.run();
    if let Err(error) = &outcome {
        tracing::error!("{error}");
    }
    Ok(outcome?)
}

fn say_mounted(checked: &Checked, session: &Session) {
    tracing::info!(
        "{} is mounted on {}, transport {}",
        checked.volume.display(),
        checked.dir.display(),
        session.transport()
    );
    if let Some(why) = session.no_syncfs() {
        tracing::info!(
            "syncfs and sync do not reach this mount ({why}): `quire ctl sync {}` does the same, and what nobody syncs \
             is durable after the commit interval (commit=)",
            checked.dir.display()
        );
    }
}

fn open_and_mount(checked: &Checked) -> Outcome<(Session, Vec<String>)> {
    let root = rustix::process::geteuid().is_root();
    let volume = open(&checked.volume, &checked.options)?;
    let mut serve = checked.options.serve.clone();
    serve.flags = checked.options.flags(checked.volume.as_os_str(), root);
    let mut notes = Vec::new();
    let recovery = volume.recovery();
    if let Some(reason) = &recovery.fallback {
        notes.push(format!("the newest superblock is not good, the older one was taken: {reason}"));
    }
    if let Some(reason) = &recovery.second_copy {
        notes.push(format!("the first copy of a superblock is not good, the second one was taken: {reason}"));
    }
    if recovery.records > 0 {
        notes.push(format!("recovered {} transactions from the journal", recovery.records));
    }
    if volume.is_read_only() && !checked.options.serve.flags.read_only {
        let reason = recovery.read_only_because.as_deref().unwrap_or("it may not be written");
        notes.push(format!("{} is mounted read-only: {reason}", checked.volume.display()));
        serve.flags.read_only = true;
    }
    // The control socket before the mount is there to be seen: a program that sees it may ask.
    let started = control::serve(&volume, &checked.dir, checked.options.metrics.as_ref())
        .and_then(|()| Session::mount(volume.clone(), &checked.dir, &serve));
    let session = started.inspect_err(|_| {
        // The threads behind the socket hold the volume as well: it would not be closed by itself.
        let _ = volume.clone().close();
    })?;
    Ok((session, notes))
}

/// Opens the volume; one that is only just being closed by its last server is waited for.
fn open(path: &Path, options: &MountOptions) -> Result<Volume> {
    let start = Instant::now();
    let opened = if options.takes_over { NbdAddress::taking_over(path)? } else { path.to_owned() };
    loop {
        match options.volume.open(&opened) {
            Err(error)
                if error.kind() == ErrorKind::Busy
                    && start.elapsed() < CLOSING_PATIENCE
                    && is_closing(path)? =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() == ErrorKind::Busy => {
                return Err(match mounted_on(path)? {
                    Some(dir) => error.context(format!("it is mounted at {}", dir.display())),
                    None => error,
                });
            }
            outcome => return outcome,
        }
    }
}

/// Where a volume is mounted. The mount table may show another name for it (`fsname`); then its server's
/// command line tells.
pub fn mounted_on(volume: &Path) -> Result<Option<PathBuf>> {
    let dir = umount::server_of(volume).and_then(|process| umount::mount_point_of(&process));
    let is_it = |entry: &MountEntry| entry.source == volume || Some(&entry.dir) == dir.as_ref();
    let found = mount::mounts()?.into_iter().find(|entry| entry.is_quire() && is_it(entry));
    Ok(found.map(|entry| entry.dir))
}

/// Open for writing, not mounted, and the process that has it open once mounted volumes: a server on its way
/// out.
fn is_closing(volume: &Path) -> Result<bool> {
    Ok(mounted_on(volume)?.is_none() && umount::server_of(volume).is_some())
}
