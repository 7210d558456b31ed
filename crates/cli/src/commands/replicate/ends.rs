//! The two ends of a replication: a volume, and how `quire` is run where it is.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;

use super::report::Report;
use crate::exit::{self, Failure, Outcome};
use crate::{control, image, places};

/// Bytes that go through this process at a time.
const PIECE_BYTES: usize = 256 << 10;

/// A volume, here or on another machine.
pub struct End {
    volume: String,
    /// What comes before the arguments: a program, or `ssh`, host and program.
    command: Vec<String>,
    is_remote: bool,
}

/// A snapshot at one end.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub name: String,
    /// Nanoseconds since 1970.
    pub created: i64,
    pub deleting: bool,
}

impl Snapshot {
    /// Whether this is a copy of another one, or that one itself, and not half deleted.
    pub fn is(&self, other: &Snapshot) -> bool {
        !self.deleting && self.name == other.name && self.created == other.created
    }
}

impl End {
    /// A volume on this machine.
    pub fn here(volume: &str) -> Outcome<End> {
        if volume.is_empty() {
            return Err(Failure::usage("a replication needs two volumes, and one of the names is empty"));
        }
        let program =
            std::env::current_exe().map_err(|error| Failure::system("finding this program", &error))?;
        let program =
            program.to_str().ok_or_else(|| Failure::usage("the path of this program is no UTF-8"))?;
        Ok(End { volume: volume.to_owned(), command: vec![program.to_owned()], is_remote: false })
    }

    /// `HOST:PATH` is on another machine, as in rsync: a colon before any slash, and no address.
    pub fn parse(text: &str, rsh: &str, program: &str) -> Outcome<End> {
        let place = text.split_once(':').filter(|(host, path)| {
            !host.is_empty() && !host.contains('/') && !path.is_empty() && !path.starts_with("//")
        });
        let Some((host, volume)) = place else { return End::here(text) };
        let mut command: Vec<String> = rsh.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() || host.starts_with('-') {
            return Err(Failure::usage(format!(
                "{text}: a host needs a program that reaches it (--rsh ssh)"
            )));
        }
        command.extend([host.to_owned(), program.to_owned()]);
        Ok(End { volume: volume.to_owned(), command, is_remote: true })
    }

    /// The volume, as `quire` takes it there.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// For messages.
    pub fn name(&self) -> String {
        match self.is_remote {
            true => format!("{}:{}", self.command[self.command.len() - 2], self.volume),
            false => Path::new(&self.volume).display().to_string(),
        }
    }

    /// Whether both ends are one volume of this machine, be it named by its mount point.
    pub fn is(&self, other: &End) -> bool {
        self.place().is_some_and(|place| other.place() == Some(place))
    }

    /// The volume's absolute path, if it is there, and here.
    fn place(&self) -> Option<PathBuf> {
        let volume = Path::new(&self.volume);
        let mounted = || places::mounted(volume).ok().map(|entry| entry.source);
        (!self.is_remote).then(|| mounted().or_else(|| image::find(volume).ok()))?
    }

    /// Whether it is mounted here, and takes no changes there.
    pub fn is_mounted_read_only(&self) -> bool {
        let mount = (!self.is_remote).then(|| places::mount_of(Path::new(&self.volume)).ok()).flatten();
        mount
            .flatten()
            .is_some_and(|dir| control::ask(&dir, "info").is_ok_and(|told| told.trim().ends_with(" ro")))
    }

    fn command(&self, words: &[impl AsRef<str>]) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        // The remote shell splits what it gets.
        let quote = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        for word in words.iter().map(AsRef::as_ref) {
            match self.is_remote {
                true => command.arg(quote(word)),
                false => command.arg(word),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, command: &mut Command) -> Outcome<Child> {
        command.spawn().map_err(|error| Failure::system(format!("starting {}", self.command[0]), &error))
    }

    /// Runs `quire` with these arguments; gives what it prints.
    pub fn run(&self, words: &[&str]) -> Outcome<String> {
        let child = self.start(&mut self.command(words))?;
        let done = child.wait_with_output().map_err(|error| Failure::system("waiting for quire", &error))?;
        self.verdict(words[0], &done)?;
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn verdict(&self, what: &str, done: &Output) -> Outcome {
        if done.status.success() {
            return Ok(());
        }
        let at = format!("{what} at {}", self.name());
        let (said, status) = (String::from_utf8_lossy(&done.stderr), done.status);
        if said.trim().is_empty() {
            let silent = format!("{at}: {} ended with {status} and said nothing", self.command[0]);
            return Err(Failure::new(exit::FAILED, silent));
        }
        // A shell and ssh have codes of their own, beyond those of `quire`.
        let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code <= exit::MAX);
        Err(Failure::new(code.unwrap_or(exit::FAILED), format!("{at}: {}", said.trim())))
    }

    /// Its snapshots.
    pub fn snapshots(&self) -> Outcome<Vec<Snapshot>> {
        let text = self.run(&["snapshot", "list", "--no-space", "--json", &self.volume])?;
        let list: Value = serde_json::from_str(&text).map_err(|error| {
            Failure::new(exit::FAILED, format!("the list of snapshots of {}: {error}", self.name()))
        })?;
        let snapshot = |one: &Value| {
            Some(Snapshot {
                name: one["name"].as_str()?.to_owned(),
                created: one["created"].as_i64()?,
                deleting: one["deleting"].as_bool()?,
            })
        };
        Ok(list["snapshots"].as_array().into_iter().flatten().filter_map(snapshot).collect())
    }

    /// What a stream that broke can go on with.
    pub fn resume_token(&self) -> Outcome<Option<String>> {
        match self.run(&["receive", "--resume-token", &self.volume]) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(failure) if failure.message.contains("no unfinished receive") => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// Runs `send` at one end and `quire receive` at the other; gives the bytes between them.
pub fn pipe(source: &End, send: &[String], target: &End, report: &mut Report) -> Outcome<u64> {
    let receive = ["receive", "--quiet", target.volume()];
    let mut sender = source.start(&mut source.command(send))?;
    let receiver = target.start(target.command(&receive).stdin(Stdio::piped()).stdout(Stdio::null()));
    let mut receiver = receiver.inspect_err(|_| {
        let _ = sender.kill().and_then(|()| sender.wait());
    })?;
    let (said_there, said_here) = (listen(&mut receiver), listen(&mut sender));
    let (mut from, to) = (sender.stdout.take(), receiver.stdin.take());
    let mut bytes = 0;
    if let (Some(from), Some(mut to)) = (&mut from, to) {
        let mut piece = vec![0; PIECE_BYTES];
        // An end that fails closes its side; what it says comes below.
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
            bytes += count as u64;
            report.sent(count as u64);
        }
    }
    // A sender that writes on is told that nobody reads.
    drop(from);
    let (received, sent) = (end_of(receiver, said_there)?, end_of(sender, said_here)?);
    let (received, sent) = (target.verdict("receive", &received), source.verdict("send", &sent));
    if received.is_err() {
        report.broke();
    }
    match (received, sent) {
        (Ok(()), sent) => sent.map(|()| bytes),
        // If the source refuses, the target merely gets nothing.
        (Err(_), Err(sent)) if bytes == 0 => Err(sent),
        (Err(received), _) => Err(received),
    }
}

/// Reads what a program says while it runs: one that nobody reads stands still.
fn listen(child: &mut Child) -> JoinHandle<Vec<u8>> {
    let from = child.stderr.take();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut said);
        }
        said
    })
}

fn end_of(mut child: Child, said: JoinHandle<Vec<u8>>) -> Outcome<Output> {
    let status = child.wait().map_err(|error| Failure::system("waiting for quire", &error))?;
    Ok(Output { status, stdout: Vec::new(), stderr: said.join().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_paths() {
        let name = |text: &str| End::parse(text, "ssh -p 22", "quire").map(|end| (end.is_remote, end.name()));
        assert_eq!(name("host:/srv/a.img"), Ok((true, "host:/srv/a.img".into())));
        assert_eq!(name("me@host:a.img"), Ok((true, "me@host:a.img".into())));
        for here in ["a.img", "/srv/a:b.img", "./host:a", "nbd://host/a", ":a", "host:"] {
            assert_eq!(name(here), Ok((false, here.into())));
        }
        assert!(name("-oProxyCommand=x:a").is_err());
        // A unit of systemd whose configuration lacks the target passes an empty word.
        assert!(name("").is_err());
    }

    #[test]
    fn a_remote_shell_gets_words() {
        let end = End::parse("host:a b'c", "ssh", "quire").unwrap();
        let command = end.command(&["snapshot", end.volume()]);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["host", "quire", "'snapshot'", r"'a b'\''c'"]);
    }
}
