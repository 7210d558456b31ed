//! PostgreSQL: a cluster with data checksums on the mount, committing clients, a housekeeper.
//!
//! Client `c` counts its transactions; each inserts (c, n) into `ledger` besides pgbench's own updates, and
//! is written down on the host after COMMIT's answer. After a recovery: each client's rows are 1 to some `n`,
//! `n` the last acknowledged or the one after it; the balances of accounts, tellers and branches and the
//! deltas of the history add up to the same; history and ledger have as many rows; the texts are those that
//! were committed; pg_amcheck walks every table and index; and at the end, pg_checksums every page.
//!
//! Where `full_page_writes` is off ([`Pages`]), every page's checksum is verified after each cut, too, before
//! the server recovers: recovery would change torn pages further. Unprotected pages tear; the
//! database is then made anew.
//!
//! Neighbours: [`cluster`] is the server, [`client`] its clients, [`connection`] their sessions.

pub mod client;
pub mod cluster;
pub mod connection;

use crate::campaign::Program;
use crate::failure::{Failure, Outcome};
use crate::ledger::{Found, Ledger};
use crate::machine::Machine;
use crate::pages::{Pages, TornPages};
use client::{Clients, PAYLOAD};
use cluster::{Cluster, Installation};
use connection::{Connection, Rows};
use quire_base::random::Random;
use std::time::{Duration, Instant};

/// Clients that commit.
pub const CLIENTS: usize = 6;
/// pgbench's scale: 100,000 accounts each.
pub const SCALE: u64 = 1;

/// See the module's documentation.
pub struct Postgres {
    cluster: Cluster,
    clients: Option<Clients>,
    ledger: Ledger,
    torn_pages: TornPages,
}

impl Postgres {
    /// Nothing is made or started yet.
    pub fn new(installation: Installation, pages: Pages) -> Postgres {
        Postgres {
            cluster: Cluster::new(installation, pages),
            clients: None,
            ledger: Ledger::new(CLIENTS),
            torn_pages: TornPages::new(pages),
        }
    }

    /// Counts torn pages after a cut. A database whose unprotected pages are torn is made anew.
    fn count_torn(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        if self.torn_pages.look(|| self.cluster.count_torn(machine))? {
            self.cluster.remove(machine)?;
            self.ledger.clear();
            self.create(machine, random)?;
            self.cluster.stop()?;
        }
        Ok(())
    }

    fn start(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Connection> {
        self.cluster.launch(machine, random)?;
        self.cluster.wait_until_ready(machine)
    }
}

/// Rows of client, count, smallest and largest number.
fn found(rows: &Rows) -> Outcome<Vec<Found>> {
    let parse = |row: &Vec<Option<String>>| {
        Some(Found {
            client: number(row, 0)? as usize,
            count: number(row, 1)?,
            least: number(row, 2)?,
            most: number(row, 3)?,
        })
    };
    let not_numbers = |row| Failure::Trouble(format!("not numbers: {row:?}"));
    rows.iter().map(|row| parse(row).ok_or_else(|| not_numbers(row))).collect()
}

fn number(row: &[Option<String>], column: usize) -> Option<u64> {
    row.get(column)?.as_ref()?.parse().ok()
}

/// Runs a query that must give a single "t".
fn must_hold(connection: &mut Connection, what: &str, sql: &str) -> Outcome {
    let rows = ask(connection, sql)?;
    if rows == [[Some("t".to_owned())]] {
        return Ok(());
    }
    Err(Failure::Broken(format!("{what}: {rows:?}")))
}

fn ask(connection: &mut Connection, sql: &str) -> Outcome<Rows> {
    connection.query(sql).map_err(|error| Failure::Broken(format!("after recovery: {error}: {sql}")))
}

impl Program for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn volume_bytes(&self) -> u64 {
        2 << 30
    }

    fn create(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.cluster.create(machine)?;
        let mut connection = self.start(machine, random)?;
        let scale = SCALE.to_string();
        self.cluster.client(machine, "pgbench", &["-i", "-q", "-s", &scale, "postgres"])?;
        ask(
            &mut connection,
            "CREATE TABLE ledger(client int, number bigint, payload text, PRIMARY KEY(client, number))",
        )?;
        if self.cluster.has("pg_amcheck") {
            ask(&mut connection, "CREATE EXTENSION IF NOT EXISTS amcheck")?;
        }
        Ok(())
    }

    fn begin_recovery(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.count_torn(machine, random)?;
        self.cluster.launch(machine, random)
    }

    fn check(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Duration> {
        self.count_torn(machine, random)?;
        let started = Instant::now();
        let mut connection = self.start(machine, random)?;
        let took = started.elapsed();
        let rows = ask(
            &mut connection,
            "SELECT client, count(*), min(number), max(number) FROM ledger GROUP BY client",
        )?;
        self.ledger.compare(&found(&rows)?)?;
        must_hold(
            &mut connection,
            "the balances do not add up",
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
                AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
                AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
                AND (SELECT count(*) FROM pgbench_accounts) = 100000 * (SELECT count(*) FROM pgbench_branches)
                AND (SELECT count(*) FROM pgbench_history) = (SELECT count(*) FROM ledger)",
        )?;
        must_hold(
            &mut connection,
            "texts are not those that were committed",
            &format!(
                "SELECT coalesce(bool_and(payload IS NOT DISTINCT FROM {PAYLOAD}), true)
                 FROM (SELECT * FROM ledger ORDER BY number DESC LIMIT 500) AS newest"
            ),
        )?;
        if self.cluster.has("pg_amcheck") {
            self.cluster.client(machine, "pg_amcheck", &["--heapallindexed", "postgres"])?;
        }
        Ok(took)
    }

    fn work(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.clients = Some(Clients::start(machine, self.ledger.known(), random)?);
        Ok(())
    }

    fn look(&mut self, machine: &Machine) -> Outcome {
        self.cluster.must_live(machine)
    }

    fn end(&mut self, _machine: &Machine) -> Outcome<Vec<u64>> {
        self.cluster.kill();
        let Some(clients) = self.clients.take() else { return Ok(Vec::new()) };
        Ok(vec![self.ledger.acknowledge(&clients.end()?)])
    }

    fn stop(&mut self, machine: &Machine) -> Outcome {
        self.cluster.stop()?;
        self.cluster.verify_checksums(machine)
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

impl Drop for Postgres {
    fn drop(&mut self) {
        // The server first: its clients wait for it.
        self.cluster.kill();
    }
}
