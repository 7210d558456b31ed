//! The background process behind a mount.
//!
//! `quire mount` starts itself once more, with a flag that says: serve, and report. A new program instead of
//! a fork, since a fork would take the memory of running threads without the threads. Protocol:
//!
//! ```text
//!   parent                                   child (own session, standard error = log)
//!   starts the child, stdout a pipe   --->   opens the volume, mounts
//!   reads one line of JSON            <---   {"ready": ...} or {"failed": code, "message": ...}
//!   prints, exits with the code              points stdout at /dev/null, serves until unmounted
//! ```
//!
//! A pipe that closes without a line means that the child died: the parent says where its log is.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::exit::{self, Failure, Outcome};

/// What the child says, once.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The mount is usable.
    Ready {
        /// Things the user should know (mounted read-only, recovered).
        notes: Vec<String>,
    },
    /// There is no mount.
    Failed {
        /// Exit code.
        code: u8,
        /// Message.
        message: String,
    },
}

/// Starts a server for `volume` on `dir` (both absolute), watched over if `supervise`, and waits until it is
/// usable; returns its notes.
pub fn start(
    volume: &Path,
    dir: &Path,
    options: &[String],
    log: Option<&Path>,
    supervise: bool,
) -> Outcome<Vec<String>> {
    let (mut child, report) = spawn(volume, dir, options, if supervise { "--watch" } else { "--report" })?;
    match report {
        Some(Report::Ready { notes }) => Ok(notes),
        Some(Report::Failed { code, message }) => {
            let _ = child.wait();
            Err(Failure::new(code, message))
        }
        None => {
            let status = child.wait().map_err(|error| starting(&error))?;
            let log = log.map_or("the system log".into(), |log| log.display().to_string());
            Err(Failure::new(
                exit::SYSTEM,
                format!("the server ended before it was ready ({status}); its messages are in {log}"),
            ))
        }
    }
}

fn starting(error: &std::io::Error) -> Failure {
    Failure::system("starting the server in the background", error)
}

/// Starts this program once more, as `mount` with a hidden flag, and gives the process with its report;
/// `None` if it ended without one.
pub fn spawn(volume: &Path, dir: &Path, options: &[String], flag: &str) -> Outcome<(Child, Option<Report>)> {
    let mut command = Command::new(program());
    command.arg("mount").arg(flag);
    for list in options {
        command.arg("-o").arg(list);
    }
    let mut child = command
        .arg("--")
        .arg(volume)
        .arg(dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| starting(&error))?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).map_err(|error| starting(&error))?;
    }
    Ok((child, serde_json::from_str(&line).ok()))
}

/// This program, by its path so that process lists show its name; if it was replaced meanwhile, by the
/// kernel's reference to it.
fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// The child's side: leaves the terminal.
pub fn detach() {
    // Fails only if this process leads a group already, and then there is nothing to leave.
    let _ = rustix::process::setsid();
}

/// The child's side: says how it went, and lets go of the pipe.
pub fn report(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&line).and_then(|()| out.flush());
    drop(out);
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Ends the process at once on a panic: what the engine has in memory is not to be trusted with the disk any
/// more, and the journal has everything that was promised. The next mount recovers.
pub fn abort_on_panic() {
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("internal error, the server stops: {info}");
        standard(info);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_one_line() {
        for report in [
            Report::Ready { notes: vec!["a\nb".into()] },
            Report::Failed { code: 36, message: "busy\nreally".into() },
        ] {
            let line = serde_json::to_string(&report).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
        assert!(serde_json::from_str::<Report>("").is_err());
    }
}
