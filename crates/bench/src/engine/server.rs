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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to be ready, to be unmounted, and to close.
const PATIENCE: Duration = Duration::from_secs(60);

/// The property of files whose units a crash leaves whole, as an attribute.
pub const UNTORN: &str = "user.quire.untorn";

/// Formats the image and mounts it.
pub fn set_up_mount(spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    let program = can_serve(workshop)?;
    let image = std::path::absolute(workshop.image()?.path()).map_err(os("finding the image"))?;
    FormatOptions::new().force(true).format(&image)?;
    let dir = mount_point(workshop, "mount")?;
    let log = workshop.directory.join("server.log").display().to_string();
    if log.contains(',') {
        return Err(failed(format!("the engine mount takes no --dir with a comma in its path: {log}")));
    }
    let mut options = format!("log={log},cache_size={}", workshop.cache_bytes(spec));
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
    server.wait_for_report(workshop)?;
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
    fn wait_for_report(&mut self, workshop: &Workshop<'_>) -> Outcome {
        let mut line = String::new();
        if let Some(pipe) = self.child.stdout.take() {
            self.wait(workshop, |_| {
                let mut report = [PollFd::new(&pipe, PollFlags::IN)];
                match poll(&mut report, Some(&Timespec::default())) {
                    Err(error) => Err(os("waiting for the server")(error.into()).into()),
                    Ok(count) => Ok(count > 0),
                }
            })?;
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
        self.wait(workshop, |server| {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(failed(format!("the server ended before it was ready ({status})")));
            }
            Ok(mount::mounted_at(&server.dir)?.is_some())
        })?;
        std::fs::metadata(&self.dir).map_err(|error| Trouble::Failed(Error::os("the mount", &error)))?;
        Ok(())
    }

    /// Waits until the server is ready. Asks it to end if it is late, or at Ctrl-C.
    fn wait(
        &mut self,
        workshop: &Workshop<'_>,
        mut is_ready: impl FnMut(&mut Server) -> Outcome<bool>,
    ) -> Outcome {
        let start = Instant::now();
        while !is_ready(self)? {
            let mut outcome = workshop.surroundings.interrupt.check();
            if start.elapsed() > PATIENCE {
                outcome = Err(failed(format!("the server was not ready within {} s", PATIENCE.as_secs())));
            }
            if outcome.is_err() {
                self.ask_to_end()?;
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn ask_to_end(&self) -> Result<()> {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        )
        .map_err(|error| Error::os("ending the server", &error.into()))
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
            if let Err(error) = mount::unmount(&self.dir, how) {
                if start.elapsed() > PATIENCE {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        match self.ends_within(PATIENCE)? {
            Some(status) if status.success() => return Ok(()),
            // What was written may not have reached the volume: the figures are not those of a whole run.
            Some(status) => return Err(Error::new(ErrorKind::Io, format!("the server ended with {status}"))),
            None => self.ask_to_end()?,
        }
        if self.ends_within(Duration::from_secs(10))?.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        Err(Error::new(ErrorKind::Busy, "the server did not end by itself after the unmount"))
    }

    fn ends_within(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            let status = self.child.try_wait().map_err(os("waiting for the server's end"))?;
            if status.is_some() || start.elapsed() > patience {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn server(dir: &Path, script: &str) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        Server::start(command, dir.to_owned()).unwrap()
    }

    /// Any end passed for success: a server that could not write everything at the unmount had good figures.
    #[test]
    fn a_server_that_fails_at_the_end_is_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        server(directory.path(), "exit 0").end().unwrap();
        let error = server(directory.path(), "exit 5").end().unwrap_err();
        assert!(error.to_string().contains("exit status: 5"), "{error}");
    }

    /// Nothing ended the wait for a report but the report, or the server's end.
    #[test]
    fn the_wait_for_a_report_ends_with_an_interrupt() {
        use crate::drive::Surroundings;
        let directory = tempfile::tempdir().unwrap();
        let (interrupt, progress) =
            (crate::interrupt::Interrupt::none(), crate::progress::Progress::hidden());
        interrupt.raise();
        let workshop = Workshop {
            directory: directory.path(),
            image: None,
            program: None,
            file_bytes: 0,
            files: 0,
            device_bytes: 0,
            surroundings: &Surroundings { interrupt: &interrupt, progress: &progress },
        };
        let mut silent = server(directory.path(), "exec sleep 30");
        let outcome = silent.wait_for_report(&workshop);
        assert!(matches!(outcome, Err(Trouble::Interrupted)), "{outcome:?}");
        // It was asked to end, too.
        assert!(silent.end().unwrap_err().to_string().contains("SIGTERM"));
    }
}
