//! A PostgreSQL server of our own: found, made, started, killed with all its processes.
//!
//! PostgreSQL refuses to run as root, so as root everything runs as the user `postgres` of Debian's package.
//! Data is on the mount; socket and log are on the host.
//!
//! Invariants: no process and no System V memory segment of a cluster outlives [`Cluster::kill`]. The
//! server's children leave its process group, so they are found by their parents; this process is made their
//! reaper.
//!
//! Neighbours: [`super`] decides when.

use super::connection::Connection;
use crate::failure::{Failure, Outcome};
use crate::machine::Machine;
use crate::pages::Pages;
use crate::processes::{self, identity_of, kill_family, last_of, output, own_folder, run};
use quire_base::random::Random;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The database's superuser.
pub const USER: &str = "postgres";
const PORT: &str = "5432";
const PAGE_BYTES: u32 = 8192;
/// How long a recovery may take.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long a query may take.
const QUERY_PATIENCE: Duration = Duration::from_secs(60);

/// Where the programs are, and who runs them.
#[derive(Clone, Debug)]
pub struct Installation {
    programs: PathBuf,
    /// User and group, if we are root.
    identity: Option<(u32, u32)>,
}

impl Installation {
    /// Looks in the path and where Debian puts it. The error says what is missing.
    pub fn find() -> Result<Installation, String> {
        let has_all = |folder: &PathBuf| {
            ["postgres", "initdb", "pgbench"].iter().all(|name| folder.join(name).exists())
        };
        let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
            .unwrap_or_default();
        folders.sort();
        folders.extend(
            std::env::var_os("PATH").iter().flat_map(|path| std::env::split_paths(path).collect::<Vec<_>>()),
        );
        let programs = folders
            .into_iter()
            .find(has_all)
            .ok_or("PostgreSQL's postgres, initdb and pgbench (Debian: package postgresql)")?;
        let identity = if rustix::process::geteuid().is_root() {
            Some(identity_of("postgres").ok_or("a user named postgres, since PostgreSQL refuses root")?)
        } else {
            None
        };
        Ok(Installation { programs, identity })
    }

    /// One of the programs, to be run as the right user.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some((user, group)) = self.identity {
            command.uid(user).gid(group);
        }
        command.env_clear().envs([
            ("LC_ALL", "C"),
            ("PATH", "/usr/bin:/bin"),
            ("TZ", "UTC"),
            ("PGUSER", USER),
        ]);
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Makes a folder that the database's user owns.
    fn own_folder(&self, path: &Path) -> std::io::Result<()> {
        own_folder(path, self.identity)
    }
}

/// See the module's documentation.
pub struct Cluster {
    installation: Installation,
    pages: Pages,
    postmaster: Option<Child>,
}

impl Cluster {
    /// Not made, not started.
    pub fn new(installation: Installation, pages: Pages) -> Cluster {
        // Children of a killed server come to us, so that their ends can be waited for.
        if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            eprintln!("powercut: not a reaper of orphaned processes: {error}");
        }
        Cluster { installation, pages, postmaster: None }
    }

    fn data(machine: &Machine) -> PathBuf {
        machine.mountpoint().join("postgres")
    }

    /// The write-ahead log's folder, if it is not in [`Cluster::data`]: the log wants no `untorn`.
    fn log_folder(machine: &Machine) -> PathBuf {
        machine.mountpoint().join("wal")
    }

    /// The folder of the server's socket, on the host.
    pub fn socket_folder(machine: &Machine) -> PathBuf {
        machine.folder().join("s")
    }

    /// The server's socket.
    pub fn socket(machine: &Machine) -> PathBuf {
        Cluster::socket_folder(machine).join(format!(".s.PGSQL.{PORT}"))
    }

    /// The server's log, on the host.
    pub fn log(machine: &Machine) -> PathBuf {
        machine.folder().join("postgres.log")
    }

    /// initdb, with data checksums.
    pub fn create(&self, machine: &Machine) -> Outcome {
        let trouble = |error| Failure::trouble("making the database's folders", error);
        self.installation.own_folder(&Cluster::data(machine)).map_err(trouble)?;
        self.installation.own_folder(&Cluster::socket_folder(machine)).map_err(trouble)?;
        self.pages.prepare(&Cluster::data(machine), PAGE_BYTES)?;
        let mut command = self.installation.command("initdb");
        command.args(["--auth=trust", "--data-checksums", "--username", USER, "--encoding=UTF8", "-D"]);
        command.arg(Cluster::data(machine));
        if self.pages != Pages::Logged {
            self.installation.own_folder(&Cluster::log_folder(machine)).map_err(trouble)?;
            command.arg("--waldir").arg(Cluster::log_folder(machine));
        }
        run(&mut command).map(drop)
    }

    /// Takes the cluster away; the server must not run.
    pub fn remove(&self, machine: &Machine) -> Outcome {
        for folder in [Cluster::data(machine), Cluster::log_folder(machine)] {
            if folder.exists() {
                std::fs::remove_dir_all(&folder)
                    .map_err(|error| Failure::trouble(format!("removing {}", folder.display()), error))?;
            }
        }
        Ok(())
    }

    /// Counts the pages that are torn as the files lie there, before any recovery, and tells of the first.
    ///
    /// A copy of the files on the host gets an empty log, since `pg_checksums` wants a cluster that was shut
    /// down in order.
    pub fn count_torn(&self, machine: &Machine) -> Outcome<(u64, String)> {
        let copy = machine.folder().join("pages");
        let trouble = |error: std::io::Error| Failure::trouble("copying the database's files", error);
        if copy.exists() {
            std::fs::remove_dir_all(&copy).map_err(trouble)?;
        }
        run(Command::new("cp").arg("-a").arg(Cluster::data(machine)).arg(&copy))?;
        let _ = std::fs::remove_file(copy.join("postmaster.pid"));
        std::fs::remove_file(copy.join("pg_wal")).map_err(trouble)?;
        self.installation.own_folder(&copy.join("pg_wal")).map_err(trouble)?;
        self.installation.own_folder(&copy.join("pg_wal/archive_status")).map_err(trouble)?;
        run(self.installation.command("pg_resetwal").arg("--force").arg(&copy))?;
        let mut command = self.installation.command("pg_checksums");
        let output = output(command.args(["--check", "-D"]).arg(&copy))?;
        std::fs::remove_dir_all(&copy).map_err(trouble)?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        // A file that ends inside a page ends the program, and is a page in part, too.
        let is_torn = |line: &&str| {
            line.contains("checksum verification failed") || line.contains("could not read block")
        };
        let torn: Vec<&str> = words.lines().filter(is_torn).collect();
        if output.status.success() == torn.is_empty() {
            return Ok((torn.len() as u64, torn.first().map_or_else(String::new, ToString::to_string)));
        }
        Err(Failure::Trouble(format!("pg_checksums: {}: {words}", output.status)))
    }

    /// Starts the server and does not wait. What may differ from run to run is drawn.
    pub fn launch(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        let mut pick = |choices: &[&'static str]| choices[random.below(choices.len() as u64) as usize];
        let drawn = [
            ("wal_sync_method", pick(&["fdatasync", "fdatasync", "fsync", "open_datasync", "open_sync"])),
            ("wal_recycle", pick(&["on", "off"])),
            ("wal_init_zero", pick(&["on", "off"])),
            ("wal_compression", pick(&["on", "off"])),
            ("commit_delay", pick(&["0", "0", "200"])),
            ("shared_buffers", pick(&["4MB", "16MB", "64MB"])),
        ];
        let fixed = [
            ("listen_addresses", ""),
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", if self.pages == Pages::Logged { "on" } else { "off" }),
            ("max_wal_size", "64MB"),
            ("min_wal_size", "32MB"),
            ("checkpoint_timeout", "30s"),
            ("max_connections", "40"),
            ("autovacuum_naptime", "1s"),
            // Goes with the processes; a file in /dev/shm would stay.
            ("dynamic_shared_memory_type", "sysv"),
            ("log_checkpoints", "on"),
            ("logging_collector", "off"),
        ];
        let log = File::options()
            .create(true)
            .append(true)
            .open(Cluster::log(machine))
            .map_err(|error| Failure::trouble("opening the database's log", error))?;
        let mut command = self.installation.command("postgres");
        command.arg("-D").arg(Cluster::data(machine)).args(["-p", PORT, "-k"]);
        command.arg(Cluster::socket_folder(machine));
        for (name, value) in drawn.iter().chain(&fixed) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.process_group(0).stdout(Stdio::null()).stderr(log);
        // Of an earlier life; the server makes its own.
        let _ = std::fs::remove_file(Cluster::socket(machine));
        let _ =
            std::fs::remove_file(Cluster::socket(machine).with_file_name(format!(".s.PGSQL.{PORT}.lock")));
        let child = command.spawn().map_err(|error| Failure::trouble("starting postgres", error))?;
        self.postmaster = Some(child);
        Ok(())
    }

    /// Waits until the server answers.
    pub fn wait_until_ready(&mut self, machine: &Machine) -> Outcome<Connection> {
        let started = Instant::now();
        loop {
            let failed = match connect(machine).and_then(|mut connection| {
                connection.query("SELECT 1")?;
                Ok(connection)
            }) {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let ended = match &mut self.postmaster {
                Some(child) => child.try_wait().ok().flatten().map(|status| status.to_string()),
                None => Some("was never started".into()),
            };
            if let Some(status) = ended {
                let log = last_of(&Cluster::log(machine));
                return Err(Failure::Broken(format!("postgres does not start ({status}): {log}")));
            }
            if started.elapsed() > START_PATIENCE {
                return Err(Failure::Broken(format!("postgres does not get ready: {failed}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs one of the client programs against the server.
    pub fn client(&self, machine: &Machine, name: &str, arguments: &[&str]) -> Outcome<String> {
        let mut command = self.installation.command(name);
        command.env("PGHOST", Cluster::socket_folder(machine)).env("PGPORT", PORT).args(arguments);
        run(&mut command)
    }

    /// Whether a client program is installed.
    pub fn has(&self, name: &str) -> bool {
        self.installation.programs.join(name).exists()
    }

    /// Fast shutdown, in order.
    pub fn stop(&mut self) -> Outcome {
        let Some(child) = self.postmaster.take() else { return Ok(()) };
        processes::stop(child, Signal::INT, START_PATIENCE).unwrap_or_else(|child| {
            self.postmaster = Some(child);
            self.kill();
            Err(Failure::Broken("postgres does not stop".into()))
        })
    }

    /// Verifies every page's checksum; the server must be stopped.
    pub fn verify_checksums(&self, machine: &Machine) -> Outcome {
        let mut command = self.installation.command("pg_checksums");
        command.args(["--check", "-D"]).arg(Cluster::data(machine));
        run(&mut command).map(drop)
    }

    /// A server that has ended by itself is a broken promise.
    pub fn must_live(&mut self, machine: &Machine) -> Outcome {
        match &mut self.postmaster {
            Some(server) => processes::must_live(server, "postgres", false, &Cluster::log(machine)),
            None => Ok(()),
        }
    }

    /// Ends every process of the cluster, and frees what they leave in the kernel.
    pub fn kill(&mut self) {
        let Some(child) = self.postmaster.take() else { return };
        let family = kill_family(child);
        for segment in segments_of(&family) {
            let _ = Command::new("ipcrm").args(["-m", &segment]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A session with the server.
pub fn connect(machine: &Machine) -> Result<Connection, super::connection::QueryError> {
    Connection::open(&Cluster::socket(machine), USER, QUERY_PATIENCE)
}

/// System V memory segments that any of these processes made, by identifier.
fn segments_of(family: &[u32]) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let rows = table.lines().skip(1).filter_map(|line| {
        // key shmid perms size cpid lpid nattch ...
        let fields: Vec<&str> = line.split_whitespace().collect();
        let creator: u32 = fields.get(4)?.parse().ok()?;
        family.contains(&creator).then(|| fields[1].to_owned())
    });
    rows.collect()
}
