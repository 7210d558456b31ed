//! Real programs work on a real mount, and what they wrote is there after an unmount and a mount.

mod common;

use common::{TRANSPORTS, Volume, can_mount, has, run};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const TREE_FILES: usize = 20_000;

/// Source trees that a machine with a Rust toolchain has.
fn source_trees() -> Vec<PathBuf> {
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    [
        cargo.join("registry/src"),
        PathBuf::from(sysroot.trim()).join("share"),
        PathBuf::from("/usr/include"),
        PathBuf::from("/usr/share"),
    ]
    .into_iter()
    .filter(|path| path.is_dir())
    .collect()
}

/// Regular files below a directory, relative, with a checksum each.
fn checksums(root: &Path, limit: usize) -> BTreeMap<PathBuf, (u64, u32)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap()).collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                if found.len() == limit {
                    return found;
                }
                let mut bytes = Vec::new();
                std::fs::File::open(entry.path()).unwrap().read_to_end(&mut bytes).unwrap();
                let relative = entry.path().strip_prefix(root).unwrap().to_owned();
                found.insert(relative, (bytes.len() as u64, crc32c::crc32c(&bytes)));
            }
        }
    }
    found
}

#[test]
fn a_tree_of_20000_files_survives_a_remount() {
    if !can_mount("a_tree_of_20000_files_survives_a_remount") {
        return;
    }
    let mut volume = Volume::new("8G");
    volume.mount();
    let mut wanted = BTreeMap::new();
    for (number, tree) in source_trees().into_iter().enumerate() {
        let files = checksums(&tree, TREE_FILES - wanted.len());
        let target = volume.path(&format!("tree{number}"));
        for (relative, sum) in files {
            let to = target.join(&relative);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(tree.join(&relative), &to).unwrap();
            wanted.insert(PathBuf::from(format!("tree{number}")).join(relative), sum);
        }
        if wanted.len() >= TREE_FILES {
            break;
        }
    }
    assert!(wanted.len() >= TREE_FILES, "this machine has only {} files to copy", wanted.len());
    volume.unmount();
    volume.check();
    volume.mount();
    let found = checksums(&volume.mountpoint(), usize::MAX);
    assert!(found == wanted, "the copies differ from their sources");
    std::fs::remove_dir_all(volume.path("tree0")).unwrap();
    volume.unmount();
    volume.check();
}

#[test]
fn git_and_cargo_work() {
    if !can_mount("git_and_cargo_work") || !has("git", "git_and_cargo_work") {
        return;
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    if !project.join(".git").exists() {
        eprintln!("\n*** SKIPPED git_and_cargo_work: this is no git checkout ***\n");
        return;
    }
    let mut volume = Volume::new("4G");
    volume.mount();
    let clone = volume.path("clone");
    run(Command::new("git")
        .args(["-c", "safe.directory=*", "clone", "--quiet", "--no-local"])
        .arg(&project)
        .arg(&clone));
    run(Command::new("git")
        .args(["-c", "safe.directory=*", "fsck", "--full", "--strict"])
        .current_dir(&clone));
    assert_eq!(
        run(Command::new("git")
            .args(["-c", "safe.directory=*", "status", "--porcelain"])
            .current_dir(&clone)),
        ""
    );
    // A real compiler with its target directory on the mount: many small files, mmap of libraries,
    // executables run.
    run(Command::new(env!("CARGO"))
        .args(["test", "--offline", "--locked", "--package", "quire-base", "--lib"])
        .env("CARGO_TARGET_DIR", clone.join("target"))
        .env_remove("RUSTFLAGS")
        .current_dir(&clone));
    volume.unmount();
    volume.check();
    volume.mount();
    run(Command::new("git")
        .args(["-c", "safe.directory=*", "fsck", "--full", "--strict"])
        .current_dir(&clone));
    volume.unmount();
}

#[test]
fn sqlite_with_several_writers() {
    TRANSPORTS.into_iter().for_each(sqlite_with_several_writers_on);
}

fn sqlite_with_several_writers_on(transport: &'static str) {
    if !can_mount("sqlite_with_several_writers") || !has("sqlite3", "sqlite_with_several_writers") {
        return;
    }
    let mut volume = Volume::new("1G");
    volume.set_transport(transport);
    volume.mount();
    for mode in ["DELETE", "WAL"] {
        let database = volume.path(&format!("{mode}.db"));
        let shell = |sql: String| {
            let mut command = Command::new("sqlite3");
            command.args(["-cmd", ".timeout 60000"]).arg(&database).arg(sql);
            command
        };
        run(&mut shell(format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(writer INT, n INT, body BLOB, PRIMARY KEY(writer, n));"
        )));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut sql = String::new();
                for n in 0..60 {
                    sql.push_str(&format!(
                        "BEGIN IMMEDIATE; INSERT INTO t VALUES({writer},{n},randomblob({})); COMMIT;",
                        100 + n * 37
                    ));
                }
                shell(sql).spawn().unwrap()
            })
            .collect();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success(), "a writer failed in {mode} mode");
        }
        assert_eq!(run(&mut shell("SELECT count(*) FROM t;".into())).trim(), "240");
        assert_eq!(run(&mut shell("PRAGMA integrity_check;".into())).trim(), "ok");
    }
    volume.unmount();
    volume.check();
    volume.mount();
    for mode in ["DELETE", "WAL"] {
        let database = volume.path(&format!("{mode}.db"));
        let check = run(Command::new("sqlite3")
            .arg(&database)
            .arg("PRAGMA integrity_check; SELECT count(*) FROM t;"));
        assert_eq!(check, "ok\n240\n", "{mode}");
    }
    volume.unmount();
}

#[test]
fn fio_verifies_buffered_and_direct() {
    TRANSPORTS.into_iter().for_each(fio_verifies_buffered_and_direct_on);
}

fn fio_verifies_buffered_and_direct_on(transport: &'static str) {
    if !can_mount("fio_verifies_buffered_and_direct") || !has("fio", "fio_verifies_buffered_and_direct") {
        return;
    }
    let mut volume = Volume::new("2G");
    volume.set_transport(transport);
    volume.mount();
    for (name, direct, engine) in
        [("buffered", "0", "psync"), ("direct", "1", "io_uring"), ("mapped", "0", "mmap")]
    {
        run(Command::new("fio").args([
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--blockalign=4k",
            "--size=64m",
            "--numjobs=2",
            "--iodepth=8",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            // Else its state stays in the current directory.
            "--verify_state_save=0",
            "--end_fsync=1",
            "--output-format=terse",
            &format!("--name={name}"),
            &format!("--direct={direct}"),
            &format!("--ioengine={engine}"),
            &format!("--directory={}", volume.mountpoint().display()),
        ]));
    }
    volume.unmount();
    volume.check();
}

#[test]
fn a_full_volume_recovers() {
    TRANSPORTS.into_iter().for_each(a_full_volume_recovers_on);
}

fn a_full_volume_recovers_on(transport: &'static str) {
    if !can_mount("a_full_volume_recovers") {
        return;
    }
    let mut volume = Volume::new("64M");
    volume.set_transport(transport);
    volume.mount();
    let keep = common::pattern(7, 300_000);
    std::fs::write(volume.path("keep"), &keep).unwrap();
    for round in 0..3 {
        let mut full = false;
        for number in 0..200 {
            if std::fs::write(volume.path(&format!("fill{number}")), common::pattern(number, 1 << 20))
                .is_err()
            {
                full = true;
                break;
            }
        }
        assert!(full, "200 MiB do not fit 64 MiB");
        // Small files too, until not even one block is left.
        for number in 0.. {
            if std::fs::write(volume.path(&format!("small{number}")), b"x").is_err() {
                break;
            }
            assert!(number < 100_000);
        }
        assert_eq!(std::fs::read(volume.path("keep")).unwrap(), keep, "round {round}");
        // What exists can still be overwritten in place.
        let file = std::fs::File::options().write(true).open(volume.path("keep")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &keep[..8192], 0).unwrap();
        file.sync_all().unwrap();
        // And everything else deleted.
        for entry in std::fs::read_dir(volume.mountpoint()).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("keep") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    std::fs::write(volume.path("after"), common::pattern(1, 20 << 20)).unwrap();
    volume.unmount();
    volume.check();
    volume.mount();
    assert_eq!(std::fs::read(volume.path("keep")).unwrap(), keep);
    assert_eq!(std::fs::read(volume.path("after")).unwrap(), common::pattern(1, 20 << 20));
    volume.unmount();
}
