//! Where a server's messages go: the terminal, a file, or the system's log.
//!
//! Messages are one line each: time, level, text. A server that runs in the background also points its
//! standard error at the log file, so that a panic is found there.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

use crate::exit::{Failure, Outcome};
use crate::mount_options::LogTarget;

/// What all messages have in common. A line that cannot be written is lost, and nobody is told: standard
/// error may be the same file.
fn messages() -> SubscriberBuilder<DefaultFields, Format, EnvFilter> {
    tracing_subscriber::fmt().with_env_filter(filter()).with_target(false).log_internal_errors(false)
}

fn filter() -> EnvFilter {
    EnvFilter::try_from_env("QUIRE_LOG").unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Messages to the terminal.
pub fn to_terminal() {
    let subscriber = messages().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    // A second subscriber (in tests) is refused; the first stays.
    let _ = subscriber.try_init();
}

/// The standard log file of a volume: `$XDG_STATE_HOME/quire/NAME.log` if that is set, else
/// `/var/log/quire-NAME.log` for root and `~/.local/state/quire/NAME.log` for others.
pub fn standard_file(volume: &Path) -> PathBuf {
    let name = volume.file_stem().unwrap_or(volume.as_os_str()).to_string_lossy().into_owned();
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    if state.is_none() && rustix::process::geteuid().is_root() {
        return Path::new("/var/log").join(format!("quire-{name}.log"));
    }
    let state = state.unwrap_or_else(|| {
        std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from).join(".local/state")
    });
    state.join("quire").join(format!("{name}.log"))
}

/// Starts the messages of a server in the foreground: to the terminal, if nothing else was asked for.
pub fn of_foreground(target: &LogTarget, volume: &Path) -> Outcome {
    match target {
        LogTarget::Standard => to_terminal(),
        LogTarget::File(_) | LogTarget::Syslog => drop(start(target, volume)?),
    }
    Ok(())
}

/// Starts the messages of a server in the background.
pub fn to_target(target: &LogTarget, volume: &Path) -> Outcome {
    if let Some(file) = start(target, volume)? {
        let _ = rustix::stdio::dup2_stderr(&file);
    }
    Ok(())
}

/// Starts messages; returns the file they go to, if one.
fn start(target: &LogTarget, volume: &Path) -> Outcome<Option<Arc<File>>> {
    let path = match target {
        LogTarget::Syslog => {
            let subscriber = messages().with_ansi(false).without_time().with_level(false).with_writer(Syslog);
            let _ = subscriber.try_init();
            return Ok(None);
        }
        LogTarget::File(path) => path.clone(),
        LogTarget::Standard => standard_file(volume),
    };
    // A directory that somebody has named may be misspelt.
    if let (LogTarget::Standard, Some(directory)) = (target, path.parent()) {
        let _ = std::fs::create_dir_all(directory);
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(&path).map_err(|error| {
        Failure::system(
            format!("opening the log file {} (choose another with -o log=FILE)", path.display()),
            &error,
        )
    })?;
    let file = Arc::new(file);
    let _ = messages().with_ansi(false).with_writer(LogFile(file.clone())).try_init();
    Ok(Some(file))
}

/// One `write` per message, so that lines of several threads do not mix.
struct LogFile(Arc<File>);

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a File;
    fn make_writer(&'a self) -> &'a File {
        &self.0
    }
}

/// The daemon facility, level by message, over the socket that every system logger listens on.
struct Syslog;

struct SyslogLine {
    priority: u8,
}

const DAEMON: u8 = 3 << 3;

impl MakeWriter<'_> for Syslog {
    type Writer = SyslogLine;
    fn make_writer(&self) -> SyslogLine {
        SyslogLine { priority: DAEMON | 6 }
    }
    fn make_writer_for(&self, meta: &tracing::Metadata<'_>) -> SyslogLine {
        let level = match *meta.level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        SyslogLine { priority: DAEMON | level }
    }
}

impl Write for SyslogLine {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = syslog_line(self.priority, text);
        // Nobody to tell if the logger is away.
        if let Ok(socket) = UnixDatagram::unbound() {
            let _ = socket.send_to(&line, "/dev/log");
        }
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn syslog_line(priority: u8, text: &[u8]) -> Vec<u8> {
    let mut line = format!("<{priority}>quire[{}]: ", std::process::id()).into_bytes();
    line.extend_from_slice(text.trim_ascii());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_named_after_the_volume() {
        let path = standard_file(Path::new("/data/backup.img"));
        assert!(path.to_string_lossy().contains("backup"), "{path:?}");
        assert_eq!(path.extension().unwrap(), "log");
    }

    #[test]
    fn a_line_for_the_system_log() {
        let line = syslog_line(DAEMON | 4, b"  disk is slow\n");
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with("<28>quire[") && line.ends_with("]: disk is slow"), "{line}");
    }
}
