//! A mount of a volume in memory, and stock SQLite on it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire::backend::MemoryBackend;
use quire::{FormatOptions, VolumeOptions};
use quire_fuse::mount::{self, Unmount};
use quire_fuse::{MountFlags, ServeOptions, Session, TransportChoice, signals};

/// What every Python program here starts with. `stock` opens a database with the default VFS of SQLite.
pub(super) const PRELUDE: &str = r#"
import os, signal, sqlite3, subprocess, sys
extension, folder = sys.argv[1:3]
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(extension)
loader.close()
path = os.path.join(folder, "test.db")
def quire(path=path, **options):
    return sqlite3.connect(path, isolation_level=None, timeout=0, **options)
def stock(path=path):
    return sqlite3.connect("file:" + path + "?vfs=unix", uri=True, isolation_level=None, timeout=0)
def counts(db, schema="main"):
    words = db.execute("PRAGMA %s.quire_groups" % schema).fetchone()[0].replace(";", "").split()
    return int(words[1]), int(words[4])
def ok(db):
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
def sure(condition, *what):
    if not condition:
        raise AssertionError(*what)
def journal(path=path):
    return os.path.exists(path + "-journal")
"#;

/// The extension as cargo built it for this test.
pub(super) fn extension() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let file = program.with_file_name("libquire_sqlite.so");
    assert!(file.exists(), "{} is not built", file.display());
    file
}

pub(super) struct Mounted {
    folder: tempfile::TempDir,
    server: Option<std::thread::JoinHandle<quire::Result<()>>>,
}

/// Debian's, which loads extensions; pythons of other origin may not.
pub(super) const PYTHON: &str = "/usr/bin/python3";

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether there are a Python and a shell that load extensions; says so if not.
pub(super) fn has_python() -> bool {
    let loads = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
    let found = has("sqlite3")
        && Command::new(PYTHON).args(["-c", loads]).status().is_ok_and(|status| status.success());
    if !found {
        eprintln!("\n*** SKIPPED: needs sqlite3, and a python3 that loads extensions into SQLite ***\n");
    }
    found
}

impl Mounted {
    pub(super) fn new() -> Option<Mounted> {
        let is_root = std::fs::metadata("/proc/self")
            .is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0);
        if !is_root || !Path::new("/dev/fuse").exists() {
            eprintln!("\n*** SKIPPED: needs root and /dev/fuse ***\n");
            return None;
        }
        if !has_python() {
            return None;
        }
        signals::block();
        let backend = Arc::new(MemoryBackend::new(64 << 10));
        FormatOptions::new().format_backend(backend.clone()).unwrap();
        let volume = VolumeOptions::new().open_backend(backend).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = ServeOptions {
            flags: MountFlags { source: "test".into(), allow_other: true, ..MountFlags::default() },
            transport: TransportChoice::Device,
            ..ServeOptions::default()
        };
        let session = Session::mount(volume, folder.path(), &options).unwrap();
        let server = std::thread::spawn(move || session.run());
        Some(Mounted { folder, server: Some(server) })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a Python program with the extension loaded.
    pub(super) fn python(&self, program: &str) {
        python(self.path(), program, &[]);
    }
}

/// Runs a Python program with the extension loaded, and more variables in its environment.
pub(super) fn python(folder: &Path, program: &str, variables: &[(&str, &str)]) {
    let output = Command::new(PYTHON)
        .arg("-c")
        .arg(format!("{PRELUDE}{program}"))
        .args([extension().as_os_str(), folder.as_os_str()])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    check(&output, program);
}

/// Panics if a program has failed.
pub(super) fn check(output: &Output, program: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}\n{}\n{text}", output.status);
}

/// Runs the shell `sqlite3`; returns what it printed.
pub(super) fn shell(script: &str) -> String {
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{errors}");
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let dir = mount::resolve(self.path()).unwrap();
        if std::thread::panicking() {
            let _ = mount::unmount(&dir, Unmount::Detach);
            return;
        }
        let start = Instant::now();
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
