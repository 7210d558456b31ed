//! PostgreSQL: a cluster with data checksums on the mount, committing clients, a housekeeper.
//!
//! Client `c` counts its transactions; each inserts (c, n) into `ledger` besides pgbench's own updates, and
//! is written down on the host after COMMIT's answer. After a recovery: each client's rows are 1 to some `n`,
//! `n` the last acknowledged or the one after it; the balances of accounts, tellers and branches and the
//! deltas of the history add up to the same; history and ledger have as many rows; the texts are those that
//! were committed; pg_amcheck walks every table and index; and at the end, pg_checksums every page.
//!
//! `full_page_writes` stays on: without it PostgreSQL needs 8 KiB pages to be written atomically across a
//! power loss (postgresql.org/docs/15/runtime-config-wal.html#GUC-FULL-PAGE-WRITES). Quire promises that for
//! files with the property `untorn` only, which this harness does not set.
//!
//! Neighbours: [`cluster`] is the server, [`client`] its clients, [`connection`] their sessions.

pub mod client;
pub mod cluster;
pub mod connection;

use crate::campaign::Program;
use crate::failure::{Failure, Outcome};
use crate::machine::Machine;
use client::Clients;
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
    /// Last number of each client that was acknowledged, or that a recovered database had.
    acknowledged: [u64; CLIENTS],
    lost: u64,
}

impl Postgres {
    /// Nothing is made or started yet.
    pub fn new(installation: Installation) -> Postgres {
        Postgres { cluster: Cluster::new(installation), clients: None, acknowledged: [0; CLIENTS], lost: 0 }
    }

    fn start(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Connection> {
        self.cluster.launch(machine, random)?;
        self.cluster.wait_until_ready(machine)
    }

    fn compare(&mut self, rows: &Rows) -> Outcome {
        let mut lost = Vec::new();
        for (client, known) in self.acknowledged.iter_mut().enumerate() {
            let row = rows.iter().find(|row| number(row, 0) == Some(client as u64));
            let (count, least, most) = match row {
                None => (0, 1, 0),
                Some(row) => match (number(row, 1), number(row, 2), number(row, 3)) {
                    (Some(count), Some(least), Some(most)) => (count, least, most),
                    _ => return Err(Failure::Trouble(format!("not numbers: {row:?}"))),
                },
            };
            if count < *known {
                self.lost += *known - count;
                lost.push(format!("client {client} has {count} transactions, {known} were acknowledged"));
            } else if (least, most) != (1, count) {
                return Err(Failure::Broken(format!(
                    "client {client} has {count} transactions, numbered {least} to {most}"
                )));
            } else if count > *known + 1 {
                return Err(Failure::Broken(format!(
                    "client {client} has {count} transactions, only {} were ever committed",
                    *known + 1
                )));
            }
            *known = count;
        }
        if lost.is_empty() { Ok(()) } else { Err(Failure::Broken(format!("LOST: {}", lost.join("; ")))) }
    }
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
        self.cluster.launch(machine, random)
    }

    fn check(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Duration> {
        let started = Instant::now();
        let mut connection = self.start(machine, random)?;
        let took = started.elapsed();
        let found = ask(
            &mut connection,
            "SELECT client, count(*), min(number), max(number) FROM ledger GROUP BY client",
        )?;
        self.compare(&found)?;
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
            "SELECT coalesce(bool_and(payload = (SELECT string_agg(md5((client * 1000003 + number + i)::text), '')
                FROM generate_series(0, length(payload) / 32 - 1) AS i)), true)
             FROM (SELECT * FROM ledger ORDER BY number DESC LIMIT 500) AS newest",
        )?;
        if self.cluster.has("pg_amcheck") {
            self.cluster.client(machine, "pg_amcheck", &["--heapallindexed", "postgres"])?;
        }
        Ok(took)
    }

    fn work(&mut self, machine: &Machine, random: &mut Random) -> Outcome {
        self.clients = Some(Clients::start(machine, &self.acknowledged, random)?);
        Ok(())
    }

    fn end(&mut self, _machine: &Machine) -> Outcome<u64> {
        self.cluster.kill();
        let Some(clients) = self.clients.take() else { return Ok(0) };
        let mut fresh = 0;
        for (known, number) in self.acknowledged.iter_mut().zip(clients.end()?) {
            fresh += number.saturating_sub(*known);
            *known = number.max(*known);
        }
        Ok(fresh)
    }

    fn stop(&mut self, machine: &Machine) -> Outcome {
        self.cluster.stop()?;
        self.cluster.verify_checksums(machine)
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The server first: its clients wait for it.
        self.cluster.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: [u64; 4]) -> Vec<Option<String>> {
        values.iter().map(|value| Some(value.to_string())).collect()
    }

    fn postgres(acknowledged: u64) -> Option<Postgres> {
        let installation =
            Installation::find().map_err(|missing| eprintln!("\n*** SKIPPED: needs {missing} ***\n"));
        let mut postgres = Postgres::new(installation.ok()?);
        postgres.acknowledged[2] = acknowledged;
        Some(postgres)
    }

    #[test]
    fn a_missing_transaction_is_lost_and_a_gap_is_seen() {
        let Some(mut short) = postgres(9) else { return };
        assert!(matches!(short.compare(&vec![row([2, 8, 1, 8])]), Err(Failure::Broken(_))));
        assert_eq!(short.lost, 1);
        let good = |found| postgres(9).is_some_and(|mut known| known.compare(&vec![row(found)]).is_ok());
        assert!(good([2, 9, 1, 9]) && good([2, 10, 1, 10]));
        assert!(!good([2, 9, 1, 10]) && !good([2, 11, 1, 11]));
    }
}
