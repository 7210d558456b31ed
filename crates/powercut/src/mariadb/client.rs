//! Threads that commit to MariaDB until the power goes, each through the client program of its own.
//!
//! A thread writes one transaction and a SELECT of its number to the program's standard input; the number on
//! its standard output is the acknowledgement.
//!
//! Neighbours: [`super`] starts and joins them; [`super::server`] is what they speak to.

use super::server::Server;
use super::{ACCOUNTS, CLIENTS};
use crate::failure::{Failure, Outcome};
use crate::machine::{Machine, is_powered};
use quire_base::random::Random;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// SQL of a row's text.
pub const PAYLOAD: &str = "REPEAT(MD5(client * 1000003 + number), 1 + number % 7 * 10)";

/// Threads at work.
pub struct Clients {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Outcome<u64>>>,
}

impl Clients {
    /// Starts a client for each number in `after`; client `c` goes on after number `after[c]`.
    pub fn start(machine: &Machine, server: &Server, after: &[u64], random: &mut Random) -> Outcome<Clients> {
        let trouble = |error: std::io::Error| Failure::trouble("a client's files on the host", error);
        let mut clients = Clients { stop: Arc::new(AtomicBool::new(false)), workers: Vec::new() };
        for (client, after) in after.iter().copied().enumerate() {
            let mut worker = Worker {
                client,
                power: File::open(machine.power()).map_err(trouble)?,
                stop: clients.stop.clone(),
                random: Random::seeded(random.next_u64()),
            };
            let program = server.client(machine);
            clients.workers.push(std::thread::spawn(move || worker.commit(program, after)));
        }
        debug_assert_eq!(clients.workers.len(), CLIENTS);
        Ok(clients)
    }

    /// Ends the threads, whose server is gone or going. Gives the last acknowledged number of each client.
    pub fn end(mut self) -> Outcome<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| Failure::Trouble("a client's thread panicked".into());
        let workers = std::mem::take(&mut self.workers);
        // All are joined before any error is told.
        let numbers: Vec<_> = workers.into_iter().map(|worker| worker.join().map_err(panicked)).collect();
        numbers.into_iter().map(|number| number?).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

struct Worker {
    client: usize,
    power: File,
    stop: Arc<AtomicBool>,
    random: Random,
}

impl Worker {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || !is_powered(&self.power)
    }

    fn commit(&mut self, mut program: Command, after: u64) -> Outcome<u64> {
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::trouble("starting a client program", error))?;
        let outcome = self.talk(&mut process, after);
        let _ = process.kill();
        let words = process.wait_with_output().map(|output| output.stderr).unwrap_or_default();
        match outcome {
            Talk::Over(acknowledged) => Ok(acknowledged),
            // An error counts only while the power is on.
            Talk::Broken(acknowledged) if self.is_over() => Ok(acknowledged),
            Talk::Broken(_) => {
                let words = String::from_utf8_lossy(&words);
                Err(Failure::Broken(format!("committing, with the power on: {}", words.trim())))
            }
        }
    }

    fn talk(&mut self, process: &mut Child, after: u64) -> Talk {
        let mut acknowledged = after;
        let (Some(mut orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Talk::Broken(acknowledged);
        };
        let mut answers = BufReader::new(answers);
        let mut line = String::new();
        while !self.is_over() {
            let number = acknowledged + 1;
            let sql = self.transaction(number);
            line.clear();
            let answered = orders
                .write_all(sql.as_bytes())
                .and_then(|()| orders.flush())
                .and_then(|()| answers.read_line(&mut line));
            match answered {
                Ok(length) if length > 0 && line.trim() == number.to_string() => {}
                _ => return Talk::Broken(acknowledged),
            }
            // What was acknowledged counts even when the harness wants an end.
            if !is_powered(&self.power) {
                break;
            }
            acknowledged = number;
        }
        Talk::Over(acknowledged)
    }

    fn transaction(&mut self, number: u64) -> String {
        let client = self.client;
        let delta = self.random.below(10_001) as i64 - 5000;
        let accounts: Vec<String> = (0..6).map(|_| (1 + self.random.below(ACCOUNTS)).to_string()).collect();
        let (first, all) = (&accounts[0], accounts.join(","));
        // One statement locks its rows in the order of their keys, so clients never wait for each other in a
        // circle.
        format!(
            "BEGIN;
             INSERT INTO test.ledger(client, number, delta, payload)
                 SELECT client, number, {delta}, {PAYLOAD} FROM (SELECT {client} AS client, {number} AS number) AS new;
             UPDATE test.accounts SET balance = balance + IF(id = {first}, {delta}, 0), filler = REPEAT(MD5({number}), 7)
                 WHERE id IN ({all});
             COMMIT;
             SELECT {number};\n"
        )
    }
}

/// How a client's talk with its server ended, and the last acknowledged number.
enum Talk {
    /// The harness or the cut ended it.
    Over(u64),
    /// An answer failed to come.
    Broken(u64),
}
