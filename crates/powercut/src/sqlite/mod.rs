//! SQLite: four databases, one for each way to commit, several writing processes on each.
//!
//! | journal mode | synchronous | the commit | made durable by |
//! | --- | --- | --- | --- |
//! | DELETE | EXTRA | the journal is unlinked | fsync of the directory, which only EXTRA does |
//! | TRUNCATE | FULL | the journal is cut to nothing | fsync of the journal |
//! | PERSIST | FULL | the journal's header is zeroed | fdatasync of the journal |
//! | WAL | FULL | a commit frame is appended | fdatasync of the log |
//!
//! (sqlite.org/pragma.html#pragma_synchronous; `pager_end_transaction` in SQLite's pager.c.)
//!
//! Each writer counts its transactions; number `n` inserts row (client, n) with contents that both determine,
//! and raises the client's total. So after a recovery a client's rows must be 1 to some `n`, its total must
//! say `n`, and `n` is the last acknowledged number or the one after it.
//!
//! Everything that touches the mount is a process of its own ([`writer`], [`check`]): with the log's index
//! mapped into memory, a dead mount is a SIGBUS.

pub mod check;
pub mod writer;

use crate::campaign::Program;
use crate::failure::{Failure, Outcome};
use crate::machine::Machine;
use crate::processes;
use quire_base::random::Random;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Writers on each database.
const CLIENTS: usize = 3;

/// A database and how it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Value of `PRAGMA journal_mode`, and the database's name.
    pub journal: &'static str,
    /// Value of `PRAGMA synchronous`.
    pub synchronous: &'static str,
    /// Bytes of a page.
    pub page_size: u32,
}

/// All databases.
pub const MODES: [Mode; 4] = [
    Mode { journal: "delete", synchronous: "EXTRA", page_size: 4096 },
    Mode { journal: "truncate", synchronous: "FULL", page_size: 1024 },
    Mode { journal: "persist", synchronous: "FULL", page_size: 16384 },
    Mode { journal: "wal", synchronous: "FULL", page_size: 4096 },
];

impl Mode {
    /// The mode of that name.
    pub fn named(name: &str) -> Option<Mode> {
        MODES.into_iter().find(|mode| mode.journal == name)
    }

    fn database(&self, machine: &Machine) -> PathBuf {
        machine.mountpoint().join(self.journal).join("data.db")
    }
}

/// Contents of a row: what anybody can compute again.
pub fn payload(client: usize, number: u64) -> Vec<u8> {
    let mut random = Random::seeded(number << 8 | client as u64);
    let length = match random.below(40) {
        0 => 20_000 + random.below(60_000),
        1..4 => 3000 + random.below(6000),
        _ => 20 + random.below(500),
    };
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// What is known of one client.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// Last number whose commit returned while the power was on, or that a recovered database had.
    acknowledged: u64,
}

/// See the module's documentation.
pub struct Sqlite {
    executable: PathBuf,
    clients: [[Client; CLIENTS]; MODES.len()],
    running: Vec<Child>,
    /// The running processes are checks, which end by themselves, and not writers.
    checking: bool,
    lost: u64,
}

impl Sqlite {
    /// `executable` is this crate's program.
    pub fn new(executable: &Path) -> Sqlite {
        Sqlite {
            executable: executable.to_owned(),
            clients: Default::default(),
            running: Vec::new(),
            checking: false,
            lost: 0,
        }
    }

    fn ledger(machine: &Machine, mode: Mode, client: usize) -> PathBuf {
        machine.folder().join(format!("ledger-{}-{client}", mode.journal))
    }

    fn checker(&self, machine: &Machine, mode: Mode) -> Outcome<Command> {
        let log = log(machine)?;
        let mut command = Command::new(&self.executable);
        command.args(["sqlite-check", mode.journal]).arg(mode.database(machine));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(command)
    }

    /// Compares what a database holds with what was acknowledged.
    fn compare(&mut self, place: usize, found: &[check::Found]) -> Outcome {
        let mode = MODES[place];
        let mut lost = Vec::new();
        for (client, known) in self.clients[place].iter_mut().enumerate() {
            let rows = found.iter().find(|found| found.client == client).map_or(0, |found| found.rows);
            if rows < known.acknowledged {
                self.lost += known.acknowledged - rows;
                lost.push(format!(
                    "{}: client {client} has {rows} transactions, {} were acknowledged",
                    mode.journal, known.acknowledged
                ));
            } else if rows > known.acknowledged + 1 {
                return Err(Failure::Broken(format!(
                    "{}: client {client} has {rows} transactions, only {} were ever committed",
                    mode.journal,
                    known.acknowledged + 1
                )));
            }
            known.acknowledged = rows;
        }
        if lost.is_empty() { Ok(()) } else { Err(Failure::Broken(format!("LOST: {}", lost.join("; ")))) }
    }
}

fn log_path(machine: &Machine) -> PathBuf {
    machine.folder().join("sqlite.log")
}

fn log(machine: &Machine) -> Outcome<File> {
    File::options()
        .create(true)
        .append(true)
        .open(log_path(machine))
        .map_err(|error| Failure::trouble("opening sqlite.log", error))
}

/// Last number in a ledger, unless it says that something failed while the power was on.
fn read_ledger(path: &Path) -> Outcome<Option<u64>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::trouble("reading a ledger", error)),
    };
    // The last line is whole or absent: a kill may have come between.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let Some(last) = whole.lines().next_back() else { return Ok(None) };
    match last.strip_prefix("error ") {
        Some(error) => Err(Failure::Broken(format!("{}: with the power on: {error}", path.display()))),
        None => last.parse().map(Some).map_err(|error| Failure::trouble("reading a ledger", error)),
    }
}

impl Program for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn volume_bytes(&self) -> u64 {
        1 << 30
    }

    fn create(&mut self, machine: &Machine, _random: &mut Random) -> Outcome {
        for mode in MODES {
            let mut command = Command::new(&self.executable);
            processes::run(command.args(["sqlite-create", mode.journal]).arg(mode.database(machine)))?;
        }
        Ok(())
    }

    fn begin_recovery(&mut self, machine: &Machine, _random: &mut Random) -> Outcome {
        self.checking = true;
        for mode in MODES {
            let mut command = self.checker(machine, mode)?;
            command.stdout(Stdio::null());
            let child = command.spawn().map_err(|error| Failure::trouble("starting a check", error))?;
            self.running.push(child);
        }
        Ok(())
    }

    fn check(&mut self, machine: &Machine, _random: &mut Random) -> Outcome<Duration> {
        let mut longest = Duration::ZERO;
        for (place, mode) in MODES.into_iter().enumerate() {
            let output = processes::output(&mut self.checker(machine, mode)?)?;
            log(machine)?
                .write_all(&output.stderr)
                .map_err(|error| Failure::trouble("writing sqlite.log", error))?;
            let report = check::Report::parse(&String::from_utf8_lossy(&output.stdout));
            if !output.status.success() || !report.is_whole {
                let why = report.broken.unwrap_or_else(|| output.status.to_string());
                return Err(Failure::Broken(format!("{}: {why}", mode.journal)));
            }
            longest = longest.max(report.recovered_in);
            self.compare(place, &report.found)?;
        }
        Ok(longest)
    }

    fn work(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.checking = false;
        for (place, mode) in MODES.into_iter().enumerate() {
            for client in 0..CLIENTS {
                let mut command = Command::new(&self.executable);
                command
                    .args(["sqlite-write", mode.journal])
                    .arg(mode.database(machine))
                    .args(["--client", &client.to_string()])
                    .args(["--after", &self.clients[place][client].acknowledged.to_string()])
                    .args(["--seed", &random.next_u64().to_string()])
                    .arg("--power")
                    .arg(machine.power())
                    .arg("--ledger")
                    .arg(Sqlite::ledger(machine, mode, client))
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(log(machine)?);
                let child = command.spawn().map_err(|error| Failure::trouble("starting a writer", error))?;
                self.running.push(child);
            }
        }
        Ok(())
    }

    fn look(&mut self, machine: &Machine) -> Outcome {
        let log = log_path(machine);
        let name = if self.checking { "a check" } else { "a writer" };
        self.running.iter_mut().try_for_each(|child| processes::must_live(child, name, self.checking, &log))
    }

    fn end(&mut self, machine: &Machine) -> Outcome<Vec<u64>> {
        end_all(&mut self.running);
        let mut fresh = vec![0; MODES.len()];
        for (place, mode) in MODES.into_iter().enumerate() {
            for client in 0..CLIENTS {
                let known = &mut self.clients[place][client];
                if let Some(number) = read_ledger(&Sqlite::ledger(machine, mode, client))?
                    && number > known.acknowledged
                {
                    fresh[place] += number - known.acknowledged;
                    known.acknowledged = number;
                }
            }
        }
        Ok(fresh)
    }

    fn stop(&mut self, _machine: &Machine) -> Outcome {
        // Checks have ended by themselves, and writers run only between `work` and `end`.
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

fn end_all(running: &mut Vec<Child>) {
    for child in running.iter_mut() {
        let _ = child.kill();
    }
    for mut child in running.drain(..) {
        let _ = child.wait();
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        end_all(&mut self.running);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_end_with_a_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        assert_eq!(read_ledger(&path), Ok(None));
        std::fs::write(&path, "1\n2\n3").unwrap();
        assert_eq!(read_ledger(&path), Ok(Some(2)));
        std::fs::write(&path, "1\nerror disk I/O error\n").unwrap();
        assert!(matches!(read_ledger(&path), Err(Failure::Broken(_))));
    }

    #[test]
    fn a_missing_transaction_is_lost_and_an_extra_one_is_not_believed() {
        let mut sqlite = Sqlite::new(Path::new("powercut"));
        sqlite.clients[3][1].acknowledged = 7;
        let found = |rows| [check::Found { client: 1, rows }];
        assert!(matches!(sqlite.compare(3, &found(6)), Err(Failure::Broken(_))));
        assert_eq!(sqlite.lost, 1);
        sqlite.clients[3][1].acknowledged = 7;
        assert!(sqlite.compare(3, &found(7)).is_ok());
        assert!(sqlite.compare(3, &found(8)).is_ok());
        assert!(matches!(sqlite.compare(3, &found(10)), Err(Failure::Broken(_))));
    }
}
