//! A real volume on a real mount, for tests that run real programs: set up, found again after a crash,
//! cleaned up whatever happens.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::RingSwitch;

pub mod place;

pub const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

/// True if this machine can mount; else says loudly that the test skips.
pub fn can_mount(test: &str) -> bool {
    let fuse = Path::new("/dev/fuse").exists();
    let root = rustix::process::geteuid().is_root();
    if !(fuse && root) {
        eprintln!("\n*** SKIPPED {test}: needs /dev/fuse (here: {fuse}) and root (here: {root}) ***\n");
    }
    fuse && root
}

/// True if a program is there; else says loudly that the test skips.
pub fn has(program: &str, test: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()));
    if !found {
        eprintln!("\n*** SKIPPED {test}: needs the program {program} ***\n");
    }
    found
}

/// Runs a program to its end; panics with its output if it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed: {}\n{}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Copies the program, for tests that need one of their own. Another program copies: if this one had the copy
/// open for writing while another thread's test starts a child, the child would have it open too, and the
/// copy could not be run.
pub fn copy_program(to: &Path) {
    run(Command::new("cp").arg(QUIRE).arg(to));
}

pub fn quire<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(QUIRE).args(arguments).stdin(Stdio::null()).output().expect("the program runs")
}

/// A volume in an image file, and where it is mounted.
pub struct Volume {
    directory: tempfile::TempDir,
    server: Option<Child>,
    options: String,
    /// How its requests travel; the ring where the kernel has it.
    transport: &'static str,
}

/// Both ways for requests to travel.
pub const TRANSPORTS: [&str; 2] = ["ring", "dev"];

impl Volume {
    /// A new volume of a size like `2G`, not mounted yet.
    pub fn new(size: &str) -> Volume {
        let directory =
            tempfile::Builder::new().prefix("quire-test-").tempdir().expect("a temporary directory");
        let volume = Volume { directory, server: None, options: String::new(), transport: "ring" };
        std::fs::create_dir(volume.mountpoint()).unwrap();
        let made = quire(&["mkfs".as_ref(), "--size".as_ref(), OsStr::new(size), volume.image().as_os_str()]);
        assert!(made.status.success(), "mkfs: {}", text(&made));
        volume
    }

    /// Mount options from now on.
    pub fn with_options(mut self, options: &str) -> Volume {
        self.options = options.to_owned();
        self
    }

    /// The transport from the next mount on.
    pub fn set_transport(&mut self, transport: &'static str) {
        self.transport = transport;
    }

    pub fn image(&self) -> PathBuf {
        self.directory.path().join("volume.img")
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mountpoint().join(name)
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("server.log")
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Mounts with the server as a child, so that it can be killed; gives how long it took.
    pub fn mount(&mut self) -> Duration {
        assert!(self.server.is_none(), "mounted already");
        let started = Instant::now();
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(QUIRE);
        command.arg("mount").arg("--foreground");
        let switch = (self.transport == "ring").then(RingSwitch::on).flatten();
        // Without the switch the ring may be there all the same.
        let transport = if switch.is_none() && self.transport == "ring" { "auto" } else { self.transport };
        command.args(["-o", &format!("transport={transport},{}", self.options)]);
        command.arg(self.image()).arg(self.mountpoint());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut server = command.spawn().expect("the server starts");
        while !is_mounted(&self.mountpoint()) {
            if let Some(status) = server.try_wait().unwrap() {
                panic!("the server ended with {status} before it mounted:\n{}", self.log_text());
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "no mount after a minute:\n{}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        // A first request shows that it is served, and that kernel and server have agreed on a transport.
        std::fs::metadata(self.mountpoint()).expect("the mount answers");
        drop(switch);
        self.server = Some(server);
        started.elapsed()
    }

    /// Unmounts through the program and waits for the server's end.
    pub fn unmount(&mut self) {
        let server = self.server.take().expect("mounted");
        let started = Instant::now();
        // Another test's thread may be between fork and exec, with this mount's descriptors in the child.
        let output = loop {
            let output = quire(&["umount".as_ref(), self.mountpoint().as_os_str()]);
            let busy = text(&output).contains("in use") || text(&output).contains("busy");
            if !busy || started.elapsed() > Duration::from_secs(10) {
                break output;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(output.status.success(), "umount: {}\n{}", text(&output), self.log_text());
        self.server = Some(server);
        self.wait_for_end();
    }

    /// Waits until the server of a mount that is gone has ended by itself.
    pub fn wait_for_end(&mut self) {
        let mut server = self.server.take().expect("mounted");
        let started = Instant::now();
        loop {
            if let Some(status) = server.try_wait().unwrap() {
                assert!(status.success(), "the server ended with {status}:\n{}", self.log_text());
                return;
            }
            if started.elapsed() > Duration::from_secs(60) {
                self.server = Some(server);
                panic!("the server lives on after umount");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server as a crash would, and clears the dead mount away.
    pub fn kill(&mut self) {
        self.crash();
        self.clear();
    }

    /// Kills the server as a crash would; the dead mount stays, and everything on it fails.
    pub fn crash(&mut self) {
        let mut server = self.server.take().expect("mounted");
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Clears a dead mount away.
    pub fn clear(&mut self) {
        detach(&self.mountpoint());
    }

    /// The server's process, if mounted.
    pub fn server_id(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Checks the unmounted volume; panics unless it is clean.
    pub fn check(&self) {
        let output = quire(&["fsck".as_ref(), self.image().as_os_str()]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "fsck: {}\nserver log:\n{}",
            text(&output),
            self.log_text()
        );
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        if is_mounted(&self.mountpoint()) {
            detach(&self.mountpoint());
        }
        if std::thread::panicking() {
            eprintln!("server log:\n{}", self.log_text());
        }
    }
}

pub fn is_mounted(path: &Path) -> bool {
    let path = path.to_string_lossy();
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path.as_ref()))
}

fn detach(path: &Path) {
    let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
}

/// A deterministic stream of test numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 17
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Bytes that a seed determines.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed ^ 0xabcd_ef01);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
