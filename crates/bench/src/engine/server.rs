//! `mount` and `fuse-null`: a server process of the program `quire` behind a FUSE mount.
//!
//! The guard [`Server`] unmounts (lazily if something holds the mount), waits for the process to close its
//! volume, and ends it if it does not. A run that is killed takes its servers with it: they get SIGTERM when
//! their parent dies, and then unmount themselves.

use super::system::{Behind, Source, System};
use super::{Spec, Workshop, skipped};
use crate::outcome::{Outcome, Trouble, failed, os};
use crate::target::Target;
use quire::FormatOptions;
use quire_base::{Error, ErrorKind, Result};
use quire_fuse::mount::{self, Unmount};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to be ready, and to close.
const PATIENCE: Duration = Duration::from_secs(60);

/// The property of files whose units a crash leaves whole, as an attribute.
pub const UNTORN: &str = "user.quire.untorn";

/// Formats the image and mounts it.
pub fn set_up_mount(spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    let program = can_serve(workshop)?;
    let image = std::path::absolute(workshop.image()?.path()).map_err(os("finding the image"))?;
    FormatOptions::new().force(true).format(&image)?;
    let dir = mount_point(workshop, "mount")?;
    let log = workshop.directory.join("server.log");
    let mut options = format!("log={},cache_size={}", log.display(), workshop.cache_bytes(spec));
    if spec.discard {
        options.push_str(",discard");
    }
    if let Some(threads) = spec.threads {
        options.push_str(&format!(",threads={threads}"));
    }
    if let Some(transport) = &spec.transport {
        options.push_str(&format!(",transport={transport}"));
    }
    let mut command = Command::new(program);
    command.args(["mount", "--report", "-o", &options, "--"]).arg(&image).arg(&dir);
    command.current_dir("/").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server::start(command, dir)?;
    server.wait_for_report()?;
    if let Some(unit) = spec.untorn {
        // Files inherit it. Given to an open file it would come too late for how the kernel opens that.
        let value = unit.to_string();
        rustix::fs::setxattr(&server.dir, UNTORN, value.as_bytes(), rustix::fs::XattrFlags::empty())
            .map_err(|error| Error::os(format!("setting {UNTORN}={unit} on the mount"), &error.into()))?;
    }
    Ok(Box::new(server.into_system().with_requests()))
}

/// Mounts a server that answers from memory.
pub fn set_up_null(spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    let program = can_serve(workshop)?;
    let dir = mount_point(workshop, "fuse-null")?;
    let mut command = Command::new(program);
    command.arg("bench-null").args(["--size", &workshop.file_bytes.to_string()]);
    if let Some(threads) = spec.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(transport) = &spec.transport {
        command.args(["--transport", transport]);
    }
    command.arg(&dir).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server::start(command, dir)?;
    server.wait_for_mount(workshop)?;
    Ok(Box::new(server.into_system()))
}

fn can_serve<'a>(workshop: &Workshop<'a>) -> Outcome<&'a Path> {
    let program = workshop
        .program
        .ok_or_else(|| skipped("the program quire, which would serve it, is not beside this one"))?;
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    opened.map(|_| program).map_err(|error| skipped(format!("a mount needs /dev/fuse: {error}")))
}

fn mount_point(workshop: &Workshop<'_>, name: &str) -> Outcome<PathBuf> {
    let dir = workshop.directory.join(name);
    std::fs::create_dir_all(&dir).map_err(os("making the mount point"))?;
    Ok(mount::resolve(&dir)?)
}

/// A server process and its mount.
struct Server {
    child: Child,
    dir: PathBuf,
    ended: bool,
}

impl Server {
    fn start(mut command: Command, dir: PathBuf) -> Outcome<Server> {
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: between fork and exec only a system call with plain numbers.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let child = command.spawn().map_err(os("starting a server"))?;
        Ok(Server { child, dir, ended: false })
    }

    /// `quire mount --report` says in one line how it went.
    fn wait_for_report(&mut self) -> Outcome {
        let mut line = String::new();
        if let Some(pipe) = self.child.stdout.take() {
            BufReader::new(pipe).read_line(&mut line).map_err(os("waiting for the server"))?;
        }
        let report: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if report.get("ready").is_some() {
            return Ok(());
        }
        let message = report["failed"]["message"].as_str().unwrap_or("the server ended before it was ready");
        Err(failed(message))
    }

    fn wait_for_mount(&mut self, workshop: &Workshop<'_>) -> Outcome {
        let start = Instant::now();
        while mount::mounted_at(&self.dir)?.is_none() {
            workshop.surroundings.interrupt.check()?;
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(format!("the server ended before it was ready ({status})")));
            }
            if start.elapsed() > PATIENCE {
                return Err(failed("the server did not mount"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::metadata(&self.dir).map_err(|error| Trouble::Failed(Error::os("the mount", &error)))?;
        Ok(())
    }

    fn into_system(self) -> System {
        let (dir, source) = (self.dir.clone(), Source::Process(self.child.id()));
        System::new(dir, Some(source), Box::new(self))
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let start = Instant::now();
        while matches!(mount::mounted_at(&self.dir), Ok(Some(_))) {
            let how = if start.elapsed() < Duration::from_secs(5) { Unmount::Plain } else { Unmount::Detach };
            match mount::unmount(&self.dir, how) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    std::thread::sleep(Duration::from_millis(50))
                }
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                _ => {}
            }
        }
        if self.ends_within(PATIENCE) {
            return Ok(());
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        )
        .map_err(|error| Error::os("ending the server", &error.into()))?;
        if !self.ends_within(Duration::from_secs(10)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        Err(Error::new(ErrorKind::Busy, "the server did not end by itself after the unmount"))
    }

    fn ends_within(&mut self, patience: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Behind for Server {
    fn take_down(mut self: Box<Self>) -> Result<()> {
        self.end()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bench: {error}");
        }
    }
}
