//! RocksDB on a volume: Debian's `db_bench` with the plugin preloaded, and writers that are killed.
//!
//! The plugin is built as a user builds it. Longer runs are `scripts/rocksdb`.

use crate::support::{here, installed, library, run_page, succeed};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Where the plugin was built, once for this program; `None` where RocksDB is not installed.
fn plugin() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if !Path::new("/usr/include/rocksdb/version.h").exists() || !installed("g++") {
            println!("SKIPPED: librocksdb-dev or g++ is not installed");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let mut build = Command::new(here().join("../../plugins/rocksdb/build"));
        build.arg(directory.path()).env("PKG_CONFIG_PATH", library().join("lib/pkgconfig"));
        succeed(build.env("CXX", "g++"));
        Some(directory)
    });
    built.as_ref().map(tempfile::TempDir::path)
}

fn with_library(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library().join("lib"));
    command
}

fn db_bench(plugin: &Path, uri: &str, options: &[&str]) -> Command {
    let mut command = with_library("db_bench");
    command.env("LD_PRELOAD", plugin.join("libquire-rocksdb.so"));
    command.arg(format!("--fs_uri={uri}")).args([
        "--db=/bench",
        "--value_size=400",
        "--compression_type=none",
    ]);
    command.args(options);
    command
}

#[test]
fn db_bench_runs_on_a_volume() {
    let Some(plugin) = plugin() else { return };
    if !installed("db_bench") {
        println!("SKIPPED: rocksdb-tools is not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let uri = format!("quire://{}?cache:32m&size:256m", directory.path().join("image").display());
    let fill =
        ["--benchmarks=fillseq,overwrite,readrandom,seekrandom", "--num=3000", "--threads=4", "--sync=1"];
    let said = succeed(&mut db_bench(plugin, &uri, &fill));
    assert!(said.contains("(3000 of 3000 found)"), "{said}");
    // Another process finds it, with direct I/O too, and compacts it.
    for more in [&["--use_direct_reads=1", "--use_direct_io_for_flush_and_compaction=1"][..], &[]] {
        let mut again =
            vec!["--use_existing_db=1", "--benchmarks=readrandom,overwrite,compact,verifychecksum,readseq"];
        again.extend(["--num=3000", "--threads=1"]);
        again.extend(more);
        let said = succeed(&mut db_bench(plugin, &uri, &again));
        assert!(said.contains("(3000 of 3000 found)"), "{said}");
    }
    // Every path went to the volume.
    assert!(!Path::new("/bench").exists());
    let names: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory").collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn the_page_runs_as_it_stands() {
    if plugin().is_none() || !installed("db_bench") {
        println!("SKIPPED: rocksdb-tools is not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let said = run_page("rocksdb.md", directory.path(), &[]);
    assert!(said.contains("readrandom") && directory.path().join("bench.img").exists(), "{said}");
}

#[test]
fn addresses_that_do_not_fit_are_refused_with_a_reason() {
    let Some(plugin) = plugin() else { return };
    if !installed("db_bench") {
        println!("SKIPPED: rocksdb-tools is not installed");
        return;
    }
    for (uri, reason) in [
        ("quire:///no/such/image", "/no/such/image"),
        ("quire://", "quire://IMAGE"),
        ("quire://image?cache:many", "is no number of bytes"),
        ("quire://image?speed:high", "the options of an address are"),
    ] {
        let mut command = db_bench(plugin, uri, &["--benchmarks=fillseq", "--num=1"]);
        let output = command.output().expect("db_bench runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{uri}: {}\n{said}", output.status);
    }
}

/// Builds a program of `tests/c` that uses the plugin, and gives what it says of a new volume.
fn said_by(plugin: &Path, name: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join(name);
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.arg(here().join("tests/c").join(name).with_extension("cc"));
    compiler.arg("-I").arg(here().join("../../plugins/rocksdb"));
    compiler.arg("-I").arg(library().join("include")).arg(plugin.join("libquire-rocksdb.so"));
    compiler.arg("-L").arg(library().join("lib")).args(["-lquire", "-lrocksdb", "-lpthread", "-ldl"]);
    succeed(&mut compiler);
    let uri = format!("quire://{}?cache:16m&size:64m", directory.path().join("image").display());
    succeed(with_library(&program).arg(uri))
}

/// The last user of a volume closes it after all have forgotten it. Where that took long, because of a slow
/// device or much data, who opened it meanwhile was told that it was busy.
#[test]
fn a_volume_is_opened_again_while_its_last_user_closes_it() {
    let Some(plugin) = plugin() else { return };
    assert_eq!(said_by(plugin, "reopen"), "both opened it\n");
}

/// A log behind damaged metadata was `Corruption` to RocksDB. Its recovery takes that for the torn end of the
/// log: the database opened without the log's writes, and removed the log. What cannot be read is an I/O
/// error.
#[test]
fn a_database_whose_log_cannot_be_read_does_not_open() {
    let Some(plugin) = plugin() else { return };
    assert_eq!(said_by(plugin, "damaged_log"), "an I/O error\nvalue\n");
}

#[test]
fn nothing_acknowledged_is_lost_when_writers_are_killed() {
    let Some(plugin) = plugin() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let check = |image: &str, arguments: &[&str]| {
        let uri = format!("quire://{}?cache:32m&size:512m", directory.path().join(image).display());
        let mut command = with_library(plugin.join("killcheck"));
        command.arg(uri).args(arguments);
        command
    };
    let said = succeed(&mut check("image", &["5"]));
    assert!(said.starts_with("5 kills, ") && said.ends_with("none lost\n"), "{said}");
    for none in ["0", "-1", "many", "1,000"] {
        let output = check("none", &[none]).output().expect("killcheck runs");
        assert_eq!(output.status.code(), Some(2), "{none} kills: {output:?}");
    }
    // The instrument sees a loss.
    let output = check("unsynced", &["20", "1", "unsynced"]).output().expect("killcheck runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("was acknowledged"), "{}\n{said}", output.status);
}

/// A killed `killcheck` left its writer behind, which wrote for ever.
#[test]
fn a_writer_ends_with_the_check() {
    let Some(plugin) = plugin() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let uri = format!("quire://{}?cache:32m&size:512m", directory.path().join("image").display());
    let mut check =
        with_library(plugin.join("killcheck")).args([&uri, "1000"]).spawn().expect("killcheck runs");
    let children = format!("/proc/{0}/task/{0}/children", check.id());
    let child = eventually("it has a child", || {
        let children = std::fs::read_to_string(&children).expect("its children");
        children.split_whitespace().next().map(str::to_owned)
    });
    check.kill().expect("a signal");
    check.wait().expect("its end");
    eventually("the child ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

/// What `found` gives within 10 s.
#[track_caller]
fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
