//! `quire mount --supervise`: a process that starts the server again if it dies.
//!
//! ```text
//!   quire mount --supervise   -->   this (own session)   -->   the server, `quire mount --report`
//!           <--- its report --------------+  <--- its report -------+
//! ```
//!
//! A server that ends by itself, well or with an error, is not started again: an unmount is meant, and an error would
//! come back. One that was killed, or that stopped itself on an internal error, leaves a dead mount; that is detached,
//! and a new server recovers the volume and mounts it at the same place. Programs that had nothing open there notice a
//! pause; those that had get errors for what they hold. The kernel has no way to hand a dead server's mount to a new one.
//!
//! If this process is ended, the server goes on unwatched.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use quire_base::Result;
use quire_fuse::mount::{self, Unmount};

use crate::arguments::Mount;
use crate::exit::{Failure, Outcome};
use crate::logging;
use crate::server::{self, Report};

/// A server that dies this often...
const DEATHS_MAX: usize = 5;
/// ...within this time is not started again.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// How long a new server is tried while the dead one's files are still being closed by the kernel.
const CLOSING: Duration = Duration::from_secs(5);
/// "In use", as the server reports it.
const BUSY: u8 = 36;

/// Watches over a server until it ends by itself.
pub fn run(arguments: &Mount) -> Outcome {
    server::detach();
    let checked = match super::mount::check(arguments) {
        Ok(checked) => checked,
        Err(failure) => {
            server::report(&Report::Failed { code: failure.code, message: failure.message.clone() });
            return Err(failure);
        }
    };
    logging::to_target(&checked.options.log, &checked.volume)?;
    let mut deaths = VecDeque::new();
    let mut died: Option<Instant> = None;
    loop {
        let (mut child, report) =
            server::spawn(&checked.volume, &checked.dir, &arguments.options, "--report")?;
        let ended = |error: std::io::Error| Failure::system("waiting for the server", &error);
        match (report, died) {
            (Some(report), None) => server::report(&report),
            (Some(Report::Failed { code: BUSY, .. }), Some(at)) if at.elapsed() < CLOSING => {
                child.wait().map_err(ended)?;
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            (Some(Report::Failed { message, .. }), Some(_)) => {
                tracing::error!("not mounted again: {message}")
            }
            (Some(Report::Ready { notes, .. }), Some(at)) => {
                notes.iter().for_each(|note| tracing::info!("{note}"));
                tracing::warn!(
                    "{} is mounted again after {} ms",
                    checked.dir.display(),
                    at.elapsed().as_millis()
                );
            }
            (None, _) => {}
        }
        let status = child.wait().map_err(ended)?;
        match status.code() {
            Some(0) => return Ok(()),
            Some(code) => {
                return Err(Failure::new(
                    u8::try_from(code).unwrap_or(1),
                    format!("the server of {} ended with an error", checked.dir.display()),
                ));
            }
            None => {}
        }
        let now = Instant::now();
        deaths.push_back(now);
        while deaths.front().is_some_and(|first| now.duration_since(*first) > DEATHS_WITHIN) {
            deaths.pop_front();
        }
        if deaths.len() > DEATHS_MAX {
            return Err(Failure::new(32, "the server dies again and again; see its messages".to_owned()));
        }
        tracing::error!("the server of {} died ({status}); it is started again", checked.dir.display());
        clear(&checked.dir, &checked.volume)?;
        died = Some(now);
    }
}

/// Detaches the dead mount, unless somebody else did or has mounted something there.
fn clear(dir: &Path, volume: &Path) -> Result<()> {
    match mount::mounted_at(dir)? {
        Some(entry) if entry.is_quire() && (entry.source == volume || !entry.source.is_absolute()) => {
            mount::unmount(dir, Unmount::Detach)
        }
        _ => Ok(()),
    }
}
