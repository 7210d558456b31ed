//! A MariaDB server of our own: found, made, started, killed.
//!
//! As root everything runs as the user `mysql` of Debian's package. Tables are on the mount, the redo log in
//! a folder of its own there; socket and log are on the host.
//!
//! Neighbours: [`super`] decides when; [`super::client`] has sessions.

use crate::failure::{Failure, Outcome};
use crate::machine::Machine;
use crate::pages::Pages;
use crate::processes::{self, identity_of, kill_family, last_of, output, own_folder, run};
use quire_base::random::Random;
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a recovery may take.
const START_PATIENCE: Duration = Duration::from_secs(120);
const PAGE_BYTES: u32 = 16384;
/// Pages of `ibdata1` that are the doublewrite buffer, where it is on: what it repairs others from.
const DOUBLEWRITE: std::ops::Range<u64> = 64..192;

/// Where the programs are, and who runs them.
#[derive(Clone, Debug)]
pub struct Installation {
    server: PathBuf,
    /// User and group, if we are root.
    identity: Option<(u32, u32)>,
}

impl Installation {
    /// Looks in the path and in /usr/sbin. The error says what is missing.
    pub fn find() -> Result<Installation, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
        let has = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        let missing = "MariaDB's mariadbd, mariadb, mariadb-install-db and innochecksum (Debian: package mariadb-server)";
        for name in ["mariadb", "mariadb-install-db", "innochecksum"] {
            has(name).ok_or(missing)?;
        }
        let server = has("mariadbd").ok_or(missing)?;
        let identity = if rustix::process::geteuid().is_root() {
            Some(identity_of("mysql").ok_or("a user named mysql, since MariaDB refuses root")?)
        } else {
            None
        };
        Ok(Installation { server, identity })
    }

    /// A program without the machine's own settings.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("--no-defaults").env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        command
    }

    /// The user that a server becomes when root starts it.
    fn user(&self) -> Option<&'static str> {
        self.identity.map(|_| "--user=mysql")
    }
}

/// See the module's documentation.
pub struct Server {
    installation: Installation,
    pages: Pages,
    process: Option<Child>,
}

impl Server {
    /// Not made, not started.
    pub fn new(installation: Installation, pages: Pages) -> Server {
        Server { installation, pages, process: None }
    }

    fn data(machine: &Machine) -> PathBuf {
        machine.mountpoint().join("mariadb")
    }

    /// The redo log's folder: its blocks carry checksums, and want no `untorn`.
    fn redo(machine: &Machine) -> PathBuf {
        machine.mountpoint().join("redo")
    }

    fn socket(machine: &Machine) -> PathBuf {
        machine.folder().join("s/mariadb")
    }

    /// The server's log, on the host.
    fn log(machine: &Machine) -> PathBuf {
        machine.folder().join("mariadb.log")
    }

    fn settings(&self, machine: &Machine) -> Vec<String> {
        vec![
            format!("--datadir={}", Server::data(machine).display()),
            format!("--innodb-log-group-home-dir={}", Server::redo(machine).display()),
            format!("--innodb-doublewrite={}", if self.pages == Pages::Logged { "ON" } else { "OFF" }),
            "--innodb-log-file-size=32M".into(),
        ]
    }

    /// mariadb-install-db.
    pub fn create(&self, machine: &Machine) -> Outcome {
        let trouble = |error| Failure::trouble("making the database's folders", error);
        let socket = Server::socket(machine);
        let folders = [Server::data(machine), Server::redo(machine), socket.with_file_name("")];
        for folder in &folders {
            own_folder(folder, self.installation.identity).map_err(trouble)?;
        }
        self.pages.prepare(&folders[0], PAGE_BYTES)?;
        let mut command = self.installation.command(Path::new("mariadb-install-db"));
        command.args(self.installation.user()).args(self.settings(machine));
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        run(&mut command).map(drop)
    }

    /// Takes the database away; the server must not run.
    pub fn remove(&self, machine: &Machine) -> Outcome {
        for folder in [Server::data(machine), Server::redo(machine)] {
            if folder.exists() {
                std::fs::remove_dir_all(&folder)
                    .map_err(|error| Failure::trouble(format!("removing {}", folder.display()), error))?;
            }
        }
        Ok(())
    }

    /// Starts the server and does not wait. What may differ from run to run is drawn.
    pub fn launch(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        let mut pick = |choices: &[&'static str]| choices[random.below(choices.len() as u64) as usize];
        let drawn = [
            ("innodb-flush-method", pick(&["fsync", "O_DIRECT", "O_DIRECT", "O_DSYNC"])),
            ("innodb-buffer-pool-size", pick(&["8M", "32M"])),
            ("innodb-flush-neighbors", pick(&["0", "1"])),
            ("innodb-use-native-aio", pick(&["ON", "OFF"])),
        ];
        let fixed = [
            ("innodb-flush-log-at-trx-commit", "1"),
            // Pages are written all the time, so that cuts meet some.
            ("innodb-max-dirty-pages-pct", "0"),
            ("innodb-io-capacity", "2000"),
            ("innodb-fast-shutdown", "1"),
            ("max-connections", "40"),
        ];
        let log = File::options()
            .create(true)
            .append(true)
            .open(Server::log(machine))
            .map_err(|error| Failure::trouble("opening the database's log", error))?;
        let mut command = self.installation.command(&self.installation.server);
        command.args(self.installation.user()).args(self.settings(machine));
        command.args(["--skip-networking", "--skip-log-bin"]);
        command.arg(format!("--socket={}", Server::socket(machine).display()));
        command.arg(format!("--pid-file={}", Server::socket(machine).with_extension("pid").display()));
        for (name, value) in drawn.iter().chain(&fixed) {
            command.arg(format!("--{name}={value}"));
        }
        command.stdout(Stdio::null()).stderr(log);
        // Of an earlier life; the server makes its own.
        let _ = std::fs::remove_file(Server::socket(machine));
        let child = command.spawn().map_err(|error| Failure::trouble("starting mariadbd", error))?;
        self.process = Some(child);
        Ok(())
    }

    /// Waits until the server answers.
    pub fn wait_until_ready(&mut self, machine: &Machine) -> Outcome {
        let started = Instant::now();
        while !Server::socket(machine).exists() || self.query(machine, "SELECT 1").is_err() {
            let ended = match &mut self.process {
                Some(child) => child.try_wait().ok().flatten().map(|status| status.to_string()),
                None => Some("was never started".into()),
            };
            if let Some(status) = ended {
                let log = last_of(&Server::log(machine));
                return Err(Failure::Broken(format!("mariadbd does not start ({status}): {log}")));
            }
            if started.elapsed() > START_PATIENCE {
                return Err(Failure::Broken("mariadbd does not get ready".into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The client program, about to speak to the server as its superuser.
    pub fn client(&self, machine: &Machine) -> Command {
        let mut command = self.installation.command(Path::new("mariadb"));
        command.args([
            "--user=root",
            "--batch",
            "--skip-column-names",
            "--unbuffered",
            "--connect-timeout=20",
        ]);
        command.arg(format!("--socket={}", Server::socket(machine).display()));
        command
    }

    /// Runs statements. Gives rows as lines, columns apart by tabs.
    pub fn query(&self, machine: &Machine, sql: &str) -> Outcome<String> {
        run(self.client(machine).arg("--execute").arg(sql))
    }

    /// Counts the pages that are torn as the files lie there, and tells of the first.
    pub fn count_torn(&self, machine: &Machine) -> Outcome<(u64, String)> {
        let (mut torn, mut first) = (0, String::new());
        for path in tablespaces(&Server::data(machine))? {
            let output =
                output(Command::new("innochecksum").arg("--allow-mismatches=1000000000").arg(&path))?;
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_buffer = self.pages == Pages::Logged && path.ends_with("ibdata1");
            let is_torn = |line: &&str| {
                let page =
                    line.strip_prefix("Fail: page::").and_then(|rest| rest.split(' ').next()?.parse().ok());
                page.is_some_and(|page: u64| !(is_buffer && DOUBLEWRITE.contains(&page)))
            };
            let bad = words.lines().filter(is_torn).count() as u64;
            if bad > 0 && torn == 0 {
                first = format!("{}: {}", path.display(), words.lines().next().unwrap_or_default());
            }
            torn += bad;
            if !words.contains("Fail: page") && !output.status.success() {
                return Err(Failure::Trouble(format!("innochecksum {}: {words}", path.display())));
            }
        }
        Ok((torn, first))
    }

    /// Shuts down in order.
    pub fn stop(&mut self) -> Outcome {
        let Some(child) = self.process.take() else { return Ok(()) };
        processes::stop(child, Signal::TERM, START_PATIENCE).unwrap_or_else(|child| {
            self.process = Some(child);
            self.kill();
            Err(Failure::Broken("mariadbd does not stop".into()))
        })
    }

    /// A server that has ended by itself is a broken promise.
    pub fn must_live(&mut self, machine: &Machine) -> Outcome {
        match &mut self.process {
            Some(server) => processes::must_live(server, "mariadbd", false, &Server::log(machine)),
            None => Ok(()),
        }
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        if let Some(child) = self.process.take() {
            kill_family(child);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// InnoDB's files in a data folder and in the folders of its databases.
fn tablespaces(data: &Path) -> Outcome<Vec<PathBuf>> {
    let trouble = |error| Failure::trouble(format!("listing {}", data.display()), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(data).map_err(trouble)? {
        let path = entry.map_err(trouble)?.path();
        if path.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(trouble)? {
                files.push(entry.map_err(trouble)?.path());
            }
        } else {
            files.push(path);
        }
    }
    let name =
        |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    files.retain(|path| {
        let name = name(path);
        // Temporary tables are made anew at each start.
        name.ends_with(".ibd") || name == "ibdata1" || name.starts_with("undo")
    });
    // A file that was just made has no page yet.
    files.retain(|path| path.metadata().is_ok_and(|metadata| metadata.len() >= u64::from(PAGE_BYTES)));
    files.sort();
    Ok(files)
}
