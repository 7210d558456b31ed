//! Serving a mount: opens the volume, mounts it, and answers until it is unmounted.
//!
//! Neighbours: [`super::process`] starts the process, [`super::listener`] answers beside the mount.

use std::path::Path;
use std::time::{Duration, Instant};

use quire::Volume;
use quire_base::{ErrorKind, Result};
use quire_device::NbdAddress;
use quire_fuse::{Session, signals};

use super::listener::{self, ControlSocket};
use super::process::{self, Report};
use crate::arguments::Mount;
use crate::exit::Outcome;
use crate::mount_check::{Checked, check};
use crate::mount_options::MountOptions;
use crate::places::{mounted_on, server_of};
use crate::{logging, notify};

/// How long a mount waits for a server that is closing the volume after an unmount.
const CLOSING_PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a volume that somebody has open, in the beginning and in the end.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Mounts and serves in this process, until the volume is unmounted.
pub fn here(checked: &Checked) -> Outcome {
    signals::block();
    signals::serve_under_memory_pressure();
    signals::run_soon();
    logging::of_foreground(&checked.options.log, &checked.volume)?;
    process::abort_on_panic();
    let (session, control, notes) = open_and_mount(checked)?;
    for note in notes {
        tracing::info!("{note}");
    }
    say_mounted(checked, &session);
    notify::ready();
    Ok(session.run_then(|| control.close())?)
}

/// The same for the process that started this one, which is told how it went.
pub fn and_report(arguments: &Mount) -> Outcome {
    process::detach();
    signals::block();
    signals::serve_under_memory_pressure();
    signals::run_soon();
    let started = check(arguments).and_then(|checked| {
        logging::to_target(&checked.options.log, &checked.volume)?;
        process::abort_on_panic();
        let mounted = open_and_mount(&checked)?;
        Ok((checked, mounted))
    });
    let (checked, (session, control, notes)) = match started {
        Ok(started) => started,
        Err(failure) => {
            tracing::error!("{failure}");
            process::report(&Report::Failed { code: failure.code, message: failure.message.clone() });
            return Err(failure);
        }
    };
    for note in &notes {
        tracing::info!("{note}");
    }
    say_mounted(&checked, &session);
    process::report(&Report::Ready { notes });
    let outcome = session.run_then(|| control.close());
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

fn open_and_mount(checked: &Checked) -> Outcome<(Session, ControlSocket, Vec<String>)> {
    let root = rustix::process::geteuid().is_root();
    let volume = open(&checked.volume, &checked.options)?;
    let mut serve = checked.options.serve.clone();
    serve.flags = checked.options.flags(checked.volume.as_os_str(), root);
    let mut notes = Vec::new();
    let recovery = volume.recovery();
    if let Some(reason) = &recovery.fallback {
        notes.push(format!("a superblock or its checkpoint is not good, the other one was taken: {reason}"));
    }
    if let Some(reason) = &recovery.second_copy {
        notes.push(format!("the first copy of a superblock is not good, the second one was taken: {reason}"));
    }
    if recovery.records > 0 {
        notes.push(format!("recovered {} transactions from the journal", recovery.records));
    }
    if volume.is_read_only() && !checked.options.serve.flags.read_only {
        let reason = recovery.read_only_because.as_deref().unwrap_or_default();
        notes.push(format!("{} is mounted read-only: {reason}", checked.volume.display()));
        serve.flags.read_only = true;
    }
    let started = listener::serve_metrics(&volume, checked.options.metrics.as_ref())
        .and_then(|()| Session::mount(volume.clone(), &checked.dir, &serve));
    let session = started.inspect_err(|_| {
        // The threads behind the metrics hold the volume as well: it would not be closed by itself.
        let _ = volume.clone().close();
    })?;
    // Before the session answers: a program that has seen the mount's root may ask.
    let control = ControlSocket::serve(&volume, session.entry());
    Ok((session, control, notes))
}

/// Opens the volume; one that is only just being closed by its last server is waited for. So is any other
/// that somebody has open and that is not mounted, as long as `wait=` says: the lock of a server that was
/// killed outlives it while a slow device has requests of it.
fn open(path: &Path, options: &MountOptions) -> Result<Volume> {
    let (start, patience) = (Instant::now(), options.patience());
    let is_to_come = || -> Result<bool> {
        let elapsed = start.elapsed();
        let in_time = elapsed < patience || elapsed < CLOSING_PATIENCE && server_of(path).is_some();
        Ok(in_time && mounted_on(path)?.is_none())
    };
    let mut pause = LOCK_PAUSE;
    let opened = if options.takes_over { NbdAddress::taking_over(path)? } else { path.to_owned() };
    loop {
        match options.volume.open(&opened) {
            Err(error) if error.kind() == ErrorKind::Busy && is_to_come()? => {
                if signals::comes_within(pause) {
                    return Err(error.context("the mount was stopped while it waited for this"));
                }
                pause = (start.elapsed() / 8).clamp(LOCK_PAUSE, LOCK_PAUSE_MAX);
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
