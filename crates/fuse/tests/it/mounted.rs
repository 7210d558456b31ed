//! A volume in memory on a real mount, and what tests do with it.
//!
//! Needs root and `/dev/fuse`; says so and gives no mount where they are missing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quire::backend::MemoryBackend;
use quire::{FormatOptions, Volume, VolumeOptions};
use quire_fuse::mount::{self, Unmount};
use quire_fuse::{CacheMode, MountFlags, ServeOptions, Session, TransportChoice, signals};
use testkit::RingSwitch;

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("\n*** SKIPPED: needs root and /dev/fuse ***\n");
    }
    can
}

pub(super) struct Mounted {
    /// As it was mounted.
    pub(super) cache: CacheMode,
    directory: tempfile::TempDir,
    server: Option<std::thread::JoinHandle<quire::Result<()>>>,
}

impl Mounted {
    pub(super) fn new(cache: CacheMode, transport: TransportChoice) -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let backend = Arc::new(MemoryBackend::new(64 << 10));
        FormatOptions::new().format_backend(backend.clone()).unwrap();
        let volume = VolumeOptions::new().open_backend(backend).unwrap();
        Mounted::serve(volume, ServeOptions { cache, transport, ..ServeOptions::default() })
    }

    pub(super) fn serve(volume: Volume, options: ServeOptions) -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        signals::block();
        let transport = options.transport;
        let flags = MountFlags { source: "test".into(), allow_other: true, ..options.flags };
        let options = ServeOptions { flags, ..options };
        let directory = tempfile::tempdir().unwrap();
        let switch = (transport == TransportChoice::Ring).then(RingSwitch::on);
        if matches!(switch, Some(None)) {
            eprintln!(
                "\n*** SKIPPED: this kernel has no FUSE over io_uring, or it may not be turned on ***\n"
            );
            return None;
        }
        let session = Session::mount(volume, directory.path(), &options).unwrap();
        drop(switch);
        let server = std::thread::spawn(move || session.run());
        Some(Mounted { cache: options.cache, directory, server: Some(server) })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Whether the server knows at once what is written, and so of holes and of blocks in use.
    pub(super) fn is_told_at_once(&self) -> bool {
        self.cache != CacheMode::Writeback
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let dir = mount::resolve(self.directory.path()).unwrap();
        if std::thread::panicking() {
            let _ = mount::unmount(&dir, Unmount::Detach);
            return;
        }
        // A program that another test of this process is just starting has all descriptors until it runs.
        let start = std::time::Instant::now();
        while let Err(error) = mount::unmount(&dir, Unmount::Plain) {
            if error.kind() != quire::ErrorKind::Busy || start.elapsed() > Duration::from_secs(10) {
                let _ = mount::unmount(&dir, Unmount::Detach);
                panic!("{error}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.take().unwrap().join().unwrap().unwrap();
    }
}

pub(super) const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Device, TransportChoice::Ring];

pub(super) fn on_all(test: impl Fn(&Mounted)) {
    for transport in TRANSPORTS {
        for cache in [CacheMode::Engine, CacheMode::Kernel, CacheMode::Writeback, CacheMode::Auto] {
            if (cache, transport) == (CacheMode::Auto, TransportChoice::Ring) {
                continue;
            }
            let Some(mounted) = Mounted::new(cache, transport) else { return };
            test(&mounted);
        }
    }
}

pub(super) fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

pub(super) fn code<T>(outcome: io::Result<T>) -> i32 {
    outcome.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

/// Runs `body` in a child process as an unprivileged user; returns its exit status.
pub fn as_nobody(script: &str, path: &Path) -> i32 {
    let status = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script, "sh"])
        .arg(path)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    status.code().unwrap_or(-1)
}

pub(super) struct Map {
    start: *mut u8,
    length: usize,
}

impl Map {
    pub(super) fn new(file: &File, length: usize, flags: i32) -> Map {
        // SAFETY: a new mapping of an open file, length not zero; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Map { start: start.cast(), length }
    }
    pub(super) fn put(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.length);
        // SAFETY: inside the mapping, which lives as long as self; no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.add(at), data.len()) }
    }
    pub(super) fn get(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.length);
        let mut data = vec![0; length];
        // SAFETY: as in put.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), data.as_mut_ptr(), length) }
        data
    }
    pub(super) fn sync(&self) {
        // SAFETY: the whole mapping.
        assert_eq!(unsafe { libc::msync(self.start.cast(), self.length, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, used no more.
        unsafe {
            libc::munmap(self.start.cast(), self.length);
        }
    }
}

/// Names the file that a program of [`run_program`] works on.
const PROGRAM_FILE: &str = "QUIRE_TEST_FILE";

/// Runs an ignored test of this binary as a program of its own, on a file of a mount.
///
/// So does whoever maps a file. A fault on a mapping waits for the server while it holds the address space's
/// lock, and a server in the same process may want that lock (a thread that is started, memory that is
/// mapped, a buffer that was given back and is filled again): both would wait for ever, and so did, now and
/// then, tests that mapped files of a server beside them.
pub(super) fn run_program(test: &str, file: &Path) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PROGRAM_FILE, file)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// The file that this program was started with.
pub(super) fn program_file() -> PathBuf {
    PathBuf::from(std::env::var_os(PROGRAM_FILE).expect("a test starts this program"))
}
