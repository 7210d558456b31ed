//! The server is killed at random moments while real programs work on the mount. Each time the volume mounts
//! again (the slowest time is printed; it is about 0.2 s on an idle machine), everything that returned from
//! fsync is there with the right content, and fsck is clean.

mod common;

use common::{Numbers, TRANSPORTS, Volume, can_mount, has, pattern};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KILLS: u64 = 20;

/// A mount that takes so long is taken for one that never ends.
const HANGS: Duration = Duration::from_secs(60);

/// What the witnesses of all rounds know of a file.
#[derive(Default)]
struct Known {
    /// The number whose fsync returned last.
    acknowledged: Option<u64>,
    /// Numbers begun since: each may have become durable before its fsync returned, or not.
    begun: Vec<u64>,
}

type Ledger = Mutex<BTreeMap<PathBuf, Known>>;

/// Writes files and fsyncs them until told to stop or failing, and keeps a ledger of what was begun and
/// acknowledged.
struct Witness {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Witness {
    fn start(directory: PathBuf, round: u64, ledger: Arc<Ledger>) -> Witness {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut number = round * 1_000_000;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    if write_one(&directory, number, &ledger).is_err() {
                        return;
                    }
                }
            })
        };
        Witness { stop, thread: Some(thread) }
    }

    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn length(number: u64) -> usize {
    (number as usize * 7919) % 50_000
}

/// Two ways to make a file durable, in turn: write and fdatasync; write, fsync, rename, fsync of the
/// directory.
fn write_one(directory: &Path, number: u64, ledger: &Ledger) -> std::io::Result<()> {
    let replaces = number.is_multiple_of(2);
    let path =
        directory.join(if replaces { format!("witness{}", number % 300) } else { format!("once{number}") });
    let data = pattern(number, length(number));
    ledger.lock().unwrap().entry(path.clone()).or_default().begun.push(number);
    if replaces {
        // Replaced as a whole: old or new, never between.
        let new = directory.join("witness.new");
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&data)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(directory)?.sync_all()?;
    } else {
        let mut file = std::fs::File::create(&path)?;
        file.write_all(&data)?;
        file.sync_data()?;
    }
    *ledger.lock().unwrap().get_mut(&path).unwrap() = Known { acknowledged: Some(number), begun: Vec::new() };
    Ok(())
}

fn verify(ledger: &Ledger) {
    for (path, known) in ledger.lock().unwrap().iter() {
        let Some(acknowledged) = known.acknowledged else { continue };
        let found =
            std::fs::read(path).unwrap_or_else(|error| panic!("{} was fsynced: {error}", path.display()));
        let allowed =
            std::iter::once(&acknowledged).chain(&known.begun).any(|&n| found == pattern(n, length(n)));
        assert!(allowed, "{} does not hold what was fsynced (number {acknowledged})", path.display());
    }
}

/// Kills the server under `work` many times. `work` starts a program on the mount.
fn killed_under(name: &str, size: &str, mut work: impl FnMut(&Volume, u64) -> Option<Child>) {
    if !can_mount(name) {
        return;
    }
    let mut volume = Volume::new(size);
    let ledger = Arc::new(Ledger::default());
    let mut numbers = Numbers(name.len() as u64 * 977);
    let mut slowest = Duration::ZERO;
    volume.mount();
    for round in 0..KILLS {
        let witness = Witness::start(volume.mountpoint(), round, ledger.clone());
        let child = work(&volume, round);
        std::thread::sleep(Duration::from_millis(100 + numbers.below(900)));
        // The witness ends before the dead mount goes: between two files it would not notice, and the next
        // one would be made, and acknowledged, in the directory below.
        volume.crash();
        witness.finish();
        volume.clear();
        if let Some(mut child) = child {
            // The programs have children of their own.
            let _ = rustix::process::kill_process_group(
                rustix::process::Pid::from_child(&child),
                rustix::process::Signal::KILL,
            );
            let _ = child.wait();
        }
        // Every fourth time a check of what the crash left, before any recovery touches it.
        if round % 4 == 0 {
            volume.check();
        }
        // Transports in turn.
        volume.set_transport(TRANSPORTS[round as usize % 2]);
        let took = volume.mount();
        slowest = slowest.max(took);
        assert!(took < HANGS, "round {round}: the mount took {took:?}");
        verify(&ledger);
        if round % 4 == 3 {
            volume.unmount();
            volume.check();
            volume.mount();
        }
    }
    volume.unmount();
    volume.check();
    let count = ledger.lock().unwrap().values().filter(|known| known.acknowledged.is_some()).count();
    println!("{name}: {count} files acknowledged, the slowest mount after a kill took {slowest:?}");
    assert!(count > 20, "only {count} files were acknowledged: the test tests nothing");
}

fn quiet(command: &mut Command) -> Option<Child> {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

#[test]
fn killed_while_a_tree_is_copied() {
    killed_under("killed_while_a_tree_is_copied", "4G", |volume, round| {
        quiet(Command::new("cp").args(["-a", "/usr/include"]).arg(volume.path(&format!("copy{round}"))))
    });
}

#[test]
fn killed_under_git() {
    if !has("git", "killed_under_git") {
        return;
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    killed_under("killed_under_git", "4G", |volume, round| {
        quiet(
            Command::new("git")
                .args(["-c", "safe.directory=*", "clone", "--quiet", "--no-local"])
                .arg(&project)
                .arg(volume.path(&format!("clone{round}"))),
        )
    });
}

#[test]
fn killed_under_fio() {
    if !has("fio", "killed_under_fio") {
        return;
    }
    killed_under("killed_under_fio", "2G", |volume, round| {
        quiet(Command::new("fio").args([
            "--name=kill",
            // Threads, not processes: fio's jobs leave their group, and would outlive the test.
            "--thread",
            "--rw=randrw",
            "--bs=4k",
            "--size=64m",
            "--numjobs=2",
            "--time_based",
            "--runtime=10",
            if round % 2 == 0 { "--direct=1" } else { "--fdatasync=8" },
            &format!("--directory={}", volume.mountpoint().display()),
        ]))
    });
}

#[test]
fn killed_on_a_full_volume() {
    killed_under("killed_on_a_full_volume", "96M", |volume, round| {
        let script = format!(
            "rm -f fill*; for n in $(seq 1 100); do head -c 2000000 /dev/urandom > fill{round}_$n || rm -f fill*_1*; done"
        );
        quiet(Command::new("sh").args(["-c", &script]).current_dir(volume.mountpoint()))
    });
}

#[test]
fn killed_under_sqlite() {
    if !can_mount("killed_under_sqlite") || !has("sqlite3", "killed_under_sqlite") {
        return;
    }
    let mut volume = Volume::new("1G");
    let mut numbers = Numbers(4711);
    volume.mount();
    for mode in ["WAL", "DELETE"] {
        let database = volume.path(&format!("{mode}.db"));
        let create = format!("PRAGMA journal_mode={mode}; CREATE TABLE t(n INT PRIMARY KEY);");
        common::run(Command::new("sqlite3").arg(&database).arg(create));
    }
    let mut next = 0u64;
    let mut committed: BTreeMap<&str, u64> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    for round in 0..KILLS {
        let mode = if round % 2 == 0 { "WAL" } else { "DELETE" };
        let database = volume.path(&format!("{mode}.db"));
        // The shell echoes a row's number once its transaction has returned. EXTRA, since in rollback mode
        // the unlink of the journal is the commit, and only EXTRA makes that durable
        // (sqlite.org/pragma.html#pragma_synchronous).
        let mut sql = String::from("PRAGMA synchronous=EXTRA;\n");
        for n in next..next + 4000 {
            sql.push_str(&format!("INSERT INTO t VALUES({n});\nSELECT 'row {n}';\n"));
        }
        next += 4000;
        let mut child = Command::new("sqlite3")
            .arg("-bail")
            .arg(&database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            let _ = input.write_all(sql.as_bytes());
        });
        let told = Arc::new(Mutex::new(None));
        let listener = {
            let (told, output) = (told.clone(), child.stdout.take().unwrap());
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(row) = line.strip_prefix("row ").and_then(|row| row.parse::<u64>().ok()) {
                        *told.lock().unwrap() = Some(row);
                    }
                }
            })
        };
        std::thread::sleep(Duration::from_millis(100 + numbers.below(500)));
        // What is told after the kill does not count: the program outlives its file system, and in rollback
        // mode SQLite then believes in a sync that never was. unixDelete in os_unix.c unlinks the journal and
        // syncs its directory; a directory that cannot be opened (the mount is dead) passes for synced, and
        // once the dead mount is detached the same path opens the directory below it, whose sync succeeds.
        let last = *told.lock().unwrap();
        volume.kill();
        child.wait().unwrap();
        listener.join().unwrap();
        feeder.join().unwrap();
        if let Some(last) = last {
            committed.insert(mode, last);
        }
        let took = volume.mount();
        slowest = slowest.max(took);
        assert!(took < HANGS, "round {round}: the mount took {took:?}");
        let check = common::run(Command::new("sqlite3").arg(&database).arg("PRAGMA integrity_check;"));
        assert_eq!(check.trim(), "ok", "round {round}, {mode}");
        if let Some(last) = committed.get(mode) {
            let sql = format!("SELECT count(*) FROM t WHERE n = {last};");
            let found = common::run(Command::new("sqlite3").arg(&database).arg(sql));
            assert_eq!(found.trim(), "1", "round {round}, {mode}: row {last} was committed");
        }
    }
    println!("killed_under_sqlite: the slowest mount after a kill took {slowest:?}");
    assert!(committed.len() == 2, "both modes committed rows: {committed:?}");
    volume.unmount();
    volume.check();
}
