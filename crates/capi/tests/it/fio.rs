//! The fio engine, where `plugins/fio/source` has put fio's sources below `target/fio` (`scripts/test` has it
//! do so).

use crate::support::{here, installed, library, run_page, succeed};
use std::path::PathBuf;
use std::process::Command;

/// Configured sources of fio.
fn sources() -> Option<PathBuf> {
    let directory = std::fs::read_dir(here().join("../../target/fio")).ok()?;
    let mut found = directory.filter_map(|entry| Some(entry.ok()?.path()));
    found.find(|path| path.join("config-host.h").exists())
}

#[test]
fn fio_measures_a_volume() {
    let Some(sources) = sources().filter(|_| installed("fio") && installed("gcc")) else {
        println!("SKIPPED: fio, gcc or fio's sources are missing (plugins/fio/source target/fio)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut build = Command::new(here().join("../../plugins/fio/build"));
    build.arg(directory.path()).arg(sources).env("PKG_CONFIG_PATH", library().join("lib/pkgconfig"));
    succeed(&mut build);
    let fio = |options: &str| {
        let mut command = Command::new("fio");
        command.current_dir(directory.path()).env("LD_LIBRARY_PATH", library().join("lib"));
        command.args(["--ioengine=external:./libquire-fio.so", "--image=image", "--image_size=256m"]);
        command.args(["--cache=32m", "--name=job", "--size=8m", "--bs=4k"]).args(options.split(' '));
        command
    };
    for options in [
        "--thread --rw=randwrite --fdatasync=10 --number_ios=500",
        "--thread --rw=randrw --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1",
        "--thread --rw=randwrite --iodepth=16 --numjobs=3 --fsync=50 --verify=crc32c --verify_fatal=1",
        "--thread --rw=randread --iodepth=8 --numjobs=2 --number_ios=1000",
        "--thread --rw=randtrim --number_ios=100 --overwrite=1",
    ] {
        let said = succeed(&mut fio(options));
        assert!(said.contains("ioengine=quire") && said.contains("err= 0"), "{options}: {said}");
    }
    let output = fio("--rw=read").output().expect("fio runs");
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("give --thread"), "{said}");
}

#[test]
fn the_page_runs_as_it_stands() {
    let Some(sources) = sources().filter(|_| installed("fio") && installed("gcc")) else {
        println!("SKIPPED: fio, gcc or fio's sources are missing (plugins/fio/source target/fio)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let sources = sources.to_str().expect("UTF-8");
    let replaced = [("plugins/fio/source target/fio", "true"), ("target/fio/fio-*", sources)];
    let said = run_page("fio.md", directory.path(), &replaced);
    assert!(said.contains("ioengine=quire") && said.contains("err= 0"), "{said}");
}
