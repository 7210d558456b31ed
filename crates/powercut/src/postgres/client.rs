//! Threads that commit to PostgreSQL until the power goes, and write down what was acknowledged.
//!
//! A transaction is pgbench's TPC-B-like one (accounts, tellers, branches, history; pgbench(1)) plus a row
//! (client, number) in the table `ledger`, so that sums and counts of all tables must agree with it. One more
//! thread does the housekeeping that makes files come and go.
//!
//! Neighbours: [`super`] starts and joins them; [`super::connection`] is the connection.

use super::SCALE;
use super::cluster::Cluster;
use super::connection::{Connection, QueryError};
use crate::failure::{Failure, Outcome};
use crate::machine::{Machine, is_powered};
use quire_base::random::Random;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// SQL of a row's text: now and then 20,000 bytes, else up to 320.
pub const PAYLOAD: &str = "(SELECT string_agg(md5((client * 1000003 + number + i)::text), '')
    FROM generate_series(0, CASE (client + number) % 50 WHEN 0 THEN 624 ELSE number * 7 % 10 END) AS i)";

/// How long an answer may take while the power is on.
const PATIENCE: Duration = Duration::from_secs(60);

/// What threads of one `work` share.
struct Shared {
    socket: PathBuf,
    power: File,
    stop: AtomicBool,
}

/// Threads at work.
pub struct Clients {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<Outcome<u64>>>,
    housekeeper: Option<JoinHandle<Outcome>>,
}

impl Clients {
    /// Starts a client for each number in `after`; client `c` goes on after number `after[c]`.
    pub fn start(machine: &Machine, after: &[u64], random: &mut Random) -> Outcome<Clients> {
        let trouble = |error: std::io::Error| Failure::trouble("a client's files on the host", error);
        let shared = Arc::new(Shared {
            socket: Cluster::socket(machine),
            power: File::open(machine.power()).map_err(trouble)?,
            stop: AtomicBool::new(false),
        });
        let mut clients = Clients { shared: shared.clone(), workers: Vec::new(), housekeeper: None };
        for (client, after) in after.iter().copied().enumerate() {
            let path = machine.folder().join(format!("ledger-{client}"));
            let ledger = File::options().create(true).append(true).open(path).map_err(trouble)?;
            let (shared, random) = (shared.clone(), Random::seeded(random.next_u64()));
            clients.workers.push(std::thread::spawn(move || shared.commit(client, after, ledger, random)));
        }
        let random = Random::seeded(random.next_u64());
        clients.housekeeper = Some(std::thread::spawn(move || shared.keep_house(random)));
        Ok(clients)
    }

    /// Ends the threads, whose server is gone or going. Gives the last acknowledged number of each client.
    pub fn end(mut self) -> Outcome<Vec<u64>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let panicked = |_| Failure::Trouble("a client's thread panicked".into());
        let workers = std::mem::take(&mut self.workers);
        // All are joined before any error is told.
        let numbers: Vec<_> = workers.into_iter().map(|worker| worker.join().map_err(panicked)).collect();
        if let Some(housekeeper) = self.housekeeper.take() {
            housekeeper.join().map_err(panicked)??;
        }
        numbers.into_iter().map(|number| number?).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        if let Some(housekeeper) = self.housekeeper.take() {
            let _ = housekeeper.join();
        }
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || !is_powered(&self.power)
    }

    /// An error counts only while the power is on; conflicts with others never do.
    fn judge(&self, doing: &str, error: &QueryError) -> Outcome<bool> {
        if matches!(error, QueryError::Refused { state, .. } if state == "40P01" || state == "40001" || state == "55P03")
        {
            return Ok(true);
        }
        if self.is_over() {
            return Ok(false);
        }
        Err(Failure::Broken(format!("{doing}, with the power on: {error}")))
    }

    fn commit(&self, client: usize, after: u64, mut ledger: File, mut random: Random) -> Outcome<u64> {
        let mut acknowledged = after;
        let mut connection = match Connection::open(&self.socket, super::cluster::USER, PATIENCE) {
            Ok(connection) => connection,
            Err(error) => return self.judge("connecting", &error).map(|_| acknowledged),
        };
        while !self.is_over() {
            let number = acknowledged + 1;
            match connection.query(&transaction(client, number, &mut random)) {
                // Not is_over: what was acknowledged counts even when the harness wants an end.
                Ok(_) if is_powered(&self.power) => {
                    acknowledged = number;
                    ledger
                        .write_all(format!("{number}\n").as_bytes())
                        .map_err(|error| Failure::trouble("writing a ledger", error))?;
                }
                Ok(_) => break,
                Err(error) => {
                    if !self.judge("committing", &error)? {
                        break;
                    }
                    let _ = connection.query("ROLLBACK");
                }
            }
        }
        Ok(acknowledged)
    }

    fn keep_house(&self, mut random: Random) -> Outcome {
        let mut connection = match Connection::open(&self.socket, super::cluster::USER, PATIENCE) {
            Ok(connection) => connection,
            Err(error) => return self.judge("connecting", &error).map(drop),
        };
        while !self.is_over() {
            let chore = match random.below(10) {
                0 | 8 | 9 => "CHECKPOINT",
                1 => "VACUUM pgbench_branches, pgbench_tellers",
                2 => "VACUUM (ANALYZE) pgbench_history",
                3 => "REINDEX TABLE ledger",
                4 => {
                    "DROP TABLE IF EXISTS copy; CREATE TABLE copy AS SELECT * FROM pgbench_accounts LIMIT 20000"
                }
                5 => "VACUUM FULL pgbench_tellers",
                6 => "SELECT pg_switch_wal()",
                _ => "UPDATE pgbench_accounts SET filler = md5(aid::text) WHERE aid % 97 = 3",
            };
            if let Err(error) = connection.query(chore)
                && !self.judge(chore, &error)?
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(random.below(150)));
        }
        Ok(())
    }
}

fn transaction(client: usize, number: u64, random: &mut Random) -> String {
    let account = random.below(SCALE * 100_000) + 1;
    let teller = random.below(SCALE * 10) + 1;
    let branch = random.below(SCALE) + 1;
    let delta = random.below(10_001) as i64 - 5000;
    format!(
        "BEGIN;
         INSERT INTO ledger SELECT client, number, {PAYLOAD} FROM (VALUES({client}, {number}::bigint)) AS new(client, number);
         UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {account};
         UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {teller};
         UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = {branch};
         INSERT INTO pgbench_history(tid, bid, aid, delta, mtime)
             VALUES({teller}, {branch}, {account}, {delta}, CURRENT_TIMESTAMP);
         COMMIT"
    )
}
