//! `quire mount --supervise`: a process that starts the server again if it dies.
//!
//! ```text
//!   quire mount --supervise   -->   this (own session)   -->   the server, `quire mount --report`
//!           <--- its report --------------+  <--- its report -------+
//! ```
//!
//! A server that ends by itself, well or with an error, is not started again: an unmount is meant, and an
//! error would come back. One that was killed, or that stopped itself on an internal error, leaves a dead
//! mount; that is detached, and a new server recovers the volume and mounts it at the same place. Programs
//! that had nothing open there notice a pause; those that had get errors for what they hold. The kernel has
//! no way to hand a dead server's mount to a new one. A server that was killed while it closed the volume,
//! after an unmount, leaves no mount, and none is made: the next mount recovers.
//!
//! A killed server does not end while a thread of it waits in the kernel for a page whose READ nobody answers
//! any more. Neither do the programs that wait for that page. An abort of the connection frees them all.
//!
//! If this process is ended, the server goes on unwatched.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use quire_base::Result;
use quire_fuse::mount::{self, Unmount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process::{self, Report};
use crate::arguments::Mount;
use crate::exit::{BUSY, FAILED, Failure, Outcome};
use crate::logging;
use crate::mount_check::check;

/// A server that dies this often...
const DEATHS_MAX: usize = 5;
/// ...within this time is not started again.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// How long a new server is tried while the dead one's files are still being closed by the kernel, which
/// waits for a disk that stalls.
const CLOSING: Duration = Duration::from_secs(120);
/// How often a server is looked at that has not ended.
const LOOK_SECONDS: i64 = 1;

/// Watches over a server until it ends by itself.
pub fn run(arguments: &Mount) -> Outcome {
    process::detach();
    // The process that started this one waits for the first report of any server, and else for this one's.
    let mut reported = false;
    let outcome = watch(arguments, &mut reported);
    if let Err(failure) = &outcome {
        tracing::error!("{failure}");
        if !reported {
            process::report(&Report::Failed { code: failure.code, message: failure.message.clone() });
        }
    }
    outcome
}

fn watch(arguments: &Mount, reported: &mut bool) -> Outcome {
    let checked = check(arguments)?;
    logging::to_target(&checked.options.log, &checked.volume)?;
    let mut deaths = VecDeque::new();
    let mut died: Option<Instant> = None;
    let mut options = arguments.options.clone();
    loop {
        let (mut child, report) = process::spawn(&checked.volume, &checked.dir, &options, "--report")?;
        let ended = |error: std::io::Error| Failure::system("waiting for the server", &error);
        match step(report.as_ref(), *reported, died.map(|at| at.elapsed())) {
            Step::TryAgain(pause) => {
                child.wait().map_err(ended)?;
                std::thread::sleep(pause);
                continue;
            }
            Step::PassOn(report) => {
                process::report(report);
                *reported = true;
            }
            Step::Note(Report::Failed { message, .. }) => tracing::error!("not mounted again: {message}"),
            Step::Note(Report::Ready { notes }) => {
                notes.iter().for_each(|note| tracing::info!("{note}"));
                let since = died.map_or(0, |at| at.elapsed().as_millis());
                tracing::warn!("{} is mounted again after {since} ms", checked.dir.display());
            }
            Step::Nothing => {}
        }
        let source = checked.options.fs_name.as_ref().map_or(checked.volume.as_path(), Path::new);
        let status = wait(&mut child, &checked.dir, source).map_err(ended)?;
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
            return Err(Failure::new(FAILED, "the server dies again and again; see its messages"));
        }
        let had_mounted = matches!(report, Some(Report::Ready { .. }));
        if !clear(&checked.dir, source)? && had_mounted {
            tracing::error!(
                "the server of {} died ({status}) after its mount was gone; the next mount recovers the volume",
                checked.dir.display()
            );
            return Ok(());
        }
        tracing::error!("the server of {} died ({status}); it is started again", checked.dir.display());
        // The word was given for the first owner. The next one may have superseded this server.
        options = options.iter().map(|list| without_takeover(list)).collect();
        died = Some(now);
    }
}

/// Waits for a server's end, and brings it about if the server was killed and hangs.
fn wait(server: &mut Child, dir: &Path, source: &Path) -> std::io::Result<ExitStatus> {
    let Ok(process) = pidfd_open(Pid::from_child(server), PidfdFlags::empty()) else { return server.wait() };
    let pause = Timespec { tv_sec: LOOK_SECONDS, tv_nsec: 0 };
    let mut looks = 0;
    while poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&pause)) == Ok(0) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap_or_default();
        looks = if is_zombie(&stat) { looks + 1 } else { 0 };
        // A large server takes a moment to go.
        if looks == 2 {
            tracing::error!("the killed server of {} does not end; its connection is aborted", dir.display());
            abort(dir, source);
        }
    }
    server.wait()
}

/// Whether a process that `/proc/PID/stat` describes has ended, but for threads of it.
fn is_zombie(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_name, rest)| rest.starts_with('Z'))
}

/// Ends all requests of the mount.
fn abort(dir: &Path, source: &Path) {
    let mounted = mount::mounted_at(dir).ok().flatten();
    let ours = mounted.filter(|entry| entry.is_quire() && entry.source == source);
    if let Some(connection) = ours.and_then(|entry| entry.connection())
        && let Err(error) = std::fs::write(connection.join("abort"), "1")
    {
        tracing::error!("aborting connection {} failed: {error}", connection.display());
    }
}

/// A list of mount options without `takeover`.
fn without_takeover(list: &str) -> String {
    let kept: Vec<&str> = list.split(',').filter(|item| item.trim() != "takeover").collect();
    kept.join(",")
}

/// What follows from a server's report.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    /// The process that started this one waits for it.
    PassOn(&'a Report),
    /// The dead server's files are still being closed: again after a pause.
    TryAgain(Duration),
    /// For the log.
    Note(&'a Report),
    Nothing,
}

/// `reported`: a server's report has been passed on. `dead_for`: since the last server died, if one did.
fn step(report: Option<&Report>, reported: bool, dead_for: Option<Duration>) -> Step<'_> {
    match report {
        Some(Report::Failed { code: BUSY, .. }) if dead_for.is_some_and(|time| time < CLOSING) => {
            let pause = dead_for.unwrap_or_default() / 8;
            Step::TryAgain(pause.clamp(Duration::from_millis(50), Duration::from_secs(2)))
        }
        Some(report) if !reported => Step::PassOn(report),
        Some(report) => Step::Note(report),
        None => Step::Nothing,
    }
}

/// Detaches the dead mount; false if somebody else did, or has mounted something there.
fn clear(dir: &Path, source: &Path) -> Result<bool> {
    match mount::mounted_at(dir)? {
        Some(entry) if entry.is_quire() && entry.source == source => {
            mount::unmount(dir, Unmount::Detach).map(|()| true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `wait` does not return for a killed server with a thread that the kernel keeps: nobody mounted again,
    /// and programs waited for pages for ever.
    #[test]
    fn a_server_that_was_killed_and_hangs_is_told_from_one_that_runs() {
        assert!(is_zombie("571 (quire) Z 1 571 571 0 -1"));
        assert!(is_zombie("571 (a) S (b) Z 1 571 571 0 -1"));
        assert!(!is_zombie("571 (quire) S 1 571 571 0 -1"));
        assert!(!is_zombie("571 (a) Z 1 2) S 1 571 571 0 -1"));
        assert!(!is_zombie(""));
    }

    /// When the first server was killed before it was ready, the second one's report was only logged:
    /// `quire mount`, and mount(8) behind it, waited until the volume was unmounted again.
    #[test]
    fn the_first_report_is_passed_on_whichever_server_it_is_of() {
        let ready = Report::Ready { notes: Vec::new() };
        let busy = Report::Failed { code: BUSY, message: "busy".into() };
        let soon = Some(Duration::from_millis(1));
        assert_eq!(step(Some(&ready), false, None), Step::PassOn(&ready));
        assert_eq!(step(None, false, None), Step::Nothing);
        assert!(matches!(step(Some(&busy), false, soon), Step::TryAgain(_)));
        assert_eq!(step(Some(&ready), false, soon), Step::PassOn(&ready));
        assert_eq!(step(Some(&ready), true, soon), Step::Note(&ready));
        assert_eq!(step(Some(&busy), false, Some(CLOSING)), Step::PassOn(&busy));
        assert_eq!(step(Some(&busy), false, None), Step::PassOn(&busy));
    }

    /// A dead server whose last writes hung in a disk that stalled for more than five seconds kept the
    /// volume's lock that long, and the volume was given up.
    #[test]
    fn a_lock_that_outlives_its_server_is_waited_for() {
        let busy = Report::Failed { code: BUSY, message: "busy".into() };
        let pause = |seconds| match step(Some(&busy), true, Some(Duration::from_secs(seconds))) {
            Step::TryAgain(pause) => pause,
            other => panic!("{other:?}"),
        };
        assert!(pause(0) > Duration::ZERO && pause(0) < pause(1) && pause(1) < pause(30));
        assert!(pause(CLOSING.as_secs() - 1) <= Duration::from_secs(2));
        assert_eq!(step(Some(&busy), true, Some(CLOSING)), Step::Note(&busy));
    }
}
