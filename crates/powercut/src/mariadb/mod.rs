//! MariaDB: InnoDB's tables on the mount, committing clients, a server that always writes pages.
//!
//! Client `c` counts its transactions; each inserts (c, n) into `ledger` and changes accounts, and is written
//! down after the answer. After a recovery: each client's rows are what [`crate::ledger`] asks for; the
//! balances of the accounts add up to the deltas in the ledger; the texts are those that were committed;
//! `CHECK TABLE` finds nothing wrong.
//!
//! [`Pages`] says whether InnoDB's doublewrite buffer is on. Where it is off, `innochecksum` verifies every
//! page of every file after each cut, before the server recovers. Unprotected pages tear; the
//! database is then made anew.
//!
//! Neighbours: [`server`] is the server, [`client`] its clients.

pub mod client;
pub mod server;

use crate::campaign::Program;
use crate::failure::{Failure, Outcome};
use crate::ledger::{Found, Ledger};
use crate::machine::Machine;
use crate::pages::{Pages, TornPages};
use client::{Clients, PAYLOAD};
use quire_base::random::Random;
use server::{Installation, Server};
use std::time::{Duration, Instant};

/// Clients that commit.
pub const CLIENTS: usize = 4;
/// Rows of the table `accounts`, a quarter of a KiB each.
pub const ACCOUNTS: u64 = 20_000;

/// See the module's documentation.
pub struct MariaDb {
    server: Server,
    clients: Option<Clients>,
    ledger: Ledger,
    torn_pages: TornPages,
}

impl MariaDb {
    /// Nothing is made or started yet.
    pub fn new(installation: Installation, pages: Pages) -> MariaDb {
        MariaDb {
            server: Server::new(installation, pages),
            clients: None,
            ledger: Ledger::new(CLIENTS),
            torn_pages: TornPages::new(pages),
        }
    }

    /// Counts torn pages after a cut. A database whose unprotected pages are torn is made anew.
    fn count_torn(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        if self.torn_pages.look(|| self.server.count_torn(machine))? {
            self.server.remove(machine)?;
            self.ledger.clear();
            self.create(machine, random)?;
            self.server.stop()?;
        }
        Ok(())
    }

    fn start(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.server.launch(machine, random)?;
        self.server.wait_until_ready(machine)
    }
}

/// Rows of client, count, smallest and largest number.
fn found(rows: &str) -> Outcome<Vec<Found>> {
    let parse = |row: &str| {
        let mut numbers = row.split('\t').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Found { client: next()? as usize, count: next()?, least: next()?, most: next()? })
    };
    let not_numbers = |row| Failure::Trouble(format!("not numbers: {row:?}"));
    rows.lines().map(|row| parse(row).ok_or_else(|| not_numbers(row))).collect()
}

impl Program for MariaDb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn volume_bytes(&self) -> u64 {
        2 << 30
    }

    fn create(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.server.create(machine)?;
        self.start(machine, random)?;
        self.server.query(
            machine,
            &format!(
                "CREATE DATABASE test; USE test;
                 CREATE TABLE accounts(id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, filler CHAR(240) NOT NULL);
                 CREATE TABLE ledger(client INT, number BIGINT, delta BIGINT NOT NULL, payload LONGTEXT NOT NULL,
                     PRIMARY KEY(client, number));
                 INSERT INTO accounts SELECT seq, 0, REPEAT('x', 240) FROM seq_1_to_{ACCOUNTS}"
            ),
        )?;
        Ok(())
    }

    fn begin_recovery(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.count_torn(machine, random)?;
        self.server.launch(machine, random)
    }

    fn check(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Duration> {
        self.count_torn(machine, random)?;
        let started = Instant::now();
        self.start(machine, random)?;
        let took = started.elapsed();
        let rows = self.server.query(
            machine,
            "SELECT client, COUNT(*), MIN(number), MAX(number) FROM test.ledger GROUP BY client",
        )?;
        self.ledger.compare(&found(&rows)?)?;
        let sound = self.server.query(
            machine,
            &format!(
                "SELECT (SELECT SUM(balance) FROM test.accounts) = (SELECT COALESCE(SUM(delta), 0) FROM test.ledger)
                    AND (SELECT COUNT(*) FROM test.accounts) = {ACCOUNTS}
                    AND NOT EXISTS (SELECT * FROM test.ledger WHERE payload <> {PAYLOAD})"
            ),
        )?;
        if sound.trim() != "1" {
            return Err(Failure::Broken(
                "balances, accounts or texts are not those that were committed".into(),
            ));
        }
        let said = self.server.query(machine, "CHECK TABLE test.accounts, test.ledger EXTENDED")?;
        match said.lines().find(|line| !line.ends_with("\tOK")) {
            None => Ok(took),
            Some(line) => Err(Failure::Broken(format!("CHECK TABLE: {line}"))),
        }
    }

    fn work(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.clients = Some(Clients::start(machine, &self.server, self.ledger.known(), random)?);
        Ok(())
    }

    fn look(&mut self, machine: &Machine) -> Outcome {
        self.server.must_live(machine)
    }

    fn end(&mut self, _machine: &Machine) -> Outcome<Vec<u64>> {
        self.server.kill();
        let Some(clients) = self.clients.take() else { return Ok(Vec::new()) };
        Ok(vec![self.ledger.acknowledge(&clients.end()?)])
    }

    fn stop(&mut self, machine: &Machine) -> Outcome {
        self.server.stop()?;
        let (torn, first) = self.server.count_torn(machine)?;
        if torn == 0 { Ok(()) } else { Err(Failure::Broken(format!("{torn} pages do not check: {first}"))) }
    }

    fn lost(&self) -> u64 {
        self.ledger.lost()
    }

    fn has_units(&self) -> bool {
        self.torn_pages.are_prevented()
    }

    fn torn_pages(&self) -> u64 {
        self.torn_pages.total()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // The server first: its clients wait for it.
        self.server.kill();
    }
}
