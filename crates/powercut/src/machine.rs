//! The machine that loses its power: a folder on the host with an image, its mount, and its server.
//!
//! ```text
//!   volume.img   the medium            server.log   what the server said, all rounds
//!   crash.img    the medium as the last cut left it, before recovery touched it
//!   mnt/         the mount point       power        "1" while the power is on
//! ```
//!
//! Invariants: when a [`Machine`] is dropped its server is dead and nothing is mounted at `mnt`, whatever
//! happened; the folder goes with it unless [`Machine::keep`] was called.
//!
//! Neighbours: [`crate::serve`] is the server; [`crate::campaign`] decides when the power goes.

use crate::backend::Honesty;
use crate::failure::{Failure, Outcome};
use quire::FormatOptions;
use quire_base::random::Random;
use quire_fuse::mount::{self, Unmount};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the server may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// How long an orderly end may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);

/// What a program wants of its volume and mount.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// Size of the volume.
    pub bytes: u64,
    /// Untorn files, which cannot be written where the kernel keeps what is written.
    pub units: bool,
}

/// See the module's documentation.
pub struct Machine {
    wants: Wants,
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
    /// The program with the subcommand `serve`.
    program: PathBuf,
    honesty: Honesty,
    server: Option<Server>,
}

struct Server {
    process: Child,
    orders: ChildStdin,
    /// Its lines, from a thread that ends with it.
    answers: mpsc::Receiver<String>,
}

/// How a start went.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// From starting the server to its mount being usable.
    pub took: Duration,
    /// Transactions that recovery replayed.
    pub replayed: u64,
}

/// What a cut did to the writes that no flush had made safe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// Nothing is left of them.
    pub lost: u64,
    /// They survived.
    pub kept: u64,
    /// Some of their sectors survived.
    pub torn: u64,
}

impl Machine {
    /// A new volume of `bytes` in a new folder below `parent`; not started.
    pub fn new(parent: &Path, program: &Path, wants: Wants, honesty: Honesty) -> Outcome<Machine> {
        let trouble = |error: std::io::Error| Failure::trouble("making the machine's folder", error);
        let folder = tempfile::Builder::new().prefix("powercut-").tempdir_in(parent).map_err(trouble)?;
        let path = folder.path().canonicalize().map_err(trouble)?;
        // The database's user passes through.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(trouble)?;
        let machine =
            Machine { folder: Some(folder), path, program: program.to_owned(), wants, honesty, server: None };
        std::fs::create_dir(machine.mountpoint()).map_err(trouble)?;
        std::fs::write(machine.power(), "0").map_err(trouble)?;
        let options = FormatOptions::new().size(wants.bytes);
        options.format(machine.image()).map_err(|error| Failure::trouble("making the volume", error))?;
        Ok(machine)
    }

    /// The machine's folder on the host.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The image file.
    pub fn image(&self) -> PathBuf {
        self.path.join("volume.img")
    }

    /// A copy of the image as the last cut left it.
    pub fn crash_image(&self) -> PathBuf {
        self.path.join("crash.img")
    }

    /// Where the volume is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// The power file.
    pub fn power(&self) -> PathBuf {
        self.path.join("power")
    }

    /// Leaves the folder behind when this is dropped.
    pub fn keep(&mut self) {
        if let Some(folder) = self.folder.take() {
            let _ = folder.keep();
        }
    }

    /// Switches on: recovery, mount. A volume that does not mount is a broken promise.
    pub fn start(&mut self, random: &mut Random) -> Outcome<Started> {
        let trouble = |error: std::io::Error| Failure::trouble("starting the server", error);
        let log =
            File::options().create(true).append(true).open(self.path.join("server.log")).map_err(trouble)?;
        std::fs::write(self.power(), "1").map_err(trouble)?;
        let started = Instant::now();
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg(self.image())
            .arg(self.mountpoint())
            .arg("--power")
            .arg(self.power())
            .args(["--seed", &random.next_u64().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        command.args(self.honesty.flag());
        let caches = ["engine", "engine", "kernel", "writeback"];
        let cache = caches[random.below(if self.wants.units { 3 } else { 4 }) as usize];
        command.args(["--cache", cache]);
        let mut process = command.spawn().map_err(trouble)?;
        let (Some(orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Failure::Trouble("the server has no pipes".into()));
        };
        self.server = Some(Server { process, orders, answers: listen(answers) });
        let answer = self.answer();
        let took = started.elapsed();
        match answer.split_once(' ') {
            Some(("ready", replayed)) => Ok(Started { took, replayed: replayed.parse().unwrap_or(0) }),
            _ => {
                self.kill();
                Err(Failure::Broken(format!("the volume does not mount: {}", self.last_of_log())))
            }
        }
    }

    /// Cuts the power, clears the dead mount away, and keeps a copy of what is left.
    pub fn cut(&mut self) -> Outcome<Cut> {
        let Some(server) = &mut self.server else {
            return Err(Failure::Trouble("no server to cut off".into()));
        };
        if let Ok(Some(status)) = server.process.try_wait() {
            self.kill();
            return Err(Failure::Broken(format!(
                "the server ended by itself, {status}: {}",
                self.last_of_log()
            )));
        }
        let told = server.orders.write_all(b"cut\n").and_then(|()| server.orders.flush());
        let answer = self.answer();
        self.kill();
        told.map_err(|error| Failure::trouble("telling the server to cut the power", error))?;
        let words: Vec<&str> = answer.split(' ').collect();
        let ["cut", lost, kept, torn] = words[..] else {
            return Err(Failure::Trouble(format!("the server answered {answer:?} to the cut")));
        };
        let number = |word: &str| word.parse().unwrap_or(0);
        copy(&self.image(), &self.crash_image())?;
        Ok(Cut { lost: number(lost), kept: number(kept), torn: number(torn) })
    }

    /// Makes sure that the power is off.
    pub fn cut_if_on(&mut self) -> Outcome {
        self.kill();
        std::fs::write(self.power(), "0").map_err(|error| Failure::trouble("switching off", error))
    }

    /// Unmounts in order. Everything must be durable by then: a write that was never flushed is a broken
    /// promise.
    pub fn stop(&mut self) -> Outcome {
        mount::unmount(&self.mountpoint(), Unmount::Plain)
            .map_err(|error| Failure::trouble("unmounting in order", error))?;
        let answer = self.answer();
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let deadline = Instant::now() + CLOSE_PATIENCE;
        loop {
            match server.process.try_wait() {
                Ok(Some(status)) if status.success() && answer == "closed 0" => return Ok(()),
                Ok(Some(status)) => {
                    let log = self.last_of_log();
                    return Err(Failure::Broken(format!(
                        "an orderly unmount ended with {status} and {answer:?}, its unflushed writes: {log}"
                    )));
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    self.server = Some(server);
                    self.kill();
                    return Err(Failure::Broken("the server does not end after an orderly unmount".into()));
                }
            }
        }
    }

    /// Checks the image, which nobody has open. Any issue is a broken promise.
    pub fn fsck(&self) -> Outcome {
        let report = quire_fsck::check(&self.image(), &quire_fsck::Options::default())
            .map_err(|error| Failure::Broken(format!("fsck cannot run: {error}")))?;
        if report.is_clean() {
            return Ok(());
        }
        let issues: Vec<String> = report.issues.iter().take(8).map(ToString::to_string).collect();
        Err(Failure::Broken(format!("fsck of the crash image: {}", issues.join("; "))))
    }

    /// The server's next line; empty if it ended, or says nothing for too long.
    fn answer(&self) -> String {
        self.server
            .as_ref()
            .and_then(|server| server.answers.recv_timeout(ANSWER_PATIENCE).ok())
            .unwrap_or_default()
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
        if matches!(mount::mounted_at(&self.mountpoint()), Ok(Some(_)))
            && let Err(error) = mount::unmount(&self.mountpoint(), Unmount::Detach)
        {
            eprintln!("powercut: {error}");
        }
    }

    fn last_of_log(&self) -> String {
        let text = std::fs::read_to_string(self.path.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listen(answers: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(answers).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Whether the power is on, as a program on the host sees it.
pub fn is_powered(power: &File) -> bool {
    let mut byte = [0];
    power.read_exact_at(&mut byte, 0).is_ok() && byte[0] == b'1'
}

/// A sparse copy.
fn copy(from: &Path, to: &Path) -> Outcome {
    let status =
        Command::new("cp").args(["--sparse=always", "--reflink=auto", "--"]).arg(from).arg(to).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Trouble(format!("copying the crash image: {status}"))),
        Err(error) => Err(Failure::trouble("copying the crash image", error)),
    }
}
